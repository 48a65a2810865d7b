//! A table of descriptors in shared memory.

// UNSAFETY: unchecked addressing of slots inside a range that was checked once.
#![expect(unsafe_code, reason = "slots inside a range that was checked once")]

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::copy::prefetch_line_for_write;
use super::{OutOfBounds, SharedMemory};
use crate::barrier::write_combining_flush;

/// What a slot holds: plain bytes, a whole number of 64-bit words.
pub trait Slot: FromBytes + IntoBytes + Immutable + KnownLayout {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Slot for T {}

/// `count` values of type `T`, one after the other, in memory that a device also reads and
/// writes. Each 64-bit word of a slot is read and written in one access; the words of one
/// slot in no promised order, so the word that hands a slot over is written last and by
/// itself, with [`store_word`](Self::store_word).
///
/// # Invariants
///
/// `first` points to `count * size_of::<T>()` bytes inside `memory`, aligned to 8, and
/// `size_of::<T>()` is a multiple of 8.
#[derive(Debug)]
pub struct Slots<T> {
    memory: SharedMemory,
    first: *mut u64,
    count: usize,
    _slot: PhantomData<fn(T) -> T>,
}

// SAFETY: the pointer is into `memory`, which is `Send`, and is used for atomics only.
unsafe impl<T> Send for Slots<T> {}
// SAFETY: every access through `&Slots` is atomic.
unsafe impl<T> Sync for Slots<T> {}

impl<T: Slot> Slots<T> {
    const WORDS: usize = {
        assert!(size_of::<T>().is_multiple_of(8) && size_of::<T>() > 0, "a slot is whole 64-bit words");
        size_of::<T>() / 8
    };

    pub(super) fn new(memory: SharedMemory, offset: usize, count: usize) -> Result<Self, OutOfBounds> {
        let bytes = count.saturating_mul(size_of::<T>());
        let first = memory.checked_pointer(offset, bytes)?;
        if !first.addr().is_multiple_of(8) {
            return Err(memory.out_of_bounds(offset, bytes, 8));
        }
        // INVARIANT: range and alignment were checked; `WORDS` checks the size.
        let _ = Self::WORDS;
        Ok(Self { memory, first: first.cast(), count, _slot: PhantomData })
    }

    /// How many slots there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The memory that the table lies in.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Copies a slot out.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`count`](Self::count): an index that came from a device
    /// is to be checked before.
    #[inline]
    #[must_use]
    pub fn read(&self, index: usize) -> T {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        for word in 0..Self::WORDS {
            // ORDERING: Relaxed; the caller has ordered the slot by an Acquire load of the
            // word that announced it.
            let loaded = self.word(index, word).load(Ordering::Relaxed);
            bytes[word * 8..word * 8 + 8].copy_from_slice(&loaded.to_ne_bytes());
        }
        value
    }

    /// Copies a value into a slot.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`count`](Self::count).
    #[inline]
    pub fn write(&self, index: usize, value: &T) {
        let bytes = value.as_bytes();
        for word in 0..Self::WORDS {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[word * 8..word * 8 + 8]);
            // ORDERING: Relaxed; the Release store or fence that publishes the slot orders it.
            self.word(index, word).store(u64::from_ne_bytes(raw), Ordering::Relaxed);
        }
    }

    /// Loads the 64-bit word number `word` of a slot.
    ///
    /// # Panics
    ///
    /// When `index` or `word` is out of range.
    #[inline]
    #[must_use]
    pub fn load_word(&self, index: usize, word: usize, ordering: Ordering) -> u64 {
        self.word(index, word).load(ordering)
    }

    /// Stores the 64-bit word number `word` of a slot.
    ///
    /// # Panics
    ///
    /// When `index` or `word` is out of range.
    #[inline]
    pub fn store_word(&self, index: usize, word: usize, value: u64, ordering: Ordering) {
        self.word(index, word).store(value, ordering);
    }

    /// Stores `N` 64-bit words of a slot from number `first` on, each in one access, in no
    /// promised order. The slot is checked once, and what does not change is not written.
    ///
    /// # Panics
    ///
    /// When `index` or a word is out of range.
    #[inline]
    pub fn store_words<const N: usize>(&self, index: usize, first: usize, values: [u64; N]) {
        let fits = first <= Self::WORDS && N <= Self::WORDS - first;
        if index >= self.count || !fits {
            words_out_of_range(index, first, N, self.count);
        }
        for (word, value) in values.into_iter().enumerate() {
            // SAFETY: `index < count` and `first + word < WORDS`, checked above.
            let address = unsafe { self.first.add(index * Self::WORDS + first + word) };
            // SAFETY: aligned to 8 and alive by the type invariant; only used as an atomic.
            let atomic = unsafe { AtomicU64::from_ptr(address) };
            // ORDERING: Relaxed; the Release store or fence that publishes the slot orders it.
            atomic.store(value, Ordering::Relaxed);
        }
    }

    /// A batch of stores past the caches. Its end waits until they are visible, so that
    /// nothing is to be remembered: a doorbell, a Release store, another thread and the end
    /// of the table come after it.
    #[inline(always)]
    pub fn streaming(&self) -> StreamBatch<'_, T> {
        StreamBatch { slots: self }
    }

    /// Asks the processor for the line of a slot that will be written soon; does nothing when
    /// there is no such slot.
    #[inline(always)]
    pub fn prefetch_for_write(&self, index: usize) {
        if index < self.count {
            prefetch_line_for_write(self.first.wrapping_add(index * Self::WORDS).cast());
        }
    }

    #[inline(always)]
    fn word(&self, index: usize, word: usize) -> &AtomicU64 {
        if index >= self.count || word >= Self::WORDS {
            word_out_of_range(index, word, self.count);
        }
        // SAFETY: `index < count` and `word < WORDS`, so the word is inside the checked range.
        let address = unsafe { self.first.add(index * Self::WORDS + word) };
        // SAFETY: aligned to 8 and alive by the type invariant; only used as an atomic.
        unsafe { AtomicU64::from_ptr(address) }
    }
}

/// Stores past the caches, which a
/// [`write_combining_flush`](crate::barrier::write_combining_flush) when it is dropped puts
/// in order with all that follows.
///
/// Until then a slot has its old value, its new one, or a part of each, like memory that a
/// device writes. One that is forgotten (`core::mem::forget`) leaves it so: nothing but the
/// value of plain words of shared memory is at stake.
#[derive(Debug)]
#[must_use = "a batch is flushed when it is dropped"]
pub struct StreamBatch<'a, T> {
    slots: &'a Slots<T>,
}

impl<T: Slot> StreamBatch<'_, T> {
    /// Stores a whole slot past the caches where it is one aligned cache line and the
    /// processor can, and as [`Slots::store_words`] elsewhere.
    ///
    /// A line that a software device on another processor has read would be asked back
    /// before each store; this way nobody waits for it, and the device fetches it from
    /// memory.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`Slots::count`].
    #[inline(always)]
    pub fn store<const N: usize>(&self, index: usize, values: [u64; N]) {
        const { assert!(N == Slots::<T>::WORDS, "a whole slot is streamed") };
        let slots = self.slots;
        if index >= slots.count {
            word_out_of_range(index, 0, slots.count);
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if N == 8 && slots.first.addr().is_multiple_of(64) {
            for pair in 0..4 {
                // SAFETY: `index < count`, and the pairs are the eight words of the slot.
                let address = unsafe { slots.first.add(index * 8 + pair * 2) };
                // SAFETY:
                // 1. Inside the checked range, and aligned to 16 since the table is to 64.
                // 2. Every x86-64 processor has SSE2.
                // 3. To the rest of the process it is a store by somebody else: nobody holds
                //    a reference, and slots are accessed by atomic words. The flush that the
                //    intrinsic wants before other accesses comes with the end of the batch;
                //    without it a word read is old, new or torn, and any value is valid.
                unsafe { stream_pair(address, values[pair * 2], values[pair * 2 + 1]) };
            }
            return;
        }
        slots.store_words(index, 0, values);
    }
}

impl<T> Drop for StreamBatch<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        write_combining_flush();
    }
}

/// Stores two words past the caches.
///
/// # Safety
///
/// `address` is aligned to 16 and valid for a write of 16 bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn stream_pair(address: *mut u64, low: u64, high: u64) {
    use core::arch::x86_64::{_mm_set_epi64x, _mm_stream_si128};

    // SAFETY: every x86-64 processor has SSE2.
    let pair = unsafe { _mm_set_epi64x(high.cast_signed(), low.cast_signed()) };
    // SAFETY: the caller's contract.
    unsafe { _mm_stream_si128(address.cast(), pair) };
}

// Functions of their own, since the arguments of a message would be stored on every access.

#[cold]
#[inline(never)]
fn word_out_of_range(index: usize, word: usize, count: usize) -> ! {
    // PANIC: a bug of the caller, as documented at the functions that lead here.
    panic!("slot {index} word {word} of {count}");
}

#[cold]
#[inline(never)]
fn words_out_of_range(index: usize, first: usize, length: usize, count: usize) -> ! {
    // PANIC: a bug of the caller, as documented at the function that leads here.
    panic!("slot {index} words {first}..+{length} of {count}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::ByteLength;
    use crate::memory::Pages;

    #[test]
    fn slots_lie_one_after_the_other() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let slots = memory.slots::<[u64; 2]>(16, 255).unwrap();
        slots.write(3, &[1, 2]);
        slots.store_word(254, 1, 9, Ordering::Release);
        assert_eq!(memory.read_value::<[u64; 2]>(16 + 3 * 16), Ok([1, 2]));
        assert_eq!(slots.read(254), [0, 9]);
        slots.store_words(254, 0, [7]);
        assert_eq!(slots.read(254), [7, 9]);
        slots.store_words(254, 0, [5, 6]);
        assert_eq!(slots.read(254), [5, 6]);
        assert_eq!(slots.read(253), [0, 0]);
        assert!(memory.slots::<[u64; 2]>(16, 256).is_err());
        assert!(memory.slots::<[u64; 2]>(4, 1).is_err());
        assert!(memory.slots::<[u64; 2]>(0, usize::MAX).is_err());
    }

    #[test]
    fn a_streamed_slot_is_there_after_the_batch() {
        // Whole lines, and the same off their alignment.
        for offset in [64, 72] {
            let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
            let slots = memory.slots::<[u64; 8]>(offset, 3).unwrap();
            slots.write(2, &[9; 8]);
            slots.streaming().store(1, [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(slots.read(1), [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!((slots.read(0)[7], slots.read(2)[0]), (0, 9));
        }
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let small = memory.slots::<[u64; 2]>(0, 4).unwrap();
        small.streaming().store(0, [3, 4]);
        assert_eq!(small.read(0), [3, 4]);
    }

    #[test]
    #[should_panic(expected = "slot 3 word 0 of 3")]
    fn streaming_past_the_end_is_a_bug_of_the_caller() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        memory.slots::<[u64; 2]>(0, 3).unwrap().streaming().store(3, [1, 2]);
    }

    #[test]
    #[should_panic(expected = "slot 1 words 1..+2 of 3")]
    fn words_past_the_end_of_a_slot_are_a_bug_of_the_caller() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        memory.slots::<[u64; 2]>(0, 3).unwrap().store_words(1, 1, [1, 2]);
    }

    #[test]
    #[should_panic(expected = "slot 2 word 0 of 2")]
    fn an_index_past_the_end_is_a_bug_of_the_caller() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let _ = memory.slots::<u64>(0, 2).unwrap().read(2);
    }
}
