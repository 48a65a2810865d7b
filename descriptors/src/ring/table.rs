//! Where the entries of a ring lie.

use core::sync::atomic::Ordering;

use thiserror::Error;
use vdk_hal::memory::{Slot, Slots};

/// A table of `T` that the other side reads and writes as well, in 64-bit words.
///
/// [`Slots`] of shared memory are one. Model checkers bring another, so that the very code
/// of the rings can be checked.
pub trait SlotTable<T: Slot> {
    /// How many 64-bit words an entry has.
    const WORDS: usize = size_of::<T>() / 8;

    /// How many entries there are.
    fn count(&self) -> usize;

    /// Loads word number `word` of an entry.
    ///
    /// # Panics
    ///
    /// When `slot` or `word` is out of range.
    fn load_word(&self, slot: usize, word: usize, ordering: Ordering) -> u64;

    /// Stores word number `word` of an entry.
    ///
    /// # Panics
    ///
    /// When `slot` or `word` is out of range.
    fn store_word(&self, slot: usize, word: usize, value: u64, ordering: Ordering);
}

impl<T: Slot> SlotTable<T> for Slots<T> {
    fn count(&self) -> usize {
        Slots::count(self)
    }

    #[inline]
    fn load_word(&self, slot: usize, word: usize, ordering: Ordering) -> u64 {
        Slots::load_word(self, slot, word, ordering)
    }

    #[inline]
    fn store_word(&self, slot: usize, word: usize, value: u64, ordering: Ordering) {
        Slots::store_word(self, slot, word, value, ordering);
    }
}

/// A table that does not fit its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table has another number of entries than the ring has slots.
    #[error("a table of {table:#x} entries for a ring of {depth:#x} slots")]
    Count {
        /// The number of entries.
        table: usize,
        /// The number of slots.
        depth: u32,
    },
    /// The phase bit is not in the entry.
    #[error("bit {bit} of word {word} is not in an entry of {words} words")]
    PhaseBit {
        /// The number of the word.
        word: usize,
        /// The number of the bit.
        bit: u32,
        /// How many words an entry has.
        words: usize,
    },
}

pub(super) fn check_count<T: Slot>(table: &impl SlotTable<T>, depth: u32) -> Result<(), TableError> {
    let count = table.count();
    if u32::try_from(count) == Ok(depth) { Ok(()) } else { Err(TableError::Count { table: count, depth }) }
}

/// Word number `word` of a value.
///
/// # Panics
///
/// When the value has no such word.
#[inline]
pub(super) fn word_of<T: Slot>(value: &T, word: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&value.as_bytes()[word * 8..word * 8 + 8]);
    u64::from_ne_bytes(raw)
}

/// Replaces word number `word` of a value.
///
/// # Panics
///
/// When the value has no such word.
#[inline]
pub(super) fn set_word_of<T: Slot>(value: &mut T, word: usize, to: u64) {
    value.as_mut_bytes()[word * 8..word * 8 + 8].copy_from_slice(&to.to_ne_bytes());
}

/// The entry in `slot`, all words with Relaxed loads.
#[inline]
pub(super) fn read_entry<T: Slot, W: SlotTable<T>>(table: &W, slot: usize) -> T {
    let mut entry = T::new_zeroed();
    for word in 0..W::WORDS {
        // ORDERING: Relaxed; the index or phase that announced the entry was loaded with
        // Acquire.
        set_word_of(&mut entry, word, table.load_word(slot, word, Ordering::Relaxed));
    }
    entry
}
