//! The steps of a transfer, as a person would type them.

use core::fmt;
use std::path::PathBuf;

use crate::address::Bdf;
use crate::machine::DriverState;

/// One change of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// A module is loaded.
    LoadModule {
        /// Its name.
        name: String,
    },
    /// The former state of the function is remembered.
    Remember {
        /// The file.
        place: PathBuf,
        /// What is remembered.
        state: DriverState,
    },
    /// A text is written to a file of the kernel.
    Write {
        /// The file.
        path: PathBuf,
        /// The text.
        text: String,
    },
    /// A device node gets another owner.
    ChangeOwner {
        /// The node.
        path: PathBuf,
        /// The number of the user.
        user: u32,
    },
    /// What was remembered of the function is removed.
    Forget {
        /// The function.
        address: Bdf,
    },
}

impl fmt::Display for Step {
    /// As a line for a shell; what no command does is a comment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadModule { name } => write!(f, "modprobe {name}"),
            Self::Remember { place, state } => {
                let driver = state.driver.as_deref().unwrap_or("no driver");
                write!(f, "# remember {driver} in {}", place.display())
            }
            Self::Write { path, text } => match text.trim() {
                "" => write!(f, "echo > {}", path.display()),
                text => write!(f, "echo {text} > {}", path.display()),
            },
            Self::ChangeOwner { path, user } => write!(f, "chown {user} {}", path.display()),
            Self::Forget { address } => write!(f, "# forget what was remembered of {address}"),
        }
    }
}
