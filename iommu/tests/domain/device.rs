//! A domain over the software IOMMU, as seen by a device.

use std::sync::Arc;

use vdk_hal::address::{ByteLength, RequesterId};
use vdk_iommu::soft::{BusMaster, BusMasterGate, FaultReason, SoftIommu, SoftIommuOptions};
use vdk_iommu::{
    AddressWidth, Bidirectional, DmaGroup, DmaPool, DmaRegion, Domain, FromDevice, PoolOptions, ToDevice,
};

use crate::memory;

struct Machine {
    iommu: Arc<SoftIommu>,
    domain: Domain,
    device: BusMaster,
}

fn machine() -> Machine {
    let iommu = SoftIommu::new(SoftIommuOptions::default());
    let space = iommu.domain();
    let gate = BusMasterGate::new();
    gate.open();
    let device = space.bus_master(RequesterId::new(0x0100), gate);
    Machine { iommu, domain: Domain::new(space, AddressWidth::FULL).unwrap(), device }
}

#[test]
fn a_device_has_exactly_the_rights_of_the_direction() {
    let Machine { iommu, domain, mut device } = machine();
    let to: DmaRegion<ToDevice> = domain.map(memory(1)).unwrap();
    let from: DmaRegion<FromDevice> = domain.map(memory(1)).unwrap();
    let both: DmaRegion<Bidirectional> = domain.map(memory(1)).unwrap();
    to.write(0, b"to the device").unwrap();
    let mut bytes = [0; 13];
    device.read(to.iova(), &mut bytes).unwrap();
    assert_eq!(&bytes, b"to the device");
    assert_eq!(device.write(to.iova(), &bytes).unwrap_err().reason, FaultReason::NotWritable);
    device.write(from.iova(), &bytes).unwrap();
    assert_eq!(device.read(from.iova(), &mut bytes).unwrap_err().reason, FaultReason::NotReadable);
    device.copy(both.iova(), to.iova(), 13).unwrap();
    device.copy(from.segment(100, 13).unwrap().iova, both.iova(), 13).unwrap();
    let mut back = [0; 13];
    from.read(100, &mut back).unwrap();
    assert_eq!((&back, iommu.fault_count()), (b"to the device", 2));
}

#[test]
fn no_access_reaches_memory_that_was_unmapped_or_dropped() {
    let Machine { domain, mut device, .. } = machine();
    let first: DmaRegion<Bidirectional> = domain.map(memory(2)).unwrap();
    let second: DmaRegion<Bidirectional> = domain.map(memory(2)).unwrap();
    let (one, two) = (first.iova(), second.iova());
    device.write(one, &[1; 8192]).unwrap();
    device.write(two, &[2; 8192]).unwrap();
    let mut pinned = first.unmap().unwrap().try_into_pinned().expect("the device's copy is gone");
    drop(second);
    for iova in [one, two] {
        assert_eq!(device.write(iova, &[3; 8]).unwrap_err().reason, FaultReason::NotMapped);
        assert_eq!(device.read(iova, &mut [0; 8]).unwrap_err().reason, FaultReason::NotMapped);
    }
    assert!(pinned.iter().all(|byte| *byte == 1));
    pinned.fill(9);
    let again: DmaRegion<ToDevice> = domain.map(pinned.share()).unwrap();
    let mut bytes = [0; 8];
    device.read(again.iova(), &mut bytes).unwrap();
    assert_eq!((bytes, again.iova()), ([9; 8], two), "the latest addresses serve again");
}

#[test]
fn a_group_of_pieces_is_one_range_for_the_device() {
    let Machine { domain, mut device, .. } = machine();
    let group: DmaGroup<Bidirectional> = domain.map_adjacent(vec![memory(1), memory(3), memory(1)]).unwrap();
    let bytes: Vec<u8> = (0..20_480u32).map(|n| u8::try_from(n % 241).unwrap()).collect();
    device.write(group.iova(), &bytes).unwrap();
    let mut back = vec![0; 20_480];
    group.read(0, &mut back).unwrap();
    assert_eq!(back, bytes);
    let past = group.range().last().checked_add(ByteLength::new(1)).unwrap();
    assert!(device.read(past, &mut [0]).is_err());
}

#[test]
fn buffers_of_a_pool_are_reached_until_the_pool_and_they_are_gone() {
    let Machine { domain, mut device, .. } = machine();
    let mut pool = DmaPool::new(&domain, PoolOptions::default()).unwrap();
    let source = pool.take(3000).unwrap();
    let destination = pool.take(3000).unwrap();
    source.fill(0, 3000, 0x77).unwrap();
    let (from, to) = (source.whole(), destination.segment(0, 3000).unwrap());
    device.copy(to.iova, from.iova, from.length.as_u64()).unwrap();
    let mut bytes = vec![0; 3000];
    destination.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x77));
    let host = source.host_address();
    let iova = pool.translation().translate(host).unwrap().iova;
    assert_eq!(iova, from.iova);
    drop((pool, source));
    device.read(to.iova, &mut bytes).unwrap();
    drop(destination);
    assert_eq!(device.read(to.iova, &mut bytes).unwrap_err().reason, FaultReason::NotMapped);
    assert_eq!(domain.statistics().mappings, 0);
}
