//! Why a domain refused.

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::MapError;

use crate::allocator::{OutOfIova, Unavailable};

/// Why memory was not made visible to devices. Nothing has changed then, unless the text of
/// the variant says so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DomainError {
    /// No function is attached, so nothing can be mapped yet.
    #[error("{domain}: no device is attached yet; register the memory and attach a device")]
    NotAttached {
        /// The name of the address space.
        domain: String,
    },
    /// What the address space says about itself cannot be true.
    #[error("{domain}: the reported page sizes {page_sizes:#x} hold no usable page")]
    Geometry {
        /// The name of the address space.
        domain: String,
        /// The bitmap of page sizes.
        page_sizes: u64,
    },
    /// No address is free.
    #[error(transparent)]
    OutOfIova(#[from] OutOfIova),
    /// The address asked for cannot be had.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The memory would pass the end of the 64-bit space.
    #[error("{length} at iova {iova} pass the end of the address space")]
    PastEnd {
        /// The address.
        iova: Iova,
        /// The size.
        length: ByteLength,
    },
    /// A group of no memory was to be mapped.
    #[error("a group needs at least one piece of memory")]
    EmptyGroup,
    /// The domain or the IOMMU refused the mapping.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The limit of locked memory was hit by memory that is a device's BAR.
    #[error(
        "the memory is the BAR of a device, which iommufd counts as locked memory and type1 does not; \
         raise the limit or use a type1 container"
    )]
    LockedBar {
        /// What the IOMMU said.
        #[source]
        source: MapError,
    },
    /// After an attach a range in use is no longer accepted. The new geometry is in force,
    /// and the range stays mapped if the IOMMU still has it.
    #[error("{domain}: {range} is in use, but the IOMMU accepts only {usable} since the last attach")]
    Stranded {
        /// The name of the address space.
        domain: String,
        /// The range in use.
        range: IovaRange,
        /// The usable ranges, as text.
        usable: String,
    },
}
