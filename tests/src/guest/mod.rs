//! What runs inside a guest: a table of cases, and the device that they are given.
//!
//! The binary `vdk-guest` runs cases by name on one device. A case that asks several
//! questions reports each with [`Guest::part`]. Each result is one line, on the console for a
//! person and on [`Host`] for the program that counts:
//!
//! ```text
//! ok edu: factorials are right
//! figure: type1 1 GiB on base pages: map 93.12 ms in 1 call
//! failed edu: interrupts arrive: no interrupt within 10 s
//! host: device_del nvme0
//! ```

pub mod cases;
mod host;
mod node;

pub use host::Host;
pub use node::{Interface, node};

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use vdk_hal::function::PciNode;

/// One thing that is tried on a device.
pub struct Case {
    /// What it is called on the command line: short, with hyphens.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// Does it. An error is a failure beside those of its parts.
    pub run: fn(&Guest) -> Result<()>,
}

/// What a case is given.
pub struct Guest {
    /// The device, as a person names it.
    device: String,
    interface: Interface,
    settings: BTreeMap<String, String>,
    host: Host,
    case: Cell<&'static str>,
    passed: Cell<u32>,
    failed: Cell<u32>,
}

impl Guest {
    /// Cases on `device`, reached through `interface`.
    ///
    /// `settings` are further values that a case may ask for.
    #[must_use]
    pub fn new(device: &str, interface: Interface, settings: BTreeMap<String, String>, host: Host) -> Self {
        let (device, case) = (device.to_owned(), Cell::new(""));
        let (passed, failed) = (Cell::new(0), Cell::new(0));
        Self { device, interface, settings, host, case, passed, failed }
    }

    /// The device, as a person names it.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The interface of the kernel that the device is reached through.
    #[must_use]
    pub fn interface(&self) -> Interface {
        self.interface
    }

    /// The device, not open.
    ///
    /// # Errors
    ///
    /// When the name says nothing, or the device cannot be made.
    pub fn node(&self) -> Result<Arc<dyn PciNode>> {
        node(&self.device, self.interface)
    }

    /// A further value, given as `--set NAME=VALUE`.
    ///
    /// # Errors
    ///
    /// When it was not given.
    pub fn setting(&self, name: &str) -> Result<&str> {
        let value = self.settings.get(name).map(String::as_str);
        value.with_context(|| format!("the case needs --set {name}=VALUE"))
    }

    /// Asks the host to do something; see [`Host::ask`].
    ///
    /// # Errors
    ///
    /// As [`Host::ask`].
    pub fn ask(&self, request: &str) -> Result<String> {
        self.host.ask(request)
    }

    /// Reports one part of a case, named by a sentence.
    pub fn part(&self, name: &str, result: Result<()>) {
        let case = self.case.get();
        match result {
            Ok(()) => {
                self.passed.set(self.passed.get() + 1);
                self.host.say(&format!("ok {case}: {name}"));
            }
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                let reason = format!("{error:#}").replace('\n', " / ");
                self.host.say(&format!("failed {case}: {name}: {reason}"));
            }
        }
    }

    /// Reports what was measured.
    pub fn figure(&self, text: &str) {
        self.host.say(&format!("figure: {text}"));
    }

    /// Runs the named cases in their order; tells whether all passed.
    ///
    /// # Errors
    ///
    /// When a name is that of no case. Nothing is run then.
    pub fn run(&self, names: &[String]) -> Result<bool> {
        let chosen: Vec<&Case> = names.iter().map(|name| cases::find(name)).collect::<Result<_>>()?;
        for case in chosen {
            self.case.set(case.name);
            let before = self.passed.get() + self.failed.get();
            let result = (case.run)(self);
            let counted = self.passed.get() + self.failed.get() > before;
            // A case that counted its parts is not one more.
            if result.is_err() || !counted {
                self.part(case.shows, result);
            }
        }
        ensure!(self.passed.get() + self.failed.get() > 0, "no case was named; --list shows them");
        Ok(self.failed.get() == 0)
    }
}
