//! Time as the transport sees it: a number that is passed in.

use core::fmt;
use core::time::Duration;

/// A point in time, in nanoseconds since a start that the caller chose.
///
/// The transport has no clock. Whoever calls it passes the time, and time never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Self = Self(0);

    /// The time `nanoseconds` after the start.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the start.
    #[inline]
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The time `duration` later; the last one that can be said when there is none.
    #[inline]
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }

    /// How long it is from `earlier` to `self`; zero when `earlier` is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_saturates_at_both_ends() {
        let late = Time::from_nanos(u64::MAX - 1);
        assert_eq!(late.after(Duration::from_secs(1)), Time::from_nanos(u64::MAX));
        assert_eq!(Time::ZERO.since(late), Duration::ZERO);
        assert_eq!(Time::from_nanos(1_500_000_000).to_string(), "1.500000000 s");
    }
}
