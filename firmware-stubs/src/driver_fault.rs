//! What a driver did that hardware would not forgive.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use vdk_hal::address::{BarIndex, ByteLength, Iova};
use vdk_hal::mmio::Width;

/// Something that a driver did wrong, and where. An emulated device answers it as harmlessly
/// as hardware would, and writes it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverFault {
    /// What was wrong.
    pub kind: DriverFaultKind,
    /// The BAR that was accessed.
    pub bar: BarIndex,
    /// Where in it.
    pub offset: u64,
}

impl fmt::Display for DriverFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}: {}", self.bar, self.offset, self.kind)
    }
}

/// What a driver did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverFaultKind {
    /// There is no register. Reads give all ones, writes are dropped.
    Hole,
    /// The register is not accessed with this width. Reads give all ones, writes are dropped.
    Width(Width),
    /// The register cannot be written.
    ReadOnly,
    /// The register cannot be read.
    WriteOnly,
    /// Memory decoding is off in the Command register.
    DecodingOff,
    /// The function is in D3hot.
    LowPower,
    /// A register was written that may not change while a transfer runs.
    TransferRunning,
    /// A doorbell before the channel had a chain.
    DoorbellBeforeStart {
        /// The channel.
        channel: u8,
    },
    /// A doorbell for a channel that is halted.
    DoorbellWhileHalted {
        /// The channel.
        channel: u8,
    },
    /// Work was handed over while bus mastering is off.
    BusMasterOff,
    /// A chain was set up while the channel was working, or before its errors were cleared.
    ChainRefused {
        /// The channel.
        channel: u8,
    },
    /// A command that does not exist, does not fit the state, or several at once.
    Command {
        /// The channel.
        channel: u8,
        /// What was written.
        command: u8,
    },
    /// A transfer leaves the device's own buffer. Nothing was moved.
    BufferRange {
        /// Where the transfer begins in the device's address space.
        address: Iova,
        /// How long it is.
        length: ByteLength,
    },
    /// An address has bits that the device does not drive. Nothing was moved.
    AddressMask {
        /// The address.
        address: Iova,
        /// How many bits the device drives.
        bits: u8,
    },
    /// A register was written that may not change while the controller is enabled.
    ControllerEnabled,
    /// The controller was enabled with what it does not have, or too early.
    EnableRefused {
        /// What is wrong.
        what: &'static str,
    },
    /// Reserved bits were written.
    ReservedBits {
        /// Those bits.
        bits: u32,
    },
    /// The interrupt mask registers are not for use with MSI-X.
    InterruptMaskWithMsix,
    /// A doorbell of a queue got a wrong value, or there is no such queue.
    QueueDoorbell {
        /// The queue.
        queue: u16,
        /// What was written.
        value: u32,
        /// What is wrong.
        what: &'static str,
    },
}

impl fmt::Display for DriverFaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hole => f.write_str("there is no register"),
            Self::Width(width) => write!(f, "the register has no {width} access"),
            Self::ReadOnly => f.write_str("the register is read only"),
            Self::WriteOnly => f.write_str("the register is write only"),
            Self::DecodingOff => f.write_str("memory decoding is off in the command register"),
            Self::LowPower => f.write_str("the function is in D3hot"),
            Self::TransferRunning => f.write_str("a transfer is running"),
            Self::DoorbellBeforeStart { channel } => {
                write!(f, "channel {channel} has no chain yet and got a doorbell")
            }
            Self::DoorbellWhileHalted { channel } => {
                write!(f, "channel {channel} is halted and got a doorbell")
            }
            Self::BusMasterOff => f.write_str("work was handed over while bus mastering is off"),
            Self::ChainRefused { channel } => {
                write!(f, "channel {channel} works or has errors and got a chain")
            }
            Self::Command { channel, command } => {
                write!(f, "channel {channel} cannot take command {command:#x} now")
            }
            Self::BufferRange { address, length } => {
                write!(f, "a transfer of {length} at {address} leaves the device's buffer")
            }
            Self::AddressMask { address, bits } => {
                write!(f, "address {address} does not fit the {bits} bits that the device drives")
            }
            Self::ControllerEnabled => f.write_str("the controller is enabled"),
            Self::EnableRefused { what } => write!(f, "the controller cannot be enabled: {what}"),
            Self::ReservedBits { bits } => write!(f, "the bits {bits:#x} are reserved"),
            Self::InterruptMaskWithMsix => f.write_str("the interrupt mask is not for use with MSI-X"),
            Self::QueueDoorbell { queue, value, what } => {
                write!(f, "queue {queue} got doorbell value {value:#x}: {what}")
            }
        }
    }
}

/// The faults of a driver, the first ones kept and the others counted: the first is the cause.
#[derive(Debug, Default)]
pub(crate) struct DriverFaultLog {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    first: Vec<DriverFault>,
    count: u64,
}

impl DriverFaultLog {
    pub(crate) fn note(&self, bar: BarIndex, offset: u64, kind: DriverFaultKind) {
        let fault = DriverFault { kind, bar, offset };
        log::debug!("driver fault: {fault}");
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.count += 1;
        if entries.first.len() < KEPT {
            entries.first.push(fault);
        }
    }

    pub(crate) fn entries(&self) -> Vec<DriverFault> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).first.clone()
    }

    pub(crate) fn count(&self) -> u64 {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    pub(crate) fn clear(&self) {
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner) = Entries::default();
    }
}

/// How many faults are kept.
const KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_faults_are_kept_and_all_are_counted() {
        let faults = DriverFaultLog::default();
        let bar = BarIndex::new(0).unwrap();
        for offset in 0..300 {
            faults.note(bar, offset, DriverFaultKind::Hole);
        }
        assert_eq!((faults.entries().len(), faults.count()), (KEPT, 300));
        assert_eq!(faults.entries()[7].to_string(), "BAR0 at 0x7: there is no register");
        faults.clear();
        assert_eq!((faults.entries().len(), faults.count()), (0, 0));
    }
}
