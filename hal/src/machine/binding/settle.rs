//! Bringing one function to the driver that it is meant for.

use std::path::PathBuf;

use super::{Binder, Fault, Step};
use crate::address::Bdf;
use crate::machine::DriverState;

/// Where a function is to be brought.
pub(super) struct Target {
    pub(super) taker: Taker,
    /// The only driver that may take it from then on.
    pub(super) reserved_for: Option<String>,
}

/// Who is to have a function.
#[derive(PartialEq, Eq)]
pub(super) enum Taker {
    This(String),
    Nobody,
    /// Whichever driver the kernel finds, or none.
    Any,
}

impl Target {
    /// The target of being as `state` says.
    pub(super) fn of(state: &DriverState) -> Self {
        let taker = state.driver.clone().map_or(Taker::Nobody, Taker::This);
        Self { taker, reserved_for: state.reserved_for.clone() }
    }
}

impl Binder<'_> {
    /// Makes the writes that lead from `now` to `target`, and adds them to `steps`. The
    /// reservation comes first: it decides who may take the function afterwards.
    pub(super) fn settle(
        &self,
        address: Bdf,
        now: &DriverState,
        target: &Target,
        steps: &mut Vec<Step>,
    ) -> Result<(), Fault> {
        if now.reserved_for != target.reserved_for {
            // An empty line takes the reservation away.
            let name = target.reserved_for.clone().unwrap_or_default();
            let path = self.machine.function(address).join("driver_override");
            self.write(path, format!("{name}\n"), steps)?;
        }
        if let Some(driver) = &now.driver {
            if target.taker == Taker::This(driver.clone()) {
                return Ok(());
            }
            self.write(self.driver_file(driver, "unbind"), address.to_string(), steps)?;
        }
        let probe = || self.machine.path("/sys/bus/pci/drivers_probe");
        match &target.taker {
            Taker::Nobody => Ok(()),
            Taker::Any => self.write(probe(), address.to_string(), steps),
            Taker::This(wanted) => {
                let probed = self.write(probe(), address.to_string(), steps);
                self.confirm(address, wanted, probed, steps)
            }
        }
    }

    /// Sees to it that `wanted` has the function, after the kernel was asked to find a driver.
    fn confirm(
        &self,
        address: Bdf,
        wanted: &str,
        probed: Result<(), Fault>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Fault> {
        let found = || if self.trial { Some(wanted.to_owned()) } else { self.machine.driver(address) };
        match found() {
            Some(driver) if driver == wanted => return Ok(()),
            Some(other) => self.write(self.driver_file(&other, "unbind"), address.to_string(), steps)?,
            None => {}
        }
        // The kernel asks drivers in an order of its own; this one is asked by name.
        let bound = self.write(self.driver_file(wanted, "bind"), address.to_string(), steps);
        let found = found();
        if found.as_deref() == Some(wanted) {
            return Ok(());
        }
        let refused = Fault::NotTaken { address, wanted: wanted.to_owned(), found };
        Err(bound.and(probed).err().unwrap_or(refused))
    }

    fn driver_file(&self, driver: &str, file: &str) -> PathBuf {
        self.machine.path(&format!("/sys/bus/pci/drivers/{driver}/{file}"))
    }

    fn write(&self, path: PathBuf, text: String, steps: &mut Vec<Step>) -> Result<(), Fault> {
        let result = if self.trial { Ok(()) } else { self.control.write(&path, &text) };
        match result {
            Ok(()) => {
                log::debug!("{:?} to {}", text.trim(), path.display());
                steps.push(Step::Write { path, text });
                Ok(())
            }
            Err(error) => Err(Fault::Write { path, text, error: error.to_string() }),
        }
    }
}
