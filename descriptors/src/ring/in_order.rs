//! Owners of work that completes in the order in which it was posted.

use std::collections::VecDeque;

use super::completions::{Cookie, Full};

/// Work in flight that completes in order, each piece after a number of ring entries.
///
/// # Ownership
///
/// [`post`](Self::post) takes an owner, which comes back once: from [`next`](Self::next)
/// when all its entries are [completed](Self::complete), or from [`reset`](Self::reset).
///
/// # Invariants
///
/// The ends ascend, the last one is `posted`, and `completed` is not above it.
#[derive(Debug)]
pub struct InOrder<T> {
    work: VecDeque<Work<T>>,
    limit: usize,
    posted: u64,
    completed: u64,
    sequence: u32,
    generation: u32,
}

#[derive(Debug)]
struct Work<T> {
    end: u64,
    cookie: Cookie,
    owner: T,
}

impl<T> InOrder<T> {
    /// Room for `limit` owners: no more than a ring has usable slots.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        // INVARIANT: empty.
        Self {
            work: VecDeque::with_capacity(limit),
            limit,
            posted: 0,
            completed: 0,
            sequence: 0,
            generation: 0,
        }
    }

    /// How many owners are in flight, those included that [`next`](Self::next) would give
    /// back now.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.work.len()
    }

    /// Takes an owner whose work has `entries` entries of the ring, behind all that was
    /// posted before.
    ///
    /// # Errors
    ///
    /// [`Full`] with the owner.
    #[inline]
    pub fn post(&mut self, entries: u32, owner: T) -> Result<Cookie, Full<T>> {
        if self.work.len() == self.limit {
            return Err(Full(owner));
        }
        // INVARIANT: the new end is not below the last one.
        self.posted += u64::from(entries);
        let cookie = Cookie { slot: self.sequence, generation: self.generation };
        self.sequence = self.sequence.wrapping_add(1);
        self.work.push_back(Work { end: self.posted, cookie, owner });
        Ok(cookie)
    }

    /// The next `entries` entries of the ring are completed. `false`, and nothing has
    /// changed, when fewer are in flight.
    #[inline]
    #[must_use = "`false` means that the completion cannot be true"]
    pub fn complete(&mut self, entries: u32) -> bool {
        let possible = u64::from(entries) <= self.posted - self.completed;
        if possible {
            self.completed += u64::from(entries);
        }
        possible
    }

    /// The next owner whose work is completed.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "work is posted between the calls")]
    pub fn next(&mut self) -> Option<(Cookie, T)> {
        if self.work.front()?.end > self.completed {
            return None;
        }
        self.work.pop_front().map(|work| (work.cookie, work.owner))
    }

    /// The oldest owner that is not completed, such as the one at fault when a device
    /// halts; what is completed is to be taken with [`next`](Self::next) before.
    #[must_use]
    pub fn oldest(&self) -> Option<(Cookie, &T)> {
        self.work.front().map(|work| (work.cookie, &work.owner))
    }

    /// Gives every owner to `take`, oldest first, and begins anew: the device was reset.
    pub fn reset(&mut self, mut take: impl FnMut(Cookie, T)) {
        // INVARIANT: empty at the end, whatever `take` does: each owner is removed before.
        (self.posted, self.completed) = (0, 0);
        self.generation = self.generation.wrapping_add(1);
        while let Some(work) = self.work.pop_front() {
            take(work.cookie, work.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_come_back_when_their_last_entry_is_completed() {
        let mut work = InOrder::new(3);
        let a = work.post(2, "a").unwrap();
        let b = work.post(3, "b").unwrap();
        assert!(work.complete(1));
        assert_eq!(work.next(), None);
        assert!(!work.complete(5), "only four more are in flight");
        assert!(work.complete(3));
        assert_eq!(work.next(), Some((a, "a")));
        assert_eq!(work.next(), None);
        assert_eq!(work.oldest(), Some((b, &"b")));
        assert!(work.complete(1));
        assert_eq!(work.next(), Some((b, "b")));
        assert_eq!((work.next(), work.in_flight()), (None, 0));
        assert!(!work.complete(1));
    }

    #[test]
    fn a_full_queue_gives_the_owner_back_and_never_grows() {
        let mut work = InOrder::new(2);
        let capacity = work.work.capacity();
        for round in 0..1000u32 {
            work.post(1, round).unwrap();
            work.post(1, round).unwrap();
            assert_eq!(work.post(1, round), Err(Full(round)));
            assert!(work.complete(2));
            assert!(work.next().is_some() && work.next().is_some());
        }
        assert_eq!(work.work.capacity(), capacity);
    }

    #[test]
    fn a_reset_gives_every_owner_back_in_order() {
        let mut work = InOrder::new(4);
        let before = work.post(1, 1).unwrap();
        work.post(1, 2).unwrap();
        assert!(work.complete(1));
        let mut returned = Vec::new();
        work.reset(|_, owner| returned.push(owner));
        assert_eq!(returned, [1, 2]);
        assert_eq!(work.in_flight(), 0);
        assert!(!work.complete(1), "late completions find nothing");
        let after = work.post(1, 3).unwrap();
        assert_ne!(before.generation(), after.generation());
    }
}
