//! A scripted function: it keeps registers, refuses what it is told to, and writes down what
//! is done to it, in order.

use std::sync::{Arc, Mutex, MutexGuard};

use vdk_driver::hal::address::{BarIndex, Bdf, ByteLength, Iova, IovaRange};
use vdk_driver::hal::bar::{
    Bar, BarAccess, BarError, BarInfo, BarKind, BarPermissions, Liveness, LivenessState,
};
use vdk_driver::hal::config::{ConfigError, ConfigSpace};
use vdk_driver::hal::dma::{DmaGeometry, DmaMapper, MapError, Permissions, UnmapError};
use vdk_driver::hal::event::DeviceEvents;
use vdk_driver::hal::function::{OpenError, PciFunction, PciIdentity, PciNode};
use vdk_driver::hal::interrupt::{EventFd, InterruptError, InterruptKind, Interrupts};
use vdk_driver::hal::memory::SharedMemory;
use vdk_driver::hal::mmio::Width;
use vdk_driver::hal::reset::{ResetError, ResetKind};

pub(crate) const MEMORY_SPACE: u16 = 1 << 1;
pub(crate) const BUS_MASTER: u16 = 1 << 2;

/// What the fake does out of the ordinary.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Bus mastering is on when it is opened.
    pub(crate) bus_master_at_open: bool,
    /// Bus mastering cannot be turned off.
    pub(crate) bus_master_stuck: bool,
    /// What `open` answers instead.
    pub(crate) open_error: Option<OpenError>,
    /// What `reset` answers instead.
    pub(crate) reset_fails: bool,
    /// `reset` never gets an answer.
    pub(crate) reset_times_out: bool,
}

/// The registers, and what was done.
pub(crate) struct Hardware {
    pub(crate) script: Script,
    pub(crate) opened: bool,
    pub(crate) command: u16,
    pub(crate) enabled: Option<(InterruptKind, Vec<Option<EventFd>>)>,
    pub(crate) masked: bool,
    pub(crate) log: Vec<String>,
}

pub(crate) struct FakeNode {
    name: String,
    address: Bdf,
    identity: PciIdentity,
    events: DeviceEvents,
    hardware: Arc<Mutex<Hardware>>,
}

pub(crate) struct FakeFunction {
    name: String,
    address: Bdf,
    events: DeviceEvents,
    liveness: Arc<Liveness>,
    hardware: Arc<Mutex<Hardware>>,
}

pub(crate) const EDU: PciIdentity = PciIdentity {
    vendor: 0x1234,
    device: 0x11e8,
    revision: 0x10,
    class: 0x00ff00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

impl FakeNode {
    pub(crate) fn new(name: &str, script: Script) -> Arc<Self> {
        let hardware =
            Hardware { script, opened: false, command: 0, enabled: None, masked: false, log: Vec::new() };
        Arc::new(Self {
            name: name.to_owned(),
            address: Bdf::new(0, 1, 2, 0).unwrap(),
            identity: EDU,
            events: DeviceEvents::new().unwrap(),
            hardware: Arc::new(Mutex::new(hardware)),
        })
    }

    pub(crate) fn hardware(&self) -> MutexGuard<'_, Hardware> {
        self.hardware.lock().unwrap()
    }

    pub(crate) fn events(&self) -> &DeviceEvents {
        &self.events
    }

    pub(crate) fn command(&self) -> u16 {
        self.hardware().command
    }

    pub(crate) fn bus_master(&self) -> bool {
        self.hardware().command & BUS_MASTER != 0
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.hardware().log.clone()
    }

    /// Fires a vector; a line that is masked stays pending in real hardware, here it is lost.
    pub(crate) fn fire(&self, vector: usize) {
        let mut hardware = self.hardware();
        let Some((kind, events)) = hardware.enabled.clone() else { return };
        if kind == InterruptKind::Intx && std::mem::replace(&mut hardware.masked, true) {
            return;
        }
        if let Some(Some(event)) = events.get(vector) {
            event.signal(1);
        }
    }

    /// A note of the driver in the log of the hardware.
    pub(crate) fn noter(&self) -> impl Fn(&str) + Send + Sync + Clone + use<> {
        let hardware = Arc::clone(&self.hardware);
        move |what| hardware.lock().unwrap().log.push(what.to_owned())
    }

    pub(crate) fn as_node(self: &Arc<Self>) -> Arc<dyn PciNode> {
        Arc::clone(self) as Arc<dyn PciNode>
    }
}

impl PciNode for FakeNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Bdf {
        self.address
    }

    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        Ok(self.identity)
    }

    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        let mut hardware = self.hardware();
        if let Some(error) = &hardware.script.open_error {
            return Err(error.clone());
        }
        if hardware.opened {
            let (function, holder) = (self.name.clone(), "somebody".to_owned());
            return Err(OpenError::Busy { function, holder });
        }
        hardware.opened = true;
        hardware.log.push("open".to_owned());
        if hardware.script.bus_master_at_open {
            hardware.command |= BUS_MASTER;
        }
        Ok(Arc::new(FakeFunction {
            name: self.name.clone(),
            address: self.address,
            events: self.events.clone(),
            liveness: Liveness::new(),
            hardware: Arc::clone(&self.hardware),
        }))
    }
}

impl FakeFunction {
    fn hardware(&self) -> MutexGuard<'_, Hardware> {
        self.hardware.lock().unwrap()
    }

    fn open_hardware(&self) -> Result<MutexGuard<'_, Hardware>, ConfigError> {
        match self.liveness.state() {
            LivenessState::Live | LivenessState::Asleep => Ok(self.hardware()),
            LivenessState::Closed => Err(ConfigError::NotOpen),
            LivenessState::Gone => Err(ConfigError::DeviceGone),
        }
    }
}

impl PciFunction for FakeFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Bdf {
        self.address
    }

    fn config(&self) -> &dyn ConfigSpace {
        self
    }

    fn bar_info(&self, index: BarIndex) -> Option<BarInfo> {
        let size = ByteLength::SIZE_4K;
        let (kind, prefetchable, address) = (BarKind::Memory32, false, 0xfe00_0000);
        (index.as_u8() == 0).then_some(BarInfo { index, kind, prefetchable, size, address })
    }

    fn bar(&self, index: BarIndex) -> Result<Bar, BarError> {
        let absent = BarError::Absent { function: self.name.clone(), bar: index };
        let info = self.bar_info(index).ok_or(absent)?;
        let access: Arc<dyn BarAccess> = Arc::new(EchoBar);
        Ok(Bar::new(info, BarPermissions::READ_WRITE, Vec::new(), Some(access), Arc::clone(&self.liveness)))
    }

    fn rom(&self) -> Result<Option<Vec<u8>>, BarError> {
        Ok(None)
    }

    fn interrupts(&self) -> &dyn Interrupts {
        self
    }

    fn dma(&self) -> Arc<dyn DmaMapper> {
        Arc::new(NoteMapper { hardware: Arc::clone(&self.hardware) })
    }

    fn events(&self) -> &DeviceEvents {
        &self.events
    }

    fn reset_kinds(&self) -> Vec<ResetKind> {
        vec![ResetKind::FunctionLevel]
    }

    fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        let mut hardware = self.hardware();
        if hardware.script.reset_fails || kind != ResetKind::FunctionLevel {
            // What a backend may have turned off before it was refused.
            hardware.enabled = None;
            return Err(ResetError::NotSupported { function: self.name.clone(), kind });
        }
        hardware.command = 0;
        hardware.enabled = None;
        hardware.log.push("reset".to_owned());
        if hardware.script.reset_times_out {
            return Err(ResetError::TimedOut { function: self.name.clone(), kind, milliseconds: 1000 });
        }
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        let mut hardware = self.open_hardware()?;
        if on {
            hardware.command |= BUS_MASTER;
        } else if !hardware.script.bus_master_stuck {
            hardware.command &= !BUS_MASTER;
        }
        hardware.log.push(format!("bus master {}", if on { "on" } else { "off" }));
        Ok(())
    }

    fn close(&self) {
        if self.liveness.state() == LivenessState::Live {
            self.liveness.close();
            let mut hardware = self.hardware();
            hardware.opened = false;
            hardware.log.push("close".to_owned());
        }
    }
}

impl Drop for FakeFunction {
    fn drop(&mut self) {
        self.close();
    }
}

impl ConfigSpace for FakeFunction {
    fn size(&self) -> u16 {
        256
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        let command = self.open_hardware()?.command;
        Ok(match (offset, width) {
            (0x00, Width::U16) => u32::from(EDU.vendor),
            (0x04, _) => u32::from(command),
            _ => 0,
        })
    }

    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError> {
        let mut hardware = self.open_hardware()?;
        match (offset, width) {
            (0x04, Width::U8) => hardware.command = (hardware.command & 0xff00) | (value & 0xff) as u16,
            (0x04, _) => hardware.command = (value & 0xffff) as u16,
            _ => {}
        }
        let command = hardware.command;
        hardware.log.push(format!("command {command:#06x}"));
        Ok(())
    }
}

impl Interrupts for FakeFunction {
    fn vector_count(&self, kind: InterruptKind) -> u16 {
        match kind {
            InterruptKind::Intx => 1,
            InterruptKind::Msi => 8,
            InterruptKind::Msix => 5,
        }
    }

    fn enabled(&self) -> Option<InterruptKind> {
        self.hardware().enabled.as_ref().map(|(kind, _)| *kind)
    }

    fn can_attach_later(&self, _kind: InterruptKind) -> bool {
        false
    }

    fn enable(&self, kind: InterruptKind, events: &[Option<EventFd>]) -> Result<(), InterruptError> {
        if self.liveness.state() != LivenessState::Live {
            return Err(InterruptError::NotOpen);
        }
        let mut hardware = self.hardware();
        if let Some((enabled, _)) = &hardware.enabled {
            return Err(InterruptError::AlreadyEnabled { kind, enabled: *enabled });
        }
        hardware.enabled = Some((kind, events.to_vec()));
        hardware.log.push(format!("enable {} {kind}", events.len()));
        Ok(())
    }

    fn attach(&self, kind: InterruptKind, vector: u16, _event: &EventFd) -> Result<(), InterruptError> {
        Err(InterruptError::CannotGrow { kind, vector, enabled: 1 })
    }

    fn detach(&self, _kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        Ok(())
    }

    fn disable_all(&self, kind: InterruptKind) -> Result<(), InterruptError> {
        let mut hardware = self.hardware();
        hardware.enabled = None;
        hardware.log.push(format!("disable {kind}"));
        Ok(())
    }

    fn mask(&self, kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        Err(InterruptError::NotMaskable { kind })
    }

    fn unmask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        if self.liveness.state() != LivenessState::Live {
            return Err(InterruptError::NotOpen);
        }
        let mut hardware = self.hardware();
        hardware.masked = false;
        hardware.log.push(format!("unmask {kind} {vector}"));
        Ok(())
    }

    fn self_test(&self, kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        Err(InterruptError::NotEnabled { kind })
    }
}

/// Every register reads as its offset.
struct EchoBar;

impl BarAccess for EchoBar {
    fn read(&self, offset: u64, _width: Width) -> Result<u64, BarError> {
        Ok(offset)
    }

    fn write(&self, _offset: u64, _width: Width, _value: u64) -> Result<(), BarError> {
        Ok(())
    }
}

/// An address space that only writes down what is mapped.
struct NoteMapper {
    hardware: Arc<Mutex<Hardware>>,
}

impl DmaMapper for NoteMapper {
    fn name(&self) -> String {
        "fake IOMMU".to_owned()
    }

    fn geometry(&self) -> DmaGeometry {
        let whole = IovaRange::from_bounds(Iova::new(0x1000), Iova::new(0xffff_ffff)).unwrap();
        DmaGeometry { ranges: vec![whole], page_sizes: 4096, mappings_available: None }
    }

    fn map(&self, _iova: Iova, memory: &SharedMemory, _permissions: Permissions) -> Result<(), MapError> {
        self.hardware.lock().unwrap().log.push(format!("map {}", memory.length()));
        Ok(())
    }

    fn unmap(&self, range: IovaRange) -> Result<ByteLength, UnmapError> {
        self.hardware.lock().unwrap().log.push(format!("unmap {}", range.length()));
        Ok(range.length())
    }
}
