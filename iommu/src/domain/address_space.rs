//! Mapping and unmapping, with the bookkeeping right at every exit.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use vdk_hal::address::IovaRange;
use vdk_hal::dma::{DmaGeometry, DmaMapper, MapError, UnmapError};

use super::registry::{EntryId, MapRequest, MemoryKind, PartState, Registry, Step};
use super::{DomainError, DomainStatistics};
use crate::allocator::{IovaAllocator, Placement};

/// One address space, shared by its domains and mappings.
///
/// # Locks
///
/// `attached` is held for reading while the mapper is called, so that nothing here keeps maps
/// and unmaps of different memory from running side by side (the mapper may: that of kernel
/// VFIO makes one call at a time), and for writing during an attach or detach. The
/// registry is locked for moments only, always after `attached`, and never while the
/// mapper maps or unmaps.
pub(crate) struct AddressSpace {
    mapper: Arc<dyn DmaMapper>,
    name: String,
    attached: RwLock<bool>,
    registry: Mutex<Registry>,
}

impl AddressSpace {
    /// Compared by where the mappers are: two views of one mapper are one.
    pub(super) fn is_over(&self, mapper: &Arc<dyn DmaMapper>) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.mapper), Arc::as_ptr(mapper))
    }

    pub(super) fn new(mapper: Arc<dyn DmaMapper>, placement: Placement) -> Result<Arc<Self>, DomainError> {
        let (name, geometry) = (mapper.name(), mapper.geometry());
        check_geometry(&name, &geometry)?;
        let allocator = IovaAllocator::new(&geometry.ranges, geometry.smallest_page(), placement);
        let attached = RwLock::new(!geometry.ranges.is_empty());
        let registry = Mutex::new(Registry::new(allocator, geometry));
        Ok(Arc::new(Self { mapper, name, attached, registry }))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn geometry(&self) -> DmaGeometry {
        self.registry().geometry.clone()
    }

    pub(super) fn prefers_files(&self) -> bool {
        self.mapper.prefers_files()
    }

    pub(super) fn is_attached(&self) -> bool {
        *self.attached.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn statistics(&self) -> DomainStatistics {
        let registry = self.registry();
        let waiting = registry.entries.values().filter(|entry| !entry.leaked);
        let waiting = waiting.flat_map(|entry| &entry.parts).filter(|part| **part == PartState::Waiting);
        DomainStatistics {
            waiting: waiting.count(),
            leaked: registry.entries.values().filter(|entry| entry.leaked).count(),
            addresses: registry.allocator.statistics(),
            ..registry.statistics
        }
    }

    /// Maps now, or fails and changes nothing.
    pub(crate) fn map(self: &Arc<Self>, request: MapRequest) -> Result<(Mapping, IovaRange), DomainError> {
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        if !*attached {
            return Err(DomainError::NotAttached { domain: self.name.clone() });
        }
        let id = self.registry().insert(request);
        let range = self.establish(id).and_then(|()| {
            let range = self.registry().entries.get(&id).and_then(super::registry::Entry::range);
            range.ok_or_else(|| DomainError::NotAttached { domain: self.name.clone() })
        });
        match range {
            Ok(range) => Ok((Mapping { space: Arc::clone(self), id, ended: false }, range)),
            Err(error) => {
                self.forget_failed(id);
                Err(error)
            }
        }
    }

    /// Maps now if a device is attached, and otherwise when one is.
    pub(crate) fn register(self: &Arc<Self>, request: MapRequest) -> Result<Mapping, DomainError> {
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        let id = self.registry().insert(request);
        if *attached {
            match self.establish(id) {
                Ok(()) | Err(DomainError::Map(MapError::NotAttached { .. })) => {}
                Err(error) => {
                    self.forget_failed(id);
                    return Err(error);
                }
            }
        }
        Ok(Mapping { space: Arc::clone(self), id, ended: false })
    }

    /// Reads the geometry again and maps what waits, each part once.
    pub(super) fn attached(&self) -> Result<(), DomainError> {
        let mut attached = self.attached.write().unwrap_or_else(PoisonError::into_inner);
        let geometry = self.mapper.geometry();
        check_geometry(&self.name, &geometry)?;
        if geometry.ranges.is_empty() {
            return Err(DomainError::NotAttached { domain: self.name.clone() });
        }
        let (stranded, waiting) = {
            let mut registry = self.registry();
            let stranded = registry.allocator.set_ranges(&geometry.ranges, geometry.smallest_page());
            registry.available = geometry.mappings_available;
            registry.geometry = geometry;
            (stranded, registry.waiting())
        };
        *attached = true;
        let stranded = stranded.first().map(|range| self.stranded(*range));
        let failures = waiting.into_iter().filter_map(|id| self.establish(id).err());
        // Every waiting entry is tried, so the iterator must run to its end.
        let first_failure = failures.fold(None, |first, error| first.or(Some(error)));
        stranded.or(first_failure).map_or(Ok(()), Err)
    }

    /// Records that the kernel has ended every mapping, as it does when the last function
    /// leaves: all wait for the next attach, at the addresses they had.
    pub(super) fn detached(&self) {
        let mut attached = self.attached.write().unwrap_or_else(PoisonError::into_inner);
        *attached = false;
        let mut registry = self.registry();
        let mut ended = Vec::new();
        for (id, entry) in &registry.entries {
            ended.extend(entry.steps(PartState::Mapped).map(|step| (*id, step)));
        }
        for (id, step) in &ended {
            registry.set_unmapped(*id, step, PartState::Waiting);
        }
        let leaked: Vec<EntryId> =
            registry.entries.iter().filter(|(_, entry)| entry.leaked).map(|(id, _)| *id).collect();
        let removed: Vec<_> = leaked.into_iter().filter_map(|id| registry.remove(id)).collect();
        drop(registry);
        drop(removed);
    }

    /// Maps all waiting parts of an entry, or none.
    fn establish(&self, id: EntryId) -> Result<(), DomainError> {
        let kind = self.registry().entries.get(&id).map(|entry| entry.request.kind);
        let steps = self.prepare(id)?;
        for (done, step) in steps.iter().enumerate() {
            let result = self.mapper.map(step.range.start(), &step.memory, step.permissions);
            let mut registry = self.registry();
            registry.statistics.map_calls += 1;
            match result {
                Ok(()) => registry.set_mapped(id, step),
                Err(error) => {
                    registry.statistics.map_failures += 1;
                    registry.cancel(steps.len() - done);
                    drop(registry);
                    // PANIC: `done < steps.len()`.
                    self.roll_back(id, &steps[..done]);
                    return Err(with_hint(error, kind));
                }
            }
        }
        Ok(())
    }

    /// Prepares an entry; asks the mapper again before saying that its limit is reached.
    fn prepare(&self, id: EntryId) -> Result<Vec<Step>, DomainError> {
        let mut registry = self.registry();
        match registry.prepare(id) {
            Err(DomainError::Map(MapError::TooManyMappings { .. })) => {
                registry.available = self.mapper.geometry().mappings_available;
                registry.prepare(id)
            }
            result => result,
        }
    }

    fn roll_back(&self, id: EntryId, done: &[Step]) {
        for step in done {
            if let Err(error) = self.unmap_step(id, step, PartState::Waiting) {
                log::error!("{}: cannot undo a mapping: {error}", self.name);
            }
        }
        self.registry().release_addresses(id);
    }

    /// Forgets an entry that was never handed out; leaks it when a part is still mapped.
    fn forget_failed(&self, id: EntryId) {
        let mut registry = self.registry();
        let still_mapped = registry.entries.get(&id).is_some_and(|e| e.parts.contains(&PartState::Mapped));
        if still_mapped {
            leak(&mut registry, id);
        } else {
            let removed = registry.remove(id);
            drop(registry);
            drop(removed);
        }
    }

    /// Ends all parts of an entry, and the entry with the last of them.
    fn release(&self, id: EntryId) -> Result<(), UnmapError> {
        let _attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        let mapped: Vec<Step> =
            self.registry().entries.get(&id).into_iter().flat_map(|e| e.steps(PartState::Mapped)).collect();
        for step in &mapped {
            self.unmap_step(id, step, PartState::Ended)?;
        }
        let removed = self.registry().remove(id);
        drop(removed);
        Ok(())
    }

    /// Ends one mapping; the bookkeeping stays when the IOMMU did not end all of it.
    fn unmap_step(&self, id: EntryId, step: &Step, state: PartState) -> Result<(), UnmapError> {
        let range = step.range;
        let result = self.mapper.unmap(range).and_then(|returned| {
            if returned == range.length() { Ok(()) } else { Err(UnmapError::Incomplete { range, returned }) }
        });
        let mut registry = self.registry();
        registry.statistics.unmap_calls += 1;
        match result {
            Ok(()) => registry.set_unmapped(id, step, state),
            Err(_) => registry.statistics.unmap_failures += 1,
        }
        result
    }

    fn stranded(&self, range: IovaRange) -> DomainError {
        let usable: Vec<String> = self.registry().geometry.ranges.iter().map(ToString::to_string).collect();
        DomainError::Stranded { domain: self.name.clone(), range, usable: usable.join(" ") }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // Mappings keep the address space alive, so only what was leaked is left.
        let left = self.registry().statistics;
        if left.mappings > 0 {
            let (count, bytes) = (left.mappings, left.mapped_bytes);
            log::error!("{}: closed with {count} mappings of {bytes} that could not be ended", self.name);
        }
    }
}

/// The right to one entry of an address space. Dropping it ends the mapping; when that
/// fails the memory is leaked, never freed.
#[derive(Debug)]
pub(crate) struct Mapping {
    space: Arc<AddressSpace>,
    id: EntryId,
    ended: bool,
}

impl Mapping {
    /// Ends the mapping; after an error it may be tried again.
    pub(crate) fn end(&mut self) -> Result<(), UnmapError> {
        if !self.ended {
            self.space.release(self.id)?;
            self.ended = true;
        }
        Ok(())
    }

    /// The addresses, if all of it is mapped.
    pub(crate) fn mapped_range(&self) -> Option<IovaRange> {
        let registry = self.space.registry();
        let entry = registry.entries.get(&self.id)?;
        let all = entry.parts.iter().all(|part| *part == PartState::Mapped);
        if all { entry.range() } else { None }
    }

    pub(crate) fn domain_name(&self) -> &str {
        &self.space.name
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::error!("{}: {error}; the memory is leaked", self.space.name);
            leak(&mut self.space.registry(), self.id);
        }
    }
}

/// Keeps the memory of an entry for ever.
fn leak(registry: &mut Registry, id: EntryId) {
    if let Some(entry) = registry.entries.get_mut(&id) {
        entry.leaked = true;
        for piece in &entry.request.pieces {
            core::mem::forget(piece.clone());
        }
    }
}

fn check_geometry(domain: &str, geometry: &DmaGeometry) -> Result<(), DomainError> {
    let page_sizes = geometry.page_sizes;
    if page_sizes == 0 && !geometry.ranges.is_empty() {
        return Err(DomainError::Geometry { domain: domain.to_owned(), page_sizes });
    }
    Ok(())
}

fn with_hint(error: MapError, kind: Option<MemoryKind>) -> DomainError {
    match (error, kind) {
        (source @ MapError::LockedMemory { .. }, Some(MemoryKind::DeviceBar)) => {
            DomainError::LockedBar { source }
        }
        (error, _) => DomainError::Map(error),
    }
}
