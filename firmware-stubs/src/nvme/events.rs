//! Asynchronous events: what is told when the host has asked for it.

use vdk_descriptors::nvme::{
    ADMIN_QUEUE, AsyncEvent, AsyncEventConfiguration, AsyncEventType, LogPage, Status, StatusField,
};
use vdk_iommu::soft::Burst;

use super::bus::Nvme;
use crate::shell::Surroundings;

/// Events and the requests for them.
#[derive(Debug)]
pub(super) struct Events {
    /// The commands that wait for an event, oldest first.
    requests: Vec<u16>,
    /// The first event of each type that was not told yet.
    waiting: [Option<AsyncEvent>; TYPES],
    /// Types that were told and whose log page was not read since.
    masked: [bool; TYPES],
    pub(super) configuration: AsyncEventConfiguration,
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            requests: Vec::with_capacity(MOST_REQUESTS),
            waiting: [None; TYPES],
            masked: [false; TYPES],
            configuration: AsyncEventConfiguration::default(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.requests.clear();
        self.waiting = [None; TYPES];
        self.masked = [false; TYPES];
        self.configuration = AsyncEventConfiguration::default();
    }

    /// Something happened. It is told once until its log page is read.
    pub(super) fn raise(&mut self, kind: AsyncEventType, information: u8, page: LogPage) {
        let place = usize::from(kind.0);
        let masked = self.masked.get(place).copied().unwrap_or(true);
        if let Some(waiting) = self.waiting.get_mut(place).filter(|waiting| waiting.is_none() && !masked) {
            *waiting = Some(AsyncEvent::new(kind, information, page));
        }
    }

    /// A log page was read that tells of events.
    pub(super) fn clear(&mut self, page: LogPage) {
        for (masked, kind) in self.masked.iter_mut().zip(PAGES) {
            *masked &= !kind.contains(&page);
        }
    }

    /// A command waits for an event.
    pub(super) fn request(&mut self, command: u16) -> Result<(), Status> {
        if self.requests.len() == MOST_REQUESTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        }
        self.requests.push(command);
        Ok(())
    }

    /// Gives up a request; false when the command is none.
    pub(super) fn abort(&mut self, command: u16) -> bool {
        let place = self.requests.iter().position(|request| *request == command);
        place.map(|place| self.requests.remove(place)).is_some()
    }

    /// Whether there is an event, and a request for it.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        !self.requests.is_empty() && self.waiting.iter().any(Option::is_some)
    }

    fn take(&mut self) -> Option<(u16, AsyncEvent)> {
        let (place, event) =
            self.waiting.iter_mut().enumerate().find_map(|(place, event)| Some((place, event.take()?)))?;
        // PANIC: both arrays have the same length.
        self.masked[place] = true;
        Some((self.requests.remove(0), event))
    }
}

impl Nvme {
    /// Tells one event; true when something was told.
    pub(super) fn deliver_event(
        &mut self,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) -> bool {
        if !self.admin.events.is_due() {
            return false;
        }
        self.poll_head(ADMIN_QUEUE, surroundings);
        if !self.queues.completion(ADMIN_QUEUE).is_some_and(|queue| queue.has_room()) {
            return false;
        }
        let Some((command, event)) = self.admin.events.take() else { return false };
        self.post(ADMIN_QUEUE, command, StatusField::default(), event.0, burst, surroundings);
        true
    }
}

/// Types 0 to 2 have events here.
const TYPES: usize = 3;
/// Which log pages tell of which type.
const PAGES: [&[LogPage]; TYPES] = [
    &[LogPage::ERROR_INFORMATION],
    &[LogPage::SMART],
    &[LogPage::CHANGED_NAMESPACES, LogPage::FIRMWARE_SLOT],
];
/// AERL, plus one.
pub(super) const MOST_REQUESTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once_until_its_page_is_read() {
        let mut events = Events::new();
        events.raise(AsyncEventType::ERROR, 1, LogPage::ERROR_INFORMATION);
        events.raise(AsyncEventType::ERROR, 0, LogPage::ERROR_INFORMATION);
        assert!(!events.is_due());
        events.request(7).unwrap();
        events.request(8).unwrap();
        let (command, event) = events.take().unwrap();
        assert_eq!((command, event.0), (7, 0x0001_0100));
        events.raise(AsyncEventType::ERROR, 0, LogPage::ERROR_INFORMATION);
        assert!(!events.is_due());
        events.clear(LogPage::SMART);
        events.raise(AsyncEventType::ERROR, 0, LogPage::ERROR_INFORMATION);
        assert!(!events.is_due());
        events.clear(LogPage::ERROR_INFORMATION);
        events.raise(AsyncEventType::ERROR, 0, LogPage::ERROR_INFORMATION);
        assert!(events.is_due());
        assert!(events.abort(8) && !events.abort(8));
    }

    #[test]
    fn requests_have_a_limit() {
        let mut events = Events::new();
        for command in 0..4 {
            events.request(command).unwrap();
        }
        assert_eq!(events.request(4), Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    }
}
