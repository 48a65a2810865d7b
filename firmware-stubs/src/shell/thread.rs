//! The device thread: one for each open function.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use vdk_iommu::soft::BusMaster;

use super::model::Work;
use super::session::Session;

/// Runs the device until the session ends: holds it while there is work, looks for more for
/// a while, then sleeps.
pub(crate) fn run(session: &Arc<Session>, mut bus: BusMaster) {
    let core = &session.core;
    let shared = &core.shared;
    let mut watch = Watch::new(core.spin, core.cpu.is_some());
    let mut nap = Nap::default();
    if let Some(cpu) = core.cpu {
        pin(cpu);
    }
    let mut device = core.lock();
    while !session.is_stopping() {
        if core.is_wanted() {
            drop(device);
            core.let_in();
            device = core.lock();
            continue;
        }
        if device.work(shared, &mut bus) == Work::Busy {
            watch.begin_again();
            nap = Nap::default();
            continue;
        }
        if watch.goes_on() {
            watch.pause();
            continue;
        }
        session.kick.prepare_sleep();
        // The second look: what came before the driver could see that the device sleeps.
        let work = device.work(shared, &mut bus);
        if work == Work::Busy || session.is_stopping() || core.is_wanted() {
            session.kick.cancel_sleep();
            continue;
        }
        drop(device);
        let longest = if session.has_silent_doorbells() { nap.next() } else { LONGEST_SLEEP };
        if session.kick.sleep(work.sleep_time(longest)) {
            shared.counters.wakeups.add(1);
        }
        watch.begin_again();
        device = core.lock();
    }
}

/// Pins the calling thread to one processor.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    let known = cpu < CpuSet::MAX_CPU;
    if known {
        set.set(cpu);
    }
    if !known || sched_setaffinity(None, &set).is_err() {
        log::warn!("the device thread cannot run on processor {cpu}");
    }
}

/// How long the thread has looked for work in vain.
struct Watch {
    most: Duration,
    begun: Option<Instant>,
    looks: u32,
}

impl Watch {
    /// A thread that shares its only processor with the driver does not spin; one that was
    /// given a processor does, whatever the creator may run on.
    fn new(most: Duration, is_placed: bool) -> Self {
        let alone = !is_placed && std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        Self { most: if alone { Duration::ZERO } else { most }, begun: None, looks: 0 }
    }

    #[inline]
    fn begin_again(&mut self) {
        self.begun = None;
        self.looks = 0;
    }

    /// Between two looks in vain.
    #[inline]
    fn pause(&self) {
        if self.looks > EAGER_LOOKS {
            core::hint::spin_loop();
        }
    }

    /// Counts a look in vain; false when it is time to sleep. The clock is read rarely.
    #[inline]
    fn goes_on(&mut self) -> bool {
        if self.most.is_zero() {
            return false;
        }
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
            return true;
        }
        let now = Instant::now();
        let begun = *self.begun.get_or_insert(now);
        now.duration_since(begun) < self.most
    }
}

/// How long the thread sleeps between two looks at doorbells that wake nobody: longer and
/// longer while they are not rung.
struct Nap(Duration);

impl Default for Nap {
    fn default() -> Self {
        Self(SHORTEST_NAP)
    }
}

impl Nap {
    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now + now / 8).min(LONGEST_NAP);
        now
    }
}

const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How many looks are made before the thread pauses between two: a driver that waits for
/// each operation comes back sooner than a pause ends.
const EAGER_LOOKS: u32 = 256;
/// How many looks are made between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 32;

/// The longest sleep; a thread that sleeps is woken by whoever has something for it.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
