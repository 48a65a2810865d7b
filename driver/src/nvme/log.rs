//! Log pages.

use vdk_descriptors::nvme::{
    ALL_NAMESPACES, AdminOpcode, ChangedNamespaces, ErrorLogEntry, FirmwareSlotLog, LogPage, LogPageDword,
    LogPageUpperDword, SmartLog, SubmissionEntry,
};
use zerocopy::IntoBytes;

use super::Controller;
use super::bring_up::new_zeroed;
use super::error::AdminError;

/// How much of a page is asked for at once.
const PART: usize = 4096;

impl Controller {
    /// Reads a log page from `offset` on, in parts where it is long. The length is a multiple
    /// of 4.
    ///
    /// # Errors
    ///
    /// [`AdminError`]; [`AdminError::NotSupported`] for an offset or more than 4 KiB on a
    /// controller without extended log pages.
    pub fn log_page(
        &self,
        page: LogPage,
        namespace: u32,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), AdminError> {
        let command = AdminOpcode::GET_LOG_PAGE;
        let too_long = AdminError::TooLong { command, length: bytes.len(), limit: bytes.len() & !3 };
        if !bytes.len().is_multiple_of(4) {
            return Err(too_long);
        }
        if (offset > 0 || bytes.len() > PART) && !self.facts().extended_log_pages {
            return Err(AdminError::NotSupported { command, field: "LPA without extended data" });
        }
        let mut position = offset;
        let parts = bytes.len().div_ceil(PART);
        for (index, part) in bytes.chunks_mut(PART).enumerate() {
            // The event is told again only after the whole page was read.
            let is_last = index + 1 == parts;
            self.log_part(page, namespace, position, !is_last, part)?;
            position = position.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    fn log_part(
        &self,
        page: LogPage,
        namespace: u32,
        offset: u64,
        retain_event: bool,
        bytes: &mut [u8],
    ) -> Result<(), AdminError> {
        let dwords = u32::try_from(bytes.len() / 4 - 1).unwrap_or(0);
        let (mut lower, mut upper) = (LogPageDword::default(), LogPageUpperDword::default());
        lower.set_page(page);
        lower.set_retain_event(retain_event);
        // CAST: the halves of the number.
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the number")]
        {
            lower.set_dwords_lower(dwords as u16);
            upper.set_dwords_upper((dwords >> 16) as u16);
        }
        // CAST: as above.
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the offset")]
        let (dword12, dword13) = (offset as u32, (offset >> 32) as u32);
        let entry = SubmissionEntry {
            namespace,
            dword10: lower.0,
            dword11: upper.0,
            dword12,
            dword13,
            ..SubmissionEntry::default()
        };
        let length = bytes.len();
        self.device.admin(AdminOpcode::GET_LOG_PAGE, entry, length, |_, admin| admin.read(0, bytes))
    }

    /// The SMART log of the whole controller.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn smart(&self) -> Result<Box<SmartLog>, AdminError> {
        let mut log = new_zeroed::<SmartLog>();
        self.log_page(LogPage::SMART, ALL_NAMESPACES, 0, log.as_mut_bytes())?;
        Ok(log)
    }

    /// The newest entries of the error log, `count` and 64 at most; unused ones are left out.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn errors(&self, count: usize) -> Result<Vec<ErrorLogEntry>, AdminError> {
        let mut entries = vec![ErrorLogEntry::default(); count.clamp(1, 64)];
        self.log_page(LogPage::ERROR_INFORMATION, ALL_NAMESPACES, 0, entries.as_mut_bytes())?;
        entries.retain(|entry| entry.error_count != 0);
        Ok(entries)
    }

    /// The firmware revisions and which is in use.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn firmware_slots(&self) -> Result<Box<FirmwareSlotLog>, AdminError> {
        let mut log = new_zeroed::<FirmwareSlotLog>();
        self.log_page(LogPage::FIRMWARE_SLOT, ALL_NAMESPACES, 0, log.as_mut_bytes())?;
        Ok(log)
    }

    /// The namespaces that changed since this was read last; the first is all ones when they
    /// are too many to be told.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn changed_namespaces(&self) -> Result<Vec<u32>, AdminError> {
        let mut log = new_zeroed::<ChangedNamespaces>();
        self.log_page(LogPage::CHANGED_NAMESPACES, ALL_NAMESPACES, 0, log.as_mut_bytes())?;
        Ok(log.namespaces.iter().copied().take_while(|namespace| *namespace != 0).collect())
    }
}
