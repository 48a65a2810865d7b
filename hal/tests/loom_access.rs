//! Every interleaving of bursts and revocations, by the file that the crate itself uses.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p vdk-hal --test loom_access --release`.
//! `membarrier(2)` cannot be modelled: both halves of the asymmetric fence are full fences
//! here, which is what they amount to and what they are where the kernel lacks it.

#![cfg(loom)]

#[path = "../src/memory/epoch.rs"]
mod epoch;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

mod barrier {
    use std::cell::Cell;

    use loom::sync::atomic::{Ordering, fence};

    thread_local! {
        /// Off in the mutant, whose light half is no fence. All threads of a model run on
        /// the thread of the test.
        pub(crate) static FENCED: Cell<bool> = const { Cell::new(true) };
    }

    pub(crate) fn light() {
        if FENCED.get() {
            // ORDERING: SeqCst pairs with `heavy`.
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn heavy() {
        // ORDERING: SeqCst pairs with `light`.
        fence(Ordering::SeqCst);
    }
}

use epoch::{BurstLine, Epoch};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// How often a revocation looks for the end of a burst.
const LOOKS: usize = 3;

/// What a reader and a revocation share. `memory` panics when an access to it meets a
/// change of it: that is what freed or reused memory would be.
struct Shared {
    epoch: Epoch,
    lines: Vec<BurstLine>,
    memory: Vec<UnsafeCell<u32>>,
}

// SAFETY is loom's matter here: `UnsafeCell` checks each access, and none is dereferenced.
fn shared(readers: usize, regions: usize) -> Arc<Shared> {
    Arc::new(Shared {
        epoch: Epoch::new(1),
        lines: (0..readers).map(|_| BurstLine::new()).collect(),
        memory: (0..regions).map(|_| UnsafeCell::new(0)).collect(),
    })
}

/// Uses every region once in a burst, if the token of epoch 1 is still good.
fn use_memory(shared: &Shared, epoch: u64) {
    if epoch == 1 {
        for region in &shared.memory {
            region.with(|_| ());
        }
    }
}

/// Revokes a region and reuses it. A burst that is seen is waited for `looks` times; one
/// that goes on is a time-out, after which the region is left alone.
fn revoke(shared: &Shared, region: usize, epoch: u64, looks: usize) {
    shared.epoch.advance(epoch);
    for line in &shared.lines {
        let Some(seen) = line.burst() else { continue };
        let ended = (0..looks).any(|_| {
            thread::yield_now();
            line.has_ended(seen)
        });
        if !ended {
            return;
        }
    }
    shared.memory[region].with_mut(|_| ());
}

/// One reader with `bursts` bursts, one revocation.
fn one_reader(bursts: usize, ends: bool) {
    loom::model(move || {
        let shared = shared(1, 1);
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let line = &shared.lines[0];
                for _ in 0..bursts {
                    use_memory(&shared, line.begin(&shared.epoch));
                    if ends {
                        line.end();
                    }
                }
                line.end();
            }
        });
        revoke(&shared, 0, 2, LOOKS);
        reader.join().unwrap();
    });
}

#[test]
fn no_access_follows_a_revocation() {
    one_reader(2, true);
}

#[test]
fn bursts_that_are_renewed_or_forgotten_let_a_revocation_go_on() {
    one_reader(3, false);
}

#[test]
fn two_readers_are_both_waited_for() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = shared(2, 1);
        let readers: Vec<_> = (0..2)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let line: &BurstLine = &shared.lines[number];
                    use_memory(&shared, line.begin(&shared.epoch));
                    line.end();
                })
            })
            .collect();
        revoke(&shared, 0, 2, LOOKS);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn two_revocations_at_once_are_both_complete() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = shared(1, 2);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || revoke(&shared, 1, 3, LOOKS)
        });
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for _ in 0..2 {
                    use_memory(&shared, shared.lines[0].begin(&shared.epoch));
                    shared.lines[0].end();
                }
            }
        });
        revoke(&shared, 0, 2, LOOKS);
        other.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_light_fence_an_access_can_follow() {
    barrier::FENCED.set(false);
    one_reader(1, true);
}
