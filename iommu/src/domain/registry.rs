//! What a domain has mapped, or is to map.

use std::collections::BTreeMap;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::{DmaGeometry, MapError, Permissions};
use vdk_hal::memory::SharedMemory;

use super::{DomainError, DomainStatistics};
use crate::allocator::{IovaAllocation, IovaAllocator};

/// The number of an entry. It is never used again.
pub(super) type EntryId = u64;

/// What is to be mapped: pieces of memory at one contiguous range of addresses.
#[derive(Clone, Debug)]
pub(crate) struct MapRequest {
    pub(crate) pieces: Vec<SharedMemory>,
    pub(crate) permissions: Permissions,
    pub(crate) alignment: ByteLength,
    /// The address, where the caller chose it.
    pub(crate) at: Option<Iova>,
    /// The last address that the device reaches.
    pub(crate) limit: Iova,
    pub(crate) kind: MemoryKind,
}

/// What the memory is, for the text of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Ram,
    DeviceBar,
}

/// The bookkeeping of one address space.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) allocator: IovaAllocator,
    pub(super) geometry: DmaGeometry,
    pub(super) entries: BTreeMap<EntryId, Entry>,
    /// How many more mappings the IOMMU takes, where it says so.
    pub(super) available: Option<u32>,
    pub(super) statistics: DomainStatistics,
    next_id: EntryId,
}

/// A request and how far it got.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: MapRequest,
    pub(super) allocation: Option<IovaAllocation>,
    pub(super) parts: Vec<PartState>,
    /// Its owner is gone and an unmap failed: it is kept so that its addresses are not
    /// used again.
    pub(super) leaked: bool,
}

/// How far one piece of memory got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    /// To be mapped when a device is attached.
    Waiting,
    Mapped,
    /// Unmapped at the owner's wish, never to be mapped again.
    Ended,
}

/// One call of the mapper to be made.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) part: usize,
    pub(super) range: IovaRange,
    pub(super) memory: SharedMemory,
    pub(super) permissions: Permissions,
}

impl Registry {
    pub(super) fn new(allocator: IovaAllocator, geometry: DmaGeometry) -> Self {
        Self {
            allocator,
            available: geometry.mappings_available,
            geometry,
            entries: BTreeMap::new(),
            statistics: DomainStatistics::default(),
            next_id: 0,
        }
    }

    pub(super) fn insert(&mut self, request: MapRequest) -> EntryId {
        let id = self.next_id;
        self.next_id += 1;
        let parts = vec![PartState::Waiting; request.pieces.len()];
        self.entries.insert(id, Entry { request, allocation: None, parts, leaked: false });
        id
    }

    /// Ends an entry; its addresses are free again. What it held is returned so that it is
    /// dropped outside the lock.
    pub(super) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let mut entry = self.entries.remove(&id)?;
        if let Some(allocation) = entry.allocation.take() {
            self.give_back(allocation);
        }
        Some(entry)
    }

    /// Checks an entry, gives it addresses if it has none, and lists what to map. The
    /// mappings are counted as made; [`cancel`](Self::cancel) undoes that.
    pub(super) fn prepare(&mut self, id: EntryId) -> Result<Vec<Step>, DomainError> {
        let page = self.geometry.smallest_page();
        let Some(entry) = self.entries.get(&id) else { return Ok(Vec::new()) };
        let request = &entry.request;
        let mut length = ByteLength::ZERO;
        for piece in &request.pieces {
            let (host, size) = (piece.host_address().as_u64(), piece.length());
            if !size.is_aligned_to(page) || !ByteLength::new(host).is_aligned_to(page) {
                let iova = request.at.unwrap_or_default();
                return Err(MapError::Misaligned { iova, host, length: size, page }.into());
            }
            let iova = request.at.unwrap_or_default();
            length = length.checked_add(size).ok_or(DomainError::PastEnd { iova, length: size })?;
        }
        let count = entry.parts.iter().filter(|part| **part == PartState::Waiting).count();
        self.check_limit(count)?;
        if entry.allocation.is_none() {
            let allocation = allocate(&mut self.allocator, request, length)?;
            self.entries.entry(id).and_modify(|entry| entry.allocation = Some(allocation));
        }
        let Some(entry) = self.entries.get(&id) else { return Ok(Vec::new()) };
        let steps: Vec<Step> = entry.steps(PartState::Waiting).collect();
        self.available = self.available.map(|available| available.saturating_sub(saturate(steps.len())));
        Ok(steps)
    }

    /// Takes back what [`prepare`](Self::prepare) counted for mappings that were not made.
    pub(super) fn cancel(&mut self, count: usize) {
        self.available = self.available.map(|available| available.saturating_add(saturate(count)));
    }

    /// Gives the addresses of an entry back when no part of it is mapped.
    pub(super) fn release_addresses(&mut self, id: EntryId) {
        let entry = self.entries.get_mut(&id);
        let Some(entry) = entry.filter(|entry| !entry.parts.contains(&PartState::Mapped)) else { return };
        if let Some(allocation) = entry.allocation.take() {
            self.give_back(allocation);
        }
    }

    pub(super) fn set_mapped(&mut self, id: EntryId, step: &Step) {
        self.set_part(id, step.part, PartState::Mapped);
        self.statistics.mappings += 1;
        self.statistics.mapped_bytes = sum(self.statistics.mapped_bytes, step.range.length());
    }

    /// Records that a mapping ended; the part is from now on in `state`.
    pub(super) fn set_unmapped(&mut self, id: EntryId, step: &Step, state: PartState) {
        self.set_part(id, step.part, state);
        self.cancel(1);
        self.statistics.mappings = self.statistics.mappings.saturating_sub(1);
        let rest = self.statistics.mapped_bytes.checked_sub(step.range.length());
        self.statistics.mapped_bytes = rest.unwrap_or_default();
    }

    /// Entries with a part that waits to be mapped, in the order of their registration.
    pub(super) fn waiting(&self) -> Vec<EntryId> {
        let waits = |entry: &Entry| !entry.leaked && entry.parts.contains(&PartState::Waiting);
        self.entries.iter().filter(|(_, entry)| waits(entry)).map(|(id, _)| *id).collect()
    }

    /// Whether the IOMMU takes `count` more mappings, as far as it says.
    fn check_limit(&self, count: usize) -> Result<(), DomainError> {
        let count = saturate(count);
        match self.available {
            Some(available) if available < count => {
                let limit = saturate(self.statistics.mappings).saturating_add(available);
                Err(MapError::TooManyMappings { limit }.into())
            }
            _ => Ok(()),
        }
    }

    fn set_part(&mut self, id: EntryId, part: usize, state: PartState) {
        if let Some(slot) = self.entries.get_mut(&id).and_then(|entry| entry.parts.get_mut(part)) {
            *slot = state;
        }
    }

    fn give_back(&mut self, allocation: IovaAllocation) {
        if let Err(foreign) = self.allocator.free(allocation) {
            log::error!("{foreign:?} belongs to another allocator; its addresses are lost");
        }
    }
}

impl Entry {
    /// The addresses, once there are some.
    pub(super) fn range(&self) -> Option<IovaRange> {
        self.allocation.as_ref().map(IovaAllocation::range)
    }

    /// The parts in a state, with their addresses. Empty before there are addresses.
    pub(super) fn steps(&self, state: PartState) -> impl Iterator<Item = Step> {
        let mut next = self.range().map(IovaRange::start);
        let parts = self.parts.iter().zip(&self.request.pieces).enumerate();
        parts.filter_map(move |(part, (is, memory))| {
            let range = IovaRange::new(next?, memory.length())?;
            next = next?.checked_add(memory.length());
            let permissions = self.request.permissions;
            (*is == state).then(|| Step { part, range, memory: memory.clone(), permissions })
        })
    }
}

fn allocate(
    allocator: &mut IovaAllocator,
    request: &MapRequest,
    length: ByteLength,
) -> Result<IovaAllocation, DomainError> {
    let Some(iova) = request.at else {
        return Ok(allocator.allocate_aligned(length, request.alignment, request.limit)?);
    };
    let range = IovaRange::new(iova, length).ok_or(DomainError::PastEnd { iova, length })?;
    Ok(allocator.reserve(range, request.limit)?)
}

fn sum(left: ByteLength, right: ByteLength) -> ByteLength {
    ByteLength::new(left.as_u64().saturating_add(right.as_u64()))
}

fn saturate(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
