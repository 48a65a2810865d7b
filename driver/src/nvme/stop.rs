//! Stopping the controller, for a reset or for good, and the proof that it has stopped.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use vdk_descriptors::nvme::{ControllerConfiguration, NvmeRegisters, ShutdownNotification, ShutdownStatus};
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::poll::{Deadline, Pace, SystemClock, poll_until};

use super::admin::Admin;
use super::device::{Device, disable, locked, read_status};
use super::error::{EnableError, ResetError, StopError};

/// How long a shutdown may take; the specification has no register for it.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// How far the stop for good is. That it was asked for says nothing about the controller,
/// which may go on for seconds, or for ever when nothing stops it: only one that was shown to
/// be silent gives back what it was given.
#[derive(Debug, Default)]
pub(super) struct StopState {
    asked: AtomicBool,
    silent: AtomicBool,
}

impl StopState {
    /// Whether the stop was asked for: nothing new is begun.
    pub(super) fn is_stopping(&self) -> bool {
        // ORDERING: Relaxed; it is only a reason to stop early. What needs to know more takes
        // the lock of the admin queue, under which the controller is stopped.
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether the stop was done: the controller reaches memory no more.
    pub(super) fn is_silent(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `mark_silent`.
        self.silent.load(Ordering::Acquire)
    }

    fn mark_silent(&self) {
        // ORDERING: Release; who sees it sees a controller that has stopped.
        self.silent.store(true, Ordering::Release);
    }
}

impl Device {
    /// Tells the controller that it is going to be without power, disables it and takes it
    /// off the bus. Once that is done, stopping again is harmless; after an error it is tried
    /// again.
    pub(super) fn stop(&self) -> Result<(), StopError> {
        // ORDERING: Relaxed, as in `is_stopping`.
        self.stop_state.asked.store(true, Ordering::Relaxed);
        let mut admin = self.lock_admin();
        self.stop_locked(&mut admin)
    }

    /// Stops a controller that is to stop, whoever comes first, and says what that means to
    /// one who wanted a reset.
    pub(super) fn stop_for_reset(&self, admin: &mut Admin) -> ResetError {
        match self.stop_locked(admin) {
            Err(error) if !self.stop_state.is_silent() => ResetError::NotStopped(error),
            // Disabled is enough, even if it may still master the bus.
            Ok(()) | Err(_) => ResetError::Gone,
        }
    }

    fn stop_locked(&self, admin: &mut Admin) -> Result<(), StopError> {
        if self.stop_state.is_silent() {
            return Ok(());
        }
        admin.shut();
        if let Err(error) = self.notify_shutdown() {
            log::debug!("{}: no shutdown: {error}", self.session().name());
        }
        let disabled = disable(self.registers(), self.capabilities());
        if let Ok(interrupts) = self.session().interrupts()
            && !self.vectors().is_empty()
            && let Err(error) = interrupts.disable_all(InterruptKind::Msix)
        {
            log::debug!("{}: {error}", self.session().name());
        }
        let off_the_bus = self.take_off_the_bus();
        if disabled.is_ok() || off_the_bus.is_ok() {
            // ORDERING: Release pairs with `generation`; the queues exist no more.
            self.generation.fetch_add(1, Ordering::Release);
            self.stop_state.mark_silent();
        }
        match (off_the_bus, disabled) {
            // With bus mastering off it does not matter any more whether it was disabled.
            (Ok(()), _) => Ok(()),
            (Err(error), Ok(())) => Err(error),
            (Err(_), Err(error)) => Err(error.into()),
        }
    }

    /// Stops the controller by CC.EN, else by taking it off the bus and resetting the
    /// function. When this succeeds it reaches memory no more; what is in it is whether it
    /// can be enabled again.
    pub(super) fn prove_stopped(&self) -> Result<Result<(), StopError>, StopError> {
        let error = match disable(self.registers(), self.capabilities()) {
            Ok(()) => return Ok(Ok(())),
            Err(error) => error,
        };
        log::warn!("{}: {error}; taking it off the bus", self.session().name());
        self.take_off_the_bus()?;
        Ok(self.revive(error))
    }

    /// Resets the function, after it was taken off the bus because of `error`.
    fn revive(&self, error: EnableError) -> Result<(), StopError> {
        if matches!(&error, EnableError::Register(error) if error.is_gone()) {
            return Err(error.into());
        }
        let Some(kind) = self.session().own_reset_kind()? else { return Err(error.into()) };
        self.session().reset(kind)?;
        Ok(disable(self.registers(), self.capabilities())?)
    }

    /// Turns bus mastering off: the last means to end the device's access to memory.
    fn take_off_the_bus(&self) -> Result<(), StopError> {
        drop(locked(&self.bus_master).take());
        Ok(self.session().require_silence()?)
    }

    fn notify_shutdown(&self) -> Result<(), EnableError> {
        let mut configuration = ControllerConfiguration(self.registers().read(NvmeRegisters::CC)?);
        if !configuration.enable() || !read_status(self.registers())?.ready() {
            return Ok(());
        }
        configuration.set_shutdown(ShutdownNotification::NORMAL);
        self.registers().write(NvmeRegisters::CC, configuration.0)?;
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, SHUTDOWN_LIMIT);
        poll_until(&clock, deadline, Pace::SLOW, "the shutdown of the controller", || {
            let status = read_status(self.registers())?;
            if status.fatal() {
                return Err(EnableError::Fatal { status: status.0 });
            }
            Ok((status.shutdown() == ShutdownStatus::COMPLETE).then_some(()))
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Err(error) = self.stop() else { return };
        log::error!("{}: {error}", self.session().name());
        if !self.stop_state.is_silent() {
            // Memory that the controller may still write to is never freed.
            locked(&self.admin).leak();
            core::mem::forget(self.shadow.take());
        }
    }
}
