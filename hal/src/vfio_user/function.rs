//! A function behind a socket that is open.

use core::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::connection::{Connection, Receiver, RequestError};
use super::interrupts::{VfioUserInterrupts, set};
use super::memory::VfioUserMapper;
use super::message::{Command as Message, InterruptIndex, InterruptSet, region};
use super::regions::{self, DeviceFacts, MessageBar, Region, state_after};
use crate::address::{BarIndex, Bdf, ByteLength};
use crate::bar::{
    Bar, BarError, BarInfo, BarPermissions, LivenessState, MappedArea, bar_registers, mappable_areas,
};
use crate::config::{ConfigError, ConfigSpace, Msix, update_command};
use crate::dma::DmaMapper;
use crate::event::DeviceEvents;
use crate::function::PciFunction;
use crate::interrupt::{EventFd, InterruptKind, Interrupts};
use crate::memory::{SharedMemory, page_size};
use crate::mmio::Width;
use crate::reset::{ResetError, ResetKind};

/// A function behind a vfio-user socket that is open.
///
/// What a closed or lost connection means for its parts is as for any function: handles
/// answer "not open" or "gone".
pub struct VfioUserFunction {
    name: String,
    connection: Arc<Connection>,
    receiver: Mutex<Option<Receiver>>,
    facts: DeviceFacts,
    config_size: u16,
    bars: [Option<BarInfo>; BarIndex::COUNT],
    /// What of each BAR is mapped, once somebody has asked for it.
    areas: Mutex<[Option<Vec<MappedArea>>; BarIndex::COUNT]>,
    interrupts: VfioUserInterrupts,
    dma: Arc<VfioUserMapper>,
}

impl VfioUserFunction {
    /// Finds out what the device is, and turns bus mastering off.
    pub(super) fn begin(
        name: String,
        connection: Arc<Connection>,
        receiver: Receiver,
    ) -> Result<Arc<Self>, String> {
        let facts = match DeviceFacts::ask(&connection) {
            Ok(facts) => facts,
            Err(error) => {
                connection.end(receiver);
                return Err(error.to_string());
            }
        };
        let config_size = facts.region(region::CONFIG).map_or(0, |config| config.info.size);
        let infos = [InterruptIndex::Intx, InterruptIndex::Msi, InterruptIndex::Msix];
        let mut function = Self {
            config_size: if config_size >= 4096 { 4096 } else { 256 },
            bars: [None; BarIndex::COUNT],
            areas: Mutex::default(),
            interrupts: VfioUserInterrupts::new(
                Arc::clone(&connection),
                infos.map(|index| facts.interrupt(index)),
            ),
            dma: VfioUserMapper::new(Arc::clone(&connection), name.clone()),
            receiver: Mutex::new(Some(receiver)),
            name,
            connection,
            facts,
        };
        if config_size < 256 {
            return Err(format!("configuration space has {config_size:#x} bytes only"));
        }
        function.prepare().map_err(|error| error.to_string())?;
        function.subscribe();
        Ok(Arc::new(function))
    }

    fn prepare(&mut self) -> Result<(), ConfigError> {
        let mut bars = [None; BarIndex::COUNT];
        for register in bar_registers(self)? {
            let register = register?;
            let number = u32::from(register.index.as_u8());
            let Some(Region { info, .. }) = self.facts.region(number) else { continue };
            if !info.size.is_power_of_two() {
                log::warn!("{}: {} has {:#x} bytes, ignoring it", self.name, register.index, info.size);
                continue;
            }
            // PANIC: an index is below `COUNT` by its invariant.
            bars[register.index.as_usize()] = Some(BarInfo {
                index: register.index,
                kind: register.kind,
                prefetchable: register.prefetchable,
                size: ByteLength::new(info.size),
                address: register.address,
            });
        }
        self.bars = bars;
        update_command(self, |command| command.set_bus_master(false)).map(drop)
    }

    /// Asks to be told of errors and of the wish to have the function back, where the server
    /// has that.
    fn subscribe(&self) {
        let flags = InterruptSet::DATA_EVENT_FILE | InterruptSet::ACTION_TRIGGER;
        let connection = &self.connection;
        let kinds: [(InterruptIndex, &EventFd); 2] =
            [(InterruptIndex::Error, &connection.error), (InterruptIndex::Request, &connection.request)];
        for (index, event) in kinds {
            if self.facts.interrupt(index).count > 0
                && let Err(error) = set(connection, index, flags, 0, 1, &[event.as_fd()])
            {
                log::debug!("{}: no {index:?} events: {error}", self.name);
            }
        }
    }

    /// Whether the session has not been closed.
    pub(super) fn is_open(&self) -> bool {
        self.connection.liveness.state() != LivenessState::Closed
            && self.receiver.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The parts of a BAR that can be mapped, mapped.
    fn mapped_areas(&self, bar: BarIndex) -> Result<Vec<MappedArea>, BarError> {
        let Some(Region { info, file: Some(file) }) = self.facts.region(u32::from(bar.as_u8())) else {
            return Ok(Vec::new());
        };
        let mut areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        // PANIC: an index is below `COUNT` by its invariant.
        let place = &mut areas[bar.as_usize()];
        if let Some(areas) = place {
            return Ok(areas.clone());
        }
        let msix = Msix::find(self).ok().flatten();
        let mut mapped = Vec::new();
        for area in mappable_areas(bar, info, msix.as_ref(), page_size()) {
            // A server may keep an area lower in its file than in the BAR.
            let offset = info.file_offset.wrapping_add(area.offset);
            let length = ByteLength::new(area.length);
            match SharedMemory::map_guarded(file, offset, length, &self.connection.liveness) {
                Ok(memory) => mapped.push(MappedArea { offset: area.offset, memory, kick: None }),
                // It is reached by messages then.
                Err(error) => log::warn!("{}: {bar} at {:#x}: {error}", self.name, area.offset),
            }
        }
        Ok(place.insert(mapped).clone())
    }

    fn config_error(&self, offset: u16, error: &RequestError) -> ConfigError {
        match state_after(&self.connection.liveness, error) {
            LivenessState::Closed => ConfigError::NotOpen,
            LivenessState::Gone => ConfigError::DeviceGone,
            LivenessState::Live | LivenessState::Asleep => {
                ConfigError::System { offset, error: error.kind() }
            }
        }
    }

    fn check_config(&self) -> Result<(), ConfigError> {
        match self.connection.liveness.state() {
            LivenessState::Live | LivenessState::Asleep => Ok(()),
            LivenessState::Closed => Err(ConfigError::NotOpen),
            LivenessState::Gone => Err(ConfigError::DeviceGone),
        }
    }

    /// Interrupts off, bus mastering off, reset where there is one.
    fn quiesce(&self) -> Result<(), RequestError> {
        for kind in [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix] {
            if self.interrupts.disable_all(kind).is_err() {
                return Err(RequestError::Gone);
            }
        }
        if self.set_bus_master(false).is_err() {
            return Err(RequestError::Gone);
        }
        if self.facts.resettable {
            self.connection.call(Message::DEVICE_RESET, &[], &[])?;
        }
        Ok(())
    }
}

impl PciFunction for VfioUserFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Bdf {
        Bdf::default()
    }

    fn config(&self) -> &dyn ConfigSpace {
        self
    }

    fn bar_info(&self, index: BarIndex) -> Option<BarInfo> {
        // PANIC: an index is below `COUNT` by its invariant.
        self.bars[index.as_usize()]
    }

    fn bar(&self, index: BarIndex) -> Result<Bar, BarError> {
        match self.connection.liveness.state() {
            LivenessState::Live | LivenessState::Asleep => {}
            LivenessState::Closed => return Err(BarError::NotOpen { bar: index }),
            LivenessState::Gone => return Err(BarError::DeviceGone { bar: index }),
        }
        let absent = || BarError::Absent { function: self.name.clone(), bar: index };
        let info = self.bar_info(index).ok_or_else(absent)?;
        let region = self.facts.region(u32::from(index.as_u8())).ok_or_else(absent)?;
        let permissions = BarPermissions { read: region.info.readable, write: region.info.writable };
        let areas = self.mapped_areas(index)?;
        let trapped = Arc::new(MessageBar { connection: Arc::clone(&self.connection), bar: index });
        Ok(Bar::new(info, permissions, areas, Some(trapped), Arc::clone(&self.connection.liveness)))
    }

    fn rom(&self) -> Result<Option<Vec<u8>>, BarError> {
        let Some(rom) = self.facts.region(region::ROM).filter(|rom| rom.info.readable) else {
            return Ok(None);
        };
        if rom.info.size > LARGEST_ROM {
            log::warn!("{}: a ROM of {:#x} bytes is ignored", self.name, rom.info.size);
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for offset in (0..rom.info.size).step_by(4) {
            let word = regions::read(&self.connection, region::ROM, offset, Width::U32)
                .map_err(|error| self.rom_error(offset, &error))?;
            let [a, b, c, d, ..] = word.to_le_bytes();
            bytes.extend_from_slice(&[a, b, c, d]);
        }
        Ok(Some(bytes))
    }

    fn interrupts(&self) -> &dyn Interrupts {
        &self.interrupts
    }

    fn dma(&self) -> Arc<dyn DmaMapper> {
        Arc::clone(&self.dma) as Arc<dyn DmaMapper>
    }

    fn events(&self) -> &DeviceEvents {
        &self.connection.events
    }

    fn reset_kinds(&self) -> Vec<ResetKind> {
        if self.facts.resettable { vec![ResetKind::FunctionLevel] } else { Vec::new() }
    }

    fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        let function = || self.name.clone();
        let system = |error| ResetError::System { function: function(), kind, error };
        if !self.reset_kinds().contains(&kind) {
            return Err(ResetError::NotSupported { function: function(), kind });
        }
        match self.connection.liveness.state() {
            LivenessState::Live | LivenessState::Asleep => {}
            LivenessState::Closed => return Err(system(std::io::ErrorKind::NotConnected)),
            LivenessState::Gone => return Err(ResetError::Gone { function: function() }),
        }
        match self.connection.call(Message::DEVICE_RESET, &[], &[]) {
            Ok(_) => {}
            Err(error) if state_after(&self.connection.liveness, &error) == LivenessState::Gone => {
                return Err(ResetError::Gone { function: function() });
            }
            Err(error) => return Err(system(error.kind())),
        }
        // The server keeps the event files, as VFIO does; here interrupts are off after a reset.
        for kind in [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix] {
            self.interrupts.disable_all(kind).map_err(|_| system(std::io::ErrorKind::Other))?;
        }
        update_command(self, |command| {
            command.set_memory_space(false);
            command.set_bus_master(false);
        })
        .map(drop)
        .map_err(|_| system(std::io::ErrorKind::Other))
    }

    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        update_command(self, |command| command.set_bus_master(on)).map(drop)
    }

    fn close(&self) {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receiver) = receiver else { return };
        if self.connection.liveness.state() == LivenessState::Live
            && let Err(error) = self.quiesce()
        {
            log::debug!("{}: not quiet at its end: {error}", self.name);
        }
        self.connection.liveness.close();
        self.connection.end(receiver);
    }
}

impl VfioUserFunction {
    fn rom_error(&self, offset: u64, error: &RequestError) -> BarError {
        let bar = NEAR_ROM;
        match state_after(&self.connection.liveness, error) {
            LivenessState::Closed => BarError::NotOpen { bar },
            LivenessState::Gone => BarError::DeviceGone { bar },
            LivenessState::Live | LivenessState::Asleep => {
                BarError::System { bar, offset, error: error.kind() }
            }
        }
    }
}

impl ConfigSpace for VfioUserFunction {
    fn size(&self) -> u16 {
        self.config_size
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        self.check_config()?;
        let value = regions::read(&self.connection, region::CONFIG, u64::from(offset), width)
            .map_err(|error| self.config_error(offset, &error))?;
        // CAST: 4 bytes at most were read.
        Ok(u32::try_from(value).unwrap_or(u32::MAX))
    }

    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError> {
        self.check_config()?;
        regions::write(&self.connection, region::CONFIG, u64::from(offset), width, u64::from(value), false)
            .map_err(|error| self.config_error(offset, &error))
    }
}

impl Drop for VfioUserFunction {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for VfioUserFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioUserFunction")
            .field("name", &self.name)
            .field("liveness", &self.connection.liveness.state())
            .finish_non_exhaustive()
    }
}

/// What an error of the ROM names, which has no number.
const NEAR_ROM: BarIndex = match BarIndex::new(0) {
    Some(bar) => bar,
    // PANIC: when it is compiled, if ever.
    None => panic!("there is no BAR 0"),
};

/// The largest ROM that is read.
const LARGEST_ROM: u64 = 16 << 20;
