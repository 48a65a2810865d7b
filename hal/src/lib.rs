//! What is a PCI function?
//!
//! `vdk-hal` names the parts of a PCI function - configuration space, BARs,
//! interrupts, DMA, reset, events - as traits and handles that are the same
//! whether the function is behind kernel VFIO, a vfio-user socket or an emulated
//! device in this process. It depends on no other crate of vdk and can be
//! embedded alone.
//!
//! # Layers
//!
//! - [`address`]: addresses and sizes as distinct types.
//! - [`function`] has [`PciNode`](function::PciNode), a function that may be opened, and
//!   [`PciFunction`](function::PciFunction), one that is open.
//! - [`config`]: configuration space and its capabilities.
//! - [`bar`] and [`mmio`]: base address registers and typed access to them.
//! - [`interrupt`], [`event`], [`reset`]: what a function says, and its restart.
//! - [`dma`] and [`memory`]: device-visible memory and the mapping contract.
//! - [`sysfs`]: the PCI functions of this machine, read-only.
//! - [`vfio`]: functions behind kernel VFIO.
//! - [`vfio_user`]: functions behind a vfio-user socket.
//! - [`machine`]: what this machine lacks for drivers, and giving functions to `vfio-pci`.
//! - [`barrier`], [`poll`]: ordering and bounded waiting.
//!
//! # Unsafe code
//!
//! This is the only crate of vdk with `unsafe` code. Each module that needs it
//! opts in with a line that starts with `UNSAFETY`, and every block carries its proof.

pub mod address;
pub mod bar;
pub mod barrier;
pub mod config;
pub mod dma;
pub mod event;
pub mod function;
pub mod interrupt;
mod locked_memory;
pub mod machine;
pub mod memory;
pub mod mmio;
pub mod poll;
pub mod reset;
mod sync;
pub mod sysfs;
pub mod vfio;
pub mod vfio_user;
