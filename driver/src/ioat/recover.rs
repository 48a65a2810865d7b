//! Stopping a channel, ending what it had, and starting it again.

use core::sync::atomic::Ordering;
use core::time::Duration;

use vdk_descriptors::ioat::{ChannelErrors, ChannelStatus, IoatChannelRegisters};
use vdk_hal::bar::BarError;
use vdk_hal::poll::{Deadline, Pace, TimedOut, poll_until};

use super::Completion;
use super::channel::{CELL_BYTES, Channel};
use super::device;
use super::error::{ChannelError, OperationError, StopError};
use super::ring::{Finished, Progress};

/// How long the first descriptor of a chain may take. It moves nothing, but a software device
/// may have to wait for a processor.
const START_LIMIT: Duration = Duration::from_secs(3);

/// How a recovery went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Operations that the engine had completed.
    pub completed: usize,
    /// Operations that ended with an error.
    pub failed: usize,
    /// What CHANERR said.
    pub errors: ChannelErrors,
}

impl<T> Channel<T> {
    /// Resets the channel and starts it again. Everything outstanding ends, in order: what
    /// the engine had completed with success, the operation it halted on with
    /// [`OperationError::Hardware`], the rest with [`OperationError::Aborted`], and all of
    /// it with [`OperationError::Gone`] when the device is gone.
    ///
    /// Owners are given back only after the channel was shown to have stopped.
    ///
    /// # Errors
    ///
    /// - [`ChannelError::NotStopped`]: nothing was given back; close the channel;
    /// - [`ChannelError::Gone`]: everything was given back, the channel stays failed;
    /// - others when the channel did not start again: everything was given back, the
    ///   channel stays failed.
    pub fn recover(&mut self, mut ended: impl FnMut(Completion<T>)) -> Result<Recovery, ChannelError> {
        let channel = self.number;
        self.ring.shut();
        self.statistics.recoveries += 1;
        let stopped = match self.stop() {
            Ok(stopped) => stopped,
            Err(error) => {
                let failure = ChannelError::NotStopped { channel, error };
                self.failure = Some(failure.clone());
                return Err(failure);
            }
        };
        let finished = self.finish(stopped, &mut ended);
        if stopped.gone {
            self.failure = Some(ChannelError::Gone { channel });
            return Err(ChannelError::Gone { channel });
        }
        self.restart()?;
        Ok(Recovery { completed: finished.completed, failed: finished.failed, errors: stopped.errors })
    }

    /// Stops the channel for good and gives back every owner, as
    /// [`recover`](Self::recover) would end it. When the channel does not answer, bus
    /// mastering is turned off, which stops the other channels of the device as well.
    ///
    /// # Errors
    ///
    /// [`StopError`] when nothing stopped it: owners and ring stay the device's for ever,
    /// and their memory is never freed.
    pub fn close(mut self) -> Result<Vec<Completion<T>>, StopError> {
        let mut completions = Vec::with_capacity(self.outstanding());
        self.shut_down(&mut |completion| completions.push(completion))?;
        Ok(completions)
    }

    /// Starts a new chain on a channel at rest: a descriptor that moves nothing shows that
    /// the engine reads the ring and writes the completion word.
    pub(super) fn restart(&mut self) -> Result<(), ChannelError> {
        let started = self.try_restart();
        match &started {
            Ok(()) => self.failure = None,
            Err(error) => {
                self.failure = Some(error.clone());
                self.ring.shut();
            }
        }
        started
    }

    fn try_restart(&mut self) -> Result<(), ChannelError> {
        let channel = self.number;
        self.failure = None;
        self.cell = (self.cell + 1) % self.cells.count();
        self.seen = 0;
        // ORDERING: Relaxed; the doorbell's barrier orders it before the engine runs.
        self.cells.store_word(self.cell, 0, 0, Ordering::Relaxed);
        let chain = self.ring.restart();
        let cell = self.cell_address()?;
        let registers = &self.registers;
        let written = registers
            .write(IoatChannelRegisters::CHANCTRL, self.control().0)
            .and_then(|()| registers.write(IoatChannelRegisters::CHANCMP, cell))
            .and_then(|()| registers.write(IoatChannelRegisters::CHAINADDR, chain.as_u64()));
        written.map_err(|error| self.fail_register(error))?;
        self.ring.post_null();
        self.commit()?;
        let clock = self.clock;
        let deadline = Deadline::after(&clock, START_LIMIT);
        let started = poll_until(&clock, deadline, Pace::FAST, "the first descriptor", || {
            // ORDERING: Acquire, as in `poll`.
            let word = self.cells.load_word(self.cell, 0, Ordering::Acquire);
            if word != self.seen {
                self.digest(word);
            }
            match &self.failure {
                Some(failure) => Err(StartFailure::Channel(failure.clone())),
                None => Ok(self.ring.can_retire().then_some(())),
            }
        });
        match started {
            Ok(()) => {}
            Err(StartFailure::Channel(failure)) => return Err(failure),
            Err(StartFailure::TimedOut(error)) => {
                // The registers may know why.
                self.check_health()?;
                return Err(self.fail(ChannelError::TimedOut { channel, error }));
            }
        }
        self.ring.retire(1, &mut |_| ());
        Ok(())
    }

    /// The address of the completion word in use, as the device sees it.
    fn cell_address(&self) -> Result<u64, ChannelError> {
        // CAST: below the size of the region.
        let offset = (self.cell * CELL_BYTES) as u64;
        let region = self.region.as_ref().ok_or(ChannelError::Gone { channel: self.number })?;
        Ok(region.iova().as_u64() + offset)
    }

    /// Brings the engine to rest, by its own registers. On the way it notes how far the
    /// engine has come.
    fn stop(&mut self) -> Result<Stopped, StopError> {
        // ORDERING: Acquire, as in `poll`.
        let word = self.cells.load_word(self.cell, 0, Ordering::Acquire);
        self.note_progress(ChannelStatus(word));
        match self.stop_by_registers() {
            Ok(errors) => Ok(Stopped { errors, gone: self.device.is_stopped() }),
            Err(error) if error.is_gone() => Ok(Stopped { errors: ChannelErrors::NONE, gone: true }),
            Err(error) => Err(error),
        }
    }

    fn stop_by_registers(&mut self) -> Result<ChannelErrors, StopError> {
        let status = device::suspend(&self.registers, &self.clock)?;
        if status.0 == u64::MAX {
            // All ones: there is no channel behind the registers. Bus mastering off proves
            // that it is silent.
            self.device.silence()?;
            return Err(BarError::DeviceGone { bar: self.registers.bar().info().index }.into());
        }
        self.note_progress(status);
        let errors = device::errors(&self.registers)?;
        device::stop_channel(&self.registers)?;
        Ok(errors)
    }

    /// Takes an address from the device for progress, if it can be one.
    fn note_progress(&mut self, status: ChannelStatus) {
        if let Ok(Progress::UpTo(index)) = self.ring.progress(status.completed()) {
            self.ring.complete(index);
        }
    }

    fn finish(&mut self, stopped: Stopped, ended: &mut impl FnMut(Completion<T>)) -> Finished {
        let halted = matches!(self.failure, Some(ChannelError::Halted { .. })) || !stopped.errors.is_empty();
        let (first, rest) = if stopped.gone {
            (OperationError::Gone, OperationError::Gone)
        } else if halted {
            (OperationError::Hardware { errors: stopped.errors }, OperationError::Aborted)
        } else {
            (OperationError::Aborted, OperationError::Aborted)
        };
        let finished = self.ring.finish(first, rest, ended);
        self.statistics.operations += (finished.completed + finished.failed) as u64;
        self.statistics.failed += finished.failed as u64;
        finished
    }

    /// Stops the channel, by any means, and ends everything.
    fn shut_down(&mut self, ended: &mut impl FnMut(Completion<T>)) -> Result<(), StopError> {
        self.closed = true;
        self.ring.shut();
        let stopped = match self.stop() {
            Ok(stopped) => stopped,
            Err(error) => {
                log::warn!("channel {}: {error}; turning bus mastering off", self.number);
                if let Err(error) = self.device.silence() {
                    log::error!("channel {}: {error}; its memory stays the device's", self.number);
                    self.leaked = true;
                    self.ring.leak();
                    core::mem::forget(self.region.take());
                    return Err(error);
                }
                Stopped { errors: ChannelErrors::NONE, gone: false }
            }
        };
        self.finish(stopped, ended);
        Ok(())
    }
}

/// How the engine came to rest.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    /// What CHANERR said.
    errors: ChannelErrors,
    /// Whether there is no device any more.
    gone: bool,
}

/// Why the first descriptor did not complete.
enum StartFailure {
    Channel(ChannelError),
    TimedOut(TimedOut),
}

impl From<TimedOut> for StartFailure {
    fn from(error: TimedOut) -> Self {
        Self::TimedOut(error)
    }
}

impl<T> Drop for Channel<T> {
    fn drop(&mut self) {
        if !self.closed {
            // A failure was logged, and the memory is leaked then.
            let _ = self.shut_down(&mut drop);
        }
        if !self.leaked {
            self.device.release(self.number);
        }
    }
}
