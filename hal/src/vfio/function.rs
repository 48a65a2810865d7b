//! A function of this machine that is open.

use core::fmt;
use std::sync::Arc;

use super::choice::ChosenInterface;
use super::device::Unreached;
use super::feature::{self, DeviceFeature, Feature};
use super::region::{TrappedBar, read_rom};
use super::session::Session;
use crate::address::{BarIndex, Bdf};
use crate::bar::{Bar, BarAccess, BarError, BarInfo, BarPermissions, RegionInfo};
use crate::config::{ConfigError, ConfigSpace, read_command, register};
use crate::dma::DmaMapper;
use crate::event::DeviceEvents;
use crate::function::PciFunction;
use crate::interrupt::{EventFd, Interrupts};
use crate::reset::{ResetError, ResetKind};

/// A function that is open through kernel VFIO. Dropping the last reference closes it.
///
/// A mapped BAR cannot be accessed while memory space is off or the function is in low
/// power: the kernel would answer as if the device were gone, so that such an access is
/// refused with [`BarError::Asleep`]. An access that another thread makes in the very
/// moment when it goes off is taken for a removal all the same.
pub struct VfioFunction {
    pub(super) session: Arc<Session>,
}

impl VfioFunction {
    /// The kernel interface it was opened through, and why that one.
    #[must_use]
    pub fn interface(&self) -> &ChosenInterface {
        &self.session.interface
    }

    /// Every region of the device that there is: BARs, ROM, configuration space, and those
    /// of its own.
    pub fn regions(&self) -> impl Iterator<Item = &RegionInfo> {
        self.session.regions.regions()
    }

    /// Which optional features of VFIO the kernel offers for the function. It is asked only;
    /// nothing changes.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NotOpen`], [`ConfigError::DeviceGone`].
    pub fn features(&self) -> Result<Vec<DeviceFeature>, ConfigError> {
        feature::offered(&self.session.device).map_err(config_error)
    }

    /// Lets the kernel put the function into the deepest sleep that there is. Its BARs
    /// cannot be accessed until the result is dropped; accesses to configuration space wake
    /// it for their duration. `wakeup` is signalled when it wakes by itself, after which it
    /// stays awake.
    ///
    /// Bus mastering is off in sleep, and some functions lose their state: see
    /// [`PowerManagement`](crate::config::PowerManagement).
    ///
    /// # Errors
    ///
    /// [`ConfigError::NotSupported`], also when it sleeps already; [`ConfigError::NotOpen`],
    /// [`ConfigError::DeviceGone`], [`ConfigError::System`].
    pub fn enter_low_power(&self, wakeup: Option<&EventFd>) -> Result<LowPower, ConfigError> {
        let device = &self.session.device;
        let feature = match wakeup {
            Some(_) => Feature::LowPowerEntryWithWakeup,
            None => Feature::LowPowerEntry,
        };
        if device.is_resting() || !feature.is_there(device) {
            device.reach(|_| Ok(())).map_err(config_error)?;
            return Err(ConfigError::NotSupported { what: "low power now" });
        }
        // Before the call: an access during it would look like a removal.
        device.set_resting(true);
        match feature::enter_low_power(device, wakeup) {
            Ok(()) => Ok(LowPower { session: Arc::clone(&self.session) }),
            Err(error) => {
                self.session.awake();
                Err(config_error(error))
            }
        }
    }
}

/// A function in low power. It wakes when this is dropped.
#[must_use = "the function wakes when this is dropped"]
pub struct LowPower {
    session: Arc<Session>,
}

impl Drop for LowPower {
    fn drop(&mut self) {
        if let Err(Unreached::Failed(error)) = feature::exit_low_power(&self.session.device) {
            log::warn!("{}: does not leave low power: {error}", self.session.name);
        }
        self.session.awake();
    }
}

impl fmt::Debug for LowPower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LowPower({})", self.session.name)
    }
}

impl Session {
    fn awake(&self) {
        self.device.set_resting(false);
        let decodes = read_command(&self.config).is_ok_and(|command| command.memory_space());
        self.device.set_decoding(decodes);
    }
}

impl PciFunction for VfioFunction {
    fn name(&self) -> &str {
        &self.session.name
    }

    fn address(&self) -> Bdf {
        self.session.address
    }

    fn config(&self) -> &dyn ConfigSpace {
        &self.session.config
    }

    fn bar_info(&self, index: BarIndex) -> Option<BarInfo> {
        self.session.bars.iter().find(|info| info.index == index).copied()
    }

    fn bar(&self, index: BarIndex) -> Result<Bar, BarError> {
        let session = &self.session;
        session.device.reach(|_| Ok(())).map_err(|error| bar_error(error, index))?;
        let absent = || BarError::Absent { function: session.name.clone(), bar: index };
        let info = self.bar_info(index).ok_or_else(absent)?;
        let region = session.regions.bar(index).ok_or_else(absent)?;
        let areas = session.areas(&info).map_err(|error| bar_error(error, index))?;
        let permissions = BarPermissions { read: region.readable, write: region.writable };
        let trapped: Arc<dyn BarAccess> = Arc::new(TrappedBar {
            device: Arc::clone(&session.device),
            bar: index,
            file_offset: region.file_offset,
        });
        Ok(Bar::new(info, permissions, areas, Some(trapped), Arc::clone(session.device.liveness())))
    }

    fn rom(&self) -> Result<Option<Vec<u8>>, BarError> {
        let rom = self.session.regions.region(vfio_bindings::bindings::vfio::VFIO_PCI_ROM_REGION_INDEX);
        // The ROM has no number of its own in errors; the first BAR stands for the device.
        let (Some(region), Some(bar)) = (rom.filter(|region| region.readable), BarIndex::new(0)) else {
            return Ok(None);
        };
        let image = read_rom(&self.session.device, region);
        let image = image.map_err(|error| bar_error(error, bar))?;
        Ok((!image.is_empty()).then_some(image))
    }

    fn interrupts(&self) -> &dyn Interrupts {
        &self.session.interrupts
    }

    fn dma(&self) -> Arc<dyn DmaMapper> {
        Arc::clone(&self.session.space) as Arc<dyn DmaMapper>
    }

    fn events(&self) -> &DeviceEvents {
        &self.session.events
    }

    fn reset_kinds(&self) -> Vec<ResetKind> {
        self.session.reset_kinds()
    }

    fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        self.session.reset(kind)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        self.session.set_bus_master(on)
    }

    fn close(&self) {
        self.session.close();
    }
}

impl Drop for VfioFunction {
    fn drop(&mut self) {
        // Others hold the session as well: handles of BARs do not, but a sleep does.
        self.session.close();
    }
}

impl fmt::Debug for VfioFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioFunction")
            .field("name", &self.session.name)
            .field("interface", &self.session.interface)
            .finish_non_exhaustive()
    }
}

fn bar_error(unreached: Unreached, bar: BarIndex) -> BarError {
    match unreached {
        Unreached::NotOpen => BarError::NotOpen { bar },
        Unreached::Gone => BarError::DeviceGone { bar },
        Unreached::Failed(_) => BarError::System { bar, offset: 0, error: unreached.kind() },
    }
}

fn config_error(unreached: Unreached) -> ConfigError {
    match unreached {
        Unreached::NotOpen => ConfigError::NotOpen,
        Unreached::Gone => ConfigError::DeviceGone,
        Unreached::Failed(_) => ConfigError::System { offset: register::COMMAND, error: unreached.kind() },
    }
}
