//! QEMU's educational device.
//!
//! The registers and what they do are in [`vdk_descriptors::edu`]. Where QEMU forgives, this
//! device writes down a driver fault: an access of a wrong width, a register that does not
//! exist, a transfer that leaves the buffer or that uses address bits which the device does
//! not drive. A transfer that is wrong ends without moving a byte.
//!
//! It has MSI with one vector, an INTx line and no reset.
//!
//! A transfer is a descriptor to a fault plan. A dropped completion, a halt and a stop make
//! it run until the session ends; duplicate and corrupt completions do nothing, since the
//! device writes no completions.

use std::time::Instant;

use vdk_descriptors::edu::{
    BAR, BAR_LENGTH, CLASS_CODE, DEVICE_ID, DMA_BUFFER, DMA_BUFFER_LENGTH, DmaCommand, EduRegisters,
    INTERRUPT_DMA, INTERRUPT_FACTORIAL, Identification, REVISION_ID, Status, VENDOR_ID, WIDE_ACCESS_OFFSET,
};
use vdk_hal::address::{BarIndex, ByteLength, Iova};
use vdk_hal::bar::BarKind;
use vdk_hal::function::PciIdentity;
use vdk_hal::mmio::Width;
use vdk_iommu::soft::BusMaster;

use crate::driver_fault::DriverFaultKind;
use crate::fault::FaultAction;
use crate::options::{StubError, StubOptions};
use crate::shell::{BarProfile, DeviceModel, MsiProfile, Profile, Surroundings, Work};

/// The profile and the model of an edu.
pub(crate) fn build(options: &StubOptions) -> Result<(Profile, Box<dyn DeviceModel>), StubError> {
    StubError::check_range("the count of address bits", u64::from(options.address_bits), 12..=64)?;
    let bar = BarIndex::new(BAR).ok_or(StubError::Profile { what: "there is no such BAR" })?;
    let profile = Profile {
        name: "stub:edu".to_owned(),
        identity: PciIdentity {
            vendor: VENDOR_ID,
            device: DEVICE_ID,
            revision: REVISION_ID,
            class: CLASS_CODE,
            // QEMU gives these to devices that have no subsystem of their own.
            subsystem_vendor: 0x1af4,
            subsystem: 0x1100,
        },
        bars: vec![BarProfile { index: bar, kind: BarKind::Memory32, prefetchable: false, size: BAR_LENGTH }],
        intx: true,
        msi: Some(MsiProfile { vectors: 1, maskable: false }),
        msix: None,
        power: None,
        express: None,
        registers: Vec::new(),
        serial_number: 0,
    };
    Ok((profile, Box::new(Edu::new(bar, options))))
}

/// The registers and the transfer engine.
struct Edu {
    bar: BarIndex,
    options: Limits,
    liveness: u32,
    factorial: u32,
    status: Status,
    interrupt_status: u32,
    source: u64,
    destination: u64,
    count: u64,
    command: DmaCommand,
    /// When the transfer that runs has ended.
    due: Option<Instant>,
    /// A transfer or a computation that never ends, by the fault plan.
    wedged: bool,
    buffer: Box<[u8; BUFFER_LENGTH]>,
}

/// What of the options the model needs.
#[derive(Clone, Copy)]
struct Limits {
    address_bits: u8,
    transfer_time: core::time::Duration,
}

impl Edu {
    fn new(bar: BarIndex, options: &StubOptions) -> Self {
        Self {
            bar,
            options: Limits { address_bits: options.address_bits, transfer_time: options.transfer_time },
            liveness: 0,
            factorial: 0,
            status: Status::default(),
            interrupt_status: 0,
            source: 0,
            destination: 0,
            count: 0,
            command: DmaCommand::default(),
            due: None,
            wedged: false,
            buffer: Box::new([0; BUFFER_LENGTH]),
        }
    }

    fn raise(&mut self, causes: u32, surroundings: &Surroundings<'_>) {
        self.interrupt_status |= causes;
        if self.interrupt_status != 0 {
            surroundings.interrupts().message(0);
        }
        surroundings.interrupts().set_level(self.interrupt_status != 0);
    }

    fn acknowledge(&mut self, causes: u32, surroundings: &Surroundings<'_>) {
        self.interrupt_status &= !causes;
        surroundings.interrupts().set_level(self.interrupt_status != 0);
    }

    fn compute(&mut self, surroundings: &Surroundings<'_>) {
        self.factorial = factorial(self.factorial);
        self.status.set_computing(false);
        if self.status.raise_after_factorial() {
            self.raise(INTERRUPT_FACTORIAL, surroundings);
        }
    }

    /// Moves what the registers say, or says what is wrong with them.
    fn transfer(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) {
        let to_memory = self.command.to_memory();
        let (buffer, memory) =
            if to_memory { (self.source, self.destination) } else { (self.destination, self.source) };
        let fault = match self.buffer_range(buffer) {
            None => Some(DriverFaultKind::BufferRange {
                address: Iova::new(buffer),
                length: ByteLength::new(self.count),
            }),
            Some(_) if !self.reaches(memory) => Some(DriverFaultKind::AddressMask {
                address: Iova::new(memory),
                bits: self.options.address_bits,
            }),
            Some(_) if !surroundings.bus_master() => Some(DriverFaultKind::BusMasterOff),
            Some(range) => {
                let memory = Iova::new(memory);
                let bytes = &mut self.buffer[range];
                let moved = if to_memory { bus.write(memory, bytes) } else { bus.read(memory, bytes) };
                match moved {
                    Ok(()) => surroundings.count_descriptors(1, self.count),
                    Err(_) => surroundings.request_failed(),
                }
                None
            }
        };
        if let Some(kind) = fault {
            surroundings.driver_fault(self.bar, offset_of(EduRegisters::DMA_COMMAND.offset()), kind);
        }
    }

    /// The part of the buffer that a transfer at `address` means.
    fn buffer_range(&self, address: u64) -> Option<core::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(DMA_BUFFER.as_u64())?).ok()?;
        let end = start.checked_add(usize::try_from(self.count).ok()?)?;
        (end <= BUFFER_LENGTH).then_some(start..end)
    }

    /// Whether the device drives all address bits of a transfer at `address`.
    fn reaches(&self, address: u64) -> bool {
        let mask = u64::MAX >> (64 - u32::from(self.options.address_bits));
        address.checked_add(self.count.saturating_sub(1)).is_some_and(|last| last <= mask)
    }

    fn finish(&mut self, surroundings: &Surroundings<'_>) {
        self.command.set_start(false);
        self.due = None;
        if self.command.raise_when_done() {
            self.raise(INTERRUPT_DMA, surroundings);
        }
    }

    fn dma_register(&mut self, offset: u64) -> Option<&mut u64> {
        if offset == offset_of(EduRegisters::DMA_SOURCE.offset()) {
            Some(&mut self.source)
        } else if offset == offset_of(EduRegisters::DMA_DESTINATION.offset()) {
            Some(&mut self.destination)
        } else if offset == offset_of(EduRegisters::DMA_COUNT.offset()) {
            Some(&mut self.count)
        } else if offset == offset_of(EduRegisters::DMA_COMMAND.offset()) {
            Some(&mut self.command.0)
        } else {
            None
        }
    }

    /// A transfer that was started goes on here, as far as the fault plan lets it.
    fn begin(&mut self, surroundings: &mut Surroundings<'_>) {
        let time = match surroundings.next_fault(0) {
            Some(FaultAction::DelayCompletion(delay)) => self.options.transfer_time.saturating_add(delay),
            Some(
                FaultAction::DropCompletion
                | FaultAction::StopResponding
                | FaultAction::Halt(_)
                | FaultAction::Fail(_),
            ) => {
                self.wedged = true;
                self.options.transfer_time
            }
            _ => self.options.transfer_time,
        };
        self.due = Instant::now().checked_add(time);
    }
}

impl DeviceModel for Edu {
    fn read(
        &mut self,
        _bar: BarIndex,
        offset: u64,
        width: Width,
        _surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, DriverFaultKind> {
        check_width(offset, width)?;
        let place = usize::try_from(offset).map_err(|_| DriverFaultKind::Hole)?;
        let value = if place == EduRegisters::IDENTIFICATION.offset() {
            Identification::VERSION_1_0.0
        } else if place == EduRegisters::LIVENESS.offset() {
            self.liveness
        } else if place == EduRegisters::FACTORIAL.offset() {
            self.factorial
        } else if place == EduRegisters::STATUS.offset() {
            self.status.0
        } else if place == EduRegisters::INTERRUPT_STATUS.offset() {
            self.interrupt_status
        } else if place == EduRegisters::INTERRUPT_RAISE.offset()
            || place == EduRegisters::INTERRUPT_ACKNOWLEDGE.offset()
        {
            return Err(DriverFaultKind::WriteOnly);
        } else {
            return self.dma_register(offset).map(|register| *register).ok_or(DriverFaultKind::Hole);
        };
        Ok(u64::from(value))
    }

    fn write(
        &mut self,
        _bar: BarIndex,
        offset: u64,
        width: Width,
        value: u64,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        check_width(offset, width)?;
        let place = usize::try_from(offset).map_err(|_| DriverFaultKind::Hole)?;
        // CAST: registers below the wide area are 32 bits wide.
        #[expect(clippy::cast_possible_truncation, reason = "keeps the width of the register")]
        let word = value as u32;
        if place == EduRegisters::IDENTIFICATION.offset() || place == EduRegisters::INTERRUPT_STATUS.offset()
        {
            return Err(DriverFaultKind::ReadOnly);
        } else if place == EduRegisters::LIVENESS.offset() {
            self.liveness = !word;
        } else if place == EduRegisters::FACTORIAL.offset() {
            // As in QEMU, a number that comes while another is computed is ignored.
            if !self.status.computing() {
                self.factorial = word;
                self.status.set_computing(true);
            }
        } else if place == EduRegisters::STATUS.offset() {
            self.status.set_raise_after_factorial(Status(word).raise_after_factorial());
        } else if place == EduRegisters::INTERRUPT_RAISE.offset() {
            self.raise(word, surroundings);
        } else if place == EduRegisters::INTERRUPT_ACKNOWLEDGE.offset() {
            self.acknowledge(word, surroundings);
        } else {
            let running = self.command.start();
            let register = self.dma_register(offset).ok_or(DriverFaultKind::Hole)?;
            if running {
                return Err(DriverFaultKind::TransferRunning);
            }
            if place == EduRegisters::DMA_COMMAND.offset() {
                // Without the start bit a command is ignored.
                if DmaCommand(value).start() {
                    *register = value & COMMAND_BITS;
                    surroundings.count_doorbell();
                    self.begin(surroundings);
                }
            } else {
                *register = value;
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.quiesce();
    }

    fn quiesce(&mut self) {
        self.status = Status::default();
        self.interrupt_status = 0;
        self.command = DmaCommand::default();
        self.due = None;
        self.wedged = false;
    }

    fn work(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        if self.status.computing() {
            self.compute(surroundings);
            return Work::Busy;
        }
        match self.due {
            Some(_) if self.wedged => Work::Idle,
            Some(due) if Instant::now() < due => Work::IdleUntil(due),
            Some(_) => {
                self.transfer(bus, surroundings);
                self.finish(surroundings);
                Work::Busy
            }
            None => Work::Idle,
        }
    }
}

/// Below the wide area accesses have 4 bytes, from there on 4 or 8.
fn check_width(offset: u64, width: Width) -> Result<(), DriverFaultKind> {
    match width {
        Width::U32 => Ok(()),
        Width::U64 if offset >= WIDE_ACCESS_OFFSET => Ok(()),
        Width::U8 | Width::U16 | Width::U64 => Err(DriverFaultKind::Width(width)),
    }
}

/// `n!` modulo 2^32. From 34 on it is zero, since 34! has more than 32 factors of two.
fn factorial(number: u32) -> u32 {
    let mut product = 1u32;
    for factor in (1..=number).rev() {
        product = product.wrapping_mul(factor);
        if product == 0 {
            break;
        }
    }
    product
}

const fn offset_of(offset: usize) -> u64 {
    // CAST: `usize` is at most 64 bits wide.
    offset as u64
}

const BUFFER_LENGTH: usize = 4096;
const _: () = assert!(BUFFER_LENGTH as u64 == DMA_BUFFER_LENGTH.as_u64());

/// The bits of the command register that exist.
const COMMAND_BITS: u64 = 0x7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factorial_wraps_and_is_short_for_large_numbers() {
        assert_eq!([0, 1, 5, 12].map(factorial), [1, 1, 120, 479_001_600]);
        assert_eq!(factorial(13), 1_932_053_504);
        assert_ne!(factorial(33), 0);
        assert_eq!([34, 1000, u32::MAX].map(factorial), [0; 3]);
    }
}
