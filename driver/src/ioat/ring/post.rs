//! Writing descriptors into free slots.

use vdk_descriptors::ioat::{IoatControl, IoatDescriptor, Operation};
use vdk_descriptors::sg::{CopySegment, SgEntry};
use vdk_hal::memory::StreamBatch;

use super::super::Cookie;
use super::super::error::RejectReason;
use super::{Entry, FIRST_WORD, Ring, SLOT_BYTES, first_word, narrow};

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
    #[inline(always)]
    pub(in crate::ioat) fn post<const FILL: bool>(
        &mut self,
        transfers: impl Iterator<Item = Transfer> + Clone,
        owner: Option<T>,
    ) -> Result<Cookie, (Option<T>, RejectReason)> {
        let first = self.head;
        let mut head = first;
        let mut word = 0;
        let mut bytes = 0;
        for transfer in transfers.clone() {
            let Transfer { source, destination, length } = transfer;
            // Zero wraps to the largest value and takes the long way as well.
            if length.wrapping_sub(1) < self.transfer_cap && head != self.end {
                word = operation_bits::<FILL>() | length;
                self.write(head, word, source, destination);
                head += 1;
            } else {
                match self.split::<FILL>(source, destination, length, head) {
                    Some((after, last)) => (head, word) = (after, last),
                    None => return Err((owner, self.reject::<FILL>(transfers))),
                }
            }
            bytes = length.wrapping_add(bytes);
        }
        if head == first {
            return Err((owner, RejectReason::Empty));
        }
        self.bytes = self.bytes.wrapping_add(bytes);
        Ok(self.push(head, word, owner))
    }

    /// Posts one operation for each of `copies`, while there is room and they are within the
    /// cap; returns how many, and the one that is not.
    #[inline(always)]
    pub(in crate::ioat) fn post_each(
        &mut self,
        copies: &mut impl Iterator<Item = (CopySegment, T)>,
    ) -> (usize, Option<(CopySegment, T)>) {
        if self.streaming.is_on() { self.post_all::<true>(copies) } else { self.post_all::<false>(copies) }
    }

    /// What each operation changes stays in registers until the last.
    #[inline(always)]
    fn post_all<const STREAM: bool>(
        &mut self,
        copies: &mut impl Iterator<Item = (CopySegment, T)>,
    ) -> (usize, Option<(CopySegment, T)>) {
        let first = self.head;
        let operations = self.posted.wrapping_sub(first);
        let (mut head, mut marked, mut word, mut bytes) = (first, self.marked, self.last_word, self.bytes);
        let mut long = None;
        // What is streamed is so one later: the last one may still be marked, so it is stored.
        let mut staged = [0; 3];
        // Flushed at the end of this function, before anything is handed over.
        let batch = (STREAM && head != self.end).then(|| self.table.streaming());
        while head != self.end {
            let Some((segment, owner)) = copies.next() else { break };
            let Transfer { source, destination, length } = segment.into();
            if length.wrapping_sub(1) >= self.transfer_cap {
                long = Some((segment, owner));
                break;
            }
            let operation = self.place(operations.wrapping_add(head));
            word = length;
            if head + 1 - marked >= self.completion_interval {
                marked = head + 1;
                word |= self.mark;
            }
            if let Some(batch) = &batch {
                if head != first {
                    self.stream(batch, head - 1, staged);
                }
                staged = [word, source, destination];
            } else {
                self.write(head, word, source, destination);
            }
            head += 1;
            bytes = length.wrapping_add(bytes);
            self.operations[operation] = Entry { owner: Some(owner), end: head };
        }
        let count = head - first;
        if STREAM && count > 0 {
            let [word, source, destination] = staged;
            self.write(head - 1, word, source, destination);
        }
        drop(batch);
        (self.head, self.marked, self.last_word, self.bytes) = (head, marked, word, bytes);
        self.posted += count;
        self.streaming.count(count);
        (narrow(count), long)
    }

    /// Posts as much of `segments` as there is room for, without an owner; returns how many
    /// descriptors that were. The segments are not empty and not above the transfer cap.
    pub(in crate::ioat) fn post_piece(
        &mut self,
        segments: &mut core::iter::Peekable<impl Iterator<Item = CopySegment>>,
        at_most: usize,
        owner: &mut Option<T>,
    ) -> usize {
        let room = (self.end - self.head).min(u64::try_from(at_most).unwrap_or(u64::MAX));
        let mut head = self.head;
        let mut word = 0;
        while head - self.head != room {
            let Some(segment) = segments.next() else { break };
            word = u64::from(segment.length);
            self.bytes = self.bytes.wrapping_add(u64::from(segment.length));
            self.write(head, word, segment.source.as_u64(), segment.destination.as_u64());
            head += 1;
        }
        let count = head - self.head;
        if count > 0 {
            let rides = if segments.peek().is_none() { owner.take() } else { None };
            self.push(head, word, rides);
        }
        narrow(count)
    }

    /// Posts a descriptor that moves nothing and reports its completion.
    pub(in crate::ioat) fn post_null(&mut self) {
        let mut control = IoatControl::default();
        control.set_null(true);
        control.set_completion_write(true);
        // Version 3.0 halts on a null descriptor whose size is zero.
        let word = first_word(1, control);
        self.write(self.head, word, 0, 0);
        self.push(self.head + 1, word, None);
        self.marked = self.head;
    }

    #[inline(always)]
    fn push(&mut self, head: u64, word: u64, owner: Option<T>) -> Cookie {
        if head - self.marked >= self.completion_interval {
            self.marked = head;
            let last = self.slot(head - 1);
            self.table.store_words(last, FIRST_WORD, [word | self.mark]);
        }
        self.last_word = word;
        self.head = head;
        let cookie = Cookie(self.posted);
        let place = self.place(self.posted);
        self.operations[place] = Entry { owner, end: head };
        self.posted += 1;
        cookie
    }

    #[inline(always)]
    fn write(&self, index: u64, word: u64, source: u64, destination: u64) {
        self.table.store_words(self.slot(index), FIRST_WORD, [word, source, destination]);
    }

    /// Writes a whole descriptor past the caches.
    #[inline(always)]
    fn stream(&self, batch: &StreamBatch<'_, IoatDescriptor>, index: u64, words: [u64; 3]) {
        let [word, source, destination] = words;
        let next = self.base + ((index + 1) & self.mask) * SLOT_BYTES;
        batch.store(self.slot(index), [word, source, destination, next, 0, 0, 0, 0]);
    }

    /// A transfer above the cap, as several descriptors; `None` when there is no room or it
    /// is not valid.
    #[cold]
    #[inline(never)]
    fn split<const FILL: bool>(
        &self,
        mut source: u64,
        mut destination: u64,
        mut left: u64,
        mut head: u64,
    ) -> Option<(u64, u64)> {
        if left == 0 || passes_end::<FILL>(Transfer { source, destination, length: left }) {
            return None;
        }
        let mut word = 0;
        while left > 0 {
            if head == self.end {
                return None;
            }
            let length = left.min(self.transfer_cap);
            word = operation_bits::<FILL>() | length;
            self.write(head, word, source, destination);
            head += 1;
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
    #[inline(never)]
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
        if needed > self.capacity {
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
