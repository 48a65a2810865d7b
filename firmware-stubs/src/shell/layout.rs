//! Configuration space as a profile describes it.

use vdk_hal::address::BarIndex;
use vdk_hal::bar::BarKind;
use vdk_hal::config::{
    CapabilityId, Command, DeviceCapabilities, Express, ExpressFlags, ExtendedCapabilityId, Msi, MsiControl,
    Msix, MsixControl, PortType, PowerCapabilities, PowerControl, PowerManagement, Status, register,
};
use vdk_hal::mmio::Width;

use super::config::ConfigImage;
use super::profile::{BarProfile, Profile};

/// Where the capabilities lie.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Positions {
    pub(crate) power: Option<u16>,
    pub(crate) msi: Option<u16>,
    pub(crate) msix: Option<u16>,
    pub(crate) express: Option<u16>,
    /// Advanced error reporting.
    pub(crate) errors: Option<u16>,
}

/// Configuration space after power-on.
pub(crate) fn power_on(profile: &Profile) -> (ConfigImage, Positions) {
    let mut image = ConfigImage::new(profile.config_size());
    header(&mut image, profile);
    for bar in &profile.bars {
        address_register(&mut image, bar);
    }
    let mut chain = Chain { pointer: register::CAPABILITIES_POINTER, next: 0x40 };
    let positions = Positions {
        power: profile.power.map(|power| {
            let offset = chain.append(&mut image, CapabilityId::POWER_MANAGEMENT, PowerManagement::LENGTH);
            let mut capabilities = PowerCapabilities::default();
            capabilities.set_version(3);
            image.store16(offset + PowerManagement::CAPABILITIES, capabilities.0);
            let mut control = PowerControl::default();
            control.set_no_soft_reset(power.no_soft_reset);
            image.store16(offset + PowerManagement::CONTROL, control.0);
            image.allow_write16(offset + PowerManagement::CONTROL, POWER_STATE);
            offset
        }),
        msi: profile.msi.map(|msi| {
            let length = if msi.maskable { 24 } else { 14 };
            let offset = chain.append(&mut image, CapabilityId::MSI, length);
            let mut control = MsiControl::default();
            control.set_capable_log2(log2(msi.vectors));
            control.set_address_64(true);
            control.set_per_vector_masking(msi.maskable);
            image.store16(offset + Msi::CONTROL, control.0);
            image.allow_write(offset + Msi::ADDRESS, 0xffff_fffc);
            image.allow_write(offset + Msi::ADDRESS + 4, u32::MAX);
            image.allow_write16(offset + MSI_MESSAGE, u16::MAX);
            if msi.maskable {
                image.allow_write(offset + MSI_MASK, vector_bits(msi.vectors));
            }
            offset
        }),
        msix: profile.msix.map(|msix| {
            let offset = chain.append(&mut image, CapabilityId::MSIX, Msix::LENGTH);
            let mut control = MsixControl::default();
            control.set_last_vector(msix.vectors - 1);
            image.store16(offset + Msix::CONTROL, control.0);
            image.allow_write16(offset + Msix::CONTROL, MSIX_FUNCTION_MASK);
            image.store32(offset + Msix::TABLE, location(msix.table));
            image.store32(offset + Msix::PENDING, location(msix.pending));
            offset
        }),
        express: profile.express.map(|express| {
            let offset = chain.append(&mut image, CapabilityId::PCI_EXPRESS, Express::LENGTH);
            let mut flags = ExpressFlags::default();
            flags.set_version(2);
            flags.set_port_type_bits(u16::from(PortType::INTEGRATED_ENDPOINT.0));
            image.store16(offset + Express::FLAGS, flags.0);
            let mut capabilities = DeviceCapabilities::default();
            capabilities.set_max_payload_bits(1);
            capabilities.set_extended_tags(true);
            capabilities.set_role_based_errors(true);
            capabilities.set_function_level_reset(express.function_level_reset);
            image.store32(offset + Express::DEVICE_CAPABILITIES, capabilities.0);
            image.store16(offset + Express::DEVICE_CONTROL, DEVICE_CONTROL_DEFAULT);
            image.allow_write16(offset + Express::DEVICE_CONTROL, DEVICE_CONTROL_WRITABLE);
            image.allow_clear16(offset + Express::DEVICE_STATUS, 0x000f);
            offset
        }),
        errors: profile.express.map(|_| extended_capabilities(&mut image, profile.serial_number)),
    };
    for own in &profile.registers {
        image.store32(own.offset, own.value);
        image.allow_write(own.offset, own.writable);
        image.allow_clear(own.offset, own.write_one_to_clear);
    }
    (image, positions)
}

/// The address that firmware would have programmed: BARs one after the other, each
/// aligned to its size.
pub(crate) fn firmware_addresses(profile: &Profile) -> [u64; BarIndex::COUNT] {
    let mut addresses = [0; BarIndex::COUNT];
    let (mut narrow, mut wide, mut port) = (0xe000_0000u64, 0x38_0000_0000u64, 0xc000u64);
    for bar in &profile.bars {
        let size = bar.size.as_u64();
        let (cursor, limit) = match bar.kind {
            BarKind::Memory32 => (&mut narrow, 0xfec0_0000),
            BarKind::Memory64 => (&mut wide, 1 << 52),
            BarKind::Io => (&mut port, 0x1_0000),
        };
        let start = cursor.next_multiple_of(size);
        // A BAR that does not fit stays unassigned, as firmware leaves it.
        if start + size <= limit {
            addresses[bar.index.as_usize()] = start;
            *cursor = start + size;
        }
    }
    addresses
}

/// Programs an address into a BAR, as firmware does.
pub(crate) fn store_address(image: &mut ConfigImage, bar: &BarProfile, address: u64) {
    let offset = bar_offset(bar.index);
    let mut write = |offset, value: u64| {
        // CAST: keeps the low word by intention.
        #[expect(clippy::cast_possible_truncation, reason = "splits an address")]
        image.write(offset, Width::U32, value as u32);
    };
    write(offset, address);
    if bar.kind == BarKind::Memory64 {
        write(offset + 4, address >> 32);
    }
}

/// Where the register of a BAR lies.
pub(crate) fn bar_offset(index: BarIndex) -> u16 {
    register::BAR0 + 4 * u16::from(index.as_u8())
}

/// The bits of a BAR that hold its address.
pub(crate) fn address_bits(bar: &BarProfile) -> u64 {
    let bits = !(bar.size.as_u64() - 1);
    match bar.kind {
        BarKind::Memory64 => bits,
        BarKind::Memory32 | BarKind::Io => bits & 0xffff_ffff,
    }
}

/// One bit for each of `vectors`.
pub(crate) fn vector_bits(vectors: u16) -> u32 {
    u32::MAX.checked_shr(32 - u32::from(vectors.min(32))).unwrap_or(0)
}

fn header(image: &mut ConfigImage, profile: &Profile) {
    let identity = profile.identity;
    image.store16(register::VENDOR_ID, identity.vendor);
    image.store16(register::DEVICE_ID, identity.device);
    image.store32(register::REVISION_ID, identity.class << 8 | u32::from(identity.revision));
    image.store16(register::SUBSYSTEM_VENDOR_ID, identity.subsystem_vendor);
    image.store16(register::SUBSYSTEM_ID, identity.subsystem);
    let mut writable = Command::default();
    writable.set_io_space(profile.bars.iter().any(|bar| bar.kind == BarKind::Io));
    writable.set_memory_space(profile.bars.iter().any(|bar| bar.kind != BarKind::Io));
    writable.set_bus_master(true);
    writable.set_parity_error_response(true);
    writable.set_system_error_enable(true);
    writable.set_interrupt_disable(profile.intx);
    image.allow_write16(register::COMMAND, writable.0);
    image.allow_clear16(register::STATUS, Status::WRITE_ONE_TO_CLEAR.0);
    image.allow_write16(register::CACHE_LINE_SIZE, 0x00ff);
    image.allow_write16(register::INTERRUPT_LINE, 0x00ff);
    image.store(register::INTERRUPT_PIN, Width::U8, u32::from(profile.intx));
}

fn address_register(image: &mut ConfigImage, bar: &BarProfile) {
    let offset = bar_offset(bar.index);
    let flags = match bar.kind {
        BarKind::Io => 0x1,
        BarKind::Memory32 => 0x0,
        BarKind::Memory64 => 0x4,
    };
    let prefetchable = if bar.prefetchable && bar.kind != BarKind::Io { 0x8 } else { 0 };
    image.store32(offset, flags | prefetchable);
    let bits = address_bits(bar);
    // CAST: keeps the words by intention.
    #[expect(clippy::cast_possible_truncation, reason = "splits a mask")]
    let (low, high) = (bits as u32, (bits >> 32) as u32);
    image.allow_write(offset, low);
    if bar.kind == BarKind::Memory64 {
        image.allow_write(offset + 4, high);
    }
}

/// Lays out the extended capabilities; returns where advanced error reporting lies.
fn extended_capabilities(image: &mut ConfigImage, serial_number: u64) -> u16 {
    let (errors, serial) = (0x100, 0x140);
    extended_header(image, errors, ExtendedCapabilityId::ADVANCED_ERROR_REPORTING, 2, serial);
    image.allow_clear(errors + UNCORRECTABLE_STATUS, UNCORRECTABLE);
    image.allow_write(errors + UNCORRECTABLE_MASK, UNCORRECTABLE);
    image.store32(errors + UNCORRECTABLE_SEVERITY, UNCORRECTABLE_SEVERITY_DEFAULT);
    image.allow_write(errors + UNCORRECTABLE_SEVERITY, UNCORRECTABLE);
    image.allow_clear(errors + CORRECTABLE_STATUS, CORRECTABLE);
    image.store32(errors + CORRECTABLE_MASK, ADVISORY_NON_FATAL);
    image.allow_write(errors + CORRECTABLE_MASK, CORRECTABLE);
    extended_header(image, serial, ExtendedCapabilityId::DEVICE_SERIAL_NUMBER, 1, 0);
    // CAST: keeps the words by intention.
    #[expect(clippy::cast_possible_truncation, reason = "splits the number")]
    let (low, high) = (serial_number as u32, (serial_number >> 32) as u32);
    image.store32(serial + 4, low);
    image.store32(serial + 8, high);
    errors
}

fn extended_header(image: &mut ConfigImage, at: u16, id: ExtendedCapabilityId, version: u32, next: u16) {
    image.store32(at, u32::from(next) << 20 | version << 16 | u32::from(id.0));
}

/// The list of capabilities as it grows.
struct Chain {
    pointer: u16,
    next: u16,
}

impl Chain {
    /// Links a capability of `length` bytes; returns where it lies.
    fn append(&mut self, image: &mut ConfigImage, id: CapabilityId, length: u16) -> u16 {
        let offset = self.next;
        image.store(self.pointer, Width::U8, u32::from(offset));
        image.store(offset, Width::U8, u32::from(id.0));
        self.pointer = offset + 1;
        self.next = (offset + length).next_multiple_of(16);
        let mut list = Status::default();
        list.set_capabilities_list(true);
        image.set_bits16(register::STATUS, list.0, list.0);
        offset
    }
}

fn location((bar, offset): (BarIndex, u32)) -> u32 {
    offset & !0x7 | u32::from(bar.as_u8())
}

/// The binary logarithm of a count of vectors, which is a power of two; zero for none.
pub(crate) fn log2(vectors: u16) -> u16 {
    (0..16).find(|log2| vectors >> log2 <= 1).unwrap_or(0)
}

/// The power state in the control register of power management.
pub(crate) const POWER_STATE: u16 = 0x0003;
/// D3hot there.
pub(crate) const POWER_STATE_D3HOT: u16 = 0x0003;
/// The message, mask and pending words of an MSI capability with 64-bit addresses.
const MSI_MESSAGE: u16 = 12;
/// The mask bits of an MSI capability with 64-bit addresses.
pub(crate) const MSI_MASK: u16 = 16;
/// The pending bits of an MSI capability with 64-bit addresses.
pub(crate) const MSI_PENDING: u16 = 20;
/// The function mask of MSI-X, in its control register.
pub(crate) const MSIX_FUNCTION_MASK: u16 = 1 << 14;
/// Relaxed ordering and no-snoop allowed, reads of 512 bytes.
const DEVICE_CONTROL_DEFAULT: u16 = 0x2810;
/// Everything but the bit that starts a reset, which reads as zero.
const DEVICE_CONTROL_WRITABLE: u16 = 0x79ff;
/// Offsets in advanced error reporting.
pub(crate) const UNCORRECTABLE_STATUS: u16 = 0x04;
const UNCORRECTABLE_MASK: u16 = 0x08;
const UNCORRECTABLE_SEVERITY: u16 = 0x0c;
const CORRECTABLE_STATUS: u16 = 0x10;
const CORRECTABLE_MASK: u16 = 0x14;
/// The errors that an endpoint can have: poisoned data to internal error.
const UNCORRECTABLE: u32 = 0x007f_f030;
/// An uncorrectable internal error.
pub(crate) const UNCORRECTABLE_INTERNAL: u32 = 1 << 22;
/// Which uncorrectable errors are fatal by default.
const UNCORRECTABLE_SEVERITY_DEFAULT: u32 = 0x0046_2030;
const CORRECTABLE: u32 = 0x0000_f1c1;
const ADVISORY_NON_FATAL: u32 = 0x0000_2000;
