//! Who may touch which page?
//!
//! `vdk-iommu` decides which memory a device reaches and at which address, on top of the
//! [`DmaMapper`](vdk_hal::dma::DmaMapper) contract of the HAL.
//!
//! # Layers
//!
//! - [`IovaAllocator`]: which I/O virtual addresses are free.
//! - [`Domain`]: one device's view of an address space. Mapping memory in it gives a
//!   [`DmaRegion`], which owns mapping and memory and has its [`Direction`] in the type;
//!   [`DmaGroup`] is several pieces at contiguous addresses, [`PendingRegion`] memory that
//!   waits for a device.
//! - [`DmaPool`]: [`DmaBuffer`]s cut from large slabs that stay mapped, and
//!   [`PoolTranslation`], their addresses by page.
//! - [`soft`]: a software IOMMU for emulated devices.
//!
//! # Example
//!
//! ```
//! use vdk_hal::address::ByteLength;
//! use vdk_hal::memory::{Pages, SharedMemory};
//! use vdk_iommu::soft::{SoftIommu, SoftIommuOptions};
//! use vdk_iommu::{AddressWidth, DmaRegion, Domain, ToDevice};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let iommu = SoftIommu::new(SoftIommuOptions::default());
//! let domain = Domain::new(iommu.domain(), AddressWidth::FULL)?;
//! let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base)?;
//! let region: DmaRegion<ToDevice> = domain.map(memory)?;
//! region.write(0, b"for the device")?;
//! let segment = region.segment(0, 14)?;
//! println!("the device reads {} at {}", segment.length, segment.iova);
//! let memory = region.unmap().map_err(|(error, _)| error)?;
//! assert!(memory.try_into_pinned().is_ok());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod allocator;
mod direction;
mod domain;
mod group;
mod pending;
mod pool;
mod region;
pub mod soft;
mod space;
mod split;
mod translation;
mod width;

pub use allocator::{
    AllocatorStatistics, IovaAllocation, IovaAllocator, OutOfIova, Placement, Unavailable, UnavailableReason,
};
pub use direction::{Bidirectional, CpuReads, CpuWrites, Direction, FromDevice, ToDevice};
pub use domain::{Domain, DomainError, DomainStatistics, locked_memory_needed};
pub use group::DmaGroup;
pub use pending::PendingRegion;
pub use pool::{DmaBuffer, DmaPool, PoolError, PoolOptions, PoolStatistics, SlabCounts};
pub use region::{DmaRegion, DmaSegment};
pub use split::{Piece, Pieces, SplitError, split};
pub use translation::{PoolTranslation, Untranslated};
pub use width::AddressWidth;
