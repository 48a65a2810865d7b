//! One of the two halves: source pages, destination pages and what is in them.

use anyhow::{Context, Result};
use vdk_driver::descriptors::sg::SgList;
use vdk_driver::hal::address::ByteLength;
use vdk_driver::hal::memory::{Pages, PinnedMemory};
use vdk_driver::iommu::{DmaRegion, Domain, FromDevice, ToDevice};
use vm_memory::{Bytes, ReadVolatile, WriteVolatile};

use super::engine::LEFT;
use super::files::Input;
use super::scatter::Scatter;
use crate::destination::Destination;
use crate::signal::StopRequest;

/// Pinned pages for one part of the file, on both sides of the device. It rides with the
/// copy and comes back with its completion.
#[derive(Debug)]
pub(super) struct Half {
    source: DmaRegion<ToDevice>,
    destination: DmaRegion<FromDevice>,
    source_layout: Scatter,
    destination_layout: Scatter,
    size: usize,
    length: usize,
    /// How often the copy of what it holds has failed.
    pub(super) failures: u32,
}

impl Half {
    /// Allocates `size` bytes on each side and maps them for the device.
    pub(super) fn new(domain: &Domain, size: usize, segments: usize) -> Result<Self> {
        let source_layout = Scatter::new(size, segments, false);
        let destination_layout = Scatter::new(size, segments, true);
        Ok(Self {
            source: domain.map(pages(size, domain.prefers_files())?.share())?,
            destination: domain.map(pages(size, domain.prefers_files())?.share())?,
            source_layout,
            destination_layout,
            size,
            length: 0,
            failures: 0,
        })
    }

    /// How many bytes of the file it holds.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Describes the copy of what it holds as two lists.
    pub(super) fn describe(&self, source: &mut SgList, destination: &mut SgList) -> Result<()> {
        self.source_layout.describe(&self.source, self.length, source)?;
        self.destination_layout.describe(&self.destination, self.length, destination)?;
        Ok(())
    }

    /// Reads the next part of the file into the source pages, straight from the kernel.
    pub(super) fn fill(&mut self, input: &mut Input) -> Result<()> {
        let length = usize::try_from(input.remaining()).unwrap_or(usize::MAX).min(self.size);
        for piece in self.source_layout.pieces(length) {
            let mut done = 0;
            while done < piece.length {
                let mut slice = self.source.volatile_slice(piece.offset + done, piece.length - done)?;
                let count =
                    retry(|| input.file().read_volatile(&mut slice)).with_context(|| input.failure())?;
                input.consumed(count)?;
                done += count;
            }
        }
        self.length = length;
        self.failures = 0;
        Ok(())
    }

    /// Writes the destination pages to the file, and adds them to the checksum.
    pub(super) fn drain(
        &self,
        output: &mut Destination,
        checksum: &mut crc32fast::Hasher,
        stop: &StopRequest,
    ) -> Result<()> {
        let mut block = [0; 16 << 10];
        for piece in self.destination_layout.pieces(self.length) {
            let mut done = 0;
            while done < piece.length {
                let (file, length) = output.ready(piece.length - done, stop, LEFT)?;
                let slice = self.destination.volatile_slice(piece.offset + done, length)?;
                let written = file.write_volatile(&slice).map_err(system);
                done += output.produced(written)?;
            }
            let slice = self.destination.volatile_slice(piece.offset, piece.length)?;
            for begin in (0..piece.length).step_by(block.len()) {
                let part = &mut block[..(piece.length - begin).min(16 << 10)];
                slice.read_slice(part, begin).context("cannot look at the destination pages")?;
                checksum.update(part);
            }
        }
        Ok(())
    }
}

/// Large pages where the half is large; those have no `file` to show to another process.
fn pages(size: usize, file: bool) -> Result<PinnedMemory> {
    let length = ByteLength::from_usize(size);
    let large = length >= ByteLength::SIZE_2M && !file;
    let pages = if large { Pages::Transparent } else { Pages::Base };
    Ok(PinnedMemory::allocate(length, pages)?)
}

/// Repeats a system call that a signal interrupted before it did anything.
fn retry(
    mut call: impl FnMut() -> Result<usize, vm_memory::VolatileMemoryError>,
) -> Result<usize, std::io::Error> {
    loop {
        match call() {
            Ok(count) => return Ok(count),
            Err(error) => match system(error) {
                error if error.kind() == std::io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// What the system said.
fn system(error: vm_memory::VolatileMemoryError) -> std::io::Error {
    match error {
        vm_memory::VolatileMemoryError::IOError(error) => error,
        error => std::io::Error::other(error),
    }
}
