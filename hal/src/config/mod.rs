//! Configuration space.
//!
//! [`ConfigSpace`] is the access itself. On it stand the header ([`identity`],
//! [`Command`], [`Status`]), the capability lists ([`capabilities`],
//! [`extended_capabilities`]) and the capabilities that this crate knows in detail:
//! [`PowerManagement`], [`Msi`], [`Msix`], [`Express`] and [`AdvancedFeatures`].

mod bytes;
mod capabilities;
mod express;
mod header;
#[cfg(test)]
pub(crate) mod mock;
mod msi;
mod msix;
mod names;
mod power;
mod rom;

pub use bytes::ConfigBytes;
pub use capabilities::{
    Capabilities, Capability, ExtendedCapabilities, ExtendedCapability, capabilities, extended_capabilities,
    find_capability, find_extended_capability,
};
pub use express::{
    AdvancedFeatures, DeviceCapabilities, DeviceStatus, Express, ExpressFlags, LinkCapabilities, LinkSpeed,
    LinkStatus, PortType,
};
pub(crate) use header::gone_or;
pub use header::{
    Command, HeaderLayout, HeaderType, Status, clear_status, identity, read_command, read_header_type,
    read_status, register, require_present, update_command, write_command,
};
pub use msi::{Msi, MsiControl};
pub use msix::{Msix, MsixControl, MsixEntry, MsixLocation, MsixTable, VectorControl};
pub use names::{CapabilityId, ExtendedCapabilityId};
pub use power::{PowerCapabilities, PowerControl, PowerManagement, PowerState};
pub use rom::{CodeType, RomError, RomImage, RomImages, rom_images};

use thiserror::Error;

use crate::mmio::Width;
use crate::poll::TimedOut;

/// The configuration space of one function: 256 bytes, or 4096 with PCI Express.
///
/// Accesses are 8, 16 or 32 bits wide, naturally aligned, and are done with exactly that
/// width: a 16-bit write to Command does not touch Status.
pub trait ConfigSpace: Send + Sync {
    /// Its size in bytes, 256 or 4096.
    fn size(&self) -> u16;

    /// Reads `width` bytes at `offset`. The provided methods have checked both.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DeviceGone`], [`ConfigError::NotOpen`], [`ConfigError::System`].
    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError>;

    /// Writes `width` bytes at `offset`. The provided methods have checked both.
    ///
    /// # Errors
    ///
    /// As [`read_raw`](Self::read_raw).
    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError>;

    /// Reads a byte.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Misaligned`], [`ConfigError::OutOfBounds`], and those of
    /// [`read_raw`](Self::read_raw).
    fn read8(&self, offset: u16) -> Result<u8, ConfigError> {
        check(self.size(), offset, Width::U8)?;
        // CAST: the value of an 8-bit read; the mask makes it fit.
        self.read_raw(offset, Width::U8).map(|value| (value & 0xff) as u8)
    }

    /// Reads a 16-bit word.
    ///
    /// # Errors
    ///
    /// As [`read8`](Self::read8).
    fn read16(&self, offset: u16) -> Result<u16, ConfigError> {
        check(self.size(), offset, Width::U16)?;
        // CAST: the value of a 16-bit read; the mask makes it fit.
        self.read_raw(offset, Width::U16).map(|value| (value & 0xffff) as u16)
    }

    /// Reads a 32-bit word.
    ///
    /// # Errors
    ///
    /// As [`read8`](Self::read8).
    fn read32(&self, offset: u16) -> Result<u32, ConfigError> {
        check(self.size(), offset, Width::U32)?;
        self.read_raw(offset, Width::U32)
    }

    /// Writes a byte.
    ///
    /// # Errors
    ///
    /// As [`read8`](Self::read8).
    fn write8(&self, offset: u16, value: u8) -> Result<(), ConfigError> {
        check(self.size(), offset, Width::U8)?;
        self.write_raw(offset, Width::U8, u32::from(value))
    }

    /// Writes a 16-bit word.
    ///
    /// # Errors
    ///
    /// As [`read8`](Self::read8).
    fn write16(&self, offset: u16, value: u16) -> Result<(), ConfigError> {
        check(self.size(), offset, Width::U16)?;
        self.write_raw(offset, Width::U16, u32::from(value))
    }

    /// Writes a 32-bit word.
    ///
    /// # Errors
    ///
    /// As [`read8`](Self::read8).
    fn write32(&self, offset: u16, value: u32) -> Result<(), ConfigError> {
        check(self.size(), offset, Width::U32)?;
        self.write_raw(offset, Width::U32, value)
    }
}

fn check(size: u16, offset: u16, width: Width) -> Result<(), ConfigError> {
    let bytes = width.bytes();
    if usize::from(offset) + bytes > usize::from(size) {
        return Err(ConfigError::OutOfBounds { offset, width, size });
    }
    if !usize::from(offset).is_multiple_of(bytes) {
        return Err(ConfigError::Misaligned { offset, width });
    }
    Ok(())
}

/// Where a register of a capability is. A capability near the end of configuration space
/// may name registers past it: the access fails then, the sum does not.
fn at(capability: u16, register: u16) -> u16 {
    capability.saturating_add(register)
}

/// A 16-bit register of a capability, none of which can be all ones.
fn field16(config: &dyn ConfigSpace, capability: u16, register: u16) -> Result<u16, ConfigError> {
    let offset = at(capability, register);
    match config.read16(offset)? {
        u16::MAX => Err(gone_or(config, offset, "a register of a capability is all ones")),
        value => Ok(value),
    }
}

/// A 32-bit register of a capability.
fn field32(config: &dyn ConfigSpace, capability: u16, register: u16) -> Result<u32, ConfigError> {
    config.read32(at(capability, register))
}

/// Why an access to configuration space failed. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The access is not inside configuration space.
    #[error("{width} access at {offset:#x} is outside configuration space of {size} bytes")]
    OutOfBounds {
        /// Where the access began.
        offset: u16,
        /// Its width.
        width: Width,
        /// The size of configuration space.
        size: u16,
    },
    /// The access is not naturally aligned.
    #[error("{width} access at {offset:#x} of configuration space is not aligned")]
    Misaligned {
        /// Where the access began.
        offset: u16,
        /// Its width.
        width: Width,
    },
    /// Configuration space answers all ones: the function is gone.
    #[error("the device is gone: configuration space answers all ones")]
    DeviceGone,
    /// The session is closed.
    #[error("the session is not open")]
    NotOpen,
    /// The system shows this process only the beginning of configuration space.
    #[error(
        "configuration space at {offset:#x} needs privilege, only {readable} bytes are readable: \
         run as root, or give the process CAP_SYS_ADMIN"
    )]
    Privilege {
        /// Where the access began.
        offset: u16,
        /// How many bytes are readable.
        readable: u16,
    },
    /// The access is not possible through this backend.
    #[error("configuration space is read-only here")]
    ReadOnly,
    /// The function did not take over what was written.
    #[error("the function ignored a write to {register} at {offset:#x}")]
    Ignored {
        /// Where.
        offset: u16,
        /// The register.
        register: &'static str,
    },
    /// The function did not do in time what it was asked to.
    #[error(transparent)]
    TimedOut(TimedOut),
    /// The function does not have what was asked for.
    #[error("the function does not support {what}")]
    NotSupported {
        /// What was asked for.
        what: &'static str,
    },
    /// What the function says contradicts the standard.
    #[error("malformed configuration space at {offset:#x}: {what}")]
    Malformed {
        /// Where.
        offset: u16,
        /// What is wrong.
        what: &'static str,
    },
    /// The system refused the access.
    #[error("access to configuration space at {offset:#x} failed: {error}")]
    System {
        /// Where the access began.
        offset: u16,
        /// What the system said.
        error: std::io::ErrorKind,
    },
}

#[cfg(test)]
mod typed_tests;
