//! Log pages, and the counters and errors that are in them.

use vdk_descriptors::nvme::{
    AdminOpcode, CriticalWarning, ErrorLogEntry, FirmwareSlotLog, LogPage, LogPageDword, LogPageUpperDword,
    NvmOpcode, SmartLog, Status, StatusField, SubmissionEntry,
};
use vdk_iommu::soft::Burst;
use zerocopy::{FromZeros, IntoBytes};

use super::bus::Nvme;
use super::engine::Answer;
use super::identify::FIRMWARE_REVISION;

/// What SMART counts of reads and writes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Counts {
    #[inline]
    pub(super) fn read(&mut self, bytes: u64) {
        self.reads += 1;
        self.bytes_read = self.bytes_read.wrapping_add(bytes);
    }

    #[inline]
    pub(super) fn written(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes_written = self.bytes_written.wrapping_add(bytes);
    }
}

/// The last errors, oldest first, and how many there were.
#[derive(Debug)]
pub(super) struct ErrorLog {
    entries: [ErrorLogEntry; ERRORS],
    count: u64,
}

impl ErrorLog {
    pub(super) fn new() -> Self {
        Self { entries: [ErrorLogEntry::default(); ERRORS], count: 0 }
    }

    pub(super) fn add(&mut self, queue: u16, command: &SubmissionEntry, status: StatusField) {
        self.count += 1;
        let entry = ErrorLogEntry {
            error_count: self.count,
            submission_queue: queue,
            command_id: command.command_id,
            status,
            lba: command.starting_lba(),
            namespace: command.namespace,
            ..ErrorLogEntry::default()
        };
        self.entries.rotate_right(1);
        self.entries[0] = entry;
    }
}

impl Nvme {
    pub(super) fn read_log_page(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
    ) -> Result<Answer, Status> {
        let dword = LogPageDword(command.dword10);
        let upper = LogPageUpperDword(command.dword11);
        let page = dword.page();
        let count = u64::from(upper.dwords_upper()) << 16 | u64::from(dword.dwords_lower());
        let length = 4 * (count + 1);
        let offset = u64::from(command.dword13) << 32 | u64::from(command.dword12);
        if length > self.transfer.most || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let mut bytes = [0; PAGE];
        let size = match page {
            LogPage::ERROR_INFORMATION => copy(&mut bytes, self.admin.errors.entries.as_bytes()),
            LogPage::SMART => {
                if command.namespace != 0 && command.namespace != u32::MAX {
                    return Err(Status::INVALID_FIELD);
                }
                copy(&mut bytes, self.smart().as_bytes())
            }
            LogPage::FIRMWARE_SLOT => copy(&mut bytes, firmware_slots().as_bytes()),
            // Nothing but this host changes namespaces, and it knows.
            LogPage::CHANGED_NAMESPACES => PAGE,
            LogPage::COMMANDS_SUPPORTED => commands_supported(&mut bytes),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if start > size {
            return Err(Status::INVALID_FIELD);
        }
        // What lies behind the page is not said, and is left as it is in the host's memory.
        self.reply(command, &bytes[start..size], length, burst)?;
        if !dword.retain_event() {
            self.admin.events.clear(page);
            self.watch_temperature();
        }
        Ok(Answer::Done(0))
    }

    fn smart(&self) -> SmartLog {
        let counts = &self.admin.counts;
        let wide = |value: u64| u128::from(value).to_le_bytes();
        // Thousands of 512 bytes, rounded up.
        let units = |bytes: u64| wide(bytes.div_ceil(512_000));
        let (over, under) = self.admin.features.temperature_limits();
        let mut warning = CriticalWarning(0);
        warning.set_temperature(u32::from(TEMPERATURE) >= over || u32::from(TEMPERATURE) <= under);
        let mut log = SmartLog::new_zeroed();
        log.critical_warning = warning;
        log.temperature = TEMPERATURE.to_le_bytes();
        log.available_spare = 100;
        log.available_spare_threshold = 10;
        log.data_units_read = units(counts.bytes_read);
        log.data_units_written = units(counts.bytes_written);
        log.host_read_commands = wide(counts.reads);
        log.host_write_commands = wide(counts.writes);
        log.power_cycles = wide(1);
        log.error_log_entries = wide(self.admin.errors.count);
        log
    }
}

fn firmware_slots() -> FirmwareSlotLog {
    let mut log = FirmwareSlotLog::new_zeroed();
    log.active = 1;
    log.revisions[0] = FIRMWARE_REVISION;
    log
}

/// A dword for each of 256 admin opcodes, then for each of 256 I/O opcodes.
fn commands_supported(bytes: &mut [u8; PAGE]) -> usize {
    let mut set = |place: usize, effects: u32| {
        bytes[4 * place..4 * place + 4].copy_from_slice(&effects.to_le_bytes());
    };
    for opcode in super::admin::OPCODES {
        let effects = if opcode == AdminOpcode::FORMAT_NVM { CHANGES_FORMAT } else { 0 };
        set(usize::from(opcode.0), SUPPORTED | effects);
    }
    for (opcode, changes) in [
        (NvmOpcode::FLUSH, false),
        (NvmOpcode::WRITE, true),
        (NvmOpcode::READ, false),
        (NvmOpcode::WRITE_UNCORRECTABLE, true),
        (NvmOpcode::COMPARE, false),
        (NvmOpcode::WRITE_ZEROES, true),
        (NvmOpcode::DATASET_MANAGEMENT, true),
        (NvmOpcode::VERIFY, false),
    ] {
        set(256 + usize::from(opcode.0), SUPPORTED | if changes { CHANGES_BLOCKS } else { 0 });
    }
    PAGE
}

fn copy(page: &mut [u8; PAGE], bytes: &[u8]) -> usize {
    let count = bytes.len().min(PAGE);
    page[..count].copy_from_slice(&bytes[..count]);
    count
}

/// Every page fits here.
const PAGE: usize = 4096;
/// ELPE, plus one.
pub(super) const ERRORS: usize = 64;
/// The composite temperature in kelvin: always the same.
pub(super) const TEMPERATURE: u16 = 313;
/// WCTEMP and CCTEMP.
pub(super) const WARNING_TEMPERATURE: u16 = 343;
pub(super) const CRITICAL_TEMPERATURE: u16 = 353;
/// CSUPP, LBCC, and LBCC with NCC of the command effects.
const SUPPORTED: u32 = 0x1;
const CHANGES_BLOCKS: u32 = 0x2;
const CHANGES_FORMAT: u32 = 0x6;
