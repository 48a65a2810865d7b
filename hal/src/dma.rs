//! The contract between a domain and what maps its pages.

use core::fmt;

use thiserror::Error;

use crate::address::{ByteLength, Iova, IovaRange};
use crate::memory::SharedMemory;
use crate::poll::TimedOut;

/// What a device may do with mapped pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permissions {
    /// The device reads: data goes to it.
    Read,
    /// The device writes: data comes from it.
    Write,
    /// Both.
    ReadWrite,
}

impl Permissions {
    /// Whether the device may read.
    #[inline]
    #[must_use]
    pub const fn allows_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether the device may write.
    #[inline]
    #[must_use]
    pub const fn allows_write(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "device read",
            Self::Write => "device write",
            Self::ReadWrite => "device read and write",
        })
    }
}

/// What addresses and pages an IOMMU accepts, as its kernel or model says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaGeometry {
    /// The usable ranges, ascending, not touching one another; holes such as the interrupt
    /// window are already left out. Empty while no function is attached.
    pub ranges: Vec<IovaRange>,
    /// The page sizes as a bitmap: bit `n` set means pages of 2^n bytes. Never zero.
    pub page_sizes: u64,
    /// How many more mappings can be made, where the kernel says so.
    pub mappings_available: Option<u32>,
}

impl DmaGeometry {
    /// The smallest page: every mapping is a multiple of it.
    #[must_use]
    pub fn smallest_page(&self) -> ByteLength {
        ByteLength::new(1 << self.page_sizes.trailing_zeros().min(63))
    }
}

/// An address space of devices: kernel VFIO (type1 or iommufd), a vfio-user client, or a
/// software IOMMU.
///
/// # What an implementor owes
///
/// - `map` keeps a clone of the memory until an `unmap` of exactly its range has
///   succeeded, or for ever if it never does: a device must never reach freed pages.
/// - `unmap` returns only when no access through the range can happen any more.
/// - Every failed call leaves the address space as it was.
pub trait DmaMapper: Send + Sync {
    /// A name for messages: "type1 container 3", "software IOMMU".
    fn name(&self) -> String;

    /// What the address space accepts now. It changes when functions are attached.
    fn geometry(&self) -> DmaGeometry;

    /// Whether memory with a file ([`SharedMemory::file`]) is reached better than other
    /// memory, or only that: the devices are in another process.
    fn prefers_files(&self) -> bool {
        false
    }

    /// Makes `memory` visible at `iova`, all of it.
    ///
    /// # Errors
    ///
    /// [`MapError`]; "already mapped" is an error even when the same pages are meant.
    fn map(&self, iova: Iova, memory: &SharedMemory, permissions: Permissions) -> Result<(), MapError>;

    /// Ends the mapping that was made at exactly `range` and returns the size that was
    /// unmapped, as the kernel reported it: **the caller compares**.
    ///
    /// # Errors
    ///
    /// [`UnmapError`]; the mapping is still there then.
    fn unmap(&self, range: IovaRange) -> Result<ByteLength, UnmapError>;
}

/// Why a mapping was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// No function is attached yet, so there is no IOMMU to map into.
    #[error("{mapper}: no device is attached yet, mapping {range} must wait")]
    NotAttached {
        /// The address space.
        mapper: String,
        /// The range.
        range: IovaRange,
    },
    /// The range is not inside what the IOMMU accepts.
    #[error("iova range {range} is outside what the IOMMU accepts: {usable}")]
    OutOfRange {
        /// The range.
        range: IovaRange,
        /// The usable ranges, as text.
        usable: String,
    },
    /// Address, memory or size is not a multiple of the page size.
    #[error("iova {iova} for {length} at {host:#x} is not in whole pages of {page}")]
    Misaligned {
        /// The address.
        iova: Iova,
        /// The address of the memory in this process.
        host: u64,
        /// The size.
        length: ByteLength,
        /// The smallest page.
        page: ByteLength,
    },
    /// Something is mapped there.
    #[error("iova range {range} overlaps the mapping at {existing}")]
    AlreadyMapped {
        /// The range.
        range: IovaRange,
        /// What is there.
        existing: IovaRange,
    },
    /// The count of mappings is limited.
    #[error(
        "the IOMMU takes no more than {limit} mappings: map larger regions, or raise the limit, with \
         vfio_iommu_type1.dma_entry_limit=N where it is that of kernel VFIO"
    )]
    TooManyMappings {
        /// The limit.
        limit: u32,
    },
    /// The process may not lock so much memory.
    #[error(
        "needs {needed} of locked memory, {in_use} are in use and the limit is {limit}{}; {fix}",
        scope(.per_user)
    )]
    LockedMemory {
        /// What the mapping needs.
        needed: ByteLength,
        /// What is locked now.
        in_use: ByteLength,
        /// The limit.
        limit: ByteLength,
        /// The command that raises the limit.
        fix: String,
        /// The limit is for all processes of the user together, and `in_use` is what this
        /// one has.
        per_user: bool,
    },
    /// The system refused.
    #[error("the system refused to map {range}: {error}")]
    System {
        /// The range.
        range: IovaRange,
        /// What the system said.
        error: std::io::ErrorKind,
    },
}

fn scope(per_user: &bool) -> &'static str {
    if *per_user { " for all processes of this user together" } else { "" }
}

/// Why a mapping was not ended. It is still there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnmapError {
    /// Nothing is mapped there.
    #[error("iova range {range} is not mapped")]
    NotMapped {
        /// The range.
        range: IovaRange,
    },
    /// The range is only a part of a mapping, or of several.
    #[error("iova range {range} is not a whole mapping: {existing} is")]
    NotExact {
        /// The range.
        range: IovaRange,
        /// The mapping that it touches.
        existing: IovaRange,
    },
    /// The kernel reported another size than was asked for.
    #[error("unmapping {range} ended {returned} only")]
    Incomplete {
        /// The range.
        range: IovaRange,
        /// What was reported.
        returned: ByteLength,
    },
    /// A device does not leave the memory.
    #[error("unmapping {range}: {error}")]
    DeviceBusy {
        /// The range.
        range: IovaRange,
        /// What was waited for.
        error: TimedOut,
    },
    /// The system refused.
    #[error("the system refused to unmap {range}: {error}")]
    System {
        /// The range.
        range: IovaRange,
        /// What the system said.
        error: std::io::ErrorKind,
    },
}
