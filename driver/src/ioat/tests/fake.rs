//! A fake I/OAT function for tests of what a well-behaved device never does. It executes
//! descriptors in the doorbell write itself, or step by step.

use std::sync::{Arc, Mutex, MutexGuard};

use vdk_descriptors::ioat::{
    self, ChannelErrors, ChannelState, ChannelStatus, IoatChannelRegisters, IoatControl, IoatDescriptor,
    IoatRegisters,
};
use vdk_hal::address::{BarIndex, Bdf, Iova, RequesterId};
use vdk_hal::bar::{Bar, BarAccess, BarError, BarInfo, BarKind, BarPermissions, Liveness};
use vdk_hal::config::{ConfigError, ConfigSpace};
use vdk_hal::dma::DmaMapper;
use vdk_hal::event::DeviceEvents;
use vdk_hal::function::{OpenError, PciFunction, PciIdentity, PciNode};
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind, Interrupts};
use vdk_hal::mmio::Width;
use vdk_hal::reset::{ResetError, ResetKind};
use vdk_iommu::soft::{BusMaster, BusMasterGate, SoftDomain, SoftIommu, SoftIommuOptions};
use zerocopy::FromBytes;

use crate::kit::Session;

/// What the fake does wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// The reset bit never clears.
    pub(super) reset_sticks: bool,
    /// Bus master enable never clears.
    pub(super) bus_master_sticks: bool,
    /// Suspension is ignored.
    pub(super) suspend_sticks: bool,
    /// Descriptors are executed by `step` only.
    pub(super) paused: bool,
    /// Completion words are not written.
    pub(super) silent: bool,
    /// Every register reads as all ones.
    pub(super) all_ones: bool,
    /// This is written instead of the next completion word.
    pub(super) next_word: Option<u64>,
    /// The function can be reset, which changes nothing in it.
    pub(super) resets: bool,
    /// The engine halts in front of the descriptor with this number, counted from the chain
    /// address.
    pub(super) halt_at: Option<(u16, ChannelErrors)>,
}

struct Model {
    faults: Faults,
    /// Runs in front of the next write to CHANCMD.
    on_command: Option<Box<dyn FnOnce() + Send>>,
    version: u8,
    channels: u8,
    xfercap: u8,
    capabilities: u32,
    control: u16,
    command: u8,
    dma_count: u16,
    executed: u16,
    status: ChannelStatus,
    chain: u64,
    next: u64,
    completion: u64,
    errors: u32,
    interrupt_control: u8,
    /// The lower halves of split registers, until the upper ones arrive.
    halves: [u32; 2],
    pci_command: u16,
    bus_master: BusMaster,
    vector: Option<EventFd>,
    /// The kind of interrupt that the function has.
    kind: Option<InterruptKind>,
    /// A line that fired, until it is unmasked.
    line_masked: bool,
    attention: u32,
}

/// The function and its node in one.
pub(super) struct FakeIoat {
    model: Arc<Mutex<Model>>,
    gate: Arc<BusMasterGate>,
    domain: Arc<SoftDomain>,
    pub(super) iommu: Arc<SoftIommu>,
    liveness: Arc<Liveness>,
    events: DeviceEvents,
}

impl FakeIoat {
    pub(super) fn new() -> Arc<Self> {
        let iommu = SoftIommu::new(SoftIommuOptions::default());
        let domain = iommu.domain();
        let gate = BusMasterGate::new();
        let model = Model {
            faults: Faults::default(),
            on_command: None,
            version: 0x32,
            channels: 1,
            xfercap: 20,
            capabilities: 0x40,
            control: 0,
            command: 0,
            dma_count: 0,
            executed: 0,
            status: ChannelStatus::default(),
            chain: 0,
            next: 0,
            completion: 0,
            errors: 0,
            interrupt_control: 0,
            halves: [0; 2],
            pci_command: 0,
            bus_master: domain.bus_master(RequesterId::new(0x0100), Arc::clone(&gate)),
            vector: None,
            kind: Some(InterruptKind::Msix),
            line_masked: false,
            attention: 0,
        };
        Arc::new(Self {
            model: Arc::new(Mutex::new(model)),
            gate,
            domain,
            iommu,
            liveness: Liveness::new(),
            events: DeviceEvents::new().unwrap(),
        })
    }

    pub(super) fn open(self: &Arc<Self>) -> Session {
        let node: Arc<dyn PciNode> = Arc::new(FakeNode(Arc::clone(self)));
        Session::open(&node, "test").unwrap()
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    pub(super) fn set_identity_registers(&self, version: u8, channels: u8, xfercap: u8) {
        let mut model = self.lock();
        (model.version, model.channels, model.xfercap) = (version, channels, xfercap);
    }

    pub(super) fn set_interrupt_kind(&self, kind: Option<InterruptKind>) {
        self.lock().kind = kind;
    }

    /// Executes one descriptor of those handed over.
    pub(super) fn step(&self) {
        self.lock().step();
    }

    /// Puts a word where the driver looks for completions.
    pub(super) fn write_completion(&self, word: u64) {
        let mut model = self.lock();
        let address = Iova::new(model.completion);
        model.bus_master.store_u64(address, word).unwrap();
    }

    /// Has `call` run in front of the next write to CHANCMD.
    pub(super) fn on_command(&self, call: impl FnOnce() + Send + 'static) {
        self.lock().on_command = Some(Box::new(call));
    }

    /// Stops the engine as if something had.
    pub(super) fn set_state(&self, state: ChannelState) {
        self.lock().status.set_state(state);
    }

    pub(super) fn remove(&self) {
        self.liveness.remove();
    }

    pub(super) fn is_bus_master(&self) -> bool {
        self.gate.is_open()
    }

    pub(super) fn chain(&self) -> u64 {
        self.lock().chain
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }
}

impl Model {
    fn execute(&mut self) {
        while !self.faults.paused && self.step() {}
    }

    fn step(&mut self) -> bool {
        let runs = matches!(self.status.state(), ChannelState::Active | ChannelState::Idle);
        if self.executed == self.dma_count || !runs {
            return false;
        }
        if let Some((at, errors)) = self.faults.halt_at
            && self.executed == at
        {
            self.halt(errors);
            return false;
        }
        let mut bytes = [0; 64];
        if self.bus_master.read(Iova::new(self.next), &mut bytes).is_err() {
            self.halt(ChannelErrors::DESCRIPTOR);
            return false;
        }
        let descriptor = IoatDescriptor::read_from_bytes(&bytes).unwrap();
        let (source, destination) = (Iova::new(descriptor.source), Iova::new(descriptor.destination));
        let length = u64::from(descriptor.size);
        let done = if descriptor.control.null() {
            Ok(())
        } else if descriptor.control.operation() == ioat::Operation::FILL {
            self.bus_master.fill(destination, length, descriptor.source)
        } else {
            self.bus_master.copy(destination, source, length)
        };
        if done.is_err() {
            self.halt(ChannelErrors::READ_DATA);
            return false;
        }
        self.executed = self.executed.wrapping_add(1);
        let state = if self.executed == self.dma_count { ChannelState::Idle } else { ChannelState::Active };
        self.status = ChannelStatus::new(Iova::new(self.next), state);
        self.next = descriptor.next;
        self.complete(descriptor.control);
        true
    }

    fn complete(&mut self, control: IoatControl) {
        if control.completion_write() {
            self.write_word();
        }
        if control.interrupt_enable() && self.control & 1 == 0 {
            self.interrupt();
        }
    }

    fn write_word(&mut self) {
        if self.faults.silent {
            return;
        }
        let word = self.faults.next_word.take().unwrap_or(self.status.0);
        // Without bus mastering nothing arrives, as on hardware.
        let _ = self.bus_master.store_u64(Iova::new(self.completion), word);
    }

    fn halt(&mut self, errors: ChannelErrors) {
        self.errors |= errors.0;
        self.status.set_state(ChannelState::Halted);
        self.write_word();
        if self.control & 0x10 != 0 {
            self.interrupt();
        }
    }

    fn interrupt(&mut self) {
        let Some(vector) = &self.vector else { return };
        if self.interrupt_control & 1 == 0 || self.line_masked {
            return;
        }
        self.control |= 1;
        self.attention |= 1;
        if self.interrupt_control & 8 == 0 {
            // One vector for all channels: the next only after INTRCTRL was written.
            self.interrupt_control &= !1;
        }
        self.line_masked = self.kind == Some(InterruptKind::Intx);
        vector.signal(1);
    }

    fn read_device(&mut self, offset: usize) -> u64 {
        match offset {
            o if o == IoatRegisters::ATTNSTATUS.offset() => core::mem::take(&mut self.attention).into(),
            o if o == IoatRegisters::CHANCNT.offset() => self.channels.into(),
            o if o == IoatRegisters::XFERCAP.offset() => self.xfercap.into(),
            o if o == IoatRegisters::INTRCTRL.offset() => self.interrupt_control.into(),
            o if o == IoatRegisters::CBVER.offset() => self.version.into(),
            o if o == IoatRegisters::DMACAPABILITY.offset() => self.capabilities.into(),
            _ => 0,
        }
    }

    fn read_channel(&self, offset: usize) -> u64 {
        match offset {
            o if o == IoatChannelRegisters::CHANCTRL.offset() => self.control.into(),
            o if o == IoatChannelRegisters::CHANCMD.offset() => self.command.into(),
            o if o == IoatChannelRegisters::DMACOUNT.offset() => self.dma_count.into(),
            o if o == IoatChannelRegisters::CHANSTS.offset() => self.status.0 & 0xffff_ffff,
            o if o == IoatChannelRegisters::CHANSTS.offset() + 4 => self.status.0 >> 32,
            o if o == IoatChannelRegisters::CHANERR.offset() => self.errors.into(),
            _ => 0,
        }
    }

    fn write_channel(&mut self, offset: usize, value: u64) {
        let low = u32::try_from(value & 0xffff_ffff).unwrap();
        match offset {
            o if o == IoatChannelRegisters::CHANCTRL.offset() => {
                // Bit 0 written as one clears it.
                self.control =
                    u16::try_from(low).unwrap() & !1 | (self.control & 1 & !u16::from(low & 1 != 0));
            }
            o if o == IoatChannelRegisters::CHANCMD.offset() => self.command(low),
            o if o == IoatChannelRegisters::DMACOUNT.offset() => {
                self.dma_count = u16::try_from(low).unwrap();
                self.execute();
            }
            o if o == IoatChannelRegisters::CHAINADDR.offset() => self.halves[0] = low,
            o if o == IoatChannelRegisters::CHAINADDR.offset() + 4 => {
                self.chain = value << 32 | u64::from(self.halves[0]);
                self.next = self.chain;
                (self.executed, self.dma_count) = (0, 0);
                self.status = ChannelStatus::default();
            }
            o if o == IoatChannelRegisters::CHANCMP.offset() => self.halves[1] = low,
            o if o == IoatChannelRegisters::CHANCMP.offset() + 4 => {
                self.completion = value << 32 | u64::from(self.halves[1]);
            }
            o if o == IoatChannelRegisters::CHANERR.offset() => self.errors &= !low,
            _ => {}
        }
    }

    fn command(&mut self, command: u32) {
        match command {
            0x04 if !self.faults.suspend_sticks => self.status.set_state(ChannelState::Suspended),
            0x20 if self.faults.reset_sticks => self.command = 0x20,
            0x20 => {
                self.status = ChannelStatus::new(Iova::new(0), ChannelState::Halted);
                (self.dma_count, self.executed, self.control, self.errors) = (0, 0, 0, 0);
            }
            _ => {}
        }
    }
}

/// The registers of the device and its first channel.
struct Registers(Arc<Mutex<Model>>);

impl BarAccess for Registers {
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError> {
        let mut model = self.0.lock().unwrap();
        if model.faults.all_ones {
            return Ok(width.all_ones());
        }
        let offset = usize::try_from(offset).unwrap();
        Ok(match offset.checked_sub(0x80) {
            None => model.read_device(offset),
            Some(inside) => model.read_channel(inside),
        })
    }

    fn write(&self, offset: u64, _width: Width, value: u64) -> Result<(), BarError> {
        let offset = usize::try_from(offset).unwrap();
        if offset.checked_sub(0x80) == Some(IoatChannelRegisters::CHANCMD.offset()) {
            let call = self.0.lock().unwrap().on_command.take();
            call.into_iter().for_each(|call| call());
        }
        let mut model = self.0.lock().unwrap();
        match offset.checked_sub(0x80) {
            Some(inside) => model.write_channel(inside, value),
            None if offset == IoatRegisters::INTRCTRL.offset() => {
                model.interrupt_control = u8::try_from(value).unwrap();
            }
            None => {}
        }
        Ok(())
    }
}

struct FakeNode(Arc<FakeIoat>);

impl PciNode for FakeNode {
    fn name(&self) -> &str {
        "fake:ioat"
    }

    fn address(&self) -> Bdf {
        Bdf::default()
    }

    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        Ok(PciIdentity { vendor: ioat::VENDOR_ID, device: 0x2021, ..PciIdentity::default() })
    }

    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        Ok(Arc::clone(&self.0) as Arc<dyn PciFunction>)
    }
}

impl PciFunction for FakeIoat {
    fn name(&self) -> &str {
        "fake:ioat"
    }

    fn address(&self) -> Bdf {
        Bdf::default()
    }

    fn config(&self) -> &dyn ConfigSpace {
        self
    }

    fn bar_info(&self, index: BarIndex) -> Option<BarInfo> {
        (index.as_u8() == 0).then_some(BarInfo {
            index,
            kind: BarKind::Memory64,
            prefetchable: false,
            size: ioat::BAR_LENGTH,
            address: 0,
        })
    }

    fn bar(&self, index: BarIndex) -> Result<Bar, BarError> {
        let absent = BarError::Absent { function: "fake:ioat".into(), bar: index };
        let info = self.bar_info(index).ok_or(absent)?;
        let access: Arc<dyn BarAccess> = Arc::new(Registers(Arc::clone(&self.model)));
        let liveness = Arc::clone(&self.liveness);
        Ok(Bar::new(info, BarPermissions::READ_WRITE, vec![], Some(access), liveness))
    }

    fn rom(&self) -> Result<Option<Vec<u8>>, BarError> {
        Ok(None)
    }

    fn interrupts(&self) -> &dyn Interrupts {
        self
    }

    fn dma(&self) -> Arc<dyn DmaMapper> {
        Arc::clone(&self.domain) as Arc<dyn DmaMapper>
    }

    fn events(&self) -> &DeviceEvents {
        &self.events
    }

    fn reset_kinds(&self) -> Vec<ResetKind> {
        if self.lock().faults.resets { vec![ResetKind::FunctionLevel] } else { vec![] }
    }

    fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        if self.lock().faults.resets {
            return Ok(());
        }
        Err(ResetError::NotSupported { function: "fake:ioat".into(), kind })
    }

    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        let mut model = self.lock();
        if on {
            model.pci_command |= 4;
            self.gate.open();
        } else if !model.faults.bus_master_sticks {
            model.pci_command &= !4;
            self.gate.close().unwrap();
        }
        Ok(())
    }

    fn close(&self) {
        self.liveness.close();
    }
}

impl ConfigSpace for FakeIoat {
    fn size(&self) -> u16 {
        256
    }

    fn read_raw(&self, offset: u16, _width: Width) -> Result<u32, ConfigError> {
        Ok(match offset {
            0x00 => u32::from(ioat::VENDOR_ID),
            0x02 => 0x2021,
            0x04 => u32::from(self.lock().pci_command),
            _ => 0,
        })
    }

    fn write_raw(&self, offset: u16, _width: Width, value: u32) -> Result<(), ConfigError> {
        if offset == 0x04 {
            self.lock().pci_command = u16::try_from(value).unwrap();
        }
        Ok(())
    }
}

impl Interrupts for FakeIoat {
    fn vector_count(&self, kind: InterruptKind) -> u16 {
        u16::from(self.lock().kind == Some(kind))
    }

    fn enabled(&self) -> Option<InterruptKind> {
        let model = self.lock();
        model.vector.as_ref().and(model.kind)
    }

    fn can_attach_later(&self, _kind: InterruptKind) -> bool {
        false
    }

    fn enable(&self, _kind: InterruptKind, events: &[Option<EventFd>]) -> Result<(), InterruptError> {
        self.lock().vector = events[0].clone();
        Ok(())
    }

    fn attach(&self, kind: InterruptKind, _vector: u16, _event: &EventFd) -> Result<(), InterruptError> {
        Err(InterruptError::NotSupported { kind })
    }

    fn detach(&self, _kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        Ok(())
    }

    fn disable_all(&self, _kind: InterruptKind) -> Result<(), InterruptError> {
        self.lock().vector = None;
        Ok(())
    }

    fn mask(&self, kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        Err(InterruptError::NotMaskable { kind })
    }

    fn unmask(&self, kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        let mut model = self.lock();
        // The line is level-triggered: what still wants attention fires it again.
        assert_eq!((kind, model.attention), (InterruptKind::Intx, 0), "unmasked before it was served");
        model.line_masked = false;
        Ok(())
    }

    fn self_test(&self, kind: InterruptKind, _vector: u16) -> Result<(), InterruptError> {
        Err(InterruptError::NotSupported { kind })
    }
}
