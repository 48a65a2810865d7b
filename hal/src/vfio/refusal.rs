//! Why a function is not opened, while it is not yet known whose error that is.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::holder;
use crate::function::OpenError;

/// A reason and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    kind: Kind,
    reason: String,
    fix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Refused,
    /// Somebody has it: `reason` says who.
    Busy,
    Gone,
}

impl Refusal {
    pub(super) fn new(reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { kind: Kind::Refused, reason: reason.into(), fix: fix.into() }
    }

    /// Somebody has the function open.
    pub(super) fn busy(holder: impl Into<String>) -> Self {
        Self { kind: Kind::Busy, reason: holder.into(), fix: String::new() }
    }

    /// The function went away meanwhile.
    pub(super) fn gone() -> Self {
        Self { kind: Kind::Gone, reason: String::new(), fix: String::new() }
    }

    /// A call of the kernel failed that has no reason to.
    pub(super) fn call(what: &str, error: Errno) -> Self {
        if error == Errno::NODEV {
            return Self::gone();
        }
        Self::new(format!("the kernel refused {what}: {error}"), "look into the kernel log with `dmesg`")
    }

    /// A device node could not be opened. `module` makes it appear.
    pub(super) fn node(path: &Path, error: &io::Error, module: &str) -> Self {
        let shown = path.display();
        match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => Self::new(
                format!("this user may not open {shown}"),
                format!("as root, chown USER {shown} (or set a udev rule for it), or run vdk as root"),
            ),
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                Self::new(format!("there is no {shown}"), format!("modprobe {module}"))
            }
            Some(Errno::BUSY) => Self::busy(holder::of(path).unwrap_or_else(holder::unknown)),
            _ => Self::new(format!("cannot open {shown}: {error}"), "look into the kernel log with `dmesg`"),
        }
    }

    /// The error of the function called `name`.
    pub(super) fn into_error(self, name: &str) -> OpenError {
        let function = name.to_owned();
        match self.kind {
            Kind::Refused => OpenError::Refused { function, reason: self.reason, fix: self.fix },
            Kind::Busy => OpenError::Busy { function, holder: self.reason },
            Kind::Gone => OpenError::Gone { function },
        }
    }

    #[cfg(test)]
    pub(super) fn text(self) -> String {
        self.into_error("0000:01:00.0").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_cannot_be_opened_says_what_to_do() {
        let path = Path::new("/dev/vfio/7");
        let text = |errno: Errno| Refusal::node(path, &errno.into(), "vfio-pci").text();
        let denied = text(Errno::ACCESS);
        assert!(
            denied.contains("may not open /dev/vfio/7") && denied.contains("chown USER /dev/vfio/7"),
            "{denied}"
        );
        assert!(text(Errno::NOENT).contains("modprobe vfio-pci"));
        assert!(text(Errno::BUSY).contains("is open already, by"));
        assert!(text(Errno::MFILE).contains("cannot open /dev/vfio/7"));
        assert!(matches!(Refusal::call("it", Errno::NODEV).into_error("x"), OpenError::Gone { .. }));
    }
}
