//! What a controller is asked and told after it was enabled.

use vdk_descriptors::nvme::{
    AdminCommandSupport, AdminOpcode, AsyncEventConfiguration, Cns, FeatureDword, FeatureId,
    IdentifyController, IdentifyDword, NumberOfQueues, NvmCommandSupport, SglSupport, SubmissionEntry,
    Version, text,
};
use vdk_descriptors::ring::ZeroBased;
use vdk_descriptors::sgl::SglFormat;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, DmaRegion};
use zerocopy::{FromZeros, IntoBytes};

use super::admin::Admin;
use super::device::Device;
use super::error::{AdminError, StartError};
use super::queue::ShadowPages;

/// What the controller says of itself, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerFacts {
    /// The revision of the specification that it follows.
    pub version: Version,
    /// The PCI vendor id that Identify tells.
    pub vendor: u16,
    /// The model number.
    pub model: String,
    /// The serial number.
    pub serial: String,
    /// The firmware revision.
    pub firmware: String,
    /// The highest number that a namespace can have.
    pub namespaces: u32,
    /// How many I/O queue pairs can be open at once.
    pub queues: u16,
    /// How many were asked for.
    pub queues_asked: u16,
    /// The most entries of a queue, MQES and one.
    pub queue_entries: u32,
    /// MDTS in bytes; `None` for no limit.
    pub max_data_transfer: Option<ByteLength>,
    /// The longest transfer of one command: the smaller of MDTS and what the options say.
    pub max_transfer: ByteLength,
    /// Written data may be lost with the power until a flush.
    pub write_cache: bool,
    /// Optional admin commands.
    pub admin_commands: AdminCommandSupport,
    /// Optional NVM commands.
    pub commands: NvmCommandSupport,
    /// SGLs.
    pub sgl: SglSupport,
    /// Doorbells have shadows in memory, so that not each is a write to a register.
    pub shadow_doorbells: bool,
    /// The optional parts of log pages.
    pub extended_log_pages: bool,
}

/// The pages of the shadow doorbells, mapped for the controller.
#[derive(Debug)]
pub(super) struct Shadow {
    pages: ShadowPages,
    region: DmaRegion<Bidirectional>,
}

impl Shadow {
    pub(super) fn pages(&self) -> &ShadowPages {
        &self.pages
    }
}

/// Asks for and sets all that the queues need.
pub(super) fn bring_up(device: &Device, admin: &mut Admin) -> Result<ControllerFacts, StartError> {
    let identify = identify_controller(admin)?;
    if !(identify.submission_entry.required()..=identify.submission_entry.max()).contains(&6) {
        let what =
            format!("submission queue entries have no 64 bytes (SQES {:#x})", identify.submission_entry.0);
        return Err(StartError::Identify { cns: Cns::CONTROLLER, what });
    }
    let queues = number_of_queues(admin, device.options().queues.max(1))?;
    let shadow_doorbells = device.options().shadow_doorbells
        && identify.admin_commands.doorbell_buffer()
        && configure_shadow(device, admin);
    // Counted from zero.
    admin.limit_aborts(u32::from(identify.abort_limit) + 1);
    request_events(&identify, admin);
    let max_data_transfer = max_data_transfer(device, &identify);
    let wanted = device.options().max_transfer.max(device.page());
    let max_transfer = max_data_transfer.map_or(wanted, |limit| limit.min(wanted));
    let max_transfer = ByteLength::new(max_transfer.as_u64() & !(device.page().as_u64() - 1));
    Ok(ControllerFacts {
        version: device.version(),
        vendor: identify.vendor,
        model: text(&identify.model_number),
        serial: text(&identify.serial_number),
        firmware: text(&identify.firmware_revision),
        namespaces: identify.namespaces,
        queues,
        queues_asked: device.options().queues,
        // A raw value of 16 bits is at most 65,536 entries.
        queue_entries: u32::try_from(ZeroBased::from_raw(device.capabilities().max_queue_entries()).count())
            .unwrap_or(u32::from(u16::MAX)),
        max_data_transfer,
        max_transfer,
        write_cache: identify.write_cache.present(),
        admin_commands: identify.admin_commands,
        commands: identify.nvm_commands,
        sgl: identify.sgl,
        shadow_doorbells,
        extended_log_pages: identify.log_pages.extended(),
    })
}

impl ControllerFacts {
    /// How SGLs are built for the controller; `None` when it has none.
    pub(super) fn sgl_format(&self) -> Option<SglFormat> {
        let whole_dwords = match self.sgl.kind() {
            1 => false,
            2 => true,
            _ => return None,
        };
        Some(SglFormat { whole_dwords, max_transfer: Some(self.max_transfer) })
    }
}

pub(super) fn identify_controller(admin: &mut Admin) -> Result<Box<IdentifyController>, AdminError> {
    let mut dword = IdentifyDword::default();
    dword.set_cns(Cns::CONTROLLER.0);
    let entry = SubmissionEntry { dword10: dword.0, ..SubmissionEntry::default() };
    admin.execute(AdminOpcode::IDENTIFY, entry, size_of::<IdentifyController>())?;
    let mut identify = new_zeroed::<IdentifyController>();
    admin.read(0, identify.as_mut_bytes());
    Ok(identify)
}

/// A value of zeros on the heap.
pub(super) fn new_zeroed<T: FromZeros>() -> Box<T> {
    Box::new(T::new_zeroed())
}

/// MDTS in bytes. An exponent that no transfer reaches is no limit.
fn max_data_transfer(device: &Device, identify: &IdentifyController) -> Option<ByteLength> {
    match identify.max_transfer_exponent {
        0 => None,
        exponent => {
            let bytes = device.capabilities().page_min().as_u64().checked_shl(u32::from(exponent));
            bytes.filter(|bytes| *bytes > 0).map(ByteLength::new)
        }
    }
}

/// Asks for I/O queues, and returns how many pairs the controller gives.
fn number_of_queues(admin: &mut Admin, asked: u16) -> Result<u16, StartError> {
    let size = ZeroBased::<u16>::from_count(u64::from(asked)).map_or(0, ZeroBased::raw);
    let mut number = NumberOfQueues::default();
    number.set_submission(size);
    number.set_completion(size);
    let mut dword = FeatureDword::default();
    dword.set_feature(FeatureId::NUMBER_OF_QUEUES);
    let entry = SubmissionEntry { dword10: dword.0, dword11: number.0, ..SubmissionEntry::default() };
    let completion = admin.execute(AdminOpcode::SET_FEATURES, entry, 0)?;
    let given = NumberOfQueues(completion.result);
    let count =
        ZeroBased::from_raw(given.submission()).count().min(ZeroBased::from_raw(given.completion()).count());
    // A controller may give more than was asked for; they are not used.
    Ok(u16::try_from(count).unwrap_or(u16::MAX).min(asked))
}

/// Tells the controller where the shadows of the doorbells lie. Without them each doorbell
/// is a register, which works as well.
fn configure_shadow(device: &Device, admin: &mut Admin) -> bool {
    let shadow = match device.shadow_cell().get() {
        Some(shadow) => shadow,
        None => match new_shadow(device) {
            Ok(shadow) => device.shadow_cell().get_or_init(|| shadow),
            Err(error) => {
                log::warn!("no shadow doorbells: {error}");
                return false;
            }
        },
    };
    let (first, page) = (shadow.region.iova().as_u64(), device.page().as_u64());
    let entry = SubmissionEntry { data: [first, first + page], ..SubmissionEntry::default() };
    match admin.execute_described(AdminOpcode::DOORBELL_BUFFER_CONFIG, entry) {
        Ok(_) => {
            admin.attach_shadow(shadow.pages());
            true
        }
        Err(error) => {
            log::warn!("no shadow doorbells: {error}");
            false
        }
    }
}

fn new_shadow(device: &Device) -> Result<Shadow, StartError> {
    let page = usize::try_from(device.page().as_u64()).unwrap_or(usize::MAX);
    let memory = SharedMemory::allocate(ByteLength::from_usize(page.saturating_mul(2)), Pages::Base)?;
    let pages = ShadowPages { shadow: memory.slice(0, page)?, event: memory.slice(page, page)? };
    let region = device.domain().map_aligned::<Bidirectional>(memory, device.page())?;
    Ok(Shadow { pages, region })
}

/// Lets the controller tell of events. It works without.
fn request_events(identify: &IdentifyController, admin: &mut Admin) {
    let mut wanted = AsyncEventConfiguration::default();
    wanted.set_health(0x1f);
    let optional = AsyncEventConfiguration(identify.optional_events);
    wanted.set_namespace_attributes(optional.namespace_attributes());
    wanted.set_firmware_activation(optional.firmware_activation());
    let mut dword = FeatureDword::default();
    dword.set_feature(FeatureId::ASYNC_EVENT_CONFIGURATION);
    let entry = SubmissionEntry { dword10: dword.0, dword11: wanted.0, ..SubmissionEntry::default() };
    let count = u32::from(identify.async_event_limit).saturating_add(1).min(4);
    let asked = admin.execute(AdminOpcode::SET_FEATURES, entry, 0).and_then(|_| admin.request_events(count));
    if let Err(error) = asked {
        log::debug!("no asynchronous events: {error}");
    }
}
