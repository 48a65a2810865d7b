//! The device: what it says of itself, its interrupts, and its stop.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vdk_descriptors::ioat::{
    self, Capabilities, ChannelCommand, ChannelErrors, ChannelState, ChannelStatus, InterruptControl,
    IoatChannelRegisters, IoatRegisters, Version,
};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{Bar, BarError};
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::mmio::RegisterBlock;
use vdk_hal::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};
use vdk_hal::reset::ResetKind;
use vdk_iommu::Domain;

use super::error::{ResetDeviceError, StartError, StopError};
use crate::kit::{BusMasterGuard, InterruptVector, Session};

/// How long a channel may take to suspend. It goes on to be reset either way.
const SUSPEND_LIMIT: Duration = Duration::from_millis(100);
/// How long the reset of a channel may take, on a machine that has other things to do as well.
const RESET_LIMIT: Duration = Duration::from_secs(1);

/// The device id in configuration space.
const DEVICE_ID: u16 = 0x02;

/// The device ids whose MSI-X table does not survive the reset of a channel: Atom C2000
/// and Xeon D-1500.
const LOSES_VECTORS_ON_RESET: [core::ops::RangeInclusive<u16>; 2] = [0x0c50..=0x0c53, 0x6f50..=0x6f53];

/// What the engine says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// The interface version, 3.x.
    pub version: Version,
    /// How many channels there are, 1 to 31.
    pub channels: u8,
    /// The largest transfer of one descriptor, 4 KiB to 2 GiB. Longer segments are split.
    pub transfer_cap: ByteLength,
    /// What it can do beside copying.
    pub capabilities: Capabilities,
}

/// How the device interrupts.
#[derive(Clone, Debug)]
pub(super) enum InterruptPlan {
    /// Not at all.
    None,
    /// Each channel on an MSI-X vector of its own.
    PerChannel(Vec<InterruptVector>),
    /// All channels on one vector or line, which the first channel listens to.
    Shared(InterruptVector),
}

/// A device that runs. Channels keep it alive; it is stopped by `stop` or with the last.
pub(super) struct Device {
    session: Session,
    /// Bus mastering is on while this is here. `stopped` is set under the same lock, so that
    /// nothing turns it on any more once that is.
    bus_master: Mutex<Option<BusMasterGuard>>,
    registers: RegisterBlock<IoatRegisters>,
    facts: EngineFacts,
    domain: Domain,
    interrupts: InterruptPlan,
    /// One bit for each channel that is open.
    taken: AtomicU32,
    stopped: AtomicBool,
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device")
            .field("session", &self.session)
            .field("facts", &self.facts)
            .field("interrupts", &self.interrupts)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Brings the device up: checks what it is, resets every channel, and only then lets it
    /// master the bus.
    pub(super) fn start(session: Session, domain: Domain) -> Result<Self, StartError> {
        session.enable_memory()?;
        let bar = session.bar(bar_index())?;
        let registers = bar.registers::<IoatRegisters>(0)?;
        let facts = read_facts(&registers)?;
        registers.write(IoatRegisters::INTRCTRL, 0)?;
        if let Err(error) = stop_channels(&bar, facts.channels) {
            // What does not listen to its own registers may listen to the bus.
            let Some(kind) = session.own_reset_kind()? else { return Err(error) };
            log::warn!("{}: {error}; trying {kind}", session.name());
            session.reset(kind)?;
            stop_channels(&bar, facts.channels)?;
        }
        let interrupts = plan_interrupts(&session, facts.channels)?;
        let device = Self {
            session,
            bus_master: Mutex::new(None),
            registers,
            facts,
            domain,
            interrupts,
            taken: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
        };
        // From here on an error stops the device when `device` is dropped.
        device.enable()?;
        log::debug!("{}: {:?}, {:?}", device.session.name(), device.facts, device.interrupts);
        Ok(device)
    }

    pub(super) fn facts(&self) -> EngineFacts {
        self.facts
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn is_stopped(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// The registers of a channel.
    pub(super) fn channel_registers(
        &self,
        channel: u8,
    ) -> Result<RegisterBlock<IoatChannelRegisters>, BarError> {
        self.registers.bar().registers(ioat::channel_offset(channel))
    }

    /// The event file that a channel waits on, and the kind of a vector or line that is that
    /// of the whole device; `None` when the channel cannot interrupt.
    pub(super) fn event(&self, channel: u8) -> Option<(EventFd, Option<InterruptKind>)> {
        match &self.interrupts {
            InterruptPlan::None => None,
            InterruptPlan::PerChannel(vectors) => {
                vectors.get(usize::from(channel)).map(|vector| (vector.event.clone(), None))
            }
            InterruptPlan::Shared(vector) => {
                (channel == 0).then(|| (vector.event.clone(), Some(vector.kind)))
            }
        }
    }

    /// Marks a channel as open; `false` when it was.
    pub(super) fn take(&self, channel: u8) -> bool {
        // ORDERING: AcqRel; who takes a channel sees what its last user left.
        self.taken.fetch_or(1 << channel, Ordering::AcqRel) & (1 << channel) == 0
    }

    /// Marks a channel as closed.
    pub(super) fn release(&self, channel: u8) {
        // ORDERING: AcqRel, as in `take`.
        self.taken.fetch_and(!(1 << channel), Ordering::AcqRel);
    }

    fn bus_master(&self) -> MutexGuard<'_, Option<BusMasterGuard>> {
        self.bus_master.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns bus mastering off: the last means to end the device's access to memory. It
    /// stops every channel.
    pub(super) fn silence(&self) -> Result<(), StopError> {
        drop(self.bus_master().take());
        Ok(self.session.require_silence()?)
    }

    /// Resets the whole function and brings it up again. No channel may be open.
    pub(super) fn reset(&self) -> Result<ResetKind, ResetDeviceError> {
        // Holding all of them keeps others from opening one meanwhile.
        let every_channel = u32::MAX >> (32 - u32::from(self.facts.channels));
        // ORDERING: AcqRel, as in `take`.
        let exchanged = self.taken.compare_exchange(0, every_channel, Ordering::AcqRel, Ordering::Acquire);
        if let Err(open) = exchanged {
            return Err(ResetDeviceError::ChannelsOpen { count: open.count_ones() });
        }
        let reset = self.reset_alone();
        // ORDERING: Release pairs with `take`.
        self.taken.store(0, Ordering::Release);
        reset
    }

    fn reset_alone(&self) -> Result<ResetKind, ResetDeviceError> {
        if self.is_stopped() {
            return Err(ResetDeviceError::Stopped);
        }
        let kind = self.session.own_reset_kind()?.ok_or(ResetDeviceError::NoKind)?;
        let reset = self.silence().map_err(ResetDeviceError::from);
        let reset = reset.and_then(|()| Ok(self.session.reset(kind)?));
        if let Err(error) = reset {
            // Nothing has changed in it, so it goes on as before.
            if let Err(error) = self.enable() {
                log::warn!("{}: it stays off the bus: {error}", self.session.name());
            }
            return Err(error);
        }
        stop_channels(self.registers.bar(), self.facts.channels)?;
        if self.enable()? { Ok(kind) } else { Err(ResetDeviceError::Stopped) }
    }

    /// Lets the device master the bus and interrupt; `false` when it was stopped, and stays so.
    fn enable(&self) -> Result<bool, StartError> {
        let mut bus_master = self.bus_master();
        if self.is_stopped() {
            return Ok(false);
        }
        *bus_master = Some(self.session.enable_bus_master()?);
        // Under the lock as well: what a stop turns off after it stays off.
        self.enable_interrupts()?;
        Ok(true)
    }

    /// Stops every channel, the interrupts, and bus mastering. Stopping again only makes sure
    /// of the last, which is what counts.
    pub(super) fn stop(&self) -> Result<(), StopError> {
        let bus_master = self.bus_master();
        // ORDERING: AcqRel; of several callers one does it.
        let was_stopped = self.stopped.swap(true, Ordering::AcqRel);
        drop(bus_master);
        if was_stopped {
            return self.silence();
        }
        let mut first_error = None;
        for channel in 0..self.facts.channels {
            let stopped = self.channel_registers(channel).map_err(StopError::from);
            if let Err(error) = stopped.and_then(|registers| stop_channel(&registers)) {
                log::warn!("{}: channel {channel} did not stop: {error}", self.session.name());
                first_error.get_or_insert(error);
            }
        }
        if let Err(error) = self.registers.write(IoatRegisters::INTRCTRL, 0) {
            log::debug!("{}: interrupts not turned off: {error}", self.session.name());
        }
        let kind = match &self.interrupts {
            InterruptPlan::None => None,
            InterruptPlan::PerChannel(_) => Some(InterruptKind::Msix),
            InterruptPlan::Shared(vector) => Some(vector.kind),
        };
        if let Some(kind) = kind
            && let Ok(interrupts) = self.session.interrupts()
            && let Err(error) = interrupts.disable_all(kind)
        {
            log::debug!("{}: {error}", self.session.name());
        }
        // With bus mastering off it does not matter any more that a channel did not answer.
        match self.silence() {
            Ok(()) => Ok(()),
            Err(error) => Err(first_error.unwrap_or(error)),
        }
    }

    fn enable_interrupts(&self) -> Result<(), BarError> {
        let mut control = InterruptControl::default();
        match &self.interrupts {
            InterruptPlan::None => return Ok(()),
            InterruptPlan::PerChannel(_) => control.set_vector_per_channel(true),
            InterruptPlan::Shared(_) => {}
        }
        control.set_master_enable(true);
        self.registers.write(IoatRegisters::INTRCTRL, control.0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            log::error!("{}: {error}", self.session.name());
        }
    }
}

fn bar_index() -> BarIndex {
    // PANIC: the constant is a valid index.
    BarIndex::new(ioat::BAR).expect("BAR 0 exists")
}

fn stop_channels(bar: &Bar, channels: u8) -> Result<(), StartError> {
    for channel in 0..channels {
        let registers = bar.registers::<IoatChannelRegisters>(ioat::channel_offset(channel))?;
        stop_channel(&registers).map_err(|error| StartError::Reset { channel, error })?;
    }
    Ok(())
}

fn read_facts(registers: &RegisterBlock<IoatRegisters>) -> Result<EngineFacts, StartError> {
    let version = Version(registers.read(IoatRegisters::CBVER)?);
    let capabilities = registers.read(IoatRegisters::DMACAPABILITY)?;
    if version.0 == u8::MAX && capabilities == u32::MAX {
        return Err(BarError::DeviceGone { bar: bar_index() }.into());
    }
    if version.major() != 3 {
        return Err(StartError::Version { version });
    }
    let channels = registers.read(IoatRegisters::CHANCNT)? & ioat::MAX_CHANNELS;
    if channels == 0 {
        return Err(StartError::NoChannels);
    }
    let log2 = registers.read(IoatRegisters::XFERCAP)? & 0x1f;
    let transfer_cap = ioat::transfer_cap(log2).filter(|cap| *cap >= ByteLength::SIZE_4K);
    let transfer_cap = transfer_cap.ok_or(StartError::TransferCap { log2 })?;
    Ok(EngineFacts { version, channels, transfer_cap, capabilities: Capabilities(capabilities) })
}

/// Enables what the function has: one MSI-X vector for each channel, else one MSI, else
/// the line.
fn plan_interrupts(session: &Session, channels: u8) -> Result<InterruptPlan, StartError> {
    let device_id = session.config()?.read16(DEVICE_ID)?;
    let keeps_vectors = !LOSES_VECTORS_ON_RESET.iter().any(|ids| ids.contains(&device_id));
    let interrupts = session.interrupts()?;
    let count = u16::from(channels);
    if keeps_vectors && interrupts.vector_count(InterruptKind::Msix) >= count {
        match session.configure_interrupts(InterruptKind::Msix, count, count) {
            Ok(vectors) => return Ok(InterruptPlan::PerChannel(vectors)),
            Err(error) => log::warn!("{}: {error}; trying a single vector", session.name()),
        }
    }
    for kind in [InterruptKind::Msi, InterruptKind::Intx] {
        if interrupts.vector_count(kind) == 0 {
            continue;
        }
        match session.configure_interrupts(kind, 1, 1) {
            Ok(vectors) => {
                if let Some(vector) = vectors.into_iter().next() {
                    return Ok(InterruptPlan::Shared(vector));
                }
            }
            Err(error) => log::warn!("{}: {error}", session.name()),
        }
    }
    log::warn!("{}: no interrupts; completions can only be polled", session.name());
    Ok(InterruptPlan::None)
}

/// Brings a channel to rest: suspends it if it runs, clears its errors, resets it. When
/// this succeeds, the channel reaches memory no more.
pub(super) fn stop_channel(registers: &RegisterBlock<IoatChannelRegisters>) -> Result<(), StopError> {
    let clock = SystemClock::new();
    suspend(registers, &clock)?;
    let errors = registers.read(IoatChannelRegisters::CHANERR)?;
    registers.write(IoatChannelRegisters::CHANERR, errors)?;
    registers.write(IoatChannelRegisters::CHANCMD, ChannelCommand::RESET.0)?;
    let deadline = Deadline::after(&clock, RESET_LIMIT);
    poll_until(&clock, deadline, Pace::FAST, "the reset of the channel", || {
        let command = registers.read(IoatChannelRegisters::CHANCMD)?;
        if command == u8::MAX {
            // All ones: either gone, or no answer yet; the deadline decides.
            return Ok::<_, StopError>(None);
        }
        Ok((command & ChannelCommand::RESET.0 == 0).then_some(()))
    })
}

/// Suspends a channel that runs, so that it stops between two descriptors. A channel that
/// does not answer is reset all the same.
pub(super) fn suspend(
    registers: &RegisterBlock<IoatChannelRegisters>,
    clock: &SystemClock,
) -> Result<ChannelStatus, StopError> {
    let status = ChannelStatus(registers.read(IoatChannelRegisters::CHANSTS)?);
    if !runs(status) {
        return Ok(status);
    }
    registers.write(IoatChannelRegisters::CHANCMD, ChannelCommand::SUSPEND.0)?;
    let deadline = Deadline::after(clock, SUSPEND_LIMIT);
    let mut last = status;
    let suspended = poll_until(clock, deadline, Pace::FAST, "the suspension of the channel", || {
        last = ChannelStatus(registers.read(IoatChannelRegisters::CHANSTS)?);
        Ok::<_, StopError>((!runs(last)).then_some(()))
    });
    match suspended {
        Ok(()) => Ok(last),
        Err(StopError::TimedOut(TimedOut { what, allowed })) => {
            log::debug!("{what} did not happen within {allowed:?}; resetting it all the same");
            Ok(last)
        }
        Err(error) => Err(error),
    }
}

fn runs(status: ChannelStatus) -> bool {
    matches!(status.state(), ChannelState::Active | ChannelState::Idle)
}

/// What CHANERR says.
pub(super) fn errors(registers: &RegisterBlock<IoatChannelRegisters>) -> Result<ChannelErrors, BarError> {
    registers.read(IoatChannelRegisters::CHANERR).map(ChannelErrors)
}
