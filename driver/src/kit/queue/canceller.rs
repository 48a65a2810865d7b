//! Cancelling without keeping alive.

use std::sync::Arc;

/// Cancels something, if it is still there, without waiting.
pub(crate) struct Canceller {
    cancel: Box<dyn Fn() + Send>,
    is_alive: Box<dyn Fn() -> bool + Send>,
}

impl Canceller {
    /// Calls `cancel` with the target, which is not kept alive.
    pub(crate) fn new<T: Send + Sync + 'static>(target: &Arc<T>, cancel: fn(&T)) -> Self {
        let (called, looked_at) = (Arc::downgrade(target), Arc::downgrade(target));
        Self {
            cancel: Box::new(move || {
                if let Some(target) = called.upgrade() {
                    cancel(&target);
                }
            }),
            is_alive: Box::new(move || looked_at.strong_count() > 0),
        }
    }

    pub(crate) fn cancel(&self) {
        (self.cancel)();
    }

    /// Whether there is something to cancel.
    pub(crate) fn is_alive(&self) -> bool {
        (self.is_alive)()
    }
}
