//! Queues: where the controller is in each.

use vdk_descriptors::nvme::{ADMIN_QUEUE, Status};
use vdk_hal::address::Iova;

/// A submission queue. The host moves the tail, the controller the head.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubmissionQueue {
    pub(super) id: u16,
    base: u64,
    pub(super) size: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The completion queue that it answers in.
    pub(super) completion: u16,
}

impl SubmissionQueue {
    /// `size` is the number of entries.
    pub(super) fn new(id: u16, base: u64, size: u32, completion: u16) -> Self {
        Self { id, base, size, head: 0, tail: 0, completion }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Where the next command lies.
    #[inline]
    pub(super) fn next_entry(&self) -> Iova {
        Iova::new(self.base.wrapping_add(64 * u64::from(self.head)))
    }

    /// The next command was read.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.head += 1;
        if self.head == self.size {
            self.head = 0;
        }
    }
}

/// A completion queue. The controller moves the tail, the host the head.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompletionQueue {
    pub(super) id: u16,
    base: u64,
    pub(super) size: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The phase of this round.
    pub(super) phase: bool,
    pub(super) interrupts: bool,
    pub(super) vector: u16,
    /// Entries that are kept for completions that come later.
    pub(super) reserved: u32,
    /// Entries were posted since the last interrupt.
    pub(super) fresh: bool,
}

impl CompletionQueue {
    /// `size` is the number of entries.
    pub(super) fn new(id: u16, base: u64, size: u32, interrupt: Option<u16>) -> Self {
        Self {
            id,
            base,
            size,
            head: 0,
            tail: 0,
            phase: true,
            interrupts: interrupt.is_some(),
            vector: interrupt.unwrap_or(0),
            reserved: 0,
            fresh: false,
        }
    }

    /// How many entries the host has not consumed yet.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        distance(self.head, self.tail, self.size)
    }

    /// Whether one more can be posted.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.outstanding() + self.reserved + 1 < self.size
    }

    /// Where the next entry goes.
    #[inline]
    pub(super) fn next_entry(&self) -> Iova {
        Iova::new(self.base.wrapping_add(16 * u64::from(self.tail)))
    }

    /// An entry was posted.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.tail += 1;
        self.fresh = true;
        if self.tail == self.size {
            self.tail = 0;
            self.phase = !self.phase;
        }
    }

    /// The host wrote its head; false when it has consumed what was never posted.
    pub(super) fn consume(&mut self, head: u32) -> bool {
        let right = head < self.size && distance(self.head, head, self.size) <= self.outstanding();
        if right {
            self.head = head;
        }
        right
    }
}

/// From one place in a ring of `size` entries forward to another.
#[inline]
fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}

/// All queues.
#[derive(Debug)]
pub(super) struct Queues {
    submission: Vec<Option<SubmissionQueue>>,
    completion: Vec<Option<CompletionQueue>>,
    /// The submission queues that there are, in the order of their turns.
    active: Vec<u16>,
    turn: usize,
}

impl Queues {
    /// Room for `pairs` pairs, the admin queues among them.
    pub(super) fn new(pairs: u16) -> Self {
        let pairs = usize::from(pairs);
        Self {
            submission: vec![None; pairs],
            completion: vec![None; pairs],
            active: Vec::with_capacity(pairs),
            turn: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.submission.fill(None);
        self.completion.fill(None);
        self.active.clear();
        self.turn = 0;
    }

    #[inline]
    pub(super) fn submission(&mut self, id: u16) -> Option<&mut SubmissionQueue> {
        self.submission.get_mut(usize::from(id))?.as_mut()
    }

    #[inline]
    pub(super) fn completion(&mut self, id: u16) -> Option<&mut CompletionQueue> {
        self.completion.get_mut(usize::from(id))?.as_mut()
    }

    /// A submission queue and where it answers.
    #[inline]
    pub(super) fn pair(&mut self, id: u16) -> Option<(&mut SubmissionQueue, &mut CompletionQueue)> {
        let submission = self.submission.get_mut(usize::from(id))?.as_mut()?;
        let completion = self.completion.get_mut(usize::from(submission.completion))?.as_mut()?;
        Some((submission, completion))
    }

    pub(super) fn completions(&mut self) -> impl Iterator<Item = &mut CompletionQueue> {
        self.completion.iter_mut().flatten()
    }

    /// Whether there is a queue beside the admin queues.
    pub(super) fn has_io(&self) -> bool {
        let io = |id: usize| id != usize::from(ADMIN_QUEUE);
        self.completion.iter().enumerate().any(|(id, queue)| io(id) && queue.is_some())
    }

    /// The submission queues that there are.
    #[inline]
    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    /// The next submission queue whose turn it is.
    #[inline]
    pub(super) fn take_turn(&mut self) -> Option<u16> {
        let id = self.active.get(self.turn).copied();
        self.turn = if self.turn + 1 < self.active.len() { self.turn + 1 } else { 0 };
        id.or_else(|| self.active.first().copied())
    }

    /// The place for a new queue that may have the number `id`.
    fn vacancy<Queue>(queues: &mut [Option<Queue>], id: u16) -> Result<&mut Option<Queue>, Status> {
        match queues.get_mut(usize::from(id)) {
            Some(place) if place.is_none() => Ok(place),
            _ => Err(Status::INVALID_QUEUE_ID),
        }
    }

    pub(super) fn is_free_submission(&mut self, id: u16) -> Result<(), Status> {
        Self::vacancy(&mut self.submission, id).map(|_| ())
    }

    pub(super) fn is_free_completion(&mut self, id: u16) -> Result<(), Status> {
        Self::vacancy(&mut self.completion, id).map(|_| ())
    }

    pub(super) fn add_completion(&mut self, queue: CompletionQueue) -> Result<(), Status> {
        *Self::vacancy(&mut self.completion, queue.id)? = Some(queue);
        Ok(())
    }

    pub(super) fn add_submission(&mut self, queue: SubmissionQueue) -> Result<(), Status> {
        if self.completion(queue.completion).is_none() {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        }
        *Self::vacancy(&mut self.submission, queue.id)? = Some(queue);
        self.active.push(queue.id);
        Ok(())
    }

    pub(super) fn remove_submission(&mut self, id: u16) -> Result<(), Status> {
        let place = self.submission.get_mut(usize::from(id)).filter(|_| id != ADMIN_QUEUE);
        place.and_then(Option::take).ok_or(Status::INVALID_QUEUE_ID)?;
        self.active.retain(|active| *active != id);
        Ok(())
    }

    pub(super) fn remove_completion(&mut self, id: u16) -> Result<(), Status> {
        if id == ADMIN_QUEUE || self.completion(id).is_none() {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if self.submission.iter().flatten().any(|queue| queue.completion == id) {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        // PANIC: a queue with that number was just found.
        self.completion[usize::from(id)] = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_keeps_one_entry_free_and_turns_its_phase() {
        let mut queue = CompletionQueue::new(1, 0x1000, 3, None);
        assert!(queue.has_room() && queue.phase);
        queue.advance();
        queue.advance();
        assert!(!queue.has_room());
        assert!(!queue.consume(3) && queue.consume(2) && !queue.consume(0));
        assert!(queue.has_room());
        queue.advance();
        assert!(!queue.phase);
        assert_eq!((queue.next_entry(), queue.outstanding()), (Iova::new(0x1000), 1));
        queue.reserved = 1;
        assert!(!queue.has_room());
    }

    #[test]
    fn queues_take_turns_and_are_deleted_in_order() {
        let mut queues = Queues::new(3);
        for id in 0..3 {
            queues.add_completion(CompletionQueue::new(id, 0, 2, None)).unwrap();
            queues.add_submission(SubmissionQueue::new(id, 0, 2, id)).unwrap();
        }
        assert_eq!([queues.take_turn(), queues.take_turn(), queues.take_turn()], [Some(0), Some(1), Some(2)]);
        assert_eq!(queues.take_turn(), Some(0));
        assert_eq!(queues.remove_completion(1), Err(Status::INVALID_QUEUE_DELETION));
        assert_eq!(queues.remove_submission(0), Err(Status::INVALID_QUEUE_ID));
        assert_eq!(queues.remove_submission(1), Ok(()));
        assert_eq!(queues.remove_submission(1), Err(Status::INVALID_QUEUE_ID));
        assert_eq!(queues.remove_completion(1), Ok(()));
        assert_eq!(
            queues.add_submission(SubmissionQueue::new(1, 0, 2, 1)),
            Err(Status::COMPLETION_QUEUE_INVALID)
        );
        assert_eq!(queues.is_free_completion(3), Err(Status::INVALID_QUEUE_ID));
        assert!(queues.has_io());
    }
}
