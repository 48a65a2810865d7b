//! Why a session did not do what it was asked to.

use thiserror::Error;

use crate::hal::bar::BarError;
use crate::hal::config::ConfigError;
use crate::hal::function::OpenError;
use crate::hal::interrupt::{InterruptError, InterruptKind};
use crate::hal::reset::ResetError;

/// Why an operation of a session failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session is closed.
    #[error("{function}: the session is not open")]
    NotOpen {
        /// The function.
        function: String,
    },
    /// The function was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Bus mastering was on and did not go off.
    #[error("{function}: bus mastering stays on, so the device could write to memory; reset it or its slot")]
    BusMasterStuck {
        /// The function.
        function: String,
    },
    /// Configuration space.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A base address register.
    #[error(transparent)]
    Bar(#[from] BarError),
    /// Interrupts.
    #[error(transparent)]
    Interrupt(#[from] InterruptError),
    /// The function has fewer vectors than the driver cannot do without.
    #[error("{function} has {available} {kind} vectors, the driver needs {required}")]
    TooFewVectors {
        /// The function.
        function: String,
        /// The kind of interrupt.
        kind: InterruptKind,
        /// How many there are.
        available: u16,
        /// How many the driver needs.
        required: u16,
    },
    /// A driver was given a domain that its function's DMA does not go through.
    #[error(
        "{function}: its DMA goes through {own}, and the domain is over {given}: make the domain over \
         `Session::dma`, or open the function into the address space of the domain"
    )]
    OtherAddressSpace {
        /// The function.
        function: String,
        /// Its address space.
        own: String,
        /// That of the domain.
        given: String,
    },
    /// A reset.
    #[error(transparent)]
    Reset(#[from] ResetError),
    /// There is no event file for a vector.
    #[error("cannot make an event file: {error}; `ulimit -n` shows the limit")]
    EventFile {
        /// What the system said.
        error: std::io::ErrorKind,
    },
}

impl SessionError {
    /// Whether the device is gone or its session closed: in both cases it reaches memory no
    /// more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NotOpen { .. } => true,
            Self::Config(error) => matches!(error, ConfigError::DeviceGone | ConfigError::NotOpen),
            Self::Bar(error) => error.is_gone(),
            _ => false,
        }
    }
}
