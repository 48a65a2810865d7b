//! The regions of a device, and access to BARs through them.

use core::mem::offset_of;
use std::sync::Arc;

use rustix::io::Errno;
use vfio_bindings::bindings::vfio as abi;

use super::device::{Device, Unreached};
use super::kernel::Call;
use super::message::Message;
use crate::address::{BarIndex, ByteLength};
use crate::bar::{
    BarAccess, BarError, BarInfo, BarKind, LivenessState, MappedArea, Moment, RegionInfo, RegionInfoError,
    bar_registers, mappable_areas,
};
use crate::config::{ConfigSpace, Msix};
use crate::memory::{SharedMemory, page_size};
use crate::mmio::Width;

/// The regions by their number. One that does not exist is `None`, and moves no other.
pub(super) struct RegionTable {
    regions: Vec<Option<RegionInfo>>,
}

impl RegionTable {
    /// Asks for `count` regions, and for no more than a device can have.
    pub(super) fn read(device: &Device, count: u32) -> Result<Self, Unreached> {
        let mut regions = Vec::new();
        for index in 0..count.min(MOST_REGIONS) {
            regions.push(match read_region(device, index) {
                Ok(region) if region.size > 0 => Some(region),
                // The VGA region of what is no VGA device answers so, by design.
                Ok(_) | Err(Unreached::Failed(Errno::INVAL)) => None,
                Err(Unreached::Failed(error)) => {
                    log::warn!("region {index} cannot be described: {error}");
                    None
                }
                Err(error) => return Err(error),
            });
        }
        Ok(Self { regions })
    }

    pub(super) fn region(&self, index: u32) -> Option<&RegionInfo> {
        self.regions.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// The region of a BAR.
    pub(super) fn bar(&self, index: BarIndex) -> Option<&RegionInfo> {
        self.region(u32::from(index.as_u8()))
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = &RegionInfo> {
        self.regions.iter().flatten()
    }
}

fn read_region(device: &Device, index: u32) -> Result<RegionInfo, Unreached> {
    let mut length = RegionInfo::FIXED_LENGTH;
    for _ in 0..ATTEMPTS {
        let mut message = Message::new(length).with(offset_of!(abi::vfio_region_info, index), index);
        device.exchange(Call::RegionInfo, &mut message)?;
        match RegionInfo::parse(message.bytes()) {
            Ok(region) => return Ok(region),
            Err(RegionInfoError::TooShort { needed, .. }) if needed <= Message::LIMIT => length = needed,
            Err(error) => {
                log::warn!("region {index}: {error}");
                break;
            }
        }
    }
    Err(Unreached::Failed(Errno::PROTO))
}

/// What the BARs decode: their sizes are the kernel's, their kinds the function's.
pub(super) fn bar_infos(config: &dyn ConfigSpace, regions: &RegionTable) -> Vec<BarInfo> {
    let registers = match bar_registers(config) {
        Ok(registers) => registers,
        Err(error) => {
            log::warn!("the base address registers cannot be read: {error}");
            return Vec::new();
        }
    };
    let mut infos = Vec::new();
    for register in registers {
        match register {
            Ok(register) => infos.extend(regions.bar(register.index).map(|region| BarInfo {
                index: register.index,
                kind: register.kind,
                prefetchable: register.prefetchable,
                size: ByteLength::new(region.size),
                address: register.address,
            })),
            Err(error) => log::warn!("a base address register is left out: {error}"),
        }
    }
    infos
}

/// Maps what may be mapped of a BAR. What cannot be is trapped: slower, and right.
pub(super) fn map_areas(
    device: &Device,
    info: &BarInfo,
    region: &RegionInfo,
    msix: Option<&Msix>,
) -> Result<Vec<MappedArea>, Unreached> {
    // A mapping that could only be read would have to be made so, and no BAR is like that.
    if info.kind == BarKind::Io || !region.readable || !region.writable {
        return Ok(Vec::new());
    }
    let mut mapped = Vec::new();
    for area in mappable_areas(info.index, region, msix, page_size()) {
        let Some(offset) = region.file_offset.checked_add(area.offset) else { continue };
        let length = ByteLength::new(area.length);
        let memory =
            device.with_file(|file| SharedMemory::map_guarded(file, offset, length, device.liveness()))?;
        match memory {
            Ok(memory) => {
                device.add_area(memory.clone(), offset);
                mapped.push(MappedArea { offset: area.offset, memory, kick: None });
            }
            Err(error) => log::warn!("{} from {:#x} is trapped: {error}", info.index, area.offset),
        }
    }
    Ok(mapped)
}

/// The parts of a BAR that are not mapped.
///
/// Older kernels make two accesses of 32 bits of one of 64, Linux 6.12 makes
/// one. So that all of them give the device the same, an access of 64 bits is made as two
/// here, the low word first.
pub(super) struct TrappedBar {
    pub(super) device: Arc<Device>,
    pub(super) bar: BarIndex,
    pub(super) file_offset: u64,
}

impl BarAccess for TrappedBar {
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError> {
        if width == Width::U64 {
            let low = self.read(offset, Width::U32)?;
            return Ok(self.read(offset.saturating_add(4), Width::U32)? << 32 | low);
        }
        let mut raw = [0; 8];
        let field = &mut raw[..width.bytes()];
        let at = self.file_offset.saturating_add(offset);
        let before = self.device.liveness().moment();
        match self.device.reach(|file| file.read_at(at, field)) {
            Ok(count) if count == width.bytes() => Ok(u64::from_le_bytes(raw)),
            Ok(_) => Err(self.failed(before, offset, Unreached::Failed(Errno::IO))),
            Err(error) => Err(self.failed(before, offset, error)),
        }
    }

    fn write(&self, offset: u64, width: Width, value: u64) -> Result<(), BarError> {
        if width == Width::U64 {
            self.write(offset, Width::U32, value)?;
            return self.write(offset.saturating_add(4), Width::U32, value >> 32);
        }
        let raw = value.to_le_bytes();
        let field = &raw[..width.bytes()];
        let at = self.file_offset.saturating_add(offset);
        let before = self.device.liveness().moment();
        match self.device.reach(|file| file.write_at(at, field)) {
            Ok(count) if count == width.bytes() => Ok(()),
            Ok(_) => Err(self.failed(before, offset, Unreached::Failed(Errno::IO))),
            Err(error) => Err(self.failed(before, offset, error)),
        }
    }
}

impl TrappedBar {
    /// The error of an access that began at `before`.
    fn failed(&self, before: Moment, offset: u64, unreached: Unreached) -> BarError {
        let (bar, now) = (self.bar, self.device.liveness().moment());
        match unreached {
            Unreached::NotOpen => BarError::NotOpen { bar },
            Unreached::Gone => BarError::DeviceGone { bar },
            // The kernel answers so when memory space is off.
            Unreached::Failed(Errno::IO) if now.state() == LivenessState::Asleep || now != before => {
                BarError::Asleep { bar }
            }
            Unreached::Failed(_) => BarError::System { bar, offset, error: unreached.kind() },
        }
    }
}

/// The expansion ROM, read in pieces.
pub(super) fn read_rom(device: &Device, region: &RegionInfo) -> Result<Vec<u8>, Unreached> {
    let size = usize::try_from(region.size.min(MOST_ROM)).unwrap_or(0);
    let mut image = vec![0; size];
    let mut have = 0;
    while have < size {
        let end = size.min(have + ROM_PIECE);
        // PANIC: `have < end <= size`.
        let piece = &mut image[have..end];
        // CAST: below `MOST_ROM`.
        let at = region.file_offset.saturating_add(have as u64);
        match device.reach(|file| file.read_at(at, piece))? {
            0 => break,
            count => have += count,
        }
    }
    image.truncate(have);
    Ok(image)
}

/// PCI has 9; devices may add their own.
const MOST_REGIONS: u32 = 64;
/// How often a description may grow under us.
const ATTEMPTS: usize = 4;
/// The ROM register decodes 16 MiB at most.
const MOST_ROM: u64 = 16 << 20;
const ROM_PIECE: usize = 64 << 10;

#[cfg(test)]
mod tests;
