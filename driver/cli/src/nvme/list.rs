//! `vdk nvme list`: the controller and its namespaces.

use anyhow::Result;
use serde::Serialize;
use vdk_driver::nvme::{Controller, NamespaceError};

use super::arguments::Target;
use crate::output::{self, Table};

#[derive(Debug, Serialize)]
struct Listing {
    device: String,
    model: String,
    serial: String,
    firmware: String,
    version: String,
    namespaces: Vec<Row>,
}

/// One namespace.
#[derive(Debug, Serialize)]
struct Row {
    nsid: u32,
    blocks: u64,
    block_size: u64,
    bytes: u64,
    read_only: bool,
    /// Why it cannot be used, when it cannot.
    problem: Option<String>,
}

/// Runs the command.
pub(super) fn run(target: &Target, json: bool) -> Result<()> {
    let controller = super::start(target, "vdk nvme list", 1, 0)?;
    let facts = controller.facts();
    let listing = Listing {
        device: target.device.clone(),
        model: facts.model.clone(),
        serial: facts.serial.clone(),
        firmware: facts.firmware.clone(),
        version: facts.version.to_string(),
        namespaces: rows(&controller)?,
    };
    controller.stop()?;
    if json { output::print_json(&listing) } else { output::print(&render(&listing)) }
}

fn rows(controller: &Controller) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for nsid in controller.namespaces()? {
        rows.push(match controller.namespace(nsid) {
            Ok(namespace) => Row {
                nsid,
                blocks: namespace.blocks(),
                block_size: namespace.block_length().as_u64(),
                bytes: namespace.length().as_u64(),
                read_only: namespace.is_read_only(),
                problem: None,
            },
            Err(NamespaceError::Admin(error)) => return Err(error.into()),
            Err(error) => Row {
                nsid,
                blocks: 0,
                block_size: 0,
                bytes: 0,
                read_only: false,
                problem: Some(error.to_string()),
            },
        });
    }
    Ok(rows)
}

fn render(listing: &Listing) -> String {
    let mut text = format!(
        "{}: {}, serial {}, firmware {}, NVMe {}\n",
        listing.device, listing.model, listing.serial, listing.firmware, listing.version
    );
    if listing.namespaces.is_empty() {
        text.push_str("no active namespace\n");
        return text;
    }
    let mut table = Table::with_heading(&["namespace", "size", "blocks", "block size", ""]);
    for row in &listing.namespaces {
        let note =
            row.problem.clone().unwrap_or_else(|| (if row.read_only { "read only" } else { "" }).to_owned());
        let cells = [
            row.nsid.to_string(),
            output::size(row.bytes),
            row.blocks.to_string(),
            row.block_size.to_string(),
            note,
        ];
        table.row(cells);
    }
    text.push_str(&table.render());
    text
}
