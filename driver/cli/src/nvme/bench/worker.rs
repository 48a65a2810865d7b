//! One queue under load.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use vdk_driver::descriptors::sg::SgEntry;
use vdk_driver::iommu::{DmaBuffer, DmaPool, PoolOptions};
use vdk_driver::nvme::{
    CommandError, Completion, CompletionMode, Controller, Namespace, QueueOptions, QueuePair, Statistics,
    WaitError,
};

use super::order::Order;
use super::report::latencies;
use crate::nvme::arguments::{BenchArguments, Wait};
use crate::signal::{Interrupted, StopRequest};

/// How long a wait lasts before it looks whether the user wants to stop.
const SLICE: Duration = Duration::from_millis(100);
/// Nanoseconds between two looks whether something happened to the controller.
const CHECK_INTERVAL: u64 = 100_000_000;
/// What an interruption leaves.
const LEFT: &str = "the measurement was given up";
/// How many looks that find nothing lie between two readings of the clock.
const LOOKS: u32 = 4096;
/// After how many looks that find nothing a smaller batch is handed over.
const PATIENCE: u32 = 256;
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(10);

/// An operation in flight.
struct InFlight {
    buffer: DmaBuffer,
    /// Nanoseconds since the beginning.
    started: u64,
}

/// A queue, its buffers and what was measured.
pub(super) struct Worker {
    // In the order in which they are to be dropped: the queue first.
    pair: QueuePair<InFlight>,
    idle: Vec<DmaBuffer>,
    done: Vec<InFlight>,
    namespace: Namespace,
    order: Order,
    mode: CompletionMode,
    latencies: Histogram<u64>,
    failed: u64,
    first_error: Option<CommandError>,
    _pool: DmaPool,
}

/// What one queue has done.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) operations: u64,
    pub(super) failed: u64,
    pub(super) first_error: Option<CommandError>,
    /// Whether the user ended it before its time.
    pub(super) interrupted: bool,
    pub(super) time: Duration,
    pub(super) cpu: Duration,
    pub(super) latencies: Histogram<u64>,
    pub(super) statistics: Statistics,
}

impl Worker {
    pub(super) fn new(
        controller: &Controller,
        namespace: Namespace,
        arguments: &BenchArguments,
        order: Order,
    ) -> Result<Self> {
        let mode = match arguments.wait {
            Wait::Poll => CompletionMode::Poll,
            Wait::Interrupt => CompletionMode::Interrupt,
            Wait::Adaptive => CompletionMode::Adaptive,
        };
        let options = QueueOptions {
            depth: arguments.depth,
            interrupt: mode != CompletionMode::Poll,
            time_limit: LIMIT,
            ..QueueOptions::default()
        };
        let pair = controller.queue_pair(options)?;
        let length = usize::try_from(arguments.block_size)?;
        let mut pool =
            DmaPool::new(controller.domain(), PoolOptions { max_slabs: 4096, ..PoolOptions::default() })?;
        let idle = (0..arguments.depth).map(|_| pool.take(length)).collect::<Result<Vec<_>, _>>();
        let idle =
            idle.context("no memory for so many operations in flight: lower --depth or --block-size")?;
        let done = Vec::with_capacity(idle.len());
        Ok(Self {
            pair,
            idle,
            done,
            namespace,
            order,
            mode,
            latencies: latencies()?,
            failed: 0,
            first_error: None,
            _pool: pool,
        })
    }

    /// Keeps the queue full for `time`, then waits for what is in flight.
    pub(super) fn run(mut self, time: Duration, stop: &StopRequest) -> Result<Done> {
        let cpu = thread_time();
        let begin = Instant::now();
        let elapsed = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let end = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        while let Some(buffer) = self.idle.pop() {
            self.submit(buffer, elapsed())?;
        }
        self.pair.commit()?;
        let depth = self.pair.depth();
        // The rest keeps the controller busy while so many come together for one doorbell.
        let batch = if self.mode == CompletionMode::Poll { (depth / 4).max(1) } else { 1 };
        let (mut looks, mut now, mut held) = (0u32, 0, 0);
        let (mut next_check, mut interrupted) = (0, false);
        while now < end && !interrupted {
            if now >= next_check {
                interrupted = is_interrupted(stop)?;
                next_check = now + CHECK_INTERVAL;
            }
            let taken = self.take(depth)?;
            if taken > 0 {
                // One reading of the clock for what came together.
                now = elapsed();
                self.turn(now)?;
                held += taken;
                if held >= batch {
                    self.pair.commit()?;
                    (held, looks) = (0, 0);
                }
                continue;
            }
            looks += 1;
            if held > 0 && looks >= PATIENCE {
                self.pair.commit()?;
                held = 0;
            }
            if self.mode != CompletionMode::Poll {
                match self.pair.wait(self.mode, SLICE) {
                    Ok(()) => {}
                    Err(WaitError::TimedOut(_)) => now = elapsed(),
                    Err(error) => return Err(error.into()),
                }
                interrupted |= stop.is_set();
            }
            if looks >= LOOKS {
                looks = 0;
                now = elapsed();
                interrupted |= stop.is_set();
                self.pair.check()?;
            }
        }
        let measured = begin.elapsed();
        let cpu = thread_time().saturating_sub(cpu);
        let operations = self.latencies.len();
        let statistics = self.pair.statistics();
        // What ends from here on is not counted.
        let ended = self.pair.close().map_err(|error| anyhow!("the queue was not closed: {error}"))?;
        drop(ended);
        Ok(Done {
            operations,
            failed: self.failed,
            first_error: self.first_error,
            interrupted,
            time: measured,
            cpu,
            latencies: self.latencies,
            statistics,
        })
    }

    /// Takes what has ended.
    #[inline]
    fn take(&mut self, budget: u32) -> Result<u32> {
        let (done, failed, first_error) = (&mut self.done, &mut self.failed, &mut self.first_error);
        let count = self.pair.poll(budget, |completion: Completion<InFlight>| {
            if let Err(error) = completion.result {
                *failed += 1;
                first_error.get_or_insert(error);
            }
            done.push(completion.owner);
        })?;
        Ok(count)
    }

    /// Records what has ended and submits as much again.
    #[inline]
    fn turn(&mut self, now: u64) -> Result<()> {
        while let Some(done) = self.done.pop() {
            self.latencies.saturating_record(now.saturating_sub(done.started));
            self.submit(done.buffer, now)?;
        }
        Ok(())
    }

    #[inline]
    fn submit(&mut self, buffer: DmaBuffer, now: u64) -> Result<()> {
        let whole = buffer.whole();
        let memory = [SgEntry { iova: whole.iova, length: whole.length }];
        let owner = InFlight { buffer, started: now };
        let lba = self.order.next_lba();
        let submitted = if self.order.next_reads() {
            self.pair.read(&self.namespace, lba, &memory, owner)
        } else {
            self.pair.write(&self.namespace, lba, &memory, owner)
        };
        match submitted {
            Ok(_) => Ok(()),
            Err(rejected) => Err(rejected.reason.into()),
        }
    }
}

/// Whether the user interrupts. Whoever does still wants to see what was measured.
fn is_interrupted(stop: &StopRequest) -> Result<bool> {
    match stop.check(LEFT) {
        Ok(()) => Ok(false),
        Err(error) if error.is::<Interrupted>() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
