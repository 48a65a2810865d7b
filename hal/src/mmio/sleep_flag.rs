//! The protocol between a device that goes to sleep and a driver that rings, without the
//! event that wakes.
//!
//! See [`Kick`](super::Kick) for what it is for; `tests/loom_kick.rs` checks every
//! interleaving of it.

use crate::barrier;
use crate::sync::{AtomicU32, Ordering};

/// Whether a device sleeps or is about to.
#[derive(Debug)]
pub(super) struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// A device that is awake.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The driver's half, after its write: whether the device may need to be woken.
    #[inline(always)]
    pub(super) fn may_sleep(&self) -> bool {
        barrier::light();
        // ORDERING: Relaxed; ordered after the driver's write by `light`, which pairs with
        // `heavy` in `prepare`: either this sees the flag, or the device sees the write.
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Claims the wake-up: of many wakers one gets `true` and signals the event.
    pub(super) fn claim_wake(&self) -> bool {
        // ORDERING: AcqRel; the event itself orders what the device does after it.
        self.0.swap(0, Ordering::AcqRel) != 0
    }

    /// The device's half: it looks for work once more after this, before it sleeps.
    pub(super) fn prepare(&self) {
        // ORDERING: SeqCst before `heavy` and the caller's second look. A swap, not a store,
        // so that it is ordered after a claim of the sleep before that came late.
        self.0.swap(1, Ordering::SeqCst);
        barrier::heavy();
    }

    /// The device is awake again.
    pub(super) fn cancel(&self) {
        // ORDERING: Relaxed; a waker that still sees the flag signals an event too many.
        self.0.store(0, Ordering::Relaxed);
    }
}
