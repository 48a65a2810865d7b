//! How long the other end is waited for.
//!
//! Only a step of what is waited for renews the patience, and there are only so many of those.
//! Whatever else a wire carries shows nothing of the other end, and renews nothing.

use std::fmt;
use std::time::{Duration, Instant};

use vdk_driver::descriptors::roce::{PathMtu, Psn, Qpn};

/// How long something is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Duration,
    begun: Instant,
    renewed: Instant,
}

impl Patience {
    /// A wait of at most `limit`, unless it is renewed.
    pub(super) const fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, begun: now, renewed: now }
    }

    /// The other end made a step.
    pub(super) const fn renew(&mut self, now: Instant) {
        self.renewed = now;
    }

    /// Whether it is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.left(now).is_zero()
    }

    /// How long it lasts yet.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.limit.saturating_sub(now.saturating_duration_since(self.renewed))
    }

    /// How long was waited, for a message.
    pub(super) fn waited(&self, now: Instant) -> Waited {
        let total = now.saturating_duration_since(self.begun).as_secs();
        Waited { total, last: (self.renewed > self.begun).then_some(self.limit.as_secs()) }
    }
}

/// How long something was waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waited {
    total: u64,
    last: Option<u64>,
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, last } = self;
        match last {
            None => write!(f, "waited {total} s"),
            Some(last) => write!(f, "waited {total} s, the last {last} s without any progress,"),
        }
    }
}

/// A queue pair whose packets are the steps of the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) number: Qpn,
    /// How many steps there may be yet.
    left: u64,
    reached: Option<Reached>,
}

/// How many packets a test has, both ways, whose messages are all of one size.
pub(super) fn steps(iterations: u32, size: u32, mtu: PathMtu) -> u64 {
    2 * u64::from(iterations) * u64::from(mtu.packets(size))
}

/// The PSN that a queue pair expects, and the first one that it has no acknowledgement for.
pub(super) type Reached = (Psn, Psn);

impl Watch {
    /// Watches a queue pair for at most `steps` packets, of either way.
    pub(super) const fn new(number: Qpn, steps: u64) -> Self {
        Self { number, left: steps, reached: None }
    }

    /// Whether what the queue pair reached is a step forward.
    pub(super) fn has_stepped(&mut self, reached: Option<Reached>) -> bool {
        let stepped = self.reached.is_some() && reached != self.reached && self.left > 0;
        self.reached = reached;
        self.left -= u64::from(stepped);
        stepped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn patience_ends_at_its_limit_after_the_last_step() {
        let begun = Instant::now();
        let mut patience = Patience::new(3 * SECOND, begun);
        assert!(!patience.is_over(begun + 2 * SECOND));
        assert_eq!(patience.left(begun + 2 * SECOND), SECOND);
        assert!(patience.is_over(begun + 3 * SECOND));
        assert_eq!(patience.waited(begun + 3 * SECOND).to_string(), "waited 3 s");
        patience.renew(begun + 2 * SECOND);
        assert!(!patience.is_over(begun + 4 * SECOND) && patience.is_over(begun + 5 * SECOND));
        let waited = patience.waited(begun + 5 * SECOND).to_string();
        assert_eq!(waited, "waited 5 s, the last 3 s without any progress,");
    }

    #[test]
    fn a_queue_pair_makes_no_more_steps_than_its_test_has() {
        let mut watch = Watch::new(Qpn::from_low_bits(0x11), 2);
        let at = |expected, acknowledged| Some((Psn::new(expected), Psn::new(acknowledged)));
        assert!(!watch.has_stepped(at(7, 9)), "the first look is where it begins");
        assert!(!watch.has_stepped(at(7, 9)));
        assert!(watch.has_stepped(at(8, 9)));
        assert!(watch.has_stepped(at(8, 0)));
        assert!(!watch.has_stepped(at(9, 0)), "whoever sends for ever is not waited for any more");
    }
}
