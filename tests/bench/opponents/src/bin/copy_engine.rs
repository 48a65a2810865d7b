//! Row C: the copy engine beside DPDK's dmadev, two cores each.
//!
//! Usage: copy_engine ROUNDS RTT DMADEV. Rounds alternate ours and theirs with a look at
//! the round trip of a cache line between them; a block is kept when the round trip moved by
//! at most 15 % over it. Medians are of the blocks of one mode.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vdk_opponents::{median, printed_number};

/// What a cell of both tables is: bytes, batch, whether each copy is alone in flight.
type Cell = (u64, u64, bool);

/// ns per copy, and what `memcpy` of the same bytes took on one core where that was
/// measured beside it.
struct Figure {
    copy: f64,
    memcpy: Option<f64>,
}

/// The figures of one run, with the round trip around it, in ns.
struct Block {
    cells: Cells,
    round_trip: f64,
}

type Cells = BTreeMap<Cell, Figure>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, rtt, dmadev] = &arguments[..] else { anyhow::bail!("usage: copy_engine ROUNDS RTT DMADEV") };
    let rounds: usize = rounds.parse().context("ROUNDS is a number")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut before = printed_number(rtt)?;
    let mut discarded = 0;
    for round in 0..rounds {
        for (blocks, run) in [(&mut ours, run_ours as fn(&str) -> _), (&mut theirs, run_theirs)] {
            let cells = run(dmadev)?;
            let after = printed_number(rtt)?;
            if (after - before).abs() <= 0.15 * before {
                blocks.push(Block { cells, round_trip: (after + before) / 2.0 });
            } else {
                discarded += 1;
            }
            before = after;
        }
        eprintln!("round {} of {rounds}, cache line round trip {before:.0} ns", round + 1);
    }
    println!("\nC: copies by the engine, ns each; {discarded} of {} blocks discarded", 2 * rounds);
    for (mode, round_trips) in MODES {
        let of_mode = |blocks: &[Block]| -> Vec<usize> {
            (0..blocks.len()).filter(|index| round_trips.contains(&blocks[*index].round_trip)).collect()
        };
        print_mode(mode, (&ours, &of_mode(&ours)), (&theirs, &of_mode(&theirs)));
    }
    if ours.len() + theirs.len() < rounds {
        println!("  most blocks were disturbed: the machine should do nothing else meanwhile");
    }
    for note in NOTES {
        println!("  note: {note}");
    }
    Ok(())
}

fn print_mode(mode: &str, ours: (&[Block], &[usize]), theirs: (&[Block], &[usize])) {
    let (Some(first), false) = (ours.1.first(), theirs.1.is_empty()) else {
        println!("  {mode} mode: not met on both sides");
        return;
    };
    let round_trips: Vec<f64> = ours.1.iter().map(|index| ours.0[*index].round_trip).collect();
    let round_trip = median(&round_trips);
    println!(
        "  {mode} mode, round trip {round_trip:.0} ns, {} blocks of ours and {} of theirs",
        ours.1.len(),
        theirs.1.len()
    );
    println!(
        "  {:>8} {:>6} {:>10} {:>10} {:>10} {:>10} {:>8} {:>10} {:>10}",
        "bytes", "batch", "ours min", "median", "dmadev min", "median", "ratio", "memcpy", "of memcpy"
    );
    for cell in ours.0[*first].cells.keys() {
        let figures = |(blocks, chosen): (&[Block], &[usize]), of: fn(&Figure) -> Option<f64>| -> Vec<f64> {
            chosen.iter().filter_map(|index| of(blocks[*index].cells.get(cell)?)).collect()
        };
        let (mine, other) =
            (figures(ours, |figure| Some(figure.copy)), figures(theirs, |figure| Some(figure.copy)));
        let memcpy = median(&figures(ours, |figure| figure.memcpy));
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        let (bytes, batch, alone) = cell;
        print!(
            "  {bytes:>8} {:>6} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>7.2}x {memcpy:>10.1} {:>9.2}x",
            if *alone { "alone".to_owned() } else { batch.to_string() },
            least(&mine),
            median(&mine),
            least(&other),
            median(&other),
            median(&other) / median(&mine),
            memcpy / median(&mine)
        );
        if *alone {
            print!(
                "  ours {:.2}, dmadev {:.2} round trips",
                median(&mine) / round_trip,
                median(&other) / round_trip
            );
        }
        println!();
    }
}

fn run_ours(_: &str) -> Result<Cells> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["bench", "--locked", "--quiet", "--package", "vdk-tests"]);
    command.args(["--bench", "copy_engine", "--", "--json", "--quick"]);
    let report = json_of(command)?;
    let mut cells = Cells::new();
    for row in report["rows"].as_array().context("rows of the copy engine")? {
        let alone = row["depth_1"].as_bool().context("depth_1")?;
        let batch = if alone { 1 } else { row["batch"].as_u64().context("batch")? };
        // Nothing where every block of the row was discarded.
        if let Some(copy) = row["engine_ns"].as_f64() {
            let cell = (row["bytes"].as_u64().context("bytes")?, batch, alone);
            cells.insert(cell, Figure { copy, memcpy: row["memcpy_ns"].as_f64() });
        }
    }
    Ok(cells)
}

fn run_theirs(dmadev: &str) -> Result<Cells> {
    let mut command = Command::new(dmadev);
    command.args(["-m", "512", "--no-huge", "--no-pci", "-l", "0", "--vdev=dma_skeleton,lcore=1"]);
    command.args(["--log-level=error"]);
    let mut cells = Cells::new();
    for row in json_of(command)?.as_array().context("an array of cells")? {
        let number = |key: &str| row[key].as_u64().with_context(|| format!("{key} in {row}"));
        let cell = (number("bytes")?, number("batch")?, number("depth")? == 1);
        let copy = row["ns_per_op"].as_f64().with_context(|| format!("ns_per_op in {row}"))?;
        cells.insert(cell, Figure { copy, memcpy: None });
    }
    Ok(cells)
}

fn json_of(mut command: Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).with_context(|| format!("{command:?} prints JSON"))
}

/// The states of a virtual machine with two processors, by the round trip of a cache line in ns:
/// two threads of one core, two cores that share a near cache, and two that do not.
const MODES: [(&str, Range<f64>); 3] =
    [("one-core", 0.0..70.0), ("fast", 70.0..250.0), ("slow", 250.0..f64::INFINITY)];

const NOTES: [&str; 4] = [
    "DPDK 22.11 dma_skeleton is a driver for functional tests: four ring hops a copy, and its worker sleeps 10 us after 10,000 empty polls",
    "dma_skeleton takes addresses as they are; ours translates each through the software IOMMU and checks its permission",
    "dma_skeleton may be shared by threads through its rings; a channel of ours belongs to one thread at a time",
    "a ratio holds within its mode only; compare no figure with one of another run",
];
