//! Does it all hold together?
//!
//! The conformance and integration tests of vdk, and what they share. `tests/run` runs
//! everything; `CONTRIBUTING.md` lists the rules that [`sources`] helps to hold.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod guest;
pub mod oracle;
pub mod qemu;
pub mod roce;
pub mod sources;
pub mod tap;
