//! What a refused access is, and the log of them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use core::fmt;

use thiserror::Error;
use vdk_hal::address::{Iova, RequesterId};

/// An access of a device that the IOMMU refused. It is in the fault log too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("function {requester}: {} at iova {address} refused: {reason}", if *.write { "write" } else { "read" })]
pub struct TranslationFault {
    /// Why it was refused.
    pub reason: FaultReason,
    /// Which function asked.
    pub requester: RequesterId,
    /// The first address that could not be reached. For [`FaultReason::Overflow`] and
    /// [`FaultReason::Misaligned`] it is where the access began. Zero when a burst could
    /// not even begin.
    pub address: Iova,
    /// Whether the device wanted to write.
    pub write: bool,
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultReason {
    /// Bus mastering is not enabled for the function.
    BusMasterOff,
    /// Nothing is mapped there, or no longer.
    NotMapped,
    /// The mapping does not let the device read.
    NotReadable,
    /// The mapping does not let the device write.
    NotWritable,
    /// The access passes the end of the 64-bit address space; nothing of it was done.
    Overflow,
    /// A word that must be accessed in one piece is not aligned to its size.
    Misaligned,
    /// The memory is in another process, which did not answer, or not rightly.
    NotAnswered,
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BusMasterOff => "bus mastering is off, set bit 2 of the command register",
            Self::NotMapped => "nothing is mapped there",
            Self::NotReadable => "the mapping is not readable by the device",
            Self::NotWritable => "the mapping is not writable by the device",
            Self::Overflow => "the access passes the end of the address space",
            Self::Misaligned => "the word is not aligned to its size",
            Self::NotAnswered => "the process that has the memory did not answer, or not rightly",
        })
    }
}

/// How many faults the log keeps.
pub const FAULT_LOG_LENGTH: usize = 256;

/// The latest faults and the count of all.
#[derive(Debug, Default)]
pub(super) struct FaultLog {
    state: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    latest: VecDeque<TranslationFault>,
    count: u64,
}

impl FaultLog {
    pub(super) fn push(&self, fault: TranslationFault) {
        let mut state = self.lock();
        if state.latest.len() == FAULT_LOG_LENGTH {
            state.latest.pop_front();
        }
        state.latest.push_back(fault);
        state.count = state.count.saturating_add(1);
    }

    pub(super) fn latest(&self) -> Vec<TranslationFault> {
        self.lock().latest.iter().copied().collect()
    }

    pub(super) fn count(&self) -> u64 {
        self.lock().count
    }

    pub(super) fn clear(&self) {
        *self.lock() = Faults::default();
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(address: u64) -> TranslationFault {
        TranslationFault {
            reason: FaultReason::NotMapped,
            requester: RequesterId::new(0x0108),
            address: Iova::new(address),
            write: true,
        }
    }

    #[test]
    fn the_log_keeps_the_latest_and_counts_all() {
        let log = FaultLog::default();
        for address in 0..1000 {
            log.push(fault(address));
        }
        assert_eq!(log.count(), 1000);
        let latest = log.latest();
        assert_eq!(latest.len(), FAULT_LOG_LENGTH);
        assert_eq!((latest[0], latest[255]), (fault(744), fault(999)));
        log.clear();
        assert_eq!((log.count(), log.latest().len()), (0, 0));
    }

    #[test]
    fn a_fault_names_function_direction_address_and_reason() {
        assert_eq!(
            fault(0xdead_f000).to_string(),
            "function 01:01.0: write at iova 0xdeadf000 refused: nothing is mapped there"
        );
    }
}
