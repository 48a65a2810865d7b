//! Typed access to registers.
//!
//! A device's registers are declared once, with [`register_block!`](crate::register_block):
//! name, offset, width, access kind and prose. Access goes through a [`RegisterBlock`],
//! which was checked against its BAR when it was made, or for the fastest path through a
//! [`MappedBlock`] and a [`Doorbell`], whose accesses compile to one instruction.

mod block;
mod doorbell;
mod register;
mod sleep_flag;
mod value;

pub use block::{MappedBlock, RegisterBlock};
pub use doorbell::{Doorbell, Kick};
pub use register::{
    AccessKind, ReadPure, ReadSideEffects, ReadWrite, ReadWriteClear, Readable, Register, RegisterInfo,
    RegisterSet, Split, Writable, WriteOnly,
};
pub use value::{RegisterValue, Width};
