//! A PCI function that may be opened, and one that is open.

use core::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::address::{BarIndex, Bdf};
use crate::bar::{Bar, BarError, BarInfo};
use crate::config::{ConfigError, ConfigSpace};
use crate::dma::DmaMapper;
use crate::event::DeviceEvents;
use crate::interrupt::Interrupts;
use crate::reset::{ResetError, ResetKind};

/// What a function is, from the first 64 bytes of its configuration space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PciIdentity {
    /// Vendor ID, offset 0x00.
    pub vendor: u16,
    /// Device ID, offset 0x02.
    pub device: u16,
    /// Revision ID, offset 0x08.
    pub revision: u8,
    /// Class code: base class, subclass and programming interface in 24 bits.
    pub class: u32,
    /// Subsystem vendor ID, offset 0x2c.
    pub subsystem_vendor: u16,
    /// Subsystem ID, offset 0x2e.
    pub subsystem: u16,
}

impl fmt::Display for PciIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// A function that is there and can be opened, by one owner at a time.
pub trait PciNode: Send + Sync {
    /// What a person calls it: `stub:ioat`, `0000:01:00.0`, `vfio-user:/run/x.sock`.
    fn name(&self) -> &str;

    /// Where it sits.
    fn address(&self) -> Bdf;

    /// What it is. Needs no open.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DeviceGone`] when it is gone.
    fn identity(&self) -> Result<PciIdentity, ConfigError>;

    /// Opens it exclusively. Bus mastering is off then, whoever had it before.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError>;
}

/// A function that is open. Dropping the last reference closes it: interrupts off, bus
/// mastering off, reset where it has one.
pub trait PciFunction: Send + Sync {
    /// What a person calls it.
    fn name(&self) -> &str;

    /// Where it sits.
    fn address(&self) -> Bdf;

    /// Its configuration space.
    fn config(&self) -> &dyn ConfigSpace;

    /// The BAR with a number; `None` when there is none or it is the upper half of another.
    fn bar_info(&self, index: BarIndex) -> Option<BarInfo>;

    /// Access to a BAR.
    ///
    /// # Errors
    ///
    /// [`BarError::Absent`], [`BarError::System`].
    fn bar(&self, index: BarIndex) -> Result<Bar, BarError>;

    /// The expansion ROM image, all of it; `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`BarError::DeviceGone`], [`BarError::System`].
    fn rom(&self) -> Result<Option<Vec<u8>>, BarError>;

    /// Its interrupts.
    fn interrupts(&self) -> &dyn Interrupts;

    /// The address space that its DMA goes through. Functions may share one.
    fn dma(&self) -> Arc<dyn DmaMapper>;

    /// What it tells out of band.
    fn events(&self) -> &DeviceEvents;

    /// The kinds of reset that work, best first; empty when there is none.
    fn reset_kinds(&self) -> Vec<ResetKind>;

    /// Resets the function. Memory decoding, bus mastering and interrupts are off
    /// afterwards; mappings stay.
    ///
    /// # Errors
    ///
    /// [`ResetError`]; a kind that does not work is an error, never a quiet success.
    fn reset(&self, kind: ResetKind) -> Result<(), ResetError>;

    /// Turns bus mastering on or off, by the backend's own feature where it has one, and
    /// otherwise in the Command register.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError>;

    /// Ends the session now, as dropping would: every handle of the function answers "not
    /// open" afterwards. Closing twice is harmless.
    fn close(&self);
}

/// Why a function was not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Somebody has it open.
    #[error("{function} is open already, by {holder}")]
    Busy {
        /// The function.
        function: String,
        /// Who has it.
        holder: String,
    },
    /// There is no such function.
    #[error("there is no {function}: `vdk list` shows what there is")]
    NotFound {
        /// The function.
        function: String,
    },
    /// The function is gone.
    #[error("{function} is gone")]
    Gone {
        /// The function.
        function: String,
    },
    /// The function is there but cannot be opened.
    #[error("{function} cannot be opened: {reason}; {fix}")]
    Refused {
        /// The function.
        function: String,
        /// Why.
        reason: String,
        /// What to do about it.
        fix: String,
    },
}
