//! The copy engine from end to end: driver, ring, emulated engine, software IOMMU, bytes,
//! completion. Beside each figure stands `memcpy` of the same segments on one core, and the
//! round trip of a cache line between the two cores in the same minute.
//!
//! `cargo bench --bench copy_engine [-- --json] [-- --quick]`
//!
//! Blocks around which that round trip moved by more than 15 % are discarded, since the
//! cores of a virtual machine move. What `memcpy` does not give: addresses that are
//! translated and checked, completion, and a processor that is free meanwhile.

#![forbid(unsafe_code)]

mod cores;
mod report;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cores::Cores;
use report::{Block, Row};
use serde_json::json;
use vdk_descriptors::sg::CopySegment;
use vdk_driver::ioat::{Channel, ChannelOptions, Ioat};
use vdk_driver::kit::Session;
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::function::PciNode;
use vdk_hal::memory::{Pages, PinnedMemory};
use vdk_iommu::{DmaRegion, FromDevice, ToDevice};

/// Source and destination, each; the copies walk through them.
const BUFFER: usize = 8 << 20;
/// How many completions one poll gives back.
const BUDGET: usize = 256;

/// Bytes of a copy, and how many copies make a block.
const SIZES: [(usize, u32); 3] = [(64, 200_000), (4096, 50_000), (65536, 4_000)];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let cores = Cores::find()?;
    let bench = Bench::new(&cores)?;
    let rows = bench.run(&cores, has("--quick"), !has("--json"))?;
    cores.unpin();
    if has("--json") {
        let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
        println!("{:#}", json!({ "benchmark": "copy_engine", "rows": rows }));
    }
    Ok(())
}

struct Bench {
    node: Arc<StubNode>,
    ioat: Ioat,
    source: DmaRegion<ToDevice>,
    destination: DmaRegion<FromDevice>,
    plain: (PinnedMemory, PinnedMemory),
}

impl Bench {
    fn new(cores: &Cores) -> Result<Self> {
        let node = StubNode::new(
            StubKind::Ioat,
            StubOptions {
                channels: 1,
                cpu: Some(cores.device),
                spin: Duration::from_millis(5),
                ..Default::default()
            },
        )?;
        let opened: Arc<dyn PciNode> = node.clone();
        let ioat = Ioat::start(Session::open(&opened, "copy_engine")?)?;
        cores.pin(cores.driver)?;
        let memory = || -> Result<PinnedMemory> {
            let mut memory = PinnedMemory::allocate(ByteLength::from_usize(BUFFER), Pages::Transparent)?;
            memory.fill(0x5a);
            Ok(memory)
        };
        let source = ioat.domain().map(memory()?.share())?;
        let destination = ioat.domain().map(memory()?.share())?;
        Ok(Self { node, ioat, source, destination, plain: (memory()?, memory()?) })
    }

    fn run(mut self, cores: &Cores, quick: bool, print: bool) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        if print {
            println!(
                "copy engine against memcpy, {} MiB to {0} MiB; medians of blocks, x RTT in cache-line round trips",
                BUFFER >> 20
            );
            Row::print_header();
        }
        // A driver with one operation at a time opens a channel for that.
        for (depth, batches) in [(1, &[0][..]), (1023, &[1, 32, 128])] {
            let options = ChannelOptions { depth, interrupt: false, ..ChannelOptions::default() };
            let mut channel = self.ioat.channel::<u32>(0, options)?;
            for ((size, operations), batch) in
                SIZES.iter().flat_map(|size| batches.iter().map(move |batch| (*size, *batch)))
            {
                let operations = if batch == 0 { operations / 4 } else { operations };
                // Each side takes the caches from the other, so it goes through its memory once
                // before it is measured. The opponent of the side-by-side run does the same.
                let warm_up = u32::try_from(BUFFER / size)?;
                let wanted = if quick { 3 } else { 15 };
                let mut row = Row { size, batch, blocks: Vec::new(), discarded: 0 };
                while row.blocks.len() < wanted && row.discarded < 4 * wanted {
                    let before = cores.round_trip()?;
                    self.engine(&mut channel, size, batch, warm_up)?;
                    let engine = self.engine(&mut channel, size, batch, operations)?;
                    self.memcpy(size, warm_up);
                    let memcpy = self.memcpy(size, operations);
                    let after = cores.round_trip()?;
                    if (after / before - 1.0).abs() > 0.15 {
                        row.discarded += 1;
                        continue;
                    }
                    row.blocks.push(Block { engine, memcpy, round_trip: before.min(after) });
                }
                if print {
                    row.print();
                }
                rows.push(row);
            }
        }
        if self.node.driver_fault_count() + self.node.iommu().fault_count() != 0 {
            bail!("faults: {:?} {:?}", self.node.driver_faults(), self.node.iommu().faults());
        }
        Ok(rows)
    }

    /// Nanoseconds for one operation. A batch of 0 is one operation at a time.
    fn engine(&self, channel: &mut Channel<u32>, size: usize, batch: usize, operations: u32) -> Result<f64> {
        let length = u32::try_from(size)?;
        let (source, destination) = (self.source.iova().as_u64(), self.destination.iova().as_u64());
        let mut offset = 0;
        let mut take = || {
            let at = |start: u64| Iova::new(start + offset);
            let segment = CopySegment { source: at(source), destination: at(destination), length };
            offset += u64::from(length);
            if offset == BUFFER as u64 {
                offset = 0;
            }
            segment
        };
        let (mut posted, mut ended) = (0, 0);
        let start = Instant::now();
        while ended < operations {
            if batch == 0 {
                channel.copy(&[take()], posted)?;
                channel.commit()?;
                while channel.poll(1, |_| ended += 1)? == 0 {}
                posted += 1;
                continue;
            }
            if posted < operations && channel.free() >= batch {
                let mut copies = (posted..).map(|owner| (take(), owner)).take(batch);
                posted += u32::try_from(channel.copy_each(&mut copies)?)?;
                channel.commit()?;
                if channel.free() > channel.capacity() / 2 {
                    // Whoever looks at the completion word takes its line from the engine, so
                    // nobody does before it matters.
                    continue;
                }
            }
            channel.poll(BUDGET, |end| ended += u32::from(end.result.is_ok()))?;
        }
        let elapsed = start.elapsed();
        while channel.outstanding() > 0 {
            channel.poll(BUDGET, |_| ())?;
        }
        Ok(elapsed.as_nanos() as f64 / f64::from(operations))
    }

    fn memcpy(&mut self, size: usize, operations: u32) -> f64 {
        let (source, destination) = &mut self.plain;
        let places = BUFFER / size;
        let start = Instant::now();
        let mut place = 0;
        for _ in 0..operations {
            let range = place * size..(place + 1) * size;
            destination[range.clone()].copy_from_slice(black_box(&source[range]));
            place = if place + 1 == places { 0 } else { place + 1 };
        }
        black_box(&destination);
        start.elapsed().as_nanos() as f64 / f64::from(operations)
    }
}
