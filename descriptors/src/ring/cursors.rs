//! Both ends of a ring.

use core::fmt;
use core::marker::PhantomData;

use thiserror::Error;

/// An unsigned integer that a device counts with.
pub trait RingIndex: Copy + Eq + fmt::Debug + fmt::LowerHex + sealed::Sealed + 'static {
    /// How many bits it has.
    const BITS: u32;

    /// The low bits of `count`.
    fn truncate(count: u64) -> Self;

    /// The value with zeros above.
    fn to_u64(self) -> u64;

    /// How many steps lead from `earlier` to `self`, modulo the period.
    #[inline]
    fn distance_from(self, earlier: Self) -> u64 {
        Self::truncate(self.to_u64().wrapping_sub(earlier.to_u64())).to_u64()
    }
}

/// How a device names a place in the ring: [`FreeRunning`] or [`Wrapped`].
pub trait IndexKind: fmt::Debug + sealed::Sealed + 'static {
    /// What it writes or reads.
    type Index: RingIndex;

    /// How many slots of a ring may be used at once, at most.
    fn usable(depth: u32) -> u32;

    /// The index of a place: `total` entries since the beginning, in slot `slot`.
    fn index(total: u64, slot: u32) -> Self::Index;

    /// How many entries lie between a known place and `index`.
    ///
    /// # Errors
    ///
    /// [`IndexError::OutOfRange`] when `index` is no place of the ring.
    fn distance(index: Self::Index, total: u64, slot: u32, depth: u32) -> Result<u64, IndexError>;
}

/// Indices that count entries and wrap at the width of `I`: all slots are usable.
#[derive(Debug)]
pub struct FreeRunning<I>(PhantomData<fn() -> I>);

/// Indices that are slot numbers: all slots but one are usable.
#[derive(Debug)]
pub struct Wrapped<I>(PhantomData<fn() -> I>);

impl<I: RingIndex> IndexKind for FreeRunning<I> {
    type Index = I;

    fn usable(depth: u32) -> u32 {
        // A difference of a whole period would look like none.
        u32::try_from(u64::MAX >> (64 - I::BITS)).map_or(depth, |most| depth.min(most))
    }

    #[inline]
    fn index(total: u64, _slot: u32) -> I {
        I::truncate(total)
    }

    #[inline]
    fn distance(index: I, total: u64, _slot: u32, _depth: u32) -> Result<u64, IndexError> {
        Ok(index.distance_from(I::truncate(total)))
    }
}

impl<I: RingIndex> IndexKind for Wrapped<I> {
    type Index = I;

    fn usable(depth: u32) -> u32 {
        depth - 1
    }

    #[inline]
    fn index(_total: u64, slot: u32) -> I {
        I::truncate(u64::from(slot))
    }

    #[inline]
    fn distance(index: I, _total: u64, slot: u32, depth: u32) -> Result<u64, IndexError> {
        let (index, slot, depth) = (index.to_u64(), u64::from(slot), u64::from(depth));
        if index >= depth {
            return Err(IndexError::OutOfRange { index, depth });
        }
        Ok(if index >= slot { index - slot } else { index + depth - slot })
    }
}

/// An index from the other side that cannot be. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It names no slot.
    #[error("index {index:#x} is not in a ring of {depth:#x} slots")]
    OutOfRange {
        /// The index.
        index: u64,
        /// The number of slots.
        depth: u64,
    },
    /// It is further than can be true.
    #[error("index {index:#x} is {ahead:#x} entries ahead, only {possible:#x} are possible")]
    TooFar {
        /// The index.
        index: u64,
        /// How many entries that would be.
        ahead: u64,
        /// How many are possible.
        possible: u32,
    },
}

/// A depth that a ring cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a ring of {depth:#x} slots with {usable:#x} in use at once cannot be indexed: {reason}")]
pub struct DepthError {
    /// The number of slots.
    pub depth: u32,
    /// How many of them were to be usable.
    pub usable: u32,
    /// What is wrong.
    pub reason: &'static str,
}

/// Both ends of a ring: how many entries were produced, issued to the other side, and
/// consumed.
///
/// # Ownership
///
/// Slots from the consumer's end to the producer's are **used**: first the **outstanding**
/// ones, which the other side was told of, then the **pending** ones, which are produced
/// and not yet issued. The others are free.
///
/// # Invariants
///
/// `outstanding + pending <= usable <= depth`; the slots are below `depth`, and the
/// producer's is `outstanding + pending` behind the consumer's.
#[derive(Debug)]
pub struct Cursors<K> {
    depth: u32,
    usable: u32,
    produced: u64,
    consumed: u64,
    producer_slot: u32,
    consumer_slot: u32,
    outstanding: u32,
    pending: u32,
    _kind: PhantomData<fn() -> K>,
}

impl<K: IndexKind> Cursors<K> {
    /// An empty ring of `depth` slots, of which as many are usable as the kind allows.
    ///
    /// # Errors
    ///
    /// [`DepthError`] when that is none, or when the indices are too narrow.
    pub fn new(depth: u32) -> Result<Self, DepthError> {
        let usable = if depth == 0 { 0 } else { K::usable(depth) };
        Self::with_usable(depth, usable)
    }

    /// An empty ring of `depth` slots that never uses more than `usable` at once.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and when `usable` is more than the kind allows.
    pub fn with_usable(depth: u32, usable: u32) -> Result<Self, DepthError> {
        let refused = |reason| Err(DepthError { depth, usable, reason });
        if depth == 0 || usable == 0 {
            return refused("no slot would be usable");
        }
        if usable > K::usable(depth) {
            return refused("full would look like empty");
        }
        if u64::from(depth - 1) > K::Index::truncate(u64::MAX).to_u64() {
            return refused("the indices are narrower than the ring");
        }
        // INVARIANT: empty, and the limits were checked.
        Ok(Self {
            depth,
            usable,
            produced: 0,
            consumed: 0,
            producer_slot: 0,
            consumer_slot: 0,
            outstanding: 0,
            pending: 0,
            _kind: PhantomData,
        })
    }

    /// The same ring, empty, with `total` entries behind it: for a device that does not
    /// begin to count at zero.
    #[must_use]
    pub fn starting_at(mut self, total: u64) -> Self {
        self.reset();
        (self.produced, self.consumed) = (total, total);
        // CAST: a remainder is below the depth, which is 32 bits wide.
        #[expect(clippy::cast_possible_truncation, reason = "below the depth")]
        let slot = (total % u64::from(self.depth)) as u32;
        (self.producer_slot, self.consumer_slot) = (slot, slot);
        self
    }

    /// How many slots there are.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// How many slots may be in use at once.
    #[inline]
    #[must_use]
    pub fn usable(&self) -> u32 {
        self.usable
    }

    /// How many more entries can be produced.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.usable - self.used()
    }

    /// How many entries are produced and not consumed.
    #[inline]
    #[must_use]
    pub fn used(&self) -> u32 {
        self.outstanding + self.pending
    }

    /// How many entries the other side was told of and has not consumed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// How many entries are produced and not issued.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// How many entries were produced since the beginning or the last reset.
    #[inline]
    #[must_use]
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// How many entries were consumed since the beginning or the last reset.
    #[inline]
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The producer's end as the device names it: behind the last entry.
    #[inline]
    #[must_use]
    pub fn producer_index(&self) -> K::Index {
        K::index(self.produced, self.producer_slot)
    }

    /// The consumer's end as the device names it: the oldest entry.
    #[inline]
    #[must_use]
    pub fn consumer_index(&self) -> K::Index {
        K::index(self.consumed, self.consumer_slot)
    }

    /// The slot of the oldest entry, or of the next one when there is none.
    #[inline]
    #[must_use]
    pub fn consumer_slot(&self) -> u32 {
        self.consumer_slot
    }

    /// The slots that the next `count` entries would take; `None` when fewer are free.
    /// Changes nothing.
    #[inline]
    #[must_use]
    pub fn vacant(&self, count: u32) -> Option<Run> {
        (count <= self.free()).then_some(Run { first: self.producer_slot, count, depth: self.depth })
    }

    /// Produces `count` entries, all or none.
    #[inline]
    #[must_use = "`None` means that nothing was produced"]
    pub fn produce(&mut self, count: u32) -> Option<Run> {
        let run = self.vacant(count)?;
        // INVARIANT: `vacant` has checked the count.
        self.pending += count;
        self.produced = self.produced.wrapping_add(u64::from(count));
        self.producer_slot = run.behind();
        Some(run)
    }

    /// All pending entries become outstanding: the other side is told of them, or will be
    /// at once. Returns how many.
    #[inline]
    pub fn issue(&mut self) -> u32 {
        let issued = core::mem::take(&mut self.pending);
        self.outstanding += issued;
        issued
    }

    /// Consumes the `count` oldest outstanding entries, all or none.
    #[inline]
    #[must_use = "`None` means that nothing was consumed"]
    pub fn consume(&mut self, count: u32) -> Option<Run> {
        if count > self.outstanding {
            return None;
        }
        let run = Run { first: self.consumer_slot, count, depth: self.depth };
        // INVARIANT: the count was checked.
        self.outstanding -= count;
        self.consumed = self.consumed.wrapping_add(u64::from(count));
        self.consumer_slot = run.behind();
        Some(run)
    }

    /// The other side says that it has consumed up to `index`. Returns what is new.
    ///
    /// # Errors
    ///
    /// [`IndexError`] when that is more than is outstanding; nothing has changed.
    #[inline]
    pub fn accept_consumed(&mut self, index: K::Index) -> Result<Run, IndexError> {
        let ahead = K::distance(index, self.consumed, self.consumer_slot, self.depth)?;
        let taken = u32::try_from(ahead).ok().and_then(|count| self.consume(count));
        taken.ok_or(IndexError::TooFar { index: index.to_u64(), ahead, possible: self.outstanding })
    }

    /// The other side says that it has produced up to `index`. Returns what is new, which
    /// is outstanding from now on.
    ///
    /// # Errors
    ///
    /// [`IndexError`] when there is no room for so much; nothing has changed.
    #[inline]
    pub fn accept_produced(&mut self, index: K::Index) -> Result<Run, IndexError> {
        let ahead = K::distance(index, self.produced, self.producer_slot, self.depth)?;
        let possible = self.free();
        let given = u32::try_from(ahead).ok().and_then(|count| self.produce(count));
        let run = given.ok_or(IndexError::TooFar { index: index.to_u64(), ahead, possible })?;
        self.issue();
        Ok(run)
    }

    /// Empties the ring and begins to count at zero, as a device does after a reset.
    pub fn reset(&mut self) {
        // INVARIANT: empty.
        (self.produced, self.consumed) = (0, 0);
        (self.producer_slot, self.consumer_slot) = (0, 0);
        (self.outstanding, self.pending) = (0, 0);
    }
}

/// Slots that follow one another in a ring, over its end if need be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    first: u32,
    count: u32,
    depth: u32,
}

impl Run {
    /// How many slots.
    #[inline]
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The slot number `position` of the run; `None` at its end.
    #[inline]
    #[must_use]
    pub fn slot(self, position: u32) -> Option<u32> {
        (position < self.count).then(|| advance(self.first, position, self.depth))
    }

    /// The slots in order.
    #[inline]
    #[must_use]
    pub fn slots(self) -> RunSlots {
        RunSlots { next: self.first, rest: self.count, depth: self.depth }
    }

    /// The slot behind the run.
    #[inline]
    fn behind(self) -> u32 {
        advance(self.first, self.count, self.depth)
    }
}

impl IntoIterator for Run {
    type Item = u32;
    type IntoIter = RunSlots;

    #[inline]
    fn into_iter(self) -> RunSlots {
        self.slots()
    }
}

/// The slot numbers of a [`Run`].
#[derive(Clone, Debug)]
pub struct RunSlots {
    next: u32,
    rest: u32,
    depth: u32,
}

impl Iterator for RunSlots {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        self.rest = self.rest.checked_sub(1)?;
        let slot = self.next;
        self.next = advance(slot, 1, self.depth);
        Some(slot)
    }
}

/// The slot `count` places behind `slot`, both at most `depth`: the wrap is at the end
/// exactly, however large the step.
#[inline]
pub(super) fn advance(slot: u32, count: u32, depth: u32) -> u32 {
    let behind = u64::from(slot) + u64::from(count);
    let depth = u64::from(depth);
    let slot = if behind >= depth { behind - depth } else { behind };
    // CAST: below the depth, which is 32 bits wide.
    #[expect(clippy::cast_possible_truncation, reason = "below the depth")]
    let slot = slot as u32;
    slot
}

mod sealed {
    pub trait Sealed {}
    impl<I: super::RingIndex> Sealed for super::FreeRunning<I> {}
    impl<I: super::RingIndex> Sealed for super::Wrapped<I> {}
}

macro_rules! ring_index {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}

        impl RingIndex for $type {
            const BITS: u32 = <$type>::BITS;

            #[inline]
            fn truncate(count: u64) -> Self {
                let mut low = [0; size_of::<$type>()];
                low.copy_from_slice(&count.to_le_bytes()[..size_of::<$type>()]);
                Self::from_le_bytes(low)
            }

            #[inline]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}

ring_index!(u8, u16, u32, u64);

#[cfg(test)]
mod tests;
