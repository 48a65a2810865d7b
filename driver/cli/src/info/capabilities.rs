//! What each capability says, in words.

use serde::Serialize;
use vdk_driver::hal::config::{
    CapabilityId, ConfigError, ConfigSpace, Express, LinkSpeed, Msi, Msix, PowerManagement, PowerState,
    capabilities, extended_capabilities,
};

/// One capability.
#[derive(Debug, Serialize)]
pub(super) struct CapabilityReport {
    /// Where it begins.
    pub(super) offset: u16,
    /// Its number.
    pub(super) id: u16,
    /// Its name in the standard.
    pub(super) name: String,
    /// What it says.
    pub(super) details: Vec<String>,
}

/// The capabilities in the first 256 bytes, and the reason why the list ended early.
pub(super) fn standard(config: &dyn ConfigSpace) -> (Vec<CapabilityReport>, Option<String>) {
    let mut reports = Vec::new();
    for item in capabilities(config) {
        match item {
            Ok(capability) => reports.push(CapabilityReport {
                offset: capability.offset,
                id: capability.id.0.into(),
                name: capability.id.to_string(),
                details: details(config, capability.id, capability.offset)
                    .unwrap_or_else(|error| vec![error.to_string()]),
            }),
            Err(error) => return (reports, Some(error.to_string())),
        }
    }
    (reports, None)
}

/// The extended capabilities, and the reason why the list ended early.
pub(super) fn extended(config: &dyn ConfigSpace) -> (Vec<CapabilityReport>, Option<String>) {
    let mut reports = Vec::new();
    for item in extended_capabilities(config) {
        match item {
            Ok(capability) => reports.push(CapabilityReport {
                offset: capability.offset,
                id: capability.id.0,
                name: capability.id.to_string(),
                details: vec![format!("version {}", capability.version)],
            }),
            Err(error) => return (reports, Some(error.to_string())),
        }
    }
    (reports, None)
}

fn details(config: &dyn ConfigSpace, id: CapabilityId, offset: u16) -> Result<Vec<String>, ConfigError> {
    Ok(match id {
        CapabilityId::POWER_MANAGEMENT => power(config, offset)?,
        CapabilityId::MSI => msi(config, offset)?,
        CapabilityId::MSIX => msix(config, offset)?,
        CapabilityId::PCI_EXPRESS => express(config, offset)?,
        _ => Vec::new(),
    })
}

fn power(config: &dyn ConfigSpace, offset: u16) -> Result<Vec<String>, ConfigError> {
    let capability = PowerManagement::read(config, offset)?;
    let control = capability.control(config)?;
    let states: Vec<&str> = [
        (PowerState::D0, "D0"),
        (PowerState::D1, "D1"),
        (PowerState::D2, "D2"),
        (PowerState::D3Hot, "D3hot"),
    ]
    .into_iter()
    .filter(|(state, _)| capability.supports(*state))
    .map(|(_, name)| name)
    .collect();
    Ok(vec![
        format!("in {:?}, has {}", capability.state(config)?, states.join(" ")),
        format!(
            "{} its state on the way from D3hot to D0",
            if control.no_soft_reset() { "keeps" } else { "loses" }
        ),
    ])
}

fn msi(config: &dyn ConfigSpace, offset: u16) -> Result<Vec<String>, ConfigError> {
    let capability = Msi::read(config, offset)?;
    Ok(vec![format!(
        "{}, {} of {} vectors, {}-bit address, {}",
        enabled(capability.control.enable()),
        capability.enabled_vectors(),
        capability.vectors(),
        if capability.control.address_64() { 64 } else { 32 },
        if capability.control.per_vector_masking() { "maskable by vector" } else { "not maskable" }
    )])
}

fn msix(config: &dyn ConfigSpace, offset: u16) -> Result<Vec<String>, ConfigError> {
    let capability = Msix::read(config, offset)?;
    let place = |what: &str, location: vdk_driver::hal::config::MsixLocation| {
        format!("{what} in {} at {:#x}, {:#x} bytes", location.bar, location.offset, location.length.as_u64())
    };
    Ok(vec![
        format!("{}, {} vectors", enabled(capability.control.enable()), capability.vectors()),
        place("table", capability.table),
        place("pending bits", capability.pending),
    ])
}

fn express(config: &dyn ConfigSpace, offset: u16) -> Result<Vec<String>, ConfigError> {
    let capability = Express::read(config, offset)?;
    let mut details = vec![format!(
        "{}, version {}, {}function-level reset",
        capability.port_type(),
        capability.flags.version(),
        if capability.function_level_reset() { "" } else { "no " }
    )];
    if let Some(payload) = capability.max_payload() {
        details.push(format!("payload up to {payload}"));
    }
    if let (Some(link), Some(status)) = (capability.link, capability.link_status(config)?) {
        // CAST: four bits each.
        #[expect(clippy::cast_possible_truncation, reason = "four bits each")]
        let (most, now) = (link.max_speed_bits() as u8, status.speed_bits() as u8);
        details.push(format!(
            "link {} x{} of {} x{}",
            LinkSpeed(now),
            status.width(),
            LinkSpeed(most),
            link.max_width()
        ));
    }
    let status = capability.device_status(config)?;
    let errors: Vec<&str> = [
        (status.correctable_error(), "correctable error"),
        (status.non_fatal_error(), "non-fatal error"),
        (status.fatal_error(), "fatal error"),
        (status.unsupported_request(), "unsupported request"),
        (status.transactions_pending(), "transactions pending"),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .map(|(_, name)| name)
    .collect();
    if !errors.is_empty() {
        details.push(format!("reports: {}", errors.join(", ")));
    }
    Ok(details)
}

fn enabled(on: bool) -> &'static str {
    if on { "enabled" } else { "disabled" }
}
