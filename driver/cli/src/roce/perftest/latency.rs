//! Latency.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::{Bench, Measured};

/// What a test came to, in microseconds, in the columns of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Report {
    bytes: u32,
    iterations: usize,
    minimum: f64,
    maximum: f64,
    typical: f64,
    average: f64,
    deviation: f64,
    percentile_99: f64,
    percentile_99_9: f64,
}

pub(super) fn run(bench: &mut Bench, json: bool) -> Result<()> {
    let one_sided = !matches!(bench.operation, Measured::Write | Measured::Send);
    let samples = match bench.operation {
        Measured::Write => writes(bench)?,
        Measured::Send => sends(bench)?,
        _ if bench.is_client() => requests(bench)?,
        _ => Vec::new(),
    };
    if bench.operation == Measured::Write {
        bench.port.linger(bench.patience)?;
    } else {
        bench.close()?;
    }
    if samples.is_empty() {
        return bench.port.print(None::<&Report>, "", json);
    }
    // To and fro is two ways, except where the answer is what is measured.
    let ways = if one_sided { 1.0 } else { 2.0 };
    let report = summarise(bench.size, &samples, ways);
    bench.port.print(Some(&report), &text(&report), json)
}

/// Each end writes into the memory of the other when it sees that the other did. Unlike with
/// SEND it is the server that begins.
fn writes(bench: &mut Bench) -> Result<Vec<Duration>> {
    let total = bench.iterations;
    let mut samples = Vec::new();
    let (key, size) = (bench.connection.region.key, bench.size as usize);
    let (mark, sign) = (size - 1, usize::try_from(bench.half)? + size - 1);
    let mut last = Instant::now();
    for round in 1..=total {
        // The last byte of a message is its number.
        let number = round.to_le_bytes()[0];
        let what = format!("WRITE {round} of {total} of the peer");
        let wait = |bench: &mut Bench| {
            bench.port.until(bench.patience, &what, |endpoint| {
                let bytes = endpoint.memory().bytes(key).unwrap_or_default();
                Ok((bytes.get(sign) == Some(&number)).then_some(()))
            })
        };
        if bench.is_client() {
            wait(bench)?;
        }
        let bytes = bench.port.endpoint.memory_mut().bytes_mut(key);
        if let Some(byte) = bytes.and_then(|bytes| bytes.get_mut(mark)) {
            *byte = number;
        }
        bench.post(u64::from(round), true)?;
        bench.wait(true, &format!("WRITE {round} of {total}"))?;
        if !bench.is_client() {
            wait(bench)?;
        }
        let now = Instant::now();
        samples.push(now.duration_since(last));
        last = now;
    }
    Ok(samples)
}

/// Each end sends when it has received.
fn sends(bench: &mut Bench) -> Result<Vec<Duration>> {
    let total = bench.iterations;
    let mut samples = Vec::new();
    let mut last = Instant::now();
    for round in 1..=total {
        let what = format!("message {round} of {total}");
        if !bench.is_client() {
            bench.wait(false, &what)?;
            bench.post_receive()?;
        }
        bench.post(u64::from(round), true)?;
        bench.wait(true, &format!("SEND {round} of {total}"))?;
        if bench.is_client() {
            bench.wait(false, &what)?;
            bench.post_receive()?;
        }
        let now = Instant::now();
        samples.push(now.duration_since(last));
        last = now;
    }
    Ok(samples)
}

/// The client asks, the server's queue pair answers.
fn requests(bench: &mut Bench) -> Result<Vec<Duration>> {
    let total = bench.iterations;
    let mut samples = Vec::new();
    for round in 1..=total {
        let begun = Instant::now();
        bench.post(u64::from(round), true)?;
        bench.wait(true, &format!("request {round} of {total}"))?;
        samples.push(begun.elapsed());
    }
    Ok(samples)
}

fn summarise(bytes: u32, samples: &[Duration], ways: f64) -> Report {
    // CAST: a latency in nanoseconds needs no more than 53 bits.
    let microseconds = |sample: &Duration| sample.as_nanos() as f64 / 1e3;
    let mut sorted: Vec<f64> = samples.iter().map(|sample| microseconds(sample) / ways).collect();
    sorted.sort_by(f64::total_cmp);
    // CAST: a count of samples in an average needs no more than 53 bits.
    let count = sorted.len().max(1) as f64;
    let average = sorted.iter().sum::<f64>() / count;
    let variance = sorted.iter().map(|sample| (sample - average).powi(2)).sum::<f64>() / count;
    let at = |thousandths: usize| {
        let place = (sorted.len() * thousandths / 1000).min(sorted.len().saturating_sub(1));
        sorted.get(place).copied().unwrap_or_default()
    };
    Report {
        bytes,
        iterations: samples.len(),
        minimum: at(0),
        maximum: at(1000),
        typical: at(500),
        average,
        deviation: variance.sqrt(),
        percentile_99: at(990),
        percentile_99_9: at(999),
    }
}

fn text(report: &Report) -> String {
    let Report { bytes, iterations, minimum, maximum, typical, average, deviation, .. } = report;
    format!(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
         99% percentile[usec]   99.9% percentile[usec]\n \
         {bytes:<7} {iterations:<10}     {minimum:<7.2}        {maximum:<7.2}      {typical:<7.2}            \
         {average:<7.2}        {deviation:<7.2}         {:<7.2}                {:<7.2}\n",
        report.percentile_99, report.percentile_99_9
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_median_as_what_is_typical() {
        let samples: Vec<Duration> = (1..=1000).map(Duration::from_micros).collect();
        let report = summarise(2, &samples, 2.0);
        assert_eq!((report.minimum, report.maximum, report.typical), (0.5, 500.0, 250.5));
        assert_eq!((report.percentile_99, report.percentile_99_9), (495.5, 500.0));
        assert_eq!(report.average, 250.25);
        assert_eq!(summarise(2, &samples[..1], 1.0).maximum, 1.0);
    }
}
