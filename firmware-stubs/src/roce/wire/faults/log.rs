//! What was done to frames.

use vdk_descriptors::roce::{Frame, Opcode, Psn, Qpn};

/// What was done to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireFault {
    /// It vanished.
    Drop,
    /// It passed twice.
    Duplicate,
    /// The next frame overtook it.
    Reorder,
    /// It came later.
    Delay,
    /// One bit of it was changed, so that its invariant CRC is wrong.
    Corrupt,
    /// It vanished because too much was waiting already.
    Overrun,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEntry {
    /// Which RoCE frame of its direction it struck, from 1.
    pub number: u64,
    /// What was done.
    pub fault: WireFault,
    /// The opcode of the frame.
    pub opcode: Opcode,
    /// Whom it was for.
    pub destination: Qpn,
    /// Its number in the transport.
    pub psn: Psn,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// RoCE frames that came to the injector.
    pub frames: u64,
    /// [`WireFault::Drop`].
    pub dropped: u64,
    /// [`WireFault::Duplicate`].
    pub duplicated: u64,
    /// [`WireFault::Reorder`].
    pub reordered: u64,
    /// [`WireFault::Delay`].
    pub delayed: u64,
    /// [`WireFault::Corrupt`].
    pub corrupted: u64,
    /// [`WireFault::Overrun`].
    pub overrun: u64,
    /// Frames that passed with a changed bit; one that passed twice counts twice.
    pub damaged: u64,
}

/// What was done one way: all counts, and the first [`ENTRIES`](Self::ENTRIES) faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultLog {
    /// How often what was done.
    pub counts: FaultCounts,
    entries: Vec<FaultEntry>,
}

impl FaultLog {
    /// How many faults are kept one by one.
    pub const ENTRIES: usize = 4096;

    pub(super) fn new() -> Self {
        Self { counts: FaultCounts::default(), entries: Vec::with_capacity(Self::ENTRIES) }
    }

    /// The first faults, in their order.
    #[must_use]
    pub fn entries(&self) -> &[FaultEntry] {
        &self.entries
    }

    pub(super) fn add(&mut self, number: u64, fault: WireFault, frame: &Frame<'_>) {
        let count = match fault {
            WireFault::Drop => &mut self.counts.dropped,
            WireFault::Duplicate => &mut self.counts.duplicated,
            WireFault::Reorder => &mut self.counts.reordered,
            WireFault::Delay => &mut self.counts.delayed,
            WireFault::Corrupt => &mut self.counts.corrupted,
            WireFault::Overrun => &mut self.counts.overrun,
        };
        *count += 1;
        if self.entries.len() < Self::ENTRIES {
            let bth = &frame.headers.bth;
            let entry =
                FaultEntry { number, fault, opcode: bth.opcode, destination: bth.destination, psn: bth.psn };
            self.entries.push(entry);
        }
    }
}
