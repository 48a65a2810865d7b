//! `vdk copy`: a file through a DMA engine.
//!
//! Two halves alternate: while the device moves one, the other is written out and filled
//! again. Memory is bounded by the halves, whatever the size of the file.

mod engine;
mod files;
mod half;
mod progress;
mod scatter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use vdk_driver::hal::function::PciNode;
use vdk_driver::hal::vfio_user::VfioUserNode;
use vdk_driver::ioat::CompletionMode;
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};

use crate::arguments::CopyArguments;
use crate::destination::Destination;
use crate::device::{self, Selected};
use crate::output::{self, Table};
use crate::signal::StopRequest;

use engine::{Engine, LEFT};
use files::{Input, first_difference};
use half::Half;
use progress::Progress;

/// What was done, for a person and for a machine.
#[derive(Debug, Serialize)]
struct Summary {
    input: String,
    output: String,
    device: String,
    bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    chunk: u64,
    segments: u32,
    operations: u64,
    descriptors: u64,
    doorbells: u64,
    interrupts: u64,
    recoveries: u64,
    /// CRC-32 (IEEE 802.3) of the bytes that left the device, in hexadecimal.
    crc32: String,
    /// Whether both files were read again and compared; absent when that was not asked for.
    verified: Option<bool>,
}

/// Runs the command.
pub(crate) fn run(arguments: &CopyArguments, json: bool) -> Result<()> {
    let stop = StopRequest::listen()?;
    let mut input = Input::open(&arguments.input)?;
    let (node, stub) = match device::select(&arguments.device)? {
        Selected::Stub(StubKind::Ioat) => {
            let stub = emulated(arguments)?;
            (Arc::clone(&stub) as Arc<dyn PciNode>, Some(stub))
        }
        Selected::Stub(other) => {
            bail!("stub:{other} has no engine that copies memory to memory: use stub:ioat")
        }
        Selected::VfioUser(path) => {
            if arguments.fault.is_some() {
                bail!("--fault is for the side that emulates the device: give it to `vdk serve`");
            }
            (Arc::new(VfioUserNode::new(path)) as Arc<dyn PciNode>, None)
        }
        Selected::Pci(address) => {
            if arguments.fault.is_some() {
                bail!("--fault is for emulated devices only, and {address} is none");
            }
            (device::pci(address, arguments.interface) as Arc<dyn PciNode>, None)
        }
    };
    input.refuse_same(&arguments.output)?;
    let mut output = Destination::create(&arguments.output)?;
    let to_standard = output.is_standard();
    if json && to_standard {
        bail!("--json and the bytes would both go to the standard output: name a file as OUT");
    }
    if arguments.verify && output.readable_path().is_none() {
        bail!("--verify cannot read {} again: it is not a regular file", arguments.output.display());
    }

    let begin = Instant::now();
    let mut checksum = crc32fast::Hasher::new();
    let mut engine = Engine::start(node, stub, settings(arguments))?;
    let asked = stop.clone();
    let stop = stop.watching(engine.device_events());
    let moved = transfer(arguments, &mut input, &mut output, &mut engine, &mut checksum, &stop);
    let stopped = engine.stop();
    moved?;
    let statistics = stopped?;
    input.check_unchanged()?;
    let time = begin.elapsed();

    let verified = if arguments.verify { Some(verify(arguments, &input, &output, &asked)?) } else { None };
    // What happens to the device does not matter any more.
    asked.check(LEFT)?;
    output.finish()?;
    let summary = Summary {
        input: arguments.input.display().to_string(),
        output: arguments.output.display().to_string(),
        device: arguments.device.clone(),
        bytes: input.length(),
        seconds: time.as_secs_f64(),
        bytes_per_second: output::per_second(input.length(), time),
        chunk: arguments.chunk,
        segments: arguments.segments,
        operations: statistics.operations,
        descriptors: statistics.descriptors,
        doorbells: statistics.doorbells,
        interrupts: statistics.interrupts,
        recoveries: statistics.recoveries,
        crc32: format!("{:08x}", checksum.finalize()),
        verified,
    };
    match (json, to_standard) {
        (true, _) => output::print_json(&summary),
        (false, false) => output::print(&render(&summary, time)),
        (false, true) => output::print_aside(&render(&summary, time)),
    }
}

fn emulated(arguments: &CopyArguments) -> Result<Arc<StubNode>> {
    let mut options = StubOptions { seed: arguments.seed, ..StubOptions::default() };
    if let Some(plan) = &arguments.fault {
        options.fault_plan = plan.clone();
    }
    device::stub(StubKind::Ioat, options)
}

fn settings(arguments: &CopyArguments) -> engine::Settings {
    engine::Settings {
        mode: match arguments.wait.as_str() {
            "poll" => CompletionMode::Poll,
            "interrupt" => CompletionMode::Interrupt,
            _ => CompletionMode::Adaptive,
        },
        deadline: Duration::from_millis(arguments.deadline),
        segments: arguments.segments,
    }
}

fn transfer(
    arguments: &CopyArguments,
    input: &mut Input,
    output: &mut Destination,
    engine: &mut Engine,
    checksum: &mut crc32fast::Hasher,
    stop: &StopRequest,
) -> Result<()> {
    // No larger than the file needs.
    let size = usize::try_from(arguments.chunk.min(input.length()))?;
    if size == 0 {
        return Ok(());
    }
    let segments = usize::try_from(arguments.segments)?;
    let mut free = Vec::with_capacity(2);
    for _ in 0..2.min(input.length().div_ceil(arguments.chunk)) {
        free.push(Half::new(engine.domain(), size, segments)?);
    }
    let progress = Progress::new(input.length());
    let mut left = input.length();
    while left > 0 {
        match free.pop() {
            Some(mut half) if input.remaining() > 0 => {
                half.fill(input)?;
                engine.submit(half, stop)?;
            }
            unused => {
                free.extend(unused);
                let half = engine.complete(stop)?;
                half.drain(output, checksum, stop)?;
                let length = u64::try_from(half.length())?;
                left -= length;
                progress.add(length);
                free.push(half);
            }
        }
    }
    progress.finish();
    Ok(())
}

fn verify(
    arguments: &CopyArguments,
    input: &Input,
    output: &Destination,
    stop: &StopRequest,
) -> Result<bool> {
    let Some(path) = output.readable_path() else { return Ok(false) };
    match first_difference(&arguments.input, path, input.length(), || stop.check(LEFT))? {
        None => Ok(true),
        Some(offset) => bail!(
            "{} and {} differ at offset {offset:#x}; {}",
            arguments.input.display(),
            arguments.output.display(),
            output.left_behind()
        ),
    }
}

fn render(summary: &Summary, time: Duration) -> String {
    let mut table = Table::default();
    table.row(["copied", &format!("{} ({} bytes)", output::size(summary.bytes), summary.bytes)]);
    table.row(["time", &format!("{}, {}", output::duration(time), output::rate(summary.bytes, time))]);
    table.row(["device", &summary.device]);
    let descriptors = format!("{} in {} operations", summary.descriptors, summary.operations);
    table.row(["descriptors", &descriptors]);
    table.row(["doorbells", &summary.doorbells.to_string()]);
    table.row(["interrupts", &summary.interrupts.to_string()]);
    if summary.recoveries > 0 {
        table.row([
            "recoveries",
            &format!("{} (the channel was reset and the copy repeated)", summary.recoveries),
        ]);
    }
    table.row(["CRC-32", &summary.crc32]);
    if summary.verified == Some(true) {
        table.row(["verified", "both files are identical, byte by byte"]);
    }
    table.render()
}
