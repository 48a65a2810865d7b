//! `vdk demo`: a tour of what works, on emulated devices, in a few seconds.

mod edu;
mod ioat;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;
use vdk_driver::hal::function::PciNode;
use vdk_driver::kit::{DriverState, Registry, Running};
use vdk_driver::{edu::Edu, ioat::Ioat};
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};

use crate::device;
use crate::names;
use crate::output::{self, Table};

/// Everything that the demo shows.
#[derive(Debug, Default, Serialize)]
struct Report {
    devices: Vec<DeviceRow>,
    checks: Vec<Check>,
    rates: Vec<Rate>,
    seconds: f64,
}

/// A device that was found, and the driver that took it.
#[derive(Debug, Serialize)]
struct DeviceRow {
    device: String,
    ids: String,
    name: String,
    driver: String,
    state: String,
}

/// Something that was done and looked at.
#[derive(Debug, Serialize)]
struct Check {
    what: String,
    result: String,
    seconds: f64,
}

/// How fast operations of one size were.
#[derive(Debug, Serialize)]
struct Rate {
    bytes: u64,
    batch: usize,
    operations: u64,
    operations_per_second: f64,
    bytes_per_second: f64,
}

/// Runs the command.
pub(crate) fn run(json: bool) -> Result<()> {
    let begin = Instant::now();
    let mut report = Report::default();
    if !json {
        output::print("vdk drives PCIe devices from user space. This is a tour on emulated devices.\n")?;
    }
    let registry = Registry::new()?;
    registry.register::<Edu>()?;
    registry.register::<Ioat>()?;

    let (edu_node, edu) = start::<Edu>(&registry, StubKind::Edu, &mut report)?;
    let (ioat_node, ioat) = start::<Ioat>(&registry, StubKind::Ioat, &mut report)?;
    if !json {
        output::print(&render_devices(&report.devices))?;
        output::print("\nWhat they did\n")?;
    }

    let mut checks = Checks { json, rows: &mut report.checks };
    edu::tour(&edu, &mut checks)?;
    ioat::tour(&ioat, &ioat_node, &mut checks)?;
    report.rates = ioat::rates(&ioat)?;
    let mut checks = Checks { json, rows: &mut report.checks };
    checks.run("stop both drivers", || stop(&registry, &edu, &ioat, [&edu_node, &ioat_node]))?;

    report.seconds = begin.elapsed().as_secs_f64();
    if json {
        return output::print_json(&report);
    }
    output::print(&render_rates(&report.rates))?;
    output::print(&format!(
        "\nDone in {}. Next: vdk list, vdk info stub:ioat, vdk copy IN OUT --verify\n",
        output::duration(begin.elapsed())
    ))
}

/// The checks of the tour, each printed when it is done.
struct Checks<'a> {
    json: bool,
    rows: &'a mut Vec<Check>,
}

impl Checks<'_> {
    /// Does something, and notes what came of it.
    fn run(&mut self, what: &str, check: impl FnOnce() -> Result<String>) -> Result<()> {
        let begin = Instant::now();
        let result = check().map_err(|error| error.context(what.to_owned()))?;
        let time = begin.elapsed();
        if !self.json {
            output::print(&format!("  {what}: {result} ({})\n", output::duration(time)))?;
        }
        self.rows.push(Check { what: what.to_owned(), result, seconds: time.as_secs_f64() });
        Ok(())
    }
}

fn start<D: vdk_driver::kit::Driver>(
    registry: &Registry,
    kind: StubKind,
    report: &mut Report,
) -> Result<(Arc<StubNode>, Running<D>)> {
    let node = device::stub(kind, StubOptions::default())?;
    let shared: Arc<dyn PciNode> = node.clone();
    let running = registry.start::<D>(&shared).map_err(|why| anyhow!("no driver started: {why}"))?;
    let identity = node.identity()?;
    report.devices.push(DeviceRow {
        device: node.name().to_owned(),
        ids: identity.to_string(),
        name: names::function(&identity),
        driver: running.personality().to_owned(),
        state: running.state().to_string(),
    });
    Ok((node, running))
}

fn stop(
    registry: &Registry,
    edu: &Running<Edu>,
    ioat: &Running<Ioat>,
    nodes: [&Arc<StubNode>; 2],
) -> Result<String> {
    for state in [edu.stop(), ioat.stop()] {
        if !matches!(state, DriverState::Stopped(_)) {
            return Err(anyhow!("a driver is {state}"));
        }
    }
    registry.shut_down();
    for node in nodes {
        // Only a function that was closed can be opened again.
        let function = device::open(&**node)?;
        if vdk_driver::hal::config::read_command(function.config())?.bus_master() {
            return Err(anyhow!("{} still masters the bus", node.name()));
        }
    }
    Ok("both devices are free again, bus mastering is off".to_owned())
}

fn render_devices(devices: &[DeviceRow]) -> String {
    let mut table = Table::with_heading(&["DEVICE", "IDS", "NAME", "DRIVER", "STATE"]);
    for row in devices {
        table.row([&row.device, &row.ids, &row.name, &row.driver, &row.state].map(String::as_str));
    }
    table.render()
}

fn render_rates(rates: &[Rate]) -> String {
    let mut table = Table::with_heading(&["COPY OF", "BATCH", "OPERATIONS", "OPERATIONS/S", "BYTES/S"]);
    for rate in rates {
        let time = Duration::from_secs_f64(rate.operations as f64 / rate.operations_per_second.max(1.0));
        table.row([
            output::size(rate.bytes),
            rate.batch.to_string(),
            rate.operations.to_string(),
            output::count_rate(rate.operations, time),
            output::rate(rate.operations * rate.bytes, time),
        ]);
    }
    format!("\nHow fast stub:ioat copies through its IOMMU\n{}", table.render())
}
