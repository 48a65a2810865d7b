//! The software IOMMU as a device and a driver see it.

use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova, IovaRange, RequesterId};
use vdk_hal::dma::{DmaMapper, Permissions};
use vdk_hal::memory::{Pages, SharedMemory};

use super::*;

mod access;
mod mapping;
mod random;
mod revocation;

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

fn fault(reason: FaultReason, address: u64, write: bool) -> TranslationFault {
    TranslationFault { reason, requester: REQUESTER, address: iova(address), write }
}

#[test]
fn mapped_memory_is_read_written_copied_and_filled() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let host = memory(2);
    domain.map(iova(0x10_0000), &host, Permissions::ReadWrite).unwrap();
    host.write(10, b"from the driver").unwrap();
    let mut bytes = [0; 15];
    device.read(iova(0x10_000a), &mut bytes).unwrap();
    assert_eq!(&bytes, b"from the driver");
    device.write(iova(0x10_0ffc), b"from the device").unwrap();
    host.read(0xffc, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from the device");
    device.copy(iova(0x10_1f00), iova(0x10_000a), 15).unwrap();
    host.read(0x1f00, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from the driver");
    device.fill(iova(0x10_0003), 11, 0x0807_0605_0403_0201).unwrap();
    // Byte 14 is what was there: the blank after "from".
    let mut filled = [0; 13];
    host.read(2, &mut filled).unwrap();
    assert_eq!(filled, [0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, b' ']);
    device.store_u64(iova(0x10_0ff8), 7).unwrap();
    assert_eq!(device.load_u64(iova(0x10_0ff8)), Ok(7));
    assert_eq!(device.translate(iova(0x10_1fff), true), Ok(range(0x10_0000, 2 * PAGE)));
    assert_eq!(domain.iommu().fault_count(), 0);
}

#[test]
fn what_is_not_mapped_or_in_the_wrong_direction_faults_and_is_logged() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let (to_device, from_device) = (memory(1), memory(1));
    domain.map(iova(0x2000), &to_device, Permissions::Read).unwrap();
    domain.map(iova(0x4000), &from_device, Permissions::Write).unwrap();
    let mut bytes = [0; 8];
    let expected = [
        fault(FaultReason::NotMapped, 0x1fff, false),
        fault(FaultReason::NotMapped, 0x3000, false),
        fault(FaultReason::NotWritable, 0x2100, true),
        fault(FaultReason::NotReadable, 0x4100, false),
        fault(FaultReason::NotReadable, 0x4000, false),
        fault(FaultReason::NotWritable, 0x2000, true),
        fault(FaultReason::NotMapped, 0x5000, true),
        fault(FaultReason::Misaligned, 0x2004, false),
        fault(FaultReason::Misaligned, 0x4001, true),
        fault(FaultReason::NotWritable, 0x2008, true),
        fault(FaultReason::NotMapped, 0xffff_0000_0000_0000, false),
    ];
    let seen = [
        device.read(iova(0x1fff), &mut bytes).unwrap_err(),
        device.read(iova(0x2ffc), &mut bytes).unwrap_err(),
        device.write(iova(0x2100), &bytes).unwrap_err(),
        device.read(iova(0x4100), &mut bytes).unwrap_err(),
        device.copy(iova(0x4000), iova(0x4000), 8).unwrap_err(),
        device.copy(iova(0x2000), iova(0x2000), 8).unwrap_err(),
        device.fill(iova(0x4ff0), 32, 0).unwrap_err(),
        device.load_u64(iova(0x2004)).unwrap_err(),
        device.store_u64(iova(0x4001), 1).unwrap_err(),
        device.store_u64(iova(0x2008), 1).unwrap_err(),
        device.translate(iova(0xffff_0000_0000_0000), false).unwrap_err(),
    ];
    assert_eq!(seen, expected);
    assert_eq!(domain.iommu().faults(), expected);
    assert_eq!(domain.iommu().fault_count(), 11);
    // The directions that are allowed still work.
    device.copy(iova(0x4000), iova(0x2000), PAGE).unwrap();
}

fn bounds(start: u64, last: u64) -> IovaRange {
    IovaRange::from_bounds(Iova::new(start), Iova::new(last)).unwrap()
}

#[test]
fn the_default_has_no_page_zero_and_no_interrupt_window() {
    let geometry = SoftIommu::new(SoftIommuOptions::default()).domain().geometry();
    assert_eq!(geometry.ranges, [bounds(0x1000, 0xfedf_ffff), bounds(0xfef0_0000, (1 << 48) - 1)]);
    assert_eq!(geometry.page_sizes, 0x4020_1000);
    assert_eq!(geometry.smallest_page(), ByteLength::SIZE_4K);
    assert_eq!(geometry.mappings_available, Some(65535));
}

#[test]
fn ranges_are_sorted_and_joined_and_page_sizes_sane() {
    let top = bounds(u64::MAX - 4095, u64::MAX);
    let iommu = SoftIommu::new(SoftIommuOptions {
        ranges: vec![top, bounds(0x3000, 0x3fff), bounds(0x1000, 0x2fff), bounds(0x1000, 0x1fff), top],
        page_sizes: 0xfff,
        max_mappings: 1,
    });
    let geometry = iommu.domain().geometry();
    assert_eq!(geometry.ranges, [bounds(0x1000, 0x3fff), top]);
    assert_eq!(geometry.page_sizes, 0x4020_1000);
    let nothing = SoftIommu::new(SoftIommuOptions { ranges: Vec::new(), ..Default::default() });
    assert_eq!(nothing.domain().geometry().ranges, []);
}
