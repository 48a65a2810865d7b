//! Which driver has a function, and which one it is meant for.

use std::fs;
use std::io;

use super::{Machine, link_name};
use crate::address::Bdf;

/// The two things that decide about a function's driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverState {
    /// The driver that has it.
    pub driver: Option<String>,
    /// The only driver that may take it, where one was named (`driver_override`).
    pub reserved_for: Option<String>,
}

impl Machine {
    /// The driver of a function now.
    pub(super) fn driver(&self, address: Bdf) -> Option<String> {
        link_name(&self.function(address).join("driver"))
    }

    /// Both halves of the state of a function.
    ///
    /// # Errors
    ///
    /// What reading `driver_override` says; a kernel without it has no such file.
    pub(super) fn driver_state(&self, address: Bdf) -> io::Result<DriverState> {
        let text = fs::read_to_string(self.function(address).join("driver_override"))?;
        let name = text.trim();
        // The kernel writes a missing pointer in its own way.
        let reserved_for = (!name.is_empty() && name != "(null)").then(|| name.to_owned());
        Ok(DriverState { driver: self.driver(address), reserved_for })
    }
}
