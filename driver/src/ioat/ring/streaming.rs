//! Whether descriptors are written past the caches.

use core::time::Duration;
use std::time::Instant;

/// Finds out which way of writing descriptors is the faster one.
///
/// An engine that is software on another processor has read a slot when it was used before,
/// so that an ordinary store to it waits until that processor gives the line back. Between
/// near processors a long table avoids most of that (see [`super`]). Between far ones a store
/// past the caches is faster: measured 12 ns for an operation of a batch against 42, and
/// near 11 against 6. Processors that are near become far when a virtual machine is moved.
///
/// So the driver tries: the time of [`WINDOW`] operations in the one way is compared with
/// that of as many in the other, now and then. Only operations that are posted by the many
/// are counted and streamed. One that is posted alone is stored: it arrives sooner.
///
/// What was just found is put to the test again soon, and then after twice as long each time
/// that it holds: the work may have changed in the middle of a trial, so that it found the
/// opposite of what is true.
#[derive(Debug)]
pub(super) struct Streaming {
    /// There is something to find out.
    is_tried: bool,
    is_on: bool,
    /// Operations of this window.
    operations: u64,
    begun: Option<Instant>,
    /// Windows to go in this phase.
    left: u32,
    /// How many windows the usual way goes on before the next trial.
    usual_windows: u32,
    phase: Phase,
    /// The shortest window in the usual way, and in this phase.
    usual: Duration,
    shortest: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The way that was the faster one.
    Usual,
    /// The other way.
    Trial,
}

impl Streaming {
    /// Off; on and off for an engine that is software, as it turns out.
    pub(super) fn new(software: bool) -> Self {
        Self {
            is_tried: software,
            is_on: false,
            operations: 0,
            begun: None,
            left: FIRST_WINDOWS,
            usual_windows: SHORTEST_WINDOWS,
            phase: Phase::Usual,
            usual: Duration::MAX,
            shortest: Duration::MAX,
        }
    }

    /// Always or never on.
    #[cfg(test)]
    pub(super) fn always(&mut self, is_on: bool) {
        (self.is_tried, self.is_on) = (false, is_on);
    }

    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// So many operations were posted at once.
    #[inline(always)]
    pub(super) fn count(&mut self, operations: u64) {
        if operations >= MANY {
            self.operations += operations;
            if self.operations >= WINDOW {
                self.end_window();
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn end_window(&mut self) {
        self.operations = 0;
        if self.is_tried {
            self.end_window_at(Instant::now());
        }
    }

    fn end_window_at(&mut self, now: Instant) {
        // The first window of a phase is not measured: the caches are not used to it yet.
        if let Some(begun) = self.begun.replace(now) {
            // What was long ago says little: a new table is fast until it wraps.
            let kept = if self.left < RECENT_WINDOWS { self.shortest } else { Duration::MAX };
            self.shortest = kept.min(now.duration_since(begun));
            self.left -= 1;
        }
        if self.left > 0 {
            return;
        }
        (self.phase, self.left) = match self.phase {
            Phase::Usual => {
                self.usual = self.shortest;
                self.is_on = !self.is_on;
                (Phase::Trial, TRIAL_WINDOWS)
            }
            Phase::Trial => {
                // What is hardly better may be chance.
                if self.shortest < self.usual / 5 * 4 {
                    self.usual_windows = SHORTEST_WINDOWS;
                } else {
                    self.is_on = !self.is_on;
                    self.usual_windows = (2 * self.usual_windows).min(LONGEST_WINDOWS);
                }
                (Phase::Usual, self.usual_windows)
            }
        };
        (self.begun, self.shortest) = (None, Duration::MAX);
    }
}

/// How many operations are posted at once at least to be counted.
const MANY: u64 = 8;
/// How many operations are timed together.
const WINDOW: u64 = 4096;
/// How many windows there are before the first trial, in a trial, and between two: in the long
/// run less than one in a hundred operations goes the slower way. Before the first, the longest
/// table wraps.
const FIRST_WINDOWS: u32 = 20;
const TRIAL_WINDOWS: u32 = 3;
/// Of how many windows at the end of a phase the shortest counts.
const RECENT_WINDOWS: u32 = 4;
const SHORTEST_WINDOWS: u32 = 16;
const LONGEST_WINDOWS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows of `stored` or `streamed` time each, as it chooses; returns how many were
    /// streamed.
    fn run(streaming: &mut Streaming, now: &mut Instant, windows: u32, stored: u64, streamed: u64) -> u32 {
        let mut count = 0;
        for _ in 0..windows {
            let took = if streaming.is_on() { streamed } else { stored };
            count += u32::from(streaming.is_on());
            *now += Duration::from_micros(took);
            streaming.end_window_at(*now);
        }
        count
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_one_tried_now_and_then() {
        let mut now = Instant::now();
        let mut streaming = Streaming::new(true);
        let far = run(&mut streaming, &mut now, 2000, 160, 60);
        assert!(far > 1950, "{far}");
        let near = run(&mut streaming, &mut now, 2000, 30, 60);
        assert!((1..600).contains(&near), "{near}");
        let still_near = run(&mut streaming, &mut now, 10_000, 30, 60);
        assert!((1..100).contains(&still_near), "{still_near}");
    }

    #[test]
    fn a_table_that_is_fast_until_it_wraps_deceives_nobody() {
        let mut now = Instant::now();
        let mut streaming = Streaming::new(true);
        assert_eq!(run(&mut streaming, &mut now, 16, 20, 60), 0);
        let far = run(&mut streaming, &mut now, 500, 160, 60);
        assert!(far > 450, "{far}");
    }

    #[test]
    fn a_trial_that_found_the_opposite_is_soon_put_right() {
        let mut now = Instant::now();
        let mut streaming = Streaming::new(true);
        // Long copies before the trial, short ones in it.
        assert_eq!(run(&mut streaming, &mut now, FIRST_WINDOWS, 900, 900), 0);
        let streamed = run(&mut streaming, &mut now, 1000, 30, 60);
        assert!((TRIAL_WINDOWS..60).contains(&streamed), "{streamed}");
    }

    #[test]
    fn what_is_hardly_better_is_chance() {
        let mut now = Instant::now();
        let mut streaming = Streaming::new(true);
        let tried = run(&mut streaming, &mut now, 10_000, 60, 55);
        assert!((1..100).contains(&tried), "{tried}");
    }

    #[test]
    fn a_pause_in_the_middle_of_a_window_changes_nothing() {
        let mut now = Instant::now();
        let mut streaming = Streaming::new(true);
        for _ in 0..40 {
            let tried = run(&mut streaming, &mut now, 100, 30, 60);
            assert!(tried < 10, "{tried}");
            now += Duration::from_secs(1);
        }
    }

    #[test]
    fn few_at_a_time_and_hardware_are_left_alone() {
        let mut few = Streaming::new(true);
        for _ in 0..WINDOW * 8 {
            few.count(MANY - 1);
        }
        assert!(few.begun.is_none() && !few.is_on());
        let mut hardware = Streaming::new(false);
        for _ in 0..WINDOW * 100 {
            hardware.count(MANY);
            assert!(!hardware.is_on());
        }
    }
}
