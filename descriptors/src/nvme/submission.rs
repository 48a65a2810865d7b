//! Submission queue entries: 64 bytes each.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::SglDescriptor;

bitfield! {
    /// The second byte of a command: FUSE and PSDT.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct CommandFlags(pub u8);
    impl Debug;
    /// FUSE: 0 alone, 1 first, 2 second of a fused pair.
    pub u8, fuse, set_fuse: 1, 0;
    /// PSDT: 0 PRP entries, 1 an SGL and metadata in one buffer, 2 an SGL and metadata by an
    /// SGL as well.
    pub u8, transfer, set_transfer: 7, 6;
}

impl CommandFlags {
    /// Alone, data pointer is PRP entries.
    pub const PRP: Self = Self(0);
    /// Alone, data pointer is an SGL descriptor, metadata pointer one buffer.
    pub const SGL: Self = Self(0x40);
}

/// A command.
///
/// # Ownership
///
/// The host owns an entry until the tail doorbell has passed it; the controller owns it
/// from then until a completion's head has passed it. The controller only reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SubmissionEntry {
    /// OPC: [`AdminOpcode`](super::AdminOpcode) or [`NvmOpcode`](super::NvmOpcode).
    pub opcode: u8,
    /// FUSE and PSDT.
    pub flags: CommandFlags,
    /// CID: comes back in the completion. Not in use by another command of the queue.
    pub command_id: u16,
    /// NSID: the namespace, zero where there is none, all ones for all.
    pub namespace: u32,
    /// Command dwords 2 and 3, mostly reserved.
    pub dword2: [u32; 2],
    /// MPTR: metadata, in its own buffer.
    pub metadata: u64,
    /// DPTR: PRP entry 1 and 2, or an SGL descriptor: [`set_sgl`](Self::set_sgl).
    pub data: [u64; 2],
    /// Command dword 10.
    pub dword10: u32,
    /// Command dword 11.
    pub dword11: u32,
    /// Command dword 12.
    pub dword12: u32,
    /// Command dword 13.
    pub dword13: u32,
    /// Command dword 14.
    pub dword14: u32,
    /// Command dword 15.
    pub dword15: u32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);

impl SubmissionEntry {
    /// SLBA: the first logical block, from dwords 10 and 11.
    #[must_use]
    pub fn starting_lba(&self) -> u64 {
        u64::from(self.dword11) << 32 | u64::from(self.dword10)
    }

    /// Replaces the first logical block.
    #[inline]
    pub fn set_starting_lba(&mut self, lba: u64) {
        // CAST: the halves of the number.
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the number")]
        let halves = (lba as u32, (lba >> 32) as u32);
        (self.dword10, self.dword11) = halves;
    }

    /// The data pointer as an SGL descriptor; meaningful when [`CommandFlags::transfer`] is
    /// not zero.
    #[must_use]
    pub fn sgl(&self) -> SglDescriptor {
        zerocopy::transmute!(self.data)
    }

    /// Makes the data pointer an SGL descriptor, and the flags say so.
    pub fn set_sgl(&mut self, descriptor: SglDescriptor) {
        self.data = zerocopy::transmute!(descriptor);
        self.flags.set_transfer(1);
    }
}
