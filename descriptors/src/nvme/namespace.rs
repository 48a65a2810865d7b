//! Identify: structures of namespaces.

use bitfield::bitfield;
use vdk_hal::address::ByteLength;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FormatAttributes, LbaFormat, ProtectionCapabilities, ProtectionSettings, open_numbers};

/// NSID of all namespaces.
pub const ALL_NAMESPACES: u32 = u32::MAX;

bitfield! {
    /// NSFEAT: what the namespace can do.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct NamespaceFeatures(pub u8);
    impl Debug;
    /// Thin provisioning: NCAP may be below NSZE.
    pub thin, set_thin: 0;
    /// NAWUN, NAWUPF and NACWU are of this namespace.
    pub atomics, set_atomics: 1;
    /// Reading deallocated blocks can be an error.
    pub deallocated_error, set_deallocated_error: 2;
    /// The unique ids are never used again.
    pub unique_ids, set_unique_ids: 3;
    /// NPWG, NPWA, NPDG, NPDA and NOWS are told.
    pub optimal_sizes, set_optimal_sizes: 4;
}

/// What [`Cns::NAMESPACE`](super::Cns::NAMESPACE) returns. All zero for a namespace that is
/// not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size in blocks.
    pub size: u64,
    /// NCAP: blocks that may be allocated at once.
    pub capacity: u64,
    /// NUSE: blocks that are allocated.
    pub utilization: u64,
    /// NSFEAT: what it can do.
    pub features: NamespaceFeatures,
    /// NLBAF: how many formats, less one.
    pub formats: u8,
    /// FLBAS: which format it has.
    pub format: FormatAttributes,
    /// MC: bit 0 metadata behind the data, bit 1 metadata in its own buffer.
    pub metadata: u8,
    /// DPC: which protection information it can have.
    pub protection_capabilities: ProtectionCapabilities,
    /// DPS: which protection information it has.
    pub protection: ProtectionSettings,
    /// NMIC: bit 0 may be attached to several controllers.
    pub sharing: u8,
    /// RESCAP: reservations.
    pub reservations: u8,
    /// FPI: bit 7 tells bits 6:0, percent of a format that is left.
    pub format_progress: u8,
    /// DLFEAT: what deallocated blocks read as: bits 2:0, 1 zeros, 2 ones; bit 3 Write
    /// Zeroes may deallocate.
    pub deallocation: u8,
    /// NAWUN: blocks that are written atomically, less one.
    pub atomic_write: u16,
    /// NAWUPF: the same when power fails.
    pub atomic_write_power_fail: u16,
    /// NACWU: the same of a fused Compare and Write.
    pub atomic_compare_write: u16,
    /// NABSN: atomic boundary in blocks, less one.
    pub atomic_boundary: u16,
    /// NABO: where the first atomic boundary lies.
    pub atomic_boundary_offset: u16,
    /// NABSPF: atomic boundary when power fails, less one.
    pub atomic_boundary_power_fail: u16,
    /// NOIOB: optimal boundary of I/O in blocks, zero: not told.
    pub optimal_boundary: u16,
    /// NVMCAP: size in bytes, little-endian.
    pub bytes: [u8; 16],
    /// NPWG: preferred write granularity in blocks, less one.
    pub write_granularity: u16,
    /// NPWA: preferred write alignment in blocks, less one.
    pub write_alignment: u16,
    /// NPDG: preferred deallocation granularity in blocks, less one.
    pub deallocate_granularity: u16,
    /// NPDA: preferred deallocation alignment in blocks, less one.
    pub deallocate_alignment: u16,
    /// NOWS: optimal write size in blocks, less one.
    pub optimal_write: u16,
    /// Reserved, zero.
    pub reserved74: [u8; 18],
    /// ANAGRPID: group of asymmetric access.
    pub asymmetric_group: u32,
    /// Reserved, zero.
    pub reserved96: [u8; 3],
    /// NSATTR: bit 0 write protected.
    pub attributes: u8,
    /// NVMSETID: NVM set.
    pub nvm_set: u16,
    /// ENDGID: endurance group.
    pub endurance_group: u16,
    /// NGUID: unique id, big-endian.
    pub nguid: [u8; 16],
    /// EUI64: unique id, big-endian.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF15: formats.
    pub lba_formats: [LbaFormat; 16],
    /// Reserved, zero.
    pub reserved192: [u8; 192],
    /// Of the vendor.
    pub vendor_specific: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == 4096);

impl IdentifyNamespace {
    /// The format that it has.
    #[must_use]
    pub fn lba_format(&self) -> LbaFormat {
        // PANIC: four bits number 16 formats.
        self.lba_formats[usize::from(self.format.format())]
    }

    /// The size of a block; `None` when the format cannot be.
    #[must_use]
    pub fn block_length(&self) -> Option<ByteLength> {
        self.lba_format().block_length()
    }

    /// The formats that are there.
    #[must_use]
    pub fn available_formats(&self) -> &[LbaFormat] {
        &self.lba_formats[..usize::from(self.formats).saturating_add(1).min(16)]
    }
}

/// A list of namespaces: ascending, ended by zero when it is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NamespaceList {
    /// The namespaces.
    pub namespaces: [u32; 1024],
}

const _: () = assert!(size_of::<NamespaceList>() == 4096);

impl NamespaceList {
    /// The namespaces before the end.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.namespaces.iter().copied().take_while(|namespace| *namespace != 0)
    }
}

open_numbers! {
    /// NIDT: the type of a [`NamespaceDescriptor`].
    pub struct NamespaceIdType(u8) {
        /// 8 bytes.
        EUI64 = 1, "EUI-64";
        /// 16 bytes.
        NGUID = 2, "NGUID";
        /// 16 bytes.
        UUID = 3, "UUID";
    }
}

/// The head of an entry of the Namespace Identification Descriptor list; the id follows.
/// A type of zero ends the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NamespaceDescriptor {
    /// NIDT: what the id is.
    pub kind: NamespaceIdType,
    /// NIDL: how many bytes the id has.
    pub length: u8,
    /// Reserved, zero.
    pub reserved: [u8; 2],
}

const _: () = assert!(size_of::<NamespaceDescriptor>() == 4);
