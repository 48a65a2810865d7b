//! The drivers that functions had before they were given away.
//!
//! One small text file for each function, so that no lock is needed. A record holds until
//! the machine boots again, since then every function is with its own driver.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::driver_state::DriverState;
use super::{Machine, text};
use crate::address::Bdf;

impl Machine {
    /// What is remembered of a function since the machine booted.
    pub(super) fn remembered(&self, address: Bdf) -> Option<DriverState> {
        let boot = self.boot();
        self.records.iter().find_map(|folder| read(&folder.join(address.to_string()), &boot))
    }

    /// Remembers the state of a function in place of what was remembered; tells where.
    ///
    /// # Errors
    ///
    /// The last folder that was tried and why it could not be written.
    pub(super) fn remember(
        &self,
        address: Bdf,
        state: &DriverState,
    ) -> Result<PathBuf, (PathBuf, io::Error)> {
        let word = |name: &Option<String>| name.clone().unwrap_or_else(|| NOBODY.to_owned());
        let record = format!(
            "boot {}\ndriver {}\nreserved_for {}\n",
            self.boot(),
            word(&state.driver),
            word(&state.reserved_for)
        );
        self.forget(address);
        let mut last = (PathBuf::new(), io::Error::from(io::ErrorKind::NotFound));
        for folder in &self.records {
            match store(folder, &address.to_string(), &record) {
                Ok(path) => return Ok(path),
                Err(error) => last = (folder.clone(), error),
            }
        }
        Err(last)
    }

    /// Forgets a function. One that cannot be forgotten is found out of date later.
    pub(super) fn forget(&self, address: Bdf) {
        for folder in &self.records {
            let path = folder.join(address.to_string());
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!("cannot remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
    }

    /// What the kernel calls this boot.
    fn boot(&self) -> String {
        self.text("/proc/sys/kernel/random/boot_id").unwrap_or_else(|| NOBODY.to_owned())
    }
}

fn read(path: &Path, boot: &str) -> Option<DriverState> {
    let owner = fs::symlink_metadata(path).ok()?.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        log::warn!("{} is ignored: it belongs to user {owner}", path.display());
        return None;
    }
    parse(&text(path)?, boot)
}

/// A record of this boot; `None` for any other text.
fn parse(record: &str, boot: &str) -> Option<DriverState> {
    let field = |key: &str| {
        let mut lines = record.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
    };
    if field("boot")? != boot {
        return None;
    }
    // A name becomes a part of a path.
    let name = |key: &str| match field(key)? {
        NOBODY => Some(None),
        name if name.contains('/') || name.starts_with('.') || name.is_empty() => None,
        name => Some(Some(name.to_owned())),
    };
    Some(DriverState { driver: name("driver")?, reserved_for: name("reserved_for")? })
}

/// Writes a record so that it is there completely or not at all.
fn store(folder: &Path, name: &str, record: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(name);
    let new = folder.join(format!(".{name}.{}", std::process::id()));
    // A file that is there already would be somebody else's, perhaps a link to another place.
    let _ = fs::remove_file(&new);
    let file = OpenOptions::new().write(true).create_new(true).open(&new);
    let written =
        file.and_then(|mut file| file.write_all(record.as_bytes())).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map(|()| path)
}

const NOBODY: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_boot_or_with_a_path_in_it_is_none() {
        let good = "boot a-1\ndriver nvme\nreserved_for -\n";
        let state = DriverState { driver: Some("nvme".to_owned()), reserved_for: None };
        assert_eq!(parse(good, "a-1"), Some(state));
        assert_eq!(parse("boot a-1\ndriver -\nreserved_for -", "a-1"), Some(DriverState::default()));
        for bad in [
            "",
            "boot a-2\ndriver nvme\nreserved_for -\n",
            "boot a-1\nreserved_for -\n",
            "boot a-1\ndriver ../../x\nreserved_for -\n",
            "boot a-1\ndriver nvme\nreserved_for ..\n",
        ] {
            assert_eq!(parse(bad, "a-1"), None, "{bad}");
        }
    }
}
