//! Memory that a device, another process or another thread may reach at any time.

// UNSAFETY: turns checked offsets into pointers.
#![expect(unsafe_code, reason = "checked offsets into shared memory")]

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::sync::Arc;

use thiserror::Error;
use vm_memory::VolatileSlice;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::copy::{copy_in, copy_out, copy_within, load_word, prefetch_line, store_word};
use super::mapping::Mapping;
use super::{MemoryError, Pages, PinnedMemory, Slots};
use crate::address::{ByteLength, HostAddress};
use crate::bar::Liveness;
use crate::mmio::RegisterValue;

/// A range is not inside a memory region, or is not aligned for the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "access to {length:#x} bytes at offset {offset:#x} of a region of {limit:#x} bytes, alignment {alignment}"
)]
pub struct OutOfBounds {
    /// Where the access began.
    pub offset: u64,
    /// How long it was.
    pub length: u64,
    /// The size of the region.
    pub limit: u64,
    /// The alignment that the access needs, in bytes.
    pub alignment: u64,
}

/// A range of memory that others may read and write at any time.
///
/// It offers copies and single-word atomic accesses, never a slice: what it holds can
/// change between two looks. Clones and [`slice`](Self::slice)s share the memory and keep
/// it alive.
///
/// # Invariants
///
/// `start + length` is at most the length of `mapping`.
#[derive(Clone)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    start: usize,
    length: usize,
}

impl SharedMemory {
    pub(super) fn from_mapping(mapping: Arc<Mapping>) -> Self {
        let length = mapping.length();
        // INVARIANT: the range is the whole mapping.
        Self { mapping, start: 0, length }
    }

    /// Allocates zeroed memory that is shared from the start; see [`PinnedMemory::allocate`].
    ///
    /// # Errors
    ///
    /// As [`PinnedMemory::allocate`].
    pub fn allocate(length: ByteLength, pages: Pages) -> Result<Self, MemoryError> {
        PinnedMemory::allocate(length, pages).map(PinnedMemory::share)
    }

    /// Maps a part of a file. When it is `writable` the memory is shared with everybody who
    /// has the file open; else what is written to the memory stays in this process. The
    /// offset is a multiple of the page size, and the part lies inside the file's pages.
    ///
    /// Truncating the file below the part while it is mapped makes accesses fail with
    /// SIGBUS, as for every mapped file: seal a memory file against it, or use
    /// [`map_guarded`](Self::map_guarded).
    ///
    /// # Errors
    ///
    /// [`MemoryError::MapFile`] with the system's reason, [`MemoryError::Empty`].
    pub fn map_file(
        file: &File,
        offset: u64,
        length: ByteLength,
        writable: bool,
    ) -> Result<Self, MemoryError> {
        Ok(Self::from_mapping(Arc::new(Mapping::map_file(file, offset, length, writable)?)))
    }

    /// Maps a part of a device or file that can go away, such as a BAR. The offset is a
    /// multiple of the page size; the length need not be.
    ///
    /// An access after it went away does not kill the process with SIGBUS: it marks
    /// `liveness` as [removed](Liveness::remove), unless it is asleep or closed, reads give all ones from then on and
    /// writes are lost, page by page. The handler for this is installed with the first such
    /// mapping, in front of the one that is there; a handler that somebody installs later
    /// without calling ours ends the protection.
    ///
    /// Give the memory to a [`MappedArea`](crate::bar::MappedArea) and the same liveness to
    /// its [`Bar`](crate::bar::Bar): its reads are then
    /// [`DeviceGone`](crate::bar::BarError::DeviceGone).
    ///
    /// # Errors
    ///
    /// [`MemoryError::MapFile`] with the system's reason, for one that cannot be both read
    /// and written as well; [`MemoryError::Empty`].
    pub fn map_guarded(
        file: &File,
        offset: u64,
        length: ByteLength,
        liveness: &Arc<Liveness>,
    ) -> Result<Self, MemoryError> {
        Ok(Self::from_mapping(Arc::new(Mapping::map_guarded(file, offset, length, liveness)?)))
    }

    /// Describes memory that somebody else owns, such as a BAR that was mapped elsewhere.
    ///
    /// # Safety
    ///
    /// `address .. address + length` is valid for reads and writes until the last clone of
    /// the value is dropped, and until then nobody holds a Rust reference into it.
    #[must_use]
    pub unsafe fn from_raw_parts(address: NonNull<u8>, length: ByteLength) -> Option<Self> {
        let length = length.to_usize().filter(|length| *length > 0)?;
        // SAFETY: the caller's contract is that of `Mapping::from_raw_parts`.
        let mapping = unsafe { Mapping::from_raw_parts(address, length, false) };
        Some(Self::from_mapping(Arc::new(mapping)))
    }

    /// Describes a caller's own whole pages for as long as they are lent.
    ///
    /// # Safety
    ///
    /// As [`from_raw_parts`](Self::from_raw_parts), and the range is whole pages.
    pub(super) unsafe fn from_lent_pages(address: NonNull<u8>, length: usize) -> Self {
        // SAFETY: the caller's contract is that of `Mapping::from_raw_parts`.
        let mapping = unsafe { Mapping::from_raw_parts(address, length, true) };
        Self::from_mapping(Arc::new(mapping))
    }

    /// Ends the region, when nobody else holds a part of it.
    ///
    /// # Errors
    ///
    /// `self`, unchanged, when somebody does.
    pub(super) fn end(self) -> Result<(), Self> {
        let Self { mapping, start, length } = self;
        Arc::try_unwrap(mapping).map(drop).map_err(|mapping| Self { mapping, start, length })
    }

    /// The part of `length` bytes from `offset`; it keeps the whole region alive.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the part is empty or not inside the region.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self, OutOfBounds> {
        if length == 0 {
            return Err(self.out_of_bounds(offset, length, 1));
        }
        self.check(offset, length)?;
        // INVARIANT: checked above against `self`, which is inside the mapping.
        Ok(Self { mapping: Arc::clone(&self.mapping), start: self.start + offset, length })
    }

    /// The memory as an exclusive owner, when nobody else holds a part of it, `self` is the
    /// whole region, and its pages were never shown to anybody else: memory of a file that
    /// came from elsewhere or was handed out by [`file`](Self::file), lent memory and a
    /// device's memory stay shared for good.
    ///
    /// # Errors
    ///
    /// `self`, unchanged, when it is a part or is still shared.
    pub fn try_into_pinned(self) -> Result<PinnedMemory, Self> {
        if self.start != 0 || self.length != self.mapping.length() {
            return Err(self);
        }
        PinnedMemory::from_last_reference(self.mapping).map_err(Self::from_mapping)
    }

    /// The size of the range.
    #[must_use]
    pub fn length(&self) -> ByteLength {
        ByteLength::from_usize(self.length)
    }

    /// Where the range lies in this process.
    #[must_use]
    pub fn host_address(&self) -> HostAddress {
        // CAST: `usize` is at most 64 bits wide.
        HostAddress::new(self.mapping.host_address().as_u64() + self.start as u64)
    }

    /// The pages behind the memory.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.mapping.pages()
    }

    /// The file behind the memory and the offset of the range in it, to hand it to
    /// another process. From then on the memory is shared for good: it does not become
    /// [pinned](Self::try_into_pinned) again. `None` where another process would not get
    /// these pages: there is no file, or it was mapped to be read only.
    #[must_use]
    pub fn file(&self) -> Option<(&File, u64)> {
        // CAST: `usize` is at most 64 bits wide.
        self.mapping.file().map(|(file, offset)| (file, offset + self.start as u64))
    }

    /// Touches every page of the region now, so that no later access faults.
    ///
    /// # Errors
    ///
    /// What `madvise(2)` reports; "invalid argument" before Linux 5.14.
    pub fn populate(&self) -> io::Result<()> {
        self.mapping.populate()
    }

    /// Lets go of the file of a region that was made by [`map_guarded`](Self::map_guarded),
    /// whoever holds parts of it: accesses meet ones from now on.
    ///
    /// # Errors
    ///
    /// What the system says; "unsupported" for other memory.
    pub(crate) fn revoke(&self) -> io::Result<()> {
        self.mapping.revoke()
    }

    /// Maps a whole region of [`map_guarded`](Self::map_guarded) anew, as it was mapped
    /// first: pages of ones that a fault put there go.
    ///
    /// # Errors
    ///
    /// What the system says; "unsupported" for other memory.
    pub(crate) fn restore(&self, file: &File, offset: u64) -> io::Result<()> {
        self.mapping.restore(file, offset)
    }

    /// Whether both are parts of one region.
    #[must_use]
    pub fn same_region(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Whether nobody else in this process holds a part of the region: no mapping and no
    /// clone. It may change at once if somebody else can reach `self`.
    #[must_use]
    pub fn has_no_other_holder(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }

    /// Both parts as one, when `next` begins where `self` ends in the same region.
    #[must_use]
    pub fn joined_with(&self, next: &Self) -> Option<Self> {
        if !self.same_region(next) || self.start + self.length != next.start {
            return None;
        }
        // INVARIANT: `next` is inside the mapping, and `self` begins before it.
        Some(Self {
            mapping: Arc::clone(&self.mapping),
            start: self.start,
            length: self.length + next.length,
        })
    }

    /// A volatile view, for the traits of `vm-memory` and for reading from and writing to
    /// files without a copy.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the part is not inside the range.
    pub fn volatile_slice(&self, offset: usize, length: usize) -> Result<VolatileSlice<'_>, OutOfBounds> {
        self.check(offset, length)?;
        Ok(self.mapping.volatile_slice(self.start + offset, length))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.checked_pointer(offset, bytes.len())?;
        // SAFETY: the source was checked; the destination is an exclusive slice outside it.
        unsafe { copy_out(source, bytes) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let destination = self.checked_pointer(offset, bytes.len())?;
        // SAFETY: the destination was checked; the source is a slice outside it.
        unsafe { copy_in(bytes, destination) };
        Ok(())
    }

    /// Copies a value out, in no particular order of its bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn read_value<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, OutOfBounds> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Copies a value in, in no particular order of its bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn write_value<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) -> Result<(), OutOfBounds> {
        self.write(offset, value.as_bytes())
    }

    /// Sets bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is written then.
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<(), OutOfBounds> {
        super::fill_bytes_of(self, offset, length, value)
    }

    /// Copies `length` bytes from `source` to `self`; the ranges may overlap.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn copy_from(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length: usize,
    ) -> Result<(), OutOfBounds> {
        let from = source.checked_pointer(source_offset, length)?;
        let to = self.checked_pointer(offset, length)?;
        // SAFETY: both ranges were checked against live regions.
        unsafe { copy_within(from, to, length) };
        Ok(())
    }

    /// Loads an aligned word in one access.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] also when `offset` is not naturally aligned.
    ///
    /// # Panics
    ///
    /// For an `ordering` that a load cannot have.
    #[inline]
    pub fn load<T: RegisterValue>(&self, offset: usize, ordering: Ordering) -> Result<T, OutOfBounds> {
        let address = self.checked_word::<T>(offset)?;
        // SAFETY: `checked_word` proved range and alignment, and `self` keeps it alive.
        let value = unsafe { load_word(address, T::WIDTH, ordering) };
        Ok(T::from_u64(value))
    }

    /// Stores an aligned word in one access.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] also when `offset` is not naturally aligned; nothing is written then.
    ///
    /// # Panics
    ///
    /// For an `ordering` that a store cannot have.
    #[inline]
    pub fn store<T: RegisterValue>(
        &self,
        offset: usize,
        value: T,
        ordering: Ordering,
    ) -> Result<(), OutOfBounds> {
        let address = self.checked_word::<T>(offset)?;
        // SAFETY: `checked_word` proved range and alignment, and `self` keeps it alive.
        unsafe { store_word(address, T::WIDTH, value.to_u64(), ordering) };
        Ok(())
    }

    /// Asks the processor for the cache line at `offset`, which is about to be read; does
    /// nothing outside the range.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        if let Ok(address) = self.checked_pointer(offset, 1) {
            prefetch_line(address);
        }
    }

    /// An aligned 32-bit word for read-modify-write operations.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] also when `offset` is not a multiple of 4.
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, OutOfBounds> {
        let address = self.checked_word::<u32>(offset)?;
        // SAFETY: range and alignment were checked; the lifetime is bound to `&self`; an
        // atomic may be shared with writers of any kind.
        Ok(unsafe { AtomicU32::from_ptr(address.cast()) })
    }

    /// An aligned 64-bit word for read-modify-write operations.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] also when `offset` is not a multiple of 8.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let address = self.checked_word::<u64>(offset)?;
        // SAFETY: as in `atomic_u32`.
        Ok(unsafe { AtomicU64::from_ptr(address.cast()) })
    }

    /// A table of `count` values of 8-byte words from `offset`, checked once.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when it is not inside the range or `offset` is not a multiple of 8
    /// in the address space.
    pub fn slots<T: Slot>(&self, offset: usize, count: usize) -> Result<Slots<T>, OutOfBounds> {
        Slots::new(self.clone(), offset, count)
    }

    /// The pointer to a checked range.
    #[inline]
    pub(crate) fn checked_pointer(&self, offset: usize, length: usize) -> Result<*mut u8, OutOfBounds> {
        self.check(offset, length)?;
        // SAFETY: `start + offset <= mapping.length()` by the type invariant and the check.
        Ok(unsafe { self.mapping.as_non_null().as_ptr().add(self.start + offset) })
    }

    /// The pointer to a checked and aligned word.
    #[inline]
    pub(crate) fn checked_word<T: RegisterValue>(&self, offset: usize) -> Result<*mut u8, OutOfBounds> {
        let width = T::WIDTH.bytes();
        let address = self.checked_pointer(offset, width)?;
        if address.addr().is_multiple_of(width) {
            Ok(address)
        } else {
            Err(self.out_of_bounds(offset, width, width))
        }
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBounds> {
        if offset <= self.length && length <= self.length - offset {
            Ok(())
        } else {
            Err(self.out_of_bounds(offset, length, 1))
        }
    }

    #[cold]
    pub(super) fn out_of_bounds(&self, offset: usize, length: usize, alignment: usize) -> OutOfBounds {
        // CAST: `usize` is at most 64 bits wide.
        OutOfBounds {
            offset: offset as u64,
            length: length as u64,
            limit: self.length as u64,
            alignment: alignment as u64,
        }
    }
}

use super::slots::Slot;

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("address", &self.host_address())
            .field("length", &self.length())
            .field("pages", &self.pages())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> SharedMemory {
        SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap()
    }

    #[test]
    fn exclusive_ownership_comes_back_only_to_the_last_holder() {
        let memory = region();
        memory.write(10, b"abc").unwrap();
        let part = memory.slice(8, 16).unwrap();
        let memory = memory.try_into_pinned().expect_err("a part is alive");
        let part = part.try_into_pinned().expect_err("a part is never the whole");
        drop(part);
        let pinned = memory.try_into_pinned().unwrap();
        assert_eq!(&pinned[10..13], b"abc");
        assert!(pinned[13..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_neighbours_of_one_region_join() {
        let memory = region();
        let (low, high) = (memory.slice(8, 16).unwrap(), memory.slice(24, 8).unwrap());
        let joined = low.joined_with(&high).unwrap();
        assert_eq!((joined.host_address(), joined.length()), (low.host_address(), ByteLength::new(24)));
        assert!(high.joined_with(&low).is_none() && low.joined_with(&low).is_none());
        assert!(low.joined_with(&region().slice(24, 8).unwrap()).is_none());
    }

    #[test]
    fn accesses_outside_or_misaligned_fail_and_change_nothing() {
        let memory = region();
        let limit = 4096;
        assert_eq!(
            memory.write(4090, &[1; 7]).unwrap_err(),
            OutOfBounds { offset: 4090, length: 7, limit, alignment: 1 }
        );
        assert!(memory.read(usize::MAX, &mut [0; 2]).is_err());
        assert!(memory.store::<u32>(2, 5, Ordering::Relaxed).is_err());
        assert!(memory.load::<u64>(4092, Ordering::Relaxed).is_err());
        assert!(memory.slice(4096, 0).is_err() && memory.slice(1, 4096).is_err());
        let part = memory.slice(4, 8).unwrap();
        assert!(part.load::<u64>(0, Ordering::Relaxed).is_err(), "aligned in the part, not in memory");
        let mut all = [0xff; 4096];
        memory.read(0, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn words_of_each_width_are_little_endian_in_memory() {
        let memory = region();
        memory.store::<u64>(0, 0x1122_3344_5566_7788, Ordering::Relaxed).unwrap();
        assert_eq!(memory.load::<u8>(0, Ordering::Relaxed), Ok(0x88));
        assert_eq!(memory.load::<u16>(2, Ordering::Relaxed), Ok(0x5566));
        assert_eq!(memory.load::<u32>(4, Ordering::Relaxed), Ok(0x1122_3344));
        memory.store::<u16>(6, 0xaabb, Ordering::Relaxed).unwrap();
        assert_eq!(memory.read_value::<u64>(0), Ok(0xaabb_3344_5566_7788));
    }

    #[test]
    fn a_vector_is_taken_only_when_it_is_whole_pages() {
        let (error, vector) = PinnedMemory::from_vec(vec![7; 100]).unwrap_err();
        assert!(error.to_string().contains("not whole pages"), "{error}");
        assert_eq!(vector.len(), 100);
        assert_eq!(&PinnedMemory::copy_of(&vector).unwrap()[..100], &vector[..]);
    }
}
