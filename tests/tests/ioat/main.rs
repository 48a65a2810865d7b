//! The I/OAT driver on the emulated engine.

mod chains;
mod faults;
mod harness;
mod life;
