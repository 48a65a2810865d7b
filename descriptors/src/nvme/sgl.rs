//! Scatter-gather list descriptors: 16 bytes each.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

bitfield! {
    /// The last byte of a descriptor: what it is.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct SglIdentifier(pub u8);
    impl Debug;
    /// Subtype: 0 the address is absolute, 1 it is an offset.
    pub u8, subtype, set_subtype: 3, 0;
    /// Type: 0 data, 1 bit bucket, 2 segment, 3 last segment.
    pub u8, kind, set_kind: 7, 4;
}

impl SglIdentifier {
    /// Data at an address.
    pub const DATA_BLOCK: Self = Self(0x00);
    /// Bytes that a read throws away.
    pub const BIT_BUCKET: Self = Self(0x10);
    /// More descriptors, the last of which is a segment again.
    pub const SEGMENT: Self = Self(0x20);
    /// More descriptors, none of them a segment.
    pub const LAST_SEGMENT: Self = Self(0x30);
}

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SglDescriptor {
    /// Where the data or the next descriptors lie.
    pub address: u64,
    /// How many bytes. Of a segment: 16 times the number of descriptors.
    pub length: u32,
    /// Reserved, zero.
    pub reserved: [u8; 3],
    /// What it is.
    pub identifier: SglIdentifier,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

impl SglDescriptor {
    /// A descriptor of `length` bytes at `address`.
    #[must_use]
    pub const fn new(identifier: SglIdentifier, address: u64, length: u32) -> Self {
        Self { address, length, reserved: [0; 3], identifier }
    }
}
