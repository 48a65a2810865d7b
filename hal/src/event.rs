//! What a function tells its driver out of band.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::interrupt::EventFd;

/// Something happened to a function that is not an interrupt of the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The function reported an uncorrectable error (PCIe AER).
    Error,
    /// The kernel wants the function back: stop, unmap and close, soon.
    ReleaseRequested,
    /// The function is gone; every access fails from now on.
    Removed,
}

/// A queue of [`DeviceEvent`]s with an event file that is readable while it holds any.
///
/// Clones share the queue. An event that is already waiting is not queued twice.
#[derive(Clone, Debug)]
pub struct DeviceEvents {
    queue: Arc<Mutex<VecDeque<DeviceEvent>>>,
    event: EventFd,
}

impl DeviceEvents {
    /// An empty queue.
    ///
    /// # Errors
    ///
    /// What `eventfd(2)` reports, mostly "too many open files".
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { queue: Arc::default(), event: EventFd::new()? })
    }

    /// Adds an event and makes [`event`](Self::event) readable.
    pub fn raise(&self, event: DeviceEvent) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.contains(&event) {
            queue.push_back(event);
        }
        // With the queue still locked, so that nobody finds it empty and the file readable.
        self.event.signal(1);
    }

    /// Takes the oldest event.
    #[must_use]
    pub fn next(&self) -> Option<DeviceEvent> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let event = queue.pop_front();
        if queue.is_empty() {
            self.event.drain();
        }
        event
    }

    /// The event file to wait on.
    #[must_use]
    pub fn event(&self) -> &EventFd {
        &self.event
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "needs poll")]
    fn events_wait_once_each_in_order_and_the_file_says_so() {
        let events = DeviceEvents::new().unwrap();
        let readable = || events.event().wait(Duration::ZERO).unwrap();
        assert!(!readable() && events.next().is_none());
        let other = events.clone();
        for event in [DeviceEvent::ReleaseRequested, DeviceEvent::Error, DeviceEvent::ReleaseRequested] {
            other.raise(event);
        }
        assert!(readable());
        assert_eq!(events.next(), Some(DeviceEvent::ReleaseRequested));
        assert!(readable(), "one is left");
        assert_eq!(events.next(), Some(DeviceEvent::Error));
        assert!(!readable() && events.next().is_none());
        events.raise(DeviceEvent::Removed);
        assert_eq!(events.next(), Some(DeviceEvent::Removed));
    }
}
