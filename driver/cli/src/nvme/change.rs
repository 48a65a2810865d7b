//! `vdk nvme flush`, `zero` and `format`.

use anyhow::{Result, bail};
use serde::Serialize;
use vdk_driver::block::BlockOperation;
use vdk_driver::descriptors::nvme::FormatDword;
use vdk_driver::nvme::Controller;

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
    if operation != BlockOperation::Flush {
        super::demand_inside(&namespace, lba, blocks)?;
    }
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
    let stop = StopRequest::listen()?;
    let controller = super::start(&target.target, "vdk nvme format", 1, 0)?;
    let stop = stop.watching(controller.device_events());
    let formatted = format_namespace(&controller, target, arguments.format, &stop);
    // Whoever wants the device back waits for this.
    let stopped = controller.stop();
    let nsid = formatted?;
    stopped?;
    let device = target.target.device.clone();
    report(&Done { device, nsid, done: "formatted", lba: None, blocks: None }, json)
}

/// Formats the namespace that is meant, and returns its number. A format is one command that
/// cannot be cut off: what happens to the device meanwhile, or what the user wants, is told
/// after it.
fn format_namespace(
    controller: &Controller,
    target: &NamespaceTarget,
    format: u8,
    stop: &StopRequest,
) -> Result<u32> {
    let found = formattable(controller, target, format);
    // What happened to the device says why something failed.
    stop.check("nothing was formatted")?;
    let nsid = found?;
    let mut dword = FormatDword::default();
    dword.set_lba_format(format);
    let formatted = controller.format(nsid, dword);
    stop.check(if formatted.is_ok() { "the namespace is formatted" } else { "formatted in part, or not" })?;
    formatted?;
    Ok(nsid)
}

/// The namespace that is meant, if it has the format.
fn formattable(controller: &Controller, target: &NamespaceTarget, format: u8) -> Result<u32> {
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
    if formats.get(usize::from(format)).and_then(|format| format.block_length()).is_none() {
        bail!("namespace {nsid} has no format {format}: `vdk nvme identify` lists them");
    }
    Ok(nsid)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vdk_driver::hal::function::PciNode;
    use vdk_driver::hal::vfio::KernelInterface;
    use vdk_driver::kit::Session;
    use vdk_driver::nvme::ControllerOptions;
    use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};

    use super::*;
    use crate::nvme::arguments::Target;

    #[test]
    fn nothing_is_formatted_when_the_device_is_asked_for_or_gone() {
        for removed in [false, true] {
            let node = StubNode::new(StubKind::Nvme, StubOptions::default()).unwrap();
            let opened: Arc<dyn PciNode> = node.clone();
            let session = Session::open(&opened, "test").unwrap();
            let controller = Controller::start(session, ControllerOptions::default()).unwrap();
            let stop = StopRequest::listen().unwrap().watching(controller.device_events());
            let target = Target {
                device: "stub:nvme".to_owned(),
                interface: KernelInterface::Auto,
                shadow_doorbells: false,
            };
            let target = NamespaceTarget { target, nsid: None };
            let format = || format_namespace(&controller, &target, 0, &stop);
            assert_eq!(format().unwrap(), 1);
            let reason = if removed {
                node.remove();
                "the device was removed"
            } else {
                node.request_release();
                "the system asked for the device back, to unbind or remove it"
            };
            let error = format().unwrap_err().to_string();
            assert_eq!(error, format!("{reason}: nothing was formatted"));
            drop(controller);
        }
    }
}
