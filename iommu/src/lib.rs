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
