//! The core of a dispatch queue: a first-in first-out list of jobs with one worker.
//!
//! Nothing here knows of threads, so that loom can run it.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::sync::{Condvar, Mutex, lock, wait, wait_until};

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue was cancelled, or a handler panicked, which cancels it.
    Cancelled,
    /// As many jobs are waiting as the queue holds.
    Full,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "it is cancelled",
            Self::Full => "it is full",
        })
    }
}

/// Jobs, and who runs them.
///
/// # Ownership
///
/// A job belongs to the queue from a `push` that succeeds; it is then either run once by the
/// worker, or handed out once by `cancel` to be dropped. A `push` that fails gives it back.
#[derive(Debug)]
pub struct QueueCore<J> {
    state: Mutex<State<J>>,
    /// Notified when the worker has something to do.
    work: Condvar,
    /// Notified when the queue may have ended.
    ended: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<J>,
    phase: Phase,
    /// How many [`Leftovers`] are not dropped yet.
    leftovers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing is taken and nothing begun any more; what runs may still run.
    Cancelled,
    /// Nothing runs, and never will.
    Ended,
}

impl<J> QueueCore<J> {
    /// An open queue that holds `capacity` jobs, apart from those of `push_always`.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let state = State {
            jobs: VecDeque::with_capacity(capacity.min(INITIAL_ROOM)),
            phase: Phase::Open,
            leftovers: 0,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), ended: Condvar::new(), capacity }
    }

    /// Adds a job behind all others.
    ///
    /// # Errors
    ///
    /// The job, and why it was not taken.
    pub fn push(&self, job: J) -> Result<(), (J, Refusal)> {
        self.push_below(job, self.capacity)
    }

    /// Adds a job even when the queue is full. For callers that have a bounded number of
    /// jobs in the queue by themselves, such as a source, which has one.
    ///
    /// # Errors
    ///
    /// The job, when the queue is cancelled.
    pub fn push_always(&self, job: J) -> Result<(), (J, Refusal)> {
        self.push_below(job, usize::MAX)
    }

    fn push_below(&self, job: J, capacity: usize) -> Result<(), (J, Refusal)> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Open {
            return Err((job, Refusal::Cancelled));
        }
        if state.jobs.len() >= capacity {
            return Err((job, Refusal::Full));
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Runs jobs until the queue is cancelled, then `finish`. To be called once, by the
    /// worker; neither closure may panic.
    pub fn serve(&self, mut run: impl FnMut(J), finish: impl FnOnce()) {
        while let Some(job) = self.next() {
            run(job);
        }
        finish();
        lock(&self.state).phase = Phase::Ended;
        self.ended.notify_all();
    }

    fn next(&self) -> Option<J> {
        let mut state = lock(&self.state);
        loop {
            if state.phase != Phase::Open {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = wait(&self.work, state);
        }
    }

    /// Cancels: from now on no job is taken and none is begun. Gives those that were waiting,
    /// at once, also while a job runs that never ends. A second call is harmless.
    #[must_use = "what is left may be dropped now or later, but the queue has not ended before"]
    pub fn cancel(&self) -> Leftovers<'_, J> {
        let mut state = lock(&self.state);
        if state.phase == Phase::Open {
            state.phase = Phase::Cancelled;
        }
        state.leftovers += 1;
        let jobs = core::mem::take(&mut state.jobs);
        drop(state);
        self.work.notify_one();
        Leftovers { _jobs: jobs, _end: End { core: self } }
    }

    /// Whether the queue takes no jobs any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        lock(&self.state).phase != Phase::Open
    }

    /// Waits, `timeout` at most, until nothing runs or is kept and never will; gives whether
    /// that is so. Without a `cancel` it cannot be.
    #[must_use]
    pub fn wait_ended(&self, timeout: Duration) -> bool {
        let ended = |state: &State<J>| state.phase == Phase::Ended && state.leftovers == 0;
        wait_until(&self.ended, lock(&self.state), timeout, ended).1
    }

    /// How many jobs wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.state).jobs.len()
    }
}

/// Jobs that a cancelled queue will not run. The queue has not ended before they are dropped.
#[derive(Debug)]
pub struct Leftovers<'a, J> {
    // In this order: fields are dropped from the top, also when a job panics on its way out.
    _jobs: VecDeque<J>,
    _end: End<'a, J>,
}

#[derive(Debug)]
struct End<'a, J> {
    core: &'a QueueCore<J>,
}

impl<J> Drop for End<'_, J> {
    fn drop(&mut self) {
        lock(&self.core.state).leftovers -= 1;
        self.core.ended.notify_all();
    }
}

/// Room for jobs that is there from the start; more is allocated when it is needed.
const INITIAL_ROOM: usize = 64;
