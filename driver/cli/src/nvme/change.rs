//! `vdk nvme flush`, `zero` and `format`.

use anyhow::{Result, bail};
use serde::Serialize;
use vdk_driver::block::BlockOperation;
use vdk_driver::descriptors::nvme::FormatDword;

use super::arguments::{FormatArguments, NamespaceTarget, ZeroArguments};
use super::stream::Stream;
use crate::output;
use crate::signal::StopRequest;

#[derive(Debug, Serialize)]
struct Done {
    device: String,
    nsid: u32,
    done: &'static str,
    lba: Option<u64>,
    blocks: Option<u64>,
}

/// Runs `vdk nvme flush`.
pub(super) fn flush(target: &NamespaceTarget, json: bool) -> Result<()> {
    operate(target, "vdk nvme flush", BlockOperation::Flush, 0, 0, json)
}

/// Runs `vdk nvme zero`.
pub(super) fn zero(arguments: &ZeroArguments, json: bool) -> Result<()> {
    super::demand_consent(arguments.yes, "zeroing destroys what the blocks hold")?;
    let operation = if arguments.discard { BlockOperation::Discard } else { BlockOperation::WriteZeroes };
    operate(&arguments.target, "vdk nvme zero", operation, arguments.lba, arguments.blocks, json)
}

fn operate(
    target: &NamespaceTarget,
    holder: &str,
    operation: BlockOperation,
    lba: u64,
    blocks: u64,
    json: bool,
) -> Result<()> {
    let stop = StopRequest::listen()?;
    let controller = super::start(&target.target, holder, 1, 0)?;
    let namespace = super::namespace(&controller, target)?;
    let mut stream = Stream::open(&controller, namespace, stop)?;
    let done = stream.run(operation, lba, blocks);
    drop(stream);
    let stopped = controller.stop();
    done?;
    stopped?;
    let (name, has_range) = match operation {
        BlockOperation::Flush => ("flushed", false),
        BlockOperation::Discard => ("discarded", true),
        _ => ("zeroed", true),
    };
    report(
        &Done {
            device: target.target.device.clone(),
            nsid: namespace.id(),
            done: name,
            lba: has_range.then_some(lba),
            blocks: has_range.then_some(blocks),
        },
        json,
    )
}

/// Runs `vdk nvme format`.
pub(super) fn format(arguments: &FormatArguments, json: bool) -> Result<()> {
    super::demand_consent(arguments.yes, "formatting destroys everything in the namespace")?;
    let target = &arguments.target;
    let controller = super::start(&target.target, "vdk nvme format", 1, 0)?;
    let nsid = match target.nsid {
        Some(nsid) => nsid,
        None => match controller.namespaces()?[..] {
            [nsid] => nsid,
            [] => bail!("{} has no active namespace", target.target.device),
            ref several => {
                bail!("{} has namespaces {several:?}: choose one with --nsid", target.target.device)
            }
        },
    };
    let identify = controller.identify_namespace(nsid)?;
    let formats = identify.available_formats();
    if formats.get(usize::from(arguments.format)).and_then(|format| format.block_length()).is_none() {
        bail!("namespace {nsid} has no format {}: `vdk nvme identify` lists them", arguments.format);
    }
    let mut dword = FormatDword::default();
    dword.set_lba_format(arguments.format);
    controller.format(nsid, dword)?;
    controller.stop()?;
    let device = target.target.device.clone();
    report(&Done { device, nsid, done: "formatted", lba: None, blocks: None }, json)
}

fn report(done: &Done, json: bool) -> Result<()> {
    if json {
        return output::print_json(done);
    }
    let range = match (done.lba, done.blocks) {
        (Some(lba), Some(blocks)) => format!("{blocks} blocks from LBA {lba} of "),
        _ => String::new(),
    };
    output::print(&format!("{} {range}namespace {} of {}\n", done.done, done.nsid, done.device))
}
