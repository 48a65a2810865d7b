//! Buffers for devices, cut from large slabs that stay mapped.

mod buffer;
mod returns;
mod slab;
mod stock;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use thiserror::Error;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{MemoryError, Pages, page_size};

pub use self::buffer::DmaBuffer;
use self::buffer::{Chunk, Origin};
use self::returns::Returns;
use self::slab::{Slab, SlabMemory};
use self::stock::{LARGEST_CLASS, SMALLEST_CLASS, Stocks, class_of};
use crate::domain::{Domain, DomainError};
use crate::space::{NodeId, Request, Space};
use crate::translation::PoolTranslation;

/// Whether a process was told that it gets no huge pages: once is enough.
static TOLD: Once = Once::new();

/// How a pool is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// The size of a slab, rounded up to whole pages; the largest buffer is the largest
    /// power of two in it.
    pub slab: ByteLength,
    /// How many slabs are allocated, touched and mapped when the pool is made.
    pub slabs: usize,
    /// How many slabs there may be; more are added when a request cannot be met otherwise.
    pub max_slabs: usize,
    /// The largest pages to try. Slabs fall back to smaller ones.
    pub pages: Pages,
}

impl Default for PoolOptions {
    /// One slab of 2 MiB at first and up to 64, on the largest pages that can be had.
    fn default() -> Self {
        Self { slab: ByteLength::SIZE_2M, slabs: 1, max_slabs: 64, pages: Pages::Huge1G }
    }
}

/// A pool of buffers that devices reach.
///
/// Slabs are mapped once, each with one mapping, and cut into buffers of powers of two. A
/// buffer never crosses slabs; buffers below a page share it with others, so a device that
/// strays beyond its buffer inside the page reaches them.
///
/// # Owners and threads
///
/// The pool has one owner, who takes through `&mut`: taking and [`put`](Self::put)ting
/// touch nothing that another thread writes. Buffers may be dropped on any thread; they come
/// back over a lock-free stack, at the owner's next request that its own stock cannot meet.
/// Give each thread, or each client, a pool of its own.
///
/// # What a buffer holds
///
/// [`take`](Self::take) zeroes the buffer, so that no owner sees what the one before left.
/// [`take_reused`](Self::take_reused) does not, for owners who trust each other and
/// overwrite everything.
pub struct DmaPool {
    identity: u64,
    stocks: Stocks,
    returns: Arc<Returns>,
    translation: Arc<PoolTranslation>,
    /// The slabs, side by side at `SLAB_STRIDE`.
    space: Space,
    slabs: Vec<Arc<Slab>>,
    /// The chunk of each range in use, by its number.
    chunks: Vec<Option<Arc<Chunk>>>,
    domain: Domain,
    options: PoolOptions,
    statistics: PoolStatistics,
}

impl DmaPool {
    /// Makes a pool in `domain`, with its first slabs.
    ///
    /// # Errors
    ///
    /// [`PoolError::Memory`], [`PoolError::Domain`]; [`PoolError::Slab`] when the size of a
    /// slab is zero or does not fit.
    pub fn new(domain: &Domain, options: PoolOptions) -> Result<Self, PoolError> {
        let page = page_size().max(domain.geometry().smallest_page());
        let slab = options
            .slab
            .checked_align_up(page)
            .filter(|slab| !slab.is_zero() && slab.as_u64() >> UNIT_SHIFT < SLAB_STRIDE);
        let slab = slab.ok_or(PoolError::Slab { asked: options.slab })?;
        let mut pool = Self {
            // ORDERING: Relaxed; only uniqueness matters.
            identity: NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed),
            stocks: Stocks::new(),
            returns: Arc::new(Returns::new()),
            translation: Arc::new(PoolTranslation::new()),
            space: Space::new(),
            slabs: Vec::new(),
            chunks: Vec::new(),
            domain: domain.clone(),
            options: PoolOptions { slab, ..options },
            statistics: PoolStatistics::default(),
        };
        for _ in 0..options.slabs {
            pool.add_slab()?;
        }
        Ok(pool)
    }

    /// Takes a zeroed buffer of `length` bytes.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Length`] for a length of zero or beyond the largest buffer;
    /// - [`PoolError::Exhausted`] when all slabs are in use and there may be no more;
    /// - [`PoolError::Memory`] and [`PoolError::Domain`] when a further slab cannot be had.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<DmaBuffer, PoolError> {
        let buffer = self.take_reused(length)?;
        if let Err(error) = buffer.fill(0, length, 0) {
            debug_assert!(false, "the range is the whole buffer: {error}");
        }
        Ok(buffer)
    }

    /// Takes a buffer of `length` bytes that holds what its last owner left.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    #[inline]
    pub fn take_reused(&mut self, length: usize) -> Result<DmaBuffer, PoolError> {
        let class = class_of(length);
        let Some(mut buffer) = self.stocks.take(class) else { return self.find(length, class) };
        self.statistics.hits += 1;
        buffer.set_length(length);
        Ok(buffer)
    }

    /// Takes `count` buffers of `length` bytes as [`take_reused`](Self::take_reused) and puts
    /// them at the end of `buffers`: all, or none.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take); `buffers` is as it was then.
    #[inline]
    pub fn take_many(
        &mut self,
        length: usize,
        count: usize,
        buffers: &mut Vec<DmaBuffer>,
    ) -> Result<(), PoolError> {
        let (before, class) = (buffers.len(), class_of(length));
        self.stocks.take_many(class, count, buffers);
        let at_hand = buffers.len() - before;
        for buffer in buffers.iter_mut().skip(before) {
            buffer.set_length(length);
        }
        // CAST: at most the depth of a stock.
        self.statistics.hits += at_hand as u64;
        if at_hand < count { self.find_many(length, count - at_hand, before, buffers) } else { Ok(()) }
    }

    /// Gives a buffer back. One of another pool goes back to that pool.
    #[inline]
    pub fn put(&mut self, buffer: DmaBuffer) {
        if buffer.origin() != Origin::new(self.identity, buffer.class()) {
            return surplus(buffer);
        }
        if let Err(buffer) = self.stocks.keep(buffer) {
            surplus(buffer);
        }
    }

    /// Gives all of `buffers` back.
    #[inline]
    pub fn put_many(&mut self, buffers: &mut Vec<DmaBuffer>) {
        let Some(class) = buffers.first().map(DmaBuffer::class) else { return };
        let alike = DmaBuffer::all_from(Origin::new(self.identity, class), buffers);
        if alike && buffers.len() <= self.stocks.room(class) {
            self.stocks.keep_many(class, buffers);
        } else {
            buffers.drain(..).for_each(|buffer| self.put(buffer));
        }
    }

    /// The table from addresses of this process to I/O virtual addresses, for any thread.
    #[must_use]
    pub fn translation(&self) -> Arc<PoolTranslation> {
        Arc::clone(&self.translation)
    }

    /// The size of the largest buffer.
    #[must_use]
    pub fn largest_buffer(&self) -> ByteLength {
        ByteLength::new(1 << self.options.slab.as_u64().ilog2().min(LARGEST_CLASS))
    }

    /// What the pool has and has done, with what other threads gave back until now.
    #[must_use]
    pub fn statistics(&mut self) -> PoolStatistics {
        self.collect();
        let free = (self.space.free_units() << UNIT_SHIFT) + self.stocks.bytes().as_u64();
        PoolStatistics { in_stock: self.stocks.count(), free: ByteLength::new(free), ..self.statistics }
    }

    /// Takes a buffer that is not at hand.
    #[cold]
    #[inline(never)]
    fn find(&mut self, length: usize, class: u32) -> Result<DmaBuffer, PoolError> {
        let (asked, largest) = (ByteLength::from_usize(length), self.largest_buffer());
        if length == 0 || asked > largest {
            return Err(PoolError::Length { asked, largest });
        }
        self.statistics.misses += 1;
        self.stocks.open(class);
        self.collect();
        let mut buffer = match self.stocks.take(class) {
            Some(buffer) => buffer,
            None => self.cut(asked, class)?,
        };
        buffer.set_length(length);
        Ok(buffer)
    }

    /// Takes `count` more buffers; gives those after `before` back when one cannot be had.
    #[cold]
    #[inline(never)]
    fn find_many(
        &mut self,
        length: usize,
        count: usize,
        before: usize,
        buffers: &mut Vec<DmaBuffer>,
    ) -> Result<(), PoolError> {
        for _ in 0..count {
            match self.take_reused(length) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => {
                    buffers.drain(before..).for_each(|buffer| self.put(buffer));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Cuts a buffer from a slab; merges what is at hand, then adds a slab, for lack of room.
    fn cut(&mut self, asked: ByteLength, class: u32) -> Result<DmaBuffer, PoolError> {
        let units = 1 << (class - SMALLEST_CLASS);
        let request = Request { units, alignment: units, limit: u64::MAX, top_down: false };
        loop {
            if let Some(node) = self.space.allocate(&request) {
                return Ok(DmaBuffer::new(self.new_chunk(node, class)));
            }
            if self.stocks.count() > 0 {
                for buffer in self.stocks.drain() {
                    let number = buffer.into_number();
                    self.space.free(number);
                    self.chunks[index_of(number)] = None;
                }
            } else if self.slabs.len() < self.options.max_slabs {
                self.add_slab()?;
            } else {
                return Err(PoolError::Exhausted { asked, slabs: self.slabs.len() });
            }
        }
    }

    /// Brings in what was dropped, on whichever thread.
    fn collect(&mut self) {
        let returns = Arc::clone(&self.returns);
        for number in returns.take_all() {
            self.statistics.dropped += 1;
            let chunk = self.chunks.get(index_of(number)).and_then(Option::clone);
            let kept = chunk.map(|chunk| self.stocks.keep(DmaBuffer::new(chunk)));
            if let Some(Err(buffer)) = kept {
                self.space.free(buffer.into_number());
                self.chunks[index_of(number)] = None;
            }
        }
    }

    /// Makes the chunk of a range in use.
    fn new_chunk(&mut self, number: NodeId, class: u32) -> Arc<Chunk> {
        let (start, _) = self.space.bounds(number);
        // PANIC: ranges lie inside slabs, whose number and size fit an index.
        let slab = usize::try_from(start / SLAB_STRIDE).expect("a slab number fits");
        let offset = usize::try_from((start % SLAB_STRIDE) << UNIT_SHIFT).expect("a slab is in memory");
        let chunk =
            Arc::new(Chunk::new(&self.slabs[slab], &self.returns, offset, number, (self.identity, class)));
        self.returns.make_room(number);
        let index = index_of(number);
        if self.chunks.len() <= index {
            self.chunks.resize(index + 1, None);
        }
        self.chunks[index] = Some(Arc::clone(&chunk));
        chunk
    }

    #[cold]
    fn add_slab(&mut self) -> Result<(), PoolError> {
        let length = self.options.slab;
        let SlabMemory { memory, downgrade } =
            SlabMemory::allocate(length, self.options.pages, self.domain.prefers_files())?;
        let pages = memory.pages();
        let slab = Slab::new(&self.domain, memory, Arc::clone(&self.translation))?;
        if let Some((wanted, reason)) = downgrade {
            TOLD.call_once(|| {
                let name = self.domain.name();
                log::info!("{name}: DMA pool is on {pages} pages, not on {wanted} ones: {reason}");
            });
            self.statistics.downgraded += 1;
        }
        *self.statistics.slabs.of(pages) += 1;
        // CAST: `usize` is at most 64 bits wide.
        let start = self.slabs.len() as u64 * SLAB_STRIDE;
        self.slabs.push(Arc::new(slab));
        self.space.add_range(start, start + (length.as_u64() >> UNIT_SHIFT) - 1);
        Ok(())
    }
}

impl fmt::Debug for DmaPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaPool")
            .field("domain", &self.domain.name())
            .field("options", &self.options)
            .field("slabs", &self.slabs.len())
            .finish_non_exhaustive()
    }
}

/// What a pool has and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// The slabs, by their pages.
    pub slabs: SlabCounts,
    /// How many of them are on smaller pages than their size allows.
    pub downgraded: usize,
    /// Bytes that no buffer outside the pool has.
    pub free: ByteLength,
    /// Free buffers at hand, not merged with their neighbours.
    pub in_stock: usize,
    /// Requests met from the buffers at hand.
    pub hits: u64,
    /// Requests that had to look further.
    pub misses: u64,
    /// Buffers that came back by being dropped.
    pub dropped: u64,
}

/// How many slabs are on which pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabCounts {
    /// On pages of the base size.
    pub base_pages: usize,
    /// On pages that the kernel may promote to 2 MiB.
    pub transparent: usize,
    /// On 2 MiB pages.
    pub huge_2m: usize,
    /// On 1 GiB pages.
    pub huge_1g: usize,
}

impl SlabCounts {
    /// All slabs.
    #[must_use]
    pub fn total(&self) -> usize {
        self.base_pages + self.transparent + self.huge_2m + self.huge_1g
    }

    fn of(&mut self, pages: Pages) -> &mut usize {
        match pages {
            Pages::Base => &mut self.base_pages,
            Pages::Transparent => &mut self.transparent,
            Pages::Huge2M => &mut self.huge_2m,
            Pages::Huge1G => &mut self.huge_1g,
        }
    }
}

/// Why a pool gave no buffer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The size of a slab cannot be used.
    #[error("slabs of {asked} cannot be made: the size must be at least one byte and below 256 GiB")]
    Slab {
        /// The size asked for.
        asked: ByteLength,
    },
    /// The size of a buffer cannot be used.
    #[error("a buffer of {asked} is not to be had: from 1 byte to {largest}; make the slabs larger")]
    Length {
        /// The size asked for.
        asked: ByteLength,
        /// The largest buffer.
        largest: ByteLength,
    },
    /// All slabs are in use.
    #[error("no room for a buffer of {asked} in {slabs} slabs, and there may be no more")]
    Exhausted {
        /// The size asked for.
        asked: ByteLength,
        /// How many slabs there are.
        slabs: usize,
    },
    /// No memory for a slab.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A slab could not be mapped.
    #[error(transparent)]
    Domain(#[from] DomainError),
}

/// Drops a buffer for which there is no room, out of the way of the usual case.
#[cold]
#[inline(never)]
fn surplus(buffer: DmaBuffer) {
    drop(buffer);
}

fn index_of(number: NodeId) -> usize {
    // CAST: 32 bits fit an index on every supported target.
    number as usize
}

/// The unit of the space in a slab, 64 bytes.
const UNIT_SHIFT: u32 = SMALLEST_CLASS;

/// How far slabs are apart in the space; more than the units of any slab.
const SLAB_STRIDE: u64 = 1 << 32;

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(0);
