//! The side that fills slots.

use core::sync::atomic::Ordering;

use thiserror::Error;
use vdk_hal::barrier::{self, DoorbellToken};
use vdk_hal::memory::{Slot, Slots};

use super::cursors::{Cursors, IndexError, IndexKind, Run};
use super::phase::{PhaseBit, PhasePosition};
use super::table::{SlotTable, TableError, check_count, word_of};

/// How an entry passes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// The device looks at entries up to the index in the doorbell.
    Doorbell,
    /// The device looks at an entry when its phase bit has changed, with or without a
    /// doorbell.
    Phase(PhaseBit),
}

/// Fills the slots of a ring for a device.
///
/// # Ownership
///
/// The driver owns free slots and those of a [`Reservation`]; publishing hands them to the
/// device, which keeps them until it says that it has consumed them.
#[derive(Debug)]
pub struct Producer<T, K, W = Slots<T>> {
    table: W,
    cursors: Cursors<K>,
    phase: Option<PhaseState>,
    unrung: bool,
    _entry: core::marker::PhantomData<fn(T) -> T>,
}

/// What a ring with phase bits needs beside its cursors.
#[derive(Debug)]
struct PhaseState {
    bit: PhaseBit,
    position: PhasePosition,
    /// The words with the phase bit of what is reserved, by slot. They are not read back
    /// from the table: the device can write there.
    valid: Box<[u64]>,
}

impl<T: Slot, K: IndexKind, W: SlotTable<T>> Producer<T, K, W> {
    /// An empty ring in `table`, which is zeroed when phase bits hand over.
    ///
    /// # Errors
    ///
    /// [`TableError`] when the table does not fit the cursors or the phase bit the entry.
    pub fn new(table: W, cursors: Cursors<K>, handover: Handover) -> Result<Self, TableError> {
        check_count(&table, cursors.depth())?;
        let phase = match handover {
            Handover::Doorbell => None,
            Handover::Phase(bit) => {
                bit.check(W::WORDS)?;
                Some(PhaseState {
                    bit,
                    position: PhasePosition::new(cursors.depth()),
                    valid: vec![0; table.count()].into_boxed_slice(),
                })
            }
        };
        Ok(Self { table, cursors, phase, unrung: false, _entry: core::marker::PhantomData })
    }

    /// The two ends of the ring.
    #[inline]
    #[must_use]
    pub fn cursors(&self) -> &Cursors<K> {
        &self.cursors
    }

    /// The table.
    #[inline]
    #[must_use]
    pub fn table(&self) -> &W {
        &self.table
    }

    /// Reserves `count` slots, all or none: `None` when fewer are free. Until the
    /// reservation is published the device sees nothing of it, and dropping it gives the
    /// slots back.
    #[inline]
    #[must_use]
    pub fn reserve(&mut self, count: u32) -> Option<Reservation<'_, T, K, W>> {
        let run = self.cursors.vacant(count)?;
        Some(Reservation { producer: self, run, written: 0 })
    }

    /// The doorbell for everything published since the last one: what to write, and the
    /// token to write it with. `None` when there is nothing new.
    #[inline]
    #[must_use = "what was published is not seen until the doorbell is rung"]
    pub fn doorbell(&mut self) -> Option<(DoorbellToken, K::Index)> {
        if !core::mem::take(&mut self.unrung) {
            return None;
        }
        self.cursors.issue();
        Some((barrier::doorbell(), self.cursors.producer_index()))
    }

    /// The device says that it has consumed up to `index`. Returns the slots that are free
    /// again.
    ///
    /// # Errors
    ///
    /// [`IndexError`] when that cannot be; nothing has changed.
    #[inline]
    pub fn accept_consumed(&mut self, index: K::Index) -> Result<Run, IndexError> {
        self.cursors.accept_consumed(index)
    }

    /// The `count` oldest outstanding entries are consumed, as their completions say.
    /// `None`, and nothing has changed, when fewer are outstanding.
    #[inline]
    #[must_use = "`None` means that nothing was consumed"]
    pub fn consume(&mut self, count: u32) -> Option<Run> {
        self.cursors.consume(count)
    }

    /// Empties the ring, as a reset of the device does. Zero the table before it is used
    /// again when phase bits hand over.
    pub fn reset(&mut self) {
        self.cursors.reset();
        self.unrung = false;
        if let Some(phase) = &mut self.phase {
            phase.position = PhasePosition::new(self.cursors.depth());
        }
    }

    #[inline]
    fn write(&mut self, slot: u32, position: u32, entry: &T) {
        // CAST: a slot is below the number of entries of the table, a `usize`.
        let slot = slot as usize;
        let held_back = self.phase.as_mut().map(|phase| {
            let word = phase.bit.word;
            let is_set = phase.position.ahead(position).phase();
            let valid = phase.bit.apply(word_of(entry, word), is_set);
            // PANIC: there is one word for each slot.
            phase.valid[slot] = valid;
            // Not valid yet: the bit as it was in the round before.
            (word, phase.bit.apply(valid, !is_set))
        });
        for word in 0..W::WORDS {
            let value = match held_back {
                Some((held, invalid)) if held == word => invalid,
                _ => word_of(entry, word),
            };
            // ORDERING: Relaxed; the Release store of the phase, or the fence before the
            // doorbell, orders the entry.
            self.table.store_word(slot, word, value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn publish(&mut self, written: u32) -> Option<Run> {
        let run = self.cursors.produce(written)?;
        if let Some(phase) = &mut self.phase {
            // The first entry last, so that the device sees the chain as a whole.
            for position in (0..written).rev() {
                let Some(slot) = run.slot(position) else { break };
                // CAST, PANIC: as in `write`.
                let (slot, word) = (slot as usize, phase.bit.word);
                // ORDERING: Release pairs with the device's Acquire load of the phase.
                self.table.store_word(slot, word, phase.valid[slot], Ordering::Release);
            }
            phase.position = phase.position.ahead(written);
            self.cursors.issue();
        }
        self.unrung |= written > 0;
        Some(run)
    }
}

/// Slots that are reserved and not yet published.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its slots back; publish it"]
pub struct Reservation<'a, T: Slot, K: IndexKind, W: SlotTable<T> = Slots<T>> {
    producer: &'a mut Producer<T, K, W>,
    run: Run,
    written: u32,
}

/// All slots of a reservation are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("all {0} reserved slots are written")]
pub struct ReservationFull(pub u32);

impl<T: Slot, K: IndexKind, W: SlotTable<T>> Reservation<'_, T, K, W> {
    /// The slots.
    #[inline]
    #[must_use]
    pub fn run(&self) -> Run {
        self.run
    }

    /// The slot that the next [`write`](Self::write) fills; `None` when all are written.
    #[inline]
    #[must_use]
    pub fn next_slot(&self) -> Option<u32> {
        self.run.slot(self.written)
    }

    /// Writes the next slot and returns its number.
    ///
    /// # Errors
    ///
    /// [`ReservationFull`] when all reserved slots are written.
    #[inline]
    pub fn write(&mut self, entry: &T) -> Result<u32, ReservationFull> {
        let slot = self.next_slot().ok_or(ReservationFull(self.run.count()))?;
        self.producer.write(slot, self.written, entry);
        self.written += 1;
        Ok(slot)
    }

    /// Hands what was written to the device; slots that were not written stay free. Ring
    /// the [`doorbell`](Producer::doorbell) when the last batch is published.
    #[inline]
    pub fn publish(self) -> Run {
        // PANIC: not more slots are written than were free, and `self` borrows the
        // producer, so nothing else was produced meanwhile.
        self.producer.publish(self.written).expect("the slots are reserved")
    }
}

#[cfg(test)]
mod tests;
