//! Where bytes go: a file that appears only when it is whole, a device, a pipe or the standard
//! output.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Error, Result, bail};

use crate::output::ReaderGone;
use crate::signal::StopRequest;

/// How many links one after the other are followed, as Linux does.
const LINKS: usize = 40;
/// What a pipe that can be written takes without waiting: `PIPE_BUF`, and a page of Linux.
const PIECE: usize = 4096;

/// What is written.
///
/// A regular file is written under a temporary name in the same folder and renamed at the
/// end; on any other way out, the temporary file is removed. It gets owner and mode of the file
/// whose name it takes. Where that is not permitted, and where the file is none, such as a block
/// device or /dev/null, it is written in place.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    file: File,
    kind: Kind,
    written: u64,
}

#[derive(Debug)]
enum Kind {
    /// A new file with this name for the time being.
    Partial(PathBuf),
    /// A regular file that is there, written over.
    InPlace,
    /// No regular file. Whether it takes no more than [`PIECE`] without waiting.
    Special { slow: bool },
    /// The standard output, likewise.
    Standard { slow: bool },
}

impl Destination {
    /// Prepares a file; `-` and any name of the standard output are the standard output.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if path == Path::new("-") {
            return Self::standard();
        }
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => bail!("cannot write {}: it is a folder", path.display()),
            Ok(metadata) if is_standard(&metadata) => Self::standard(),
            Ok(metadata) if !metadata.is_file() => {
                let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
                let kind = Kind::Special { slow: is_slow(&file)? };
                Ok(Self { path: path.to_owned(), file, kind, written: 0 })
            }
            Ok(metadata) => Self::replacing(path, &metadata).with_context(cannot),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let target = followed(path).with_context(cannot)?;
                let (partial, file) = create_partial(&target, 0o666).with_context(cannot)?;
                Ok(Self { path: target, file, kind: Kind::Partial(partial), written: 0 })
            }
            Err(error) => Err(error).with_context(cannot),
        }
    }

    /// The standard output.
    pub(crate) fn standard() -> Result<Self> {
        let file = io::stdout().as_fd().try_clone_to_owned().context("cannot use the standard output")?;
        let file = File::from(file);
        let kind = Kind::Standard { slow: is_slow(&file)? };
        Ok(Self { path: PathBuf::from("the standard output"), file, kind, written: 0 })
    }

    fn replacing(path: &Path, existing: &Metadata) -> Result<Self> {
        // A link is followed, so that the file it names is replaced and not the link.
        let target = path.canonicalize()?;
        // The new file takes the old one's name; without the right to write the old one
        // that would be a way around its permissions.
        let old = OpenOptions::new().write(true).open(&target)?;
        match take_place(&target, existing) {
            Ok((partial, file)) => Ok(Self { path: target, file, kind: Kind::Partial(partial), written: 0 }),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                log::info!("{} is written in place: {error}", target.display());
                Ok(Self { path: target, file: old, kind: Kind::InPlace, written: 0 })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it is the standard output.
    pub(crate) fn is_standard(&self) -> bool {
        matches!(self.kind, Kind::Standard { .. })
    }

    /// The open file, for writing at most `length` bytes from memory after waiting until it takes
    /// so many; [`produced`](Self::produced) follows. How many it takes is the second.
    ///
    /// # Errors
    ///
    /// What [`StopRequest::check`] says, with how things are `left`.
    pub(crate) fn ready(
        &mut self,
        length: usize,
        stop: &StopRequest,
        left: &'static str,
    ) -> Result<(&mut File, usize)> {
        let (Kind::Special { slow } | Kind::Standard { slow }) = self.kind else {
            return Ok((&mut self.file, length));
        };
        stop.await_writable(&self.file, left)?;
        Ok((&mut self.file, if slow { length.min(PIECE) } else { length }))
    }

    /// Notes what became of one attempt to write.
    pub(crate) fn produced(&mut self, result: io::Result<usize>) -> Result<usize> {
        match result {
            Ok(0) => bail!("{} takes no more bytes after {}", self.path.display(), self.written),
            Ok(count) => {
                self.written += u64::try_from(count)?;
                Ok(count)
            }
            // Another process may have made it not wait.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(0),
            Err(error) if self.is_standard() && error.kind() == ErrorKind::BrokenPipe => {
                Err(ReaderGone.into())
            }
            Err(error) => Err(Error::new(error).context(self.failure())),
        }
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// [`ReaderGone`], what [`StopRequest::check`] says, and what the system says.
    pub(crate) fn write_all(&mut self, bytes: &[u8], stop: &StopRequest, left: &'static str) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (file, length) = self.ready(bytes.len() - done, stop, left)?;
            let written = file.write(&bytes[done..done + length]);
            done += self.produced(written)?;
        }
        Ok(())
    }

    fn failure(&self) -> String {
        let left = match self.kind {
            Kind::Partial(_) => "the partial file was removed",
            _ => "it is incomplete",
        };
        format!("cannot write {} beyond {} bytes; {left}", self.path.display(), self.written)
    }

    /// Where a reader finds the bytes written so far; `None` when they cannot be read again.
    pub(crate) fn readable_path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Partial(partial) => Some(partial),
            Kind::InPlace => Some(&self.path),
            Kind::Special { .. } | Kind::Standard { .. } => None,
        }
    }

    /// What a failure leaves.
    pub(crate) fn left_behind(&self) -> &'static str {
        if matches!(self.kind, Kind::Partial(_)) { "the output was removed" } else { "the output is wrong" }
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        match &self.kind {
            Kind::Partial(partial) => {
                self.file.sync_data().with_context(|| self.failure())?;
                std::fs::rename(partial, &self.path).with_context(|| {
                    format!("cannot rename {} to {}", partial.display(), self.path.display())
                })?;
                self.kind = Kind::InPlace;
                self.sync_folder();
            }
            Kind::InPlace => {
                // What is there may have been longer.
                self.file.set_len(self.written).with_context(|| self.failure())?;
                self.file.sync_data().with_context(|| self.failure())?;
            }
            Kind::Special { .. } if self.file.metadata()?.file_type().is_block_device() => {
                self.file.sync_data().with_context(|| self.failure())?;
            }
            Kind::Special { .. } | Kind::Standard { .. } => {}
        }
        Ok(())
    }

    /// Makes the name durable, where the file system can.
    fn sync_folder(&self) {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            log::debug!("{} is not synchronized: {error}", folder.display());
        }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Kind::Partial(partial) = &self.kind
            && let Err(error) = std::fs::remove_file(partial)
        {
            log::error!("the incomplete file {} was left behind: {error}", partial.display());
        }
    }
}

/// Where a path leads whose last link names nothing.
fn followed(path: &Path) -> Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS {
        match std::fs::read_link(&target) {
            // An absolute one replaces everything before.
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(target),
        }
    }
    bail!("it leads through more than {LINKS} links")
}

/// A new file that can take the place of one that is there, with its owner and mode.
fn take_place(target: &Path, existing: &Metadata) -> io::Result<(PathBuf, File)> {
    let (partial, file) = create_partial(target, 0o600)?;
    let adapted = file.metadata().and_then(|made| {
        if (made.uid(), made.gid()) != (existing.uid(), existing.gid()) {
            fchown(&file, Some(existing.uid()), Some(existing.gid()))?;
        }
        // After the owner, whose change takes away some bits of the mode.
        file.set_permissions(existing.permissions())
    });
    match adapted {
        Ok(()) => Ok((partial, file)),
        Err(error) => {
            std::fs::remove_file(&partial)?;
            Err(error)
        }
    }
}

/// A new file beside `target`. Its name is short whatever that of `target` is.
fn create_partial(target: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if target.file_name().is_none() {
        return Err(io::Error::other("the path has no file name"));
    }
    loop {
        // ORDERING: Relaxed; a number of its own is all that is needed.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let partial = target.with_file_name(format!(".vdk-partial-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                log::warn!("{} was left by a run that was killed: remove it", partial.display());
            }
            opened => return opened.map(|file| (partial, file)),
        }
    }
}

/// Whether this is what the standard output is.
fn is_standard(metadata: &Metadata) -> bool {
    let standard = io::stdout().as_fd().try_clone_to_owned().and_then(|file| File::from(file).metadata());
    standard.is_ok_and(|standard| (standard.dev(), standard.ino()) == (metadata.dev(), metadata.ino()))
}

fn is_slow(file: &File) -> Result<bool> {
    let kind = file.metadata()?.file_type();
    Ok(kind.is_fifo() || kind.is_socket() || file.is_terminal())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_and_what_a_killed_run_left_are_no_obstacle() {
        let folder = std::env::temp_dir().join(format!("vdk-destination-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let left = (0..100).map(|number| format!(".vdk-partial-{}-{number}", std::process::id()));
        let left: Vec<_> = left.map(|name| folder.join(name)).collect();
        for name in &left {
            std::fs::write(name, b"left").unwrap();
        }
        let path = folder.join("n".repeat(255));
        let mut destination = Destination::create(&path).unwrap();
        assert!(!left.iter().any(|name| destination.readable_path() == Some(name)));
        destination.file.write_all(b"whole").unwrap();
        destination.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert!(left.iter().all(|name| std::fs::read(name).unwrap() == b"left"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
