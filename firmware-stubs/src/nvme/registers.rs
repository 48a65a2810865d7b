//! The registers of the controller and the states that they lead to.

use vdk_descriptors::nvme::{
    AdminQueueAttributes, COMPLETION_ENTRY_LOG2, ControllerCapabilities, ControllerConfiguration,
    ControllerStatus, NvmeRegisters, SUBMISSION_ENTRY_LOG2, ShutdownNotification, ShutdownStatus, Version,
};
use vdk_hal::mmio::{RegisterSet, Width};

use crate::driver_fault::DriverFaultKind;

/// The registers, doorbells left out.
#[derive(Debug)]
pub(super) struct Registers {
    pub(super) capabilities: ControllerCapabilities,
    pub(super) configuration: ControllerConfiguration,
    pub(super) status: ControllerStatus,
    /// INTMS and INTMC are two ways to this word.
    pub(super) mask: u32,
    pub(super) admin: AdminQueueAttributes,
    pub(super) admin_submission: u64,
    pub(super) admin_completion: u64,
    pub(super) state: State,
}

/// What the controller is doing, in more detail than CSTS tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Disabled,
    /// CC.EN was set, CSTS.RDY follows.
    Starting,
    Ready,
    /// CC.EN was cleared, CSTS.RDY follows.
    Stopping,
}

impl Registers {
    pub(super) fn new(capabilities: ControllerCapabilities) -> Self {
        Self {
            capabilities,
            configuration: ControllerConfiguration::default(),
            status: ControllerStatus::default(),
            mask: 0,
            admin: AdminQueueAttributes::default(),
            admin_submission: 0,
            admin_completion: 0,
            state: State::Disabled,
        }
    }

    /// The size of a memory page, from CC.MPS.
    pub(super) fn page_length(&self) -> u64 {
        4096 << self.configuration.page_exponent()
    }

    /// Whether commands are executed.
    pub(super) fn is_running(&self) -> bool {
        self.state == State::Ready
            && !self.status.fatal()
            && self.status.shutdown() == ShutdownStatus::NORMAL_OPERATION
    }

    /// The controller was reset by CC.EN: the admin queue registers stay.
    pub(super) fn controller_reset(&mut self) {
        self.status = ControllerStatus::default();
        self.mask = 0;
        self.state = State::Disabled;
    }

    pub(super) fn read(&self, offset: u64, width: Width) -> Result<u64, DriverFaultKind> {
        let access = find(offset, width)?;
        let register = access.register;
        let value = if register == NvmeRegisters::CAP.offset() {
            self.capabilities.0
        } else if register == NvmeRegisters::VS.offset() {
            u64::from(Version::V1_4.0)
        } else if register == NvmeRegisters::INTMS.offset() || register == NvmeRegisters::INTMC.offset() {
            u64::from(self.mask)
        } else if register == NvmeRegisters::CC.offset() {
            u64::from(self.configuration.0)
        } else if register == NvmeRegisters::CSTS.offset() {
            u64::from(self.status.0)
        } else if register == NvmeRegisters::AQA.offset() {
            u64::from(self.admin.0)
        } else if register == NvmeRegisters::ASQ.offset() {
            self.admin_submission
        } else if register == NvmeRegisters::ACQ.offset() {
            self.admin_completion
        } else {
            // NSSR, and what belongs to memory and boot partitions that are not there.
            0
        };
        Ok(access.part_of(value))
    }

    /// Writes a register other than CC.
    pub(super) fn write(&mut self, access: Access, value: u64) -> Result<(), DriverFaultKind> {
        let register = access.register;
        // CAST: keeps the low word by intention; the 64-bit registers are handled apart.
        #[expect(clippy::cast_possible_truncation, reason = "a 32-bit register")]
        let word = value as u32;
        if register == NvmeRegisters::INTMS.offset() {
            self.mask |= word;
        } else if register == NvmeRegisters::INTMC.offset() {
            self.mask &= !word;
        } else if register == NvmeRegisters::CSTS.offset() {
            // Only NSSRO is cleared by writing it, and without NSSR it is never set.
            reserved(word & !SUBSYSTEM_RESET_OCCURRED)?;
        } else if register == NvmeRegisters::AQA.offset() {
            self.unlocked()?;
            self.admin = AdminQueueAttributes(word & !ADMIN_RESERVED);
            reserved(word & ADMIN_RESERVED)?;
        } else if register == NvmeRegisters::ASQ.offset() {
            self.unlocked()?;
            self.admin_submission = access.replace(self.admin_submission, value);
        } else if register == NvmeRegisters::ACQ.offset() {
            self.unlocked()?;
            self.admin_completion = access.replace(self.admin_completion, value);
        } else if register == NvmeRegisters::CAP.offset() || register == NvmeRegisters::VS.offset() {
            return Err(DriverFaultKind::ReadOnly);
        } else {
            return Err(DriverFaultKind::Hole);
        }
        Ok(())
    }

    /// Writes CC. `has_queues` says whether there are I/O queues.
    pub(super) fn write_configuration(&mut self, word: u32, has_queues: bool) -> Result<(), DriverFaultKind> {
        let old = self.configuration;
        let new = ControllerConfiguration(word & !CONFIGURATION_RESERVED);
        match (old.enable(), new.enable()) {
            (false, true) if self.state != State::Disabled => {
                return Err(DriverFaultKind::EnableRefused { what: "CSTS.RDY is still set" });
            }
            (false, true) => self.state = State::Starting,
            (true, false) => self.state = State::Stopping,
            (true, true) => {
                let locked = if has_queues { LOCKED | ENTRY_SIZES } else { LOCKED };
                if (old.0 ^ new.0) & locked != 0 {
                    return Err(DriverFaultKind::ControllerEnabled);
                }
            }
            (false, false) => {}
        }
        self.configuration = new;
        if new.shutdown() != ShutdownNotification::NONE && new.shutdown() != old.shutdown() {
            self.status.set_shutdown(ShutdownStatus::OCCURRING);
        }
        reserved(word & CONFIGURATION_RESERVED)
    }

    /// What is wrong with how the controller was enabled.
    pub(super) fn check_enable(&self) -> Result<(), &'static str> {
        let configuration = self.configuration;
        let entries = |exponent: u8, right: u8| exponent == 0 || exponent == right;
        let on_page = |address: u64| address.is_multiple_of(self.page_length());
        if configuration.command_set() != 0 {
            Err("CC.CSS is a command set that is not there")
        } else if configuration.arbitration() != 0 {
            Err("CC.AMS is an arbitration that is not there")
        } else if configuration.page_exponent() > self.capabilities.page_exponent_max() {
            Err("CC.MPS is above CAP.MPSMAX")
        } else if !entries(configuration.submission_entry_exponent(), SUBMISSION_ENTRY_LOG2)
            || !entries(configuration.completion_entry_exponent(), COMPLETION_ENTRY_LOG2)
        {
            Err("CC.IOSQES or CC.IOCQES is not the size of a queue entry")
        } else if self.admin.submission_size() == 0 || self.admin.completion_size() == 0 {
            Err("AQA has a queue of less than two entries")
        } else if !on_page(self.admin_submission) || !on_page(self.admin_completion) {
            Err("ASQ or ACQ is not on a page")
        } else {
            Ok(())
        }
    }

    /// Whether CC tells the sizes of I/O queue entries.
    pub(super) fn has_entry_sizes(&self) -> bool {
        self.configuration.submission_entry_exponent() == SUBMISSION_ENTRY_LOG2
            && self.configuration.completion_entry_exponent() == COMPLETION_ENTRY_LOG2
    }

    fn unlocked(&self) -> Result<(), DriverFaultKind> {
        if self.state == State::Disabled { Ok(()) } else { Err(DriverFaultKind::ControllerEnabled) }
    }
}

/// An access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Where the register begins.
    pub(super) register: usize,
    shift: u32,
    bits: u64,
}

impl Access {
    fn part_of(self, value: u64) -> u64 {
        value >> self.shift & self.bits
    }

    fn replace(self, old: u64, value: u64) -> u64 {
        old & !(self.bits << self.shift) | (value & self.bits) << self.shift
    }
}

/// Finds the register that an access means: registers of 32 bits as a whole, those of 64
/// bits as a whole or by halves.
pub(super) fn find(offset: u64, width: Width) -> Result<Access, DriverFaultKind> {
    let offset = usize::try_from(offset).map_err(|_| DriverFaultKind::Hole)?;
    let info = NvmeRegisters::REGISTERS
        .iter()
        .find(|info| (info.offset..info.offset + info.width.bytes()).contains(&offset))
        .ok_or(DriverFaultKind::Hole)?;
    let (shift, bits) = match (info.width, width, offset - info.offset) {
        (Width::U32, Width::U32, 0) | (Width::U64, Width::U32, 0) => (0, 0xffff_ffff),
        (Width::U64, Width::U32, 4) => (32, 0xffff_ffff),
        (Width::U64, Width::U64, 0) => (0, u64::MAX),
        _ => return Err(DriverFaultKind::Width(width)),
    };
    Ok(Access { register: info.offset, shift, bits })
}

fn reserved(bits: u32) -> Result<(), DriverFaultKind> {
    if bits == 0 { Ok(()) } else { Err(DriverFaultKind::ReservedBits { bits }) }
}

/// CSTS.NSSRO.
const SUBSYSTEM_RESET_OCCURRED: u32 = 0x10;
/// The reserved bits of AQA.
const ADMIN_RESERVED: u32 = 0xf000_f000;
/// The reserved bits of CC.
const CONFIGURATION_RESERVED: u32 = 0xff00_000e;
/// CSS, MPS and AMS of CC.
const LOCKED: u32 = 0x0000_3ff0;
/// IOSQES and IOCQES of CC.
const ENTRY_SIZES: u32 = 0x00ff_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_declared_widths_are_accepted() {
        assert_eq!(find(0x14, Width::U32).unwrap().register, 0x14);
        assert_eq!(find(0x14, Width::U64), Err(DriverFaultKind::Width(Width::U64)));
        assert_eq!(find(0x14, Width::U8), Err(DriverFaultKind::Width(Width::U8)));
        assert_eq!(find(0x16, Width::U16), Err(DriverFaultKind::Width(Width::U16)));
        assert_eq!(find(0x18, Width::U32), Err(DriverFaultKind::Hole));
        let high = find(0x2c, Width::U32).unwrap();
        assert_eq!(high.register, 0x28);
        assert_eq!(high.replace(0x1234_5678, 0x9a), 0x9a_1234_5678);
        assert_eq!(high.part_of(0x9a_1234_5678), 0x9a);
        assert_eq!(find(0x28, Width::U64).unwrap().replace(1, 2), 2);
    }

    #[test]
    fn a_controller_is_not_enabled_with_what_it_does_not_have() {
        let mut registers = Registers::new(ControllerCapabilities::default());
        registers.admin = AdminQueueAttributes(0x0001_0001);
        assert_eq!(registers.check_enable(), Ok(()));
        let wrong = |change: fn(&mut Registers)| {
            let mut changed = Registers::new(ControllerCapabilities::default());
            changed.admin = AdminQueueAttributes(0x0001_0001);
            change(&mut changed);
            changed.check_enable().is_err()
        };
        assert!(wrong(|registers| registers.configuration.set_command_set(6)));
        assert!(wrong(|registers| registers.configuration.set_arbitration(1)));
        assert!(wrong(|registers| registers.configuration.set_page_exponent(1)));
        assert!(wrong(|registers| registers.configuration.set_submission_entry_exponent(7)));
        assert!(wrong(|registers| registers.admin.set_completion_size(0)));
        assert!(wrong(|registers| registers.admin_submission = 0x800));
    }
}
