//! LBA formats and protection information.

use bitfield::bitfield;
use vdk_hal::address::ByteLength;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// LBAF: one format that a namespace can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: bytes of metadata of each block.
    pub metadata: u16,
    /// LBADS: blocks have `1 << n` bytes; below 9 the format is not there.
    pub block_exponent: u8,
    /// RP in bits 1:0: relative performance, 0 best, 3 degraded.
    pub performance: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// The size of a block; `None` for a format that is not there or cannot be.
    #[must_use]
    pub const fn block_length(self) -> Option<ByteLength> {
        match self.block_exponent {
            9..=63 => Some(ByteLength::new(1 << self.block_exponent)),
            _ => None,
        }
    }
}

bitfield! {
    /// FLBAS: which format the namespace has.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct FormatAttributes(pub u8);
    impl Debug;
    /// The number of the format.
    pub u8, format, set_format: 3, 0;
    /// Metadata lies behind the data of each block, not in its own buffer.
    pub extended_lba, set_extended_lba: 4;
}

bitfield! {
    /// DPC: which protection information the namespace can have.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct ProtectionCapabilities(pub u8);
    impl Debug;
    /// Type 1.
    pub type1, set_type1: 0;
    /// Type 2.
    pub type2, set_type2: 1;
    /// Type 3.
    pub type3, set_type3: 2;
    /// As the first 8 bytes of the metadata.
    pub first, set_first: 3;
    /// As the last 8 bytes of the metadata.
    pub last, set_last: 4;
}

bitfield! {
    /// DPS: which protection information the namespace has.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct ProtectionSettings(pub u8);
    impl Debug;
    /// The type, 0 for none.
    pub u8, kind, set_kind: 2, 0;
    /// As the first 8 bytes of the metadata.
    pub first, set_first: 3;
}
