//! The order in which a channel of the I/OAT driver goes to sleep, model-checked: arm, make
//! sure that the device knows, look once more, sleep.

#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

/// What driver and device share.
struct Shared {
    /// The completion word.
    word: AtomicU64,
    /// Whether the next completion sends an interrupt.
    armed: AtomicBool,
    /// The event file.
    signalled: AtomicBool,
}

/// How the driver goes to sleep.
#[derive(Clone, Copy)]
enum Order {
    ArmFlushLook,
    ArmLook,
    LookArm,
}

/// Runs one completion against one decision to sleep; a driver that sleeps must be woken.
fn check(order: Order) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            word: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
        });
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.store(1, Ordering::Release);
                // The device's own order: a word is on its way before the interrupt is thought of.
                fence(Ordering::SeqCst);
                if shared.armed.swap(false, Ordering::AcqRel) {
                    shared.signalled.store(true, Ordering::Release);
                }
            })
        };
        let arm = || shared.armed.store(true, Ordering::Release);
        let look = || shared.word.load(Ordering::Acquire) != 0;
        let sleeps = match order {
            Order::ArmFlushLook => {
                arm();
                // The read of CHANSTS: it returns when the device has seen the write before.
                fence(Ordering::SeqCst);
                !look()
            }
            Order::ArmLook => {
                arm();
                !look()
            }
            Order::LookArm => {
                let found = look();
                arm();
                fence(Ordering::SeqCst);
                !found
            }
        };
        device.join().unwrap();
        assert!(!sleeps || shared.signalled.load(Ordering::Acquire), "sleeps for ever");
    });
}

#[test]
fn a_channel_that_sleeps_is_woken() {
    check(Order::ArmFlushLook);
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn looking_before_arming_loses_a_completion() {
    check(Order::LookArm);
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn arming_without_making_sure_loses_a_completion() {
    check(Order::ArmLook);
}
