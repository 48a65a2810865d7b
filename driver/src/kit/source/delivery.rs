//! From pulses to calls of a handler: what interrupts and timers share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::kit::queue::{Cancellation, Deliver, DispatchQueue, Pulse, Resolve, SourceCore};

/// A handler, the queue that it runs on, and the pulses that it has not seen.
pub(super) struct Delivery<S> {
    core: SourceCore<S>,
    queue: DispatchQueue,
    this: Weak<Self>,
    /// Not there while it runs, and not after a cancel: what it owns is dropped then.
    handler: Mutex<Option<Handler<S>>>,
}

/// What is called.
pub(super) struct Handler<S> {
    pub(super) call: Box<dyn FnMut(Pulse<S>) + Send>,
    /// Called after each `call` unless the source was cancelled meanwhile.
    pub(super) after: Option<Box<dyn FnMut() + Send>>,
}

impl<S: Copy + Send + 'static> Delivery<S> {
    pub(super) fn new(queue: &DispatchQueue, handler: Handler<S>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            core: SourceCore::new(true),
            queue: queue.clone(),
            this: Weak::clone(this),
            handler: Mutex::new(Some(handler)),
        })
    }

    pub(super) fn queue(&self) -> &DispatchQueue {
        &self.queue
    }

    pub(super) fn signal(&self, count: u64, at: S) {
        if self.core.signal(count, at) {
            self.queue_up();
        }
    }

    /// Forgets the pulses that the handler has not seen.
    pub(super) fn clear(&self) {
        self.core.clear();
    }

    /// `None` when it is cancelled.
    pub(super) fn set_enabled(&self, enabled: bool) -> Option<()> {
        if self.core.set_enabled(enabled)? {
            self.queue_up();
        }
        Some(())
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.core.is_cancelled()
    }

    pub(super) fn cancel(&self) {
        self.core.cancel();
        // While the handler runs it is not in its place; `deliver` drops it then.
        let handler = locked(&self.handler).take();
        drop(handler);
    }

    pub(super) fn cancellation(self: &Arc<Self>) -> Cancellation {
        Cancellation::new(Arc::clone(self) as Arc<dyn Resolve>)
    }

    fn queue_up(&self) {
        if let Some(this) = self.this.upgrade() {
            self.queue.dispatch_source(this);
        }
    }
}

impl<S: Copy + Send + 'static> Deliver for Delivery<S> {
    fn deliver(self: Arc<Self>) {
        let Some(pulse) = self.core.begin() else { return };
        // Ends the call also when the handler panics, so that no cancel waits for ever.
        let call = Call { delivery: &self };
        let handler = locked(&self.handler).take();
        if let Some(mut handler) = handler {
            (handler.call)(pulse);
            if let Some(after) = handler.after.as_mut().filter(|_| !self.core.is_cancelled()) {
                after();
            }
            let mut place = locked(&self.handler);
            // Under the lock: a cancel from now on finds the handler in its place.
            if !self.core.is_cancelled() {
                *place = Some(handler);
            }
        }
        drop(call);
    }
}

struct Call<'a, S: Copy + Send + 'static> {
    delivery: &'a Delivery<S>,
}

impl<S: Copy + Send + 'static> Drop for Call<'_, S> {
    fn drop(&mut self) {
        if self.delivery.core.end() {
            self.delivery.queue_up();
        }
    }
}

impl<S: Copy + Send + 'static> Resolve for Delivery<S> {
    fn inside(&self) -> bool {
        self.queue.on_queue() && !self.core.wait_idle(Duration::ZERO)
    }

    fn wait(&self, timeout: Duration) -> bool {
        self.core.wait_idle(timeout)
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
