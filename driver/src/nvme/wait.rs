//! Waiting for a completion, and finding out that none will come.

use core::time::Duration;

use vdk_descriptors::nvme::{AbortDword, AbortResult, AdminOpcode, SubmissionEntry};
use vdk_descriptors::ring::Cookie;
use vdk_hal::poll::{Clock, Deadline, TimedOut};

use super::command::{CompletionMode, WaitError};
use super::error::{AdminError, QueueError};
use super::pair::QueuePair;

/// Looks between two readings of the clock.
const LOOKS_PER_ROUND: u32 = 256;
/// How often a wait asks the controller whether it is there and runs.
const HEALTH_INTERVAL: Duration = Duration::from_millis(10);
/// How long a sleep lasts at most: an interrupt that is lost costs so much.
const NAP: Duration = Duration::from_millis(50);
/// Into how many steps the time limit of commands is divided.
const STEPS: u32 = 8;

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
        if self.outstanding() == 0 || self.queue.is_ready() {
            return Ok(());
        }
        let deadline = Deadline::after(&self.clock, within);
        match mode {
            CompletionMode::Poll => self.look_until(deadline),
            CompletionMode::Interrupt => self.sleep_until(deadline),
            CompletionMode::Adaptive => {
                for _ in 0..self.options.spins {
                    if self.queue.is_ready() {
                        return Ok(());
                    }
                    self.statistics.spins += 1;
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
            // Without a hint to the processor in between: a hypervisor takes one for a reason
            // to stop the virtual processor, which costs more than many looks.
            for _ in 0..LOOKS_PER_ROUND {
                if self.queue.is_ready() {
                    return Ok(());
                }
                self.statistics.spins += 1;
            }
            if over || health.is_over(&self.clock) {
                self.check()?;
                health = Deadline::after(&self.clock, HEALTH_INTERVAL);
                // A software device may need the processor that this thread burns.
                std::thread::yield_now();
            }
            if over && !self.queue.is_ready() {
                return Err(timed_out(deadline));
            }
        }
    }

    /// Sleeps until an interrupt brings news. The controller writes the completion before it
    /// sends the interrupt, and the event file counts: so what comes after the look wakes.
    fn sleep_until(&mut self, deadline: Deadline) -> Result<(), WaitError> {
        self.queue.acknowledge().map_err(|error| self.fail_register(error))?;
        let mut health = Deadline::after(&self.clock, HEALTH_INTERVAL);
        loop {
            let over = deadline.is_over(&self.clock);
            let Some(event) = &self.interrupt else {
                return Err(WaitError::NoInterrupt { queue: self.number });
            };
            self.statistics.interrupts += event.take();
            if self.queue.is_ready() {
                return Ok(());
            }
            if over || health.is_over(&self.clock) {
                self.check()?;
                health = Deadline::after(&self.clock, HEALTH_INTERVAL);
            }
            if over {
                return if self.queue.is_ready() { Ok(()) } else { Err(timed_out(deadline)) };
            }
            let nap = deadline.remaining(&self.clock).min(NAP);
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

    /// Asks the controller whether it is there and runs, and looks whether commands are
    /// overdue: an abort is sent for each that has taken longer than
    /// [`QueueOptions::time_limit`](super::QueueOptions::time_limit), and when twice the time
    /// has passed the queue pair fails. Waits do it from time to time; who only polls calls
    /// it himself.
    ///
    /// # Errors
    ///
    /// [`QueueError`]; the queue pair has failed then. What can still be polled comes first.
    pub fn check(&mut self) -> Result<(), QueueError> {
        let queue = self.number;
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.device.is_stopped() {
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
            if self.generation != self.device.generation() {
                return Err(self.fail(QueueError::Reset { queue }));
            }
            return Err(self.fail(QueueError::NotRunning { queue, status: status.0 }));
        }
        self.check_time()
    }

    fn check_time(&mut self) -> Result<(), QueueError> {
        let now = self.clock.now();
        let step = self.options.time_limit / STEPS;
        if now.saturating_sub(self.epoch_began) < step.max(Duration::from_millis(1)) {
            return Ok(());
        }
        self.epoch_began = now;
        self.queue.advance();
        if self.queue.in_flight() == 0 {
            return Ok(());
        }
        let (late, lost) = self.queue.overdue(STEPS);
        if lost > 0 && !self.queue.is_ready() {
            return Err(self.fail(QueueError::Overdue { queue: self.number, count: lost }));
        }
        for (cookie, command_id) in late {
            self.queue.mark_aborted(cookie);
            match self.send_abort(command_id) {
                Ok(true) => log::warn!("queue {}: command {command_id:#06x} was aborted", self.number),
                Ok(false) => log::warn!("queue {}: command {command_id:#06x} is overdue", self.number),
                Err(error) => log::warn!("queue {}: {error}", self.number),
            }
        }
        Ok(())
    }

    /// Asks the controller to abort a command. Returns whether it says that it did; the
    /// command ends either way with its own completion.
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
        let mut dword = AbortDword::default();
        dword.set_submission_queue(self.number);
        dword.set_command_id(command_id);
        let entry = SubmissionEntry { dword10: dword.0, ..SubmissionEntry::default() };
        let completion = self.device.execute(AdminOpcode::ABORT, entry)?;
        Ok(!AbortResult(completion.result).not_aborted())
    }
}

fn timed_out(deadline: Deadline) -> WaitError {
    TimedOut { what: "a completion", allowed: deadline.allowed() }.into()
}
