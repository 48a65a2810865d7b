//! The doorbell of a channel: DMACOUNT, a register or a cell of mapped memory.

use core::sync::atomic::Ordering;

use vdk_hal::memory::SharedMemory;

/// DMACOUNT as the device sees it.
#[derive(Debug, Default)]
pub(super) struct Doorbell {
    cell: Option<SharedMemory>,
    register: u16,
}

impl Doorbell {
    /// From now on the driver writes to `cell`, two bytes, aligned.
    pub(super) fn map(&mut self, cell: SharedMemory) {
        self.cell = Some(cell);
        self.store(0);
    }

    /// What the driver wrote last.
    #[inline(always)]
    pub(super) fn load(&self) -> u16 {
        match &self.cell {
            // ORDERING: Acquire pairs with the barrier before the driver's doorbell: its
            // descriptors are seen then.
            Some(cell) => cell.load(0, Ordering::Acquire).unwrap_or(self.register),
            None => self.register,
        }
    }

    /// Whether the driver writes to a cell, which may change at any time.
    #[inline(always)]
    pub(super) fn is_mapped(&self) -> bool {
        self.cell.is_some()
    }

    /// Asks for the cell ahead of the next look at it.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        if let Some(cell) = &self.cell {
            cell.prefetch(0);
        }
    }

    /// Replaces the value: a trapped write, or the device takes it back.
    pub(super) fn store(&mut self, value: u16) {
        self.register = value;
        if let Some(cell) = &self.cell {
            // ORDERING: Release; nothing is published, but a driver that reads zero after a
            // reset must see the reset. A cell that is too short cannot be: it was checked.
            let _ = cell.store(0, value, Ordering::Release);
        }
    }
}
