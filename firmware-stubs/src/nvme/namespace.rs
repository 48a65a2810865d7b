//! Namespaces and what keeps their blocks.

use std::fs::File;
use std::sync::Arc;

use vdk_descriptors::nvme::Status;
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::bar::{Liveness, LivenessState};
use vdk_hal::memory::SharedMemory;
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

/// A file that keeps blocks. Whoever else has it may make it shorter at any time.
#[derive(Debug)]
struct Backing {
    memory: SharedMemory,
    file: File,
    /// Whether the file is still as long as the mapping.
    liveness: Arc<Liveness>,
}

impl Backing {
    fn is_whole(&self) -> bool {
        self.liveness.state() == LivenessState::Live
    }

    fn read(&self, start: usize, out: &mut [u8]) -> Result<(), Status> {
        self.memory.read(start, out).map_err(|_| Status::INTERNAL_ERROR)?;
        // Behind the end of the file were ones.
        if self.is_whole() { Ok(()) } else { Err(Status::UNRECOVERED_READ_ERROR) }
    }

    fn write(&self, start: usize, bytes: &[u8]) -> Result<(), Status> {
        self.memory.write(start, bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        if self.is_whole() { Ok(()) } else { Err(Status::WRITE_FAULT) }
    }

    fn zero(&self, start: usize, length: usize) -> Result<(), Status> {
        self.memory.fill(start, length, 0).map_err(|_| Status::INTERNAL_ERROR)?;
        if self.is_whole() { Ok(()) } else { Err(Status::WRITE_FAULT) }
    }

    fn flush(&self) -> Result<(), Status> {
        let synced = self.file.sync_data();
        if self.is_whole() && synced.is_ok() { Ok(()) } else { Err(Status::WRITE_FAULT) }
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
            Some(path) => {
                let refused = |reason: String| StubError::File { path: path.clone(), reason };
                let file = File::options()
                    .read(true)
                    .write(true)
                    .open(path)
                    .map_err(|error| refused(error.to_string()))?;
                let size = file.metadata().map_err(|error| refused(error.to_string()))?.len();
                let bytes = if options.bytes == 0 { size / 4096 * 4096 } else { options.bytes };
                if bytes == 0 || bytes > size {
                    return Err(refused(format!("it has {size:#x} bytes, less than the namespace")));
                }
                // CAST: `usize` is at most 64 bits wide.
                let length = ByteLength::new(whole_pages(bytes)? as u64);
                // The file may be cut short while it is served, which is not to end the process.
                let liveness = Liveness::new();
                let memory = SharedMemory::map_guarded(&file, 0, length, &liveness)
                    .map_err(|error| refused(error.to_string()))?;
                Store::File(Backing { memory, file, liveness })
            }
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
            Store::File(backing) => backing.memory.length().as_u64(),
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
        let (start, length) = (index(start), index(length));
        match &self.store {
            Store::Memory(bytes) => {
                let part = bytes.get(start..start.saturating_add(length)).ok_or(Status::INTERNAL_ERROR)?;
                burst.write(address, part).map_err(|_| Status::DATA_TRANSFER_ERROR)
            }
            Store::File(backing) => {
                let mut piece = [0; PIECE];
                for done in (0..length).step_by(PIECE) {
                    let part = &mut piece[..(length - done).min(PIECE)];
                    backing.read(start + done, part)?;
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
        let (start, length) = (index(start), index(length));
        match &mut self.store {
            Store::Memory(bytes) => {
                let part =
                    bytes.get_mut(start..start.saturating_add(length)).ok_or(Status::INTERNAL_ERROR)?;
                burst.read(address, part).map_err(|_| Status::DATA_TRANSFER_ERROR)
            }
            Store::File(backing) => {
                let mut piece = [0; PIECE];
                for done in (0..length).step_by(PIECE) {
                    let part = &mut piece[..(length - done).min(PIECE)];
                    burst.read(after(address, done), part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                    backing.write(start + done, part)?;
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
            let (at, length) = (index(start), index(segment.length));
            for done in (0..length).step_by(PIECE) {
                let count = (length - done).min(PIECE);
                let address = after(Iova::new(segment.address), done);
                burst.read(address, &mut theirs[..count]).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                self.read(at + done, &mut ours[..count])?;
                if theirs[..count] != ours[..count] {
                    return Err(Status::COMPARE_FAILURE);
                }
            }
            start += segment.length;
        }
        Ok(())
    }

    fn read(&self, start: usize, out: &mut [u8]) -> Result<(), Status> {
        match &self.store {
            Store::Memory(bytes) => {
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
        let (start, length) = (index(extent.start), index(extent.length));
        match &mut self.store {
            Store::Memory(bytes) => {
                let part =
                    bytes.get_mut(start..start.saturating_add(length)).ok_or(Status::INTERNAL_ERROR)?;
                part.fill(0);
                Ok(())
            }
            Store::File(backing) => backing.zero(start, length),
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

/// The unit in which blocks are marked: that of the smallest block.
const SECTOR: u64 = 512;
/// How much of a file moves at once.
const PIECE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_short_fails_commands_and_not_the_process() {
        let path = std::env::temp_dir().join(format!("vdk-namespace-{}", std::process::id()));
        std::fs::write(&path, vec![0x5a; 16384]).unwrap();
        let options = NamespaceOptions { bytes: 0, block_size: 512, file: Some(path.clone()) };
        let mut namespace = Namespace::new(1, &options).unwrap();
        let mut bytes = [0; 512];
        assert_eq!((namespace.read(12288, &mut bytes), bytes), (Ok(()), [0x5a; 512]));
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(namespace.read(12288, &mut bytes), Err(Status::UNRECOVERED_READ_ERROR));
        let extent = namespace.extent(24, 8).unwrap();
        assert_eq!(namespace.zero(extent), Err(Status::WRITE_FAULT));
        assert_eq!(namespace.flush(), Err(Status::WRITE_FAULT));
    }
}
