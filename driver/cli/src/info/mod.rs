//! `vdk info`: everything that a function says about itself.

mod capabilities;
mod report;
mod text;

use anyhow::{Context, Result};
use vdk_driver::hal::function::OpenError;
use vdk_driver::hal::sysfs::SysfsFunction;
use vdk_driver::hal::vfio::KernelInterface;
use vdk_driver::hal::vfio_user::VfioUserNode;

use crate::arguments::InfoArguments;
use crate::device::{self, Selected};
use crate::output;

use report::{ObstacleReport, Report};

/// Runs the command.
pub(crate) fn run(arguments: &InfoArguments, json: bool) -> Result<()> {
    let report = match device::select(&arguments.device)? {
        Selected::Stub(kind) => {
            let node = device::stub(kind, Default::default())?;
            let function = device::open(&*node)?;
            Report::of_open(&*function)?
        }
        Selected::VfioUser(path) => Report::of_open(&*device::open(&VfioUserNode::new(path))?)?,
        Selected::Pci(address) => {
            let function = device::find_pci(address)?;
            of_pci(&function, arguments.interface).with_context(|| format!("cannot examine {address}"))?
        }
    };
    if json { output::print_json(&report) } else { output::print(&text::render(&report)) }
}

/// A function that can be opened is, for what only an open one tells. One that cannot be is
/// looked at from outside.
fn of_pci(function: &SysfsFunction, interface: KernelInterface) -> Result<Report> {
    let mut outside = Report::of_sysfs(function)?;
    if !outside.obstacles.is_empty() {
        return Ok(outside);
    }
    match device::pci(function.address, interface).open_function() {
        Ok(open) => {
            let mut report = Report::of_open(&*open)?;
            report.driver = outside.driver;
            report.iommu_group = outside.iommu_group;
            let chosen = open.interface();
            report.interface = Some(format!("{}, since {}", chosen.interface, chosen.reason));
            Ok(report)
        }
        Err(OpenError::Refused { reason, fix, .. }) => {
            outside.obstacles.push(ObstacleReport { reason, fix });
            Ok(outside)
        }
        Err(error) => {
            let fix = "wait for its end, or end it".to_owned();
            outside.obstacles.push(ObstacleReport { reason: error.to_string(), fix });
            Ok(outside)
        }
    }
}
