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

/// Why a reset was not done. The function is as it was, unless the error says otherwise; but
/// interrupts may be off.
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
    /// Other functions that the reset would hit are not owned by the caller, or are virtual
    /// ones, along with which the kernel resets no bus.
    #[error(
        "{kind} of {function} also hits {others}, which keeps the kernel from it: bind all to vfio-pci and \
         open them in this process, through iommufd in one shared address space; remove virtual functions \
         by sriov_numvfs"
    )]
    NotOwner {
        /// The function.
        function: String,
        /// The reset asked for.
        kind: ResetKind,
        /// Those functions, each with who has it, separated by commas.
        others: String,
    },
    /// The function was reset, but the system does not see that the link of its port is up
    /// again. It may answer all the same.
    #[error(
        "{function} was reset by {kind}, and the port above it does not report an active link: see `dmesg`; \
         open it again, and if it does not answer, echo 1 > remove in its folder of sysfs and rescan"
    )]
    LinkDown {
        /// The function.
        function: String,
        /// The reset asked for.
        kind: ResetKind,
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
