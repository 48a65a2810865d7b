//! Which one-shot timer is due when. Time is passed in.

use std::collections::BTreeMap;

/// Armed timers, by token. `T` is a point in time.
///
/// A timer may fire at any time from its deadline until its deadline plus leeway: that lets
/// one wake-up serve several.
#[derive(Debug)]
pub(crate) struct TimerTable<T> {
    by_token: BTreeMap<u64, Armed<T>>,
    by_latest: BTreeMap<(T, u64), ()>,
}

/// A timer that is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed<T> {
    /// The earliest time at which it may fire.
    pub(crate) deadline: T,
    /// The latest time at which it should.
    pub(crate) latest: T,
}

impl<T: Ord + Copy> TimerTable<T> {
    pub(crate) const fn new() -> Self {
        Self { by_token: BTreeMap::new(), by_latest: BTreeMap::new() }
    }

    /// Arms a timer, instead of what it was armed for before.
    pub(crate) fn arm(&mut self, token: u64, armed: Armed<T>) {
        self.disarm(token);
        self.by_token.insert(token, armed);
        self.by_latest.insert((armed.latest, token), ());
    }

    /// Disarms a timer; gives whether it was armed.
    pub(crate) fn disarm(&mut self, token: u64) -> bool {
        let Some(armed) = self.by_token.remove(&token) else { return false };
        self.by_latest.remove(&(armed.latest, token));
        true
    }

    /// When somebody has to look again: the earliest "latest" time.
    pub(crate) fn wake_at(&self) -> Option<T> {
        self.by_latest.first_key_value().map(|((latest, _), ())| *latest)
    }

    /// Takes the timers whose deadline has passed, by deadline.
    pub(crate) fn take_due(&mut self, now: T) -> Vec<(u64, Armed<T>)> {
        let due = self.by_token.iter().filter(|(_, armed)| armed.deadline <= now);
        let mut due: Vec<_> = due.map(|(&token, &armed)| (token, armed)).collect();
        due.sort_by_key(|&(token, armed)| (armed.deadline, token));
        for &(token, _) in &due {
            self.disarm(token);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(deadline: u64, leeway: u64) -> Armed<u64> {
        Armed { deadline, latest: deadline + leeway }
    }

    #[test]
    fn one_wake_up_serves_every_timer_whose_deadline_has_passed() {
        let mut table = TimerTable::new();
        assert_eq!(table.wake_at(), None);
        table.arm(1, armed(100, 50));
        table.arm(2, armed(120, 10));
        table.arm(3, armed(131, 0));
        // Timer 1 can wait until 150, but 2 only until 130.
        assert_eq!(table.wake_at(), Some(130));
        assert_eq!(table.take_due(99), []);
        assert_eq!(table.take_due(130), [(1, armed(100, 50)), (2, armed(120, 10))]);
        assert_eq!(table.wake_at(), Some(131));
        assert_eq!(table.take_due(131), [(3, armed(131, 0))]);
        assert_eq!(table.wake_at(), None);
    }

    #[test]
    fn arming_again_replaces_and_disarming_ends() {
        let mut table = TimerTable::new();
        table.arm(7, armed(10, 0));
        table.arm(7, armed(500, 0));
        assert_eq!(table.wake_at(), Some(500));
        assert_eq!(table.take_due(499), []);
        assert!(table.disarm(7));
        assert!(!table.disarm(7));
        assert_eq!((table.wake_at(), table.take_due(1000)), (None, vec![]));
    }
}
