//! An address space as an IOMMU for `vm-memory`.

use core::ops::Deref;
use std::sync::Arc;

use vdk_hal::address::{Iova, RequesterId};
use vdk_hal::dma;
use vdk_hal::memory::access::AccessHold;
use vm_memory::iommu::{Error, Iommu, Iotlb, IotlbIterator, IovaRange};
use vm_memory::{GuestAddress, Permissions};

use super::fault::{FaultReason, TranslationFault};
use super::{BusMasterGate, SoftDomain};

/// One function's view of a [`SoftDomain`] through the [`Iommu`] trait, for device models
/// that are written against `vm_memory::IommuMemory`.
///
/// A translated address is the address of the memory in this process, as a number
/// ([`SharedMemory::host_address`](vdk_hal::memory::SharedMemory::host_address)). It is not
/// a pointer: the backend below `IommuMemory` must have its regions at these addresses, for
/// instance mappings of the memory's file.
///
/// # Until when a translation holds
///
/// As long as the guard of a translation, or the iterator that has it, lives, no unmap in
/// the domain completes: it waits for the guard and fails with
/// [`UnmapError::DeviceBusy`](dma::UnmapError::DeviceBusy) when that takes too long. A
/// `VolatileSlice` that outlives the iterator is reached through the backend alone, and
/// nothing takes it back; a [`BusMaster`](super::BusMaster) has no such gap and is faster.
#[derive(Debug)]
pub struct IommuView {
    domain: Arc<SoftDomain>,
    requester: RequesterId,
    gate: Arc<BusMasterGate>,
}

/// A translation, and the hold that keeps what it names in place.
#[derive(Debug)]
pub struct HeldIotlb {
    iotlb: Iotlb,
    _hold: AccessHold,
}

impl Deref for HeldIotlb {
    type Target = Iotlb;

    fn deref(&self) -> &Iotlb {
        &self.iotlb
    }
}

impl IommuView {
    pub(super) fn new(domain: Arc<SoftDomain>, requester: RequesterId, gate: Arc<BusMasterGate>) -> Self {
        Self { domain, requester, gate }
    }

    fn translate_held(
        &self,
        start: Iova,
        length: u64,
        access: Permissions,
    ) -> Result<HeldIotlb, TranslationFault> {
        let write = access.has_write();
        let fault = |reason, address| {
            let fault = TranslationFault { reason, requester: self.requester, address, write };
            self.domain.report(fault);
            fault
        };
        // The ranges of `Iotlb` have exclusive ends, which the last byte of the space lacks.
        let Some(end) = start.as_u64().checked_add(length) else {
            return Err(fault(FaultReason::Overflow, start));
        };
        let hold = self.domain.hold();
        // After the hold, as the gate demands.
        if length > 0 && !self.gate.is_open() {
            return Err(fault(FaultReason::BusMasterOff, start));
        }
        let mut iotlb = Iotlb::new();
        let mut next = start.as_u64();
        while next < end {
            let address = Iova::new(next);
            let place = self.domain.place(address).map_err(|reason| fault(reason, address))?;
            let permissions = permissions_of(place.permissions);
            if !permissions.allow(access) {
                let missing_read = access.allow(Permissions::Read) && !place.permissions.allows_read();
                let reason = if missing_read { FaultReason::NotReadable } else { FaultReason::NotWritable };
                return Err(fault(reason, address));
            }
            let last = place.range.last().as_u64().min(end - 1);
            let host = place.host.as_u64() + (next - place.range.start().as_u64());
            usize::try_from(last - next)
                .ok()
                .and_then(|length| length.checked_add(1))
                .and_then(|length| {
                    iotlb.set_mapping(GuestAddress(next), GuestAddress(host), length, permissions).ok()
                })
                .ok_or_else(|| fault(FaultReason::NotMapped, address))?;
            next = last + 1;
        }
        Ok(HeldIotlb { iotlb, _hold: hold })
    }
}

impl Iommu for IommuView {
    type IotlbGuard<'a> = HeldIotlb;

    fn translate(
        &self,
        iova: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<IotlbIterator<HeldIotlb>, Error> {
        let unresolved =
            |reason: String| Error::CannotResolve { iova_range: IovaRange { base: iova, length }, reason };
        // CAST: `usize` is at most 64 bits wide.
        let held = self
            .translate_held(Iova::new(iova.0), length as u64, access)
            .map_err(|fault| unresolved(fault.to_string()))?;
        Iotlb::lookup(held, iova, length, access).map_err(|fails| unresolved(format!("{fails:?}")))
    }
}

fn permissions_of(permissions: dma::Permissions) -> Permissions {
    match permissions {
        dma::Permissions::Read => Permissions::Read,
        dma::Permissions::Write => Permissions::Write,
        dma::Permissions::ReadWrite => Permissions::ReadWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::SoftIommuOptions;
    use crate::soft::tests::{PAGE, REQUESTER, iova, machine, memory, range, whole_space};
    use vdk_hal::dma::{DmaMapper, UnmapError};
    use vdk_hal::memory::SharedMemory;
    use vm_memory::guest_memory::Error as GuestMemoryError;
    use vm_memory::{Bytes, FileOffset, GuestMemoryMmap, GuestRegionMmap, IommuMemory, MmapRegion};

    /// The memory as a region of a backend, at the address that the view gives.
    fn region(memory: &SharedMemory) -> GuestRegionMmap {
        let (file, offset) = memory.file().unwrap();
        let file = FileOffset::new(file.try_clone().unwrap(), offset);
        let mapping = MmapRegion::from_file(file, memory.length().to_usize().unwrap()).unwrap();
        GuestRegionMmap::new(mapping, GuestAddress(memory.host_address().as_u64())).unwrap()
    }

    #[test]
    fn iommu_memory_reaches_what_is_mapped_and_nothing_else() {
        let (domain, gate, _) = machine(SoftIommuOptions::default());
        let (low, high, read_only) = (memory(1), memory(2), memory(1));
        domain.map(iova(0x5000), &low, dma::Permissions::ReadWrite).unwrap();
        domain.map(iova(0x6000), &high, dma::Permissions::ReadWrite).unwrap();
        domain.map(iova(0x8000), &read_only, dma::Permissions::Read).unwrap();
        let mut regions = vec![region(&low), region(&high), region(&read_only)];
        regions.sort_by_key(vm_memory::GuestMemoryRegion::start_addr);
        let backend = GuestMemoryMmap::from_regions(regions).unwrap();
        let view = domain.view(REQUESTER, Arc::clone(&gate));
        let seen = IommuMemory::new(backend, view, true, ());

        seen.write_slice(&[7; 0x1800], GuestAddress(0x5c00)).unwrap();
        let mut bytes = [0; 0x1401];
        high.read(0, &mut bytes).unwrap();
        assert_eq!((bytes[0x13ff], bytes[0x1400]), (7, 0));
        assert_eq!(low.read_value::<u8>(0xc00).unwrap(), 7);
        read_only.write(5, &[9]).unwrap();
        assert_eq!(seen.read_obj::<u8>(GuestAddress(0x8005)).unwrap(), 9);

        let refused = |result: Result<(), GuestMemoryError>| match result.unwrap_err() {
            GuestMemoryError::IommuError(Error::CannotResolve { reason, .. }) => reason,
            other => panic!("{other}"),
        };
        assert_eq!(
            refused(seen.write_slice(&[1; 16], GuestAddress(0x7ff8))),
            "function 01:02.0: write at iova 0x8000 refused: the mapping is not writable by the device"
        );
        assert_eq!(
            refused(seen.read_slice(&mut [1; 16], GuestAddress(0x8ff8))),
            "function 01:02.0: read at iova 0x9000 refused: nothing is mapped there"
        );
        domain.unmap(range(0x6000, 2 * PAGE)).unwrap();
        assert!(seen.write_slice(&[1; 8], GuestAddress(0x6000)).is_err());
        gate.close().unwrap();
        assert!(seen.read_slice(&mut [1; 8], GuestAddress(0x5000)).is_err());
        let reasons: Vec<FaultReason> = domain.iommu().faults().iter().map(|fault| fault.reason).collect();
        use FaultReason::{BusMasterOff, NotMapped, NotWritable};
        assert_eq!(reasons, [NotWritable, NotMapped, NotMapped, BusMasterOff]);
    }

    #[test]
    fn a_translation_that_is_held_keeps_unmap_from_completing() {
        let (domain, gate, _) = machine(whole_space());
        let host = memory(1);
        domain.map(iova(0x1000), &host, dma::Permissions::ReadWrite).unwrap();
        let view = domain.view(REQUESTER, gate);
        let translation = view.translate(GuestAddress(0x1010), 16, Permissions::ReadWrite).unwrap();
        let busy = domain.unmap(range(0x1000, PAGE)).unwrap_err();
        assert!(matches!(busy, UnmapError::DeviceBusy { .. }), "{busy}");
        let pieces: Vec<_> = translation.collect();
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].base.0, host.host_address().as_u64() + 0x10);
        assert_eq!(pieces[0].length, 16);
        assert_eq!(domain.unmap(range(0x1000, PAGE)).unwrap().as_u64(), PAGE);
    }

    #[test]
    fn nothing_is_translated_for_no_bytes_and_the_end_of_the_space_is_an_error() {
        let (domain, gate, _) = machine(whole_space());
        domain.map(iova(u64::MAX - 4095), &memory(1), dma::Permissions::ReadWrite).unwrap();
        let view = domain.view(REQUESTER, gate);
        assert_eq!(view.translate(GuestAddress(0x77), 0, Permissions::Read).unwrap().count(), 0);
        let top = GuestAddress(u64::MAX - 7);
        assert_eq!(view.translate(top, 7, Permissions::Read).unwrap().count(), 1);
        assert!(view.translate(top, 8, Permissions::Read).is_err());
        assert!(view.translate(top, usize::MAX, Permissions::No).is_err());
        assert_eq!(domain.iommu().faults().last().unwrap().reason, FaultReason::Overflow);
    }
}
