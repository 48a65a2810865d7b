//! The side that takes entries up to an index.

use vdk_hal::barrier::{self, DoorbellToken};
use vdk_hal::memory::{Slot, Slots};

use super::cursors::{Cursors, IndexError, IndexKind};
use super::table::{SlotTable, TableError, check_count, read_entry};

/// Takes entries from a ring whose writer tells by an index how far it has come.
///
/// # Ownership
///
/// The writer owns a slot until an index was accepted that is behind it; the consumer owns
/// it from then until the doorbell with its own index has passed it.
#[derive(Debug)]
pub struct Consumer<T, K, W = Slots<T>> {
    table: W,
    cursors: Cursors<K>,
    unrung: bool,
    _entry: core::marker::PhantomData<fn() -> T>,
}

impl<T: Slot, K: IndexKind, W: SlotTable<T>> Consumer<T, K, W> {
    /// The consumer of an empty ring in `table`.
    ///
    /// # Errors
    ///
    /// [`TableError`] when the table does not fit the cursors.
    pub fn new(table: W, cursors: Cursors<K>) -> Result<Self, TableError> {
        check_count(&table, cursors.depth())?;
        Ok(Self { table, cursors, unrung: false, _entry: core::marker::PhantomData })
    }

    /// The two ends of the ring.
    #[must_use]
    pub fn cursors(&self) -> &Cursors<K> {
        &self.cursors
    }

    /// The writer says that entries up to `index` are there; it was **loaded with
    /// Acquire**. Returns how many are new.
    ///
    /// # Errors
    ///
    /// [`IndexError`] when there is no room for so many; nothing has changed.
    #[inline]
    pub fn accept_produced(&mut self, index: K::Index) -> Result<u32, IndexError> {
        self.cursors.accept_produced(index).map(|run| run.count())
    }

    /// Takes the next entry: its slot and a copy. What it says is the device's word.
    #[inline]
    pub fn take(&mut self) -> Option<(u32, T)> {
        let slot = self.cursors.consume(1)?.slot(0)?;
        self.unrung = true;
        // CAST: a slot is below the number of entries of the table, a `usize`.
        Some((slot, read_entry(&self.table, slot as usize)))
    }

    /// The doorbell for everything taken since the last one. `None` when that is nothing.
    #[inline]
    #[must_use = "the writer stops when it is not told that entries were taken"]
    pub fn doorbell(&mut self) -> Option<(DoorbellToken, K::Index)> {
        core::mem::take(&mut self.unrung).then(|| (barrier::doorbell(), self.cursors.consumer_index()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{FreeRunning, Handover, Producer, RingIndex, Wrapped};
    use core::sync::atomic::Ordering;
    use vdk_hal::address::ByteLength;
    use vdk_hal::memory::{Pages, SharedMemory};

    /// Moves `rounds` batches through a ring and compares what comes out.
    fn passes<K: IndexKind>(depth: u32, rounds: u64) {
        let memory = SharedMemory::allocate(ByteLength::new(u64::from(depth) * 16), Pages::Base).unwrap();
        let table = || memory.slots::<[u64; 2]>(0, depth as usize).unwrap();
        let cursors = || Cursors::<K>::new(depth).unwrap();
        let mut producer = Producer::<[u64; 2], K>::new(table(), cursors(), Handover::Doorbell).unwrap();
        let mut consumer = Consumer::<[u64; 2], K>::new(table(), cursors()).unwrap();
        let (mut sent, mut received) = (0u64, 0u64);
        for round in 0..rounds {
            let batch = 1 + u32::truncate(round) % producer.cursors().usable();
            let mut reservation = producer.reserve(batch).unwrap();
            while reservation.next_slot().is_some() {
                reservation.write(&[sent, !sent]).unwrap();
                sent += 1;
            }
            assert_eq!(reservation.publish().count(), batch);
            let (_token, index) = producer.doorbell().unwrap();
            assert!(producer.doorbell().is_none(), "one doorbell for a batch");
            assert_eq!(consumer.accept_produced(index), Ok(batch));
            while let Some((_, entry)) = consumer.take() {
                assert_eq!(entry, [received, !received]);
                received += 1;
            }
            let (_token, index) = consumer.doorbell().unwrap();
            assert!(consumer.doorbell().is_none());
            assert_eq!(producer.accept_consumed(index).unwrap().count(), batch);
        }
        assert_eq!(sent, received);
    }

    #[test]
    fn entries_come_out_as_they_went_in_over_many_wraps() {
        for depth in [1, 2, 3, 5, 256] {
            passes::<FreeRunning<u16>>(depth, 3000);
        }
        for depth in [2, 3, 5, 256] {
            passes::<Wrapped<u16>>(depth, 3000);
        }
        passes::<FreeRunning<u32>>(1 << 16, 300);
    }

    #[test]
    fn an_index_beyond_the_ring_yields_nothing() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let cursors = Cursors::<FreeRunning<u16>>::new(4).unwrap();
        let mut consumer = Consumer::<u64, _>::new(memory.slots(0, 4).unwrap(), cursors).unwrap();
        assert!(consumer.accept_produced(5).is_err());
        assert_eq!(consumer.take(), None);
        assert!(consumer.doorbell().is_none());
        memory.store(8, 77u64, Ordering::Release).unwrap();
        assert_eq!(consumer.accept_produced(2), Ok(2));
        assert_eq!(consumer.take(), Some((0, 0)));
        assert_eq!(consumer.take(), Some((1, 77)));
        assert_eq!(consumer.take(), None);
        assert_eq!(consumer.doorbell().map(|(_, index)| index.to_u64()), Some(2));
    }
}
