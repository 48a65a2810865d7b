//! An emulated function that is open.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use vdk_hal::address::{BarIndex, Bdf};
use vdk_hal::bar::{Bar, BarAccess, BarError, BarInfo, BarPermissions};
use vdk_hal::config::{ConfigError, ConfigSpace};
use vdk_hal::dma::DmaMapper;
use vdk_hal::event::DeviceEvents;
use vdk_hal::function::{OpenError, PciFunction};
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind, Interrupts};
use vdk_hal::mmio::Width;
use vdk_hal::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};
use vdk_hal::reset::{ResetError, ResetKind};
use vdk_iommu::soft::SoftDomain;

use super::device::Device;
use super::interrupts::InterruptState;
use super::session::{Session, Unreachable};
use super::thread;

/// An emulated function that is open. Dropping the last reference closes it.
pub struct StubFunction {
    session: Arc<Session>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StubFunction {
    /// Starts the device thread.
    pub(super) fn start(session: Arc<Session>) -> Result<Arc<Self>, OpenError> {
        let core = &session.core;
        let bus = session.domain.bus_master(core.address.requester_id(), Arc::clone(&session.gate));
        let running = Arc::clone(&session);
        let spawned = std::thread::Builder::new()
            .name(core.name().to_owned())
            .spawn(move || thread::run(&running, bus));
        match spawned {
            Ok(thread) => Ok(Arc::new(Self { session, thread: Mutex::new(Some(thread)) })),
            Err(error) => {
                core.visit().detach(&core.shared, session.number);
                Err(OpenError::Refused {
                    function: core.name().to_owned(),
                    reason: format!("no device thread: {error}"),
                    fix: "end threads or raise `ulimit -u`".to_owned(),
                })
            }
        }
    }

    /// The address space of the session, as the software IOMMU has it.
    #[must_use]
    pub fn domain(&self) -> &Arc<SoftDomain> {
        &self.session.domain
    }

    /// Says that mapped doorbells are written by another process from now on: nobody wakes
    /// the device thread then, and it looks at them at least once in a millisecond.
    pub fn expect_silent_doorbells(&self) {
        self.session.expect_silent_doorbells();
    }

    fn system(&self, unreachable: Unreachable) -> ResetError {
        let function = self.name().to_owned();
        match unreachable {
            Unreachable::Gone => ResetError::Gone { function },
            Unreachable::NotOpen => ResetError::System {
                function,
                kind: ResetKind::FunctionLevel,
                error: std::io::ErrorKind::NotConnected,
            },
        }
    }
}

impl PciFunction for StubFunction {
    fn name(&self) -> &str {
        self.session.core.name()
    }

    fn address(&self) -> Bdf {
        self.session.core.address
    }

    fn config(&self) -> &dyn ConfigSpace {
        self
    }

    fn bar_info(&self, index: BarIndex) -> Option<BarInfo> {
        let bar = self.session.core.shared.profile.bar(index)?;
        let address = self.session.core.visit().bar_address(index);
        Some(BarInfo { index, kind: bar.kind, prefetchable: bar.prefetchable, size: bar.size, address })
    }

    fn bar(&self, index: BarIndex) -> Result<Bar, BarError> {
        self.session.check().map_err(|unreachable| bar_error(unreachable, index))?;
        let info = self
            .bar_info(index)
            .ok_or_else(|| BarError::Absent { function: self.name().to_owned(), bar: index })?;
        let areas = self.session.areas.iter().filter(|(bar, _)| *bar == index);
        let areas = areas.map(|(_, area)| area.clone()).collect();
        let trapped = Arc::new(TrappedBar { session: Arc::clone(&self.session), bar: index });
        let liveness = Arc::clone(&self.session.liveness);
        Ok(Bar::new(info, BarPermissions::READ_WRITE, areas, Some(trapped), liveness))
    }

    fn rom(&self) -> Result<Option<Vec<u8>>, BarError> {
        Ok(None)
    }

    fn interrupts(&self) -> &dyn Interrupts {
        self
    }

    fn dma(&self) -> Arc<dyn DmaMapper> {
        Arc::clone(&self.session.domain) as Arc<dyn DmaMapper>
    }

    fn events(&self) -> &DeviceEvents {
        &self.session.events
    }

    fn reset_kinds(&self) -> Vec<ResetKind> {
        Device::reset_kinds(&self.session.core.shared)
    }

    fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        let mut device = self.session.visit().map_err(|unreachable| self.system(unreachable))?;
        if !self.reset_kinds().contains(&kind) {
            return Err(ResetError::NotSupported { function: self.name().to_owned(), kind });
        }
        if device.read_config(&self.session.core.shared, 0, Width::U16).is_err() {
            return Err(ResetError::Gone { function: self.name().to_owned() });
        }
        device.function_reset(&self.session.core.shared);
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        let mut device = self.session.visit().map_err(config_error)?;
        device.set_bus_master(&self.session.core.shared, on)
    }

    fn close(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = thread.take() else { return };
        let Session { core, liveness, number, .. } = &*self.session;
        liveness.close();
        self.session.stop();
        core.visit().detach(&core.shared, *number);
        join(core.name(), thread);
        *core.holder.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for StubFunction {
    fn drop(&mut self) {
        self.close();
    }
}

impl ConfigSpace for StubFunction {
    fn size(&self) -> u16 {
        self.session.core.shared.profile.config_size()
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        let mut device = self.session.visit().map_err(config_error)?;
        device.read_config(&self.session.core.shared, offset, width)
    }

    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError> {
        let mut device = self.session.visit().map_err(config_error)?;
        device.write_config(&self.session.core.shared, offset, width, value)?;
        drop(device);
        self.session.kick.wake();
        Ok(())
    }
}

impl StubFunction {
    /// Makes the `count` vectors from `start` of `kind` signal what `all` has for them, in one
    /// step; see [`InterruptState::assign`].
    pub(crate) fn assign_interrupts(
        &self,
        kind: InterruptKind,
        vectors: (u16, u16),
        all: &[Option<EventFd>],
    ) -> Result<(), InterruptError> {
        self.with_interrupts(|state| state.assign(kind, vectors, all))
    }

    /// Runs `change` on the interrupts if this session still has them.
    fn with_interrupts<R>(
        &self,
        change: impl FnOnce(&mut InterruptState) -> Result<R, InterruptError>,
    ) -> Result<R, InterruptError> {
        self.session.check().map_err(|unreachable| match unreachable {
            Unreachable::NotOpen => InterruptError::NotOpen,
            Unreachable::Gone => InterruptError::Gone,
        })?;
        let mut state = self.session.core.shared.interrupts.lock();
        if state.session == self.session.number { change(&mut state) } else { Err(InterruptError::NotOpen) }
    }
}

impl Interrupts for StubFunction {
    fn vector_count(&self, kind: InterruptKind) -> u16 {
        self.session.core.shared.interrupts.lock().count(kind)
    }

    fn enabled(&self) -> Option<InterruptKind> {
        self.with_interrupts(|state| Ok(state.enabled)).unwrap_or(None)
    }

    fn can_attach_later(&self, kind: InterruptKind) -> bool {
        let state = self.session.core.shared.interrupts.lock();
        kind == InterruptKind::Msix && state.count(kind) > 0 && !state.fixed_vectors
    }

    fn enable(&self, kind: InterruptKind, events: &[Option<EventFd>]) -> Result<(), InterruptError> {
        self.with_interrupts(|state| state.enable(kind, events))
    }

    fn attach(&self, kind: InterruptKind, vector: u16, event: &EventFd) -> Result<(), InterruptError> {
        self.with_interrupts(|state| state.attach(kind, vector, event))
    }

    fn detach(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        match self.with_interrupts(|state| state.detach(kind, vector)) {
            // With the session or the function everything was detached.
            Err(InterruptError::NotOpen | InterruptError::Gone) => Ok(()),
            other => other,
        }
    }

    fn disable_all(&self, kind: InterruptKind) -> Result<(), InterruptError> {
        match self.with_interrupts(|state| {
            state.disable(kind);
            Ok(())
        }) {
            Err(InterruptError::NotOpen | InterruptError::Gone) => Ok(()),
            other => other,
        }
    }

    fn mask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.with_interrupts(|state| state.set_masked(kind, vector, true))
    }

    fn unmask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.with_interrupts(|state| state.set_masked(kind, vector, false))
    }

    fn self_test(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.with_interrupts(|state| state.self_test(kind, vector))
    }
}

impl fmt::Debug for StubFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubFunction")
            .field("name", &self.name())
            .field("liveness", &self.session.liveness.state())
            .finish_non_exhaustive()
    }
}

/// The parts of a BAR that are not mapped. It keeps the session's parts alive, not the
/// session open.
struct TrappedBar {
    session: Arc<Session>,
    bar: BarIndex,
}

impl BarAccess for TrappedBar {
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError> {
        let mut device = self.session.visit().map_err(|unreachable| bar_error(unreachable, self.bar))?;
        device.read_bar(&self.session.core.shared, self.bar, offset, width)
    }

    fn write(&self, offset: u64, width: Width, value: u64) -> Result<(), BarError> {
        let mut device = self.session.visit().map_err(|unreachable| bar_error(unreachable, self.bar))?;
        device.write_bar(&self.session.core.shared, self.bar, offset, width, value)?;
        drop(device);
        self.session.kick.wake();
        Ok(())
    }
}

fn bar_error(unreachable: Unreachable, bar: BarIndex) -> BarError {
    match unreachable {
        Unreachable::NotOpen => BarError::NotOpen { bar },
        Unreachable::Gone => BarError::DeviceGone { bar },
    }
}

fn config_error(unreachable: Unreachable) -> ConfigError {
    match unreachable {
        Unreachable::NotOpen => ConfigError::NotOpen,
        Unreachable::Gone => ConfigError::DeviceGone,
    }
}

/// Waits for the device thread, which was told to end.
fn join(name: &str, thread: JoinHandle<()>) {
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, JOIN_TIME);
    let ended = poll_until(&clock, deadline, Pace::FAST, "the end of the device thread", || {
        Ok::<_, TimedOut>(thread.is_finished().then_some(()))
    });
    match ended {
        Ok(()) if thread.join().is_ok() => {}
        Ok(()) => log::error!("{name}: the device thread has panicked"),
        // It has lost the gate and the session, so that all it can do is end.
        Err(error) => log::error!("{name}: {error}"),
    }
}

/// How long a device thread may take to end.
const JOIN_TIME: Duration = Duration::from_secs(5);
