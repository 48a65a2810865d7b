//! Ending what a queue pair had: recovery, close and drop.

use vdk_descriptors::nvme::{AdminOpcode, Status, SubmissionEntry};

use super::command::{CommandError, Completion};
use super::error::{AdminError, QueueError, RecoverError, ResetError};
use super::pair::QueuePair;

impl<T> QueuePair<T> {
    /// Resets the controller, if that was not done since, and creates the queue pair again.
    /// Everything outstanding ends: what the controller had completed as it said, the rest
    /// with [`CommandError::Reset`], or with [`CommandError::Gone`] when the device is gone.
    /// Other queue pairs of the controller find themselves reset and have to be recovered as
    /// well.
    ///
    /// Owners are given back only after the controller was shown to have stopped. Where it is
    /// being stopped, that is waited for, as long as its admin commands, its shutdown and
    /// CAP.TO allow.
    ///
    /// # Errors
    ///
    /// - [`ResetError::NotStopped`]: nothing was given back; close the queue pair;
    /// - [`ResetError::Gone`]: everything was given back, the queue pair stays failed;
    /// - others when it did not come up again: everything was given back.
    pub fn recover(&mut self, mut ended: impl FnMut(Completion<T>)) -> Result<(), RecoverError> {
        self.statistics.recoveries += 1;
        self.drain(&mut ended);
        let queue = self.number;
        self.failure.get_or_insert(QueueError::Reset { queue });
        match self.device.reset(self.generation) {
            Ok(()) => self.end_all(CommandError::Reset, &mut ended),
            Err(error @ ResetError::NotStopped(_)) => return Err(error.into()),
            Err(ResetError::Gone) => {
                self.end_all(CommandError::Gone, &mut ended);
                self.failure = Some(QueueError::Gone { queue });
                return Err(ResetError::Gone.into());
            }
            Err(error) => {
                self.end_all(CommandError::Reset, &mut ended);
                self.generation = self.device.generation();
                return Err(error.into());
            }
        }
        // From here on the queues are those of the controller as it is now.
        self.generation = self.device.generation();
        Ok(self.create()?)
    }

    /// Deletes the queue pair and gives back every owner: what is outstanding ends with
    /// [`CommandError::Deleted`]. When the controller does not delete it, it is reset; where
    /// it is being stopped, that is waited for, as in [`recover`](Self::recover).
    ///
    /// # Errors
    ///
    /// [`ResetError::NotStopped`] when nothing stopped it: owners and queues stay the
    /// device's for ever, and their memory is never freed.
    pub fn close(mut self) -> Result<Vec<Completion<T>>, ResetError> {
        let mut completions = Vec::new();
        self.shut_down(&mut |completion| completions.push(completion))?;
        Ok(completions)
    }

    /// Takes what the controller has completed, as far as it makes sense.
    fn drain(&mut self, ended: &mut impl FnMut(Completion<T>)) {
        let failure = self.failure.take();
        if matches!(failure, None | Some(QueueError::Overdue { .. })) {
            let budget = self.outstanding();
            // What is wrong with the queue is no matter any more.
            let _ = self.poll(budget, ended);
        }
        self.failure = failure.or(self.failure.take());
    }

    /// Ends every command; the controller must have stopped, or deleted the queues.
    fn end_all(&mut self, error: CommandError, ended: &mut impl FnMut(Completion<T>)) {
        let mut count = 0;
        self.queue.reset(|cookie, owner| {
            count += 1;
            ended(Completion { cookie, result: Err(error), owner });
        });
        self.statistics.completions += count;
        self.statistics.failed += count;
    }

    /// Stops the queue pair, by any means, and ends everything.
    pub(super) fn shut_down(&mut self, ended: &mut impl FnMut(Completion<T>)) -> Result<(), ResetError> {
        self.closed = true;
        self.drain(ended);
        match self.end_queues(ended) {
            Ok(error) => {
                self.end_all(error, ended);
                self.device.release_queue(self.number);
                Ok(())
            }
            Err(error) => {
                // The number stays in use, like the memory.
                core::mem::forget(self.region.take());
                self.queue.forget_owners();
                self.failure = Some(QueueError::Gone { queue: self.number });
                Err(error)
            }
        }
    }

    /// Deletes the queues, or resets the controller, and says how what is outstanding ends.
    fn end_queues(&mut self, ended: &mut impl FnMut(Completion<T>)) -> Result<CommandError, ResetError> {
        if !self.device.stop_state.is_stopping() {
            if self.generation != self.device.generation() {
                return Ok(CommandError::Reset);
            }
            match self.delete() {
                Ok(()) => {
                    self.drain(ended);
                    return Ok(CommandError::Deleted);
                }
                Err(error) => log::warn!("queue {}: {error}", self.number),
            }
        }
        match self.device.reset(self.generation) {
            Ok(()) | Err(ResetError::NotStarted(_)) => Ok(CommandError::Reset),
            Err(ResetError::Gone) => Ok(CommandError::Gone),
            Err(error) => Err(error),
        }
    }

    /// Deletes the submission queue, then the completion queue, as far as there are any.
    /// After the first the controller has ended every command.
    fn delete(&mut self) -> Result<(), AdminError> {
        if self.created.submission_queue {
            self.delete_one(AdminOpcode::DELETE_SUBMISSION_QUEUE)?;
            self.created.submission_queue = false;
        }
        if self.created.completion_queue {
            self.delete_one(AdminOpcode::DELETE_COMPLETION_QUEUE)?;
            self.created.completion_queue = false;
        }
        Ok(())
    }

    fn delete_one(&self, opcode: AdminOpcode) -> Result<(), AdminError> {
        let entry = SubmissionEntry { dword10: u32::from(self.number), ..SubmissionEntry::default() };
        match self.device.execute(opcode, entry) {
            Ok(_) => Ok(()),
            // There is none, which is what was wanted.
            Err(AdminError::Status { status: Status::INVALID_QUEUE_ID, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl<T> Drop for QueuePair<T> {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if let Err(error) = self.shut_down(&mut |completion| drop(completion)) {
            log::error!("queue {}: {error}; its memory is lost", self.number);
        }
    }
}
