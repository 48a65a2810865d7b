//! An address space of devices, and what is mapped in it.

mod address_space;
mod error;
mod registry;

use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::dma::{DmaGeometry, DmaMapper};
use vdk_hal::memory::SharedMemory;

use self::address_space::AddressSpace;
pub(crate) use self::address_space::Mapping;
pub use self::error::DomainError;
use self::registry::{MapRequest, MemoryKind};
use crate::allocator::{AllocatorStatistics, Placement};
use crate::direction::Direction;
use crate::group::DmaGroup;
use crate::pending::PendingRegion;
use crate::region::DmaRegion;
use crate::width::AddressWidth;

/// One device's view of an address space: the mappings that all devices in it share, and
/// the addresses that this device reaches. Clones are the same view.
///
/// Memory is mapped once for all devices of an address space, so give devices that share
/// memory one address space and a view each, by [`with_width`](Self::with_width): in two
/// address spaces the same memory is pinned, and counted as locked, twice. See
/// [`locked_memory_needed`].
#[derive(Clone, Debug)]
pub struct Domain {
    space: Arc<AddressSpace>,
    width: AddressWidth,
}

impl Domain {
    /// A new address space over `mapper`, low addresses first. It counts as attached if the
    /// mapper has usable ranges already.
    ///
    /// A mapper belongs to one address space: a second one over it would choose the same
    /// addresses and be refused. Clone the domain, or make a view of it.
    ///
    /// # Errors
    ///
    /// [`DomainError::Geometry`].
    pub fn new(mapper: Arc<dyn DmaMapper>, width: AddressWidth) -> Result<Self, DomainError> {
        Self::with_placement(mapper, width, Placement::default())
    }

    /// A new address space as [`new`](Self::new), with a choice of placement.
    ///
    /// # Errors
    ///
    /// [`DomainError::Geometry`].
    pub fn with_placement(
        mapper: Arc<dyn DmaMapper>,
        width: AddressWidth,
        placement: Placement,
    ) -> Result<Self, DomainError> {
        Ok(Self { space: AddressSpace::new(mapper, placement)?, width })
    }

    /// Another device's view of the same address space.
    #[must_use]
    pub fn with_width(&self, width: AddressWidth) -> Self {
        Self { space: Arc::clone(&self.space), width }
    }

    /// Maps memory for one direction at an address that the domain chooses, naturally
    /// aligned and inside the device's width.
    ///
    /// # Errors
    ///
    /// - [`DomainError::NotAttached`] before a device is attached;
    /// - [`DomainError::Map`] when the memory is not whole pages of the IOMMU, the limit of
    ///   mappings is reached, or the IOMMU refuses: "already mapped" is a refusal too;
    /// - [`DomainError::OutOfIova`].
    pub fn map<D: Direction>(&self, memory: SharedMemory) -> Result<DmaRegion<D>, DomainError> {
        self.map_aligned(memory, ByteLength::new(1))
    }

    /// Maps memory as [`map`](Self::map), at a multiple of `alignment` (rounded up to a
    /// power of two).
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn map_aligned<D: Direction>(
        &self,
        memory: SharedMemory,
        alignment: ByteLength,
    ) -> Result<DmaRegion<D>, DomainError> {
        self.map_region(memory, |request| request.alignment = alignment)
    }

    /// Maps memory at `iova`.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`DomainError::Unavailable`] when the addresses are not
    /// usable, not reached by the device, not whole pages, or in use. Address 0 is never
    /// usable.
    pub fn map_at<D: Direction>(
        &self,
        iova: Iova,
        memory: SharedMemory,
    ) -> Result<DmaRegion<D>, DomainError> {
        self.map_region(memory, |request| request.at = Some(iova))
    }

    /// Maps the BAR of a device, so that another device reaches it. It differs from
    /// [`map`](Self::map) only in the hint when the limit of locked memory is hit.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`DomainError::LockedBar`].
    pub fn map_bar<D: Direction>(&self, memory: SharedMemory) -> Result<DmaRegion<D>, DomainError> {
        self.map_region(memory, |request| request.kind = MemoryKind::DeviceBar)
    }

    /// Maps pieces of memory one after the other at contiguous addresses, all or none.
    /// Pieces that follow one another in one region of memory become one mapping, so that
    /// the limit of mappings counts regions and not pages.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`DomainError::EmptyGroup`].
    pub fn map_adjacent<D: Direction>(&self, memory: Vec<SharedMemory>) -> Result<DmaGroup<D>, DomainError> {
        let pieces = join_neighbours(&memory);
        if pieces.is_empty() {
            return Err(DomainError::EmptyGroup);
        }
        let (mapping, range) = self.space.map(self.request::<D>(pieces.clone()))?;
        Ok(DmaGroup::new(mapping, range, memory, pieces))
    }

    /// Maps memory now if a device is attached, and otherwise as soon as
    /// [`attached`](Self::attached) is called. The region is had from the result once it is
    /// mapped: before that it has no address.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), without [`DomainError::NotAttached`].
    pub fn register<D: Direction>(&self, memory: SharedMemory) -> Result<PendingRegion<D>, DomainError> {
        let mapping = self.space.register(self.request::<D>(vec![memory.clone()]))?;
        Ok(PendingRegion::new(mapping, memory))
    }

    /// To be called after each attach of a function to the address space: reads the
    /// geometry again and maps what waits. What is mapped already is not mapped again.
    ///
    /// # Errors
    ///
    /// The first failure; everything that waits has been tried, what failed still waits,
    /// and a further call tries it again. [`DomainError::Stranded`] when a range in use is
    /// no longer usable.
    pub fn attached(&self) -> Result<(), DomainError> {
        self.space.attached()
    }

    /// To be called when the last function has left the address space and the kernel has
    /// ended all its mappings. They wait, at their addresses, for the next attach.
    pub fn detached(&self) {
        self.space.detached();
    }

    /// Whether a function is attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.space.is_attached()
    }

    /// What the IOMMU accepts, as read at the last attach.
    #[must_use]
    pub fn geometry(&self) -> DmaGeometry {
        self.space.geometry()
    }

    /// Whether memory with a file is reached better than other memory, or only that; see
    /// [`DmaMapper::prefers_files`].
    #[must_use]
    pub fn prefers_files(&self) -> bool {
        self.space.prefers_files()
    }

    /// What is mapped and what has been done.
    #[must_use]
    pub fn statistics(&self) -> DomainStatistics {
        self.space.statistics()
    }

    /// Whether the address space is that of `mapper`: the very same one, not one like it.
    #[must_use]
    pub fn is_over(&self, mapper: &Arc<dyn DmaMapper>) -> bool {
        self.space.is_over(mapper)
    }

    /// The name of the address space, as the mapper gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.space.name()
    }

    /// How many address bits this view's device drives.
    #[must_use]
    pub fn width(&self) -> AddressWidth {
        self.width
    }

    /// Whether both are views of one address space.
    #[must_use]
    pub fn shares_address_space(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.space, &other.space)
    }

    fn map_region<D: Direction>(
        &self,
        memory: SharedMemory,
        adjust: impl FnOnce(&mut MapRequest),
    ) -> Result<DmaRegion<D>, DomainError> {
        let mut request = self.request::<D>(vec![memory.clone()]);
        adjust(&mut request);
        let (mapping, range) = self.space.map(request)?;
        Ok(DmaRegion::new(mapping, range, memory))
    }

    fn request<D: Direction>(&self, pieces: Vec<SharedMemory>) -> MapRequest {
        MapRequest {
            pieces,
            permissions: D::PERMISSIONS,
            alignment: ByteLength::new(1),
            at: None,
            limit: self.width.last(),
            kind: MemoryKind::Ram,
        }
    }
}

/// What a domain has mapped and done. Counts are exact at every moment no call is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainStatistics {
    /// Mappings in the IOMMU.
    pub mappings: usize,
    /// Their bytes.
    pub mapped_bytes: ByteLength,
    /// Mappings that wait for a device to be attached.
    pub waiting: usize,
    /// Regions that could not be unmapped and were leaked.
    pub leaked: usize,
    /// Calls that map, the failed ones too.
    pub map_calls: u64,
    /// Failed calls that map.
    pub map_failures: u64,
    /// Calls that unmap, the failed ones too.
    pub unmap_calls: u64,
    /// Failed calls that unmap.
    pub unmap_failures: u64,
    /// The addresses.
    pub addresses: AllocatorStatistics,
}

/// How much memory is locked when `length` bytes are mapped for all of `domains`: once in
/// each address space, however many devices share it.
pub fn locked_memory_needed<'a>(
    domains: impl IntoIterator<Item = &'a Domain>,
    length: ByteLength,
) -> ByteLength {
    let mut distinct: Vec<&Domain> = Vec::new();
    for domain in domains {
        if !distinct.iter().any(|known| known.shares_address_space(domain)) {
            distinct.push(domain);
        }
    }
    let each = |sum: ByteLength| ByteLength::new(sum.as_u64().saturating_add(length.as_u64()));
    distinct.iter().fold(ByteLength::ZERO, |sum, _| each(sum))
}

/// The pieces with those joined that follow one another in one region.
fn join_neighbours(memory: &[SharedMemory]) -> Vec<SharedMemory> {
    let mut joined: Vec<SharedMemory> = Vec::new();
    for piece in memory {
        match joined.last().and_then(|last| last.joined_with(piece)) {
            Some(longer) => {
                joined.pop();
                joined.push(longer);
            }
            None => joined.push(piece.clone()),
        }
    }
    joined
}
