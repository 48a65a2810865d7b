//! What a session keeps its driver from: bits of configuration space, and hitting others.

use crate::hal::config::{ConfigError, ConfigSpace};
use crate::hal::mmio::Width;
use crate::hal::reset::ResetKind;

use super::{Inner, Session, SessionError};

/// Offset of the Command register. See PCI 3.0 §6.2.2 "Device Control".
pub(super) const COMMAND: u16 = 0x04;
/// Memory Space Enable.
pub(super) const MEMORY_SPACE: u16 = 1 << 1;
/// Bus Master Enable.
pub(super) const BUS_MASTER: u16 = 1 << 2;

/// Configuration space of an open session.
///
/// Each access finds out anew whether the session is open. A write to the Command register
/// changes every bit but two: memory decoding and bus mastering follow the session, so that
/// bus mastering is on exactly while somebody holds its guard.
impl ConfigSpace for Inner {
    fn size(&self) -> u16 {
        self.function.config().size()
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        if !self.is_open() {
            return Err(ConfigError::NotOpen);
        }
        self.function.config().read_raw(offset, width)
    }

    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError> {
        let state = self.lock();
        if state.is_none() {
            return Err(ConfigError::NotOpen);
        }
        let config = self.function.config();
        if offset != COMMAND {
            // Aligned accesses reach the low byte of Command from its own offset only.
            return config.write_raw(offset, width, value);
        }
        let gated = u32::from(MEMORY_SPACE | BUS_MASTER);
        let now = config.read_raw(COMMAND, Width::U16)?;
        let value = (value & !gated) | (now & gated);
        config.write_raw(offset, width, value)
    }
}

impl Session {
    /// The best kind of reset that hits this function and no other, for who resets without
    /// being asked: a hot reset ends what the neighbours do, which may be driven from here.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`].
    pub fn own_reset_kind(&self) -> Result<Option<ResetKind>, SessionError> {
        let kinds = self.reset_kinds()?;
        Ok(kinds.into_iter().find(|kind| match kind {
            ResetKind::FunctionLevel | ResetKind::PowerManagement => true,
            ResetKind::Hot => false,
        }))
    }

    /// Shows that the function masters no bus, after the guards of
    /// [`enable_bus_master`](Self::enable_bus_master) were dropped: the last means to end its
    /// access to memory. What is gone or closed masters no bus.
    ///
    /// # Errors
    ///
    /// [`SessionError::BusMasterStuck`], [`SessionError::Config`].
    pub fn require_silence(&self) -> Result<(), SessionError> {
        let command = match self.config() {
            Ok(config) => config.read16(COMMAND).map_err(SessionError::from),
            Err(error) => Err(error),
        };
        match command {
            Ok(command) if command & BUS_MASTER == 0 => Ok(()),
            Ok(_) => Err(SessionError::BusMasterStuck { function: self.name().to_owned() }),
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }
}
