//! One address space of the software IOMMU.

use core::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use vdk_hal::address::{ByteLength, HostAddress, Iova, IovaRange, RequesterId};
use vdk_hal::dma::{DmaGeometry, DmaMapper, MapError, Permissions, UnmapError};
use vdk_hal::memory::SharedMemory;
use vdk_hal::memory::access::{AccessBurst, AccessDomain, AccessHold};

use super::fault::{FaultReason, TranslationFault};
use super::iotlb::{Entry, Translation};
use super::mapping::{Backing, Mappings};
use super::remote::{Absent, RemoteMemory};
use super::{BusMaster, BusMasterGate, IommuView, SoftIommu};

/// An address space: the functions whose [`BusMaster`]s are in it share its translations.
///
/// # A device that does not leave
///
/// When an unmap fails with [`UnmapError::DeviceBusy`], devices are given no translation of
/// the range any more, but the range and the memory stay taken: a new mapping there is
/// refused, and unmapping the same range can be tried again. Nothing is freed under a burst
/// that is stuck.
pub struct SoftDomain {
    iommu: Arc<SoftIommu>,
    number: u64,
    access: Arc<AccessDomain>,
    mappings: RwLock<Mappings>,
}

impl SoftDomain {
    pub(super) fn new(iommu: Arc<SoftIommu>, number: u64) -> Arc<Self> {
        let highest = iommu.ranges.last().map_or(Iova::new(0), |range| range.last());
        let mappings = RwLock::new(Mappings::new(highest, iommu.page_sizes));
        Arc::new(Self { iommu, number, access: AccessDomain::new(), mappings })
    }

    /// The way of one device thread of the function `requester` into this address space.
    /// Nothing goes through while `gate` is closed.
    #[must_use]
    pub fn bus_master(self: &Arc<Self>, requester: RequesterId, gate: Arc<BusMasterGate>) -> BusMaster {
        gate.add_domain(&self.access);
        BusMaster::new(Arc::clone(self), self.access.reader(), requester, gate)
    }

    /// This address space for the function `requester`, for device models that use the
    /// traits of `vm-memory`.
    #[must_use]
    pub fn view(self: &Arc<Self>, requester: RequesterId, gate: Arc<BusMasterGate>) -> IommuView {
        gate.add_domain(&self.access);
        IommuView::new(Arc::clone(self), requester, gate)
    }

    /// The IOMMU that this address space belongs to.
    #[must_use]
    pub fn iommu(&self) -> &Arc<SoftIommu> {
        &self.iommu
    }

    /// Walks the page table.
    pub(super) fn walk(&self, access: &AccessBurst<'_>, address: Iova) -> Result<Entry, Absent> {
        let absent = Absent::Fault(FaultReason::NotMapped);
        let mappings = self.read();
        let Some(mapping) = mappings.at(address) else { return Err(absent) };
        let registration = mapping.registration()?;
        let Ok(token) = access.admit(registration) else { return Err(absent) };
        let translation = Translation { start: mapping.range.start(), token };
        Ok(Entry { translation, permissions: mapping.permissions })
    }

    /// Where the memory behind `address` lies in this process.
    pub(super) fn place(&self, address: Iova) -> Result<Place, FaultReason> {
        let mappings = self.read();
        let mapping = mappings.at(address).ok_or(FaultReason::NotMapped)?;
        let registration = mapping.registration().map_err(|_| FaultReason::NotMapped)?;
        let host = registration.memory().host_address();
        Ok(Place { range: mapping.range, host, permissions: mapping.permissions })
    }

    /// Maps memory that is not in this process, for a device to reach by asking. It is
    /// unmapped as all is, by [`unmap`](DmaMapper::unmap), which waits until an answer that
    /// is waited for has come or is given up.
    ///
    /// # Errors
    ///
    /// As [`map`](DmaMapper::map).
    pub fn map_remote(
        &self,
        range: IovaRange,
        permissions: Permissions,
        memory: Arc<dyn RemoteMemory>,
    ) -> Result<(), MapError> {
        // The other side has its own place for the memory.
        self.enter(range.start(), range.length(), 0, permissions, || Backing::Remote(memory))
    }

    fn enter(
        &self,
        iova: Iova,
        length: ByteLength,
        host: u64,
        permissions: Permissions,
        backing: impl FnOnce() -> Backing,
    ) -> Result<(), MapError> {
        let page = self.smallest_page();
        let aligned = iova.is_aligned_to(page)
            && length.is_aligned_to(page)
            && ByteLength::new(host).is_aligned_to(page);
        if !aligned {
            return Err(MapError::Misaligned { iova, host, length, page });
        }
        let usable = &self.iommu.ranges;
        let range = IovaRange::new(iova, length);
        let Some(range) = range.filter(|range| usable.iter().any(|usable| usable.contains_range(*range)))
        else {
            let to_the_end = IovaRange::from_bounds(iova, Iova::new(u64::MAX));
            return match range.or(to_the_end) {
                Some(range) => Err(MapError::OutOfRange { range, usable: text_of(usable) }),
                None => Err(MapError::Misaligned { iova, host, length, page }),
            };
        };
        let mut mappings = self.write();
        if let Some(existing) = mappings.first_in(range) {
            return Err(MapError::AlreadyMapped { range, existing: existing.range });
        }
        let limit = self.iommu.max_mappings;
        if u32::try_from(mappings.count()).is_ok_and(|count| count >= limit) {
            return Err(MapError::TooManyMappings { limit });
        }
        mappings.insert(range, permissions, backing());
        Ok(())
    }

    /// Keeps all that is mapped in place.
    pub(super) fn hold(&self) -> AccessHold {
        self.access.reader().hold()
    }

    /// Enters a fault into the log.
    pub(super) fn report(&self, fault: TranslationFault) {
        log::debug!("{}: {fault}", self.name());
        self.iommu.faults.push(fault);
    }

    fn read(&self) -> RwLockReadGuard<'_, Mappings> {
        self.mappings.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Mappings> {
        self.mappings.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn smallest_page(&self) -> ByteLength {
        ByteLength::new(1 << self.iommu.page_sizes.trailing_zeros().min(63))
    }
}

impl DmaMapper for SoftDomain {
    fn name(&self) -> String {
        format!("software IOMMU domain {}", self.number)
    }

    fn geometry(&self) -> DmaGeometry {
        let taken = u32::try_from(self.read().count()).unwrap_or(u32::MAX);
        DmaGeometry {
            ranges: self.iommu.ranges.clone(),
            page_sizes: self.iommu.page_sizes,
            mappings_available: Some(self.iommu.max_mappings.saturating_sub(taken)),
        }
    }

    fn map(&self, iova: Iova, memory: &SharedMemory, permissions: Permissions) -> Result<(), MapError> {
        let host = memory.host_address().as_u64();
        let backing = || Backing::Here(self.access.register(memory.clone()));
        self.enter(iova, memory.length(), host, permissions, backing)
    }

    /// Ends a mapping; see the type for what happens when a device does not leave.
    fn unmap(&self, range: IovaRange) -> Result<ByteLength, UnmapError> {
        let (unmapping, backing) = self.write().begin_unmap(range)?;
        // Not under the lock: a device that walks the page table in its burst needs it.
        let ended = match backing {
            Backing::Here(registration) => match registration.revoke() {
                Ok(_) => Ok(()),
                Err((source, registration)) => Err((source, Backing::Here(registration))),
            },
            // A device that waits for an answer does so in a burst.
            remote @ Backing::Remote(_) => self.access.revoke_tokens().map_err(|source| (source, remote)),
        };
        match ended {
            Ok(()) => {
                self.write().end_unmap(unmapping);
                Ok(range.length())
            }
            Err((error, backing)) => {
                self.write().abandon_unmap(unmapping, backing);
                Err(UnmapError::DeviceBusy { range, error })
            }
        }
    }
}

impl fmt::Debug for SoftDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftDomain")
            .field("number", &self.number)
            .field("mappings", &self.read().count())
            .finish_non_exhaustive()
    }
}

/// A mapping and its memory.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) range: IovaRange,
    pub(super) host: HostAddress,
    pub(super) permissions: Permissions,
}

fn text_of(ranges: &[IovaRange]) -> String {
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    if ranges.is_empty() { "nothing".to_owned() } else { ranges.join(", ") }
}
