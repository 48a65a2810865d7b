//! Writing descriptors into free slots.

use vdk_descriptors::ioat::{IoatControl, Operation};
use vdk_descriptors::sg::{CopySegment, SgEntry};

use super::super::Cookie;
use super::super::error::RejectReason;
use super::{Entry, FIRST_WORD, Ring, first_word, widen};

/// What one or more descriptors do.
#[derive(Clone, Copy, Debug)]
pub(in crate::ioat) struct Transfer {
    /// Where to read, or the pattern of a fill.
    source: u64,
    /// Where to write.
    destination: u64,
    /// How many bytes.
    length: u64,
}

impl Transfer {
    /// A fill of one entry with `pattern`.
    #[inline]
    pub(in crate::ioat) fn fill(pattern: u64, entry: &SgEntry) -> Self {
        Self { source: pattern, destination: entry.iova.as_u64(), length: entry.length.as_u64() }
    }
}

impl From<CopySegment> for Transfer {
    #[inline]
    fn from(segment: CopySegment) -> Self {
        Self {
            source: segment.source.as_u64(),
            destination: segment.destination.as_u64(),
            length: u64::from(segment.length),
        }
    }
}

impl<T> Ring<T> {
    /// Posts one operation, all of it or nothing.
    #[inline]
    pub(in crate::ioat) fn post<const FILL: bool>(
        &mut self,
        transfers: impl Iterator<Item = Transfer> + Clone,
        owner: Option<T>,
    ) -> Result<Cookie, (Option<T>, RejectReason)> {
        let mut head = self.head;
        let end = head.wrapping_add(self.free);
        let mut word = 0;
        let mut bytes = 0;
        for transfer in transfers.clone() {
            // Zero wraps to the largest value and takes the long way as well.
            if transfer.length.wrapping_sub(1) < self.transfer_cap && head != end {
                word = operation_bits::<FILL>() | transfer.length;
                self.write(head, word, transfer.source, transfer.destination);
                head = head.wrapping_add(1);
            } else {
                match self.split::<FILL>(transfer, head, end) {
                    Some((after, last)) => (head, word) = (after, last),
                    None => return Err((owner, self.reject::<FILL>(transfers))),
                }
            }
            bytes += transfer.length;
        }
        let count = head.wrapping_sub(self.head);
        if count == 0 {
            return Err((owner, RejectReason::Empty));
        }
        self.bytes = self.bytes.wrapping_add(bytes);
        Ok(self.push(head, count, word, owner))
    }

    /// Posts as much of `segments` as there is room for, without an owner; returns how many
    /// descriptors that were. The segments are not empty and not above the transfer cap.
    pub(in crate::ioat) fn post_piece(
        &mut self,
        segments: &mut core::iter::Peekable<impl Iterator<Item = CopySegment>>,
        at_most: usize,
        owner: &mut Option<T>,
    ) -> usize {
        let room = self.free.min(u32::try_from(at_most).unwrap_or(u32::MAX));
        let mut head = self.head;
        let mut word = 0;
        while head.wrapping_sub(self.head) != room {
            let Some(segment) = segments.next() else { break };
            word = u64::from(segment.length);
            self.bytes = self.bytes.wrapping_add(u64::from(segment.length));
            self.write(head, word, segment.source.as_u64(), segment.destination.as_u64());
            head = head.wrapping_add(1);
        }
        let count = head.wrapping_sub(self.head);
        if count > 0 {
            let rides = if segments.peek().is_none() { owner.take() } else { None };
            self.push(head, count, word, rides);
        }
        widen(count)
    }

    /// Posts a descriptor that moves nothing and reports its completion.
    pub(in crate::ioat) fn post_null(&mut self) {
        let mut control = IoatControl::default();
        control.set_null(true);
        control.set_completion_write(true);
        // Version 3.0 halts on a null descriptor whose size is zero.
        let word = first_word(1, control);
        self.write(self.head, word, 0, 0);
        self.push(self.head.wrapping_add(1), 1, word, None);
        self.unmarked = 0;
    }

    #[inline(always)]
    fn push(&mut self, head: u32, count: u32, word: u64, owner: Option<T>) -> Cookie {
        self.unmarked += count;
        self.last_word = word;
        if self.unmarked >= self.completion_interval {
            self.unmarked = 0;
            let last = self.slot(head.wrapping_sub(1));
            self.table.store_words(last, FIRST_WORD, [word | self.mark]);
        }
        self.free -= count;
        self.head = head;
        let cookie = Cookie(self.posted);
        let place = self.place(self.posted);
        self.operations[place] = Entry { owner, end: head };
        self.posted += 1;
        cookie
    }

    #[inline(always)]
    fn write(&self, index: u32, word: u64, source: u64, destination: u64) {
        self.table.store_words(self.slot(index), FIRST_WORD, [word, source, destination]);
    }

    /// A transfer above the cap, as several descriptors; `None` when there is no room or it
    /// is not valid.
    #[cold]
    fn split<const FILL: bool>(&self, transfer: Transfer, mut head: u32, end: u32) -> Option<(u32, u64)> {
        let Transfer { mut source, mut destination, length: mut left } = transfer;
        if left == 0 || passes_end::<FILL>(transfer) {
            return None;
        }
        let mut word = 0;
        while left > 0 {
            if head == end {
                return None;
            }
            let length = left.min(self.transfer_cap);
            word = operation_bits::<FILL>() | length;
            self.write(head, word, source, destination);
            head = head.wrapping_add(1);
            left -= length;
            // The last sum may reach 2^64, and is not used then.
            destination = destination.wrapping_add(length);
            if !FILL {
                // A pattern stays in step: the cap is a multiple of its 8 bytes.
                source = source.wrapping_add(length);
            }
        }
        Some((head, word))
    }

    /// Why `transfers` were not posted.
    #[cold]
    fn reject<const FILL: bool>(&self, transfers: impl Iterator<Item = Transfer>) -> RejectReason {
        let mut needed = 0u64;
        for (index, transfer) in transfers.enumerate() {
            if transfer.length == 0 {
                return RejectReason::ZeroLength { index };
            }
            if passes_end::<FILL>(transfer) {
                return RejectReason::AddressOverflow { index };
            }
            needed = needed.saturating_add((transfer.length - 1) / self.transfer_cap + 1);
        }
        if needed > u64::from(self.capacity) {
            return RejectReason::TooLong { needed, capacity: self.capacity() };
        }
        RejectReason::Full { needed, free: self.free() }
    }
}

/// Whether a transfer, not empty, passes the end of the 64-bit address space.
fn passes_end<const FILL: bool>(transfer: Transfer) -> bool {
    let last = transfer.length.wrapping_sub(1);
    let overflows = |start: u64| start.checked_add(last).is_none();
    overflows(transfer.destination) || (!FILL && overflows(transfer.source))
}

#[inline(always)]
fn operation_bits<const FILL: bool>() -> u64 {
    if FILL {
        let mut control = IoatControl::default();
        control.set_operation(Operation::FILL);
        first_word(0, control)
    } else {
        0
    }
}
