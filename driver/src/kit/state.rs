//! How a started driver is doing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::driver::{StartError, StopReason};
use super::session::SessionError;

/// The state of a driver on one function.
#[derive(Clone, Debug)]
pub enum DriverState {
    /// `start` has not returned.
    Starting,
    /// `start` gave a driver, and nothing has ended it.
    Running,
    /// It has been told to stop.
    Stopping(StopReason),
    /// It has stopped: the driver is dropped and the function closed.
    Stopped(StopReason),
    /// It ended otherwise. The function is closed.
    Failed(Failure),
}

impl DriverState {
    /// Whether this is the end: the function is closed and the state does not change.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::Failed(_))
    }
}

impl fmt::Display for DriverState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Running => f.write_str("running"),
            Self::Stopping(reason) => write!(f, "stopping: {reason}"),
            Self::Stopped(reason) => write!(f, "stopped: {reason}"),
            Self::Failed(failure) => write!(f, "failed: {failure}"),
        }
    }
}

/// Why a driver failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The function was not opened, so `start` was not called.
    #[error("the function was not opened: {0}")]
    Open(SessionError),
    /// The system has no thread for the driver's queue, or no event file.
    #[error("the system did not provide for the driver: {error}")]
    System {
        /// What the system said.
        error: std::io::ErrorKind,
    },
    /// `start` gave an error.
    #[error("start failed: {0}")]
    Start(Arc<StartError>),
    /// `start` did not return in time. The function was closed under it.
    #[error("start did not return within {allowed:?}; the function was closed")]
    StartOverrun {
        /// How long it was allowed to take.
        allowed: Duration,
    },
    /// `stop`, with what was queued before it, did not return in time. The function was
    /// closed under it.
    #[error("stop ({reason}) did not return within {allowed:?}; the function was closed")]
    StopOverrun {
        /// Why it was to stop.
        reason: StopReason,
        /// How long it was allowed to take.
        allowed: Duration,
    },
    /// A method or a handler panicked. The function was closed at once.
    #[error("the driver panicked: {message}; the function was closed")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// The driver cancelled its own queue, on which it would have been stopped. The function
    /// was closed.
    #[error("the driver cancelled its own queue; the function was closed")]
    QueueCancelled,
}
