//! The one polling primitive: a bounded wait with the clock as a parameter.

use core::cell::Cell;
use core::time::Duration;
use std::sync::LazyLock;
use std::time::Instant;

use thiserror::Error;

/// A monotonic clock. Tests pass their own; drivers pass [`SystemClock`].
pub trait Clock: Send {
    /// Time since an arbitrary fixed point.
    fn now(&self) -> Duration;

    /// Waits for about `duration`; zero means "yield the processor".
    fn sleep(&self, duration: Duration);
}

/// The monotonic clock of the operating system. All of them agree, so that a [`Deadline`] of
/// one holds for another.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock(());

impl SystemClock {
    /// The clock of this process; it was zero when it was first looked at.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        ORIGIN.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        if duration.is_zero() {
            std::thread::yield_now();
        } else {
            std::thread::sleep(duration);
        }
    }
}

/// A clock that only moves when somebody sleeps on it or turns it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Cell<Duration>,
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        self.now.set(self.now.get().saturating_add(duration));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.now.get()
    }

    fn sleep(&self, duration: Duration) {
        // A yield still has to make progress, or a bounded wait would never end.
        self.advance(duration.max(Duration::from_nanos(1)));
    }
}

/// The time by which a wait must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    at: Duration,
    allowed: Duration,
}

impl Deadline {
    /// `allowed` from now on `clock`.
    #[must_use]
    pub fn after(clock: &impl Clock, allowed: Duration) -> Self {
        Self { at: clock.now().saturating_add(allowed), allowed }
    }

    /// Whether the time is over.
    #[must_use]
    pub fn is_over(&self, clock: &impl Clock) -> bool {
        clock.now() >= self.at
    }

    /// What is left, zero when the time is over.
    #[must_use]
    pub fn remaining(&self, clock: &impl Clock) -> Duration {
        self.at.saturating_sub(clock.now())
    }

    /// How long the wait was allowed to take in all.
    #[must_use]
    pub const fn allowed(&self) -> Duration {
        self.allowed
    }
}

/// Something did not happen in time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} did not happen within {allowed:?}")]
pub struct TimedOut {
    /// What was waited for.
    pub what: &'static str,
    /// How long the wait was allowed to take.
    pub allowed: Duration,
}

/// How a wait spends the time between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Looks with only a processor hint in between.
    pub spins: u32,
    /// Looks that yield the processor in between, after the spins.
    pub yields: u32,
    /// The sleep between two looks after that.
    pub sleep: Duration,
}

impl Pace {
    /// For a register that answers within microseconds.
    pub const FAST: Self = Self { spins: 200, yields: 200, sleep: Duration::from_micros(50) };
    /// For a reset or an enable that takes milliseconds.
    pub const SLOW: Self = Self { spins: 10, yields: 10, sleep: Duration::from_millis(1) };
}

/// Calls `look` until it gives a value, an error, or the deadline passes.
///
/// `look` is called at least once, and once more after the deadline has passed, so
/// that a thread that lost the processor does not report a time-out for something
/// that has long happened.
///
/// # Errors
///
/// - what `look` returned;
/// - [`TimedOut`], through `E: From<TimedOut>`, when the deadline has passed.
pub fn poll_until<T, E: From<TimedOut>>(
    clock: &impl Clock,
    deadline: Deadline,
    pace: Pace,
    what: &'static str,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    let mut looks = 0u32;
    loop {
        let over = deadline.is_over(clock);
        if let Some(value) = look()? {
            return Ok(value);
        }
        if over {
            return Err(TimedOut { what, allowed: deadline.allowed() }.into());
        }
        if looks < pace.spins {
            core::hint::spin_loop();
        } else if looks < pace.spins.saturating_add(pace.yields) {
            clock.sleep(Duration::ZERO);
        } else {
            clock.sleep(pace.sleep.min(deadline.remaining(clock)));
        }
        looks = looks.saturating_add(1);
    }
}

/// Where system clocks count from.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_one_system_clock_holds_for_another() {
        let deadline = Deadline::after(&SystemClock::new(), Duration::from_secs(3600));
        std::thread::sleep(Duration::from_millis(2));
        let later = SystemClock::new();
        assert!(later.now() >= Duration::from_millis(2));
        assert!(deadline.remaining(&later) <= Duration::from_millis(3_599_998));
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_looks_once_more() {
        let clock = ManualClock::default();
        let deadline = Deadline::after(&clock, Duration::from_millis(5));
        let mut looks = 0;
        let error = poll_until(&clock, deadline, Pace::SLOW, "ready", || {
            looks += 1;
            Ok::<Option<()>, TimedOut>(None)
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "ready did not happen within 5ms");
        assert!(clock.now() >= Duration::from_millis(5) && looks > 20, "{looks}");

        let late = Deadline::after(&clock, Duration::ZERO);
        let value = poll_until(&clock, late, Pace::FAST, "ready", || Ok::<_, TimedOut>(Some(7)));
        assert_eq!(value, Ok(7));
    }
}
