//! Serial dispatch queues.
//!
//! A [`DispatchQueue`] runs handlers one after the other, first in, first out, on a thread of
//! its own. An object whose state is touched only from its queue needs no lock.
//!
//! # What is promised
//!
//! - Handlers of one queue never overlap.
//! - A handler that was taken is run once on the queue's thread, or dropped once by whoever
//!   cancels the queue before. One that is refused is given back.
//! - After a [`Cancellation`] has resolved, no handler runs and none is kept.
//! - A handler that panics ends its queue, as if it had been cancelled; the process goes on.

mod canceller;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "only the model check reaches it from outside"))]
mod core;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "only the model check reaches it from outside"))]
mod pulse;
mod sync;

pub(crate) use self::canceller::Canceller;
#[cfg(not(loom))]
pub(crate) use self::core::QueueCore;
pub use self::core::Refusal;
pub use self::pulse::Pulse;
#[cfg(not(loom))]
pub(crate) use self::pulse::SourceCore;
#[cfg(loom)]
pub use self::{core::QueueCore, pulse::SourceCore};

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;

use crate::hal::poll::TimedOut;

/// A serial first-in first-out queue with a thread of its own. Clones share it; when the
/// last is dropped the queue is cancelled.
#[derive(Clone)]
pub struct DispatchQueue {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    id: u64,
    core: QueueCore<Job>,
    panic_message: Mutex<Option<String>>,
}

/// How a queue ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    Cancelled,
    Panicked(String),
}

/// Something that puts itself into a queue again and again without an allocation.
pub(crate) trait Deliver: Send + Sync {
    fn deliver(self: Arc<Self>);
}

enum Job {
    Once(Box<dyn FnOnce() + Send>),
    Source(Arc<dyn Deliver>),
}

impl DispatchQueue {
    /// How many handlers wait in a queue at most, unless it is made with another capacity.
    pub const DEFAULT_CAPACITY: usize = 4096;

    /// Starts an empty queue.
    ///
    /// # Errors
    ///
    /// What the system reports when it cannot start a thread.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::with_capacity(name, Self::DEFAULT_CAPACITY)
    }

    /// Starts an empty queue that refuses a handler when `capacity` others wait. Sources are
    /// not counted: each has one place of its own.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_capacity(name: &str, capacity: usize) -> io::Result<Self> {
        Self::with_end(name, capacity, |_| {})
    }

    /// As `with_capacity`; `on_end` runs on the queue's thread after the last handler, and when
    /// that panicked, before those that were not run are dropped.
    pub(crate) fn with_end(
        name: &str,
        capacity: usize,
        on_end: impl FnOnce(QueueEnd) + Send + 'static,
    ) -> io::Result<Self> {
        // ORDERING: a unique number is all that is needed.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let core = QueueCore::new(capacity);
        let shared = Arc::new(Shared { name: name.to_owned(), id, core, panic_message: Mutex::new(None) });
        let worker = Arc::clone(&shared);
        // A thread's name may not hold a zero byte, and this one may come from anywhere.
        let thread_name = name.replace('\0', "?");
        std::thread::Builder::new().name(thread_name).spawn(move || worker.work(on_end))?;
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.shared.name
    }

    /// Puts a handler behind all others and returns at once.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the handler in it, when the queue is cancelled or full.
    pub fn dispatch(&self, handler: impl FnOnce() + Send + 'static) -> Result<(), Rejected> {
        self.handle
            .shared
            .core
            .push(Job::Once(Box::new(handler)))
            .map_err(|(job, reason)| self.rejected(job, reason))
    }

    /// As `dispatch`, also when the queue is full. For the kit's own handlers, which are few.
    pub(crate) fn dispatch_always(&self, handler: impl FnOnce() + Send + 'static) -> Result<(), Rejected> {
        let job = Job::Once(Box::new(handler));
        self.handle.shared.core.push_always(job).map_err(|(job, reason)| self.rejected(job, reason))
    }

    /// Queues a source. It must not be in the queue already.
    pub(crate) fn dispatch_source(&self, source: Arc<dyn Deliver>) {
        // A queue that is cancelled runs nothing any more, so the source is not missed.
        let _ = self.handle.shared.core.push_always(Job::Source(source));
    }

    /// Runs a handler on the queue and gives its result, waiting for as long as those before
    /// it and it take: for ever, when one of them hangs and nobody cancels the queue. Where
    /// that can be, use [`run_within`](Self::run_within).
    ///
    /// # Errors
    ///
    /// [`RunError`], without [`RunError::TimedOut`].
    pub fn run<R, F>(&self, handler: F) -> Result<R, RunError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.run_for(None, handler)
    }

    /// Runs a handler on the queue and gives its result.
    ///
    /// # Errors
    ///
    /// - [`RunError::InsideHandler`] from a handler of this queue: it would wait for itself;
    /// - [`RunError::Refused`], [`RunError::Cancelled`]: the handler was dropped, not run;
    /// - [`RunError::TimedOut`] after `timeout`: a handler that had not begun is dropped and
    ///   will not run; one that had goes on, and its result is dropped;
    /// - [`RunError::Panicked`].
    pub fn run_within<R, F>(&self, timeout: Duration, handler: F) -> Result<R, RunError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.run_for(Some(timeout), handler)
    }

    fn run_for<R, F>(&self, timeout: Option<Duration>, handler: F) -> Result<R, RunError>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        if self.on_queue() {
            return Err(RunError::InsideHandler { queue: self.name().to_owned() });
        }
        let (sender, receiver) = sync_channel(1);
        // Who takes the handler out decides whether it runs: the queue, or the time-out.
        let place = Arc::new(Mutex::new(Some(handler)));
        let place_on_queue = Arc::clone(&place);
        let job = move || {
            let Some(handler) = take(&place_on_queue) else { return };
            match catch_unwind(AssertUnwindSafe(handler)) {
                // The caller may have given up; then the result is dropped here.
                Ok(result) => drop(sender.send(Ok(result))),
                Err(payload) => {
                    let _ = sender.send(Err(panic_text(&*payload)));
                    resume_unwind(payload);
                }
            }
        };
        self.dispatch(job).map_err(|rejected| RunError::Refused {
            queue: self.name().to_owned(),
            reason: rejected.reason,
        })?;
        let outcome = match timeout {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => receiver.recv_timeout(timeout),
        };
        let queue = self.name().to_owned();
        match outcome {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(message)) => Err(RunError::Panicked { queue, message }),
            Err(RecvTimeoutError::Disconnected) => Err(RunError::Cancelled { queue }),
            Err(RecvTimeoutError::Timeout) => {
                let begun = take(&place).is_none();
                Err(RunError::TimedOut { queue, begun, allowed: timeout.unwrap_or_default() })
            }
        }
    }

    /// Whether the caller is a handler of this queue.
    #[must_use]
    pub fn on_queue(&self) -> bool {
        CURRENT.get() == self.handle.shared.id
    }

    /// How many handlers wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.handle.shared.core.waiting()
    }

    /// Whether the queue takes no handlers any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.handle.shared.core.is_cancelled()
    }

    /// What the handler said whose panic ended the queue.
    #[must_use]
    pub fn panic_message(&self) -> Option<String> {
        self.handle.shared.panic_message.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Cancels the queue, for good, and drops the handlers that wait, at once. After this
    /// returns none is taken from the queue; one that was taken runs to its end, also when its
    /// first instruction is still to come, and the [`Cancellation`] resolves when it has
    /// returned. A second call gives another handle on the same cancellation.
    ///
    /// From a handler of the queue this works the same: that handler is the last.
    #[expect(clippy::must_use_candidate, reason = "a cancel need not be waited for")]
    pub fn cancel(&self) -> Cancellation {
        self.handle.shared.cancel();
        Cancellation { target: Arc::clone(&self.handle.shared) as Arc<dyn Resolve> }
    }

    /// Cancels from elsewhere without keeping the queue alive.
    pub(crate) fn canceller(&self) -> Canceller {
        Canceller::new(&self.handle.shared, Shared::cancel)
    }

    fn rejected(&self, job: Job, reason: Refusal) -> Rejected {
        let handler = match job {
            Job::Once(handler) => handler,
            Job::Source(_) => Box::new(|| {}),
        };
        Rejected { queue: self.name().to_owned(), reason, handler }
    }
}

impl fmt::Debug for DispatchQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DispatchQueue").field(&self.name()).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}

impl Shared {
    fn work(&self, on_end: impl FnOnce(QueueEnd)) {
        CURRENT.set(self.id);
        let leftovers = Cell::new(None);
        let run = |job| {
            let outcome = catch_unwind(AssertUnwindSafe(|| match job {
                Job::Once(handler) => handler(),
                Job::Source(source) => source.deliver(),
            }));
            if let Err(payload) = outcome {
                self.note_panic(&*payload);
                leftovers.set(Some(self.core.cancel()));
                discard(payload);
            }
        };
        let finish = || {
            let message = self.panic_message.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let end = message.map_or(QueueEnd::Cancelled, QueueEnd::Panicked);
            self.caught(|| on_end(end));
            self.caught(|| drop(leftovers.take()));
        };
        self.core.serve(run, finish);
    }

    fn cancel(&self) {
        let leftovers = self.core.cancel();
        self.caught(|| drop(leftovers));
    }

    /// Runs what belongs to the end of the queue, which a panic must not hold up.
    fn caught(&self, run: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
            log::error!("queue {}: panic while it ended: {}", self.name, panic_text(&*payload));
            discard(payload);
        }
    }

    fn note_panic(&self, payload: &(dyn Any + Send)) {
        let message = panic_text(payload);
        log::error!("queue {}: a handler panicked: {message}", self.name);
        self.panic_message.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(message);
    }
}

/// What a [`Cancellation`] waits for.
pub(crate) trait Resolve: Send + Sync {
    /// Whether the caller is inside the handler that would be waited for.
    fn inside(&self) -> bool;
    /// Waits; gives whether it has resolved.
    fn wait(&self, timeout: Duration) -> bool;
}

impl Resolve for Shared {
    fn inside(&self) -> bool {
        CURRENT.get() == self.id
    }

    fn wait(&self, timeout: Duration) -> bool {
        self.core.wait_ended(timeout)
    }
}

/// A cancel that has begun. It resolves when the last handler has returned, whether somebody
/// waits for it or not.
#[derive(Clone)]
pub struct Cancellation {
    target: Arc<dyn Resolve>,
}

impl Cancellation {
    pub(crate) fn new(target: Arc<dyn Resolve>) -> Self {
        Self { target }
    }

    /// Waits until it has resolved, `timeout` at most. After `Ok` no callback comes.
    ///
    /// # Errors
    ///
    /// - [`CancelError::InsideHandler`] from the handler that it would wait for; the cancel
    ///   resolves when that handler returns;
    /// - [`CancelError::TimedOut`]: the handler still runs. It may be waited for again.
    pub fn wait(&self, timeout: Duration) -> Result<(), CancelError> {
        if self.target.inside() {
            return Err(CancelError::InsideHandler);
        }
        if self.target.wait(timeout) {
            return Ok(());
        }
        Err(CancelError::TimedOut(TimedOut { what: "the end of the last handler", allowed: timeout }))
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cancellation")
    }
}

/// Why a cancel has not resolved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CancelError {
    /// The caller is the handler that would be waited for.
    #[error("a handler cannot wait for its own end: the cancel resolves when it returns")]
    InsideHandler,
    /// The handler still runs.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

/// A handler that a queue did not take. It was not run.
#[derive(Error)]
#[error("queue {queue} did not take a handler: {reason}")]
pub struct Rejected {
    /// The queue.
    pub queue: String,
    /// Why.
    pub reason: Refusal,
    /// The handler.
    pub handler: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected")
            .field("queue", &self.queue)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

/// Why there is no result of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The caller is a handler of the same queue.
    #[error("a handler of queue {queue} cannot wait for another: call it directly, or dispatch it")]
    InsideHandler {
        /// The queue.
        queue: String,
    },
    /// The queue did not take the handler.
    #[error("queue {queue} did not take a handler: {reason}")]
    Refused {
        /// The queue.
        queue: String,
        /// Why.
        reason: Refusal,
    },
    /// The queue was cancelled before the handler began.
    #[error("queue {queue} was cancelled before the handler began")]
    Cancelled {
        /// The queue.
        queue: String,
    },
    /// The time is over.
    #[error("queue {queue} did not finish the handler within {allowed:?}, begun: {begun}")]
    TimedOut {
        /// The queue.
        queue: String,
        /// Whether the handler had begun; if not, it will not.
        begun: bool,
        /// How long the wait was allowed to take.
        allowed: Duration,
    },
    /// The handler panicked, and the queue has ended.
    #[error("a handler of queue {queue} panicked: {message}")]
    Panicked {
        /// The queue.
        queue: String,
        /// What it said.
        message: String,
    },
}

/// The message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// Drops the payload of a panic, which may be any type and panic itself.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // Leaked: a payload that panics twice gets no third chance.
        std::mem::forget(again);
    }
}

fn take<F>(place: &Mutex<Option<F>>) -> Option<F> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The queue whose handler this thread runs, zero outside of queues.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}
