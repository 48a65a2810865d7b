//! QEMU's educational device: the smallest device that has everything.
//!
//! It computes factorials, raises interrupts on demand, and moves bytes between memory and
//! a buffer of its own. There is no other driver to compare with, and that is its use: the
//! same code runs on QEMU's device, which nobody here wrote, and on the emulated one.
//!
//! # The last byte of the buffer
//!
//! The buffer has 4096 bytes, but a transfer that ends exactly at its end stops QEMU 7.2:
//! its check wants the end of the transfer to lie strictly inside the buffer. So the driver
//! moves [`LONGEST_TRANSFER`] bytes at most and leaves the last byte alone.
//!
//! # Faults that the device does not report
//!
//! The device has no error register. A transfer from or to memory that is not mapped ends
//! like any other; only the IOMMU knows. The driver refuses what it can see to be wrong.

mod device;
mod driver;
mod error;
mod transfer;

pub use device::{Completion, Edu};
pub use error::EduError;
pub use transfer::{LONGEST_TRANSFER, TransferDirection};
