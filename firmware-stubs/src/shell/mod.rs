//! The PCI shell that every emulated device shares.
//!
//! A device is a [`DeviceModel`] behind a [`Profile`]: the profile says what the function
//! looks like on PCI, the model what its registers do. Everything between them and the
//! [`hal`](vdk_hal) is here: configuration space, BARs, interrupts, power states, reset,
//! removal, the gate in front of DMA, and the device thread.
//!
//! # Who holds the device
//!
//! One lock guards the model and configuration space. The device thread holds it for as
//! long as there is work, so that a doorbell costs no lock; a trapped access announces
//! itself in a counter that the thread looks at between two steps, and is let in.

mod config;
mod device;
mod function;
mod interrupts;
mod layout;
mod model;
mod msix;
mod node;
mod profile;
mod session;
mod thread;

pub use function::StubFunction;
pub use interrupts::InterruptUnit;
pub use model::{DeviceModel, Surroundings, Work};
pub use node::StubNode;
pub use profile::{
    BarProfile, ConfigRegister, ExpressProfile, MsiProfile, MsixProfile, PowerProfile, Profile,
};
