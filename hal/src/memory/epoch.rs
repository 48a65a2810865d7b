//! The protocol between bursts and revocations, without anything around it.
//!
//! See [`access`](super::access) for what it is for; `tests/loom_access.rs` checks every
//! interleaving of it.

use crate::barrier;
use crate::sync::{AtomicU64, Ordering};

/// The epoch of a domain, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Epoch(AtomicU64);

/// The state of one reader, on cache lines of its own: odd in a burst, and never twice the
/// same while a revocation looks.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct BurstLine(AtomicU64);

/// A burst that was under way when a revocation looked.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenBurst(u64);

impl Epoch {
    pub(super) fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Begins a revocation: from now on bursts that begin see `value`. The lines of the
    /// readers are to be looked at after this.
    pub(super) fn advance(&self, value: u64) {
        // ORDERING: SeqCst store before `heavy` and the caller's look at the lines; pairs
        // with `begin`, which stores its line before it loads the epoch. With `heavy`, either
        // the look sees the burst or the burst sees the new epoch.
        self.0.store(value, Ordering::SeqCst);
        barrier::heavy();
    }
}

impl BurstLine {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Makes the line odd with a value it did not have, and returns the epoch loaded after
    /// that. A burst that is still marked was forgotten or is being renewed: it uses no
    /// token any more, and its end is announced by the change.
    ///
    /// Only one thread at a time calls this and [`end`](Self::end).
    #[inline(always)]
    pub(super) fn begin(&self, epoch: &Epoch) -> u64 {
        // ORDERING: Relaxed load; this thread is the only writer of its line.
        let count = self.0.load(Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire loads below, for the end of an earlier
        // burst; ordered before the load of the epoch by `light`, which pairs with `heavy`
        // in `advance`.
        self.0.store(count.wrapping_add(1) | IN_BURST, Ordering::Release);
        barrier::light();
        // ORDERING: Acquire pairs with the store in `advance`, so that what was registered
        // since is seen.
        epoch.0.load(Ordering::Acquire)
    }

    /// Makes the line even: no burst is under way.
    #[inline(always)]
    pub(super) fn end(&self) {
        // ORDERING: Relaxed load; this thread is the only writer of its line.
        let count = self.0.load(Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire loads below, so that every access of the
        // burst happens before the revocation returns.
        self.0.store(count.wrapping_add(1) & !IN_BURST, Ordering::Release);
    }

    /// The burst that is under way, for a revocation that has advanced the epoch.
    pub(super) fn burst(&self) -> Option<SeenBurst> {
        // ORDERING: Acquire pairs with the Release stores in `begin` and `end`.
        let line = self.0.load(Ordering::Acquire);
        (line & IN_BURST != 0).then_some(SeenBurst(line))
    }

    /// Whether a burst that was seen has ended.
    pub(super) fn has_ended(&self, seen: SeenBurst) -> bool {
        // ORDERING: Acquire pairs with the Release stores in `begin` and `end`.
        self.0.load(Ordering::Acquire) != seen.0
    }
}

const IN_BURST: u64 = 1;
