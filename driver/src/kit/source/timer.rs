//! One-shot timers as handlers on a queue.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::SourceError;
use super::delivery::{Delivery, Handler, locked};
use crate::kit::event_loop::{Alarm, EventLoop, TimerSlot};
use crate::kit::queue::{Cancellation, Canceller, DispatchQueue};

/// What a timer handler is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Expiry {
    /// The time that was asked for.
    pub deadline: Instant,
    /// When it was found to have passed; never earlier.
    pub at: Instant,
}

/// Runs a handler on a queue once, at a time. Dropping it cancels it.
#[must_use = "a source is cancelled when it is dropped"]
pub struct TimerSource {
    inner: Arc<Inner>,
}

struct Inner {
    delivery: Arc<Delivery<Expiry>>,
    timer: Mutex<Timer>,
}

struct Timer {
    slot: TimerSlot,
    /// What it is armed for; an expiry of anything else is stale.
    armed: Option<Instant>,
}

impl TimerSource {
    /// A timer that calls `handler` on `queue`; enabled, and armed for nothing.
    pub fn new(
        events: &EventLoop,
        queue: &DispatchQueue,
        mut handler: impl FnMut(Expiry) + Send + 'static,
    ) -> Self {
        let handler = Handler { call: Box::new(move |pulse| handler(pulse.at)), after: None };
        let delivery = Delivery::new(queue, handler);
        let inner = Arc::new_cyclic(|this: &Weak<Inner>| {
            let alarm = Weak::clone(this) as Weak<dyn Alarm>;
            Inner { delivery, timer: Mutex::new(Timer { slot: events.timer(alarm), armed: None }) }
        });
        Self { inner }
    }

    /// Calls the handler once, not before `deadline`, and not later than `leeway` after it as
    /// far as it is up to the kit: timers whose times overlap share a wake-up. It replaces
    /// what the timer was armed for, also when that has passed but not been handled.
    ///
    /// # Errors
    ///
    /// [`SourceError::Cancelled`].
    pub fn wake_at(&self, deadline: Instant, leeway: Duration) -> Result<(), SourceError> {
        let mut timer = locked(&self.inner.timer);
        if self.inner.delivery.is_cancelled() {
            return Err(SourceError::Cancelled);
        }
        self.inner.delivery.clear();
        timer.armed = Some(deadline);
        timer.slot.arm(deadline, leeway);
        Ok(())
    }

    /// Forgets what the timer was armed for. It can be armed again.
    pub fn disarm(&self) {
        let mut timer = locked(&self.inner.timer);
        timer.armed = None;
        timer.slot.disarm();
        self.inner.delivery.clear();
    }

    /// Turns delivery on or off. An expiry that comes while it is off is delivered when it
    /// is on again.
    ///
    /// # Errors
    ///
    /// [`SourceError::Cancelled`].
    pub fn set_enabled(&self, enabled: bool) -> Result<(), SourceError> {
        self.inner.delivery.set_enabled(enabled).ok_or(SourceError::Cancelled)
    }

    /// Cancels the timer, for good, as [`InterruptSource::cancel`](super::InterruptSource::cancel).
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

impl fmt::Debug for TimerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimerSource").field(self.inner.delivery.queue()).finish()
    }
}

impl Drop for TimerSource {
    fn drop(&mut self) {
        self.inner.cancel();
    }
}

impl Inner {
    fn cancel(&self) {
        let mut timer = locked(&self.timer);
        timer.armed = None;
        timer.slot.disarm();
        drop(timer);
        self.delivery.cancel();
    }
}

impl Alarm for Inner {
    fn due(self: Arc<Self>, deadline: Instant) {
        let mut timer = locked(&self.timer);
        if timer.armed == Some(deadline) {
            timer.armed = None;
            self.delivery.signal(1, Expiry { deadline, at: Instant::now() });
        }
    }
}
