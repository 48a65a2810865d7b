//! Configuration space.

use anyhow::{Context, Result, ensure};
use vdk_hal::config::{
    self, CapabilityId, ConfigError, Express, Msi, Msix, PowerManagement, extended_capabilities,
};

use super::{Target, ensure_equal, ensure_error};

pub(super) fn widths(target: &Target) -> Result<()> {
    let function = target.open()?;
    let config = function.config();
    ensure!(matches!(config.size(), 256 | 4096), "{} bytes of configuration space", config.size());
    for offset in (0..0x40).step_by(4) {
        let word = config.read32(offset)?;
        let halves = [config.read16(offset)?, config.read16(offset + 2)?];
        ensure_equal("two halves", u32::from(halves[1]) << 16 | u32::from(halves[0]), word)?;
        let mut bytes = [0; 4];
        for (index, byte) in (0..).zip(&mut bytes) {
            *byte = config.read8(offset + index)?;
        }
        ensure_equal("four bytes", u32::from_le_bytes(bytes), word)?;
    }
    Ok(())
}

pub(super) fn refusals(target: &Target) -> Result<()> {
    let function = target.open()?;
    let config = function.config();
    for offset in [1, 2, 3, 0x3d] {
        ensure_error!(config.read32(offset), ConfigError::Misaligned { .. });
    }
    ensure_error!(config.read16(5), ConfigError::Misaligned { .. });
    ensure_error!(config.write32(6, 0), ConfigError::Misaligned { .. });
    ensure_error!(config.read8(config.size()), ConfigError::OutOfBounds { .. });
    ensure_error!(config.read32(config.size() - 2), ConfigError::OutOfBounds { .. });
    ensure_error!(config.write8(u16::MAX, 0), ConfigError::OutOfBounds { .. });
    Ok(())
}

pub(super) fn command(target: &Target) -> Result<()> {
    let function = target.open()?;
    let config = function.config();
    let status = config::read_status(config)?;
    for on in [true, false, true, false] {
        config::update_command(config, |command| command.set_memory_space(on))?;
        ensure_equal("memory space", config::read_command(config)?.memory_space(), on)?;
        ensure_equal("status", config::read_status(config)?, status)?;
    }
    Ok(())
}

pub(super) fn capabilities(target: &Target) -> Result<()> {
    let function = target.open()?;
    let config = function.config();
    let listed = config::read_status(config)?.capabilities_list();
    let mut count = 0;
    for item in config::capabilities(config) {
        let capability = item.context("the list of capabilities")?;
        count += 1;
        match capability.id {
            CapabilityId::POWER_MANAGEMENT => drop(PowerManagement::read(config, capability.offset)?),
            CapabilityId::MSI => drop(Msi::read(config, capability.offset)?),
            CapabilityId::MSIX => msix(&Msix::read(config, capability.offset)?, &*function)?,
            CapabilityId::PCI_EXPRESS => drop(Express::read(config, capability.offset)?),
            _ => {}
        }
    }
    ensure_equal("Status says that there is a list", listed, count > 0)?;
    for item in extended_capabilities(config) {
        item.context("the list of extended capabilities")?;
    }
    Ok(())
}

fn msix(msix: &Msix, function: &dyn vdk_hal::function::PciFunction) -> Result<()> {
    for place in [msix.table, msix.pending] {
        let bar = function.bar_info(place.bar).with_context(|| format!("{} is not there", place.bar))?;
        let end = place.offset.checked_add(place.length.as_u64());
        ensure!(end.is_some_and(|end| end <= bar.size.as_u64()), "{place:?} is not inside {}", place.bar);
    }
    Ok(())
}
