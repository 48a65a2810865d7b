//! Base address registers: what they are, and checked access to what they decode.

mod access;
mod areas;
mod liveness;
mod region;
mod sizing;

pub use access::{Bar, BarAccess, BarPermissions, MappedArea};
pub(crate) use access::{read_volatile, write_volatile};
pub use areas::{Area, mappable_areas};
pub use liveness::{Liveness, LivenessState};
pub(crate) use liveness::{Moment, Remedy};
pub use region::{RegionInfo, RegionInfoError};
pub use sizing::{BarLayout, BarRegister, BarRegisters, RomInfo, bar_registers, size_bars};

use core::fmt;

use thiserror::Error;

use crate::address::{BarIndex, ByteLength};
use crate::mmio::Width;

/// What a base address register decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarKind {
    /// 32-bit memory space.
    Memory32,
    /// 64-bit memory space; the next register holds the upper half.
    Memory64,
    /// I/O space.
    Io,
}

impl fmt::Display for BarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory32 => "32-bit memory",
            Self::Memory64 => "64-bit memory",
            Self::Io => "I/O",
        })
    }
}

/// One base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BarInfo {
    /// Its number; for a 64-bit register that of the lower half.
    pub index: BarIndex,
    /// What it decodes.
    pub kind: BarKind,
    /// Whether reads have no side effects and writes may be merged.
    pub prefetchable: bool,
    /// How much it decodes, a power of two.
    pub size: ByteLength,
    /// The bus address it is programmed with, zero when unassigned.
    pub address: u64,
}

/// Why an access to a BAR failed. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BarError {
    /// The function has no such BAR.
    #[error("{function} has no {bar}")]
    Absent {
        /// The function.
        function: String,
        /// The register.
        bar: BarIndex,
    },
    /// The access is not inside the BAR.
    #[error("{width} access at {offset:#x} is outside {bar} of {size:#x} bytes")]
    OutOfBounds {
        /// The register.
        bar: BarIndex,
        /// Where the access began.
        offset: u64,
        /// Its width.
        width: Width,
        /// How much the register decodes.
        size: u64,
    },
    /// A set of registers is not inside the BAR.
    #[error(
        "{set} at {offset:#x} needs {length:#x} bytes, which are not all inside {bar} of {size:#x} bytes"
    )]
    SetOutOfBounds {
        /// The register.
        bar: BarIndex,
        /// The name of the set.
        set: &'static str,
        /// Where the set would begin.
        offset: u64,
        /// How long it is.
        length: u64,
        /// How much the register decodes.
        size: u64,
    },
    /// The access is not naturally aligned.
    #[error("{width} access at {offset:#x} of {bar} is not aligned")]
    Misaligned {
        /// The register.
        bar: BarIndex,
        /// Where the access began.
        offset: u64,
        /// Its width.
        width: Width,
    },
    /// The backend allows no access of this direction.
    #[error("{bar} is not {access} through this backend")]
    Forbidden {
        /// The register.
        bar: BarIndex,
        /// "readable" or "writable".
        access: &'static str,
    },
    /// The session that the handle came from is closed.
    #[error("{bar}: the session is not open")]
    NotOpen {
        /// The register.
        bar: BarIndex,
    },
    /// The function is gone.
    #[error("{bar}: the device is gone")]
    DeviceGone {
        /// The register.
        bar: BarIndex,
    },
    /// The function does not answer for now.
    #[error("{bar}: the device does not answer: memory space is off, or it is in low power")]
    Asleep {
        /// The register.
        bar: BarIndex,
    },
    /// The system refused the access.
    #[error("access to {bar} at {offset:#x} failed: {error}")]
    System {
        /// The register.
        bar: BarIndex,
        /// Where the access began.
        offset: u64,
        /// What the system said.
        error: std::io::ErrorKind,
    },
}

impl BarError {
    /// Whether there is no device behind the handle any more: it is gone, or its session
    /// closed.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::DeviceGone { .. } | Self::NotOpen { .. })
    }
}
