//! Namespaces and what keeps their blocks.

use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::Path;

use vdk_descriptors::nvme::Status;
use vdk_hal::address::Iova;
use vdk_iommu::soft::Burst;

use super::transfer::Segment;
use crate::options::{NamespaceOptions, StubError};

/// A namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) id: u32,
    /// Blocks have `1 << n` bytes.
    pub(super) block_exponent: u8,
    store: Store,
    /// Blocks marked as unreadable, a bit each; those of 512 bytes are counted.
    unreadable: Vec<u64>,
    /// How many are marked.
    marked: u64,
}

/// What keeps the blocks.
#[derive(Debug)]
enum Store {
    Memory(Vec<u8>),
    File(Backing),
}

/// A file that keeps blocks. Whoever else has it may make it shorter at any time, and the
/// system may have no room for what was never written: a command that meets that fails, and
/// no other one. Mapped memory would fault for both.
#[derive(Debug)]
struct Backing {
    /// Locked, so that no two devices have it.
    file: File,
    /// How many bytes are blocks.
    bytes: u64,
}

impl Backing {
    fn open(path: &Path, bytes: u64) -> Result<Self, StubError> {
        let refused = |reason: String| StubError::File { path: path.to_owned(), reason };
        let file =
            File::options().read(true).write(true).open(path).map_err(|error| refused(error.to_string()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let reason =
                    "another device has it locked: choose another file, or end the program that serves it";
                return Err(refused(reason.to_owned()));
            }
            // There are file systems without locks.
            Err(TryLockError::Error(error)) => {
                log::warn!(
                    "{} cannot be locked, so take care that nobody else writes to it: {error}",
                    path.display()
                );
            }
        }
        let size = file.metadata().map_err(|error| refused(error.to_string()))?.len();
        let bytes = if bytes == 0 { size / 4096 * 4096 } else { bytes };
        if bytes == 0 || bytes > size {
            return Err(refused(format!("it has {size:#x} bytes, less than the namespace")));
        }
        whole_pages(bytes)?;
        Ok(Self { file, bytes })
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), Status> {
        self.file.read_exact_at(out, start).map_err(|error| {
            log::warn!("cannot read the file of a namespace at {start:#x}: {error}");
            Status::UNRECOVERED_READ_ERROR
        })
    }

    fn write(&self, start: u64, bytes: &[u8]) -> Result<(), Status> {
        self.check_whole()?;
        self.file.write_all_at(bytes, start).map_err(|error| {
            log::warn!("cannot write the file of a namespace at {start:#x}: {error}");
            Status::WRITE_FAULT
        })
    }

    fn zero(&self, mut extent: Extent) -> Result<(), Status> {
        while extent.length > 0 {
            let part = ZEROS.get(..index(extent.length)).unwrap_or(&ZEROS);
            self.write(extent.start, part)?;
            // CAST: `usize` is at most 64 bits wide.
            let done = part.len() as u64;
            extent = Extent { start: extent.start + done, length: extent.length - done };
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        self.check_whole()?;
        self.file.sync_data().map_err(|error| {
            log::warn!("cannot make the file of a namespace durable: {error}");
            Status::WRITE_FAULT
        })
    }

    /// Whether the file was not cut short: a write would make it longer again, with zeros in
    /// the place of what was lost.
    fn check_whole(&self) -> Result<(), Status> {
        match self.file.metadata() {
            Ok(metadata) if metadata.len() >= self.bytes => Ok(()),
            _ => Err(Status::WRITE_FAULT),
        }
    }
}

/// A range of bytes of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Namespace {
    pub(super) fn new(id: u32, options: &NamespaceOptions) -> Result<Self, StubError> {
        let block_exponent = match options.block_size {
            512 => 9,
            4096 => 12,
            other => {
                return Err(StubError::Option {
                    option: "the block size",
                    value: u64::from(other),
                    least: 512,
                    most: 4096,
                });
            }
        };
        let store = match &options.file {
            None => {
                StubError::check_range("the size of a namespace", options.bytes, 4096..=1 << 40)?;
                Store::Memory(vec![0; whole_pages(options.bytes)?])
            }
            Some(path) => Store::File(Backing::open(path, options.bytes)?),
        };
        let mut namespace = Self { id, block_exponent, store, unreadable: Vec::new(), marked: 0 };
        let sectors = usize::try_from(namespace.bytes() / SECTOR).unwrap_or(usize::MAX);
        namespace.unreadable = vec![0; sectors.div_ceil(64)];
        Ok(namespace)
    }

    /// How many bytes it has.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        match &self.store {
            // CAST: `usize` is at most 64 bits wide.
            Store::Memory(bytes) => bytes.len() as u64,
            Store::File(backing) => backing.bytes,
        }
    }

    /// How many blocks it has.
    #[inline]
    pub(super) fn blocks(&self) -> u64 {
        self.bytes() >> self.block_exponent
    }

    /// Whether what was written is lost without a flush when the machine stops.
    pub(super) fn is_cached(&self) -> bool {
        matches!(self.store, Store::File(_))
    }

    /// The bytes of `count` blocks from `first`.
    #[inline]
    pub(super) fn extent(&self, first: u64, count: u64) -> Result<Extent, Status> {
        match first.checked_add(count) {
            Some(end) if end <= self.blocks() => {
                Ok(Extent { start: first << self.block_exponent, length: count << self.block_exponent })
            }
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }

    /// Sends an extent to the host, piece by piece.
    #[inline]
    pub(super) fn send(
        &self,
        extent: Extent,
        segments: &[Segment],
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let mut start = extent.start;
        for segment in segments {
            if !segment.discard {
                self.send_piece(start, segment.length, Iova::new(segment.address), burst)?;
            }
            start += segment.length;
        }
        Ok(())
    }

    #[inline]
    fn send_piece(
        &self,
        start: u64,
        length: u64,
        address: Iova,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let length = index(length);
        match &self.store {
            Store::Memory(bytes) => {
                let start = index(start);
                let part = bytes.get(start..start.saturating_add(length)).ok_or(Status::INTERNAL_ERROR)?;
                burst.write(address, part).map_err(|_| Status::DATA_TRANSFER_ERROR)
            }
            Store::File(backing) => {
                let mut piece = [0; PIECE];
                for done in (0..length).step_by(PIECE) {
                    let part = &mut piece[..(length - done).min(PIECE)];
                    backing.read(behind(start, done), part)?;
                    burst.write(after(address, done), part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                }
                Ok(())
            }
        }
    }

    /// Fetches an extent from the host, piece by piece.
    #[inline]
    pub(super) fn fetch(
        &mut self,
        extent: Extent,
        segments: &[Segment],
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let mut start = extent.start;
        for segment in segments {
            self.fetch_piece(start, segment.length, Iova::new(segment.address), burst)?;
            start += segment.length;
        }
        Ok(())
    }

    #[inline]
    fn fetch_piece(
        &mut self,
        start: u64,
        length: u64,
        address: Iova,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let length = index(length);
        match &mut self.store {
            Store::Memory(bytes) => {
                let start = index(start);
                let part =
                    bytes.get_mut(start..start.saturating_add(length)).ok_or(Status::INTERNAL_ERROR)?;
                burst.read(address, part).map_err(|_| Status::DATA_TRANSFER_ERROR)
            }
            Store::File(backing) => {
                let mut piece = [0; PIECE];
                for done in (0..length).step_by(PIECE) {
                    let part = &mut piece[..(length - done).min(PIECE)];
                    burst.read(after(address, done), part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                    backing.write(behind(start, done), part)?;
                }
                Ok(())
            }
        }
    }

    /// Compares an extent with the host's bytes.
    pub(super) fn compare(
        &self,
        extent: Extent,
        segments: &[Segment],
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let mut theirs = [0; PIECE];
        let mut ours = [0; PIECE];
        let mut start = extent.start;
        for segment in segments {
            let length = index(segment.length);
            for done in (0..length).step_by(PIECE) {
                let count = (length - done).min(PIECE);
                let address = after(Iova::new(segment.address), done);
                burst.read(address, &mut theirs[..count]).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                self.read(behind(start, done), &mut ours[..count])?;
                if theirs[..count] != ours[..count] {
                    return Err(Status::COMPARE_FAILURE);
                }
            }
            start += segment.length;
        }
        Ok(())
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), Status> {
        match &self.store {
            Store::Memory(bytes) => {
                let start = index(start);
                let part = bytes.get(start..start + out.len()).ok_or(Status::INTERNAL_ERROR)?;
                out.copy_from_slice(part);
                Ok(())
            }
            Store::File(backing) => backing.read(start, out),
        }
    }

    /// Makes an extent zeros, and readable.
    pub(super) fn zero(&mut self, extent: Extent) -> Result<(), Status> {
        self.mark(extent, false);
        match &mut self.store {
            Store::Memory(bytes) => {
                let (start, length) = (index(extent.start), index(extent.length));
                let part =
                    bytes.get_mut(start..start.saturating_add(length)).ok_or(Status::INTERNAL_ERROR)?;
                part.fill(0);
                Ok(())
            }
            Store::File(backing) => backing.zero(extent),
        }
    }

    /// Makes what was written durable. It waits for the system when there is a file.
    pub(super) fn flush(&self) -> Result<(), Status> {
        match &self.store {
            Store::Memory(_) => Ok(()),
            Store::File(backing) => backing.flush(),
        }
    }

    /// Marks an extent as unreadable, or as readable.
    #[inline]
    pub(super) fn mark(&mut self, extent: Extent, unreadable: bool) {
        if unreadable || self.marked > 0 {
            self.mark_sectors(extent, unreadable);
        }
    }

    #[cold]
    fn mark_sectors(&mut self, extent: Extent, unreadable: bool) {
        for sector in sectors(extent) {
            let Some(word) = self.unreadable.get_mut(index(sector / 64)) else { return };
            let bit = 1 << (sector % 64);
            match (unreadable, *word & bit != 0) {
                (true, false) => self.marked += 1,
                (false, true) => self.marked -= 1,
                _ => continue,
            }
            *word ^= bit;
        }
    }

    /// Whether an extent can be read.
    #[inline]
    pub(super) fn check_readable(&self, extent: Extent) -> Result<(), Status> {
        if self.marked == 0 || sectors(extent).all(|sector| !self.is_marked(sector)) {
            Ok(())
        } else {
            Err(Status::UNRECOVERED_READ_ERROR)
        }
    }

    fn is_marked(&self, sector: u64) -> bool {
        self.unreadable.get(index(sector / 64)).is_some_and(|word| word >> (sector % 64) & 1 != 0)
    }
}

fn sectors(extent: Extent) -> core::ops::Range<u64> {
    extent.start / SECTOR..(extent.start + extent.length) / SECTOR
}

fn whole_pages(bytes: u64) -> Result<usize, StubError> {
    if bytes.is_multiple_of(4096)
        && let Ok(bytes) = usize::try_from(bytes)
    {
        return Ok(bytes);
    }
    Err(StubError::Profile { what: "the size of a namespace is not a multiple of 4096" })
}

#[inline]
fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[inline]
fn after(address: Iova, distance: usize) -> Iova {
    // CAST: `usize` is at most 64 bits wide.
    Iova::new(address.as_u64().wrapping_add(distance as u64))
}

#[inline]
const fn behind(start: u64, distance: usize) -> u64 {
    // CAST: `usize` is at most 64 bits wide.
    start.wrapping_add(distance as u64)
}

/// The unit in which blocks are marked: that of the smallest block.
const SECTOR: u64 = 512;
/// How much of a file moves at once.
const PIECE: usize = 4096;
/// How much of a file is zeroed at once.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    fn of(path: PathBuf) -> Result<Namespace, StubError> {
        Namespace::new(1, &NamespaceOptions { bytes: 0, block_size: 512, file: Some(path) })
    }

    fn file(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("vdk-namespace-{name}-{}", std::process::id()));
        std::fs::write(&path, vec![0x5a; 16384]).unwrap();
        path
    }

    #[test]
    fn a_file_that_is_cut_short_fails_commands_and_not_the_process() {
        let path = file("cut");
        let mut namespace = of(path.clone()).unwrap();
        let mut bytes = [0; 512];
        assert_eq!((namespace.read(12288, &mut bytes), bytes), (Ok(()), [0x5a; 512]));
        let other = File::options().write(true).open(&path).unwrap();
        other.set_len(4096).unwrap();
        assert_eq!(namespace.read(12288, &mut bytes), Err(Status::UNRECOVERED_READ_ERROR));
        assert_eq!(namespace.read(0, &mut bytes), Ok(()), "what is there can be read");
        let extent = namespace.extent(24, 8).unwrap();
        assert_eq!(namespace.zero(extent), Err(Status::WRITE_FAULT));
        assert_eq!(namespace.flush(), Err(Status::WRITE_FAULT));
        other.set_len(16384).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((namespace.zero(extent), namespace.flush()), (Ok(()), Ok(())));
        assert_eq!((namespace.read(12288, &mut bytes), bytes), (Ok(()), [0; 512]));
    }

    #[test]
    fn a_write_that_the_system_refuses_fails_alone() {
        let file = File::from(memfd_create("disk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all_at(&[0x5a; 16384], 0).unwrap();
        let mut namespace = of(format!("/proc/self/fd/{}", file.as_raw_fd()).into()).unwrap();
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        let extent = namespace.extent(0, 32).unwrap();
        assert_eq!(namespace.zero(extent), Err(Status::WRITE_FAULT));
        let mut bytes = [0; 512];
        assert_eq!((namespace.read(0, &mut bytes), bytes), (Ok(()), [0x5a; 512]));
        assert_eq!(namespace.flush(), Ok(()));
    }

    #[test]
    fn a_file_has_one_device() {
        let path = file("lock");
        let first = of(path.clone()).unwrap();
        let refused = of(path.clone()).unwrap_err().to_string();
        assert!(refused.contains(&path.display().to_string()), "{refused}");
        assert!(refused.ends_with("choose another file, or end the program that serves it"), "{refused}");
        drop(first);
        drop(of(path.clone()).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
