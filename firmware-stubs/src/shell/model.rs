//! What a device does behind the PCI shell.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use vdk_hal::address::BarIndex;
use vdk_hal::bar::MappedArea;
use vdk_hal::memory::MemoryError;
use vdk_hal::mmio::{Kick, Width};
use vdk_iommu::soft::BusMaster;

use super::interrupts::InterruptUnit;
use crate::driver_fault::{DriverFaultKind, DriverFaultLog};
use crate::fault::{FaultAction, FaultInjector};
use crate::statistics::Counters;

/// The registers and the engine of a device.
///
/// All methods are called with the device locked. None may block, and
/// [`work`](Self::work) has to return soon: a driver's trapped access waits for it.
pub trait DeviceModel: Send {
    /// A session begins: gives the parts of BARs that are mapped in it. Each session gets
    /// fresh memory, so that a handle that outlived its session rings nothing. `kick` wakes
    /// the device thread.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when there is no memory for them.
    fn open(&mut self, kick: &Arc<Kick>) -> Result<Vec<(BarIndex, MappedArea)>, MemoryError> {
        let _ = kick;
        Ok(Vec::new())
    }

    /// Reads a register. The access is aligned and inside the BAR.
    ///
    /// # Errors
    ///
    /// What the driver did wrong: it is logged, and the driver reads all ones.
    fn read(
        &mut self,
        bar: BarIndex,
        offset: u64,
        width: Width,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, DriverFaultKind>;

    /// Writes a register. The access is aligned and inside the BAR.
    ///
    /// # Errors
    ///
    /// What the driver did wrong: it is logged, and nothing may have changed.
    fn write(
        &mut self,
        bar: BarIndex,
        offset: u64,
        width: Width,
        value: u64,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind>;

    /// The function is reset: everything is as after power-on.
    fn reset(&mut self);

    /// A session ends on a function that has no reset: ends what is under way, so that the
    /// next session does not meet it.
    fn quiesce(&mut self) {}

    /// Looks at mapped doorbells, because something about them changes now.
    fn poll_doorbells(&mut self, surroundings: &mut Surroundings<'_>) {
        let _ = surroundings;
    }

    /// Does a bounded piece of work. `bus` is the way to memory.
    fn work(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work;
}

/// What a model says about its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// There is more.
    Busy,
    /// Nothing to do until the driver does something.
    Idle,
    /// Nothing to do until then, or until the driver does something.
    IdleUntil(Instant),
}

impl Work {
    /// What two independent parts of a device say together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Busy, _) | (_, Self::Busy) => Self::Busy,
            (Self::IdleUntil(one), Self::IdleUntil(two)) => Self::IdleUntil(one.min(two)),
            (Self::IdleUntil(time), Self::Idle) | (Self::Idle, Self::IdleUntil(time)) => {
                Self::IdleUntil(time)
            }
            (Self::Idle, Self::Idle) => Self::Idle,
        }
    }

    /// How long to sleep, `most` at most.
    pub(crate) fn sleep_time(self, most: Duration) -> Duration {
        match self {
            Self::Busy => Duration::ZERO,
            Self::Idle => most,
            Self::IdleUntil(time) => time.saturating_duration_since(Instant::now()).min(most),
        }
    }
}

/// The shell as a model sees it.
#[derive(Debug)]
pub struct Surroundings<'shell> {
    pub(crate) interrupts: &'shell InterruptUnit,
    pub(crate) faults: &'shell DriverFaultLog,
    pub(crate) counters: &'shell Counters,
    pub(crate) injector: &'shell mut FaultInjector,
    pub(crate) decoding: bool,
    pub(crate) bus_master: bool,
    pub(crate) outcome: Outcome,
}

/// What a model wants of the shell when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) vanish: bool,
    pub(crate) all_ones: bool,
    pub(crate) request_failed: bool,
}

impl Surroundings<'_> {
    /// The interrupts of the function.
    #[must_use]
    pub fn interrupts(&self) -> &InterruptUnit {
        self.interrupts
    }

    /// Whether the function answers memory accesses: decoding is on and power is D0. A
    /// mapped doorbell that was written while it does not was never received.
    #[must_use]
    pub fn decoding(&self) -> bool {
        self.decoding
    }

    /// Whether bus mastering is on.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.bus_master
    }

    /// Writes down what the driver did wrong.
    pub fn driver_fault(&self, bar: BarIndex, offset: u64, kind: DriverFaultKind) {
        self.faults.note(bar, offset, kind);
    }

    /// A request on the bus was refused: the Status register says so.
    pub fn request_failed(&mut self) {
        self.outcome.request_failed = true;
    }

    /// What the fault plan has for the next descriptor of `channel`. Faults that concern the
    /// whole function are begun here as well as returned.
    #[inline]
    pub fn next_fault(&mut self, channel: u8) -> Option<FaultAction> {
        let action = self.injector.next(channel)?;
        match action {
            FaultAction::Vanish => self.outcome.vanish = true,
            FaultAction::AllOnes => self.outcome.all_ones = true,
            _ => {}
        }
        Some(action)
    }

    /// Whether the fault plan has any rule: without, [`next_fault`](Self::next_fault) need not
    /// be asked.
    #[inline]
    #[must_use]
    pub fn has_faults(&self) -> bool {
        !self.injector.is_empty()
    }

    /// A random number of the fault plan.
    pub fn random(&mut self) -> u64 {
        self.injector.random()
    }

    /// Counts executed descriptors and the bytes that they moved.
    #[inline]
    pub fn count_descriptors(&self, descriptors: u64, bytes: u64) {
        self.counters.descriptors.add(descriptors);
        self.counters.bytes.add(bytes);
    }

    /// Counts a doorbell.
    #[inline]
    pub fn count_doorbell(&self) {
        self.counters.doorbells.add(1);
    }

    /// Counts a completion word.
    #[inline]
    pub fn count_completion(&self) {
        self.counters.completions.add(1);
    }
}
