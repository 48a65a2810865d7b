//! The device behind the lock: configuration space with its side effects, registers,
//! reset, power states and removal.

use std::sync::Arc;

use vdk_hal::address::BarIndex;
use vdk_hal::bar::{BarError, BarKind, Liveness};
use vdk_hal::config::{Command, ConfigError, Express, Msi, Msix, PowerManagement, Status, register};
use vdk_hal::event::{DeviceEvent, DeviceEvents};
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::mmio::Width;
use vdk_hal::reset::ResetKind;
use vdk_iommu::soft::{BusMaster, BusMasterGate};

use super::config::ConfigImage;
use super::interrupts::InterruptUnit;
use super::layout::{self, Positions};
use super::model::{DeviceModel, Outcome, Surroundings, Work};
use super::msix::MsixPart;
use super::profile::{BarProfile, Profile};
use crate::driver_fault::{DriverFaultKind, DriverFaultLog};
use crate::fault::{FaultInjector, FaultPlan};
use crate::statistics::Counters;

/// What is reachable without the lock.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) profile: Profile,
    pub(crate) interrupts: InterruptUnit,
    pub(crate) faults: DriverFaultLog,
    pub(crate) counters: Counters,
}

/// What the open session has to be told of.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) session: u64,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) events: DeviceEvents,
    pub(crate) gate: Arc<BusMasterGate>,
}

/// Whether the function answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Present,
    /// Reads answer all ones and writes are lost, but nobody was told.
    AllOnes,
    Removed,
}

/// The device behind the lock.
pub(crate) struct Device {
    image: ConfigImage,
    positions: Positions,
    addresses: [u64; BarIndex::COUNT],
    model: Box<dyn DeviceModel>,
    injector: FaultInjector,
    seed: u64,
    presence: Presence,
    /// Memory decoding is on, in D0; kept beside the registers for the sake of speed.
    decoding: bool,
    /// Bus mastering is on, in D0; likewise.
    bus_master: bool,
    attachment: Option<Attachment>,
}

impl Device {
    pub(crate) fn new(profile: &Profile, model: Box<dyn DeviceModel>, plan: &FaultPlan, seed: u64) -> Self {
        let (image, positions) = layout::power_on(profile);
        let addresses = layout::firmware_addresses(profile);
        let injector = FaultInjector::new(plan, seed);
        let mut device = Self {
            image,
            positions,
            addresses,
            model,
            injector,
            seed,
            presence: Presence::Present,
            decoding: false,
            bus_master: false,
            attachment: None,
        };
        device.restore_addresses(profile);
        device
    }

    pub(crate) fn presence(&self) -> Presence {
        self.presence
    }

    pub(crate) fn model(&mut self) -> &mut dyn DeviceModel {
        &mut *self.model
    }

    pub(crate) fn set_fault_plan(&mut self, plan: &FaultPlan) {
        self.injector = FaultInjector::new(plan, self.seed);
    }

    /// Whether `session` is the one that has the function open.
    pub(crate) fn is_open_by(&self, session: u64) -> bool {
        self.attachment.as_ref().is_some_and(|attachment| attachment.session == session)
    }

    pub(crate) fn attach(&mut self, shared: &Shared, attachment: Attachment) {
        shared.interrupts.lock().session = attachment.session;
        self.attachment = Some(attachment);
    }

    /// Ends a session: interrupts off, bus mastering off, reset where there is one.
    pub(crate) fn detach(&mut self, shared: &Shared, session: u64) {
        if !self.is_open_by(session) {
            return;
        }
        self.function_reset(shared);
        shared.interrupts.lock().session = 0;
        self.attachment = None;
    }

    pub(crate) fn reset_kinds(shared: &Shared) -> Vec<ResetKind> {
        let profile = &shared.profile;
        let function = profile.express.is_some_and(|express| express.function_level_reset);
        let power = profile.power.is_some_and(|power| !power.no_soft_reset);
        let kinds = [(ResetKind::FunctionLevel, function), (ResetKind::PowerManagement, power)];
        kinds.into_iter().filter(|(_, works)| *works).map(|(kind, _)| kind).collect()
    }

    /// Everything as after power-on, but for what the system programs: addresses, the
    /// interrupt line and the express control word. A function without any reset keeps the
    /// state of its model and only ends what is under way.
    pub(crate) fn function_reset(&mut self, shared: &Shared) {
        self.close_gate();
        shared.interrupts.lock().reset();
        if Self::reset_kinds(shared).is_empty() {
            self.model.quiesce();
        } else {
            self.model.reset();
        }
        let kept: Vec<(u16, Width, u32)> =
            [(register::CACHE_LINE_SIZE, Width::U8), (register::INTERRUPT_LINE, Width::U8)]
                .into_iter()
                .chain(self.positions.express.map(|offset| (offset + Express::DEVICE_CONTROL, Width::U16)))
                .map(|(offset, width)| (offset, width, self.image.read(offset, width)))
                .collect();
        self.image = layout::power_on(&shared.profile).0;
        for (offset, width, value) in kept {
            self.image.write(offset, width, value);
        }
        self.restore_addresses(&shared.profile);
        self.update_state();
    }

    /// Reads configuration space. Any offset and a width up to 32 bits are answered.
    pub(crate) fn read_config(
        &mut self,
        shared: &Shared,
        offset: u16,
        width: Width,
    ) -> Result<u32, ConfigError> {
        if self.presence != Presence::Present {
            return Err(ConfigError::DeviceGone);
        }
        self.refresh(shared);
        Ok(self.image.read(offset, width))
    }

    /// Writes configuration space, with what the write means.
    pub(crate) fn write_config(
        &mut self,
        shared: &Shared,
        offset: u16,
        width: Width,
        value: u32,
    ) -> Result<(), ConfigError> {
        match self.presence {
            Presence::Present => {}
            Presence::AllOnes => return Ok(()),
            Presence::Removed => return Err(ConfigError::DeviceGone),
        }
        self.refresh(shared);
        let end = usize::from(offset) + width.bytes();
        let touches = |at: u16, length: u16| offset < at.saturating_add(length) && usize::from(at) < end;
        let positions = self.positions;
        let control = positions.power.map(|at| at + PowerManagement::CONTROL);
        if touches(register::COMMAND, 2) || control.is_some_and(|at| touches(at, 2)) {
            self.poll_doorbells(shared);
        }
        let state = control.map(|at| self.image.read16(at) & layout::POWER_STATE);
        self.image.write(offset, width, value);
        if let Some((at, before)) = control.zip(state) {
            self.power_state_written(shared, at, before);
        }
        if touches(register::COMMAND, 2) {
            self.command_written(shared);
        }
        if touches(register::BAR0, 24) {
            self.addresses_written(shared);
        }
        if let Some(at) = positions.msi.filter(|at| touches(at + layout::MSI_MASK, 4))
            && shared.profile.msi.is_some_and(|msi| msi.maskable)
        {
            shared.interrupts.lock().write_msi_masks(self.image.read32(at + layout::MSI_MASK));
        }
        if let Some(at) = positions.msix.filter(|at| touches(at + Msix::CONTROL, 2)) {
            let masked = self.image.read16(at + Msix::CONTROL) & layout::MSIX_FUNCTION_MASK != 0;
            shared.interrupts.lock().set_function_mask(masked);
        }
        if let Some(at) = positions.express.map(|at| at + Express::DEVICE_CONTROL)
            && touches(at + 1, 1)
            && offset <= at + 1
            && shared.profile.express.is_some_and(|express| express.function_level_reset)
        {
            let upper = usize::from(at + 1 - offset);
            let byte = value.to_le_bytes().get(upper).copied().unwrap_or(0);
            if u16::from(byte) << 8 & Express::INITIATE_FUNCTION_LEVEL_RESET != 0 {
                self.function_reset(shared);
            }
        }
        Ok(())
    }

    pub(crate) fn set_bus_master(&mut self, shared: &Shared, on: bool) -> Result<(), ConfigError> {
        let mut command = Command(self.image.read16(register::COMMAND));
        command.set_bus_master(on);
        self.write_config(shared, register::COMMAND, Width::U16, u32::from(command.0))
    }

    /// Reads a register of a BAR; bounds and alignment are checked.
    pub(crate) fn read_bar(
        &mut self,
        shared: &Shared,
        bar: BarIndex,
        offset: u64,
        width: Width,
    ) -> Result<u64, BarError> {
        if self.presence != Presence::Present {
            return Err(BarError::DeviceGone { bar });
        }
        let read = self.admit(shared, bar).and_then(|()| match self.msix_part(shared, bar, offset) {
            Some(part) => part.read(&shared.interrupts.lock(), width),
            None => {
                self.with_model(shared, |model, surroundings| model.read(bar, offset, width, surroundings))
            }
        });
        match read {
            Ok(value) => Ok(value & width.all_ones()),
            Err(kind) => {
                shared.faults.note(bar, offset, kind);
                Ok(width.all_ones())
            }
        }
    }

    /// Writes a register of a BAR; bounds and alignment are checked.
    pub(crate) fn write_bar(
        &mut self,
        shared: &Shared,
        bar: BarIndex,
        offset: u64,
        width: Width,
        value: u64,
    ) -> Result<(), BarError> {
        match self.presence {
            Presence::Present => {}
            // A posted write cannot tell that it was lost.
            Presence::AllOnes => return Ok(()),
            Presence::Removed => return Err(BarError::DeviceGone { bar }),
        }
        let value = value & width.all_ones();
        let written = self.admit(shared, bar).and_then(|()| match self.msix_part(shared, bar, offset) {
            Some(part) => part.write(&mut shared.interrupts.lock(), width, value),
            None => self.with_model(shared, |model, surroundings| {
                model.write(bar, offset, width, value, surroundings)
            }),
        });
        if let Err(kind) = written {
            shared.faults.note(bar, offset, kind);
        }
        Ok(())
    }

    /// Lets the device do a piece of its work.
    #[inline]
    pub(crate) fn work(&mut self, shared: &Shared, bus: &mut BusMaster) -> Work {
        if self.presence != Presence::Present {
            return Work::Idle;
        }
        self.with_model(shared, |model, surroundings| model.work(bus, surroundings))
    }

    /// Removes the function by surprise.
    pub(crate) fn remove(&mut self, shared: &Shared) {
        if self.presence == Presence::Removed {
            return;
        }
        self.presence = Presence::Removed;
        if let Some(attachment) = &self.attachment {
            attachment.liveness.remove();
        }
        self.update_state();
        shared.interrupts.lock().reset();
        if let Some(attachment) = &self.attachment {
            attachment.events.raise(DeviceEvent::Removed);
        }
    }

    /// Tells the session, if there is one, of an event.
    pub(crate) fn raise(&mut self, event: DeviceEvent) {
        if event == DeviceEvent::Error
            && let Some(at) = self.positions.errors
        {
            let status = at + layout::UNCORRECTABLE_STATUS;
            self.image.store32(status, self.image.read32(status) | layout::UNCORRECTABLE_INTERNAL);
        }
        if let Some(attachment) = &self.attachment {
            attachment.events.raise(event);
        }
    }

    /// The address that a BAR is programmed with.
    pub(crate) fn bar_address(&self, bar: BarIndex) -> u64 {
        self.addresses[bar.as_usize()]
    }

    fn command(&self) -> Command {
        Command(self.image.read16(register::COMMAND))
    }

    fn in_d0(&self) -> bool {
        self.positions
            .power
            .is_none_or(|at| self.image.read16(at + PowerManagement::CONTROL) & layout::POWER_STATE == 0)
    }

    /// Whether the function answers accesses to a BAR.
    fn admit(&self, shared: &Shared, bar: BarIndex) -> Result<(), DriverFaultKind> {
        let io = shared.profile.bar(bar).is_some_and(|bar| bar.kind == BarKind::Io);
        let decoding = if io { self.command().io_space() } else { self.command().memory_space() };
        match (decoding, self.in_d0()) {
            (_, false) => Err(DriverFaultKind::LowPower),
            (false, true) => Err(DriverFaultKind::DecodingOff),
            (true, true) => Ok(()),
        }
    }

    fn msix_part(&self, shared: &Shared, bar: BarIndex, offset: u64) -> Option<MsixPart> {
        shared.profile.msix.as_ref().and_then(|msix| MsixPart::find(msix, bar, offset))
    }

    fn poll_doorbells(&mut self, shared: &Shared) {
        self.with_model(shared, |model, surroundings| model.poll_doorbells(surroundings));
    }

    #[inline]
    fn with_model<R>(
        &mut self,
        shared: &Shared,
        call: impl FnOnce(&mut dyn DeviceModel, &mut Surroundings<'_>) -> R,
    ) -> R {
        let mut surroundings = Surroundings {
            interrupts: &shared.interrupts,
            faults: &shared.faults,
            counters: &shared.counters,
            injector: &mut self.injector,
            decoding: self.decoding,
            bus_master: self.bus_master,
            outcome: Outcome::default(),
        };
        let result = call(&mut *self.model, &mut surroundings);
        let outcome = surroundings.outcome;
        if outcome != Outcome::default() {
            self.follow(shared, outcome);
        }
        result
    }

    #[cold]
    fn follow(&mut self, shared: &Shared, outcome: Outcome) {
        if outcome.request_failed {
            let mut status = Status::default();
            status.set_received_master_abort(true);
            self.image.set_bits16(register::STATUS, status.0, status.0);
        }
        if outcome.all_ones && self.presence == Presence::Present {
            self.presence = Presence::AllOnes;
            self.update_state();
        }
        if outcome.vanish {
            self.remove(shared);
        }
    }

    fn command_written(&mut self, shared: &Shared) {
        shared.interrupts.lock().set_line_disabled(self.command().interrupt_disable());
        self.update_state();
    }

    /// Only D0 and D3hot exist; another state leaves the function as it was. The way back to
    /// D0 is a reset unless the function keeps its state.
    fn power_state_written(&mut self, shared: &Shared, control: u16, before: u16) {
        let after = self.image.read16(control) & layout::POWER_STATE;
        if after == before {
            return;
        }
        if after != 0 && after != layout::POWER_STATE_D3HOT {
            self.image.set_bits16(control, layout::POWER_STATE, before);
            return;
        }
        let keeps_state = shared.profile.power.is_some_and(|power| power.no_soft_reset);
        if after == 0 && !keeps_state {
            self.function_reset(shared);
        } else {
            self.update_state();
        }
    }

    /// A BAR was written: a value whose address bits are all ones asks for the size, any
    /// other is a new address.
    fn addresses_written(&mut self, shared: &Shared) {
        for bar in &shared.profile.bars {
            let offset = layout::bar_offset(bar.index);
            let high = match bar.kind {
                BarKind::Memory64 => self.image.read32(offset + 4),
                BarKind::Memory32 | BarKind::Io => 0,
            };
            let value = u64::from(high) << 32 | u64::from(self.image.read32(offset));
            let bits = layout::address_bits(bar);
            let asks = |half: u64| bits & half != 0 && value & bits & half == bits & half;
            if !asks(0xffff_ffff) && !asks(!0xffff_ffff) {
                self.addresses[bar.index.as_usize()] = value & bits;
            }
        }
    }

    fn restore_addresses(&mut self, profile: &Profile) {
        for bar in &profile.bars {
            let BarProfile { index, .. } = *bar;
            layout::store_address(&mut self.image, bar, self.addresses[index.as_usize()]);
        }
    }

    /// Draws the conclusions from Command, power state and presence.
    fn update_state(&mut self) {
        let on = self.presence == Presence::Present && self.in_d0();
        self.decoding = on && self.command().memory_space();
        self.bus_master = on && self.command().bus_master();
        match &self.attachment {
            Some(attachment) if self.bus_master => attachment.gate.open(),
            _ => self.close_gate(),
        }
    }

    fn close_gate(&self) {
        if let Some(attachment) = &self.attachment
            && let Err(error) = attachment.gate.close()
        {
            // The gate is closed all the same; only the last burst is not known to be over.
            log::error!("bus mastering is off, but {error}");
        }
    }

    /// Copies what the interrupts say into configuration space.
    fn refresh(&mut self, shared: &Shared) {
        let state = shared.interrupts.lock();
        let mut interrupt = Status::default();
        interrupt.set_interrupt(true);
        let value = if state.line_status() { interrupt.0 } else { 0 };
        self.image.set_bits16(register::STATUS, interrupt.0, value);
        if let Some(at) = self.positions.msi {
            let enabled = state.enabled == Some(InterruptKind::Msi);
            let log2 = if enabled { state.msi_enabled_log2() } else { 0 };
            self.image.set_bits16(at + Msi::CONTROL, 0x0071, log2 << 4 | u16::from(enabled));
            if shared.profile.msi.is_some_and(|msi| msi.maskable) {
                self.image.store32(at + layout::MSI_MASK, state.msi_masks());
                self.image.store32(at + layout::MSI_PENDING, state.msi_pending());
            }
        }
        if let Some(at) = self.positions.msix {
            let enabled = state.enabled == Some(InterruptKind::Msix);
            let value = u16::from(enabled) << 15 | u16::from(state.function_mask) << 14;
            self.image.set_bits16(at + Msix::CONTROL, 0xc000, value);
        }
    }
}
