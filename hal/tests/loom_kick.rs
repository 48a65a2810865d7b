//! Every interleaving of a device that goes to sleep and drivers that ring, by the file
//! that the crate itself uses. A wake-up is lost when the device sleeps, a doorbell that it
//! has not seen was rung, and nobody signals its event.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p vdk-hal --test loom_kick --release`.

#![cfg(loom)]

#[path = "../src/mmio/sleep_flag.rs"]
mod sleep_flag;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}

mod barrier {
    use std::cell::Cell;

    use loom::sync::atomic::{Ordering, fence};

    thread_local! {
        /// Off in the mutants, whose fences are none. All threads of a model run on the
        /// thread of the test.
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

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use sleep_flag::SleepFlag;
use sync::Ordering;

struct Shared {
    sleeping: SleepFlag,
    doorbells: Vec<AtomicU32>,
    /// The event file: how often it was signalled since it was drained.
    event: AtomicU32,
}

impl Shared {
    fn new(drivers: usize) -> Arc<Self> {
        Arc::new(Self {
            sleeping: SleepFlag::new(),
            doorbells: (0..drivers).map(|_| AtomicU32::new(0)).collect(),
            event: AtomicU32::new(0),
        })
    }

    fn ring(&self, driver: usize) {
        // ORDERING: Relaxed, as a plain store to a doorbell is.
        self.doorbells[driver].store(1, Ordering::Relaxed);
        if self.sleeping.may_sleep() && self.sleeping.claim_wake() {
            // ORDERING: AcqRel, as the system calls on an event file order what is around them.
            self.event.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn rung(&self) -> usize {
        // ORDERING: Relaxed, as a plain load of a doorbell is.
        self.doorbells.iter().filter(|doorbell| doorbell.load(Ordering::Relaxed) != 0).count()
    }

    /// The loop of a device until it has seen every doorbell, or sleeps with its event not
    /// signalled. `looks_again` is the second look after it said that it will sleep.
    /// Returns how many doorbells it has seen.
    fn serve(&self, looks_again: bool) -> usize {
        loop {
            let seen = self.rung();
            if seen == self.doorbells.len() {
                return seen;
            }
            self.sleeping.prepare();
            if looks_again && self.rung() != seen {
                self.sleeping.cancel();
                continue;
            }
            // ORDERING: AcqRel, as in `ring`.
            if self.event.swap(0, Ordering::AcqRel) == 0 {
                return seen;
            }
            self.sleeping.cancel();
        }
    }
}

fn model(drivers: usize, looks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = if drivers == 1 { None } else { Some(3) };
    model.check(move || {
        let shared = Shared::new(drivers);
        let ringing: Vec<_> = (0..drivers)
            .map(|driver| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.ring(driver))
            })
            .collect();
        let seen = shared.serve(looks_again);
        for driver in ringing {
            driver.join().unwrap();
        }
        // ORDERING: Acquire, as in `ring`.
        let signalled = shared.event.load(Ordering::Acquire) > 0;
        assert!(seen == drivers || signalled, "a doorbell was slept through");
    });
}

#[test]
fn a_doorbell_is_never_slept_through() {
    model(1, true);
}

#[test]
fn two_drivers_wake_a_device_that_looks_at_both() {
    model(2, true);
}

#[test]
#[should_panic(expected = "a doorbell was slept through")]
fn without_the_fence_a_doorbell_is_slept_through() {
    barrier::FENCED.set(false);
    model(1, true);
}

#[test]
#[should_panic(expected = "a doorbell was slept through")]
fn without_the_second_look_a_doorbell_is_slept_through() {
    model(1, false);
}
