//! An open function: everything that it holds, and the order in which it is let go.

use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use vfio_bindings::bindings::vfio as abi;

use super::cdev;
use super::choice::ChosenInterface;
use super::claim::Claim;
use super::config::VfioConfig;
use super::device::{Device, Unreached};
use super::events::{Watched, Watcher};
use super::feature::{self, Feature};
use super::group::Group;
use super::irq::VfioInterrupts;
use super::kernel::{Call, KernelFile};
use super::message::Message;
use super::options::VfioOptions;
use super::refusal::Refusal;
use super::region::{RegionTable, bar_infos, map_areas};
use super::space::Space;
use crate::address::{BarIndex, Bdf};
use crate::bar::{BarInfo, MappedArea};
use crate::config::{ConfigError, Msix, register, require_present, update_command};
use crate::event::DeviceEvents;

/// An open function. Every handle of it is a share of this.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) address: Bdf,
    pub(super) interface: ChosenInterface,
    /// Where the functions of this machine are listed.
    pub(super) root: PathBuf,
    pub(super) device: Arc<Device>,
    pub(super) config: VfioConfig,
    pub(super) regions: RegionTable,
    pub(super) bars: Vec<BarInfo>,
    msix: Option<Msix>,
    pub(super) interrupts: VfioInterrupts,
    pub(super) events: DeviceEvents,
    pub(super) space: Arc<Space>,
    /// The kernel can reset the function alone.
    pub(super) can_reset: bool,
    has_bus_master_feature: bool,
    /// Bus mastering was on in this session.
    mastered: AtomicBool,
    mapped: Mutex<BTreeMap<BarIndex, Vec<MappedArea>>>,
    held: Mutex<Option<Held>>,
    /// Locked by who closes.
    closing: Mutex<()>,
}

/// What is let go at the end.
struct Held {
    watcher: Option<Watcher>,
    attachment: Attachment,
    claim: Claim,
}

/// How the device is attached to its address space.
pub(super) enum Attachment {
    Group { _group: Arc<Group> },
    Iommufd,
}

/// What a session is made of.
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) address: Bdf,
    pub(super) interface: ChosenInterface,
    pub(super) root: PathBuf,
    pub(super) file: Arc<dyn KernelFile>,
    pub(super) attachment: Attachment,
    pub(super) space: Arc<Space>,
    pub(super) claim: Claim,
}

impl Session {
    /// Takes over a device that was just opened. When that fails everything is let go.
    pub(super) fn start(opened: Opened, options: &VfioOptions) -> Result<Arc<Self>, Refusal> {
        let Opened { name, address, interface, root, file, attachment, space, claim } = opened;
        let device = Arc::new(Device::new(file));
        let ready = Parts::read(&device).and_then(|parts| {
            let events = DeviceEvents::new()
                .map_err(|error| Refusal::new(format!("no event file: {error}"), "raise `ulimit -n`"))?;
            space.attached().map_err(|error| Refusal::call("the addresses that the IOMMU accepts", error))?;
            Ok((parts, events))
        });
        let (parts, events) = match ready {
            Ok(ready) => ready,
            Err(refusal) => {
                device.liveness().close();
                release(&device, attachment);
                drop(claim);
                return Err(refusal);
            }
        };
        let held = Held { watcher: None, attachment, claim };
        let session = Arc::new(Self {
            name,
            address,
            interface,
            root,
            config: parts.config,
            regions: parts.regions,
            bars: parts.bars,
            msix: parts.msix,
            interrupts: parts.interrupts,
            events,
            space,
            can_reset: parts.can_reset,
            has_bus_master_feature: Feature::BusMaster.is_there(&device),
            mastered: AtomicBool::new(false),
            mapped: Mutex::default(),
            held: Mutex::new(Some(held)),
            closing: Mutex::default(),
            device,
        });
        session.quiet().and_then(|()| session.watch(options)).inspect_err(|_| session.close())?;
        Ok(session)
    }

    /// Whoever had the device before may have left bus mastering on.
    fn quiet(&self) -> Result<(), Refusal> {
        let refused = |error: ConfigError| match error {
            ConfigError::DeviceGone => Refusal::gone(),
            error => Refusal::new(
                format!("its configuration space does not answer: {error}"),
                "if it is in D3cold, echo on > power/control in its folder of sysfs",
            ),
        };
        require_present(&self.config).map_err(refused)?;
        self.set_bus_master(false).map_err(refused)?;
        let command = crate::config::read_command(&self.config).map_err(refused)?;
        self.device.set_decoding(command.memory_space());
        Ok(())
    }

    fn watch(self: &Arc<Self>, options: &VfioOptions) -> Result<(), Refusal> {
        let session = Arc::downgrade(self);
        let watcher = Watcher::start(Watched {
            name: self.name.clone(),
            device: Arc::clone(&self.device),
            config: Box::new(self.config.clone()),
            events: self.events.clone(),
            release_limit: options.release_limit,
            close: Box::new(move || {
                if let Some(session) = session.upgrade() {
                    session.close_overdue();
                }
            }),
        });
        let watcher = watcher.map_err(|error| {
            Refusal::new(format!("no thread for its events: {error}"), "end threads or raise `ulimit -u`")
        })?;
        if let Some(held) = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            held.watcher = Some(watcher);
        }
        Ok(())
    }

    /// The mapped parts of a BAR, mapped on the first call.
    pub(super) fn areas(&self, info: &BarInfo) -> Result<Vec<MappedArea>, Unreached> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            return Err(Unreached::NotOpen);
        }
        // With `held` locked, so that nothing is mapped behind the back of `close`.
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(areas) = mapped.get(&info.index) {
            return Ok(areas.clone());
        }
        let Some(region) = self.regions.bar(info.index) else { return Ok(Vec::new()) };
        let areas = map_areas(&self.device, info, region, self.msix.as_ref())?;
        mapped.insert(info.index, areas.clone());
        Ok(areas)
    }

    pub(super) fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        if on {
            // ORDERING: Relaxed; `close` looks at it after it has ended all accesses.
            self.mastered.store(true, Ordering::Relaxed);
        }
        self.master(&self.config, on)
    }

    fn master(&self, config: &VfioConfig, on: bool) -> Result<(), ConfigError> {
        if self.has_bus_master_feature {
            return feature::set_bus_master(&self.device, on).map_err(|error| match error {
                Unreached::NotOpen => ConfigError::NotOpen,
                Unreached::Gone => ConfigError::DeviceGone,
                Unreached::Failed(_) => {
                    ConfigError::System { offset: register::COMMAND, error: error.kind() }
                }
            });
        }
        update_command(config, |command| command.set_bus_master(on)).map(|_| ())
    }

    /// Lets everything go: events, interrupts, bus mastering, the state of the device, its
    /// mappings, its BARs, its file, its group. Closing twice is harmless. When it returns the
    /// function can be opened again, whoever closed it.
    pub(super) fn close(&self) {
        let _closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        self.let_go();
    }

    /// The same for the watcher, which must not wait for one who closes: he waits for its thread.
    pub(super) fn close_overdue(&self) {
        match self.closing.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            Ok(_) | Err(TryLockError::Poisoned(_)) => self.let_go(),
        }
    }

    fn let_go(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Held { watcher, attachment, claim }) = held else { return };
        self.device.liveness().close();
        if let Some(watcher) = watcher {
            watcher.stop(&self.device);
        }
        self.interrupts.disable_enabled();
        let closing = self.config.for_closing();
        match self.master(&closing, false) {
            Ok(()) | Err(ConfigError::DeviceGone | ConfigError::NotOpen) => {}
            Err(error) => log::warn!("{}: bus mastering does not go off: {error}", self.name),
        }
        // ORDERING: Relaxed; the lock of `held` orders it after the session's own use.
        if self.can_reset && self.mastered.load(Ordering::Relaxed) {
            // A function that ignores the bit is stopped by this. It is closed all the same.
            if let Err(Unreached::Failed(error)) =
                self.device.reach_anyhow(|file| file.command(Call::Reset, 0))
            {
                log::debug!("{}: no reset on closing: {error}", self.name);
            }
        }
        self.space.leaving();
        self.device.forget_areas();
        for area in core::mem::take(&mut *self.mapped.lock().unwrap_or_else(PoisonError::into_inner))
            .values()
            .flatten()
        {
            // A handle may still be held; the file of the device must not be, by it.
            if let Err(error) = area.memory.revoke() {
                log::error!("{}: a BAR stays mapped: {error}", self.name);
            }
        }
        release(&self.device, attachment);
        self.space.refresh();
        drop(claim);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

/// Closes the file, then leaves the address space.
fn release(device: &Device, attachment: Attachment) {
    let file = device.shut();
    if let (Some(file), Attachment::Iommufd) = (&file, &attachment)
        && let Err(error) = cdev::detach(&**file)
    {
        log::debug!("the device does not detach: {error}");
    }
    drop(file);
    // The group goes with its last function.
    drop(attachment);
}

/// What the kernel says about a device.
struct Parts {
    can_reset: bool,
    config: VfioConfig,
    regions: RegionTable,
    bars: Vec<BarInfo>,
    msix: Option<Msix>,
    interrupts: VfioInterrupts,
}

impl Parts {
    fn read(device: &Arc<Device>) -> Result<Self, Refusal> {
        let refused = |what: &'static str| {
            move |error: Unreached| match error {
                Unreached::Failed(error) => Refusal::call(what, error),
                Unreached::Gone | Unreached::NotOpen => Refusal::gone(),
            }
        };
        let mut info = Message::new(size_of::<abi::vfio_device_info>());
        device.exchange(Call::DeviceInfo, &mut info).map_err(refused("the description of the device"))?;
        let flags = info.word(offset_of!(abi::vfio_device_info, flags)).unwrap_or(0);
        if flags & abi::VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(Refusal::new("the kernel says that it is no PCI device", "choose another one"));
        }
        let count = info.word(offset_of!(abi::vfio_device_info, num_regions)).unwrap_or(0);
        let regions = RegionTable::read(device, count).map_err(refused("the regions of the device"))?;
        let region = regions
            .region(abi::VFIO_PCI_CONFIG_REGION_INDEX)
            .filter(|region| region.readable && region.writable)
            .ok_or_else(|| {
                Refusal::new("the kernel gives no configuration space of it", "use another kernel")
            })?;
        let config = VfioConfig::new(Arc::clone(device), region.file_offset, region.size);
        // Without it the table cannot be told from the rest of its BAR; the kernel can.
        let msix = Msix::find(&config).unwrap_or_else(|error| {
            log::warn!("MSI-X cannot be read: {error}");
            None
        });
        let bars = bar_infos(&config, &regions);
        let interrupts = VfioInterrupts::read(device).map_err(refused("the interrupts of the device"))?;
        Ok(Self {
            can_reset: flags & abi::VFIO_DEVICE_FLAGS_RESET != 0,
            config,
            regions,
            bars,
            msix,
            interrupts,
        })
    }
}
