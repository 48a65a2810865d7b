//! Whether handles of a function still work.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crate::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};

/// Whether handles of a function still work; shared by all of them.
///
/// An access may be made while the function sleeps and be answered when it is awake, or the
/// other way round. Such an answer tells nothing: neither is its value one of the function,
/// nor is a fault a removal. So a state is looked at as a `Moment`, with the number of
/// times that the function was woken, before and after an access.
#[derive(Debug)]
pub struct Liveness {
    /// The number of the state in the low byte, how often it was woken above.
    word: AtomicU32,
    /// Ones took the place of pages while the function was asleep.
    torn: AtomicBool,
    /// How many threads may put ones in the place of a page of a function that sleeps.
    tearing: AtomicU32,
    /// How many accesses to an awake function were tried anew since it was woken.
    tried: AtomicU32,
}

/// The states of [`Liveness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessState {
    /// The session is open and the function there.
    Live,
    /// The session is closed.
    Closed,
    /// The function is gone.
    Gone,
    /// The function does not answer accesses to its memory for now: it is in low power, or
    /// memory space is off. Only backends to which such an access would look like a removal
    /// say so.
    Asleep,
}

/// A state, and between which times of waking it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u32);

impl Moment {
    #[inline]
    pub(crate) fn state(self) -> LivenessState {
        match self.0 & STATE {
            LIVE => LivenessState::Live,
            CLOSED => LivenessState::Closed,
            GONE => LivenessState::Gone,
            _ => LivenessState::Asleep,
        }
    }
}

/// What is to be done about an access to a mapped page that met nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Remedy {
    /// To make the access again.
    TryAgain,
    /// To put ones in the place of the page, and call [`Liveness::mended`].
    Replace,
}

impl Liveness {
    /// A function that is there, in a session that is open.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU32::new(LIVE),
            torn: AtomicBool::new(false),
            tearing: AtomicU32::new(0),
            tried: AtomicU32::new(0),
        })
    }

    /// The state.
    #[inline]
    #[must_use]
    pub fn state(&self) -> LivenessState {
        self.moment().state()
    }

    #[inline]
    pub(crate) fn moment(&self) -> Moment {
        // ORDERING: Acquire pairs with the Release in `pass`: who sees the end also sees what
        // led to it.
        Moment(self.word.load(Ordering::Acquire))
    }

    /// Ends the session. A function that is gone stays gone.
    pub fn close(&self) {
        self.pass(&[LIVE, ASLEEP, WAKING], CLOSED);
    }

    /// Stops accesses to the memory of a live function until [`wake`](Self::wake).
    pub fn sleep(&self) {
        self.pass(&[LIVE, WAKING], ASLEEP);
    }

    /// Lets accesses through again. The function answers already.
    pub fn wake(&self) {
        self.wake_after(|| ());
    }

    /// Wakes a function that sleeps and answers already. In between, when nobody puts ones
    /// in the place of its pages any more, `restore` brings back the pages that are torn.
    pub(crate) fn wake_after(&self, restore: impl FnOnce()) {
        // ORDERING: Relaxed; the release of the state below comes after it. A thread that
        // counts an access of the time before only leaves fewer for the time after.
        self.tried.store(0, Ordering::Relaxed);
        if !self.pass(&[ASLEEP], WAKING) {
            return;
        }
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, TEAR_TIME);
        let quiet = poll_until(&clock, deadline, Pace::FAST, "the end of faults in a BAR", || {
            // ORDERING: SeqCst: either this sees who tears, or who tears sees the new state.
            Ok::<_, TimedOut>((self.tearing.load(Ordering::SeqCst) == 0).then_some(()))
        });
        if quiet.is_err() {
            // The one that is late finds the function awake and marks it as gone.
            log::warn!("a thread that touched a sleeping function does not go on");
        }
        restore();
        self.pass(&[WAKING], LIVE);
    }

    /// An access to a mapped page met nothing. Async-signal-safe.
    ///
    /// A function that is asleep or closed is not gone for that. One that is awake may have
    /// been asleep when the access was made: that is tried again, since each thread has at
    /// most one such access, and only a fault that stays is a removal.
    pub(crate) fn faulted(&self) -> Remedy {
        // ORDERING: SeqCst pairs with `wake_after`.
        self.tearing.fetch_add(1, Ordering::SeqCst);
        // ORDERING: SeqCst, as above.
        let word = self.word.load(Ordering::SeqCst);
        let again = match word & STATE {
            // ORDERING: Relaxed; a count that nothing else depends on.
            LIVE => word != LIVE && self.tried.fetch_add(1, Ordering::Relaxed) < TRIES,
            state => state == WAKING,
        };
        if again {
            // ORDERING: SeqCst pairs with `wake_after`.
            self.tearing.fetch_sub(1, Ordering::SeqCst);
            return Remedy::TryAgain;
        }
        if word & STATE == LIVE {
            self.remove();
        }
        Remedy::Replace
    }

    /// Ones have taken the place of a page, as [`Remedy::Replace`] demands, or could not.
    /// Async-signal-safe.
    pub(crate) fn mended(&self) {
        // ORDERING: Relaxed; the release of `tearing` below comes after it.
        self.torn.store(true, Ordering::Relaxed);
        // Who wakes the function waits for this thread, but not for ever.
        if self.state() == LivenessState::Live {
            self.remove();
        }
        // ORDERING: SeqCst pairs with `wake_after`, which sees what is torn then.
        self.tearing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether ones have taken the place of pages since it was asked last.
    pub(crate) fn take_torn(&self) -> bool {
        // ORDERING: Relaxed; `wake_after` has seen the end of `mended`.
        self.torn.swap(false, Ordering::Relaxed)
    }

    /// Marks the function as gone, for good.
    pub fn remove(&self) {
        self.pass(&[LIVE, CLOSED, ASLEEP, WAKING], GONE);
    }

    /// Goes from one of the states `from` to another; false if it is in none of them.
    fn pass(&self, from: &[u32], to: u32) -> bool {
        let next = |word: u32| {
            let woken = if to == WAKING { WOKEN } else { 0 };
            from.contains(&(word & STATE)).then(|| (word & !STATE).wrapping_add(woken) | to)
        };
        // ORDERING: SeqCst pairs with `faulted`, and as a Release with `moment`.
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }
}

/// The bits of the state.
const STATE: u32 = 0xff;
const LIVE: u32 = 0;
const CLOSED: u32 = 1;
const GONE: u32 = 2;
const ASLEEP: u32 = 3;
/// To all others it still sleeps.
const WAKING: u32 = 4;
/// One time of waking.
const WOKEN: u32 = 0x100;

/// More threads than make an access to one function at the very same time, and few enough
/// that a removal is noticed at once.
const TRIES: u32 = 256;
/// How long is waited for a thread that is between a fault and its remedy.
const TEAR_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_a_function_that_never_slept_is_a_removal() {
        let liveness = Liveness::new();
        assert_eq!(liveness.faulted(), Remedy::Replace);
        assert_eq!(liveness.state(), LivenessState::Gone);
        liveness.mended();
        liveness.wake();
        liveness.close();
        assert_eq!(liveness.state(), LivenessState::Gone, "for good");
    }

    #[test]
    fn a_fault_that_was_made_asleep_and_is_told_awake_is_tried_again() {
        let liveness = Liveness::new();
        liveness.sleep();
        // The access faults now, and its thread is interrupted.
        liveness.wake();
        for _ in 0..TRIES {
            assert_eq!(liveness.faulted(), Remedy::TryAgain);
            assert_eq!(liveness.state(), LivenessState::Live);
        }
        assert_eq!(liveness.faulted(), Remedy::Replace, "it stays away");
        assert_eq!(liveness.state(), LivenessState::Gone);
    }

    #[test]
    fn each_waking_gives_new_tries() {
        let liveness = Liveness::new();
        for _ in 0..3 {
            liveness.sleep();
            liveness.wake();
            for _ in 0..TRIES {
                assert_eq!(liveness.faulted(), Remedy::TryAgain);
            }
        }
    }

    #[test]
    fn pages_are_restored_when_nobody_tears_them_and_before_accesses_are_let_through() {
        let liveness = Liveness::new();
        liveness.sleep();
        assert_eq!(liveness.faulted(), Remedy::Replace);
        assert_eq!(liveness.state(), LivenessState::Asleep);
        std::thread::scope(|scope| {
            let waker = scope.spawn(|| {
                let mut torn = None;
                liveness.wake_after(|| {
                    torn = Some((liveness.take_torn(), liveness.state()));
                });
                torn
            });
            while liveness.moment().0 & STATE != WAKING {
                std::thread::yield_now();
            }
            assert_eq!(liveness.faulted(), Remedy::TryAgain, "nothing is torn any more");
            liveness.mended();
            assert_eq!(waker.join().unwrap(), Some((true, LivenessState::Asleep)));
        });
        assert_eq!(liveness.state(), LivenessState::Live);
        assert!(!liveness.take_torn());
    }

    #[test]
    fn moments_before_and_after_a_sleep_differ() {
        let liveness = Liveness::new();
        let before = liveness.moment();
        liveness.wake();
        assert_eq!(liveness.moment(), before, "it did not sleep");
        liveness.sleep();
        liveness.wake();
        assert_eq!(liveness.moment().state(), LivenessState::Live);
        assert_ne!(liveness.moment(), before);
    }

    #[test]
    fn a_function_put_to_sleep_while_it_is_woken_sleeps() {
        let liveness = Liveness::new();
        liveness.sleep();
        liveness.wake_after(|| liveness.sleep());
        assert_eq!(liveness.state(), LivenessState::Asleep);
        liveness.wake_after(|| liveness.close());
        assert_eq!(liveness.state(), LivenessState::Closed);
    }
}
