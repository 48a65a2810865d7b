//! Start, stop, factorials and interrupts.

use core::fmt;
use core::time::Duration;

use vdk_descriptors::edu::{self, DmaCommand, EduRegisters, INTERRUPT_FACTORIAL, Identification, Status};
use vdk_hal::address::BarIndex;
use vdk_hal::bar::BarError;
use vdk_hal::event::DeviceEvents;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::mmio::RegisterBlock;
use vdk_hal::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};
use vdk_iommu::{AddressWidth, Domain};

use super::EduError;
use crate::kit::{BusMasterGuard, InterruptVector, Session};

/// How to learn that the device is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Completion {
    /// Looks at the register again and again.
    #[default]
    Poll,
    /// Sleeps until the interrupt.
    Interrupt,
}

/// How long work that a user before left behind may take: QEMU ends a transfer after 100 ms.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);
/// A sleep between two looks at the device while an interrupt is waited for.
const NAP: Duration = Duration::from_millis(50);

/// A device that runs. Dropping it stops it.
pub struct Edu {
    pub(super) registers: RegisterBlock<EduRegisters>,
    pub(super) clock: SystemClock,
    session: Session,
    /// Bus mastering is on while this is here.
    bus_master: Option<BusMasterGuard>,
    identification: Identification,
    domain: Domain,
    interrupt: Option<InterruptVector>,
    /// Causes that were read and acknowledged, and that nobody has asked for yet.
    causes: u32,
    stopped: bool,
}

impl Edu {
    /// Starts the device: checks what it is and that it answers, waits until it is at rest,
    /// enables its interrupt (MSI, else the line) and turns bus mastering on last.
    ///
    /// # Errors
    ///
    /// [`EduError`]; the device is off then.
    pub fn start(session: Session) -> Result<Self, EduError> {
        let domain = Domain::new(session.dma()?, address_width())?;
        Self::start_in(session, &domain)
    }

    /// As [`start`](Self::start), in an address space that other drivers map memory in too:
    /// that of `session`, so that what one maps all devices in it reach, as far as they drive
    /// the address bits for it.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`SessionError::OtherAddressSpace`] for a domain over
    /// another address space; the device was not touched then.
    ///
    /// [`SessionError::OtherAddressSpace`]: crate::kit::SessionError::OtherAddressSpace
    pub fn start_in(session: Session, domain: &Domain) -> Result<Self, EduError> {
        session.check_domain(domain)?;
        session.enable_memory()?;
        // PANIC: the constant is a valid index.
        let bar = session.bar(BarIndex::new(edu::BAR).expect("BAR 0 exists"))?;
        let registers = bar.registers::<EduRegisters>(0)?;
        let identification = identify(&registers)?;
        check_liveness(&registers)?;
        let domain = domain.with_width(address_width());
        let mut device = Self {
            registers,
            clock: SystemClock::new(),
            session,
            bus_master: None,
            identification,
            domain,
            interrupt: None,
            causes: 0,
            stopped: false,
        };
        // From here on an error stops the device when `device` is dropped.
        device.settle()?;
        device.interrupt = device.enable_interrupt()?;
        device.bus_master = Some(device.session.enable_bus_master()?);
        Ok(device)
    }

    /// What the device says of itself.
    #[must_use]
    pub fn identification(&self) -> Identification {
        self.identification
    }

    /// The address space of the device, limited to the 28 address bits that it drives: map
    /// what it is to reach there.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// What happens to the function itself: a removal, or that the kernel wants it back. Stop
    /// then. Where the kit runs the driver, it takes these and stops the driver by itself.
    #[must_use]
    pub fn device_events(&self) -> &DeviceEvents {
        self.session.events()
    }

    /// Which interrupt is enabled.
    #[must_use]
    pub fn interrupt_kind(&self) -> Option<InterruptKind> {
        self.interrupt.as_ref().map(|vector| vector.kind)
    }

    /// Checks that the device answers.
    ///
    /// # Errors
    ///
    /// [`EduError::Liveness`], [`EduError::Register`].
    pub fn check_liveness(&self) -> Result<(), EduError> {
        check_liveness(&self.registers)
    }

    /// Computes `n!` modulo 2^32.
    ///
    /// # Errors
    ///
    /// - [`EduError::TimedOut`]: the device may still be computing;
    /// - [`EduError::Busy`] while it computes what was not waited for;
    /// - [`EduError::InterruptLost`], [`EduError::NoInterrupt`], [`EduError::Register`].
    pub fn factorial(&mut self, n: u32, completion: Completion, within: Duration) -> Result<u32, EduError> {
        if self.status()?.computing() {
            return Err(EduError::Busy { what: "a factorial" });
        }
        let deadline = Deadline::after(&self.clock, within);
        let mut status = Status::default();
        status.set_raise_after_factorial(completion == Completion::Interrupt);
        self.prepare_interrupt(completion, INTERRUPT_FACTORIAL)?;
        self.registers.write(EduRegisters::STATUS, status.0)?;
        self.registers.write(EduRegisters::FACTORIAL, n)?;
        let ready = |device: &mut Self| device.status().map(|status| !status.computing());
        self.await_end(completion, INTERRUPT_FACTORIAL, deadline, Pace::FAST, "the factorial", ready)?;
        let result = self.registers.read(EduRegisters::FACTORIAL)?;
        if result == u32::MAX {
            // No factorial is all ones; see whether anybody is there.
            identify(&self.registers)?;
        }
        Ok(result)
    }

    /// Raises the interrupt with `causes`, as the device itself would.
    ///
    /// # Errors
    ///
    /// [`EduError::Register`].
    pub fn raise_interrupt(&mut self, causes: u32) -> Result<(), EduError> {
        Ok(self.registers.write(EduRegisters::INTERRUPT_RAISE, causes)?)
    }

    /// Waits for the interrupt, acknowledges it, and returns its causes, never zero.
    ///
    /// # Errors
    ///
    /// [`EduError::TimedOut`], [`EduError::NoInterrupt`], [`EduError::Register`].
    pub fn wait_interrupt(&mut self, within: Duration) -> Result<u32, EduError> {
        let deadline = Deadline::after(&self.clock, within);
        loop {
            let over = deadline.is_over(&self.clock);
            if self.causes != 0 {
                return Ok(core::mem::take(&mut self.causes));
            }
            if self.sleep(deadline)? {
                self.serve_interrupt()?;
            } else if over {
                return Err(TimedOut { what: "the interrupt", allowed: deadline.allowed() }.into());
            }
        }
    }

    /// Stops the device: lets a transfer end, acknowledges everything, turns the interrupt
    /// and bus mastering off. Stopping twice is harmless.
    pub fn stop(&mut self) {
        if self.stopped {
            return;
        }
        self.stopped = true;
        if let Err(error) = self.settle() {
            log::debug!("{}: {error}", self.session.name());
        }
        if let Some(vector) = self.interrupt.take()
            && let Ok(interrupts) = self.session.interrupts()
            && let Err(error) = interrupts.disable_all(vector.kind)
        {
            log::debug!("{}: {error}", self.session.name());
        }
        drop(self.bus_master.take());
    }

    pub(super) fn status(&self) -> Result<Status, EduError> {
        let status = self.registers.read(EduRegisters::STATUS)?;
        if status == u32::MAX {
            return Err(BarError::DeviceGone { bar: self.registers.bar().info().index }.into());
        }
        Ok(Status(status))
    }

    pub(super) fn transfer_runs(&self) -> Result<bool, EduError> {
        let command = self.registers.read(EduRegisters::DMA_COMMAND)?;
        if command == u64::MAX {
            return Err(BarError::DeviceGone { bar: self.registers.bar().info().index }.into());
        }
        Ok(DmaCommand(command).start())
    }

    /// Forgets what was raised before, so that `cause` means the work that comes now.
    pub(super) fn prepare_interrupt(&mut self, completion: Completion, cause: u32) -> Result<(), EduError> {
        if completion == Completion::Interrupt {
            if self.interrupt.is_none() {
                return Err(EduError::NoInterrupt);
            }
            self.serve_interrupt()?;
            self.causes &= !cause;
        }
        Ok(())
    }

    /// Waits until `ready`, or until `cause` was raised.
    pub(super) fn await_end(
        &mut self,
        completion: Completion,
        cause: u32,
        deadline: Deadline,
        pace: Pace,
        what: &'static str,
        mut ready: impl FnMut(&mut Self) -> Result<bool, EduError>,
    ) -> Result<(), EduError> {
        let clock = self.clock;
        if completion == Completion::Poll {
            return poll_until(&clock, deadline, pace, what, || Ok(ready(self)?.then_some(())));
        }
        loop {
            let over = deadline.is_over(&clock);
            if self.causes & cause != 0 {
                self.causes &= !cause;
                return Ok(());
            }
            if self.sleep(deadline)? {
                self.serve_interrupt()?;
            } else if over {
                return Err(if ready(self)? {
                    EduError::InterruptLost { what }
                } else {
                    TimedOut { what, allowed: deadline.allowed() }.into()
                });
            }
        }
    }

    /// Sleeps until the event file is signalled, for a while at most; takes the count.
    fn sleep(&self, deadline: Deadline) -> Result<bool, EduError> {
        let Some(InterruptVector { event, .. }) = &self.interrupt else {
            return Err(EduError::NoInterrupt);
        };
        let nap = deadline.remaining(&self.clock).min(NAP);
        let woken = event.wait(nap).map_err(|error| EduError::EventFile(error.kind()))?;
        if !woken {
            // Nobody signals for a device that is gone.
            self.status()?;
        }
        // The count decides: the signal may have come after the sleep was over.
        Ok(event.take() > 0)
    }

    /// Notes and acknowledges what is raised, and lets the line fire again.
    fn serve_interrupt(&mut self) -> Result<(), EduError> {
        let raised = self.registers.read(EduRegisters::INTERRUPT_STATUS)?;
        if raised != 0 {
            self.registers.write(EduRegisters::INTERRUPT_ACKNOWLEDGE, raised)?;
            self.causes |= raised;
        }
        // After the acknowledgement, since the line would be asserted still before.
        if self.interrupt_kind() == Some(InterruptKind::Intx) {
            self.session.unmask(InterruptKind::Intx, 0)?;
        }
        Ok(())
    }

    /// Waits until nothing runs and nothing is raised, whoever asked for it.
    fn settle(&mut self) -> Result<(), EduError> {
        self.registers.write(EduRegisters::STATUS, 0)?;
        let clock = self.clock;
        let deadline = Deadline::after(&clock, SETTLE_LIMIT);
        poll_until(&clock, deadline, Pace::SLOW, "the end of what the device was doing", || {
            let busy = self.transfer_runs()? || self.status()?.computing();
            Ok::<_, EduError>((!busy).then_some(()))
        })?;
        let raised = self.registers.read(EduRegisters::INTERRUPT_STATUS)?;
        Ok(self.registers.write(EduRegisters::INTERRUPT_ACKNOWLEDGE, raised)?)
    }

    fn enable_interrupt(&self) -> Result<Option<InterruptVector>, EduError> {
        let interrupts = self.session.interrupts()?;
        for kind in [InterruptKind::Msi, InterruptKind::Intx] {
            if interrupts.vector_count(kind) == 0 {
                continue;
            }
            match self.session.configure_interrupts(kind, 1, 1) {
                Ok(vectors) => return Ok(vectors.into_iter().next()),
                Err(error) => log::warn!("{}: {error}", self.session.name()),
            }
        }
        log::warn!("{}: no interrupt could be enabled", self.session.name());
        Ok(None)
    }
}

impl fmt::Debug for Edu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edu")
            .field("session", &self.session)
            .field("identification", &self.identification)
            .field("interrupt", &self.interrupt)
            .finish_non_exhaustive()
    }
}

impl Drop for Edu {
    fn drop(&mut self) {
        self.stop();
    }
}

fn address_width() -> AddressWidth {
    // PANIC: 28 is in the range of an address width.
    AddressWidth::new(edu::DMA_ADDRESS_BITS).expect("28 is a width")
}

fn identify(registers: &RegisterBlock<EduRegisters>) -> Result<Identification, EduError> {
    let found = Identification(registers.read(EduRegisters::IDENTIFICATION)?);
    if found.0 == u32::MAX {
        return Err(BarError::DeviceGone { bar: registers.bar().info().index }.into());
    }
    if found.signature() != Identification::SIGNATURE {
        return Err(EduError::Identification { found });
    }
    Ok(found)
}

fn check_liveness(registers: &RegisterBlock<EduRegisters>) -> Result<(), EduError> {
    // Two values, so that a register stuck at one cannot pass.
    for value in [0x5a5a_1234u32, 0xa5a5_edcb] {
        registers.write(EduRegisters::LIVENESS, value)?;
        let (found, expected) = (registers.read(EduRegisters::LIVENESS)?, !value);
        if found != expected {
            return Err(EduError::Liveness { found, expected });
        }
    }
    Ok(())
}
