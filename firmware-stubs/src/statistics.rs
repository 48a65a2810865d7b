//! What an emulated device has done.

use core::sync::atomic::{AtomicU64, Ordering};

use vdk_hal::interrupt::InterruptKind;

/// What an emulated device has done since it was built, over all sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StubStatistics {
    /// Descriptors executed; transfers for an edu.
    pub descriptors: u64,
    /// Bytes moved by DMA, descriptors and completions not counted.
    pub bytes: u64,
    /// Doorbells seen. A doorbell that is written twice before the device looks counts once.
    pub doorbells: u64,
    /// Completion words written.
    pub completions: u64,
    /// How often the device thread was woken from sleep.
    pub wakeups: u64,
    /// Interrupts that reached an event file, by kind and vector; those that were never
    /// raised are left out.
    pub interrupts: Vec<(InterruptKind, u16, u64)>,
}

impl StubStatistics {
    /// All interrupts together.
    #[must_use]
    pub fn interrupt_count(&self) -> u64 {
        self.interrupts.iter().map(|(_, _, count)| count).sum()
    }
}

/// One number that only whoever holds the device changes, and anybody reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`. Two threads must not do this at once, which the model's `&mut` gives.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        // ORDERING: Relaxed; a number for people, with one writer at a time.
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(amount), Ordering::Relaxed);
    }

    /// The number.
    pub(crate) fn value(&self) -> u64 {
        // ORDERING: Relaxed; a number for people.
        self.0.load(Ordering::Relaxed)
    }
}

/// The numbers that a device model counts itself.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) descriptors: Counter,
    pub(crate) bytes: Counter,
    pub(crate) doorbells: Counter,
    pub(crate) completions: Counter,
    pub(crate) wakeups: Counter,
}

impl Counters {
    pub(crate) fn snapshot(&self, interrupts: Vec<(InterruptKind, u16, u64)>) -> StubStatistics {
        StubStatistics {
            descriptors: self.descriptors.value(),
            bytes: self.bytes.value(),
            doorbells: self.doorbells.value(),
            completions: self.completions.value(),
            wakeups: self.wakeups.value(),
            interrupts,
        }
    }
}
