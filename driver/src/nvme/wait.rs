//! Waiting for a completion, and finding out that none will come.

use core::time::Duration;

use vdk_descriptors::nvme::{AbortResult, AdminOpcode};
use vdk_descriptors::ring::Cookie;
use vdk_hal::poll::{Clock, Deadline, SystemClock};

use super::admin::abort_entry;
use super::command::WaitError;
use super::error::{AdminError, QueueError};
use super::pair::QueuePair;
use crate::wait::{CompletionMode, CompletionQueue, HEALTH_INTERVAL, NAP, timed_out};

/// Into how many steps the time limit of commands is divided.
const STEPS: u32 = 8;
/// How many calls that found a completion at once lie between two looks at the clock.
const CALLS_PER_CLOCK: u32 = 16;

impl<T> QueuePair<T> {
    /// Commits what was submitted and waits until [`poll`](Self::poll) has something to give
    /// back, `within` at most. Returns at once when nothing is outstanding.
    ///
    /// # Errors
    ///
    /// - [`WaitError::TimedOut`]: the queue goes on; wait again or recover it;
    /// - [`WaitError::NoInterrupt`] for [`CompletionMode::Interrupt`] without one;
    /// - [`WaitError::Queue`] when the queue pair has failed, also when only that was found
    ///   out now: see [`check`](Self::check).
    pub fn wait(&mut self, mode: CompletionMode, within: Duration) -> Result<(), WaitError> {
        if mode == CompletionMode::Interrupt && self.interrupt.is_none() {
            return Err(WaitError::NoInterrupt { queue: self.number });
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        self.commit()?;
        if self.outstanding() == 0 {
            return Ok(());
        }
        if self.queue.is_ready() {
            return Ok(self.look_after()?);
        }
        let deadline = Deadline::after(&self.clock, within);
        if self.health.is_over(&self.clock) {
            self.check()?;
        }
        self.wait_until(mode, self.options.spins, deadline)
    }

    /// Asks the controller whether it is there and runs, and looks whether commands are
    /// overdue: an abort is sent for each that has taken longer than
    /// [`QueueOptions::time_limit`](super::QueueOptions::time_limit), whose answer is not
    /// waited for, and when twice the time
    /// has passed the queue pair fails. Waits do it from time to time, however short they are;
    /// who only polls calls it himself.
    ///
    /// # Errors
    ///
    /// [`QueueError`]; the queue pair has failed then. What can still be polled comes first.
    pub fn check(&mut self) -> Result<(), QueueError> {
        let queue = self.number;
        self.health = Deadline::after(&self.clock, HEALTH_INTERVAL);
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.device.stop_state.is_silent() {
            return Err(self.fail(QueueError::Gone { queue }));
        }
        if self.generation != self.device.generation() {
            return Err(self.fail(QueueError::Reset { queue }));
        }
        let status = match self.device.status() {
            Ok(status) => status,
            Err(error) => return Err(self.fail_register(error)),
        };
        if (status.fatal() || !status.ready()) && !self.queue.is_ready() {
            if self.device.stop_state.is_stopping() {
                return Err(self.fail(QueueError::Stopping { queue }));
            }
            if self.generation != self.device.generation() {
                return Err(self.fail(QueueError::Reset { queue }));
            }
            return Err(self.fail(QueueError::NotRunning { queue, status: status.0 }));
        }
        self.check_time()
    }

    /// Checks from time to time, for calls that would be slowed down by a look at the clock.
    #[inline]
    pub(super) fn look_after(&mut self) -> Result<(), QueueError> {
        self.unclocked = self.unclocked.wrapping_add(1);
        if self.unclocked.is_multiple_of(CALLS_PER_CLOCK) && self.health.is_over(&self.clock) {
            return self.check();
        }
        Ok(())
    }

    fn check_time(&mut self) -> Result<(), QueueError> {
        let now = self.clock.now();
        let step = self.options.time_limit / STEPS;
        if now.saturating_sub(self.epoch_began) < step.max(Duration::from_millis(1)) {
            self.post_aborts();
            return Ok(());
        }
        self.epoch_began = now;
        self.queue.advance();
        if self.queue.in_flight() == 0 {
            return Ok(());
        }
        let (late, lost) = self.queue.overdue(STEPS);
        if lost > 0 && !self.may_still_come() {
            return Err(self.fail(QueueError::Overdue { queue: self.number, count: lost }));
        }
        if lost == 0 {
            self.lost_at = None;
        }
        self.late = late;
        self.post_aborts();
        Ok(())
    }

    /// Sends an abort for each overdue command, as far as the admin queue takes them now. A
    /// check must not wait for others, nor for a controller that may not answer at all.
    fn post_aborts(&mut self) {
        while let Some((cookie, command_id)) = self.late.last().copied() {
            if self.queue.command_id(cookie).is_some() {
                match self.device.post_abort(self.number, command_id) {
                    Ok(true) => self.statistics.aborts += 1,
                    Ok(false) => return,
                    Err(error) => log::warn!("queue {}: {error}", self.number),
                }
                self.queue.mark_aborted(cookie);
            }
            self.late.pop();
        }
    }

    /// Whether the completion of an overdue command may be among those that wait to be
    /// polled. On a busy queue there always are some, but once as many were polled as the
    /// queue holds they are others.
    fn may_still_come(&mut self) -> bool {
        let ended = self.statistics.completions;
        let then = *self.lost_at.get_or_insert(ended);
        // CAST: a queue has at most 2^16 entries.
        self.queue.is_ready() && ended - then < self.queue.completion_entries() as u64
    }

    /// Asks the controller to abort a command, and waits for the answer, as long as an admin
    /// command may take. Returns whether it says that it did; the command ends either way with
    /// its own completion.
    ///
    /// # Errors
    ///
    /// [`AdminError`] when the abort could not be sent or failed.
    pub fn abort(&mut self, cookie: Cookie) -> Result<bool, AdminError> {
        match self.queue.command_id(cookie) {
            Some(command_id) => {
                self.queue.mark_aborted(cookie);
                self.send_abort(command_id)
            }
            // It has ended.
            None => Ok(false),
        }
    }

    fn send_abort(&mut self, command_id: u16) -> Result<bool, AdminError> {
        self.statistics.aborts += 1;
        let entry = abort_entry(self.number, command_id);
        let completion = self.device.execute(AdminOpcode::ABORT, entry)?;
        Ok(!AbortResult(completion.result).not_aborted())
    }
}

impl<T> CompletionQueue for QueuePair<T> {
    type Error = WaitError;

    const PAUSES: bool = false;

    fn clock(&self) -> SystemClock {
        self.clock
    }

    fn has_news(&mut self) -> bool {
        self.queue.is_ready()
    }

    fn count_spin(&mut self) {
        self.statistics.spins += 1;
    }

    fn check_device(&mut self) -> Result<(), WaitError> {
        Ok(self.check()?)
    }

    fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Sleeps until an interrupt brings news. The controller writes the completion before it
    /// sends the interrupt, and the event file counts: so what comes after the look wakes.
    fn sleep_until(&mut self, deadline: Deadline) -> Result<(), WaitError> {
        let clock = self.clock;
        self.queue.acknowledge().map_err(|error| self.fail_register(error))?;
        let mut health = Deadline::after(&clock, HEALTH_INTERVAL);
        loop {
            let over = deadline.is_over(&clock);
            let Some(event) = &self.interrupt else {
                return Err(WaitError::NoInterrupt { queue: self.number });
            };
            self.statistics.interrupts += event.take();
            if self.queue.is_ready() {
                return Ok(());
            }
            if over || health.is_over(&clock) {
                self.check()?;
                health = Deadline::after(&clock, HEALTH_INTERVAL);
            }
            if over {
                return if self.queue.is_ready() { Ok(()) } else { Err(timed_out(deadline)) };
            }
            let nap = deadline.remaining(&clock).min(NAP);
            if let Some(event) = &self.interrupt
                && let Err(error) = event.wait(nap)
            {
                log::warn!("queue {}: cannot sleep: {error}", self.number);
                return self.look_until(deadline);
            }
            if self.queue.is_ready() {
                return Ok(());
            }
        }
    }
}
