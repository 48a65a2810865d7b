//! The first file system of a guest: a cpio archive of the "newc" kind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// An archive that is being written; folders on the way to a file are made as needed.
pub struct Initramfs<W: Write> {
    output: W,
    entries: u32,
    length: usize,
    folders: BTreeSet<String>,
}

impl<W: Write> Initramfs<W> {
    /// An empty archive.
    pub fn new(output: W) -> Self {
        Self { output, entries: 0, length: 0, folders: BTreeSet::new() }
    }

    /// Adds a folder, and those above it.
    ///
    /// # Errors
    ///
    /// When the output fails.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        for end in path.match_indices('/').map(|(at, _)| at).chain([path.len()]) {
            let folder = &path[..end];
            if !folder.is_empty() && self.folders.insert(folder.to_owned()) {
                self.entry(folder, FOLDER, &[])?;
            }
        }
        Ok(())
    }

    /// Adds a file that can be run.
    ///
    /// # Errors
    ///
    /// When the output fails.
    pub fn program(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.above(path)?;
        self.entry(path, PROGRAM, content)
    }

    /// Adds what is at `source` on the host: a file with its rights, or a folder with all
    /// that is in it. Links stay links.
    ///
    /// # Errors
    ///
    /// When something cannot be read, or the output fails.
    pub fn copy(&mut self, path: &str, source: &Path) -> Result<()> {
        let reading = || format!("cannot read {}", source.display());
        let metadata = fs::symlink_metadata(source).with_context(reading)?;
        if metadata.is_dir() {
            self.folder(path)?;
            let mut names = Vec::new();
            for entry in fs::read_dir(source).with_context(reading)? {
                names.push(entry?.file_name());
            }
            names.sort();
            for name in names {
                self.copy(&format!("{path}/{}", name.to_string_lossy()), &source.join(&name))?;
            }
            return Ok(());
        }
        self.above(path)?;
        if metadata.is_symlink() {
            let target = fs::read_link(source).with_context(reading)?;
            self.entry(path, LINK, target.to_string_lossy().as_bytes())?;
        } else {
            let mode = if metadata.permissions().mode() & 0o111 == 0 { FILE } else { PROGRAM };
            self.entry(path, mode, &fs::read(source).with_context(reading)?)?;
        }
        Ok(())
    }

    /// Ends the archive.
    ///
    /// # Errors
    ///
    /// When the output fails.
    pub fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.output.flush()
    }

    fn above(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((folder, _)) => self.folder(folder),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        // Inode, mode, user, group, links, time, size, device and special device in two halves
        // each, length of the name with its end, and a checksum that this kind does not have.
        let name = path.len() + 1;
        let header = format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{name:08x}{:08x}",
            self.entries,
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            0
        );
        self.write(header.as_bytes())?;
        self.write(path.as_bytes())?;
        self.write(&[0])?;
        self.align()?;
        self.write(content)?;
        self.align()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len();
        self.output.write_all(bytes)
    }

    fn align(&mut self) -> io::Result<()> {
        let missing = self.length.next_multiple_of(4) - self.length;
        self.write(&[0; 3][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_first_and_once() {
        let mut archive = Vec::new();
        let mut initramfs = Initramfs::new(&mut archive);
        initramfs.program("a/b/c", b"12345").unwrap();
        initramfs.program("a/d", b"").unwrap();
        initramfs.finish().unwrap();
        let mut names = Vec::new();
        let mut at = 0;
        while at < archive.len() {
            let field = |index: usize| {
                let text = std::str::from_utf8(&archive[at + 6 + index * 8..at + 14 + index * 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&archive[at..at + 6], b"070701");
            let (size, name) = (field(6), field(11));
            names.push(String::from_utf8(archive[at + 110..at + 110 + name - 1].to_vec()).unwrap());
            let content = (at + 110 + name).next_multiple_of(4);
            if size > 0 {
                assert_eq!(&archive[content..content + size], b"12345");
            }
            at = (content + size).next_multiple_of(4);
        }
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/d", "TRAILER!!!"]);
        assert_eq!(at, archive.len());
    }
}
