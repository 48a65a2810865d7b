//! Identify: what the controller and its namespaces are.

use vdk_descriptors::nvme::{
    Cns, IdentifyController, IdentifyDword, IdentifyNamespace, LbaFormat, NamespaceDescriptor,
    NamespaceIdType, NamespaceList, Status, SubmissionEntry, Version,
};
use vdk_iommu::soft::Burst;
use zerocopy::{FromZeros, IntoBytes};

use super::VENDOR_ID;
use super::bus::Nvme;
use super::engine::Answer;
use super::events::MOST_REQUESTS;
use super::logs::{CRITICAL_TEMPERATURE, ERRORS, WARNING_TEMPERATURE};
use super::namespace::Namespace;

impl Nvme {
    pub(super) fn identify(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
    ) -> Result<Answer, Status> {
        let serial_number = self.admin.serial_number;
        let mut bytes = [0; LENGTH];
        match Cns(IdentifyDword(command.dword10).cns()) {
            Cns::NAMESPACE => {
                let namespace = Self::namespace(&mut self.namespaces, command)?;
                bytes.copy_from_slice(describe(namespace, serial_number).as_bytes());
            }
            Cns::CONTROLLER => bytes.copy_from_slice(self.describe_controller().as_bytes()),
            Cns::ACTIVE_NAMESPACES => {
                if command.namespace >= u32::MAX - 1 {
                    return Err(Status::INVALID_NAMESPACE);
                }
                let mut list = NamespaceList::new_zeroed();
                let above = self.namespaces.iter().filter(|namespace| namespace.id > command.namespace);
                for (place, namespace) in list.namespaces.iter_mut().zip(above) {
                    *place = namespace.id;
                }
                bytes.copy_from_slice(list.as_bytes());
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let namespace = Self::namespace(&mut self.namespaces, command)?;
                list_ids(&mut bytes, serial_number, namespace.id);
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        // CAST: 4096 bytes.
        self.reply(command, &bytes, LENGTH as u64, burst)?;
        Ok(Answer::Done(0))
    }

    fn describe_controller(&self) -> IdentifyController {
        let bytes: u64 = self.namespaces.iter().map(Namespace::bytes).sum();
        let serial = format!("vdk{:016x}", self.admin.serial_number);
        let name = format!("nqn.2014-08.org.nvmexpress:vdk:nvme:{:016x}", self.admin.serial_number);
        let mut identity = IdentifyController::new_zeroed();
        identity.vendor = VENDOR_ID;
        identity.subsystem_vendor = VENDOR_ID;
        fill(&mut identity.serial_number, serial.as_bytes(), b' ');
        fill(&mut identity.model_number, b"vdk emulated NVMe controller", b' ');
        identity.firmware_revision = FIRMWARE_REVISION;
        identity.arbitration_burst = 5;
        identity.max_transfer_exponent = self.admin.max_transfer_log2.saturating_sub(12);
        identity.controller_id = 1;
        identity.version = Version::V1_4.0;
        identity.controller_type = 1;
        identity.admin_commands.set_format(true);
        identity.abort_limit = 3;
        identity.async_event_limit = less_one(MOST_REQUESTS);
        // One slot, read only.
        identity.firmware_updates = 0x03;
        identity.log_pages.set_command_effects(true);
        identity.log_pages.set_extended(true);
        identity.error_log_entries = less_one(ERRORS);
        identity.warning_temperature = WARNING_TEMPERATURE;
        identity.critical_temperature = CRITICAL_TEMPERATURE;
        identity.total_capacity = u128::from(bytes).to_le_bytes();
        identity.keep_alive = 1;
        identity.submission_entry.set_required(6);
        identity.submission_entry.set_max(6);
        identity.completion_entry.set_required(4);
        identity.completion_entry.set_max(4);
        identity.namespaces = self.namespaces.last().map_or(0, |namespace| namespace.id);
        let commands = &mut identity.nvm_commands;
        commands.set_compare(true);
        commands.set_write_uncorrectable(true);
        commands.set_dataset_management(true);
        commands.set_write_zeroes(true);
        commands.set_save_features(true);
        commands.set_timestamp(true);
        commands.set_verify(true);
        identity.write_cache.set_present(self.namespaces.iter().any(Namespace::is_cached));
        identity.write_cache.set_flush_all(3);
        // At any byte, and a read may throw bytes away.
        identity.sgl.set_kind(1);
        identity.sgl.set_bit_bucket(true);
        fill(&mut identity.subsystem_name, name.as_bytes(), 0);
        identity.power_state[0].max_power = 1000;
        identity
    }
}

fn describe(namespace: &Namespace, serial_number: u64) -> IdentifyNamespace {
    let mut identity = IdentifyNamespace::new_zeroed();
    identity.size = namespace.blocks();
    identity.capacity = namespace.blocks();
    identity.utilization = namespace.blocks();
    identity.features.set_unique_ids(true);
    identity.formats = 1;
    identity.format.set_format(u8::from(namespace.block_exponent == FORMATS[1].block_exponent));
    // Deallocated blocks read as zeros, and so do those of Write Zeroes.
    identity.deallocation = 0x09;
    identity.bytes = u128::from(namespace.bytes()).to_le_bytes();
    identity.nguid = nguid(serial_number, namespace.id);
    identity.eui64 = eui64(serial_number, namespace.id);
    identity.lba_formats[..2].copy_from_slice(&FORMATS);
    identity
}

/// The Namespace Identification Descriptor list.
fn list_ids(bytes: &mut [u8; LENGTH], serial_number: u64, id: u32) {
    let (nguid, eui64) = (nguid(serial_number, id), eui64(serial_number, id));
    let mut rest = &mut bytes[..];
    let ids = [(NamespaceIdType::EUI64, 8, &eui64[..]), (NamespaceIdType::NGUID, 16, &nguid[..])];
    for (kind, length, id) in ids {
        let head = NamespaceDescriptor { kind, length, reserved: [0; 2] };
        let (place, after) = rest.split_at_mut(size_of::<NamespaceDescriptor>() + id.len());
        let (first, second) = place.split_at_mut(size_of::<NamespaceDescriptor>());
        first.copy_from_slice(head.as_bytes());
        second.copy_from_slice(id);
        rest = after;
    }
}

fn nguid(serial_number: u64, id: u32) -> [u8; 16] {
    (u128::from(serial_number) << 64 | u128::from(eui64_number(serial_number, id))).to_be_bytes()
}

fn eui64(serial_number: u64, id: u32) -> [u8; 8] {
    eui64_number(serial_number, id).to_be_bytes()
}

/// Not of a vendor's range: the bit that says "locally administered" is set. Different for
/// each namespace of a device, and most likely of two devices.
fn eui64_number(serial_number: u64, id: u32) -> u64 {
    let mixed = serial_number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 << 8;
    0x0200_0000_0000_0000 | mixed & 0x00ff_ffff_ffff_ff00 | u64::from(id)
}

fn less_one(count: usize) -> u8 {
    u8::try_from(count.saturating_sub(1)).unwrap_or(u8::MAX)
}

/// Copies a text and fills up the rest.
fn fill(field: &mut [u8], text: &[u8], filling: u8) {
    field.fill(filling);
    let count = text.len().min(field.len());
    field[..count].copy_from_slice(&text[..count]);
}

/// The formats that every namespace can have.
pub(super) const FORMATS: [LbaFormat; 2] = [
    LbaFormat { metadata: 0, block_exponent: 9, performance: 0 },
    LbaFormat { metadata: 0, block_exponent: 12, performance: 0 },
];
pub(super) const FIRMWARE_REVISION: [u8; 8] = *b"1.0     ";
const LENGTH: usize = 4096;
