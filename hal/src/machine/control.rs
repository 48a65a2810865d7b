//! What changes the machine.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, access};

/// The means to change a machine. Tests put a kernel of their own in the place of Linux.
pub trait Control {
    /// Writes `text` to a file of the kernel in one call.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Loads a module.
    ///
    /// # Errors
    ///
    /// What `modprobe` says.
    fn load_module(&self, name: &str) -> Result<(), String>;

    /// Gives a file to a user, by number.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    fn change_owner(&self, path: &Path, user: u32) -> io::Result<()>;

    /// Whether this user may write a file.
    fn may_write(&self, path: &Path) -> bool;
}

/// This machine's kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemControl;

impl Control for SystemControl {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
    }

    fn load_module(&self, name: &str) -> Result<(), String> {
        let failed = |error: io::Error| format!("modprobe could not be started: {error}");
        let output = Command::new("modprobe").arg(name).output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("modprobe {name} failed: {}", said.trim().replace('\n', "; ")))
    }

    fn change_owner(&self, path: &Path, user: u32) -> io::Result<()> {
        chown(path, Some(user), None)
    }

    fn may_write(&self, path: &Path) -> bool {
        access(path, Access::WRITE_OK).is_ok()
    }
}
