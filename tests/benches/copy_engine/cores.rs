//! Pinning, and the distance between the two cores.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use, two at most: the driver's and the device's.
pub(crate) struct Cores {
    all: CpuSet,
    pub(crate) driver: usize,
    pub(crate) device: usize,
}

impl Cores {
    pub(crate) fn find() -> Result<Self> {
        let all = sched_getaffinity(None).context("cannot read the processors of this process")?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        let driver = usable.next().context("this process may use no processor")?;
        let device = usable.next().context("the benchmark needs two processors")?;
        Ok(Self { all, driver, device })
    }

    /// Pins the calling thread, and what it spawns from now on.
    pub(crate) fn pin(&self, cpu: usize) -> Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).with_context(|| format!("cannot pin a thread to processor {cpu}"))
    }

    pub(crate) fn unpin(&self) {
        // Only the end of the run follows.
        let _ = sched_setaffinity(None, &self.all);
    }

    /// Nanoseconds that a cache line takes to the other core and back.
    pub(crate) fn round_trip(&self) -> Result<f64> {
        let lines = Arc::new((Line::default(), Line::default()));
        let far = Arc::clone(&lines);
        self.pin(self.device)?;
        let echo = std::thread::spawn(move || {
            for round in 1..=PING_PONGS {
                // ORDERING: Acquire and Release, as the ring uses them.
                while far.0.0.load(Ordering::Acquire) != round {
                    spin_loop();
                }
                far.1.0.store(round, Ordering::Release);
            }
        });
        self.pin(self.driver)?;
        let mut best = f64::INFINITY;
        let mut round = 0;
        // The best of several parts: one that lost its processor does not count.
        for _ in 0..PARTS {
            let start = Instant::now();
            for _ in 0..PING_PONGS / PARTS {
                round += 1;
                lines.0.0.store(round, Ordering::Release);
                // ORDERING: as above.
                while lines.1.0.load(Ordering::Acquire) != round {
                    core::hint::spin_loop();
                }
            }
            best = best.min(start.elapsed().as_nanos() as f64 / (PING_PONGS / PARTS) as f64);
        }
        echo.join().ok().context("the echo thread panicked")?;
        Ok(best)
    }
}

const PING_PONGS: u64 = 40_000;
const PARTS: u64 = 20;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);
