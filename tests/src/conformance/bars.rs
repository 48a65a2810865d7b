//! Base address registers.

use anyhow::{Context, Result, ensure};
use vdk_hal::address::BarIndex;
use vdk_hal::bar::{BarError, BarInfo, BarKind};
use vdk_hal::config;
use vdk_hal::function::PciFunction;

use super::{Target, ensure_error};

pub(super) fn sizes(target: &Target) -> Result<()> {
    let function = target.open()?;
    let mut skip = None;
    for index in BarIndex::all() {
        let info = function.bar_info(index);
        if skip == Some(index) {
            ensure!(info.is_none(), "{index} is the upper half of another and has {info:?}");
            continue;
        }
        let Some(info) = info else { continue };
        ensure!(info.index == index, "{index} says it is {}", info.index);
        ensure!(info.size.as_u64().is_power_of_two(), "{index} has {}", info.size);
        ensure!(
            info.size.as_u64() >= if info.kind == BarKind::Io { 4 } else { 16 },
            "{index} has {}",
            info.size
        );
        if info.kind == BarKind::Memory64 {
            skip = Some(BarIndex::new(index.as_u8() + 1).context("a 64-bit BAR in the last register")?);
        }
    }
    Ok(())
}

pub(super) fn absent(target: &Target) -> Result<()> {
    let function = target.open()?;
    for index in BarIndex::all().filter(|index| function.bar_info(*index).is_none()) {
        ensure_error!(function.bar(index), BarError::Absent { .. });
    }
    Ok(())
}

pub(super) fn refusals(target: &Target) -> Result<()> {
    let function = target.open()?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    for info in present(&*function) {
        let bar = function.bar(info.index)?;
        let size = info.size.as_u64();
        for offset in [size, size - 2, size.wrapping_mul(2), u64::MAX, u64::MAX - 3] {
            ensure_error!(bar.read::<u32>(offset), BarError::OutOfBounds { .. });
            ensure_error!(bar.write::<u32>(offset, 0), BarError::OutOfBounds { .. });
        }
        ensure_error!(bar.read::<u32>(2), BarError::Misaligned { .. });
        ensure_error!(bar.read::<u16>(1), BarError::Misaligned { .. });
        ensure_error!(bar.write::<u64>(4, 0), BarError::Misaligned { .. });
    }
    Ok(())
}

pub(super) fn areas(target: &Target) -> Result<()> {
    let function = target.open()?;
    for info in present(&*function) {
        let bar = function.bar(info.index)?;
        let mut end = 0;
        for area in bar.mapped_areas() {
            ensure!(area.offset >= end, "{} has areas that overlap at {:#x}", info.index, area.offset);
            end = area.offset.checked_add(area.memory.length().as_u64()).context("an area beyond 2^64")?;
        }
        ensure!(end <= info.size.as_u64(), "{} has an area that ends at {end:#x}", info.index);
    }
    Ok(())
}

fn present(function: &dyn PciFunction) -> impl Iterator<Item = BarInfo> + '_ {
    BarIndex::all().filter_map(|index| function.bar_info(index)).filter(|info| info.kind != BarKind::Io)
}
