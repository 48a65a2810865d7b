//! The ranges of memory that may fault, in a form that a signal handler can read.
//!
//! Writers take a lock; the reader never does, does not allocate and does not wait. Each
//! slot is a sequence lock: the writer makes the sequence odd, changes the fields and makes
//! it even again, and a reader that sees an odd or a changed sequence passes the slot over.
//!
//! # Why passing over is right
//!
//! The handler looks for the range that the interrupted access lies in. That access holds
//! the memory of the range, and the range leaves the table only when nobody holds it. So
//! its slot is not written while the handler looks, and a slot that is being written is
//! not the one looked for.

// UNSAFETY: follows the links between leaked blocks.
#![expect(unsafe_code, reason = "links between leaked blocks")]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bar::Liveness;

/// A table of ranges; it grows and never shrinks.
#[derive(Debug)]
pub(super) struct FaultTable {
    first: Block,
    writers: Mutex<()>,
}

/// A range in the table, taken out when dropped.
#[derive(Debug)]
pub(super) struct FaultEntry {
    table: &'static FaultTable,
    slot: &'static Slot,
    /// What the slot points to.
    _liveness: Arc<Liveness>,
}

#[derive(Debug)]
struct Block {
    slots: [Slot; 64],
    next: AtomicPtr<Block>,
}

#[derive(Debug)]
struct Slot {
    /// Odd while the fields change.
    sequence: AtomicU64,
    /// Zero in a slot that is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The size of the pages, a power of two.
    page: AtomicUsize,
    liveness: AtomicPtr<Liveness>,
}

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guarded {
    pub(super) liveness: *const Liveness,
    /// The size of the pages of the file, a power of two.
    pub(super) page: usize,
}

impl FaultTable {
    pub(super) const fn new() -> Self {
        Self { first: Block::new(), writers: Mutex::new(()) }
    }

    /// Adds the range `start .. end` of whole pages of `page` bytes, which does not begin at
    /// zero.
    pub(super) fn add(
        &'static self,
        start: usize,
        end: usize,
        page: usize,
        liveness: Arc<Liveness>,
    ) -> FaultEntry {
        let _writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut block = &self.first;
        let slot = loop {
            // ORDERING: Relaxed; only writers change it, and they hold the lock.
            if let Some(free) = block.slots.iter().find(|slot| slot.start.load(Ordering::Relaxed) == 0) {
                break free;
            }
            block = block.next_or_grow();
        };
        slot.write(start, end, page, Arc::as_ptr(&liveness).cast_mut());
        FaultEntry { table: self, slot, _liveness: liveness }
    }

    /// What `address` belongs to. Async-signal-safe.
    ///
    /// The pointer is that of an `Arc` which the entry holds: it may be followed as long as
    /// the entry is certain to be there.
    pub(super) fn find(&self, address: usize) -> Option<Guarded> {
        let mut block = Some(&self.first);
        while let Some(current) = block {
            if let Some(found) = current.slots.iter().find_map(|slot| slot.read(address)) {
                return Some(found);
            }
            block = current.next();
        }
        None
    }
}

impl Drop for FaultEntry {
    fn drop(&mut self) {
        let _writer = self.table.writers.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.write(0, 0, 0, ptr::null_mut());
    }
}

impl Block {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; 64], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // ORDERING: Acquire pairs with the Release store in `next_or_grow`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: a block that is linked was leaked, fully made before it was linked.
        unsafe { next.as_ref() }
    }

    fn next_or_grow(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let block: &'static Self = Box::leak(Box::new(Self::new()));
        // ORDERING: Release publishes the block to `next`.
        self.next.store(ptr::from_ref(block).cast_mut(), Ordering::Release);
        block
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            liveness: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The caller holds the lock of the writers.
    fn write(&self, start: usize, end: usize, page: usize, liveness: *mut Liveness) {
        // ORDERING: Relaxed; only writers change it, and they hold the lock.
        let sequence = self.sequence.load(Ordering::Relaxed);
        // ORDERING: Relaxed, ordered before the fields by the fence, which pairs with the
        // fence in `read`: who sees a new field also sees that the sequence has changed.
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        // ORDERING: Relaxed; the sequence orders the fields.
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.liveness.store(liveness, Ordering::Relaxed);
        // ORDERING: Release publishes the fields to the Acquire load in `read`.
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    fn read(&self, address: usize) -> Option<Guarded> {
        // ORDERING: Acquire pairs with the last store in `write`.
        let before = self.sequence.load(Ordering::Acquire);
        // ORDERING: Relaxed; checked by the second look at the sequence.
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let page = self.page.load(Ordering::Relaxed);
        let liveness = self.liveness.load(Ordering::Relaxed);
        // ORDERING: Acquire keeps the second look after the fields; pairs with the fence in
        // `write`.
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        let stable = before == after && before.is_multiple_of(2);
        let found = stable && start != 0 && (start..end).contains(&address);
        found.then_some(Guarded { liveness: liveness.cast_const(), page })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    static TABLE: FaultTable = FaultTable::new();
    static BUSY_TABLE: FaultTable = FaultTable::new();

    #[test]
    fn ranges_are_found_by_any_address_inside_until_they_are_dropped() {
        let all: Vec<_> = (1..=200).map(|n| (n * 0x10000, Liveness::new())).collect();
        let mut entries: Vec<_> = all
            .iter()
            .map(|(start, live)| TABLE.add(*start, start + 0x2000, *start, Arc::clone(live)))
            .collect();
        for (start, liveness) in &all {
            let expected = Some(Guarded { liveness: Arc::as_ptr(liveness), page: *start });
            assert_eq!(TABLE.find(*start), expected);
            assert_eq!(TABLE.find(start + 0x1fff), expected);
            assert_eq!((TABLE.find(start - 1), TABLE.find(start + 0x2000)), (None, None));
        }
        entries.remove(99);
        assert_eq!(TABLE.find(100 * 0x10000), None);
        assert_eq!(Arc::strong_count(&all[99].1), 1, "the entry has let go");
        let again = TABLE.add(7, 8, 1, Liveness::new());
        assert!(TABLE.find(7).is_some(), "a free slot is used again");
        drop((again, entries));
        assert_eq!((TABLE.find(7), TABLE.find(0x10000), TABLE.find(0)), (None, None, None));
    }

    #[test]
    fn a_stable_range_is_always_found_while_others_come_and_go() {
        let stop = AtomicBool::new(false);
        let liveness = Liveness::new();
        let _entry = BUSY_TABLE.add(0x5000, 0x6000, 0x1000, Arc::clone(&liveness));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = Liveness::new();
                while !stop.load(Ordering::Relaxed) {
                    // In turn below and above, so that a torn look would cover the address.
                    drop(BUSY_TABLE.add(0x1000, 0x2000, 1, Arc::clone(&other)));
                    drop(BUSY_TABLE.add(0x8000, 0x9000, 2, Arc::clone(&other)));
                }
            });
            let rounds = if cfg!(miri) { 100 } else { 200_000 };
            let expected = Some(Guarded { liveness: Arc::as_ptr(&liveness), page: 0x1000 });
            let missed = (0..rounds).filter(|_| BUSY_TABLE.find(0x5800) != expected);
            let missed = missed.count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
    }
}
