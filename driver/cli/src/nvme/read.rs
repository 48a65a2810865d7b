//! `vdk nvme read`: blocks to a file.

use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;

use super::arguments::ReadArguments;
use super::stream::{CHUNK, LEFT, Stream};
use crate::destination::Destination;
use crate::output;
use crate::signal::StopRequest;

/// What was done.
#[derive(Debug, Serialize)]
struct Summary {
    device: String,
    nsid: u32,
    lba: u64,
    blocks: u64,
    bytes: u64,
    seconds: f64,
    /// CRC-32 (IEEE 802.3) of the bytes, in hexadecimal.
    crc32: String,
}

/// Runs the command.
pub(super) fn run(arguments: &ReadArguments, json: bool) -> Result<()> {
    let stop = StopRequest::listen()?;
    let target = &arguments.target.target;
    let mut sink = match &arguments.output {
        Some(path) => Destination::create(path)?,
        None => Destination::standard()?,
    };
    if json && sink.is_standard() {
        bail!("--json and the blocks would both go to the standard output: name a file with --output");
    }
    let controller = super::start(target, "vdk nvme read", 1, CHUNK)?;
    let namespace = super::namespace(&controller, &arguments.target)?;
    if namespace.blocks() == 0 {
        bail!("namespace {} has 0 blocks: create or format it first", namespace.id());
    }
    let left = namespace.blocks().saturating_sub(arguments.lba);
    let blocks = arguments.blocks.unwrap_or(left);
    super::demand_inside(&namespace, arguments.lba, blocks)?;
    let begin = Instant::now();
    let mut checksum = crc32fast::Hasher::new();
    let mut stream = Stream::open(&controller, namespace, stop)?;
    let stop = stream.stop_request().clone();
    let moved = stream.read(&namespace, arguments.lba, blocks, |bytes| {
        checksum.update(bytes);
        sink.write_all(bytes, &stop, LEFT)
    });
    drop(stream);
    let stopped = controller.stop();
    log::debug!("{}: the controller was stopped", target.device);
    moved?;
    stopped?;
    sink.finish()?;
    let (time, bytes) = (begin.elapsed(), blocks << namespace.block_exponent());
    let summary = Summary {
        device: target.device.clone(),
        nsid: namespace.id(),
        lba: arguments.lba,
        blocks,
        bytes,
        seconds: time.as_secs_f64(),
        crc32: format!("{:08x}", checksum.finalize()),
    };
    if json {
        return output::print_json(&summary);
    }
    let text = format!(
        "read {} ({blocks} blocks from LBA {}) in {}, {}, crc32 {}\n",
        output::size(bytes),
        arguments.lba,
        output::duration(time),
        output::rate(bytes, time),
        summary.crc32
    );
    // The blocks themselves may be on the standard output.
    output::print_aside(&text)
}
