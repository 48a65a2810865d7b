//! What do the bits mean, and whose turn is it?
//!
//! `vdk-descriptors` stands between a driver and its device. It has two halves:
//!
//! - **layout modules**, one per device interface: [`edu`], [`ioat`] and [`nvme`]; and
//!   [`roce`], the frames of RDMA. They hold register
//!   declarations, words and descriptors, types only. A driver and the emulated device on
//!   the other side share these modules and nothing else, so that one mistake in logic
//!   cannot cancel itself out.
//! - **construction**, the same for all devices: [`sg`], scatter-gather lists; [`ring`],
//!   rings, completions and doorbells; [`serial`], numbers that wrap; [`prp`], the page
//!   pointers of NVMe, and [`sgl`], its scatter-gather descriptors.
//!
//! It depends on `vdk-hal` and has no `unsafe` code.

#![forbid(unsafe_code)]

pub mod edu;
pub mod ioat;
pub mod nvme;
pub mod prp;
pub mod ring;
pub mod roce;
pub mod serial;
pub mod sg;
pub mod sgl;

#[cfg(not(target_endian = "little"))]
compile_error!("the layouts are those of little-endian devices, read and written as native words");
