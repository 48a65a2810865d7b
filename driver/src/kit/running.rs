//! The handle to a driver that was started.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::driver::{Driver, StopReason};
use super::instance::Instance;
use super::queue::RunError;
use super::state::DriverState;

/// A driver that was started. Clones share it, and the registry that started it has one; when
/// the last is dropped the driver is terminated.
pub struct Running<D: Driver> {
    instance: Arc<Instance<D>>,
    lease: Arc<Lease>,
}

/// Terminates a driver when nobody wants it any more.
pub(super) struct Lease {
    terminate: Box<dyn Fn() + Send + Sync>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        (self.terminate)();
    }
}

impl<D: Driver> Running<D> {
    pub(super) fn new(instance: Arc<Instance<D>>) -> Self {
        let terminated = Arc::clone(&instance);
        let terminate = Box::new(move || terminated.request_stop(StopReason::Terminated));
        Self { instance, lease: Arc::new(Lease { terminate }) }
    }

    /// What a person calls the function.
    #[must_use]
    pub fn function(&self) -> &str {
        self.instance.function()
    }

    /// The name of the personality that matched.
    #[must_use]
    pub fn personality(&self) -> &'static str {
        self.instance.personality().name()
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> DriverState {
        self.instance.state()
    }

    /// Runs `call` with the driver on its queue and gives the result, within
    /// [`Allowances::call`](super::Allowances::call).
    ///
    /// # Errors
    ///
    /// - [`WithError::Ended`]: the driver is not there any more;
    /// - [`WithError::Run`]: from a handler of the driver's own queue, or when the queue is
    ///   full, or `call` panicked, which fails the driver, or with [`RunError::TimedOut`] when
    ///   a handler before it, or it itself, takes too long.
    pub fn with<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut D) -> R + Send + 'static,
    ) -> Result<R, WithError> {
        let ended = || WithError::Ended {
            personality: self.personality(),
            function: self.function().to_owned(),
            state: self.state(),
        };
        match self.instance.run_with(call) {
            Ok(Some(result)) => Ok(result),
            Ok(None) | Err(RunError::Cancelled { .. }) => Err(ended()),
            Err(RunError::Refused { reason: super::queue::Refusal::Cancelled, .. }) => Err(ended()),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the driver stopped, soon. A second call is harmless.
    pub fn terminate(&self) {
        self.instance.request_stop(StopReason::Terminated);
    }

    /// Waits until the state is final, `timeout` at most; gives the state then.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> DriverState {
        self.instance.wait(timeout, DriverState::is_final)
    }

    /// Terminates the driver and waits for the end, which its deadline bounds.
    #[must_use]
    pub fn stop(&self) -> DriverState {
        self.terminate();
        self.wait(self.instance.allowances().stop.saturating_add(CLOSE_ALLOWANCE))
    }

    pub(super) fn request_stop(&self, reason: StopReason) {
        self.instance.request_stop(reason);
    }
}

impl<D: Driver> Clone for Running<D> {
    fn clone(&self) -> Self {
        Self { instance: Arc::clone(&self.instance), lease: Arc::clone(&self.lease) }
    }
}

impl<D: Driver> fmt::Debug for Running<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({} on {}: {})", self.personality(), self.function(), self.state())
    }
}

/// Why there is no result from a driver.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WithError {
    /// The driver is not there any more.
    #[error("{personality} on {function} is {state}")]
    Ended {
        /// The driver's personality.
        personality: &'static str,
        /// The function.
        function: String,
        /// How it is doing.
        state: DriverState,
    },
    /// The queue has no result.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// What closing a function may take after the driver's time is over.
pub(super) const CLOSE_ALLOWANCE: Duration = Duration::from_secs(5);
