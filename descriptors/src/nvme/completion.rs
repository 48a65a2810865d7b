//! Completion queue entries: 16 bytes each.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Status, StatusCodeType};
use crate::ring::PhaseBit;

/// Where the phase bit lies: bit 16 of the last dword, bit 48 of the second 64-bit word.
pub const PHASE_BIT: PhaseBit = PhaseBit { word: 1, bit: 48 };

bitfield! {
    /// The last 16 bits of a completion: phase and status.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct StatusField(pub u16);
    impl Debug;
    /// P: the phase.
    pub phase, set_phase: 0;
    /// SC: the code, with a meaning that depends on its type.
    pub u8, code, set_code: 8, 1;
    u8, code_type_bits, set_code_type_bits: 11, 9;
    /// CRD: which of the controller's retry delays to keep before trying again, 0 none.
    pub u8, retry_delay, set_retry_delay: 13, 12;
    /// M: the error log has more about it.
    pub more, set_more: 14;
    /// DNR: the same command would fail again.
    pub do_not_retry, set_do_not_retry: 15;
}

impl StatusField {
    /// SCT and SC together.
    #[inline]
    #[must_use]
    pub fn status(self) -> Status {
        Status::new(StatusCodeType(self.code_type_bits()), self.code())
    }

    /// Replaces SCT and SC.
    pub fn set_status(&mut self, status: Status) {
        self.set_code_type_bits(status.code_type().0);
        self.set_code(status.code());
    }
}

/// A completion.
///
/// # Ownership
///
/// The controller owns an entry until its phase bit equals the phase of the round; from
/// then on the host owns it until the head doorbell has passed it. Load the word with the
/// phase first, with Acquire, then the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionEntry {
    /// Dword 0: the result of commands that have one.
    pub result: u32,
    /// Dword 1, reserved in most commands.
    pub result_upper: u32,
    /// SQHD: the head of the submission queue; entries before it may be written again.
    pub submission_head: u16,
    /// SQID: the submission queue.
    pub submission_queue: u16,
    /// CID: the command.
    pub command_id: u16,
    /// Phase and status.
    pub status: StatusField,
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);
