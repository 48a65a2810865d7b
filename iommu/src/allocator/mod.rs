//! Which I/O virtual addresses are free.

mod magazine;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova, IovaRange};

use self::magazine::{Cached, Magazines};
use crate::space::{NodeId, Request, Space};

/// From which end of a hole a range is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// From the bottom: while the space is empty, low addresses, which every device reaches.
    #[default]
    BottomUp,
    /// From the top: while the space is empty, high addresses, which leaves low ones to
    /// devices of narrow width.
    TopDown,
}

/// Hands out ranges of I/O virtual addresses.
///
/// A range is taken from the tightest hole, and a freed range merges with the holes beside
/// it. Ranges are whole pages and naturally aligned up to 1 GiB, so that an IOMMU can use
/// its large pages: to 4 KiB below 2 MiB, to 2 MiB below 1 GiB, to 1 GiB from there on,
/// and always to the IOMMU's smallest page. Address 0 is never handed out.
///
/// Freed ranges of common sizes wait in magazines for a request of their size; they merge
/// when a request cannot be met without them, before exhaustion is reported.
///
/// # Ownership
///
/// A range in use is an [`IovaAllocation`], which cannot be cloned: freeing it twice does
/// not compile.
#[derive(Debug)]
pub struct IovaAllocator {
    space: Space,
    magazines: Magazines,
    page: ByteLength,
    placement: Placement,
    identity: u32,
    /// Whether a range in use may be outside the usable ranges.
    stranded: bool,
    hits: u64,
    misses: u64,
}

impl IovaAllocator {
    /// An allocator for `ranges` in multiples of `page`, rounded up to a power of two of at
    /// least 4 KiB. Ranges may be in
    /// any order and overlap; what is not a whole page of one is left out, and so is page 0.
    #[must_use]
    pub fn new(ranges: &[IovaRange], page: ByteLength, placement: Placement) -> Self {
        // ORDERING: Relaxed; only uniqueness matters, and it wraps after 2^32 allocators.
        let identity = NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed);
        let mut allocator = Self {
            space: Space::new(),
            magazines: Magazines::new(),
            page,
            placement,
            identity,
            stranded: false,
            hits: 0,
            misses: 0,
        };
        allocator.set_ranges(ranges, page);
        allocator
    }

    /// Replaces the usable ranges and the page size, as after an attach. Ranges in use stay
    /// as they are; those that are no longer usable are returned.
    pub fn set_ranges(&mut self, ranges: &[IovaRange], page: ByteLength) -> Vec<IovaRange> {
        self.flush();
        let page = page.as_u64().max(UNIT).checked_next_power_of_two();
        self.page = ByteLength::new(page.unwrap_or(LARGEST_PAGE));
        let units = ranges.iter().filter_map(|range| whole_pages(*range, self.page)).collect();
        let stranded = self.space.set_ranges(units);
        self.stranded = !stranded.is_empty();
        stranded.into_iter().filter_map(|(start, last)| range_of(start, last)).collect()
    }

    /// Takes `length` bytes, rounded up to whole pages, at least one, naturally aligned and
    /// not above `limit`.
    ///
    /// # Errors
    ///
    /// [`OutOfIova`] when no hole fits.
    #[inline]
    pub fn allocate(&mut self, length: ByteLength, limit: Iova) -> Result<IovaAllocation, OutOfIova> {
        let page_mask = self.page.as_u64() - 1;
        // A length that wraps becomes zero, which no magazine keeps.
        let units = (length.as_u64().wrapping_add(page_mask) & !page_mask) >> UNIT_SHIFT;
        // What the magazines keep is naturally aligned.
        let last_of = |start: u64| (start << UNIT_SHIFT) + ((units << UNIT_SHIFT) - 1);
        match self.magazines.take(units, |start| last_of(start) <= limit.as_u64()) {
            Some(Cached { start, node }) => {
                self.hits += 1;
                Ok(self.hand_out(start, start + (units - 1), node))
            }
            None => self.allocate_from_space(length, ByteLength::new(1), limit),
        }
    }

    /// Takes `length` bytes as [`allocate`](Self::allocate), aligned to `alignment` too,
    /// which is rounded up to a power of two.
    ///
    /// # Errors
    ///
    /// [`OutOfIova`] when no hole fits.
    pub fn allocate_aligned(
        &mut self,
        length: ByteLength,
        alignment: ByteLength,
        limit: Iova,
    ) -> Result<IovaAllocation, OutOfIova> {
        if alignment <= self.page {
            self.allocate(length, limit)
        } else {
            self.allocate_from_space(length, alignment, limit)
        }
    }

    /// Takes exactly `range`, which must be whole pages and not above `limit`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when a part of it is not usable, is in use, or is not a whole page.
    pub fn reserve(&mut self, range: IovaRange, limit: Iova) -> Result<IovaAllocation, Unavailable> {
        if range.last() > limit {
            return Err(Unavailable { range, reason: UnavailableReason::BeyondLimit { limit } });
        }
        let end = ByteLength::new(range.last().as_u64().wrapping_add(1));
        if !range.start().is_aligned_to(self.page) || !end.is_aligned_to(self.page) {
            return Err(Unavailable { range, reason: UnavailableReason::Misaligned { page: self.page } });
        }
        let (start, last) = (range.start().as_u64() >> UNIT_SHIFT, range.last().as_u64() >> UNIT_SHIFT);
        if !self.space.covers(start, last) {
            return Err(Unavailable { range, reason: UnavailableReason::Unusable });
        }
        let node = match self.space.reserve(start, last) {
            Some(node) => Some(node),
            None => {
                self.flush();
                self.space.reserve(start, last)
            }
        };
        match node {
            Some(node) => Ok(self.hand_out(start, last, node)),
            None => Err(Unavailable { range, reason: UnavailableReason::InUse }),
        }
    }

    /// Gives a range back.
    ///
    /// # Errors
    ///
    /// The allocation itself when it came from another allocator; nothing changes then.
    #[inline]
    pub fn free(&mut self, allocation: IovaAllocation) -> Result<(), IovaAllocation> {
        if allocation.owner != self.identity {
            return Err(allocation);
        }
        let start = allocation.range.start().as_u64() >> UNIT_SHIFT;
        let units = (allocation.range.last().as_u64() >> UNIT_SHIFT) - start + 1;
        let natural = natural_alignment(units) - 1;
        let node = allocation.node;
        let reusable = start & natural == 0 && !self.stranded;
        if !reusable || !self.magazines.put(units, Cached { start, node }) {
            self.space.free(node);
        }
        Ok(())
    }

    /// Merges the ranges that wait in magazines into the holes.
    pub fn flush(&mut self) {
        for node in self.magazines.drain() {
            self.space.free(node);
        }
    }

    /// Whether every address of `range` is usable, free or not.
    #[must_use]
    pub fn is_usable(&self, range: IovaRange) -> bool {
        self.space.covers(range.start().as_u64() >> UNIT_SHIFT, range.last().as_u64() >> UNIT_SHIFT)
    }

    /// What the allocator has done and has left.
    #[must_use]
    pub fn statistics(&self) -> AllocatorStatistics {
        let ((used, used_units), cached) = (self.space.used(), self.magazines.ranges());
        let cached_units = self.magazines.units();
        AllocatorStatistics {
            live: used - cached,
            live_bytes: bytes(used_units - cached_units),
            cached,
            free_bytes: bytes(self.space.free_units() + cached_units),
            holes: self.space.holes(),
            largest_hole: bytes(self.space.largest_hole(u64::MAX)),
            hits: self.hits,
            misses: self.misses,
        }
    }

    /// The request in units; `None` when it fits no space at all.
    fn request(&self, length: ByteLength, alignment: ByteLength, limit: Iova) -> Option<Request> {
        let page_mask = self.page.as_u64() - 1;
        let rounded = length.as_u64().max(1).checked_add(page_mask)? & !page_mask;
        let units = rounded >> UNIT_SHIFT;
        let asked = alignment.as_u64().checked_next_power_of_two()?;
        let natural = natural_alignment(units);
        let alignment = natural.max(self.page.as_u64() >> UNIT_SHIFT).max(asked >> UNIT_SHIFT);
        // A unit is usable when its last byte is.
        let limit = match limit.as_u64().checked_add(1) {
            Some(end) => (end >> UNIT_SHIFT).checked_sub(1)?,
            None => u64::MAX >> UNIT_SHIFT,
        };
        Some(Request { units, alignment, limit, top_down: self.placement == Placement::TopDown })
    }

    #[cold]
    #[inline(never)]
    fn allocate_from_space(
        &mut self,
        length: ByteLength,
        alignment: ByteLength,
        limit: Iova,
    ) -> Result<IovaAllocation, OutOfIova> {
        self.misses += 1;
        let Some(request) = self.request(length, alignment, limit) else {
            return Err(self.exhausted(length, alignment, limit));
        };
        let node = self.space.allocate(&request).or_else(|| {
            self.flush();
            self.space.allocate(&request)
        });
        let Some(node) = node else { return Err(self.exhausted(length, alignment, limit)) };
        let (start, last) = self.space.bounds(node);
        Ok(self.hand_out(start, last, node))
    }

    #[inline]
    fn hand_out(&self, start: u64, last: u64, node: NodeId) -> IovaAllocation {
        // PANIC: units of the space are below 2^52, and `start <= last`.
        let range = range_of(start, last).expect("units of the space are addresses");
        IovaAllocation { range, node, owner: self.identity }
    }

    #[cold]
    fn exhausted(&self, asked: ByteLength, alignment: ByteLength, limit: Iova) -> OutOfIova {
        let units = asked.as_u64().max(1).div_ceil(UNIT);
        let natural = ByteLength::new(natural_alignment(units) << UNIT_SHIFT);
        OutOfIova {
            asked,
            alignment: alignment.max(natural).max(self.page),
            limit,
            largest_hole: bytes(self.space.largest_hole(limit.as_u64() >> UNIT_SHIFT)),
            free: bytes(self.space.free_units()),
            holes: self.space.holes(),
        }
    }
}

/// A range that was taken from an [`IovaAllocator`] and is given back with
/// [`IovaAllocator::free`]. Dropping it loses the addresses until the allocator ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the addresses are lost unless they are given back"]
pub struct IovaAllocation {
    range: IovaRange,
    node: NodeId,
    owner: u32,
}

impl IovaAllocation {
    /// The addresses.
    #[inline]
    #[must_use]
    pub fn range(&self) -> IovaRange {
        self.range
    }
}

/// What an allocator has done and has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStatistics {
    /// Ranges in use.
    pub live: usize,
    /// Bytes in use.
    pub live_bytes: ByteLength,
    /// Free ranges that wait in magazines.
    pub cached: usize,
    /// Bytes that are free, in magazines or not.
    pub free_bytes: ByteLength,
    /// Holes, without what waits in magazines.
    pub holes: usize,
    /// The largest of them.
    pub largest_hole: ByteLength,
    /// Requests met from a magazine.
    pub hits: u64,
    /// Requests that had to look for a hole.
    pub misses: u64,
}

/// No hole fits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no iova for {asked} aligned to {alignment} up to {limit}: the largest hole there is {largest_hole}, \
     {free} are free in {holes} holes"
)]
pub struct OutOfIova {
    /// The size asked for.
    pub asked: ByteLength,
    /// The alignment it needs.
    pub alignment: ByteLength,
    /// The last address that was allowed.
    pub limit: Iova,
    /// The largest hole up to the limit, however aligned.
    pub largest_hole: ByteLength,
    /// All free bytes, above the limit too.
    pub free: ByteLength,
    /// In how many holes they lie.
    pub holes: usize,
}

/// A certain range cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("iova range {range} cannot be had: {reason}")]
pub struct Unavailable {
    /// The range.
    pub range: IovaRange,
    /// Why not.
    pub reason: UnavailableReason,
}

/// Why a certain range cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnavailableReason {
    /// It does not begin and end with a page.
    #[error("it is not whole pages of {page}")]
    Misaligned {
        /// The page size.
        page: ByteLength,
    },
    /// A part of it is above what the device reaches.
    #[error("it passes {limit}, the last address that the device reaches")]
    BeyondLimit {
        /// The last address allowed.
        limit: Iova,
    },
    /// A part of it is outside the usable ranges.
    #[error("a part of it is not usable")]
    Unusable,
    /// A part of it is in use.
    #[error("a part of it is in use")]
    InUse,
}

/// The natural alignment of a size, both in units.
#[inline]
fn natural_alignment(units: u64) -> u64 {
    match units {
        0..UNITS_2M => 1,
        UNITS_2M..UNITS_1G => UNITS_2M,
        UNITS_1G.. => UNITS_1G,
    }
}

/// The whole pages of a range, in units, without page 0.
fn whole_pages(range: IovaRange, page: ByteLength) -> Option<(u64, u64)> {
    let mask = page.as_u64() - 1;
    let start = range.start().as_u64().max(1).checked_add(mask)? & !mask;
    let last = match range.last().as_u64().checked_add(1) {
        Some(end) => (end & !mask).checked_sub(1)?,
        None => u64::MAX,
    };
    (start <= last).then_some((start >> UNIT_SHIFT, last >> UNIT_SHIFT))
}

#[inline]
fn range_of(start: u64, last: u64) -> Option<IovaRange> {
    let first = start << UNIT_SHIFT;
    IovaRange::from_bounds(Iova::new(first), Iova::new((last << UNIT_SHIFT) | (UNIT - 1)))
}

fn bytes(units: u64) -> ByteLength {
    ByteLength::new(units.saturating_mul(UNIT))
}

const LARGEST_PAGE: u64 = 1 << 63;

/// What space is counted in. It is at most the smallest page of any IOMMU; the page size
/// of the IOMMU at hand comes on top, as an alignment.
const UNIT: u64 = 1 << UNIT_SHIFT;

const UNIT_SHIFT: u32 = 12;

const UNITS_2M: u64 = 1 << (21 - UNIT_SHIFT);

const UNITS_1G: u64 = 1 << (30 - UNIT_SHIFT);

static NEXT_IDENTITY: AtomicU32 = AtomicU32::new(0);
