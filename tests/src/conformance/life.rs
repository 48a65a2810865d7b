//! Opening, closing and resetting.

use anyhow::{Result, ensure};
use vdk_hal::bar::BarError;
use vdk_hal::config::{self, ConfigError};
use vdk_hal::function::{OpenError, PciFunction};
use vdk_hal::interrupt::InterruptError;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::reset::{ResetError, ResetKind};

use super::{Target, ensure_equal, ensure_error, open_files};

pub(super) fn exclusive(target: &Target) -> Result<()> {
    let function = target.open()?;
    match target.node().open() {
        Err(OpenError::Busy { holder, .. }) => ensure!(!holder.is_empty(), "the holder is not named"),
        Err(error) => anyhow::bail!("the second open failed with {error:?}"),
        Ok(_) => anyhow::bail!("it was opened twice"),
    }
    drop(function);
    drop(target.open()?);
    Ok(())
}

pub(super) fn identity(target: &Target) -> Result<()> {
    let before = target.node().identity()?;
    let function = target.open()?;
    ensure_equal("identity", before, config::identity(function.config())?)?;
    ensure_equal("address", target.node().address(), function.address())?;
    ensure_equal("name", target.node().name(), function.name())?;
    ensure!(before.vendor != 0xffff && before.vendor != 0, "vendor {:04x} is nobody", before.vendor);
    Ok(())
}

pub(super) fn bus_master(target: &Target) -> Result<()> {
    for way in ["close", "drop"] {
        let function = target.open()?;
        ensure!(!masters_bus(&*function)?, "bus mastering is on after opening, before {way}");
        config::update_command(function.config(), |command| command.set_memory_space(true))?;
        function.set_bus_master(true)?;
        ensure!(masters_bus(&*function)?, "it did not go on");
        function.set_bus_master(false)?;
        ensure!(!masters_bus(&*function)?, "it did not go off");
        function.set_bus_master(true)?;
        if way == "close" {
            function.close();
        }
    }
    let function = target.open()?;
    let command = config::read_command(function.config())?;
    ensure!(!command.bus_master(), "bus mastering is on after it was dropped while on");
    Ok(())
}

pub(super) fn closed(target: &Target) -> Result<()> {
    let function = target.open()?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    let bars: Vec<_> = vdk_hal::address::BarIndex::all()
        .filter(|index| function.bar_info(*index).is_some())
        .map(|index| function.bar(index))
        .collect::<Result<_, _>>()?;
    function.close();
    ensure_error!(function.config().read32(0), ConfigError::NotOpen);
    ensure_error!(function.config().write16(4, 0), ConfigError::NotOpen);
    ensure_error!(function.set_bus_master(true), ConfigError::NotOpen);
    for bar in bars {
        ensure_error!(bar.read::<u32>(0), BarError::NotOpen { .. });
        ensure_error!(bar.write::<u32>(0, 0), BarError::NotOpen { .. });
    }
    for kind in [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix] {
        if function.interrupts().vector_count(kind) > 0 {
            ensure_error!(function.interrupts().enable(kind, &[None]), InterruptError::NotOpen);
        }
    }
    drop(target.open()?);
    Ok(())
}

pub(super) fn closed_twice(target: &Target) -> Result<()> {
    let function = target.open()?;
    function.close();
    function.close();
    let again = target.open()?;
    // The first handle is closed; dropping it must not close the second session.
    drop(function);
    again.config().read32(0)?;
    Ok(())
}

pub(super) fn reset(target: &Target) -> Result<()> {
    let function = target.open()?;
    let kinds = function.reset_kinds();
    for kind in [ResetKind::FunctionLevel, ResetKind::PowerManagement, ResetKind::Hot] {
        if !kinds.contains(&kind) {
            ensure_error!(function.reset(kind), ResetError::NotSupported { .. });
            continue;
        }
        config::update_command(function.config(), |command| command.set_memory_space(true))?;
        function.set_bus_master(true)?;
        function.reset(kind)?;
        let command = config::read_command(function.config())?;
        ensure!(!command.bus_master(), "bus mastering is on after {kind}");
        ensure!(!command.memory_space(), "memory space is on after {kind}");
        ensure_equal("enabled interrupts after a reset", function.interrupts().enabled(), None)?;
        ensure_equal("identity", target.node().identity()?, config::identity(function.config())?)?;
    }
    Ok(())
}

pub(super) fn files(target: &Target) -> Result<()> {
    drop(target.open()?);
    let before = open_files()?;
    // Where the kernel resets the function, opening and closing sleep for a tenth of a second.
    for _ in 0..25 {
        drop(target.open()?);
    }
    ensure_equal("open files", open_files()?, before)
}

pub(super) fn events(target: &Target) -> Result<()> {
    let function = target.open()?;
    ensure_equal("first event", function.events().next(), None)
}

fn masters_bus(function: &dyn PciFunction) -> Result<bool> {
    Ok(config::read_command(function.config())?.bus_master())
}
