//! Kinds of reset, and how each may fail.

use core::fmt;

use thiserror::Error;

/// How a function is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResetKind {
    /// Function-level reset through the PCI Express or Advanced Features capability.
    FunctionLevel,
    /// D3hot and back to D0, for a function that loses its state on the way.
    PowerManagement,
    /// Secondary bus reset: every function below the bridge is hit.
    Hot,
}

impl fmt::Display for ResetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FunctionLevel => "function-level reset",
            Self::PowerManagement => "power-management reset",
            Self::Hot => "hot reset",
        })
    }
}

/// Why a reset was not done. After any of these the function is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResetError {
    /// The function or its backend has no reset of this kind.
    #[error("{function} does not support {kind}: quiesce the device by its own protocol instead")]
    NotSupported {
        /// The function.
        function: String,
        /// The reset asked for.
        kind: ResetKind,
    },
    /// The function did not answer within the time that the standard gives it.
    #[error("{function} did not come back from {kind} within {milliseconds} ms")]
    TimedOut {
        /// The function.
        function: String,
        /// The reset asked for.
        kind: ResetKind,
        /// The time it was given.
        milliseconds: u64,
    },
    /// Other functions that the reset would hit are not owned by the caller.
    #[error("{kind} of {function} also hits {others}, which this process does not own")]
    NotOwner {
        /// The function.
        function: String,
        /// The reset asked for.
        kind: ResetKind,
        /// The functions not owned, separated by commas.
        others: String,
    },
    /// The function is gone.
    #[error("{function} is gone")]
    Gone {
        /// The function.
        function: String,
    },
    /// The operating system refused.
    #[error("the system refused {kind} of {function}: {error}")]
    System {
        /// The function.
        function: String,
        /// The reset asked for.
        kind: ResetKind,
        /// What the system said.
        error: std::io::ErrorKind,
    },
}
