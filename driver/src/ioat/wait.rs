//! Waiting for a completion: by looking, by sleeping, or first one and then the other.

use core::time::Duration;

use vdk_descriptors::ioat::{
    ChannelState, ChannelStatus, InterruptControl, IoatChannelRegisters, IoatRegisters,
};
use vdk_hal::bar::BarError;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::poll::{Deadline, SystemClock};

use super::channel::Channel;
use super::error::{ChannelError, WaitError};
use crate::wait::{CompletionMode, CompletionQueue, NAP, timed_out};

impl<T> Channel<T> {
    /// Commits what was posted and waits until [`poll`](Self::poll) has something to give
    /// back, `within` at most. Returns at once when nothing is outstanding.
    ///
    /// # Errors
    ///
    /// - [`WaitError::TimedOut`]: the channel goes on; wait again or recover it;
    /// - [`WaitError::NoInterrupt`] for [`CompletionMode::Interrupt`] without one;
    /// - [`WaitError::Channel`] when the channel has failed, also when only that was found
    ///   out now: the device is asked from time to time whether it runs.
    pub fn wait(&mut self, mode: CompletionMode, within: Duration) -> Result<(), WaitError> {
        if mode == CompletionMode::Interrupt && self.interrupt.is_none() {
            return Err(WaitError::NoInterrupt { channel: self.number });
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        self.commit()?;
        if self.outstanding() == 0 || self.has_news() {
            return Ok(());
        }
        let deadline = Deadline::after(&self.clock, within);
        self.wait_until(mode, self.options.spins, deadline)
    }

    /// Takes what the event file has counted, and lets a shared vector fire again.
    pub(super) fn take_interrupts(&mut self) {
        let Some(interrupt) = &mut self.interrupt else { return };
        let count = interrupt.event.take();
        self.statistics.interrupts += count;
        if let (Some(shared), true) = (&mut interrupt.shared, count > 0) {
            // Reading clears the reason; nobody else listens to this vector.
            let served = shared.registers.take(IoatRegisters::ATTNSTATUS);
            log::trace!("attention status {served:x?}");
            if shared.kind == InterruptKind::Intx
                && let Err(error) = self.device.session().unmask(shared.kind, 0)
            {
                log::warn!("channel {}: the line stays masked: {error}", self.number);
            }
        }
    }

    /// Lets one interrupt through.
    fn arm(&mut self) -> Result<(), BarError> {
        self.registers.write(IoatChannelRegisters::CHANCTRL, self.control().0)?;
        if let Some(shared) = self.interrupt.as_ref().and_then(|interrupt| interrupt.shared.as_ref()) {
            let mut control = InterruptControl::default();
            control.set_master_enable(true);
            shared.registers.write(IoatRegisters::INTRCTRL, control.0)?;
        }
        Ok(())
    }

    /// Asks the device whether it is there and runs.
    pub(super) fn check_health(&mut self) -> Result<(), ChannelError> {
        let channel = self.number;
        if self.device.is_stopped() {
            return Err(self.fail(ChannelError::Gone { channel }));
        }
        let status = match self.registers.read(IoatChannelRegisters::CHANSTS) {
            Ok(word) => ChannelStatus(word),
            Err(error) => return Err(self.fail_register(error)),
        };
        if status.0 == u64::MAX {
            return Err(self.fail(ChannelError::Gone { channel }));
        }
        match status.state() {
            ChannelState::Active | ChannelState::Idle => Ok(()),
            // What was completed before may be given back first.
            _ if self.has_news() => Ok(()),
            state => Err(self.stopped_by_itself(state)),
        }
    }
}

impl<T> CompletionQueue for Channel<T> {
    type Error = WaitError;

    const PAUSES: bool = true;

    fn clock(&self) -> SystemClock {
        self.clock
    }

    fn has_news(&mut self) -> bool {
        Self::has_news(self)
    }

    fn count_spin(&mut self) {
        self.statistics.spins += 1;
    }

    fn check_device(&mut self) -> Result<(), WaitError> {
        Ok(self.check_health()?)
    }

    fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Sleeps until an interrupt brings news.
    ///
    /// The order closes the gap in which a completion could be missed: arm, make sure that
    /// the device knows, look once more, and only then sleep.
    fn sleep_until(&mut self, deadline: Deadline) -> Result<(), WaitError> {
        let clock = self.clock;
        loop {
            let over = deadline.is_over(&clock);
            self.take_interrupts();
            self.arm().map_err(|error| self.fail_register(error))?;
            // The read of CHANSTS in here returns after the device's earlier writes.
            self.check_health()?;
            if self.has_news() {
                return Ok(());
            }
            if over {
                return Err(timed_out(deadline));
            }
            let Some(interrupt) = &self.interrupt else {
                return Err(WaitError::NoInterrupt { channel: self.number });
            };
            let nap = deadline.remaining(&clock).min(NAP);
            if let Err(error) = interrupt.event.wait(nap) {
                log::warn!("channel {}: cannot sleep: {error}", self.number);
                return self.look_until(deadline);
            }
            if self.has_news() {
                self.take_interrupts();
                return Ok(());
            }
        }
    }
}
