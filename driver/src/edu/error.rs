//! What may go wrong with the educational device.

use thiserror::Error;
use vdk_descriptors::edu::Identification;
use vdk_hal::address::{ByteLength, IovaRange};
use vdk_hal::bar::BarError;
use vdk_hal::memory::OutOfBounds;
use vdk_hal::poll::TimedOut;
use vdk_iommu::{AddressWidth, DomainError};

use crate::kit::SessionError;

/// Why something was not done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EduError {
    /// The identification register is that of something else.
    #[error("the device identifies itself as {:#010x}, not as an edu device", found.0)]
    Identification {
        /// What was read.
        found: Identification,
    },
    /// The liveness register does not invert what is written to it.
    #[error("the liveness check read {found:#010x} instead of {expected:#010x}")]
    Liveness {
        /// What was read.
        found: u32,
        /// The inverse of what was written.
        expected: u32,
    },
    /// The device does something that was asked for before, and was not waited for.
    #[error("the device is still busy with {what}: wait, or stop it")]
    Busy {
        /// "a factorial" or "a transfer".
        what: &'static str,
    },
    /// A transfer does not fit the buffer of the device.
    #[error(
        "{length} at offset {offset:#x} of the device's buffer is not possible: a transfer has at least one \
         byte and ends before the last of its {buffer:#x} bytes"
    )]
    OutsideBuffer {
        /// Where it begins in the buffer.
        offset: u64,
        /// How long it is.
        length: ByteLength,
        /// The size of the buffer.
        buffer: u64,
    },
    /// The memory of a transfer is beyond the address bits that the device drives.
    #[error("{range} is beyond the {width} of the device: map it through the driver's own domain")]
    BeyondWidth {
        /// Where the memory is mapped.
        range: IovaRange,
        /// What the device drives.
        width: AddressWidth,
    },
    /// A part of a region is not inside it.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The device did not finish in time. It may still do so.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The device finished, and its interrupt did not arrive.
    #[error("{what} is done, but its interrupt did not arrive: check the interrupts, or poll")]
    InterruptLost {
        /// What was waited for.
        what: &'static str,
    },
    /// The function has no interrupt that could be enabled.
    #[error("the device has no interrupt: wait by polling")]
    NoInterrupt,
    /// An event file failed.
    #[error("an event file failed: {0}")]
    EventFile(std::io::ErrorKind),
    /// A register could not be accessed, or the device is gone.
    #[error(transparent)]
    Register(#[from] BarError),
    /// The session refused something.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The address space could not be set up.
    #[error(transparent)]
    Domain(#[from] DomainError),
}

impl EduError {
    /// Whether the device is gone, or its session closed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Register(error) => {
                matches!(error, BarError::DeviceGone { .. } | BarError::NotOpen { .. })
            }
            Self::Session(error) => matches!(error, SessionError::NotOpen { .. }),
            _ => false,
        }
    }
}
