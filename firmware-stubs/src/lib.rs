//! What is on the other side of the bus?
//!
//! `vdk-firmware-stubs` has emulated PCIe devices that are stricter than hardware. Each
//! implements a published device interface, appears as a [`PciNode`](vdk_hal::function::PciNode)
//! and does its DMA through the software IOMMU of [`vdk_iommu::soft`]:
//!
//! - [`StubKind::Edu`]: QEMU's educational device;
//! - [`StubKind::Ioat`]: Intel I/OAT, the "QuickData" copy engine, version 3.2;
//! - [`StubKind::Nvme`]: an NVM Express 1.4 controller with the NVM command set.
//!
//! ```
//! use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
//! use vdk_hal::address::BarIndex;
//! use vdk_hal::config::{register, Command, ConfigSpace};
//! use vdk_hal::function::PciNode;
//!
//! let node = StubNode::new(StubKind::Edu, StubOptions::default())?;
//! let function = node.open()?;
//! let mut command = Command::default();
//! command.set_memory_space(true);
//! function.config().write16(register::COMMAND, command.0)?;
//! let bar = function.bar(BarIndex::new(0).unwrap())?;
//! assert_eq!(bar.read::<u32>(0)?, 0x0100_00ed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Strictness
//!
//! What hardware forgives or answers with undefined behaviour is written down as a
//! [`DriverFault`]: a register access of a wrong width or where there is none, accesses
//! while memory decoding is off, a doorbell before the channel is set up. What goes wrong in
//! DMA is in the fault log of the IOMMU. What goes wrong in the device itself can be
//! planned: see [`fault`].
//!
//! # Layers
//!
//! - [`shell`]: everything that PCI says, shared by all devices; [`StubNode`].
//! - [`serve`]: any device on a vfio-user socket.
//! - one module for each device, which knows its registers only.

#![forbid(unsafe_code)]

mod driver_fault;
mod edu;
pub mod fault;
mod ioat;
mod kind;
mod nvme;
mod options;
pub mod random;
pub mod roce;
pub mod serve;
pub mod shell;
mod statistics;
mod unix_socket;

pub use driver_fault::{DriverFault, DriverFaultKind};
pub use fault::{FaultPlan, ParseFaultPlanError};
pub use kind::{ParseStubKindError, StubKind};
pub use options::{NamespaceOptions, StubError, StubOptions};
pub use shell::{StubFunction, StubNode};
pub use statistics::StubStatistics;
pub use unix_socket::SocketError;
