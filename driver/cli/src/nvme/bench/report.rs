//! What was measured, for a person and for a machine.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;
use vdk_driver::nvme::{ControllerFacts, Namespace};

use super::worker::Done;
use crate::nvme::arguments::{BenchArguments, Operation, Pattern, Wait};
use crate::output::{self, Table};

/// The longest time that is told apart from longer ones: a minute.
const LONGEST: u64 = 60_000_000_000;

/// A histogram of nanoseconds, right to three digits.
pub(super) fn latencies() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, 3).context("no histogram of times")
}

/// What all queues have done.
#[derive(Debug)]
pub(super) struct Counts {
    operations: u64,
    failed: u64,
    first_error: Option<String>,
    interrupted: bool,
    time: Duration,
    cpu: Duration,
    latencies: Option<Histogram<u64>>,
    submission_doorbells: u64,
    completion_doorbells: u64,
    doorbells_spared: u64,
    interrupts: u64,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            operations: 0,
            failed: 0,
            first_error: None,
            interrupted: false,
            time: Duration::ZERO,
            cpu: Duration::ZERO,
            latencies: None,
            submission_doorbells: 0,
            completion_doorbells: 0,
            doorbells_spared: 0,
            interrupts: 0,
        }
    }

    /// Adds what one queue has done.
    pub(super) fn add(&mut self, done: &Done) -> Result<()> {
        self.operations += done.operations;
        self.failed += done.failed;
        if self.first_error.is_none() {
            self.first_error = done.first_error.map(|error| error.to_string());
        }
        self.interrupted |= done.interrupted;
        self.time = self.time.max(done.time);
        self.cpu += done.cpu;
        match &mut self.latencies {
            Some(latencies) => latencies.add(&done.latencies)?,
            None => self.latencies = Some(done.latencies.clone()),
        }
        self.submission_doorbells += done.statistics.submission_doorbells;
        self.completion_doorbells += done.statistics.completion_doorbells;
        self.doorbells_spared += done.statistics.doorbells_spared;
        self.interrupts += done.statistics.interrupts;
        Ok(())
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    device: String,
    nsid: u32,
    pattern: &'static str,
    operation: &'static str,
    block_size: u64,
    namespace_block_size: u64,
    depth: u32,
    queues: u16,
    wait: &'static str,
    shadow_doorbells: bool,
    seconds: f64,
    operations: u64,
    failed: u64,
    first_error: Option<String>,
    /// Whether the user ended it before its time.
    interrupted: bool,
    iops: f64,
    bytes_per_second: f64,
    cpu_ns_per_operation: f64,
    latency_ns: Latency,
    submission_doorbells: u64,
    completion_doorbells: u64,
    doorbells_spared: u64,
    interrupts: u64,
}

#[derive(Debug, Serialize)]
struct Latency {
    min: u64,
    mean: f64,
    p50: u64,
    p90: u64,
    p99: u64,
    p99_9: u64,
    max: u64,
    /// How many operations took up to so many nanoseconds, in powers of two; empty ones left
    /// out.
    histogram: Vec<Bucket>,
}

#[derive(Debug, Serialize)]
struct Bucket {
    up_to: u64,
    count: u64,
}

impl Report {
    pub(super) fn new(
        arguments: &BenchArguments,
        facts: &ControllerFacts,
        namespace: &Namespace,
        queues: u16,
        counts: &Counts,
    ) -> Self {
        let seconds = counts.time.as_secs_f64();
        let iops = output::per_second(counts.operations, counts.time);
        // CAST: a count of operations loses nothing that matters as a floating-point number.
        let cpu = counts.cpu.as_nanos() as f64 / (counts.operations.max(1) as f64);
        Self {
            device: arguments.target.target.device.clone(),
            nsid: namespace.id(),
            pattern: match arguments.pattern {
                Pattern::Random => "random",
                Pattern::Sequential => "sequential",
            },
            operation: match arguments.operation {
                Operation::Read => "read",
                Operation::Write => "write",
                Operation::Mixed => "mixed",
            },
            block_size: arguments.block_size,
            namespace_block_size: namespace.block_length().as_u64(),
            depth: arguments.depth,
            queues,
            wait: match arguments.wait {
                Wait::Poll => "poll",
                Wait::Interrupt => "interrupt",
                Wait::Adaptive => "adaptive",
            },
            shadow_doorbells: facts.shadow_doorbells,
            seconds,
            operations: counts.operations,
            failed: counts.failed,
            first_error: counts.first_error.clone(),
            interrupted: counts.interrupted,
            iops,
            // CAST: as above.
            bytes_per_second: iops * arguments.block_size as f64,
            cpu_ns_per_operation: cpu,
            latency_ns: Latency::of(counts.latencies.as_ref()),
            submission_doorbells: counts.submission_doorbells,
            completion_doorbells: counts.completion_doorbells,
            doorbells_spared: counts.doorbells_spared,
            interrupts: counts.interrupts,
        }
    }

    /// Whether the user ended it before its time.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// The text for a person.
    pub(super) fn render(&self) -> String {
        let time = |nanoseconds: u64| output::duration(Duration::from_nanos(nanoseconds));
        let mut text = format!(
            "{} {} of {} at depth {} in {} queue(s), {} for {:.1} s\n",
            self.pattern,
            self.operation,
            output::size(self.block_size),
            self.depth,
            self.queues,
            self.wait,
            self.seconds
        );
        let mut table = Table::default();
        table.row(["operations a second".to_owned(), format!("{:.0}", self.iops)]);
        table.row(["bandwidth".to_owned(), format!("{:.1} MB/s", self.bytes_per_second / 1e6)]);
        table.row([
            "processor time of an operation".to_owned(),
            format!("{:.1} us", self.cpu_ns_per_operation / 1000.0),
        ]);
        let latency = &self.latency_ns;
        for (name, value) in [
            ("shortest", latency.min),
            ("half up to", latency.p50),
            ("90 % up to", latency.p90),
            ("99 % up to", latency.p99),
            ("99.9 % up to", latency.p99_9),
            ("longest", latency.max),
        ] {
            table.row([name.to_owned(), time(value)]);
        }
        table.row([
            "doorbells: tail, head, spared".to_owned(),
            format!(
                "{}, {}, {}",
                self.submission_doorbells, self.completion_doorbells, self.doorbells_spared
            ),
        ]);
        table.row(["interrupts".to_owned(), self.interrupts.to_string()]);
        text.push_str(&table.render());
        let most = latency.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(1).max(1);
        for bucket in &latency.histogram {
            let width = usize::try_from(bucket.count.saturating_mul(50).div_ceil(most)).unwrap_or(50);
            text.push_str(&format!(
                "{:>10} {:>10} {}\n",
                time(bucket.up_to),
                bucket.count,
                "#".repeat(width)
            ));
        }
        if let Some(error) = &self.first_error {
            text.push_str(&format!("{} operations failed, the first with: {error}\n", self.failed));
        }
        text
    }
}

impl Latency {
    fn of(histogram: Option<&Histogram<u64>>) -> Self {
        let Some(histogram) = histogram.filter(|histogram| !histogram.is_empty()) else {
            return Self {
                min: 0,
                mean: 0.0,
                p50: 0,
                p90: 0,
                p99: 0,
                p99_9: 0,
                max: 0,
                histogram: Vec::new(),
            };
        };
        let percent = |percent| histogram.value_at_quantile(percent / 100.0);
        Self {
            min: histogram.min(),
            mean: histogram.mean(),
            p50: percent(50.0),
            p90: percent(90.0),
            p99: percent(99.0),
            p99_9: percent(99.9),
            max: histogram.max(),
            histogram: histogram
                .iter_log(1024, 2.0)
                .map(|step| Bucket {
                    up_to: step.value_iterated_to(),
                    count: step.count_since_last_iteration(),
                })
                .filter(|bucket| bucket.count > 0)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_buckets_come_from_all_operations() {
        let mut histogram = latencies().unwrap();
        for value in 1..=1000u64 {
            histogram.saturating_record(value * 1000);
        }
        let latency = Latency::of(Some(&histogram));
        assert!((498_000..=502_000).contains(&latency.p50), "{}", latency.p50);
        assert!((988_000..=992_000).contains(&latency.p99), "{}", latency.p99);
        assert!(latency.min <= 1000 && latency.max >= 999_000);
        assert_eq!(latency.histogram.iter().map(|bucket| bucket.count).sum::<u64>(), 1000);
        assert!(latency.histogram.windows(2).all(|pair| pair[0].up_to < pair[1].up_to));
    }

    #[test]
    fn nothing_measured_is_all_zero() {
        let latency = Latency::of(None);
        assert_eq!((latency.p50, latency.max, latency.histogram.len()), (0, 0, 0));
    }
}
