//! What one queue pair sees of its endpoint.

use std::collections::VecDeque;

use super::{CompletionQueueId, KeyTable};
use crate::roce::completion::{Completion, Side};
use crate::roce::host::{Event, Host};
use crate::roce::memory::{Atomic, Memory, MemoryError, ProtectionDomain, Reach};

/// What happened to one queue pair and nobody asked for yet, in its order. There is room for each
/// kind once, so that nothing needs to be left out: what waits already is not said twice.
#[derive(Debug, Default)]
pub(super) struct Pending([Option<Event>; Event::KINDS]);

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    fn add(&mut self, event: Event) {
        if self.0.contains(&Some(event)) {
            return;
        }
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(event);
        }
    }

    /// The oldest.
    pub(super) fn take(&mut self) -> Option<Event> {
        let oldest = self.0.first_mut()?.take();
        self.0.rotate_left(1);
        oldest
    }
}

/// The endpoint as one of its queue pairs sees it.
pub(super) struct View<'a> {
    pub(super) memory: &'a mut KeyTable,
    pub(super) completions: &'a mut [VecDeque<Completion>],
    pub(super) eventful: &'a mut VecDeque<usize>,
    pub(super) pending: &'a mut Pending,
    /// The place of the queue pair.
    pub(super) slot: usize,
    pub(super) send: CompletionQueueId,
    pub(super) receive: CompletionQueueId,
}

impl Host for View<'_> {
    #[inline]
    fn complete(&mut self, side: Side, completion: Completion) {
        let queue = match side {
            Side::Send => self.send,
            Side::Receive => self.receive,
        };
        if let Some(queue) = self.completions.get_mut(queue.0) {
            queue.push_back(completion);
        }
    }

    fn event(&mut self, event: Event) {
        if self.pending.is_empty() {
            self.eventful.push_back(self.slot);
        }
        self.pending.add(event);
    }
}

impl Memory for View<'_> {
    #[inline]
    fn check(&self, reach: &Reach) -> Result<(), MemoryError> {
        self.memory.check(reach)
    }

    #[inline]
    fn read(&mut self, reach: &Reach, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(reach, bytes)
    }

    #[inline]
    fn write(&mut self, reach: &Reach, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(reach, bytes)
    }

    fn atomic(&mut self, reach: &Reach, operation: Atomic) -> Result<u64, MemoryError> {
        self.memory.atomic(reach, operation)
    }

    fn invalidate(&mut self, domain: ProtectionDomain, key: u32) -> Result<(), MemoryError> {
        self.memory.invalidate(domain, key)
    }
}
