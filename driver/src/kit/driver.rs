//! What a driver is.

use std::error::Error as StdError;
use std::fmt;

use thiserror::Error;

use super::context::Context;
use super::personality::Personality;
use super::session::{Session, SessionError};
use crate::hal::bar::BarError;
use crate::hal::config::ConfigError;
use crate::hal::event::DeviceEvent;
use crate::hal::interrupt::InterruptError;
use crate::hal::poll::{Deadline, TimedOut};
use crate::hal::reset::ResetError;
use crate::iommu::DomainError;

/// A driver: one instance for each function that it was started on.
///
/// Every method, and every handler that is made through [`Context`], runs on the driver's
/// own serial queue, so a driver needs no lock for its state.
///
/// # Life
///
/// `start` and `stop` come in pairs: a driver whose `start` gave `Ok` is stopped once, unless
/// it panics or is late, when the function is closed under it instead. After `stop` the kit
/// turns interrupts and bus mastering off, cancels the sources, drops the driver (which frees
/// its DMA memory) and closes the session, in this order.
pub trait Driver: Sized + Send + 'static {
    /// What it matches. Each has a name that no other registered personality has.
    const PERSONALITIES: &'static [Personality];

    /// Takes charge of a function. Bus mastering is off.
    ///
    /// # Errors
    ///
    /// Any reason not to drive the function. What was built is dropped, the sources that were
    /// made are cancelled without ever having run, and the session is closed.
    fn start(context: &Context<Self>, session: Session) -> Result<Self, StartError>;

    /// Brings the device to rest: nothing is submitted any more, and what was is finished or
    /// given up. `deadline` is measured on any [`SystemClock`](crate::hal::poll::SystemClock);
    /// when it is over, the function is closed although `stop` still runs.
    fn stop(&mut self, reason: StopReason, deadline: Deadline);

    /// Something happened to the function. For [`DeviceEvent::Removed`] and
    /// [`DeviceEvent::ReleaseRequested`] the kit calls `stop` afterwards by itself.
    fn on_device_event(&mut self, event: DeviceEvent) {
        let _ = event;
    }
}

/// Why a driver is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// Its user, or the driver itself, wants it so.
    Terminated,
    /// The function is gone: every access fails.
    Removed,
    /// The kernel wants the function back.
    ReleaseRequested,
    /// The registry is shutting down.
    Shutdown,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminated => "terminated",
            Self::Removed => "the device was removed",
            Self::ReleaseRequested => "the system asked for the device",
            Self::Shutdown => "shutdown",
        })
    }
}

/// Why a driver did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The session did not do what the driver asked for.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The device is not what the driver expects, or does not answer as it should.
    #[error("{0}")]
    Device(String),
    /// Anything else.
    #[error(transparent)]
    Other(Box<dyn StdError + Send + Sync>),
}

impl StartError {
    /// The device is not what the driver expects; say what was found and what was expected.
    #[must_use]
    pub fn device(what: impl fmt::Display) -> Self {
        Self::Device(what.to_string())
    }

    /// An error of another kind.
    #[must_use]
    pub fn other(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Other(Box::new(error))
    }
}

impl From<BarError> for StartError {
    fn from(error: BarError) -> Self {
        Self::Session(error.into())
    }
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Session(error.into())
    }
}

impl From<InterruptError> for StartError {
    fn from(error: InterruptError) -> Self {
        Self::Session(error.into())
    }
}

impl From<ResetError> for StartError {
    fn from(error: ResetError) -> Self {
        Self::Session(error.into())
    }
}

impl From<DomainError> for StartError {
    fn from(error: DomainError) -> Self {
        Self::other(error)
    }
}

impl From<TimedOut> for StartError {
    fn from(error: TimedOut) -> Self {
        Self::other(error)
    }
}

impl From<std::io::Error> for StartError {
    fn from(error: std::io::Error) -> Self {
        Self::other(error)
    }
}
