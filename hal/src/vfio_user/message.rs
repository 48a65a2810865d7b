//! The messages of vfio-user.
//!
//! Layout only. All integers are in the byte order of the host. See the vfio-user Protocol
//! Specification, "Protocol Specification"; the parts that it takes from VFIO are those of
//! Linux's `include/uapi/linux/vfio.h`.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The beginning of every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command, and repeated in the reply.
    pub id: u16,
    /// A [`Command`]; repeated in the reply.
    pub command: u16,
    /// The size of the message in bytes, with this header.
    pub size: u32,
    /// The type of the message and [`NO_REPLY`](Self::NO_REPLY), [`ERROR`](Self::ERROR).
    pub flags: u32,
    /// An `errno` in a reply with [`ERROR`](Self::ERROR), where the sender gave one.
    pub error: u32,
}

impl Header {
    /// How many bytes it has.
    pub const LENGTH: usize = 16;
    /// The bits of `flags` that hold the type: 0 is a command.
    pub const TYPE: u32 = 0xf;
    /// The type of a reply.
    pub const REPLY: u32 = 0x1;
    /// A command that wants no reply.
    pub const NO_REPLY: u32 = 0x10;
    /// A reply that says that the command failed; it has no payload.
    pub const ERROR: u32 = 0x20;

    /// Whether it begins a reply.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        self.flags & Self::TYPE == Self::REPLY
    }

    /// Whether it begins a command.
    #[must_use]
    pub const fn is_command(&self) -> bool {
        self.flags & Self::TYPE == 0
    }

    /// Whether the sender of the command wants a reply.
    #[must_use]
    pub const fn wants_reply(&self) -> bool {
        self.flags & Self::NO_REPLY == 0
    }
}

/// What a command asks for. Any number may come from the other side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Command(pub u16);

impl Command {
    /// The first command: version and capabilities.
    pub const VERSION: Self = Self(1);
    /// The server may reach memory from now on.
    pub const DMA_MAP: Self = Self(2);
    /// The server may not any more.
    pub const DMA_UNMAP: Self = Self(3);
    /// What the device is.
    pub const DEVICE_GET_INFO: Self = Self(4);
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: Self = Self(5);
    /// Files that stand for parts of a region.
    pub const DEVICE_GET_REGION_IO_FDS: Self = Self(6);
    /// What a kind of interrupt is.
    pub const DEVICE_GET_IRQ_INFO: Self = Self(7);
    /// Sets interrupts up.
    pub const DEVICE_SET_IRQS: Self = Self(8);
    /// Reads a region.
    pub const REGION_READ: Self = Self(9);
    /// Writes a region.
    pub const REGION_WRITE: Self = Self(10);
    /// The server reads memory of the client.
    pub const DMA_READ: Self = Self(11);
    /// The server writes memory of the client.
    pub const DMA_WRITE: Self = Self(12);
    /// Resets the device.
    pub const DEVICE_RESET: Self = Self(13);
    /// Several short writes of regions.
    pub const REGION_WRITE_MULTI: Self = Self(15);
    /// Features, of which there are only those for migration.
    pub const DEVICE_FEATURE: Self = Self(16);

    const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::VERSION => "VERSION",
            Self::DMA_MAP => "DMA_MAP",
            Self::DMA_UNMAP => "DMA_UNMAP",
            Self::DEVICE_GET_INFO => "DEVICE_GET_INFO",
            Self::DEVICE_GET_REGION_INFO => "DEVICE_GET_REGION_INFO",
            Self::DEVICE_GET_REGION_IO_FDS => "DEVICE_GET_REGION_IO_FDS",
            Self::DEVICE_GET_IRQ_INFO => "DEVICE_GET_IRQ_INFO",
            Self::DEVICE_SET_IRQS => "DEVICE_SET_IRQS",
            Self::REGION_READ => "REGION_READ",
            Self::REGION_WRITE => "REGION_WRITE",
            Self::DMA_READ => "DMA_READ",
            Self::DMA_WRITE => "DMA_WRITE",
            Self::DEVICE_RESET => "DEVICE_RESET",
            Self::REGION_WRITE_MULTI => "REGION_WRITE_MULTI",
            Self::DEVICE_FEATURE => "DEVICE_FEATURE",
            _ => return None,
        })
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "command {}", self.0),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version, in both directions; the [capabilities](super::capabilities) follow as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// Must agree.
    pub major: u16,
    /// The server answers the same or less.
    pub minor: u16,
}

impl Version {
    /// The version of this description.
    pub const OURS: Self = Self { major: 0, minor: 1 };
}

/// Memory that the server may reach; the file, if there is one, comes along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// The size of this structure.
    pub argument_size: u32,
    /// [`READ`](Self::READ), [`WRITE`](Self::WRITE).
    pub flags: u32,
    /// Where the memory begins in the file.
    pub offset: u64,
    /// Where it begins for the device.
    pub address: u64,
    /// How long it is.
    pub size: u64,
}

impl DmaMap {
    /// The device may read.
    pub const READ: u32 = 1 << 0;
    /// The device may write.
    pub const WRITE: u32 = 1 << 1;
}

/// Memory that the server may not reach any more. The reply repeats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// How many bytes of reply are expected.
    pub argument_size: u32,
    /// [`ALL`](Self::ALL), [`DIRTY_BITMAP`](Self::DIRTY_BITMAP).
    pub flags: u32,
    /// Where the memory begins for the device.
    pub address: u64,
    /// How long it is.
    pub size: u64,
}

impl DmaUnmap {
    /// Wants to know which pages were written.
    pub const DIRTY_BITMAP: u32 = 1 << 0;
    /// Everything that is mapped; address and size are zero.
    pub const ALL: u32 = 1 << 1;
}

/// What the device is, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// The most that the reply may have, or the size that it has.
    pub argument_size: u32,
    /// [`RESET`](Self::RESET), [`PCI`](Self::PCI).
    pub flags: u32,
    /// How many regions there are.
    pub regions: u32,
    /// How many kinds of interrupts there are.
    pub interrupts: u32,
}

impl DeviceInfo {
    /// The device can be reset.
    pub const RESET: u32 = 1 << 0;
    /// The device is a PCI function.
    pub const PCI: u32 = 1 << 1;
}

/// What a region is, in both directions. Capabilities follow;
/// [`RegionInfo::parse`](crate::bar::RegionInfo::parse) reads all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionDescription {
    /// The most that the reply may have, or the size of the whole description.
    pub argument_size: u32,
    /// [`READ`](Self::READ), [`WRITE`](Self::WRITE), [`MAP`](Self::MAP),
    /// [`CAPABILITIES`](Self::CAPABILITIES).
    pub flags: u32,
    /// Which region.
    pub index: u32,
    /// Where the first capability is, from the beginning of this structure.
    pub capability_offset: u32,
    /// The size of the region; zero when there is none.
    pub size: u64,
    /// Where it begins in the file that comes along.
    pub offset: u64,
}

impl RegionDescription {
    /// The region can be read.
    pub const READ: u32 = 1 << 0;
    /// The region can be written.
    pub const WRITE: u32 = 1 << 1;
    /// The region, or parts of it, can be mapped; a file comes along.
    pub const MAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub const CAPABILITIES: u32 = 1 << 3;
}

/// A capability that lists the areas of a region that can be mapped. `count`
/// [`SparseArea`]s follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseMap {
    /// [`ID`](Self::ID).
    pub id: u16,
    /// [`VERSION`](Self::VERSION).
    pub version: u16,
    /// Where the next capability is, zero after the last one.
    pub next: u32,
    /// How many areas follow.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

impl SparseMap {
    /// The number of the capability.
    pub const ID: u16 = 1;
    /// The version of its layout.
    pub const VERSION: u16 = 1;
}

/// An area of a region that can be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseArea {
    /// Where it begins in the region; in the file that offset is added to the region's own.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
}

/// What a kind of interrupt is, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptInfo {
    /// The most that the reply may have, or the size that it has.
    pub argument_size: u32,
    /// [`EVENT_FILE`](Self::EVENT_FILE), [`MASKABLE`](Self::MASKABLE),
    /// [`AUTOMASKED`](Self::AUTOMASKED), [`NO_RESIZE`](Self::NO_RESIZE).
    pub flags: u32,
    /// Which kind: an [`InterruptIndex`].
    pub index: u32,
    /// How many vectors there are.
    pub count: u32,
}

impl InterruptInfo {
    /// Vectors can signal event files.
    pub const EVENT_FILE: u32 = 1 << 0;
    /// Vectors can be masked and unmasked.
    pub const MASKABLE: u32 = 1 << 1;
    /// A vector is masked when it fires.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// Vectors cannot be added while others are in use.
    pub const NO_RESIZE: u32 = 1 << 3;
}

/// Sets interrupts up. Truth values, one byte each, follow with [`DATA_BOOL`](Self::DATA_BOOL);
/// event files come along with [`DATA_EVENT_FILE`](Self::DATA_EVENT_FILE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptSet {
    /// The size of this structure with what follows.
    pub argument_size: u32,
    /// One of the data flags and one of the actions.
    pub flags: u32,
    /// Which kind: an [`InterruptIndex`].
    pub index: u32,
    /// The first vector.
    pub start: u32,
    /// How many vectors.
    pub count: u32,
}

impl InterruptSet {
    /// Nothing follows: it is meant for every vector named.
    pub const DATA_NONE: u32 = 1 << 0;
    /// It is meant for the vectors whose truth value is not zero.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// An event file for each vector comes along, or none at all.
    pub const DATA_EVENT_FILE: u32 = 1 << 2;
    /// The bits of the data flags.
    pub const DATA: u32 = 0x07;
    /// Masks.
    pub const ACTION_MASK: u32 = 1 << 3;
    /// Unmasks.
    pub const ACTION_UNMASK: u32 = 1 << 4;
    /// Fires, or says what happens when a vector fires.
    pub const ACTION_TRIGGER: u32 = 1 << 5;
    /// The bits of the actions.
    pub const ACTION: u32 = 0x38;
}

/// The kinds of interrupts of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum InterruptIndex {
    /// The line.
    Intx = 0,
    /// MSI.
    Msi = 1,
    /// MSI-X.
    Msix = 2,
    /// The function reports an uncorrectable error.
    Error = 3,
    /// The function is wanted back.
    Request = 4,
}

impl InterruptIndex {
    /// How many there are.
    pub const COUNT: u32 = 5;

    /// The kind with a number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Intx,
            1 => Self::Msi,
            2 => Self::Msix,
            3 => Self::Error,
            4 => Self::Request,
            _ => return None,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        // CAST: the discriminant of a `u32` enumeration.
        self as u32
    }
}

/// The regions of a PCI function: BAR n is region n.
pub mod region {
    /// The expansion ROM.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// Legacy VGA.
    pub const VGA: u32 = 8;
    /// How many there are.
    pub const COUNT: u32 = 9;
}

/// An access to a region, in both directions; the bytes follow a write and the reply to a
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// Where in the region.
    pub offset: u64,
    /// Which region.
    pub region: u32,
    /// How many bytes.
    pub count: u32,
}

/// An access of the server to the client's memory, in both directions; the bytes follow a
/// write and the reply to a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAccess {
    /// Where, for the device.
    pub address: u64,
    /// How many bytes.
    pub count: u64,
}

/// How many [`ShortWrite`]s follow, and in the reply how many were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteCount {
    /// The count.
    pub count: u64,
}

/// A write of 8 bytes or less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShortWrite {
    /// Where, and how many bytes.
    pub access: RegionAccess,
    /// The bytes, from the beginning.
    pub bytes: [u8; 8],
}

/// The size of a structure, for its field `argument_size`.
#[must_use]
pub const fn argument_size<T>() -> u32 {
    // CAST: the structures here have 32 bytes at most.
    #[expect(clippy::cast_possible_truncation, reason = "a small structure")]
    let size = size_of::<T>() as u32;
    size
}

const _: () = assert!(size_of::<Header>() == Header::LENGTH);
const _: () = assert!(size_of::<Version>() == 4);
const _: () = assert!(size_of::<DmaMap>() == 32);
const _: () = assert!(size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<DeviceInfo>() == 16);
const _: () = assert!(size_of::<RegionDescription>() == 32);
const _: () = assert!(size_of::<SparseMap>() == 16);
const _: () = assert!(size_of::<SparseArea>() == 16);
const _: () = assert!(size_of::<InterruptInfo>() == 16);
const _: () = assert!(size_of::<InterruptSet>() == 20);
const _: () = assert!(size_of::<RegionAccess>() == 16);
const _: () = assert!(size_of::<DmaAccess>() == 16);
const _: () = assert!(size_of::<ShortWrite>() == 24);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bar::{Area, RegionInfo};

    fn bytes_at<T: IntoBytes + Immutable>(value: &T, at: usize, length: usize) -> Vec<u8> {
        value.as_bytes()[at..at + length].to_vec()
    }

    #[test]
    fn fields_lie_where_the_specification_says() {
        let header = Header { id: 0x1122, command: 0x3344, size: 0x5566_7788, flags: 0x21, error: 17 };
        assert_eq!(bytes_at(&header, 0, 2), 0x1122u16.to_ne_bytes());
        assert_eq!(bytes_at(&header, 2, 2), 0x3344u16.to_ne_bytes());
        assert_eq!(bytes_at(&header, 4, 4), 0x5566_7788u32.to_ne_bytes());
        assert_eq!(bytes_at(&header, 8, 4), 0x21u32.to_ne_bytes());
        assert_eq!(bytes_at(&header, 12, 4), 17u32.to_ne_bytes());
        assert!(header.is_reply() && !header.is_command() && header.wants_reply());
        assert!(Header { flags: Header::NO_REPLY, ..header }.is_command());

        let map = DmaMap { argument_size: 32, flags: 3, offset: 0x1000, address: 0x2000, size: 0x3000 };
        assert_eq!(bytes_at(&map, 8, 8), 0x1000u64.to_ne_bytes());
        assert_eq!(bytes_at(&map, 16, 8), 0x2000u64.to_ne_bytes());
        assert_eq!(bytes_at(&map, 24, 8), 0x3000u64.to_ne_bytes());
        let unmap = DmaUnmap { argument_size: 24, flags: 2, address: 0x2000, size: 0x3000 };
        assert_eq!(bytes_at(&unmap, 8, 8), 0x2000u64.to_ne_bytes());
        assert_eq!(bytes_at(&unmap, 16, 8), 0x3000u64.to_ne_bytes());
        let access = RegionAccess { offset: 5, region: 6, count: 7 };
        assert_eq!(bytes_at(&access, 8, 4), 6u32.to_ne_bytes());
        assert_eq!(bytes_at(&access, 12, 4), 7u32.to_ne_bytes());
        let set = InterruptSet { argument_size: 20, flags: 0x24, index: 2, start: 3, count: 4 };
        assert_eq!(bytes_at(&set, 12, 4), 3u32.to_ne_bytes());
        assert_eq!(bytes_at(&set, 16, 4), 4u32.to_ne_bytes());
        let write = ShortWrite { access, bytes: [9; 8] };
        assert_eq!(bytes_at(&write, 16, 8), [9; 8]);
    }

    #[test]
    fn a_region_with_sparse_areas_is_what_the_parser_reads() {
        let description = RegionDescription {
            argument_size: 80,
            flags: 0xf,
            index: 2,
            capability_offset: 32,
            size: 0x4000,
            offset: 0x10000,
        };
        let sparse =
            SparseMap { id: SparseMap::ID, version: SparseMap::VERSION, count: 2, ..Default::default() };
        let areas =
            [SparseArea { offset: 0x1000, size: 0x1000 }, SparseArea { offset: 0x3000, size: 0x1000 }];
        let bytes = [description.as_bytes(), sparse.as_bytes(), areas.as_bytes()].concat();
        let region = RegionInfo::parse(&bytes).unwrap();
        assert!(region.readable && region.writable && region.mappable);
        assert_eq!((region.index, region.size, region.file_offset), (2, 0x4000, 0x10000));
        let expected = vec![Area { offset: 0x1000, length: 0x1000 }, Area { offset: 0x3000, length: 0x1000 }];
        assert_eq!(region.sparse, Some(expected));
    }

    #[test]
    fn numbers_that_nobody_gave_are_shown_as_numbers() {
        assert_eq!(Command(9).to_string(), "REGION_READ");
        assert_eq!(Command(14).to_string(), "command 14");
        assert_eq!(InterruptIndex::from_number(4).map(InterruptIndex::number), Some(4));
        assert_eq!(InterruptIndex::from_number(InterruptIndex::COUNT), None);
    }
}
