//! The core of a dispatch source: pulses that add up until a queue has time for them.

use std::time::Duration;

use super::sync::{Condvar, Mutex, lock, wait_until};

/// What a handler is told: how often since it last ran, and when it last happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pulse<S> {
    /// How many pulses were merged; never zero.
    pub count: u64,
    /// The time of the last one.
    pub at: S,
}

/// The state of a source: it has at most one job in its queue, however many pulses come.
///
/// # Order of calls
///
/// Whoever gets `true` from [`signal`](Self::signal), [`set_enabled`](Self::set_enabled) or
/// [`end`](Self::end) puts the one job into the queue. The job calls `begin`, and `end` when
/// `begin` gave a pulse.
#[derive(Debug)]
pub struct SourceCore<S> {
    state: Mutex<State<S>>,
    idle: Condvar,
}

#[derive(Debug)]
struct State<S> {
    phase: Phase,
    enabled: bool,
    cancelled: bool,
    pulse: Option<Pulse<S>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The job is in the queue.
    Queued,
    /// The handler runs.
    Running,
}

impl<S: Copy> SourceCore<S> {
    /// A source without pulses.
    #[must_use]
    pub fn new(enabled: bool) -> Self {
        let state = State { phase: Phase::Idle, enabled, cancelled: false, pulse: None };
        Self { state: Mutex::new(state), idle: Condvar::new() }
    }

    /// Adds pulses. Gives whether the job is to be queued now.
    #[must_use = "true means that the job has to be queued"]
    pub fn signal(&self, count: u64, at: S) -> bool {
        let mut state = lock(&self.state);
        if state.cancelled || count == 0 {
            return false;
        }
        let before = state.pulse.map_or(0, |pulse| pulse.count);
        state.pulse = Some(Pulse { count: before.saturating_add(count), at });
        state.queue_if_due()
    }

    /// Forgets the pulses that no handler has seen.
    pub fn clear(&self) {
        lock(&self.state).pulse = None;
    }

    /// Takes the pulses for the handler; `None` when it must not run.
    #[must_use]
    pub fn begin(&self) -> Option<Pulse<S>> {
        let mut state = lock(&self.state);
        let pulse = if state.cancelled || !state.enabled { None } else { state.pulse.take() };
        state.phase = if pulse.is_some() { Phase::Running } else { Phase::Idle };
        pulse
    }

    /// The handler has returned. Gives whether the job is to be queued again.
    #[must_use = "true means that the job has to be queued"]
    pub fn end(&self) -> bool {
        let mut state = lock(&self.state);
        state.phase = Phase::Idle;
        let again = state.queue_if_due();
        drop(state);
        self.idle.notify_all();
        again
    }

    /// Turns delivery on or off. Pulses that come while it is off are kept. A handler that
    /// runs is not interrupted. Gives whether the job is to be queued now, `None` when the
    /// source is cancelled.
    #[must_use = "Some(true) means that the job has to be queued"]
    pub fn set_enabled(&self, enabled: bool) -> Option<bool> {
        let mut state = lock(&self.state);
        if state.cancelled {
            return None;
        }
        state.enabled = enabled;
        Some(state.queue_if_due())
    }

    /// Cancels, for good: the handler is not begun any more. A second call is harmless.
    pub fn cancel(&self) {
        let mut state = lock(&self.state);
        state.cancelled = true;
        state.pulse = None;
    }

    /// Whether the source is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    /// Waits, `timeout` at most, until the handler does not run; gives whether that is so.
    #[must_use]
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        wait_until(&self.idle, lock(&self.state), timeout, |state| state.phase != Phase::Running).1
    }
}

impl<S: Copy> State<S> {
    fn queue_if_due(&mut self) -> bool {
        let due = self.phase == Phase::Idle && self.enabled && !self.cancelled && self.pulse.is_some();
        if due {
            self.phase = Phase::Queued;
        }
        due
    }
}
