//! Ending what is outstanding by force, and starting anew.

use core::sync::atomic::Ordering;

use vdk_descriptors::ioat::{IoatControl, IoatDescriptor};
use vdk_hal::address::Iova;

use super::super::error::OperationError;
use super::super::{Completion, Cookie};
use super::{Entry, FIRST_WORD, Finished, Ring, SLOT_BYTES, first_word};

impl<T> Ring<T> {
    /// Ends the operation that is being fed in pieces: what was posted of it is all there
    /// will be. It never ends with success.
    pub(in crate::ioat) fn cut_off(&mut self, owner: T) -> Cookie {
        let cookie = self.next_cookie();
        self.cut = Some(cookie.0);
        // There is an entry for it: each of the others has a descriptor of its own, and one
        // slot is always free.
        let place = self.place(self.posted);
        self.operations[place] = Entry { owner: Some(owner), end: self.head };
        self.posted += 1;
        cookie
    }

    /// Ends everything outstanding: what is complete with success, the first other with
    /// `first`, the rest with `rest`. The engine has been stopped.
    pub(in crate::ioat) fn finish(
        &mut self,
        first: OperationError,
        rest: OperationError,
        ended: &mut impl FnMut(Completion<T>),
    ) -> Finished {
        let mut finished = Finished::default();
        // A second end finds the same descriptors, but nothing that would be undone.
        if self.ended != self.posted {
            finished.bytes_undone = self.bytes_from(self.completed).min(self.bytes());
            self.undone += finished.bytes_undone;
        }
        // The error of a piece is that of its whole operation.
        let mut carried = None;
        let mut next_error = first;
        while self.ended != self.posted {
            let place = self.place(self.ended);
            let entry = &mut self.operations[place];
            let cookie = Cookie(self.ended);
            let owner = entry.owner.take();
            if entry.end > self.completed {
                carried = carried.or(Some(next_error));
                next_error = rest;
            } else if self.cut == Some(cookie.0) {
                carried = carried.or(Some(rest));
            }
            self.released = entry.end;
            self.ended += 1;
            if let Some(owner) = owner {
                let result = carried.take().map_or(Ok(()), Err);
                match result {
                    Ok(()) => finished.completed += 1,
                    Err(_) => finished.failed += 1,
                }
                ended(Completion { cookie, result, owner });
            }
        }
        finished
    }

    /// Makes the ring empty and usable for a new chain, which begins at the returned
    /// address. Everything outstanding was ended.
    pub(in crate::ioat) fn restart(&mut self) -> Iova {
        self.withdrawn += self.head - self.issued;
        (self.issued, self.completed, self.released) = (self.head, self.head, self.head);
        (self.epoch, self.marked) = (self.head, self.head);
        self.end = self.head + self.capacity;
        self.is_shut = false;
        self.cut = None;
        self.link();
        Iova::new(self.base + (self.head & self.mask) * SLOT_BYTES)
    }

    /// Keeps every owner for ever: the engine could not be stopped.
    pub(in crate::ioat) fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.operations));
        self.ended = self.posted;
    }

    /// Points each descriptor to the next one and the last to the first.
    pub(super) fn link(&self) {
        for index in 0..=self.mask {
            let next = self.base + ((index + 1) & self.mask) * SLOT_BYTES;
            self.table.write(self.slot(index), &IoatDescriptor { next, ..IoatDescriptor::default() });
        }
    }

    /// The bytes of the descriptors from `index` to the head; for statistics, since the
    /// device could have changed them. No descriptor counts for more than the transfer cap.
    fn bytes_from(&self, index: u64) -> u64 {
        let mut control = IoatControl::default();
        control.set_null(true);
        let null = first_word(0, control);
        (index..self.head)
            .map(|index| {
                // ORDERING: Relaxed; nothing else is read because of it.
                let word = self.table.load_word(self.slot(index), FIRST_WORD, Ordering::Relaxed);
                let length = (word & u64::from(u32::MAX)).min(self.transfer_cap);
                if word & null == 0 { length } else { 0 }
            })
            .sum()
    }
}
