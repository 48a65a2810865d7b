//! `vdk nvme identify`: what a controller says of itself.

use anyhow::Result;
use serde::Serialize;
use vdk_driver::descriptors::nvme::SmartLog;
use vdk_driver::nvme::{Controller, ControllerFacts};

use super::arguments::Target;
use crate::output::{self, Table};

#[derive(Debug, Serialize)]
struct Identity {
    device: String,
    model: String,
    serial: String,
    firmware: String,
    version: String,
    vendor: String,
    controller_id: u16,
    queues: u16,
    queue_entries: u32,
    /// MDTS in bytes; absent for no limit.
    max_transfer: Option<u64>,
    write_cache: bool,
    shadow_doorbells: bool,
    sgl: bool,
    commands: Vec<&'static str>,
    health: Option<Health>,
    namespaces: Vec<NamespaceIdentity>,
}

/// The SMART log, as far as it is of use.
#[derive(Debug, Serialize)]
struct Health {
    critical_warning: u8,
    temperature_kelvin: u16,
    available_spare_percent: u8,
    used_percent: u8,
    data_units_read: String,
    data_units_written: String,
    power_on_hours: String,
    unsafe_shutdowns: String,
    media_errors: String,
}

#[derive(Debug, Serialize)]
struct NamespaceIdentity {
    nsid: u32,
    blocks: u64,
    used_blocks: u64,
    format: u8,
    formats: Vec<Format>,
    nguid: String,
    eui64: String,
}

#[derive(Debug, Serialize)]
struct Format {
    number: usize,
    block_size: u64,
    metadata: u16,
}

/// Runs the command.
pub(super) fn run(target: &Target, json: bool) -> Result<()> {
    let controller = super::start(target, "vdk nvme identify", u16::MAX - 1, 0)?;
    let identity = identify(&controller, &target.device)?;
    controller.stop()?;
    if json { output::print_json(&identity) } else { output::print(&render(&identity)) }
}

fn identify(controller: &Controller, device: &str) -> Result<Identity> {
    let (facts, identify) = (controller.facts(), controller.identify()?);
    let health = match controller.smart() {
        Ok(log) => Some(health(&log)),
        Err(error) => {
            log::warn!("no SMART log: {error}");
            None
        }
    };
    let mut namespaces = Vec::new();
    for nsid in controller.namespaces()? {
        let identify = controller.identify_namespace(nsid)?;
        let there = identify.available_formats().iter().enumerate();
        namespaces.push(NamespaceIdentity {
            nsid,
            blocks: identify.size,
            used_blocks: identify.utilization,
            format: identify.format.format(),
            formats: there
                .filter_map(|(number, format)| {
                    let block_size = format.block_length()?.as_u64();
                    Some(Format { number, block_size, metadata: format.metadata })
                })
                .collect(),
            nguid: hex(&identify.nguid),
            eui64: hex(&identify.eui64),
        });
    }
    Ok(Identity {
        device: device.to_owned(),
        model: facts.model.clone(),
        serial: facts.serial.clone(),
        firmware: facts.firmware.clone(),
        version: facts.version.to_string(),
        vendor: format!("{:04x}", facts.vendor),
        controller_id: identify.controller_id,
        queues: facts.queues,
        queue_entries: facts.queue_entries,
        max_transfer: facts.max_data_transfer.map(|length| length.as_u64()),
        write_cache: facts.write_cache,
        shadow_doorbells: facts.shadow_doorbells,
        sgl: matches!(facts.sgl.kind(), 1 | 2),
        commands: commands(facts),
        health,
        namespaces,
    })
}

fn commands(facts: &ControllerFacts) -> Vec<&'static str> {
    let (nvm, admin) = (facts.commands, facts.admin_commands);
    [
        (nvm.compare(), "compare"),
        (nvm.write_uncorrectable(), "write uncorrectable"),
        (nvm.dataset_management(), "dataset management"),
        (nvm.write_zeroes(), "write zeroes"),
        (nvm.reservations(), "reservations"),
        (nvm.verify(), "verify"),
        (admin.format(), "format"),
        (admin.firmware(), "firmware"),
        (admin.namespace_management(), "namespace management"),
        (admin.doorbell_buffer(), "doorbell buffer"),
    ]
    .into_iter()
    .filter_map(|(has, name)| has.then_some(name))
    .collect()
}

fn health(log: &SmartLog) -> Health {
    let number = |bytes: [u8; 16]| u128::from_le_bytes(bytes).to_string();
    Health {
        critical_warning: log.critical_warning.0,
        temperature_kelvin: u16::from_le_bytes(log.temperature),
        available_spare_percent: log.available_spare,
        used_percent: log.percentage_used,
        data_units_read: number(log.data_units_read),
        data_units_written: number(log.data_units_written),
        power_on_hours: number(log.power_on_hours),
        unsafe_shutdowns: number(log.unsafe_shutdowns),
        media_errors: number(log.media_errors),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn render(identity: &Identity) -> String {
    let mut table = Table::default();
    let limit = identity.max_transfer.map_or_else(|| "no limit".to_owned(), output::size);
    for (name, value) in [
        ("model", identity.model.clone()),
        ("serial", identity.serial.clone()),
        ("firmware", identity.firmware.clone()),
        ("NVMe", identity.version.clone()),
        ("vendor", identity.vendor.clone()),
        ("I/O queues", format!("{} of up to {} entries", identity.queues, identity.queue_entries)),
        ("longest transfer", limit),
        ("write cache", yes_no(identity.write_cache)),
        ("shadow doorbells", yes_no(identity.shadow_doorbells)),
        ("scatter-gather lists", yes_no(identity.sgl)),
        ("optional commands", identity.commands.join(", ")),
    ] {
        table.row([name.to_owned(), value]);
    }
    if let Some(health) = &identity.health {
        // 273 K is 0 degrees Celsius, as near as the log says.
        let celsius = i32::from(health.temperature_kelvin) - 273;
        table.row(["critical warning".to_owned(), format!("{:#04x}", health.critical_warning)]);
        table.row(["temperature".to_owned(), format!("{celsius} °C")]);
        table.row(["spare".to_owned(), format!("{} %", health.available_spare_percent)]);
        table.row(["used".to_owned(), format!("{} %", health.used_percent)]);
        table.row(["media errors".to_owned(), health.media_errors.clone()]);
    }
    let mut text = table.render();
    for namespace in &identity.namespaces {
        text.push_str(&format!("namespace {}: {} blocks, formats", namespace.nsid, namespace.blocks));
        for format in &namespace.formats {
            let current = if usize::from(namespace.format) == format.number { "*" } else { "" };
            text.push_str(&format!(" {}{current}:{}+{}", format.number, format.block_size, format.metadata));
        }
        text.push('\n');
    }
    text
}

fn yes_no(is: bool) -> String {
    (if is { "yes" } else { "no" }).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal() {
        assert_eq!(hex(&[0, 0xab, 0x10]), "00ab10");
        assert_eq!(hex(&[]), "");
    }
}
