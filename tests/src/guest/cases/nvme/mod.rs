//! The NVMe driver on a controller that nobody here wrote.
//!
//! `--set serial=…`, `--set block=…` and `--set bytes=…` say what the controller was told to
//! be: its serial number, and the size of a block and of the whole first namespace.

mod bed;
mod blocks;
mod errors;
mod life;
mod port_errors;
mod queues;
mod shapes;

use anyhow::{Context, Result, ensure};
use vdk_descriptors::nvme::{FeatureId, FeatureSelect, LogPage, NumberOfQueues};
use vdk_driver::nvme::{Controller, ControllerOptions};

use crate::guest::{Case, Guest};
use bed::start;

pub(super) const CASES: &[Case] = &[
    Case { name: "nvme", shows: "blocks are read and written whatever the memory is like", run: nvme },
    Case { name: "nvme-life", shows: "resets, aborts and closes end every command once", run: life::life },
    Case {
        name: "nvme-slow",
        shows: "commands that take too long are aborted, then given up",
        run: life::slow,
    },
    Case {
        name: "nvme-port-error",
        shows: "errors that PCI Express reports are events, and I/O ends",
        run: port_errors::port_errors,
    },
    Case { name: "nvme-unplug", shows: "a removal under load ends every command once", run: life::unplug },
];

fn nvme(guest: &Guest) -> Result<()> {
    let controller = start(guest, ControllerOptions::default())?;
    guest.part("it is what it was told to be", identity(guest, &controller));
    guest.part("log pages and features are answered", logs(&controller));
    drop(controller);
    guest.part("blocks at all edges come back as they were written", blocks::edges(guest));
    guest.part("page pointers of every shape move the right bytes", shapes::pages(guest));
    guest.part("more page pointers than a list page holds are chained", shapes::chains(guest));
    guest.part("pieces with holes between them move the right bytes", shapes::holes(guest));
    guest.part("what is longer than one command carries is split", blocks::split(guest));
    guest.part("flush, zeroes and deallocation are executed", blocks::others(guest));
    guest.part("every depth from 1 to that of MQES works", queues::depths(guest));
    guest.part("a depth beyond MQES is refused", queues::too_deep(guest));
    guest.part("as many queues are opened as the controller gives", queues::many(guest));
    guest.part("completions are found by looking and by interrupt", queues::waits(guest));
    guest.part("doorbells with and without shadows do the same", queues::shadows(guest));
    guest.part("what the controller would refuse is refused before", errors::refused(guest));
    guest.part("what the controller refuses is told with its status", errors::statuses(guest));
    guest.part("the kit matches, starts and stops the driver", life::kit(guest));
    Ok(())
}

fn identity(guest: &Guest, controller: &Controller) -> Result<()> {
    let (facts, wanted) = (controller.facts(), guest.setting("serial")?);
    ensure!(facts.serial == wanted, "the serial number is {:?}, not {wanted:?}", facts.serial);
    ensure!(!facts.model.is_empty() && facts.queues > 0 && facts.queue_entries > 1, "{facts:?}");
    let namespaces = controller.namespaces()?;
    let first = *namespaces.first().context("no namespace is active")?;
    ensure!(namespaces.is_sorted(), "{namespaces:?}");
    let namespace = controller.namespace(first)?;
    let (block, bytes): (u64, u64) = (guest.setting("block")?.parse()?, guest.setting("bytes")?.parse()?);
    ensure!(namespace.block_length().as_u64() == block, "blocks have {}", namespace.block_length());
    ensure!(namespace.length().as_u64() == bytes, "it has {} bytes", namespace.length());
    ensure!(controller.identify()?.revision() == facts.version, "VER and VS differ");
    let absent = facts.namespaces.saturating_add(1);
    let refused = controller.namespace(absent).err().context("a namespace too many")?.to_string();
    ensure!(refused.contains("no active namespace"), "{refused}");
    Ok(())
}

fn logs(controller: &Controller) -> Result<()> {
    let smart = controller.smart()?;
    let kelvin = u16::from_le_bytes(smart.temperature);
    ensure!((200..500).contains(&kelvin), "the temperature is {kelvin} K");
    controller.errors(4)?;
    controller.firmware_slots()?;
    controller.changed_namespaces()?;
    let mut bytes = [0; 512];
    ensure!(controller.log_page(LogPage(0x6f), 0, 0, &mut bytes).is_err(), "a log page too many");
    ensure!(controller.log_page(LogPage::SMART, 0, 0, &mut bytes[..3]).is_err(), "three bytes of a log");
    let number =
        NumberOfQueues(controller.feature(FeatureId::NUMBER_OF_QUEUES, FeatureSelect::CURRENT, 0, 0)?);
    ensure!(number.submission() >= controller.facts().queues - 1, "{number:?}");
    let threshold = controller.feature(FeatureId::TEMPERATURE_THRESHOLD, FeatureSelect::CURRENT, 0, 0)?;
    controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 0, 0x0150, false)?;
    let changed = controller.feature(FeatureId::TEMPERATURE_THRESHOLD, FeatureSelect::CURRENT, 0, 0)?;
    ensure!(changed & 0xffff == 0x0150, "the threshold is {changed:#x}");
    controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 0, threshold, false)?;
    // The admin queue is sound after a command that failed.
    controller.identify()?;
    Ok(())
}
