//! Byte copies between memory that somebody else may be writing.

// UNSAFETY: raw copies; the callers have checked the ranges.
#![expect(unsafe_code, reason = "raw copies of checked ranges")]

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::{OutOfBounds, SharedMemory};
use crate::mmio::Width;

/// Copies `length` bytes; the ranges may overlap.
///
/// The bytes may change while they are copied: the result is then any mixture, which is
/// why nothing read this way is trusted. It is a plain copy, not a volatile one, and no
/// atomic: a device is no thread of the program. Threads of this process that write the
/// same bytes at once are ordered by whoever shares the memory between them.
///
/// # Safety
///
/// `source` is valid for `length` bytes of reads and `destination` for `length` bytes of
/// writes, and no Rust reference to either range is live elsewhere.
#[inline(always)]
pub(super) unsafe fn copy_bytes(source: *const u8, destination: *mut u8, length: usize) {
    if length == 64 {
        // One descriptor or cache line.
        // SAFETY: the caller's contract.
        unsafe { copy_line(source, destination) };
    } else {
        // SAFETY: the caller's contract; `copy` allows overlap.
        unsafe { core::ptr::copy(source, destination, length) };
    }
}

/// Copies 64 bytes in line, everything read before anything is written. A copy of an array
/// would be merged with the call beside it.
///
/// # Safety
///
/// As [`copy_bytes`] for 64 bytes.
#[inline(always)]
unsafe fn copy_line(source: *const u8, destination: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
        let (from, to) = (source.cast::<__m128i>(), destination.cast::<__m128i>());
        // SAFETY: within the 64 bytes of the caller's contract; the load needs no alignment.
        let load = |part: usize| unsafe { _mm_loadu_si128(from.wrapping_add(part)) };
        let parts = [load(0), load(1), load(2), load(3)];
        // SAFETY: as for the loads.
        let store = |part: usize| unsafe { _mm_storeu_si128(to.wrapping_add(part), parts[part]) };
        for part in 0..4 {
            store(part);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: the caller's contract; `[u8; 64]` has no alignment and no invalid value.
        let line = unsafe { source.cast::<[u8; 64]>().read() };
        // SAFETY: the caller's contract.
        unsafe { destination.cast::<[u8; 64]>().write(line) };
    }
}

/// Copies bytes out of shared memory, once and now.
///
/// A plain copy may be moved behind the code that checks it, or be made twice from the
/// source, since to the compiler nobody else writes there: what was checked would not be
/// what is used, and a loop that waits for a change would look only once.
///
/// # Safety
///
/// `source` is valid for reads of as many bytes, and no Rust reference to it is live.
#[inline(always)]
pub(super) unsafe fn copy_out(source: *const u8, bytes: &mut [u8]) {
    // SAFETY: the caller's contract; the destination is an exclusive slice.
    unsafe { copy_bytes(source, bytes.as_mut_ptr(), bytes.len()) };
    // ORDERING: SeqCst, for the compiler only: to it the source may change here.
    compiler_fence(Ordering::SeqCst);
}

/// Copies bytes into shared memory, once and now: a plain copy may be moved behind what
/// follows, or be left out when it is overwritten later, since to the compiler nobody else
/// reads there.
///
/// # Safety
///
/// `destination` is valid for writes of as many bytes, and no Rust reference to it is live.
#[inline(always)]
pub(super) unsafe fn copy_in(bytes: &[u8], destination: *mut u8) {
    // SAFETY: the caller's contract; the source is a slice.
    unsafe { copy_bytes(bytes.as_ptr(), destination, bytes.len()) };
    // ORDERING: SeqCst, for the compiler only: to it somebody may look here.
    compiler_fence(Ordering::SeqCst);
}

/// Copies bytes within shared memory, once and now, as [`copy_out`] and [`copy_in`] do.
///
/// # Safety
///
/// As [`copy_bytes`].
#[inline(always)]
pub(super) unsafe fn copy_within(source: *const u8, destination: *mut u8, length: usize) {
    // SAFETY: the caller's contract.
    unsafe { copy_bytes(source, destination, length) };
    // ORDERING: SeqCst, for the compiler only: to it somebody may look, or change the
    // source, here.
    compiler_fence(Ordering::SeqCst);
}

/// Sets `length` bytes to the bytes of `pattern`, lowest first, over and over.
///
/// # Safety
///
/// `destination` is valid for `length` bytes of writes, and no Rust reference to the range
/// is live elsewhere.
#[inline(always)]
pub(super) unsafe fn fill_pattern(destination: *mut u8, length: usize, pattern: u64) {
    let bytes = pattern.to_le_bytes();
    let whole = length - length % bytes.len();
    for at in (0..whole).step_by(bytes.len()) {
        // SAFETY: `at + 8 <= whole <= length`.
        let word = unsafe { destination.add(at) };
        // SAFETY: the caller's contract; `[u8; 8]` has no alignment.
        unsafe { word.cast::<[u8; 8]>().write(bytes) };
    }
    // SAFETY: `whole <= length`.
    let tail = unsafe { destination.add(whole) };
    // SAFETY: the caller's contract; the rest is shorter than the pattern, which is a local.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), tail, length - whole) };
}

/// Sets `length` bytes of `memory` from `offset` to `value`, now: neither left out nor moved
/// behind what follows.
///
/// # Errors
///
/// [`OutOfBounds`] when the range is not inside the memory; nothing is written then.
pub fn fill_bytes_of(
    memory: &SharedMemory,
    offset: usize,
    length: usize,
    value: u8,
) -> Result<(), OutOfBounds> {
    let start = memory.checked_pointer(offset, length)?;
    // SAFETY: `checked_pointer` proved the range valid for writes while `memory` lives.
    unsafe { core::ptr::write_bytes(start, value, length) };
    // ORDERING: SeqCst, for the compiler only, as in `copy_in`.
    compiler_fence(Ordering::SeqCst);
    Ok(())
}

/// Asks the processor for the cache line at `address`, to read it soon.
#[inline(always)]
pub(super) fn prefetch_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address has no effect on memory.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks the processor for the cache line at `address`, to write it soon.
#[inline(always)]
pub(super) fn prefetch_line_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address has no effect on memory or flags, and processors
    // that lack it take it for an instruction without effect.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Loads a word of `width` in one access; the bits above it are zero.
///
/// # Safety
///
/// `address` is valid for reads of `width`, naturally aligned, and never accessed
/// non-atomically through a Rust reference.
#[inline(always)]
pub(super) unsafe fn load_word(address: *mut u8, width: Width, ordering: Ordering) -> u64 {
    match width {
        // SAFETY: the caller's contract, as for each arm below.
        Width::U8 => unsafe { AtomicU8::from_ptr(address) }.load(ordering).into(),
        // SAFETY: the caller's contract.
        Width::U16 => unsafe { AtomicU16::from_ptr(address.cast()) }.load(ordering).into(),
        // SAFETY: the caller's contract.
        Width::U32 => unsafe { AtomicU32::from_ptr(address.cast()) }.load(ordering).into(),
        // SAFETY: the caller's contract.
        Width::U64 => unsafe { AtomicU64::from_ptr(address.cast()) }.load(ordering),
    }
}

/// Stores the low bits of `value` as a word of `width` in one access.
///
/// # Safety
///
/// `address` is valid for writes of `width`, naturally aligned, and never accessed
/// non-atomically through a Rust reference.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "each arm keeps the bits of its width")]
pub(crate) unsafe fn store_word(address: *mut u8, width: Width, value: u64, ordering: Ordering) {
    match width {
        // SAFETY: the caller's contract, as for each arm below.
        Width::U8 => unsafe { AtomicU8::from_ptr(address) }.store(value as u8, ordering),
        // SAFETY: the caller's contract.
        Width::U16 => unsafe { AtomicU16::from_ptr(address.cast()) }.store(value as u16, ordering),
        // SAFETY: the caller's contract.
        Width::U32 => unsafe { AtomicU32::from_ptr(address.cast()) }.store(value as u32, ordering),
        // SAFETY: the caller's contract.
        Width::U64 => unsafe { AtomicU64::from_ptr(address.cast()) }.store(value, ordering),
    }
}
