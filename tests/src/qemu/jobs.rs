//! Several things at a time.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Does `work` on every item, on at most `jobs` of them at a time, beginning with the first.
///
/// `ended` is given what came of each, one after the other, in the order in which they end.
pub fn in_parallel<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    jobs: NonZeroUsize,
    work: impl Fn(T) -> R + Sync,
    mut ended: impl FnMut(R),
) {
    let waiting: Mutex<VecDeque<T>> = Mutex::new(items.into_iter().collect());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.get() {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(item) = next() {
                    // It is received until the last sender is gone.
                    let _ = sender.send(work(item));
                }
            });
        }
        drop(sender);
        receiver.iter().for_each(&mut ended);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn jobs(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn one_job_does_the_items_in_their_order() {
        let mut ended = Vec::new();
        in_parallel(0..20, jobs(1), |item| item * 2, |result| ended.push(result));
        assert_eq!(ended, (0..20).map(|item| item * 2).collect::<Vec<_>>());
    }

    #[test]
    fn as_many_are_done_at_a_time_as_there_are_jobs() {
        // Both sides of a pair must be there before either goes on.
        let pair = Barrier::new(2);
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut ended = Vec::new();
        let work = |item: usize| {
            // ORDERING: counters of this test alone; the scope's end orders them before the reads.
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            pair.wait();
            // ORDERING: as above.
            running.fetch_sub(1, Ordering::Relaxed);
            item
        };
        in_parallel(0..10, jobs(2), work, |result| ended.push(result));
        ended.sort_unstable();
        assert_eq!(ended, (0..10).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), 2);
    }

    #[test]
    fn more_jobs_than_items_do_no_harm() {
        let mut ended = 0;
        in_parallel([7], jobs(8), |item| item, |result| ended += result);
        assert_eq!(ended, 7);
        in_parallel(std::iter::empty::<u32>(), jobs(2), |item| item, |_| panic!("nothing was there to do"));
    }
}
