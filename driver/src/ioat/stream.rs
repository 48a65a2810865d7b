//! Copies that are longer than the ring: fed in pieces while the engine works.

use core::time::Duration;

use vdk_descriptors::sg::{SgList, refine};
use vdk_hal::poll::{Deadline, TimedOut};

use super::channel::Channel;
use super::error::{ChannelError, RejectReason, Rejected, StreamError, WaitError};
use super::{Completion, CompletionMode, Cookie};

impl<T> Channel<T> {
    /// Copies from one list to another of the same size, of any length: posts what there is
    /// room for, commits it, and goes on as slots come free. It returns when the last piece
    /// was committed; the owner then comes back as for [`copy_sg`](Self::copy_sg).
    ///
    /// Other operations that end meanwhile are given to `ended`. `within` is for all of it.
    ///
    /// # Errors
    ///
    /// - [`StreamError::Rejected`] with the owner, when nothing was posted;
    /// - [`StreamError::Interrupted`] when the channel failed or the time was over in the
    ///   middle. The channel has failed then; [`recover`](Self::recover) gives the owner
    ///   back, with an error.
    pub fn copy_sg_streamed(
        &mut self,
        source: &SgList,
        destination: &SgList,
        owner: T,
        mode: CompletionMode,
        within: Duration,
        mut ended: impl FnMut(Completion<T>),
    ) -> Result<Cookie, StreamError<T>> {
        let rejected = |owner, reason| Err(StreamError::Rejected(Rejected { owner, reason }));
        let segments = match refine(source, destination, self.device.facts().transfer_cap) {
            Ok(segments) => segments,
            Err(error) => return rejected(owner, error.into()),
        };
        if source.is_empty() {
            return rejected(owner, RejectReason::Empty);
        }
        if mode == CompletionMode::Interrupt && !self.has_interrupt() {
            let error = WaitError::NoInterrupt { channel: self.number };
            return rejected(owner, RejectReason::Wait(error));
        }
        if let Some(failure) = &self.failure {
            let reason = RejectReason::Channel(failure.clone());
            return rejected(owner, reason);
        }
        let mut segments = segments.peekable();
        // A few batches in flight keep the engine busy while the next is written.
        let batch = (self.capacity() / BATCHES).max(1);
        let deadline = Deadline::after(&self.clock, within);
        let mut owner = Some(owner);
        loop {
            let cookie = self.ring.next_cookie();
            let posted = self.ring.post_piece(&mut segments, batch, &mut owner);
            let fed = if posted > 0 { self.commit() } else { self.make_room(mode, deadline, &mut ended) };
            match (fed, owner.take()) {
                (Ok(()), None) => return Ok(cookie),
                (Ok(()), rest) => owner = rest,
                // The last piece was posted; only its doorbell failed.
                (Err(error), None) => return Err(StreamError::Interrupted { cookie, error }),
                (Err(error), Some(owner)) => {
                    let cookie = self.ring.cut_off(owner);
                    return Err(StreamError::Interrupted { cookie, error });
                }
            }
            if let Err(error) = self.poll(usize::MAX, &mut ended)
                && let Some(owner) = owner.take()
            {
                let cookie = self.ring.cut_off(owner);
                return Err(StreamError::Interrupted { cookie, error });
            }
        }
    }

    /// Waits until descriptors are free again.
    fn make_room(
        &mut self,
        mode: CompletionMode,
        deadline: Deadline,
        ended: &mut impl FnMut(Completion<T>),
    ) -> Result<(), ChannelError> {
        // Before the wait: to a device that always has something to tell it is none.
        if deadline.is_over(&self.clock) {
            return Err(self.out_of_time(deadline));
        }
        match self.wait(mode, deadline.remaining(&self.clock)) {
            Ok(()) => self.poll(usize::MAX, ended).map(|_| ()),
            Err(WaitError::Channel(error)) => Err(error),
            Err(WaitError::TimedOut(_) | WaitError::NoInterrupt { .. }) => Err(self.out_of_time(deadline)),
        }
    }

    #[cold]
    fn out_of_time(&mut self, deadline: Deadline) -> ChannelError {
        let error = TimedOut { what: "the copy", allowed: deadline.allowed() };
        self.fail(ChannelError::TimedOut { channel: self.number, error })
    }
}

/// How many batches a streamed copy has in flight when the ring is full.
const BATCHES: usize = 4;
