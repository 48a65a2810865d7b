//! The two files of a copy: an input that must not shrink, and an output that appears
//! only when it is whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The file that is read.
#[derive(Debug)]
pub(crate) struct Input {
    path: PathBuf,
    file: File,
    length: u64,
    read: u64,
}

impl Input {
    /// Opens the file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let metadata = file.metadata().with_context(|| format!("cannot examine {}", path.display()))?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            bail!("{} is not a file: only a regular file or a block device has a known size", path.display());
        }
        let mut file = file;
        let length = if metadata.is_file() { metadata.len() } else { file.seek(SeekFrom::End(0))? };
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { path: path.to_owned(), file, length, read: 0 })
    }

    /// The size when it was opened.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// What has not been read.
    pub(crate) fn remaining(&self) -> u64 {
        self.length - self.read
    }

    /// The open file, for reading into memory; [`consumed`](Self::consumed) follows.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Notes that `count` bytes were read by one call. None at all means that the file
    /// became shorter meanwhile.
    pub(crate) fn consumed(&mut self, count: usize) -> Result<()> {
        if count == 0 {
            bail!(
                "{} became shorter while it was read: {} of {} bytes are left to read",
                self.path.display(),
                self.remaining(),
                self.length
            );
        }
        self.read += u64::try_from(count)?;
        Ok(())
    }

    /// The context of an error while reading.
    pub(crate) fn failure(&self) -> String {
        format!("cannot read {} beyond {} bytes", self.path.display(), self.read)
    }

    /// Whether the file has changed its size since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.is_file() && metadata.len() != self.length {
            bail!(
                "{} changed while it was read: it had {} bytes and now has {}",
                self.path.display(),
                self.length,
                metadata.len()
            );
        }
        Ok(())
    }

    fn identity(&self) -> Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

/// The file that is written.
///
/// A regular file is written under a temporary name in the same folder and renamed at the
/// end; on any other way out, the temporary file is removed. What is not a regular file, such as
/// a block device or /dev/null, is written in place.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    partial: Option<PathBuf>,
    written: u64,
}

impl Output {
    /// Prepares the output of a copy from `input`.
    pub(crate) fn create(path: &Path, input: &Input) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => bail!("cannot write {}: it is a folder", path.display()),
            Ok(metadata) if (metadata.dev(), metadata.ino()) == input.identity()? => {
                bail!(
                    "{} and {} are the same file: copying would destroy it",
                    input.path.display(),
                    path.display()
                )
            }
            Ok(metadata) if !metadata.is_file() => {
                let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
                Ok(Self { path: path.to_owned(), file, partial: None, written: 0 })
            }
            Ok(metadata) => Self::create_partial(path, Some(&metadata)).with_context(cannot),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::create_partial(path, None).with_context(cannot)
            }
            Err(error) => Err(error).with_context(cannot),
        }
    }

    fn create_partial(path: &Path, existing: Option<&Metadata>) -> Result<Self> {
        // A link is followed, so that the file it names is replaced and not the link.
        let target = if existing.is_some() { path.canonicalize()? } else { path.to_owned() };
        if existing.is_some() {
            // The new file takes the old one's name; without the right to write the old one
            // that would be a way around its permissions.
            OpenOptions::new().write(true).open(&target)?;
        }
        let name = target.file_name().context("the path has no file name")?;
        let mut partial_name = std::ffi::OsString::from(".");
        partial_name.push(name);
        partial_name.push(format!(".vdk-partial-{}", std::process::id()));
        let partial = target.with_file_name(partial_name);
        let mode = if existing.is_some() { 0o600 } else { 0o666 };
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial)?;
        if let Some(existing) = existing {
            file.set_permissions(existing.permissions())?;
        }
        Ok(Self { path: target, file, partial: Some(partial), written: 0 })
    }

    /// The open file, for writing from memory; [`produced`](Self::produced) follows.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Notes that `count` bytes were written by one call.
    pub(crate) fn produced(&mut self, count: usize) -> Result<()> {
        if count == 0 {
            bail!("{} takes no more bytes after {}", self.path.display(), self.written);
        }
        self.written += u64::try_from(count)?;
        Ok(())
    }

    /// The context of an error while writing.
    pub(crate) fn failure(&self) -> String {
        match self.partial {
            Some(_) => format!(
                "cannot write {} beyond {} bytes; the partial file was removed",
                self.path.display(),
                self.written
            ),
            None => format!(
                "cannot write {} beyond {} bytes; it is incomplete",
                self.path.display(),
                self.written
            ),
        }
    }

    /// Where a reader finds the bytes written so far.
    pub(crate) fn readable_path(&self) -> &Path {
        self.partial.as_deref().unwrap_or(&self.path)
    }

    /// Whether what was written can be read again.
    pub(crate) fn is_regular(&self) -> bool {
        self.partial.is_some()
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some(partial) = &self.partial {
            self.file.sync_data().with_context(|| self.failure())?;
            std::fs::rename(partial, &self.path)
                .with_context(|| format!("cannot rename {} to {}", partial.display(), self.path.display()))?;
            self.partial = None;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial
            && let Err(error) = std::fs::remove_file(partial)
        {
            log::error!("the incomplete file {} was left behind: {error}", partial.display());
        }
    }
}

/// Compares two files of `length` bytes; the offset of the first difference, if any.
pub(crate) fn first_difference(left: &Path, right: &Path, length: u64) -> Result<Option<u64>> {
    const BLOCK: usize = 1 << 20;
    let open =
        |path: &Path| File::open(path).with_context(|| format!("cannot read {} again", path.display()));
    let (mut left_file, mut right_file) = (open(left)?, open(right)?);
    let (mut left_block, mut right_block) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut offset = 0;
    while offset < length {
        let count = usize::try_from(length - offset).unwrap_or(BLOCK).min(BLOCK);
        let (left_part, right_part) = (&mut left_block[..count], &mut right_block[..count]);
        left_file.read_exact(left_part).with_context(|| format!("{} became shorter", left.display()))?;
        right_file.read_exact(right_part).with_context(|| format!("{} became shorter", right.display()))?;
        if left_part != right_part {
            let inside = left_part.iter().zip(right_part.iter()).position(|(a, b)| a != b).unwrap_or(0);
            return Ok(Some(offset + u64::try_from(inside)?));
        }
        offset += u64::try_from(count)?;
    }
    Ok(None)
}
