//! The descriptor table and whose turn it is, without any register.
//!
//! # Ownership
//!
//! Four free-running indices, which never wrap, divide the table, each written only here:
//!
//! ```text
//!   released <= completed <= issued <= head <= released + capacity
//! ```
//!
//! - from `released` to `completed` the engine is done, and the owners have not been
//!   given back yet;
//! - from `completed` to `issued` the descriptors are the engine's;
//! - from `issued` to `head` they are written and not handed over yet;
//! - the rest is free.
//!
//! # How many slots
//!
//! The table may have many more slots than descriptors can be outstanding. An engine that is
//! software on another processor holds the cache lines that it has read, and a store to
//! each has to take the line away from it first. In a table longer than that processor's
//! second-level cache nobody holds the line of a slot any more when its turn comes again.
//! Measured between two near cores with a MiB of such cache each, an operation of a batch
//! takes 9 ns in a table of 1024 slots and 6 ns in one of 16384.
//!
//! # Why one slot stays free
//!
//! The engine reports progress as the address of the last descriptor that it completed. A
//! table whose every slot was outstanding would report "all" and "none" with the same
//! address. So a table of `n` slots has at most `n - 1` descriptors in flight, and a ring
//! of depth 1 has a table of two slots. With 2^16 slots the same slot is demanded by
//! DMACOUNT, which counts modulo 2^16. The newest descriptor's `next` points to the slot
//! after it, which is free or long done; the engine stops before it because DMACOUNT does.

mod end;
mod post;
mod streaming;
#[cfg(test)]
mod tests;

pub(super) use post::Transfer;

use vdk_descriptors::ioat::{IoatControl, IoatDescriptor};
use vdk_hal::address::Iova;
use vdk_hal::memory::Slots;

use self::streaming::Streaming;
use super::error::CompletionFault;
use super::{Completion, Cookie};

/// One operation, or a piece of one that is fed in pieces.
#[derive(Debug)]
struct Entry<T> {
    /// What rides along; `None` for a piece that is not the last of its operation.
    owner: Option<T>,
    /// The index after the last descriptor.
    end: u64,
}

/// How the ring is laid out and marked.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingOptions {
    /// How many descriptors may be outstanding, below the count of slots.
    pub(super) capacity: u32,
    /// The largest transfer of one descriptor, at least a page.
    pub(super) transfer_cap: u64,
    /// After how many descriptors at most, counted in whole operations, one asks for a
    /// completion word.
    pub(super) completion_interval: u32,
    /// Whether a completion word comes with an interrupt.
    pub(super) interrupt: bool,
    /// Whether the engine is software on another processor.
    pub(super) software: bool,
}

/// What a completion word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing that was not known.
    None,
    /// A descriptor that had completed before the last report: a late or repeated word.
    Stale,
    /// Everything before this index is done.
    UpTo(u64),
}

/// How a forced end of everything outstanding went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) bytes_undone: u64,
}

#[derive(Debug)]
pub(super) struct Ring<T> {
    table: Slots<IoatDescriptor>,
    base: u64,
    mask: u64,
    head: u64,
    /// The index at which the ring is full; `head` while it is shut.
    end: u64,
    transfer_cap: u64,
    /// The index after the last descriptor that asks for a completion word.
    marked: u64,
    completion_interval: u64,
    /// The first word of the last descriptor written, to mark it later.
    last_word: u64,
    issued: u64,
    /// Free-running count of operations.
    posted: u64,
    bytes: u64,
    operations: Box<[Entry<T>]>,
    operation_mask: u64,
    /// The bits that ask for a completion word, in place in the first word of a descriptor.
    mark: u64,
    /// Where DMACOUNT began to count.
    epoch: u64,
    ended: u64,
    completed: u64,
    released: u64,
    capacity: u64,
    /// Descriptors that were posted and never handed to the engine.
    withdrawn: u64,
    /// Bytes that a forced end left undone.
    undone: u64,
    is_shut: bool,
    streaming: Streaming,
    /// The operation that was cut off while it was fed in pieces.
    cut: Option<u64>,
}

/// The descriptor words that are written for each transfer: size and control, source,
/// destination. `next` stays in place.
const FIRST_WORD: usize = 0;

impl<T> Ring<T> {
    /// A ring in `table`, whose first slot the device sees at `base`.
    ///
    /// `table` has a power of two of slots, more than the capacity.
    pub(super) fn new(table: Slots<IoatDescriptor>, base: Iova, options: RingOptions) -> Self {
        let slots = table.count();
        let mut mark = IoatControl::default();
        mark.set_completion_write(true);
        mark.set_interrupt_enable(options.interrupt);
        // One more than descriptors: the operation that was cut off has none.
        let places = (options.capacity + 1).next_power_of_two();
        let operations = (0..places).map(|_| Entry { owner: None, end: 0 }).collect();
        let ring = Self {
            table,
            base: base.as_u64(),
            mask: slots as u64 - 1,
            head: 0,
            end: options.capacity.into(),
            transfer_cap: options.transfer_cap,
            marked: 0,
            completion_interval: options.completion_interval.into(),
            last_word: 0,
            issued: 0,
            posted: 0,
            bytes: 0,
            operations,
            operation_mask: u64::from(places) - 1,
            mark: first_word(0, mark),
            epoch: 0,
            ended: 0,
            completed: 0,
            released: 0,
            capacity: options.capacity.into(),
            withdrawn: 0,
            undone: 0,
            is_shut: false,
            streaming: Streaming::new(options.software),
            cut: None,
        };
        ring.link();
        ring
    }

    /// How many descriptors can be posted now.
    pub(super) fn free(&self) -> usize {
        narrow(self.end - self.head)
    }

    /// How many descriptors can be outstanding at most.
    pub(super) fn capacity(&self) -> usize {
        narrow(self.capacity)
    }

    /// Operations, and pieces of one, that have not ended.
    pub(super) fn outstanding(&self) -> usize {
        narrow(self.posted - self.ended)
    }

    /// Descriptors handed to the engine so far.
    pub(super) fn descriptors(&self) -> u64 {
        self.issued - self.withdrawn
    }

    /// Bytes posted so far, without those that a forced end left undone.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.undone)
    }

    /// The operation that will be posted next.
    pub(super) fn next_cookie(&self) -> Cookie {
        Cookie(self.posted)
    }

    /// Whether an operation has ended, be it with an error.
    pub(super) fn has_ended(&self, cookie: Cookie) -> bool {
        cookie.0 < self.ended
    }

    /// Whether [`retire`](Self::retire) would end something without a new report.
    pub(super) fn can_retire(&self) -> bool {
        self.completed != self.released
            && self.ended != self.posted
            && self.operations[self.place(self.ended)].end <= self.completed
    }

    /// Hands everything posted to the engine: what to write to DMACOUNT, `None` when there
    /// is nothing new.
    #[inline]
    pub(super) fn issue(&mut self) -> Option<u16> {
        if self.head == self.issued {
            return None;
        }
        if self.marked != self.head {
            self.marked = self.head;
            let last = self.slot(self.head - 1);
            self.table.store_words(last, FIRST_WORD, [self.last_word | self.mark]);
        }
        self.issued = self.head;
        // CAST: DMACOUNT counts modulo 2^16.
        #[expect(clippy::cast_possible_truncation, reason = "DMACOUNT counts modulo 2^16")]
        let count = (self.issued - self.epoch) as u16;
        Some(count)
    }

    /// Asks for the line of the next slot, so that it is there when the next descriptor is
    /// written.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        self.table.prefetch_for_write(self.slot(self.head));
    }

    /// What an address in a completion word or in CHANSTS means.
    #[inline]
    pub(super) fn progress(&self, completed: Iova) -> Result<Progress, CompletionFault> {
        let offset = completed.as_u64().wrapping_sub(self.base);
        if offset > self.mask * SLOT_BYTES || !offset.is_multiple_of(SLOT_BYTES) {
            // Zero is the state after a reset: nothing of this chain is done.
            let is_reset = completed.as_u64() == 0;
            return if is_reset { Ok(Progress::None) } else { Err(CompletionFault::OutsideRing) };
        }
        let ahead = (offset / SLOT_BYTES + 1).wrapping_sub(self.completed) & self.mask;
        if ahead == 0 {
            return Ok(Progress::None);
        }
        if ahead <= self.issued - self.completed {
            return Ok(Progress::UpTo(self.completed + ahead));
        }
        // Either one that was done in this chain, or one that is still to come.
        let behind = self.mask + 1 - ahead;
        let is_to_come = ahead <= self.head - self.completed || behind >= self.completed - self.epoch;
        if is_to_come { Err(CompletionFault::NotIssued) } else { Ok(Progress::Stale) }
    }

    /// Notes that everything before `index` is done.
    #[inline]
    pub(super) fn complete(&mut self, index: u64) {
        self.completed = index;
    }

    /// Gives back up to `budget` owners whose operations are done.
    #[inline]
    pub(super) fn retire(&mut self, budget: usize, ended: &mut impl FnMut(Completion<T>)) -> usize {
        let mut count = 0;
        let (mut next, mut released) = (self.ended, self.released);
        while count < budget && next != self.posted {
            let place = self.place(next);
            let entry = &mut self.operations[place];
            if entry.end > self.completed {
                break;
            }
            released = entry.end;
            let cookie = Cookie(next);
            next += 1;
            // Taken before the call: if it panics, the owner was given back all the same, and
            // the entry counts as a piece without an owner when the loop comes by again.
            if let Some(owner) = entry.owner.take() {
                count += 1;
                ended(Completion { cookie, result: Ok(()), owner });
            }
        }
        (self.ended, self.released) = (next, released);
        self.end = if self.is_shut { self.head } else { released + self.capacity };
        count
    }

    /// Takes nothing new until [`restart`](Self::restart).
    pub(super) fn shut(&mut self) {
        self.is_shut = true;
        self.end = self.head;
    }

    /// The place of a descriptor in the table.
    #[inline(always)]
    fn slot(&self, index: u64) -> usize {
        narrow(index & self.mask)
    }

    /// The place of an operation among the operations.
    #[inline(always)]
    fn place(&self, operation: u64) -> usize {
        narrow(operation & self.operation_mask)
    }
}

/// The size of a descriptor.
pub(super) const SLOT_BYTES: u64 = size_of::<IoatDescriptor>() as u64;

/// A count of slots, or less.
#[inline(always)]
const fn narrow(count: u64) -> usize {
    // CAST: at most 2^16.
    #[expect(clippy::cast_possible_truncation, reason = "at most 2^16")]
    let count = count as usize;
    count
}

/// Size and control as they lie in the first 64-bit word of a descriptor.
#[inline(always)]
fn first_word(size: u32, control: IoatControl) -> u64 {
    u64::from(control.0) << 32 | u64::from(size)
}
