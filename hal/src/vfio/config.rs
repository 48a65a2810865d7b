//! Configuration space, through its region of the device file.

use std::sync::Arc;

use rustix::io::Errno;

use super::device::{Device, Unreached};
use super::kernel::KernelFile;
use crate::config::{Command, ConfigError, ConfigSpace, register};
use crate::mmio::Width;

/// The configuration space of an open device. The kernel virtualises a part of it: BARs
/// have addresses of their own, MSI and MSI-X belong to the kernel.
#[derive(Clone)]
pub(super) struct VfioConfig {
    device: Arc<Device>,
    offset: u64,
    size: u16,
    /// For closing: works although the session is closed.
    closing: bool,
}

impl VfioConfig {
    /// The region at `offset` of the file, which has `size` bytes.
    pub(super) fn new(device: Arc<Device>, offset: u64, size: u64) -> Self {
        Self { device, offset, size: if size >= 4096 { 4096 } else { 256 }, closing: false }
    }

    /// The same, working until the file is closed.
    pub(super) fn for_closing(&self) -> Self {
        Self { device: Arc::clone(&self.device), offset: self.offset, size: self.size, closing: true }
    }

    fn reach<R>(&self, access: impl FnOnce(&dyn KernelFile) -> Result<R, Errno>) -> Result<R, Unreached> {
        if self.closing { self.device.reach_anyhow(access) } else { self.device.reach(access) }
    }
}

impl ConfigSpace for VfioConfig {
    fn size(&self) -> u16 {
        self.size
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        let mut raw = [0; 4];
        let field = &mut raw[..width.bytes().min(4)];
        let at = self.offset.saturating_add(u64::from(offset));
        let count = self.reach(|file| file.read_at(at, field)).map_err(|error| failed(offset, error))?;
        if count == field.len() {
            Ok(u32::from_le_bytes(raw))
        } else {
            Err(failed(offset, Unreached::Failed(Errno::IO)))
        }
    }

    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError> {
        let raw = value.to_le_bytes();
        let field = &raw[..width.bytes().min(4)];
        let at = self.offset.saturating_add(u64::from(offset));
        // An access to a mapped BAR while memory space is off would be taken for a removal.
        let decodes = memory_space_after(offset, field);
        let decoded = self.device.is_decoding();
        if decodes == Some(false) {
            self.device.set_decoding(false);
        }
        let written = match self.reach(|file| file.write_at(at, field)) {
            Ok(count) if count == field.len() => Ok(()),
            Ok(_) => Err(failed(offset, Unreached::Failed(Errno::IO))),
            Err(error) => Err(failed(offset, error)),
        };
        if let Err(error) = written {
            // The function decodes what it decoded.
            if decodes == Some(false) && decoded {
                self.device.set_decoding(true);
            }
            return Err(error);
        }
        if decodes == Some(true) {
            self.device.set_decoding(true);
        }
        Ok(())
    }
}

/// Whether the function answers accesses to its memory after a write, if the write says.
fn memory_space_after(offset: u16, bytes: &[u8]) -> Option<bool> {
    let inside = usize::from(register::COMMAND.checked_sub(offset)?);
    let low = *bytes.get(inside)?;
    Some(Command(u16::from(low)).memory_space())
}

fn failed(offset: u16, unreached: Unreached) -> ConfigError {
    match unreached {
        Unreached::NotOpen => ConfigError::NotOpen,
        Unreached::Gone => ConfigError::DeviceGone,
        Unreached::Failed(_) => ConfigError::System { offset, error: unreached.kind() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_command_says_whether_memory_answers() {
        assert_eq!(memory_space_after(4, &[0b110, 0]), Some(true));
        assert_eq!(memory_space_after(4, &[0b101]), Some(false));
        assert_eq!(memory_space_after(0, &[0, 0, 0, 0, 2][..4]), None);
        assert_eq!(memory_space_after(5, &[2]), None);
        assert_eq!(memory_space_after(8, &[2; 4]), None);
    }
}
