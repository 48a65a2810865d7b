//! Scatter-gather lists.
//!
//! A transfer is described by a list of ranges of I/O virtual addresses. [`SgList`] is
//! built from pieces of any size and offset, piece by piece, under the [`SgLimits`] that
//! the device declares: what is too long or crosses a boundary is cut, what is adjacent is
//! merged. [`refine`] walks the lists of both sides of a copy together.
//!
//! # Decisions
//!
//! - A piece of zero bytes is refused ([`SgError::ZeroLength`]): it is always a mistake
//!   somewhere else, and devices disagree on what a length of zero means.
//! - An empty list is legal. Its total is zero, and two empty lists refine to no segment.
//! - A push that fails leaves the list as it was.
//! - A list that was [cleared](SgList::clear) keeps its memory; building one of the same
//!   size again allocates nothing.
//!
//! Pieces that come from a user's buffer go through a [`Translate`], which says for how
//! many bytes an answer holds; see [`SgList::push_buffer`].

mod boundary;
mod limits;
mod refine;
mod translate;

pub use boundary::{aligned_maximum, crosses, until_boundary};
pub use limits::{Pieces, SgLimits, SgLimitsError};
pub use refine::{CopySegment, Refine, RefineError, refine};
pub use translate::{Translate, TranslateError, Translation};

use limits::Cutter;
use thiserror::Error;
use vdk_hal::address::{ByteLength, HostAddress, Iova};

/// One entry: `length` bytes from `iova`, never zero in an [`SgList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SgEntry {
    /// The address of the first byte.
    pub iova: Iova,
    /// How many bytes.
    pub length: ByteLength,
}

/// Why a piece was not taken. The list is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SgError {
    /// A piece without bytes.
    #[error("a piece at iova {iova} has no bytes")]
    ZeroLength {
        /// Where it begins.
        iova: Iova,
    },
    /// A piece that does not fit the 64-bit space.
    #[error("a piece of {length:#x} bytes at iova {iova} passes the end of the address space")]
    PastEnd {
        /// Where it begins.
        iova: Iova,
        /// Its size.
        length: u64,
    },
    /// The device wants what is aligned; copy the piece to an aligned place.
    #[error("a piece of {length:#x} bytes at iova {iova} is not aligned to {alignment:#x} bytes")]
    Unaligned {
        /// Where it begins.
        iova: Iova,
        /// Its size.
        length: u64,
        /// What the device wants.
        alignment: u64,
    },
    /// The device takes no list so long; make two transfers.
    #[error("the list would have {needed} entries, the device takes {limit}")]
    TooManyEntries {
        /// How many entries there would be.
        needed: u64,
        /// How many there may be.
        limit: usize,
    },
    /// The sum of all pieces does not fit 64 bits.
    #[error("the list would have more than {0:#x} bytes", u64::MAX)]
    TooLong,
    /// There is no memory for the list itself.
    #[error("no memory for a list of {entries} entries")]
    NoMemory {
        /// How many entries there would be.
        entries: u64,
    },
}

/// A list of ranges that a device takes as they are.
///
/// # Invariants
///
/// The first `cursor.count` places are the entries. Every entry obeys the limits, no entry
/// could be joined with the one before it without breaking a limit, and `cursor.total` is
/// the sum of all lengths. There are never more places than [`SgLimits::max_count`].
#[derive(Clone, Debug)]
pub struct SgList {
    places: Vec<SgEntry>,
    cursor: Cursor,
    cutter: Cutter,
    limits: SgLimits,
}

/// How far a list is built.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    count: usize,
    total: u64,
    /// Where the last entry ends, modulo 2^64; zero for an empty list.
    end: u64,
}

impl SgList {
    /// An empty list under `limits`.
    ///
    /// # Errors
    ///
    /// [`SgLimitsError`] for limits that contradict themselves.
    pub fn new(limits: &SgLimits) -> Result<Self, SgLimitsError> {
        Self::with_capacity(limits, 0)
    }

    /// An empty list with memory for `capacity` entries.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_capacity(limits: &SgLimits, capacity: usize) -> Result<Self, SgLimitsError> {
        let cutter = Cutter::new(limits)?;
        let places = vec![FREE_PLACE; capacity.min(limits.max_count.unwrap_or(usize::MAX))];
        // INVARIANT: there are no entries.
        Ok(Self { places, cursor: Cursor::EMPTY, cutter, limits: *limits })
    }

    /// Appends the `length` bytes from `iova`, cut and merged as the limits demand.
    ///
    /// # Errors
    ///
    /// [`SgError`]; the list is as it was.
    #[inline]
    pub fn push(&mut self, iova: Iova, length: ByteLength) -> Result<(), SgError> {
        let piece = [SgEntry { iova, length }];
        let rest = self.cursor.push_run(&self.cutter, &mut self.places, &piece);
        if !rest.is_empty() && !self.cursor.join_run(&self.cutter, &mut self.places, rest).is_empty() {
            return self.push_any(piece[0]);
        }
        Ok(())
    }

    /// Appends all pieces or none. The fastest way to build a list.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push), for the first piece that is not taken; the list is as it
    /// was before the first.
    pub fn push_all(&mut self, pieces: &[SgEntry]) -> Result<(), SgError> {
        let before = self.checkpoint();
        let mut rest = pieces;
        loop {
            rest = self.cursor.push_run(&self.cutter, &mut self.places, rest);
            rest = self.cursor.join_run(&self.cutter, &mut self.places, rest);
            let Some((piece, behind)) = rest.split_first() else { return Ok(()) };
            if let Err(error) = self.push(piece.iova, piece.length) {
                self.roll_back(before);
                return Err(error);
            }
            rest = behind;
        }
    }

    /// As [`push_all`](Self::push_all), for pieces that are not in an array.
    ///
    /// # Errors
    ///
    /// As [`push_all`](Self::push_all).
    #[inline]
    pub fn push_each(&mut self, pieces: impl IntoIterator<Item = SgEntry>) -> Result<(), SgError> {
        let before = self.checkpoint();
        for piece in pieces {
            if let Err(error) = self.push(piece.iova, piece.length) {
                self.roll_back(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Appends a buffer of this process, all of it or nothing. `translate` is asked for
    /// the rest of the buffer until it has answered for every byte, so pages may lie in
    /// any order.
    ///
    /// # Errors
    ///
    /// [`TranslateError`]; the list is as it was.
    pub fn push_buffer<T: Translate>(
        &mut self,
        address: HostAddress,
        length: ByteLength,
        mut translate: T,
    ) -> Result<(), TranslateError<T::Error>> {
        let before = self.checkpoint();
        let result = translate::pieces(address, length, &mut translate, |piece| {
            self.push(piece.iova, piece.length).map_err(TranslateError::Refused)
        });
        if result.is_err() {
            self.roll_back(before);
        }
        result
    }

    /// The entries, in order.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[SgEntry] {
        // PANIC: `count` is at most the number of places, by the type invariant.
        &self.places[..self.cursor.count]
    }

    /// How many bytes the list describes.
    #[inline]
    #[must_use]
    pub fn total(&self) -> ByteLength {
        ByteLength::new(self.cursor.total)
    }

    /// How many entries there are.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.cursor.count
    }

    /// Whether there is no entry.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cursor.count == 0
    }

    /// The limits that the entries obey.
    #[must_use]
    pub fn limits(&self) -> &SgLimits {
        &self.limits
    }

    /// Removes all entries and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        // INVARIANT: there are no entries.
        self.cursor = Cursor::EMPTY;
    }

    #[cold]
    #[inline(never)]
    fn push_any(&mut self, piece: SgEntry) -> Result<(), SgError> {
        let SgEntry { iova, length } = piece;
        let (start, bytes) = (iova.as_u64(), length.as_u64());
        if bytes == 0 {
            return Err(SgError::ZeroLength { iova });
        }
        if start.checked_add(bytes - 1).is_none() {
            return Err(SgError::PastEnd { iova, length: bytes });
        }
        if (start | bytes) & self.cutter.alignment_mask != 0 {
            let alignment = self.limits.alignment.as_u64();
            return Err(SgError::Unaligned { iova, length: bytes, alignment });
        }
        let total = self.cursor.total.checked_add(bytes).ok_or(SgError::TooLong)?;
        // What is adjacent is cut again together with the entry that it continues.
        let adjacent = self
            .entries()
            .last()
            .filter(|entry| entry.iova.checked_add(entry.length).is_some_and(|end| end == iova));
        let (start, run) = match adjacent {
            Some(entry) => {
                let run = entry.length.as_u64().checked_add(bytes).ok_or(SgError::TooLong)?;
                (entry.iova.as_u64(), run)
            }
            None => (start, bytes),
        };
        let kept = self.cursor.count - usize::from(adjacent.is_some());
        let count = self.make_room(kept, self.cutter.count(start, run))?;
        // INVARIANT: nothing fails from here on. The pieces obey the limits, are as long as
        // they allow, and the first of them replaces the entry that it continues.
        // PANIC: `make_room` made `count` places, `kept` is not above it.
        for (place, piece) in self.places[kept..count].iter_mut().zip(Pieces::cut(self.cutter, start, run)) {
            *place = piece;
        }
        self.cursor = Cursor { count, total, end: start.wrapping_add(run) };
        Ok(())
    }

    /// Makes places for `more` entries behind `kept`, if so many are allowed, and returns
    /// how many entries there are with them.
    fn make_room(&mut self, kept: usize, more: u64) -> Result<usize, SgError> {
        // CAST: `usize` is at most 64 bits wide.
        let needed = (kept as u64).saturating_add(more);
        let limit = self.limits.max_count.unwrap_or(usize::MAX);
        let count = match usize::try_from(needed) {
            Ok(count) if count <= limit => count,
            _ => return Err(SgError::TooManyEntries { needed, limit }),
        };
        if let Some(missing) = count.checked_sub(self.places.len()).filter(|missing| *missing > 0) {
            self.places.try_reserve(missing).map_err(|_| SgError::NoMemory { entries: needed })?;
            // INVARIANT: not more than `limit`, of which `count` was proven to be a part.
            self.places.resize(self.places.capacity().min(limit), FREE_PLACE);
        }
        Ok(count)
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint { cursor: self.cursor, last: self.entries().last().copied() }
    }

    #[cold]
    fn roll_back(&mut self, to: Checkpoint) {
        // INVARIANT: entries before the last one were not touched since the checkpoint, and
        // the last one was at most replaced by a longer one at its place.
        self.cursor = to.cursor;
        if let Some(last) = to.last {
            // PANIC: there was a last entry at the checkpoint, and places are only added.
            self.places[to.cursor.count - 1] = last;
        }
    }
}

impl Cursor {
    const EMPTY: Self = Self { count: 0, total: 0, end: 0 };

    /// Takes pieces as long as each becomes an entry as it is, and returns the others.
    #[inline]
    fn push_run<'a>(
        &mut self,
        cutter: &Cutter,
        places: &mut [SgEntry],
        pieces: &'a [SgEntry],
    ) -> &'a [SgEntry] {
        let Self { count, mut total, mut end } = *self;
        let mut taken = 0;
        for (place, piece) in places[count..].iter_mut().zip(pieces) {
            let Some(last) = cutter.last_of_whole(piece) else { break };
            let (sum, overflow) = total.overflowing_add(piece.length.as_u64());
            if overflow | (piece.iova.as_u64() == end) {
                break;
            }
            *place = *piece;
            total = sum;
            end = last.wrapping_add(1);
            taken += 1;
        }
        *self = Self { count: count + taken, total, end };
        &pieces[taken..]
    }

    /// Takes pieces as long as each continues the last entry, and returns the others.
    #[inline]
    fn join_run<'a>(
        &mut self,
        cutter: &Cutter,
        places: &mut [SgEntry],
        pieces: &'a [SgEntry],
    ) -> &'a [SgEntry] {
        let Some(entry) = places.get_mut(self.count.wrapping_sub(1)) else { return pieces };
        let Self { count, mut total, mut end } = *self;
        let mut joined = entry.length.as_u64();
        let mut taken = 0;
        for piece in pieces {
            let Some(last) = cutter.last_of_whole(piece) else { break };
            // Zero is also the end of an entry that ends at 2^64, which address zero does
            // not continue.
            if piece.iova.as_u64() != end || end == 0 {
                break;
            }
            let length = piece.length.as_u64();
            let Some(sum) = total.checked_add(length) else { break };
            // No overflow: the joined length is at most the total.
            let longer = joined.wrapping_add(length);
            if longer > cutter.maximum || (entry.iova.as_u64() ^ last) & cutter.cut_mask != 0 {
                break;
            }
            joined = longer;
            total = sum;
            end = last.wrapping_add(1);
            taken += 1;
        }
        entry.length = ByteLength::new(joined);
        *self = Self { count, total, end };
        &pieces[taken..]
    }
}

#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    cursor: Cursor,
    last: Option<SgEntry>,
}

/// What a place holds that is not an entry.
const FREE_PLACE: SgEntry = SgEntry { iova: Iova::new(0), length: ByteLength::ZERO };

#[cfg(test)]
mod tests;
