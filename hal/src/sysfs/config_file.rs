//! Configuration space through the `config` file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use crate::config::{ConfigError, ConfigSpace};
use crate::mmio::Width;

/// The configuration space of a function of this machine, read-only.
///
/// Without privilege Linux shows the first 64 bytes only; the rest answers
/// [`ConfigError::Privilege`].
#[derive(Debug)]
pub struct SysfsConfig {
    file: File,
    size: u16,
}

impl SysfsConfig {
    /// Opens a `config` file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DeviceGone`] when it does not exist, [`ConfigError::System`].
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let file = File::open(path).map_err(|error| failed(0, &error))?;
        let length = file.metadata().map_err(|error| failed(0, &error))?.len();
        let size = if length > 256 { 4096 } else { 256 };
        Ok(Self { file, size })
    }
}

impl ConfigSpace for SysfsConfig {
    fn size(&self) -> u16 {
        self.size
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        // The kernel makes one access of this width of an aligned read of this length.
        let mut raw = [0; 4];
        let field = &mut raw[..width.bytes().min(4)];
        let mut have = 0;
        while have < field.len() {
            // CAST: fewer than 4 bytes.
            match self.file.read_at(&mut field[have..], u64::from(offset) + have as u64) {
                Ok(0) => return Err(ConfigError::Privilege { offset, readable: self.readable(offset) }),
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(offset, &error)),
            }
        }
        Ok(u32::from_le_bytes(raw))
    }

    fn write_raw(&self, _offset: u16, _width: Width, _value: u32) -> Result<(), ConfigError> {
        Err(ConfigError::ReadOnly)
    }
}

impl SysfsConfig {
    /// How many bytes below `limit` can be read.
    fn readable(&self, limit: u16) -> u16 {
        let mut bytes = vec![0; usize::from(limit)];
        let count = self.file.read_at(&mut bytes, 0).unwrap_or(0);
        u16::try_from(count).unwrap_or(limit)
    }
}

fn failed(offset: u16, error: &io::Error) -> ConfigError {
    match Errno::from_io_error(error) {
        Some(Errno::NODEV | Errno::NOENT | Errno::NXIO) => ConfigError::DeviceGone,
        _ => ConfigError::System { offset, error: error.kind() },
    }
}
