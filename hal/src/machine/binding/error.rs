//! Why a function was not moved to another driver.

use std::path::PathBuf;

use thiserror::Error;

use crate::address::Bdf;
use crate::machine::Usage;
use crate::sysfs::SysfsError;

/// Why functions were not moved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// There is no such function.
    #[error("there is no PCI function {address} on this machine: `vdk list` shows what there is")]
    NotFound {
        /// Where it was looked for.
        address: Bdf,
    },
    /// sysfs could not be read.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// The kernel cannot reserve a function for a driver.
    #[error("the kernel has no driver_override for {address}: it needs Linux 3.16 or newer")]
    NoDriverOverride {
        /// The function.
        address: Bdf,
    },
    /// Somebody uses a function. Nothing was changed.
    #[error("{}", in_use(.usage))]
    InUse {
        /// Each use, with the function.
        usage: Vec<(Bdf, Usage)>,
    },
    /// No IOMMU confines the function, and `vfio-pci` would not take it.
    #[error(
        "{address} is in no IOMMU group, so vfio-pci does not take it: `vdk doctor` says how to turn the IOMMU on"
    )]
    NoIommu {
        /// The function.
        address: Bdf,
    },
    /// A program drives the function.
    #[error("{address} is open in {}: end it first", .holders.join(", "))]
    Open {
        /// The function.
        address: Bdf,
        /// Who has it, by name and number.
        holders: Vec<String>,
    },
    /// The user may not do this.
    #[error("this user may not write {}", .path.display())]
    NotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// The driver is not in the kernel.
    #[error("there is no driver {name}: {reason}")]
    NoModule {
        /// The driver.
        name: String,
        /// What was tried.
        reason: String,
    },
    /// A step failed.
    #[error("{fault}; {}", undone(.left))]
    Failed {
        /// The step.
        fault: Fault,
        /// What could not be brought back to what it was.
        left: Vec<Fault>,
    },
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// A file of the kernel could not be written.
    #[error("cannot write {:?} to {}: {error}", .text.trim(), .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was written.
        text: String,
        /// What the kernel said.
        error: String,
    },
    /// No driver, or another one, took the function.
    #[error("driver {wanted} did not take {address}, {} has it: look into the kernel log with `dmesg`", .found.as_deref().unwrap_or("no driver"))]
    NotTaken {
        /// The function.
        address: Bdf,
        /// The driver that should have it.
        wanted: String,
        /// The driver that has it.
        found: Option<String>,
    },
    /// The former driver could not be remembered.
    #[error("cannot remember the former driver in {}: {error}", .path.display())]
    Remember {
        /// The folder that was tried last.
        path: PathBuf,
        /// What the system said.
        error: String,
    },
    /// A device node could not be given away.
    #[error("cannot give {} to user {user}: {error}", .path.display())]
    Owner {
        /// The node.
        path: PathBuf,
        /// The number of the user.
        user: u32,
        /// What the system said.
        error: String,
    },
}

fn in_use(usage: &[(Bdf, Usage)]) -> String {
    let lines = usage.iter().map(|(address, one)| format!("{address}: {one} ({})", one.fix()));
    format!("refused: {}", lines.collect::<Vec<_>>().join("; "))
}

fn undone(left: &[Fault]) -> String {
    if left.is_empty() {
        return "everything is as it was".to_owned();
    }
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    format!("not everything could be brought back: {}", left.join("; "))
}
