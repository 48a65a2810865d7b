//! Buffers on their way back to the owner of a pool.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// A stack of numbers that any thread pushes to and one thread empties, without a lock.
///
/// Each number is on the stack at most once: it is the identity of a buffer that is given
/// up. Nothing is popped singly, so the same number coming back between two looks of a
/// pusher does no harm.
#[derive(Debug)]
pub(super) struct Returns {
    head: AtomicU32,
    /// The number below each number, in segments of doubling size that are never moved.
    links: [OnceLock<Box<[AtomicU32]>>; SEGMENTS],
}

impl Returns {
    pub(super) fn new() -> Self {
        Self { head: AtomicU32::new(NONE), links: [const { OnceLock::new() }; SEGMENTS] }
    }

    /// Makes room for `number`, before the buffer of that number is handed out.
    pub(super) fn make_room(&self, number: u32) {
        let (segment, _) = position(number);
        let size = if segment == 0 { FIRST } else { FIRST << (segment - 1) };
        self.links[segment].get_or_init(|| (0..size).map(|_| AtomicU32::new(NONE)).collect());
    }

    /// Puts a number on the stack.
    #[inline]
    pub(super) fn push(&self, number: u32) {
        let Some(link) = self.link(number) else {
            debug_assert!(false, "no room was made for {number}");
            return;
        };
        // ORDERING: Relaxed; the exchange below checks it.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // ORDERING: Relaxed; published by the exchange.
            link.store(head, Ordering::Relaxed);
            // ORDERING: Release on success pairs with the Acquire swap in `take_all`: the
            // link, and what this thread did with the buffer, come before.
            match self.head.compare_exchange_weak(head, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Empties the stack, the latest number first.
    pub(super) fn take_all(&self) -> impl Iterator<Item = u32> {
        // ORDERING: Relaxed; an empty stack is looked at again at the next call.
        let mut next = if self.head.load(Ordering::Relaxed) == NONE {
            NONE
        } else {
            // ORDERING: Acquire pairs with the Release of every push: each exchange
            // continues the release sequence of those before it.
            self.head.swap(NONE, Ordering::Acquire)
        };
        core::iter::from_fn(move || {
            let number = next;
            // ORDERING: Relaxed; ordered by the swap.
            next = self.link(number)?.load(Ordering::Relaxed);
            Some(number)
        })
    }

    #[inline]
    fn link(&self, number: u32) -> Option<&AtomicU32> {
        if number == NONE {
            return None;
        }
        let (segment, index) = position(number);
        self.links.get(segment)?.get()?.get(index)
    }
}

/// The segment of a number and its place there.
#[inline]
fn position(number: u32) -> (usize, usize) {
    // CAST: a number of 32 bits fits an index on every supported target.
    let number = number as usize;
    match (number / FIRST).checked_ilog2() {
        None => (0, number),
        // CAST: at most 22.
        Some(doubling) => (doubling as usize + 1, number - (FIRST << doubling)),
    }
}

/// "Nothing", and never the number of a buffer.
const NONE: u32 = u32::MAX;

/// The size of the first segment; the second has the same, and each further one twice the
/// one before.
const FIRST: usize = 1024;

/// Enough for all numbers of 32 bits.
const SEGMENTS: usize = 32 - 10 + 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        assert_eq!([0, 1023, 1024, 2047, 2048].map(position), [(0, 0), (0, 1023), (1, 0), (1, 1023), (2, 0)]);
        assert_eq!(position(u32::MAX - 1), (SEGMENTS - 1, (1 << 31) - 2));
    }

    #[test]
    fn the_latest_comes_first_and_everything_comes_once() {
        let returns = Returns::new();
        for number in [5, 3000, 1024] {
            returns.make_room(number);
            returns.push(number);
        }
        assert_eq!(returns.take_all().collect::<Vec<_>>(), [1024, 3000, 5]);
        assert_eq!(returns.take_all().count(), 0);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let returns = Arc::new(Returns::new());
        let pushers: Vec<_> = (0..4u32)
            .map(|thread| {
                let returns = Arc::clone(&returns);
                std::thread::spawn(move || {
                    for number in (thread..40_000).step_by(4) {
                        returns.make_room(number);
                        returns.push(number);
                    }
                })
            })
            .collect();
        let mut seen = vec![0u8; 40_000];
        let mut collect = || returns.take_all().map(|number| seen[number as usize] += 1).count();
        let mut collected = 0;
        while !pushers.iter().all(std::thread::JoinHandle::is_finished) {
            collected += collect();
        }
        collected += collect();
        assert_eq!(collected, 40_000);
        assert!(seen.iter().all(|count| *count == 1));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn two_returns_and_a_collection_lose_nothing() {
        loom::model(|| {
            let returns = Arc::new(Returns::new());
            returns.make_room(2);
            let pushers = [0, 1].map(|number| {
                let returns = Arc::clone(&returns);
                loom::thread::spawn(move || returns.push(number))
            });
            let mut seen: Vec<u32> = returns.take_all().collect();
            for pusher in pushers {
                pusher.join().unwrap();
            }
            seen.extend(returns.take_all());
            seen.sort_unstable();
            assert_eq!(seen, [0, 1]);
        });
    }
}
