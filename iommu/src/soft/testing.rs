//! What the tests of this module share.

use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova, IovaRange, RequesterId};
use vdk_hal::memory::{Pages, SharedMemory};

use super::{BusMaster, BusMasterGate, SoftDomain, SoftIommu, SoftIommuOptions};

pub(super) fn memory(pages: u64) -> SharedMemory {
    SharedMemory::allocate(ByteLength::new(pages * PAGE), Pages::Base).unwrap()
}

pub(super) fn iova(address: u64) -> Iova {
    Iova::new(address)
}

pub(super) fn range(start: u64, length: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), ByteLength::new(length)).unwrap()
}

/// A domain of its own IOMMU, an open gate and a bus master.
pub(super) fn machine(options: SoftIommuOptions) -> (Arc<SoftDomain>, Arc<BusMasterGate>, BusMaster) {
    let domain = SoftIommu::new(options).domain();
    let gate = BusMasterGate::new();
    gate.open();
    let device = domain.bus_master(REQUESTER, Arc::clone(&gate));
    (domain, gate, device)
}

/// Usable ranges that reach the last byte of the 64-bit space.
pub(super) fn whole_space() -> SoftIommuOptions {
    let all = IovaRange::from_bounds(Iova::new(0), Iova::new(u64::MAX)).unwrap();
    SoftIommuOptions { ranges: vec![all], ..Default::default() }
}

pub(super) const REQUESTER: RequesterId = RequesterId::new(0x0110);
pub(super) const PAGE: u64 = 4096;
