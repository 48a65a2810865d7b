//! Interrupts as handlers on a queue.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::SourceError;
use super::delivery::{Delivery, Handler, locked};
use crate::hal::interrupt::EventFd;
use crate::kit::event_loop::{EventLoop, Registration, Watch};
use crate::kit::queue::{Cancellation, Canceller, DispatchQueue, Pulse};

/// What an interrupt handler is told. Interrupts coalesce, so a handler looks at the device
/// until there is nothing left to do, and does not count on one call for each.
pub type Interrupt = Pulse<Instant>;

/// Runs a handler on a queue when an event file is signalled. Dropping it cancels it.
///
/// However many interrupts come while the queue is busy, the handler is called once, with
/// their count and the time of the last.
#[must_use = "a source is cancelled when it is dropped"]
pub struct InterruptSource {
    inner: Arc<Inner>,
}

struct Inner {
    delivery: Arc<Delivery<Instant>>,
    registration: Mutex<Option<Registration>>,
}

impl InterruptSource {
    /// Watches `event` and calls `handler` on `queue`. The source is enabled.
    ///
    /// # Errors
    ///
    /// [`SourceError::System`].
    pub fn new(
        events: &EventLoop,
        queue: &DispatchQueue,
        event: &EventFd,
        handler: impl FnMut(Interrupt) + Send + 'static,
    ) -> Result<Self, SourceError> {
        Self::build(events, queue, event, Handler { call: Box::new(handler), after: None })
    }

    /// As [`new`](Self::new) for a level-triggered line: `unmask` runs on the queue after
    /// each call of `handler`, unless the source was cancelled meanwhile.
    ///
    /// # Errors
    ///
    /// [`SourceError::System`].
    pub fn level(
        events: &EventLoop,
        queue: &DispatchQueue,
        event: &EventFd,
        handler: impl FnMut(Interrupt) + Send + 'static,
        unmask: impl FnMut() + Send + 'static,
    ) -> Result<Self, SourceError> {
        let handler = Handler { call: Box::new(handler), after: Some(Box::new(unmask)) };
        Self::build(events, queue, event, handler)
    }

    fn build(
        events: &EventLoop,
        queue: &DispatchQueue,
        event: &EventFd,
        handler: Handler<Instant>,
    ) -> Result<Self, SourceError> {
        let delivery = Delivery::new(queue, handler);
        let registration = events
            .watch(event, Arc::clone(&delivery) as Arc<dyn Watch>)
            .map_err(|error| SourceError::System { error: error.kind() })?;
        Ok(Self { inner: Arc::new(Inner { delivery, registration: Mutex::new(Some(registration)) }) })
    }

    /// Turns delivery on or off. Interrupts that come while it is off are counted and
    /// delivered when it is on again. A handler that runs is not interrupted.
    ///
    /// # Errors
    ///
    /// [`SourceError::Cancelled`].
    pub fn set_enabled(&self, enabled: bool) -> Result<(), SourceError> {
        self.inner.delivery.set_enabled(enabled).ok_or(SourceError::Cancelled)
    }

    /// Cancels the source, for good. No call is made any more but the one that the queue is
    /// about to make or makes now; the [`Cancellation`] resolves when that has returned.
    /// From the handler itself this works the same: it is the last call.
    #[expect(clippy::must_use_candidate, reason = "a cancel need not be waited for")]
    pub fn cancel(&self) -> Cancellation {
        self.inner.cancel();
        self.inner.delivery.cancellation()
    }

    /// Cancels from elsewhere without keeping the source alive.
    pub(crate) fn canceller(&self) -> Canceller {
        Canceller::new(&self.inner, Inner::cancel)
    }
}

impl fmt::Debug for InterruptSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InterruptSource").field(self.inner.delivery.queue()).finish()
    }
}

impl Drop for InterruptSource {
    fn drop(&mut self) {
        self.inner.cancel();
    }
}

impl Inner {
    fn cancel(&self) {
        // First, so that nothing is taken from the event file any more when the rest is done.
        let registration = locked(&self.registration).take();
        drop(registration);
        self.delivery.cancel();
    }
}

impl Watch for Delivery<Instant> {
    fn readable(&self, event: &EventFd) {
        self.signal(event.take(), Instant::now());
    }
}
