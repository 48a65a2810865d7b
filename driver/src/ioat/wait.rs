//! Waiting for a completion: by looking, by sleeping, or first one and then the other.

use core::time::Duration;

use vdk_descriptors::ioat::{
    ChannelState, ChannelStatus, InterruptControl, IoatChannelRegisters, IoatRegisters,
};
use vdk_hal::bar::BarError;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::poll::{Deadline, TimedOut};

use super::channel::Channel;
use super::error::{ChannelError, WaitError};

/// How a wait learns of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CompletionMode {
    /// Looks all the time. The shortest delay, and a processor for it.
    Poll,
    /// Sleeps until the interrupt.
    Interrupt,
    /// Looks for a while, then sleeps until the interrupt; without one it goes on looking.
    #[default]
    Adaptive,
}

/// Looks between two readings of the clock.
const LOOKS_PER_ROUND: u32 = 256;
/// How often a wait asks the device whether it is there and runs. A device that cannot
/// write to memory any more reports nothing else.
const HEALTH_INTERVAL: Duration = Duration::from_millis(10);

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
        match mode {
            CompletionMode::Poll => self.look_until(deadline),
            CompletionMode::Interrupt => self.sleep_until(deadline),
            CompletionMode::Adaptive => {
                for _ in 0..self.options.spins {
                    if self.has_news() {
                        return Ok(());
                    }
                    self.statistics.spins += 1;
                    core::hint::spin_loop();
                }
                if self.interrupt.is_some() { self.sleep_until(deadline) } else { self.look_until(deadline) }
            }
        }
    }

    fn look_until(&mut self, deadline: Deadline) -> Result<(), WaitError> {
        let mut health = Deadline::after(&self.clock, HEALTH_INTERVAL);
        loop {
            // The clock first: a thread that lost the processor looks once more.
            let over = deadline.is_over(&self.clock);
            for _ in 0..LOOKS_PER_ROUND {
                if self.has_news() {
                    return Ok(());
                }
                self.statistics.spins += 1;
                core::hint::spin_loop();
            }
            if over || health.is_over(&self.clock) {
                self.check_health()?;
                health = Deadline::after(&self.clock, HEALTH_INTERVAL);
                // A software device may need the processor that this thread burns.
                std::thread::yield_now();
            }
            if over && !self.has_news() {
                return Err(timed_out(deadline));
            }
        }
    }

    /// Sleeps until an interrupt brings news.
    ///
    /// The order closes the gap in which a completion could be missed: arm, make sure that
    /// the device knows, look once more, and only then sleep.
    fn sleep_until(&mut self, deadline: Deadline) -> Result<(), WaitError> {
        loop {
            let over = deadline.is_over(&self.clock);
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
            // Short naps: an interrupt that is lost costs a moment and not the deadline.
            let nap = deadline.remaining(&self.clock).min(HEALTH_INTERVAL * 5);
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

fn timed_out(deadline: Deadline) -> WaitError {
    TimedOut { what: "a completion", allowed: deadline.allowed() }.into()
}
