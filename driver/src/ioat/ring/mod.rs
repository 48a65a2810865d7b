//! The descriptor table and whose turn it is, without any register.
//!
//! # Ownership
//!
//! Four free-running indices divide the table, each written only here:
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
#[cfg(test)]
mod tests;

pub(super) use post::Transfer;

use vdk_descriptors::ioat::{IoatControl, IoatDescriptor};
use vdk_hal::address::Iova;
use vdk_hal::memory::Slots;

use super::error::CompletionFault;
use super::{Completion, Cookie};

/// One operation, or a piece of one that is fed in pieces.
#[derive(Debug)]
struct Entry<T> {
    /// What rides along; `None` for a piece that is not the last of its operation.
    owner: Option<T>,
    /// The index after the last descriptor.
    end: u32,
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
}

/// What a completion word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing that was not known.
    None,
    /// A descriptor that had completed before the last report: a late or repeated word.
    Stale,
    /// Everything before this index is done.
    UpTo(u32),
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
    mask: u32,
    head: u32,
    /// Zero also while the ring is shut.
    free: u32,
    transfer_cap: u64,
    /// Descriptors written since the last one that asks for a completion word.
    unmarked: u32,
    completion_interval: u32,
    /// The bits that ask for a completion word, in place in the first word of a descriptor.
    mark: u64,
    /// The first word of the last descriptor written, to mark it later.
    last_word: u64,
    issued: u32,
    /// Where DMACOUNT began to count.
    epoch: u32,
    /// Whether every slot has been completed since then.
    lapped: bool,
    operations: Box<[Entry<T>]>,
    /// Free-running counts of operations.
    posted: u64,
    ended: u64,
    completed: u32,
    released: u32,
    capacity: u32,
    bytes: u64,
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
        let operations = (0..slots).map(|_| Entry { owner: None, end: 0 }).collect();
        // CAST: a table has at most 2^16 slots.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^16 slots")]
        let mask = slots as u32 - 1;
        let ring = Self {
            table,
            base: base.as_u64(),
            mask,
            head: 0,
            free: options.capacity,
            transfer_cap: options.transfer_cap,
            unmarked: 0,
            completion_interval: options.completion_interval,
            mark: first_word(0, mark),
            last_word: 0,
            issued: 0,
            epoch: 0,
            lapped: false,
            operations,
            posted: 0,
            ended: 0,
            completed: 0,
            released: 0,
            capacity: options.capacity,
            bytes: 0,
            cut: None,
        };
        ring.link();
        ring
    }

    /// How many descriptors can be posted now.
    pub(super) fn free(&self) -> usize {
        widen(self.free)
    }

    /// How many descriptors can be outstanding at most.
    pub(super) fn capacity(&self) -> usize {
        widen(self.capacity)
    }

    /// Operations, and pieces of one, that have not ended.
    pub(super) fn outstanding(&self) -> usize {
        // CAST: never more than the slots.
        #[expect(clippy::cast_possible_truncation, reason = "never more than the slots")]
        let count = (self.posted - self.ended) as usize;
        count
    }

    /// Bytes posted so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
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
            && is_reached(self.operations[self.place(self.ended)].end, self.completed)
    }

    /// Hands everything posted to the engine: what to write to DMACOUNT, and how many
    /// descriptors that adds. `None` when there is nothing new.
    #[inline]
    pub(super) fn issue(&mut self) -> Option<(u16, u32)> {
        let added = self.head.wrapping_sub(self.issued);
        if added == 0 {
            return None;
        }
        if self.unmarked != 0 {
            self.unmarked = 0;
            let last = self.slot(self.head.wrapping_sub(1));
            self.table.store_words(last, FIRST_WORD, [self.last_word | self.mark]);
        }
        self.issued = self.head;
        // CAST: DMACOUNT counts modulo 2^16.
        #[expect(clippy::cast_possible_truncation, reason = "DMACOUNT counts modulo 2^16")]
        let count = self.issued.wrapping_sub(self.epoch) as u16;
        Some((count, added))
    }

    /// What an address in a completion word or in CHANSTS means.
    #[inline]
    pub(super) fn progress(&self, completed: Iova) -> Result<Progress, CompletionFault> {
        if completed.as_u64() == 0 {
            // The state after a reset: nothing of this chain is done.
            return Ok(Progress::None);
        }
        let offset = completed.as_u64().wrapping_sub(self.base);
        if offset >= (u64::from(self.mask) + 1) * SLOT_BYTES || !offset.is_multiple_of(SLOT_BYTES) {
            return Err(CompletionFault::OutsideRing);
        }
        // CAST: below the count of slots.
        #[expect(clippy::cast_possible_truncation, reason = "below the count of slots")]
        let slot = (offset / SLOT_BYTES) as u32;
        let ahead = slot.wrapping_add(1).wrapping_sub(self.completed) & self.mask;
        if ahead == 0 {
            return Ok(Progress::None);
        }
        if ahead <= self.issued.wrapping_sub(self.completed) {
            return Ok(Progress::UpTo(self.completed.wrapping_add(ahead)));
        }
        let behind = self.mask + 1 - ahead;
        let not_issued = ahead <= self.head.wrapping_sub(self.completed);
        if not_issued || (!self.lapped && behind >= self.completed.wrapping_sub(self.epoch)) {
            return Err(CompletionFault::NotIssued);
        }
        Ok(Progress::Stale)
    }

    /// Notes that everything before `index` is done.
    #[inline]
    pub(super) fn complete(&mut self, index: u32) {
        self.completed = index;
        self.lapped |= index.wrapping_sub(self.epoch) > self.mask;
    }

    /// Gives back up to `budget` owners whose operations are done.
    #[inline]
    pub(super) fn retire(&mut self, budget: usize, ended: &mut impl FnMut(Completion<T>)) -> usize {
        let mut count = 0;
        while count < budget && self.ended != self.posted {
            let place = self.place(self.ended);
            let entry = &mut self.operations[place];
            if !is_reached(entry.end, self.completed) {
                break;
            }
            let owner = entry.owner.take();
            self.free += entry.end.wrapping_sub(self.released);
            self.released = entry.end;
            let cookie = Cookie(self.ended);
            // Before the call: if it panics, the owner was given back once all the same.
            self.ended += 1;
            if let Some(owner) = owner {
                count += 1;
                ended(Completion { cookie, result: Ok(()), owner });
            }
        }
        count
    }

    /// Takes nothing new until [`restart`](Self::restart).
    pub(super) fn shut(&mut self) {
        self.free = 0;
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> usize {
        widen(index & self.mask)
    }

    #[inline(always)]
    fn place(&self, operation: u64) -> usize {
        // CAST: masked to the count of slots.
        #[expect(clippy::cast_possible_truncation, reason = "masked to the count of slots")]
        let place = (operation & u64::from(self.mask)) as usize;
        place
    }
}

/// The size of a descriptor.
pub(super) const SLOT_BYTES: u64 = size_of::<IoatDescriptor>() as u64;

/// Whether everything before `end` is done. At most 2^16 descriptors are outstanding, so
/// the difference tells which index comes first although both wrap.
#[inline(always)]
fn is_reached(end: u32, completed: u32) -> bool {
    completed.wrapping_sub(end) < 1 << 31
}

#[inline(always)]
const fn widen(value: u32) -> usize {
    // CAST: `usize` has at least 32 bits on every supported target.
    value as usize
}

/// Size and control as they lie in the first 64-bit word of a descriptor.
#[inline(always)]
fn first_word(size: u32, control: IoatControl) -> u64 {
    u64::from(control.0) << 32 | u64::from(size)
}
