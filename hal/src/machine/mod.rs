//! This machine as a host of user-space drivers: what is on, what is missing, who uses a
//! function, and giving functions to `vfio-pci` and back.
//!
//! [`Machine`] is where everything is read, below a folder that tests replace. What changes
//! the machine goes through [`Control`]. [`Machine::diagnose`] and
//! [`Machine::diagnose_function`] tell what is right and wrong; [`Binder`] moves functions
//! from one driver to another as one transaction, and [`Usage`] is why it refuses to.

mod binding;
mod control;
mod diagnosis;
mod driver_state;
mod remembered;
mod usage;

#[cfg(test)]
mod fake;

pub use binding::{Binder, Fault, Outcome, Step, Transfer, TransferError};
pub use control::{Control, SystemControl};
pub use diagnosis::{Finding, Level};
pub use driver_state::DriverState;
pub use usage::Usage;

use std::fs;
use std::path::{Path, PathBuf};

use crate::address::Bdf;
use crate::sysfs::{is_safe_in_group, is_vfio};
use crate::vfio::holder;

/// The files of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    /// Where drivers are remembered; the first that can be written is used.
    records: Vec<PathBuf>,
    /// Whether this user may read and write a file.
    may_use: fn(&Path) -> bool,
}

impl Machine {
    /// This machine.
    ///
    /// The drivers of functions that were given away are remembered in `/run/vdk/drivers`,
    /// or, where that cannot be written, in `vdk/drivers` of the user's folder for state.
    #[must_use]
    pub fn this() -> Self {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
        let personal = state.or_else(home).map(|state| state.join("vdk/drivers"));
        let records = [Some(PathBuf::from(RECORDS)), personal].into_iter().flatten().collect();
        Self { root: PathBuf::from("/"), records, may_use: diagnosis::may_use }
    }

    /// A machine whose `/sys`, `/proc`, `/dev`, `/run` and so on are in the folder `root`.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let records = vec![root.join(RECORDS.trim_start_matches('/')), root.join("state/vdk/drivers")];
        Self { root, records, may_use: diagnosis::may_use }
    }

    /// The folder with one entry for each PCI function.
    #[must_use]
    pub fn devices(&self) -> PathBuf {
        self.path(crate::sysfs::DEVICES)
    }

    /// The number of the user with a name of `/etc/passwd`, or whose number is given.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<u32> {
        if let Ok(number) = name.parse() {
            return Some(number);
        }
        let users = self.text("/etc/passwd")?;
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
        })
    }

    /// Where a file of an ordinary machine is here.
    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The folder of a function.
    fn function(&self, address: Bdf) -> PathBuf {
        self.devices().join(address.to_string())
    }

    /// A file without blanks at its ends; `None` when it cannot be read.
    fn text(&self, absolute: &str) -> Option<String> {
        text(&self.path(absolute))
    }

    /// The names in a folder, sorted; none when it cannot be read.
    fn names(&self, absolute: &str) -> Vec<String> {
        names(&self.path(absolute))
    }

    /// The other processes that have a file open, as far as this user can see.
    fn holders(&self, path: &Path) -> Vec<String> {
        holder::others(&self.path("/proc"), path)
    }

    /// The members of a class of devices that belong to a function, by name.
    fn class_members(&self, class: &str, address: Bdf) -> Vec<(String, PathBuf)> {
        let Ok(function) = fs::canonicalize(self.function(address)) else { return Vec::new() };
        let folder = format!("/sys/class/{class}");
        let real = |name: String| {
            let path = fs::canonicalize(self.path(&format!("{folder}/{name}"))).ok()?;
            path.starts_with(&function).then_some((name, path))
        };
        self.names(&folder).into_iter().filter_map(real).collect()
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::this()
    }
}

fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The last part of what a link points to.
fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

const VFIO_PCI: &str = "vfio-pci";
const RECORDS: &str = "/run/vdk/drivers";
