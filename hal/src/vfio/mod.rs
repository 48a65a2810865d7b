//! PCI functions behind kernel VFIO.
//!
//! [`VfioNode`] names a function that is bound to `vfio-pci`; opening it gives a
//! [`VfioFunction`]. Two interfaces of the kernel lead there, and the
//! [options](VfioOptions) choose one, or leave the choice to what kernel and rights allow:
//!
//! - **iommufd**: the function's own node `/dev/vfio/devices/vfioN`, bound to an address
//!   space of `/dev/iommu`;
//! - **type1**: the node of the IOMMU group, `/dev/vfio/GROUP`, in a container of
//!   `/dev/vfio/vfio`.
//!
//! Functions have an address space each, or share one: see [`SharedAddressSpace`]. A
//! function without an IOMMU is not opened.
//!
//! # Layers
//!
//! `kernel` makes the system calls, `message` and `chain` are what is said; `container` and
//! `iommufd` are address spaces, `space` is what they have in common; `group` and `cdev`
//! lead to a device; `region`, `config`, `irq`, `hot_reset` and `feature` are what a device
//! can do; `session` owns all of it and lets it go in the right order. Answers of the
//! kernel are checked like everything else that is read.
//!
//! # What the kernel does by itself
//!
//! It turns bus mastering off and resets the function whenever its last file is closed,
//! so also when the process dies.

mod cdev;
mod chain;
mod choice;
mod claim;
mod config;
mod container;
mod device;
mod events;
mod feature;
mod function;
mod group;
pub(crate) mod holder;
mod hot_reset;
mod iommufd;
mod irq;
mod kernel;
mod memlock;
mod message;
#[cfg(test)]
mod mock;
mod node;
mod node_file;
mod options;
mod ranges;
mod refusal;
mod region;
mod reset;
mod session;
mod space;

pub use choice::ChosenInterface;
pub use feature::DeviceFeature;
pub use function::{LowPower, VfioFunction};
pub use node::VfioNode;
pub use options::{
    AddressSpace, KernelInterface, ParseInterfaceError, ParseTokenError, VfToken, VfioOptions,
};
pub use space::SharedAddressSpace;
