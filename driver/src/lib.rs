//! How is a device driven?
//!
//! `vdk-driver` has three parts:
//!
//! - [`kit`] is the model, after Apple's DriverKit: a driver declares what it matches, is
//!   started with an exclusive session of one function, gets every callback on its own
//!   serial queue, and is stopped with a reason and a deadline.
//! - [`edu`], [`ioat`] and [`nvme`] are drivers of published device interfaces, written against it.
//! - [`block`] is what those have in common that store blocks.
//!
//! The crates below are re-exported, so that a program needs this one dependency only.

#![forbid(unsafe_code)]

pub use vdk_descriptors as descriptors;
pub use vdk_hal as hal;
pub use vdk_iommu as iommu;

pub mod block;
pub mod edu;
pub mod ioat;
pub mod kit;
pub mod nvme;
pub mod rejected;
pub mod wait;
