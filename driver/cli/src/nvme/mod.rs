//! `vdk nvme`: NVMe controllers, driven from here.

mod arguments;
mod bench;
mod change;
mod identify;
mod list;
mod read;
mod stream;
mod write;

pub(crate) use arguments::NvmeCommand;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use vdk_driver::hal::address::ByteLength;
use vdk_driver::hal::config;
use vdk_driver::kit::Session;
use vdk_driver::nvme::{Controller, ControllerOptions, Namespace};

use crate::{device, names};
use arguments::{NamespaceTarget, Target};

/// Mass storage, non-volatile memory, NVM Express: the class code of a controller, PCI Code and ID
/// Assignment Specification.
const NVM_EXPRESS: u32 = 0x01_08_02;
/// How long an admin command may take: a format takes its time.
const ADMIN_LIMIT: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(command: &NvmeCommand, json: bool) -> Result<()> {
    match command {
        NvmeCommand::List(target) => list::run(target, json),
        NvmeCommand::Identify(target) => identify::run(target, json),
        NvmeCommand::Read(arguments) => read::run(arguments, json),
        NvmeCommand::Write(arguments) => write::run(arguments, json),
        NvmeCommand::Flush(target) => change::flush(target, json),
        NvmeCommand::Zero(arguments) => change::zero(arguments, json),
        NvmeCommand::Format(arguments) => change::format(arguments, json),
        NvmeCommand::Bench(arguments) => bench::run(arguments, json),
    }
}

/// Starts the controller that a person named.
fn start(target: &Target, holder: &str, queues: u16, max_transfer: u64) -> Result<Arc<Controller>> {
    let node = device::node(&target.device, target.interface)?;
    let session = Session::open(&node, holder)?;
    // Before a register of a device that is none is touched.
    let identity = config::identity(session.config()?).context("cannot read what the device is")?;
    if identity.class != NVM_EXPRESS {
        bail!(
            "{} is no NVMe controller: it is {} of class {:06x}, and one has class {NVM_EXPRESS:06x}",
            target.device,
            names::function(&identity),
            identity.class
        );
    }
    let options = ControllerOptions {
        queues,
        // Who asks for all queues only wants to know how many there are.
        interrupts: queues <= 256,
        shadow_doorbells: target.shadow_doorbells,
        max_transfer: ByteLength::new(max_transfer),
        admin_limit: ADMIN_LIMIT,
    };
    let controller = Controller::start(session, options)
        .with_context(|| format!("cannot start the controller {}", target.device))?;
    Ok(Arc::new(controller))
}

/// The namespace that a person named, or the first.
fn namespace(controller: &Controller, target: &NamespaceTarget) -> Result<Namespace> {
    let id = match target.nsid {
        Some(id) => id,
        None => match controller.namespaces()?.first() {
            Some(id) => *id,
            None => bail!("{} has no active namespace: create and attach one first", target.target.device),
        },
    };
    Ok(controller.namespace(id)?)
}

/// Refuses blocks that are not in the namespace, or none.
fn demand_inside(namespace: &Namespace, lba: u64, blocks: u64) -> Result<()> {
    let left = namespace.blocks().saturating_sub(lba);
    if blocks == 0 || blocks > left {
        bail!(
            "{blocks} blocks from LBA {lba} are not inside namespace {}, which has {} blocks",
            namespace.id(),
            namespace.blocks()
        );
    }
    Ok(())
}

/// Refuses what destroys data unless the user said yes.
fn demand_consent(yes: bool, what: &str) -> Result<()> {
    if yes {
        return Ok(());
    }
    bail!("{what}: say --yes if that is what you want")
}
