//! A buffer of a pool.

use core::fmt;
use std::sync::Arc;

use vdk_hal::address::{ByteLength, HostAddress, Iova};
use vdk_hal::memory::{OutOfBounds, SharedMemory};
use vm_memory::VolatileSlice;

use super::returns::Returns;
use super::slab::Slab;
use crate::region::DmaSegment;

/// Memory that devices reach, taken from a [`DmaPool`](super::DmaPool).
///
/// # Ownership
///
/// The buffer is the right to its bytes and keeps their slab mapped. Dropping it, on any
/// thread, gives them back to the pool without a lock or a system call;
/// [`DmaPool::put`](super::DmaPool::put) does the same faster for the pool's owner. A
/// buffer that a device may still use must not be dropped: hand it to the queue, and keep
/// it there until the completion or a confirmed reset.
///
/// Forgetting a buffer loses its bytes to the pool and keeps the slab mapped; nothing
/// dangles.
pub struct DmaBuffer {
    chunk: Arc<Chunk>,
    length: usize,
}

// A buffer is moved at each hand-over: two words, which travel in registers.
const _: () = assert!(size_of::<DmaBuffer>() == 16 && size_of::<Option<DmaBuffer>>() == 16);

/// A part of a slab. The pool and at most one buffer refer to it.
#[derive(Debug)]
pub(super) struct Chunk {
    slab: Arc<Slab>,
    returns: Arc<Returns>,
    offset: usize,
    iova: Iova,
    number: u32,
    class: u32,
    origin: Origin,
}

/// The pool and the class of a buffer, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin(u64);

impl Origin {
    /// Buffers of `class` of the pool with the number `pool`.
    #[inline]
    pub(super) fn new(pool: u64, class: u32) -> Self {
        Self(pool << 8 | u64::from(class))
    }
}

impl Chunk {
    /// The part of `2^class` bytes from `offset` on, which must be inside the slab.
    pub(super) fn new(
        slab: &Arc<Slab>,
        returns: &Arc<Returns>,
        offset: usize,
        number: u32,
        (pool, class): (u64, u32),
    ) -> Self {
        // Inside the slab, which is mapped: no overflow.
        let iova = Iova::new(slab.region.iova().as_u64() + ByteLength::from_usize(offset).as_u64());
        let (slab, returns, origin) = (Arc::clone(slab), Arc::clone(returns), Origin::new(pool, class));
        Self { slab, returns, offset, iova, number, class, origin }
    }
}

impl DmaBuffer {
    /// The buffer of a chunk that no other buffer has.
    pub(super) fn new(chunk: Arc<Chunk>) -> Self {
        Self { chunk, length: 0 }
    }

    /// Where the buffer begins for the device: a multiple of its capacity, as far as slabs
    /// are aligned.
    #[inline]
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.chunk.iova
    }

    /// Where the buffer begins in this process, for look-up.
    #[must_use]
    pub fn host_address(&self) -> HostAddress {
        let slab = self.memory().host_address().as_u64();
        HostAddress::new(slab + ByteLength::from_usize(self.chunk.offset).as_u64())
    }

    /// The size that was asked for.
    #[inline]
    #[must_use]
    pub fn length(&self) -> ByteLength {
        ByteLength::from_usize(self.length)
    }

    /// The size that the buffer occupies in its slab, a power of two.
    #[must_use]
    pub fn capacity(&self) -> ByteLength {
        ByteLength::new(1 << self.chunk.class)
    }

    /// A part of the buffer as the device addresses it.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the part is empty or not inside the buffer.
    #[inline]
    pub fn segment(&self, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds> {
        self.check(offset, length)?;
        match self.chunk.iova.checked_add(ByteLength::from_usize(offset)) {
            Some(iova) if length > 0 => Ok(DmaSegment { iova, length: ByteLength::from_usize(length) }),
            _ => Err(self.out_of_bounds(offset, length)),
        }
    }

    /// All of the buffer as the device addresses it.
    #[inline]
    #[must_use]
    pub fn whole(&self) -> DmaSegment {
        DmaSegment { iova: self.iova(), length: self.length() }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory().write(self.check(offset, bytes.len())?, bytes)
    }

    /// Copies bytes out. They may change while they are copied.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory().read(self.check(offset, bytes.len())?, bytes)
    }

    /// Sets bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is written then.
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<(), OutOfBounds> {
        self.memory().fill(self.check(offset, length)?, length, value)
    }

    /// A volatile view of a part, for reading from and writing to files without a copy.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn volatile_slice(&self, offset: usize, length: usize) -> Result<VolatileSlice<'_>, OutOfBounds> {
        self.memory().volatile_slice(self.check(offset, length)?, length)
    }

    #[inline]
    pub(super) fn class(&self) -> u32 {
        self.chunk.class
    }

    #[inline]
    pub(super) fn set_length(&mut self, length: usize) {
        self.length = length;
    }

    #[inline]
    pub(super) fn origin(&self) -> Origin {
        self.chunk.origin
    }

    /// Whether all of `buffers` are of one origin. Without a branch for each: it is nearly
    /// always so.
    #[inline]
    pub(super) fn all_from(origin: Origin, buffers: &[Self]) -> bool {
        buffers.iter().fold(0, |different, buffer| different | (buffer.chunk.origin.0 ^ origin.0)) == 0
    }

    /// Ends the buffer without returning it; its number is for the caller to make free.
    pub(super) fn into_number(mut self) -> u32 {
        self.length = ENDED;
        self.chunk.number
    }

    #[inline]
    fn memory(&self) -> &SharedMemory {
        self.chunk.slab.region.memory()
    }

    /// The offset in the slab of a part of the buffer.
    #[inline]
    fn check(&self, offset: usize, length: usize) -> Result<usize, OutOfBounds> {
        if offset <= self.length && length <= self.length - offset {
            // Inside the slab, since the chunk is.
            Ok(self.chunk.offset + offset)
        } else {
            Err(self.out_of_bounds(offset, length))
        }
    }

    #[cold]
    fn out_of_bounds(&self, offset: usize, length: usize) -> OutOfBounds {
        // CAST: `usize` is at most 64 bits wide.
        OutOfBounds { offset: offset as u64, length: length as u64, limit: self.length as u64, alignment: 1 }
    }
}

impl Drop for DmaBuffer {
    #[inline]
    fn drop(&mut self) {
        if self.length != ENDED {
            self.chunk.returns.push(self.chunk.number);
        }
    }
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuffer")
            .field("iova", &format_args!("{}", self.iova()))
            .field("length", &format_args!("{}", self.length()))
            .finish()
    }
}

/// The length of a buffer whose chunk was given up already; no buffer is so long.
const ENDED: usize = usize::MAX;
