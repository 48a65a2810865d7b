//! Memory that devices reach, with the direction in its type.

use core::fmt;
use core::marker::PhantomData;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::UnmapError;
use vdk_hal::memory::{OutOfBounds, SharedMemory, Slot, Slots};
use vm_memory::VolatileSlice;

use crate::direction::{Bidirectional, CpuReads, CpuWrites, Direction};
use crate::domain::Mapping;

/// A range of I/O virtual addresses for one descriptor: contiguous for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaSegment {
    /// Where it begins.
    pub iova: Iova,
    /// How long it is.
    pub length: ByteLength,
}

/// Memory that is mapped for devices in direction `D`.
///
/// # Ownership
///
/// The region owns the mapping and the memory: as long as it lives the device may reach
/// the memory, and no Rust reference into it exists. [`unmap`](Self::unmap) ends the
/// mapping and gives the memory back. Dropping the region unmaps too; when that fails the
/// memory is leaked, never freed, and its addresses are not used again.
///
/// Forgetting a region leaks memory and addresses; it does not dangle.
#[must_use = "dropping a region unmaps it"]
pub struct DmaRegion<D: Direction> {
    // Before `memory`, so that the mapping ends before the memory can be freed.
    mapping: Mapping,
    memory: SharedMemory,
    range: IovaRange,
    _direction: PhantomData<fn() -> D>,
}

impl<D: Direction> DmaRegion<D> {
    pub(crate) fn new(mapping: Mapping, range: IovaRange, memory: SharedMemory) -> Self {
        Self { mapping, memory, range, _direction: PhantomData }
    }

    /// Where the region begins for the device.
    #[inline]
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.range.start()
    }

    /// The addresses of the region for the device.
    #[inline]
    #[must_use]
    pub fn range(&self) -> IovaRange {
        self.range
    }

    /// The size, a multiple of the IOMMU's page.
    #[inline]
    #[must_use]
    pub fn length(&self) -> ByteLength {
        self.memory.length()
    }

    /// A part of the region as the device addresses it.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the part is empty or not inside the region: to many devices a
    /// length of zero means the largest one.
    #[inline]
    pub fn segment(&self, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds> {
        segment_of(self.range, offset, length)
    }

    /// A volatile view of a part, for reading from and writing to files without a copy. The
    /// direction limits the device, not this view: bytes read from a region to the device
    /// are those that the processor wrote.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn volatile_slice(&self, offset: usize, length: usize) -> Result<VolatileSlice<'_>, OutOfBounds> {
        self.memory.volatile_slice(offset, length)
    }

    /// Ends the mapping and gives the memory back: no access of a device follows.
    ///
    /// # Errors
    ///
    /// The region itself, still mapped, with the reason.
    pub fn unmap(mut self) -> Result<SharedMemory, (UnmapError, Self)> {
        match self.mapping.end() {
            Ok(()) => Ok(self.memory),
            Err(error) => Err((error, self)),
        }
    }
}

impl<D: CpuWrites> DmaRegion<D> {
    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.write(offset, bytes)
    }
}

impl<D: CpuReads> DmaRegion<D> {
    /// Copies bytes out. They may change while they are copied.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory.read(offset, bytes)
    }
}

impl DmaRegion<Bidirectional> {
    /// The memory, for rings and single words.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// A table of `count` values from `offset`; see [`SharedMemory::slots`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when it is not inside the region or is misaligned.
    pub fn slots<T: Slot>(&self, offset: usize, count: usize) -> Result<Slots<T>, OutOfBounds> {
        self.memory.slots(offset, count)
    }
}

impl<D: Direction> fmt::Debug for DmaRegion<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaRegion")
            .field("domain", &self.mapping.domain_name())
            .field("range", &format_args!("{}", self.range))
            .field("permissions", &D::PERMISSIONS)
            .finish()
    }
}

/// A part of a mapped range.
#[inline]
pub(crate) fn segment_of(range: IovaRange, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds> {
    let (offset, length) = (ByteLength::from_usize(offset), ByteLength::from_usize(length));
    let inside = range.start().checked_add(offset).and_then(|start| IovaRange::new(start, length));
    match inside.filter(|part| range.contains_range(*part)) {
        Some(part) => Ok(DmaSegment { iova: part.start(), length }),
        None => Err(OutOfBounds {
            offset: offset.as_u64(),
            length: length.as_u64(),
            limit: range.length().as_u64(),
            alignment: 1,
        }),
    }
}
