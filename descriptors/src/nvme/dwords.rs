//! Command dwords of admin and NVM commands, and ranges of Dataset Management.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::LogPage;

/// The most ranges of one Dataset Management command.
pub const MAX_DATASET_RANGES: usize = 256;

bitfield! {
    /// Dword 10 of Create and Delete I/O Queue.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct QueueDword(pub u32);
    impl Debug;
    /// QID: the number of the queue.
    pub u16, queue, set_queue: 15, 0;
    /// QSIZE: how many entries, less one. Only to create.
    pub u16, size, set_size: 31, 16;
}

bitfield! {
    /// Dword 11 of Create I/O Completion Queue.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct CompletionQueueFlags(pub u32);
    impl Debug;
    /// PC: the queue is contiguous memory at PRP entry 1.
    pub contiguous, set_contiguous: 0;
    /// IEN: completions raise the interrupt.
    pub interrupts_enabled, set_interrupts_enabled: 1;
    /// IV: the vector.
    pub u16, vector, set_vector: 31, 16;
}

bitfield! {
    /// Dword 11 of Create I/O Submission Queue.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SubmissionQueueFlags(pub u32);
    impl Debug;
    /// PC: the queue is contiguous memory at PRP entry 1.
    pub contiguous, set_contiguous: 0;
    /// QPRIO: 0 urgent, 1 high, 2 medium, 3 low; for weighted arbitration.
    pub u8, priority, set_priority: 2, 1;
    /// CQID: where its completions go.
    pub u16, completion_queue, set_completion_queue: 31, 16;
}

bitfield! {
    /// Dword 10 of Identify.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct IdentifyDword(pub u32);
    impl Debug;
    /// CNS: what to return, a [`Cns`](super::Cns).
    pub u8, cns, set_cns: 7, 0;
    /// CNTID: the controller, for some values of CNS.
    pub u16, controller, set_controller: 31, 16;
}

bitfield! {
    /// Dword 10 of Abort.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AbortDword(pub u32);
    impl Debug;
    /// SQID: the submission queue.
    pub u16, submission_queue, set_submission_queue: 15, 0;
    /// CID: the command.
    pub u16, command_id, set_command_id: 31, 16;
}

bitfield! {
    /// Dword 0 of the completion of Abort.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AbortResult(pub u32);
    impl Debug;
    /// The command was **not** aborted.
    pub not_aborted, set_not_aborted: 0;
}

bitfield! {
    /// Dword 10 of Get Log Page.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct LogPageDword(pub u32);
    impl Debug;
    u8, page_bits, set_page_bits: 7, 0;
    /// LSP: specific to the page.
    pub u8, specific, set_specific: 11, 8;
    /// RAE: keep the event that told of the page.
    pub retain_event, set_retain_event: 15;
    /// NUMDL: lower half of the number of dwords, less one.
    pub u16, dwords_lower, set_dwords_lower: 31, 16;
}

impl LogPageDword {
    /// LID: the page.
    #[must_use]
    pub fn page(self) -> LogPage {
        LogPage(self.page_bits())
    }

    /// Replaces the page.
    pub fn set_page(&mut self, page: LogPage) {
        self.set_page_bits(page.0);
    }
}

bitfield! {
    /// Dword 11 of Get Log Page. Dwords 12 and 13 are the offset in bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct LogPageUpperDword(pub u32);
    impl Debug;
    /// NUMDU: upper half of the number of dwords, less one.
    pub u16, dwords_upper, set_dwords_upper: 15, 0;
    /// LSI: specific to the page.
    pub u16, specific_id, set_specific_id: 31, 16;
}

bitfield! {
    /// Dword 10 of Format NVM.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct FormatDword(pub u32);
    impl Debug;
    /// LBAF: the number of the LBA format.
    pub u8, lba_format, set_lba_format: 3, 0;
    /// MSET: metadata lies behind the data of each block, not in its own buffer.
    pub extended_lba, set_extended_lba: 4;
    /// PI: protection information, 0 none, else its type.
    pub u8, protection, set_protection: 7, 5;
    /// PIL: protection information comes first in the metadata.
    pub protection_first, set_protection_first: 8;
    /// SES: 0 no secure erase, 1 user data, 2 by deleting the key.
    pub u8, secure_erase, set_secure_erase: 11, 9;
}

bitfield! {
    /// Dword 12 of Read, Write, Compare, Write Zeroes and Verify.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ReadWriteDword(pub u32);
    impl Debug;
    /// NLB: how many blocks, less one.
    pub u16, blocks, set_blocks: 15, 0;
    /// DTYPE: the directive, of a write.
    pub u8, directive, set_directive: 23, 20;
    /// DEAC: deallocate if the blocks then read as zero, of Write Zeroes.
    pub deallocate, set_deallocate: 25;
    /// PRINFO: what to do with protection information: bit 3 insert or strip, bits 2:0
    /// check guard, application tag, reference tag.
    pub u8, protection, set_protection: 29, 26;
    /// FUA: the data is durable when the command is completed.
    pub force_unit_access, set_force_unit_access: 30;
    /// LR: give up early rather than try hard.
    pub limited_retry, set_limited_retry: 31;
}

bitfield! {
    /// Dword 10 of Dataset Management.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DatasetManagementDword(pub u32);
    impl Debug;
    /// NR: how many ranges, less one.
    pub u8, ranges, set_ranges: 7, 0;
}

bitfield! {
    /// Dword 11 of Dataset Management.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DatasetAttributes(pub u32);
    impl Debug;
    /// IDR: will be read as a whole.
    pub integral_read, set_integral_read: 0;
    /// IDW: will be written as a whole.
    pub integral_write, set_integral_write: 1;
    /// AD: the blocks are no longer needed.
    pub deallocate, set_deallocate: 2;
}

/// One range of Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes: hints about access.
    pub attributes: u32,
    /// How many blocks. Not less one.
    pub blocks: u32,
    /// The first block.
    pub starting_lba: u64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16);
