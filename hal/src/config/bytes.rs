//! Configuration space held in memory.

use super::{ConfigError, ConfigSpace};
use crate::mmio::Width;

/// A copy of configuration space, read-only: a dump, a snapshot, or what a file held.
///
/// It may be shorter than the configuration space it was taken of; what is missing answers
/// [`ConfigError::Privilege`], since that is why Linux cuts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigBytes {
    bytes: Vec<u8>,
    size: u16,
}

impl ConfigBytes {
    /// Takes the bytes of a configuration space of `size` bytes, usually 256 or 4096; bytes
    /// beyond that are dropped.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>, size: u16) -> Self {
        let mut bytes = bytes.into();
        bytes.truncate(usize::from(size));
        Self { bytes, size }
    }

    /// Copies all of `config` that can be read.
    ///
    /// # Errors
    ///
    /// Those of the access, but for [`ConfigError::Privilege`], which only ends the copy.
    pub fn snapshot(config: &dyn ConfigSpace) -> Result<Self, ConfigError> {
        let size = config.size();
        let mut bytes = Vec::with_capacity(usize::from(size));
        for offset in (0..size & !3).step_by(4) {
            match config.read32(offset) {
                Ok(word) => bytes.extend_from_slice(&word.to_le_bytes()),
                Err(ConfigError::Privilege { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { bytes, size })
    }

    /// What there is of it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl ConfigSpace for ConfigBytes {
    fn size(&self) -> u16 {
        self.size
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        let start = usize::from(offset);
        let field = self.bytes.get(start..start + width.bytes()).ok_or_else(|| ConfigError::Privilege {
            offset,
            readable: u16::try_from(self.bytes.len()).unwrap_or(u16::MAX),
        })?;
        Ok(field.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    fn write_raw(&self, _offset: u16, _width: Width, _value: u32) -> Result<(), ConfigError> {
        Err(ConfigError::ReadOnly)
    }
}
