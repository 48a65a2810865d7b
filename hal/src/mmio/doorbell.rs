//! Doorbells, and how a sleeping software device hears them.

// UNSAFETY: a store to a checked address.
#![expect(unsafe_code, reason = "a store to a checked address")]

use core::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

use super::RegisterValue;
use super::sleep_flag::SleepFlag;
use crate::bar::{Bar, BarError};
use crate::barrier::{self, DoorbellToken};
use crate::interrupt::EventFd;
use crate::memory::{SharedMemory, store_word};

/// A register that hands work to the device, resolved to where it lies.
///
/// It is rung with a [`DoorbellToken`], which only the barrier before it yields.
#[derive(Debug)]
pub struct Doorbell<T> {
    target: Target<T>,
}

#[derive(Debug)]
enum Target<T> {
    /// # Invariants
    ///
    /// `address` is aligned and inside `_memory`.
    Mapped {
        address: *mut T,
        _memory: SharedMemory,
        kick: Option<Arc<Kick>>,
    },
    Trapped {
        bar: Bar,
        offset: u64,
    },
}

// SAFETY: the pointer is into shared memory that the value keeps alive.
unsafe impl<T: RegisterValue> Send for Doorbell<T> {}
// SAFETY: ringing is one volatile or atomic store; registers tolerate concurrent access.
unsafe impl<T: RegisterValue> Sync for Doorbell<T> {}

impl<T: RegisterValue> Doorbell<T> {
    /// A doorbell in mapped memory; `None` when `memory` is too short or misaligned.
    #[must_use]
    pub fn mapped(memory: SharedMemory, kick: Option<Arc<Kick>>) -> Option<Self> {
        // INVARIANT: `checked_word` proves range and alignment.
        let address = memory.checked_word::<T>(0).ok()?.cast();
        Some(Self { target: Target::Mapped { address, _memory: memory, kick } })
    }

    pub(crate) fn trapped(bar: Bar, offset: u64) -> Self {
        Self { target: Target::Trapped { bar, offset } }
    }

    /// Whether ringing is one store, with no call into a backend.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.target, Target::Mapped { .. })
    }

    /// Whether the device is software of this process, on another processor: its doorbell is
    /// mapped memory and somebody has to wake it.
    #[must_use]
    pub fn is_software(&self) -> bool {
        matches!(self.target, Target::Mapped { kick: Some(_), .. })
    }

    /// Writes `value`.
    ///
    /// # Errors
    ///
    /// As [`Bar::write`] for a trapped doorbell; a mapped one cannot fail, and cannot tell
    /// whether the device is there.
    #[inline]
    pub fn ring(&self, _ordered: DoorbellToken, value: T) -> Result<(), BarError> {
        match &self.target {
            Target::Mapped { address, kick, .. } => {
                match kick {
                    Some(kick) => {
                        // ORDERING: Relaxed; the token is the barrier. An atomic, since it
                        // is a thread of this process that looks.
                        // SAFETY: aligned and alive by the invariant of `Mapped`.
                        unsafe {
                            store_word(address.cast(), T::WIDTH, value.to_u64(), Ordering::Relaxed);
                        }
                        kick.after_write();
                    }
                    // SAFETY: aligned and alive by the invariant of `Mapped`.
                    None => unsafe { crate::bar::write_volatile(address.cast(), value) },
                }
                Ok(())
            }
            Target::Trapped { bar, offset } => bar.write(*offset, value),
        }
    }
}

/// Wakes a software device that sleeps although its doorbells are plain memory.
///
/// The device says that it is about to sleep, looks at its doorbells once more, and then
/// waits for the event; the driver writes, then looks whether the device sleeps. The two
/// orders are the asymmetric fences of [`barrier`], so that a doorbell costs no fence
/// while the device is awake.
#[derive(Debug)]
pub struct Kick {
    sleeping: SleepFlag,
    event: EventFd,
}

impl Kick {
    /// A device that is awake.
    ///
    /// # Errors
    ///
    /// What `eventfd(2)` reports.
    pub fn new() -> io::Result<Arc<Self>> {
        barrier::prepare();
        Ok(Arc::new(Self { sleeping: SleepFlag::new(), event: EventFd::new()? }))
    }

    /// The driver's half, after a write to a doorbell.
    #[inline(always)]
    pub fn after_write(&self) {
        if self.sleeping.may_sleep() {
            self.wake();
        }
    }

    /// Wakes the device if it sleeps or is about to.
    #[cold]
    pub fn wake(&self) {
        if self.sleeping.claim_wake() {
            self.event.signal(1);
        }
    }

    /// The device's half: call it, look at every doorbell once more, and only if there is
    /// nothing [`sleep`](Self::sleep).
    pub fn prepare_sleep(&self) {
        self.sleeping.prepare();
    }

    /// The device found work at the second look.
    pub fn cancel_sleep(&self) {
        self.sleeping.cancel();
    }

    /// Sleeps until woken or for `timeout` at most; returns whether it was woken.
    pub fn sleep(&self, timeout: core::time::Duration) -> bool {
        let woken = self.event.wait(timeout).unwrap_or(false);
        self.event.drain();
        self.cancel_sleep();
        woken
    }
}
