//! The doorbells: words in mapped memory, or registers.

use core::sync::atomic::Ordering;

use vdk_descriptors::nvme::{DOORBELLS, completion_doorbell, submission_doorbell};
use vdk_hal::address::ByteLength;
use vdk_hal::memory::SharedMemory;
use vdk_hal::mmio::Width;

use crate::driver_fault::DriverFaultKind;

/// Which doorbell: tails of submission queues and heads of completion queues alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DoorbellIndex(usize);

impl DoorbellIndex {
    pub(super) fn tail(queue: u16) -> Self {
        Self(2 * usize::from(queue))
    }

    pub(super) fn head(queue: u16) -> Self {
        Self(2 * usize::from(queue) + 1)
    }

    /// The queue.
    pub(super) fn queue(self) -> u16 {
        // CAST: made from a queue number.
        u16::try_from(self.0 / 2).unwrap_or(u16::MAX)
    }

    /// Whether it is that of a submission queue.
    pub(super) fn is_tail(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// Where it lies in the BAR.
    pub(super) fn offset(self) -> u64 {
        if self.is_tail() {
            submission_doorbell(self.queue(), STRIDE)
        } else {
            completion_doorbell(self.queue(), STRIDE)
        }
    }
}

/// The doorbells of all queues that there can be.
#[derive(Debug)]
pub(super) struct Doorbells {
    memory: Option<SharedMemory>,
    registers: Vec<u32>,
    /// The one that is looked at next for writes to queues that do not exist.
    patrol: usize,
}

impl Doorbells {
    /// Those of `queues` pairs, the admin queues among them.
    pub(super) fn new(queues: u16) -> Self {
        Self { memory: None, registers: vec![0; 2 * usize::from(queues)], patrol: 0 }
    }

    /// How much of the BAR they take, in whole pages.
    pub(super) fn length(&self) -> ByteLength {
        // CAST: `usize` is at most 64 bits wide.
        let bytes = self.registers.len() as u64 * STRIDE.as_u64();
        ByteLength::new(bytes.next_multiple_of(4096))
    }

    /// From now on the driver writes to `memory`, which is as long as [`length`](Self::length).
    pub(super) fn map(&mut self, memory: SharedMemory) {
        self.memory = Some(memory);
        self.reset();
    }

    pub(super) fn reset(&mut self) {
        for index in 0..self.registers.len() {
            self.store(DoorbellIndex(index), 0);
        }
    }

    /// The doorbell at `offset` of the BAR.
    pub(super) fn find(&self, offset: u64, width: Width) -> Result<DoorbellIndex, DriverFaultKind> {
        let inside = offset.checked_sub(DOORBELLS).ok_or(DriverFaultKind::Hole)?;
        let index = usize::try_from(inside / STRIDE.as_u64()).map_err(|_| DriverFaultKind::Hole)?;
        if index >= self.registers.len() || inside % STRIDE.as_u64() >= 4 {
            return Err(DriverFaultKind::Hole);
        }
        if width != Width::U32 || !inside.is_multiple_of(STRIDE.as_u64()) {
            return Err(DriverFaultKind::Width(width));
        }
        Ok(DoorbellIndex(index))
    }

    /// What the driver wrote last.
    #[inline(always)]
    pub(super) fn load(&self, index: DoorbellIndex) -> u32 {
        match &self.memory {
            // ORDERING: Acquire pairs with the barrier before the driver's doorbell: its
            // queue entries are seen then.
            Some(memory) => memory.load(place(index), Ordering::Acquire).unwrap_or(0),
            None => self.registers.get(index.0).copied().unwrap_or(0),
        }
    }

    /// Asks for a doorbell ahead of the next look at it.
    #[inline(always)]
    pub(super) fn prefetch(&self, index: DoorbellIndex) {
        if let Some(memory) = &self.memory {
            memory.prefetch(place(index));
        }
    }

    /// Replaces a doorbell: a trapped write, or the device takes it back.
    pub(super) fn store(&mut self, index: DoorbellIndex, value: u32) {
        if let Some(register) = self.registers.get_mut(index.0) {
            *register = value;
        }
        if let Some(memory) = &self.memory {
            // ORDERING: Release; nothing is published, but a driver that reads zero after a
            // reset must see the reset. A place that is outside cannot be: the memory has
            // room for all.
            let _ = memory.store(place(index), value, Ordering::Release);
        }
    }

    /// One doorbell after the other, over and over.
    pub(super) fn next_on_patrol(&mut self) -> DoorbellIndex {
        self.patrol = if self.patrol + 1 < self.registers.len() { self.patrol + 1 } else { 0 };
        DoorbellIndex(self.patrol)
    }

    /// Every doorbell.
    pub(super) fn all(&self) -> impl Iterator<Item = DoorbellIndex> + use<> {
        (0..self.registers.len()).map(DoorbellIndex)
    }
}

#[inline(always)]
fn place(index: DoorbellIndex) -> usize {
    index.0 * STRIDE_BYTES
}

/// Doorbells do not share cache lines, nor pairs of them.
const STRIDE_BYTES: usize = 4 << STRIDE_EXPONENT;
/// The same as a length.
pub(super) const STRIDE: ByteLength = ByteLength::new(4 << STRIDE_EXPONENT);
/// CAP.DSTRD.
pub(super) const STRIDE_EXPONENT: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_is_one_word_at_its_place() {
        let mut doorbells = Doorbells::new(3);
        assert_eq!(doorbells.length(), ByteLength::SIZE_4K);
        let head = doorbells.find(0x1000 + 3 * 128, Width::U32).unwrap();
        assert_eq!((head.queue(), head.is_tail(), head.offset()), (1, false, 0x1180));
        assert_eq!(doorbells.find(0x1180, Width::U16), Err(DriverFaultKind::Width(Width::U16)));
        assert_eq!(doorbells.find(0x1182, Width::U16), Err(DriverFaultKind::Width(Width::U16)));
        assert_eq!(doorbells.find(0x1184, Width::U32), Err(DriverFaultKind::Hole));
        assert_eq!(doorbells.find(0x1300, Width::U32), Err(DriverFaultKind::Hole));
        doorbells.store(head, 7);
        assert_eq!(doorbells.load(head), 7);
        doorbells.reset();
        assert_eq!(doorbells.load(head), 0);
    }
}
