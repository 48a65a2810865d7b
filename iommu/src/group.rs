//! Several pieces of memory at contiguous addresses.

use core::fmt;
use core::marker::PhantomData;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::UnmapError;
use vdk_hal::memory::{OutOfBounds, SharedMemory};

use crate::direction::{CpuReads, CpuWrites, Direction};
use crate::domain::Mapping;
use crate::region::{DmaSegment, segment_of};

/// Pieces of memory that a device sees one after the other; see
/// [`Domain::map_adjacent`](crate::Domain::map_adjacent). Ownership is that of a
/// [`DmaRegion`](crate::DmaRegion).
#[must_use = "dropping a group unmaps it"]
pub struct DmaGroup<D: Direction> {
    // Before the memory, so that the mappings end before it can be freed.
    mapping: Mapping,
    /// As the caller gave it.
    memory: Box<[SharedMemory]>,
    /// As it is mapped, with the offset of each piece from the start of the group.
    pieces: Box<[(usize, SharedMemory)]>,
    range: IovaRange,
    _direction: PhantomData<fn() -> D>,
}

impl<D: Direction> DmaGroup<D> {
    pub(crate) fn new(
        mapping: Mapping,
        range: IovaRange,
        memory: Vec<SharedMemory>,
        pieces: Vec<SharedMemory>,
    ) -> Self {
        let mut next = 0usize;
        let pieces = pieces.into_iter().map(|piece| {
            let offset = next;
            // The sum is the length of a mapped range, and each piece is in memory.
            next = next.saturating_add(piece.length().to_usize().unwrap_or(usize::MAX));
            (offset, piece)
        });
        Self { mapping, memory: memory.into(), pieces: pieces.collect(), range, _direction: PhantomData }
    }

    /// Where the group begins for the device.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.range.start()
    }

    /// The addresses of the group for the device.
    #[must_use]
    pub fn range(&self) -> IovaRange {
        self.range
    }

    /// The size of all pieces together.
    #[must_use]
    pub fn length(&self) -> ByteLength {
        self.range.length()
    }

    /// How many mappings the group takes in the IOMMU.
    #[must_use]
    pub fn mappings(&self) -> usize {
        self.pieces.len()
    }

    /// A part of the group as the device addresses it; it may lie in several pieces.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the part is empty or not inside the group.
    pub fn segment(&self, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds> {
        segment_of(self.range, offset, length)
    }

    /// Ends the mappings and gives the memory back, as it was given.
    ///
    /// # Errors
    ///
    /// The group with the reason. Pieces before the one that failed are unmapped then, and
    /// a further call tries the rest.
    pub fn unmap(mut self) -> Result<Vec<SharedMemory>, (UnmapError, Self)> {
        match self.mapping.end() {
            Ok(()) => Ok(self.memory.into_vec()),
            Err(error) => Err((error, self)),
        }
    }

    /// Calls `access` for each piece of a part with the piece, the offset in it, and the
    /// offset and length in the part.
    fn for_each_piece(
        &self,
        offset: usize,
        length: usize,
        mut access: impl FnMut(&SharedMemory, usize, usize, usize) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        if length == 0 {
            return Ok(());
        }
        self.segment(offset, length)?;
        let first = self.pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        let mut done = 0;
        for (start, piece) in self.pieces.iter().skip(first) {
            let inside = (offset + done).saturating_sub(*start);
            let room = piece.length().to_usize().unwrap_or(usize::MAX) - inside;
            let count = room.min(length - done);
            access(piece, inside, done, count)?;
            done += count;
            if done == length {
                break;
            }
        }
        Ok(())
    }
}

impl<D: CpuWrites> DmaGroup<D> {
    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.for_each_piece(offset, bytes.len(), |piece, inside, done, count| {
            // PANIC: `done + count <= bytes.len()` by `for_each_piece`.
            piece.write(inside, &bytes[done..done + count])
        })
    }
}

impl<D: CpuReads> DmaGroup<D> {
    /// Copies bytes out. They may change while they are copied.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.for_each_piece(offset, bytes.len(), |piece, inside, done, count| {
            // PANIC: `done + count <= bytes.len()` by `for_each_piece`.
            piece.read(inside, &mut bytes[done..done + count])
        })
    }
}

impl<D: Direction> fmt::Debug for DmaGroup<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaGroup")
            .field("domain", &self.mapping.domain_name())
            .field("range", &format_args!("{}", self.range))
            .field("mappings", &self.mappings())
            .finish()
    }
}
