//! `vdk info`: everything that a function says about itself.

mod capabilities;
mod report;
mod text;

use anyhow::{Context, Result};

use crate::arguments::InfoArguments;
use crate::device::{self, Selected};
use crate::output;

use report::Report;

/// Runs the command.
pub(crate) fn run(arguments: &InfoArguments, json: bool) -> Result<()> {
    let report = match device::select(&arguments.device)? {
        Selected::Stub(kind) => {
            let node = device::stub(kind, Default::default())?;
            let function = device::open(&*node)?;
            Report::of_open(&*function)?
        }
        Selected::Pci(address) => {
            let function = device::find_pci(address)?;
            Report::of_sysfs(&function).with_context(|| format!("cannot examine {address}"))?
        }
    };
    if json { output::print_json(&report) } else { output::print(&text::render(&report)) }
}
