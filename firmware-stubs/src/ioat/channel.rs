//! The registers of a channel, and the states that they lead to.

use std::time::Instant;

use vdk_descriptors::ioat::{
    ChannelCommand, ChannelControl, ChannelErrors, ChannelState, ChannelStatus, IoatChannelRegisters,
    channel_offset,
};
use vdk_hal::address::{BarIndex, ByteLength, Iova};
use vdk_hal::memory::SharedMemory;

use super::attention::Attention;
use super::doorbell::Doorbell;
use super::registers::{Access, Part};
use crate::driver_fault::DriverFaultKind;
use crate::fault::FaultAction;
use crate::shell::Surroundings;

/// A channel: its registers, and where it is in its chain.
///
/// # Invariants
///
/// `executed` has counted the descriptors that were completed since CHAINADDR was written,
/// `count` those that the driver announced; both wrap at 2^16.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) number: u8,
    pub(super) bar: BarIndex,
    pub(super) transfer_cap: ByteLength,
    pub(super) doorbell: Doorbell,
    pub(super) control: ChannelControl,
    pub(super) chain: u64,
    pub(super) completion_address: u64,
    pub(super) errors: ChannelErrors,
    pub(super) error_mask: u32,
    dca: u32,
    prefetch_limit: u32,
    pub(super) state: State,
    pub(super) count: u16,
    pub(super) executed: u16,
    /// The descriptor to execute next.
    pub(super) next: u64,
    /// The descriptor executed last.
    pub(super) completed: u64,
    /// No descriptor of this chain was read yet.
    pub(super) fresh: bool,
    /// `next` of the last descriptor is to be read again.
    pub(super) append: bool,
    pub(super) soft_error: bool,
    pub(super) current: Option<Transfer>,
    suspending: bool,
    resetting: bool,
    /// CHANCTRL bit 0: an interrupt was sent and not yet re-armed.
    interrupt_sent: bool,
    /// An interrupt that waits for that.
    interrupt_waiting: bool,
    pub(super) trouble: Trouble,
    /// How many descriptors the last doorbell brought.
    pub(super) burst_length: u16,
}

/// What the channel is doing, in more detail than CHANSTS tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// After a reset, an error or an abort.
    Halted,
    /// It has a chain and waits for the first doorbell.
    Armed,
    Running,
    Suspended,
}

/// A descriptor that is being executed, in slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) address: u64,
    pub(super) descriptor: vdk_descriptors::ioat::IoatDescriptor,
    pub(super) done: u64,
}

/// What a fault plan does to the channel.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Strikes the next completion.
    pub(super) armed: Option<FaultAction>,
    /// A completion word that is reported once more.
    pub(super) stale: Option<u64>,
    /// A completion that is late.
    pub(super) held: Option<Held>,
    /// Nothing is done or obeyed any more.
    pub(super) wedged: bool,
}

impl Trouble {
    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.armed.is_none() && self.stale.is_none()
    }
}

/// A completion that is late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) due: Instant,
    pub(super) word: u64,
    pub(super) interrupt: bool,
}

impl Channel {
    pub(super) fn new(number: u8, bar: BarIndex, transfer_cap: ByteLength) -> Self {
        Self {
            number,
            bar,
            transfer_cap,
            doorbell: Doorbell::default(),
            control: ChannelControl::default(),
            chain: 0,
            completion_address: 0,
            errors: ChannelErrors::NONE,
            error_mask: 0,
            dca: 0,
            prefetch_limit: 0,
            state: State::Halted,
            count: 0,
            executed: 0,
            next: 0,
            completed: 0,
            fresh: true,
            append: false,
            soft_error: false,
            current: None,
            suspending: false,
            resetting: false,
            interrupt_sent: false,
            interrupt_waiting: false,
            trouble: Trouble::default(),
            burst_length: 0,
        }
    }

    pub(super) fn map_doorbell(&mut self, cell: SharedMemory) {
        self.doorbell.map(cell);
    }

    /// The function was reset: also what the fault plan did is over.
    pub(super) fn function_reset(&mut self) {
        self.reset();
        self.trouble = Trouble::default();
        self.resetting = false;
    }

    /// Everything as after power-on, the doorbell included.
    fn reset(&mut self) {
        let mut doorbell = core::mem::take(&mut self.doorbell);
        doorbell.store(0);
        *self = Self { doorbell, ..Self::new(self.number, self.bar, self.transfer_cap) };
    }

    pub(super) fn read(&mut self, register: usize) -> u64 {
        if register == IoatChannelRegisters::CHANCTRL.offset() {
            let mut value = self.control;
            value.set_interrupt_rearm(self.interrupt_sent);
            // The first reader takes the channel.
            self.control.set_in_use(true);
            u64::from(value.0)
        } else if register == IoatChannelRegisters::CHANCMD.offset() {
            u64::from(if self.resetting { ChannelCommand::RESET.0 } else { 0 })
        } else if register == IoatChannelRegisters::DMACOUNT.offset() {
            u64::from(self.doorbell.load())
        } else if register == IoatChannelRegisters::CHANSTS.offset() {
            self.status().0
        } else if register == IoatChannelRegisters::CHAINADDR.offset() {
            self.chain
        } else if register == IoatChannelRegisters::CHANCMP.offset() {
            self.completion_address
        } else if register == IoatChannelRegisters::CDAR.offset() {
            self.current.map_or(0, |transfer| transfer.address)
        } else if register == IoatChannelRegisters::CHANERR.offset() {
            u64::from(self.errors.0)
        } else if register == IoatChannelRegisters::CHANERRMASK.offset() {
            u64::from(self.error_mask)
        } else if register == IoatChannelRegisters::DCACTRL.offset() {
            u64::from(self.dca)
        } else if register == IoatChannelRegisters::CHWPREFLMT.offset() {
            u64::from(self.prefetch_limit)
        } else {
            // DMA_COMP: no older interface.
            0
        }
    }

    pub(super) fn write(
        &mut self,
        access: Access,
        value: u64,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        let register = access.register;
        let bytes = value.to_le_bytes();
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let half = u16::from_le_bytes([bytes[0], bytes[1]]);
        if register == IoatChannelRegisters::CHANCMD.offset() {
            return self.command(bytes[0], surroundings);
        }
        if self.trouble.wedged {
            return Ok(());
        }
        self.poll_doorbell(surroundings);
        if register == IoatChannelRegisters::CHANCTRL.offset() {
            self.write_control(ChannelControl(half), attention, surroundings);
        } else if register == IoatChannelRegisters::DMACOUNT.offset() {
            self.doorbell.store(half);
            self.poll_doorbell(surroundings);
        } else if register == IoatChannelRegisters::CHAINADDR.offset() {
            self.chain = access.replace(self.chain, value);
            if access.part == Part::High {
                return self.start_chain();
            }
        } else if register == IoatChannelRegisters::CHANCMP.offset() {
            self.completion_address = access.replace(self.completion_address, value);
        } else if register == IoatChannelRegisters::CHANERR.offset() {
            self.errors.0 &= !word;
            self.soft_error &= !self.errors.is_empty();
        } else if register == IoatChannelRegisters::CHANERRMASK.offset() {
            self.error_mask = word;
        } else if register == IoatChannelRegisters::DCACTRL.offset() {
            self.dca = word;
        } else if register == IoatChannelRegisters::CHWPREFLMT.offset() {
            self.prefetch_limit = word;
        }
        Ok(())
    }

    /// CHANSTS.
    pub(super) fn status(&self) -> ChannelStatus {
        let busy = self.executed != self.count || self.current.is_some() || self.trouble.held.is_some();
        let state = match self.state {
            State::Halted => ChannelState::Halted,
            State::Armed => ChannelState::Armed,
            State::Suspended => ChannelState::Suspended,
            State::Running if busy => ChannelState::Active,
            State::Running => ChannelState::Idle,
        };
        let mut status = ChannelStatus::new(Iova::new(self.completed), state);
        status.set_soft_error(self.soft_error);
        status
    }

    /// Looks at the doorbell. One that was written while the function does not decode never
    /// arrived, and one that the channel cannot take is taken back.
    #[inline]
    pub(super) fn poll_doorbell(&mut self, surroundings: &Surroundings<'_>) {
        let value = self.doorbell.load();
        if value != self.count {
            self.doorbell_rang(value, surroundings);
        }
    }

    #[inline(never)]
    fn doorbell_rang(&mut self, value: u16, surroundings: &Surroundings<'_>) {
        let channel = self.number;
        let refused = match self.state {
            _ if self.trouble.wedged => return,
            _ if !surroundings.decoding() => Some(DriverFaultKind::DecodingOff),
            State::Halted if self.errors.is_empty() => Some(DriverFaultKind::DoorbellBeforeStart { channel }),
            State::Halted => Some(DriverFaultKind::DoorbellWhileHalted { channel }),
            State::Armed | State::Running | State::Suspended => None,
        };
        surroundings.count_doorbell();
        if let Some(kind) = refused {
            self.note(IoatChannelRegisters::DMACOUNT.offset(), kind, surroundings);
            self.doorbell.store(self.count);
            return;
        }
        if !surroundings.bus_master() {
            let kind = DriverFaultKind::BusMasterOff;
            self.note(IoatChannelRegisters::DMACOUNT.offset(), kind, surroundings);
        }
        self.burst_length = value.wrapping_sub(self.count);
        self.count = value;
        if self.state == State::Armed {
            self.state = State::Running;
        }
    }

    /// An interrupt of this channel: sent, or kept until the driver re-arms it.
    pub(super) fn interrupt(&mut self, attention: &mut Attention, surroundings: &Surroundings<'_>) {
        if self.interrupt_sent {
            self.interrupt_waiting = true;
        } else {
            self.interrupt_sent = true;
            attention.signal(self.number, surroundings);
        }
    }

    /// Called between two descriptors.
    pub(super) fn suspend_if_asked(&mut self) -> bool {
        if self.suspending {
            self.suspending = false;
            self.state = State::Suspended;
        }
        self.state == State::Suspended
    }

    pub(super) fn note(&self, register: usize, kind: DriverFaultKind, surroundings: &Surroundings<'_>) {
        // CAST: `usize` is at most 64 bits wide.
        surroundings.driver_fault(self.bar, channel_offset(self.number) + register as u64, kind);
    }

    fn write_control(
        &mut self,
        written: ChannelControl,
        attention: &mut Attention,
        surroundings: &Surroundings<'_>,
    ) {
        let in_use = self.control.in_use() && written.in_use();
        self.control = ChannelControl(written.0 & CONTROL_WRITABLE);
        self.control.set_in_use(in_use);
        if written.interrupt_rearm() {
            self.interrupt_sent = false;
            if core::mem::take(&mut self.interrupt_waiting) {
                self.interrupt(attention, surroundings);
            }
        }
    }

    /// The upper half of CHAINADDR was written: a new chain, counted from zero.
    fn start_chain(&mut self) -> Result<(), DriverFaultKind> {
        let active = self.state == State::Running && self.status().state() == ChannelState::Active;
        if active || !self.errors.is_empty() {
            return Err(DriverFaultKind::ChainRefused { channel: self.number });
        }
        self.executed = 0;
        self.count = 0;
        self.doorbell.store(0);
        self.completed = 0;
        self.current = None;
        self.suspending = false;
        self.append = false;
        self.trouble.stale = None;
        self.trouble.held = None;
        self.fresh = true;
        self.next = self.chain;
        self.state = State::Armed;
        Ok(())
    }

    fn command(&mut self, command: u8, surroundings: &Surroundings<'_>) -> Result<(), DriverFaultKind> {
        let refused = Err(DriverFaultKind::Command { channel: self.number, command });
        let command = ChannelCommand(command);
        if self.trouble.wedged {
            self.resetting |= command == ChannelCommand::RESET;
            return Ok(());
        }
        if command != ChannelCommand::RESET {
            self.poll_doorbell(surroundings);
        }
        match (command, self.state) {
            (ChannelCommand::RESET, _) => self.reset(),
            (ChannelCommand::SUSPEND, State::Running) if self.current.is_some() => self.suspending = true,
            (ChannelCommand::SUSPEND, State::Running | State::Armed) => self.state = State::Suspended,
            (ChannelCommand::RESUME, State::Suspended) => self.state = State::Running,
            (ChannelCommand::ABORT, State::Running | State::Armed | State::Suspended) => {
                self.state = State::Halted;
                self.current = None;
                self.trouble.held = None;
                self.trouble.stale = None;
            }
            (ChannelCommand::APPEND, State::Running | State::Suspended) => self.append = !self.fresh,
            // A channel that halts just when it is told to stop is no fault of the driver.
            (ChannelCommand::SUSPEND | ChannelCommand::ABORT, _) => {}
            (ChannelCommand::START | ChannelCommand::RESUME | ChannelCommand::APPEND, _) => return refused,
            _ => {
                self.errors |= ChannelErrors::COMMAND;
                self.state = State::Halted;
                self.current = None;
                return refused;
            }
        }
        Ok(())
    }
}

/// The bits of CHANCTRL that keep what was written: not the interrupt and the in-use bit.
const CONTROL_WRITABLE: u16 = 0xf23c;
