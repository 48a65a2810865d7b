//! The input of a copy, which must not shrink, and a comparison of what came out with it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
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

    /// Refuses to write to the file that is read.
    pub(crate) fn refuse_same(&self, output: &Path) -> Result<()> {
        let (input, output_metadata) = (self.file.metadata()?, std::fs::metadata(output));
        if output_metadata.is_ok_and(|output| (output.dev(), output.ino()) == (input.dev(), input.ino())) {
            bail!(
                "{} and {} are the same file: copying would destroy it",
                self.path.display(),
                output.display()
            );
        }
        Ok(())
    }
}

/// Compares two files of `length` bytes; the offset of the first difference, if any. Goes on
/// for as long as `go_on` says so.
pub(crate) fn first_difference(
    left: &Path,
    right: &Path,
    length: u64,
    go_on: impl Fn() -> Result<()>,
) -> Result<Option<u64>> {
    const BLOCK: usize = 1 << 20;
    let open =
        |path: &Path| File::open(path).with_context(|| format!("cannot read {} again", path.display()));
    let (mut left_file, mut right_file) = (open(left)?, open(right)?);
    let (mut left_block, mut right_block) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut offset = 0;
    while offset < length {
        go_on()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_asks_before_each_block_whether_to_go_on() {
        let path = std::env::temp_dir().join(format!("vdk-difference-{}", std::process::id()));
        let length = 3 << 20;
        std::fs::write(&path, vec![7; length]).unwrap();
        let length = u64::try_from(length).unwrap();
        let asked = std::cell::Cell::new(0);
        let until = |last| {
            asked.set(0);
            first_difference(&path, &path, length, || {
                asked.set(asked.get() + 1);
                if asked.get() > last { bail!("interrupted") } else { Ok(()) }
            })
        };
        assert_eq!(until(3).unwrap(), None);
        assert_eq!(until(2).unwrap_err().to_string(), "interrupted");
        assert_eq!(asked.get(), 3);
        std::fs::remove_file(&path).unwrap();
    }
}
