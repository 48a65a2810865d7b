//! `vdk list`: the PCI functions of this machine and the emulated devices.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use vdk_driver::hal::function::PciNode;
use vdk_driver::hal::sysfs::{self, SysfsListing};
use vdk_firmware_stubs::StubKind;

use crate::device;
use crate::names;
use crate::output::{self, Table};

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row {
    /// What to give to other commands as DEV.
    device: String,
    /// Where it sits.
    address: String,
    ids: String,
    name: String,
    class: String,
    driver: Option<String>,
    iommu_group: Option<u32>,
    /// Whether vdk can open it.
    can_open: bool,
    /// Why not, and what to do about it.
    obstacles: Vec<Obstacle>,
}

#[derive(Debug, Serialize)]
struct Obstacle {
    reason: String,
    fix: String,
}

/// Runs the command.
pub(crate) fn run(json: bool) -> Result<()> {
    let listing = SysfsListing::read(Path::new(sysfs::DEVICES))?;
    for fault in &listing.faults {
        log::warn!("{fault}");
    }
    let mut rows: Vec<Row> = listing.functions.iter().map(real).collect();
    for kind in StubKind::ALL {
        rows.push(emulated(kind)?);
    }
    if json { output::print_json(&rows) } else { output::print(&render(&rows)) }
}

fn real(function: &sysfs::SysfsFunction) -> Row {
    let obstacles: Vec<Obstacle> =
        device::refusal(function).into_iter().map(|(reason, fix)| Obstacle { reason, fix }).collect();
    Row {
        device: function.address.to_string(),
        address: function.address.to_string(),
        ids: function.identity.to_string(),
        name: names::function(&function.identity),
        class: names::class(&function.identity),
        driver: function.driver.clone(),
        iommu_group: function.iommu_group.as_ref().map(|group| group.number),
        can_open: obstacles.is_empty(),
        obstacles,
    }
}

fn emulated(kind: StubKind) -> Result<Row> {
    let node = device::stub(kind, Default::default())?;
    let identity = node.identity()?;
    Ok(Row {
        device: node.name().to_owned(),
        address: node.address().to_string(),
        ids: identity.to_string(),
        name: names::function(&identity),
        class: names::class(&identity),
        driver: None,
        iommu_group: None,
        can_open: true,
        obstacles: Vec::new(),
    })
}

fn render(rows: &[Row]) -> String {
    let mut table =
        Table::with_heading(&["DEVICE", "IDS", "NAME", "CLASS", "DRIVER", "GROUP", "VDK CAN OPEN IT"]);
    for row in rows {
        table.row([
            row.device.clone(),
            row.ids.clone(),
            row.name.clone(),
            row.class.clone(),
            row.driver.clone().unwrap_or_else(|| "-".to_owned()),
            row.iommu_group.map_or_else(|| "-".to_owned(), |group| group.to_string()),
            match row.obstacles.first() {
                None => "yes".to_owned(),
                Some(obstacle) => format!("no: {}", obstacle.reason),
            },
        ]);
    }
    let mut text = table.render();
    let mut fixes: Vec<(&str, &str)> = Vec::new();
    for obstacle in rows.iter().flat_map(|row| &row.obstacles) {
        // One example is enough; `vdk info DEV` has them all for one function.
        if fixes.iter().all(|(reason, _)| *reason != obstacle.reason) {
            fixes.push((&obstacle.reason, &obstacle.fix));
        }
    }
    if !fixes.is_empty() {
        text.push_str("\nWhat keeps vdk from opening a function, and what to do about it (for one function: vdk info DEV):\n");
        for (reason, fix) in fixes {
            text.push_str(&format!("  {reason}\n    {fix}\n"));
        }
    }
    text
}
