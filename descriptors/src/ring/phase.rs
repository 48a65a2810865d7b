//! Entries that announce themselves: the phase bit.

use core::sync::atomic::Ordering;

use vdk_hal::barrier::{self, DoorbellToken};
use vdk_hal::memory::{Slot, Slots};

use super::cursors::advance;
use super::table::{SlotTable, TableError, set_word_of};

/// Where the phase bit lies in an entry. In the first round through a zeroed table it is
/// written as one, in the next as zero, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhaseBit {
    /// The 64-bit word, counted from the beginning of the entry.
    pub word: usize,
    /// The bit in that word, 0 the lowest.
    pub bit: u32,
}

impl PhaseBit {
    pub(super) fn check(self, words: usize) -> Result<(), TableError> {
        if self.word < words && self.bit < 64 {
            return Ok(());
        }
        Err(TableError::PhaseBit { word: self.word, bit: self.bit, words })
    }

    #[inline]
    pub(super) fn apply(self, word: u64, phase: bool) -> u64 {
        word & !(1 << self.bit) | u64::from(phase) << self.bit
    }

    #[inline]
    fn of(self, word: u64) -> bool {
        word >> self.bit & 1 != 0
    }
}

/// A place in a ring and the phase that an entry there has in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhasePosition {
    slot: u32,
    phase: bool,
    depth: u32,
}

impl PhasePosition {
    /// The beginning of a ring of `depth` slots, in the first round.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        Self { slot: 0, phase: true, depth }
    }

    /// The slot.
    #[inline]
    #[must_use]
    pub fn slot(self) -> u32 {
        self.slot
    }

    /// The phase of this round.
    #[inline]
    #[must_use]
    pub fn phase(self) -> bool {
        self.phase
    }

    /// The place `count` slots further, at most one round. The phase changes when the end
    /// is **reached or passed**: a step of a whole round comes back to the same slot in
    /// the other phase.
    #[inline]
    #[must_use]
    pub fn ahead(self, count: u32) -> Self {
        let wraps = u64::from(self.slot) + u64::from(count) >= u64::from(self.depth);
        let slot = advance(self.slot, count, self.depth);
        Self { slot, phase: self.phase ^ wraps, depth: self.depth }
    }
}

/// Takes entries from a ring whose writer announces each with its phase bit, such as a
/// completion queue.
///
/// # Ownership
///
/// The device owns an entry until its phase bit equals the phase of this round; from then
/// on the driver owns it until the doorbell with the consumer's head has passed it.
#[derive(Debug)]
pub struct PhaseConsumer<T, W = Slots<T>> {
    table: W,
    bit: PhaseBit,
    position: PhasePosition,
    total: u64,
    _entry: core::marker::PhantomData<fn() -> T>,
}

/// How far a consumer has come: to be written to its doorbell with the token.
#[derive(Debug)]
#[must_use = "the device stops when it is not told that entries were taken"]
pub struct Head {
    /// The proof of the fence that the doorbell needs.
    pub token: DoorbellToken,
    /// The slot of the next entry.
    pub slot: u32,
    /// How many entries were taken since the beginning, for devices that count.
    pub total: u64,
    /// How many of them are new.
    pub taken: u32,
}

impl<T: Slot, W: SlotTable<T>> PhaseConsumer<T, W> {
    /// The consumer of all slots of a zeroed `table`.
    ///
    /// # Errors
    ///
    /// [`TableError`] when the table is empty or too large, or the bit not in the entry.
    pub fn new(table: W, bit: PhaseBit) -> Result<Self, TableError> {
        bit.check(W::WORDS)?;
        let count = table.count();
        let depth = u32::try_from(count).ok().filter(|depth| *depth > 0);
        let depth = depth.ok_or(TableError::Count { table: count, depth: u32::MAX })?;
        let position = PhasePosition::new(depth);
        Ok(Self { table, bit, position, total: 0, _entry: core::marker::PhantomData })
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &W {
        &self.table
    }

    /// The place of the next entry.
    #[must_use]
    pub fn position(&self) -> PhasePosition {
        self.position
    }

    /// Gives up to `budget` new entries to `take`, in order, and returns what to write to
    /// the doorbell, or `None` when there was none.
    ///
    /// The budget bounds the work even when the device writes as fast as it is read. What
    /// an entry says is the device's word: check it.
    #[must_use = "the device stops when it is not told that entries were taken"]
    #[inline]
    pub fn poll(&mut self, budget: u32, mut take: impl FnMut(T)) -> Option<Head> {
        let mut taken = 0;
        while taken < budget
            && let Some(entry) = self.next()
        {
            taken += 1;
            take(entry);
        }
        (taken > 0).then(|| Head {
            token: barrier::doorbell(),
            slot: self.position.slot(),
            total: self.total,
            taken,
        })
    }

    /// Whether an entry is there.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.announced().is_some()
    }

    /// Begins at the first slot in the first round. Zero the table before the device
    /// writes to it again.
    pub fn reset(&mut self) {
        self.position = PhasePosition::new(self.position.depth);
        self.total = 0;
    }

    /// The word with the phase bit, when it announces an entry of this round.
    #[inline]
    fn announced(&self) -> Option<u64> {
        // CAST: a slot is below the number of entries of the table, a `usize`.
        let slot = self.position.slot() as usize;
        // ORDERING: Acquire pairs with the writer's last store of the entry, so that the
        // other words are those of this entry.
        let word = self.table.load_word(slot, self.bit.word, Ordering::Acquire);
        (self.bit.of(word) == self.position.phase()).then_some(word)
    }

    #[inline]
    fn next(&mut self) -> Option<T> {
        let announced = self.announced()?;
        // CAST: as in `announced`.
        let slot = self.position.slot() as usize;
        let mut entry = T::new_zeroed();
        set_word_of(&mut entry, self.bit.word, announced);
        for word in (0..W::WORDS).filter(|word| *word != self.bit.word) {
            // ORDERING: Relaxed; ordered after the Acquire load of the phase.
            set_word_of(&mut entry, word, self.table.load_word(slot, word, Ordering::Relaxed));
        }
        self.position = self.position.ahead(1);
        self.total = self.total.wrapping_add(1);
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
