//! What a driver is given beside its session.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::driver::{Driver, StopReason};
use super::event_loop::EventLoop;
use super::instance::Instance;
use super::personality::Personality;
use super::queue::{Canceller, DispatchQueue, Rejected};
use super::session::{InterruptVector, Session};
use super::source::{Expiry, Interrupt, InterruptSource, SourceError, TimerSource};
use crate::hal::interrupt::InterruptKind;

/// The kit as a driver sees it: its queue, and sources whose handlers get the driver.
/// It may be kept and cloned.
pub struct Context<D: Driver> {
    pub(super) instance: Weak<Instance<D>>,
    pub(super) queue: DispatchQueue,
    pub(super) events: EventLoop,
    pub(super) personality: Personality,
    pub(super) sources: Arc<Sources>,
}

/// What has to be cancelled when the driver ends, however it ends.
pub(super) struct Sources {
    /// `None` when the driver has ended: what comes later is cancelled at once.
    cancellers: Mutex<Option<Vec<Canceller>>>,
}

impl Sources {
    pub(super) fn new() -> Self {
        Self { cancellers: Mutex::new(Some(Vec::new())) }
    }

    fn add(&self, cancel: Canceller) {
        let mut cancellers = self.cancellers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cancellers) = &mut *cancellers {
            if cancellers.len() == cancellers.capacity() {
                // Instead of growing for a driver that makes sources and drops them, for ever.
                cancellers.retain(Canceller::is_alive);
            }
            cancellers.push(cancel);
            return;
        }
        drop(cancellers);
        cancel.cancel();
    }

    pub(super) fn cancel(&self) {
        let cancellers = self.cancellers.lock().unwrap_or_else(PoisonError::into_inner).take();
        for cancel in cancellers.into_iter().flatten() {
            cancel.cancel();
        }
    }
}

impl<D: Driver> Context<D> {
    /// The driver's queue.
    #[must_use]
    pub fn queue(&self) -> &DispatchQueue {
        &self.queue
    }

    /// The event loop, for sources with other queues or handlers.
    #[must_use]
    pub fn events(&self) -> &EventLoop {
        &self.events
    }

    /// The personality that matched.
    #[must_use]
    pub fn personality(&self) -> &Personality {
        &self.personality
    }

    /// Another serial queue. A handler that panics there fails the driver too; the queue is
    /// cancelled when the driver ends.
    ///
    /// # Errors
    ///
    /// What the system reports when it cannot start a thread.
    pub fn new_queue(&self, name: &str) -> io::Result<DispatchQueue> {
        let instance = Weak::clone(&self.instance);
        let queue = DispatchQueue::with_end(name, DispatchQueue::DEFAULT_CAPACITY, move |end| {
            if let Some(instance) = instance.upgrade() {
                instance.other_queue_ended(end);
            }
        })?;
        self.sources.add(queue.canceller());
        Ok(queue)
    }

    /// Calls `handler` on the driver's queue when a vector fires. An INTx line is unmasked
    /// after each call.
    ///
    /// # Errors
    ///
    /// [`SourceError::System`].
    pub fn on_interrupt(
        &self,
        session: &Session,
        vector: &InterruptVector,
        mut handler: impl FnMut(&mut D, Interrupt) + Send + 'static,
    ) -> Result<InterruptSource, SourceError> {
        let instance = Weak::clone(&self.instance);
        let call = move |interrupt| with_driver(&instance, |driver| handler(driver, interrupt));
        let source = if vector.kind == InterruptKind::Intx {
            let unmask = session.unmasker(vector.kind, vector.index);
            InterruptSource::level(&self.events, &self.queue, &vector.event, call, unmask)?
        } else {
            InterruptSource::new(&self.events, &self.queue, &vector.event, call)?
        };
        self.sources.add(source.canceller());
        Ok(source)
    }

    /// A timer that calls `handler` on the driver's queue.
    pub fn timer(&self, mut handler: impl FnMut(&mut D, Expiry) + Send + 'static) -> TimerSource {
        let instance = Weak::clone(&self.instance);
        let call = move |expiry| with_driver(&instance, |driver| handler(driver, expiry));
        let source = TimerSource::new(&self.events, &self.queue, call);
        self.sources.add(source.canceller());
        source
    }

    /// Calls `handler` on the driver's queue, behind what is queued there. Not at all when
    /// the driver does not start or ends before.
    ///
    /// # Errors
    ///
    /// [`Rejected`]: the driver has ended, or too much is queued.
    pub fn dispatch(&self, handler: impl FnOnce(&mut D) + Send + 'static) -> Result<(), Rejected> {
        let instance = Weak::clone(&self.instance);
        self.queue.dispatch(move || with_driver(&instance, handler))
    }

    /// Has the driver stopped, soon.
    pub fn terminate(&self) {
        if let Some(instance) = self.instance.upgrade() {
            instance.request_stop(StopReason::Terminated);
        }
    }
}

impl<D: Driver> Clone for Context<D> {
    fn clone(&self) -> Self {
        Self {
            instance: Weak::clone(&self.instance),
            queue: self.queue.clone(),
            events: self.events.clone(),
            personality: self.personality,
            sources: Arc::clone(&self.sources),
        }
    }
}

impl<D: Driver> fmt::Debug for Context<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.personality.name()).finish()
    }
}

fn with_driver<D: Driver>(instance: &Weak<Instance<D>>, call: impl FnOnce(&mut D)) {
    if let Some(instance) = instance.upgrade() {
        instance.with_driver(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_not_kept_to_be_cancelled() {
        let sources = Sources::new();
        let kept = DispatchQueue::new("kept").unwrap();
        sources.add(kept.canceller());
        for _ in 0..100 {
            let dropped = Canceller::new(&Arc::new(()), |()| panic!("cancelled after its end"));
            sources.add(dropped);
        }
        let held = sources.cancellers.lock().unwrap().as_ref().map(Vec::len);
        assert!(held.is_some_and(|held| held <= 8), "{held:?}");
        sources.cancel();
        assert!(kept.is_cancelled());
    }
}
