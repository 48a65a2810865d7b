//! Throughput.

use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use super::{Bench, Measured};

/// What a test came to, in the columns of perftest.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Report {
    bytes: u64,
    iterations: u64,
    /// The best group of completions, in units of 2^20 bytes a second.
    peak: f64,
    /// All of them.
    average: f64,
    /// In millions a second.
    message_rate: f64,
}

/// How many sends share a completion at most.
const GROUP: u32 = 100;
const MIB: f64 = 1_048_576.0;

pub(super) fn run(bench: &mut Bench, json: bool) -> Result<()> {
    if bench.is_client() {
        let report = measure(bench)?;
        if bench.operation != Measured::Send {
            bench.handshake()?;
            swap_reports(bench, &report)?;
        }
        bench.close()?;
        bench.port.print(Some(&report), &text(&report), json)
    } else if bench.operation == Measured::Send {
        let report = receive(bench)?;
        bench.close()?;
        bench.port.print(Some(&report), &text(&report), json)
    } else {
        bench.handshake()?;
        let theirs = swap_reports(bench, &Report::default())?;
        bench.close()?;
        bench.port.print(Some(&theirs), &text(&theirs), json)
    }
}

fn measure(bench: &mut Bench) -> Result<Report> {
    let total = bench.iterations;
    let group = GROUP.min(bench.tx_depth);
    let (mut posted, mut done, mut peak) = (0, 0, 0.0_f64);
    let begun = Instant::now();
    let mut last = begun;
    while done < total {
        while posted < total && posted - done < bench.tx_depth {
            posted += 1;
            let signaled = posted % group == 0 || posted == total;
            bench.post(u64::from(posted), signaled)?;
        }
        bench.wait(true, &format!("send {} of {total}", done + 1))?;
        let next = (done + group).min(total);
        let now = Instant::now();
        let seconds = now.duration_since(last).as_secs_f64();
        if seconds > 0.0 {
            peak = peak.max(f64::from(next - done) * f64::from(bench.size) / seconds / MIB);
        }
        (done, last) = (next, now);
    }
    Ok(report(bench, begun.elapsed().as_secs_f64(), peak))
}

fn receive(bench: &mut Bench) -> Result<Report> {
    let total = bench.iterations;
    let mut begun = Instant::now();
    for count in 0..total {
        bench.wait(false, &format!("message {} of {total}", count + 1))?;
        if count == 0 {
            begun = Instant::now();
        }
        bench.post_receive()?;
    }
    Ok(report(bench, begun.elapsed().as_secs_f64(), 0.0))
}

fn report(bench: &Bench, seconds: f64, peak: f64) -> Report {
    let rate = f64::from(bench.iterations) / seconds.max(1e-9);
    let average = rate * f64::from(bench.size) / MIB;
    Report {
        bytes: u64::from(bench.size),
        iterations: u64::from(bench.iterations),
        peak: peak.max(average),
        average,
        message_rate: rate / 1e6,
    }
}

/// Tells the other end what was measured, and hears what it did.
fn swap_reports(bench: &mut Bench, own: &Report) -> Result<Report> {
    let mut swap = |bytes: [u8; 8]| -> Result<[u8; 8]> {
        let theirs = bench.exchange.swap(&mut bench.port, &bytes, "the report of the peer")?;
        Ok(theirs.first_chunk().copied().unwrap_or_default())
    };
    Ok(Report {
        bytes: u64::from_be_bytes(swap(own.bytes.to_be_bytes())?),
        iterations: u64::from_be_bytes(swap(own.iterations.to_be_bytes())?),
        peak: f64::from_be_bytes(swap(own.peak.to_be_bytes())?),
        average: f64::from_be_bytes(swap(own.average.to_be_bytes())?),
        message_rate: f64::from_be_bytes(swap(own.message_rate.to_be_bytes())?),
    })
}

fn text(report: &Report) -> String {
    format!(
        " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
         {:<7}    {:<10}       {:<7.2}            {:<7.2}\t\t     {:<7.6}\n",
        report.bytes, report.iterations, report.peak, report.average, report.message_rate
    )
}
