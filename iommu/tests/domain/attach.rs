//! Memory registered before a device is attached, and what an attach changes.

use std::sync::Arc;

use vdk_hal::address::{Iova, IovaRange};
use vdk_hal::dma::MapError;
use vdk_hal::memory::SharedMemory;
use vdk_iommu::{AddressWidth, DmaRegion, Domain, DomainError, PendingRegion, ToDevice};

use crate::mapper::ScriptedMapper;
use crate::{domain, memory, range};

fn waiting(domain: &Domain, count: u64) -> Vec<PendingRegion<ToDevice>> {
    (1..=count).map(|pages| domain.register(memory(pages)).unwrap()).collect()
}

#[test]
fn memory_registered_before_the_first_attach_is_mapped_exactly_once() {
    let mapper = ScriptedMapper::large();
    mapper.detach();
    let domain = domain(&mapper);
    assert!(!domain.is_attached());
    assert!(matches!(domain.map::<ToDevice>(memory(1)), Err(DomainError::NotAttached { .. })));
    let registered = waiting(&domain, 3);
    assert_eq!(mapper.counts(), (0, 0, 0), "no call can succeed before an attach");
    assert_eq!((domain.statistics().waiting, domain.statistics().mappings), (3, 0));
    assert!(matches!(domain.attached(), Err(DomainError::NotAttached { .. })), "nothing is attached");

    mapper.attach();
    assert_eq!(domain.attached(), Ok(()));
    assert_eq!(mapper.counts(), (3, 3, 0));
    assert_eq!(domain.attached(), Ok(()), "a second device in the same container");
    assert_eq!(mapper.counts(), (3, 3, 0));

    let regions: Vec<DmaRegion<ToDevice>> =
        registered.into_iter().map(|one| one.into_region().unwrap()).collect();
    let before: Vec<IovaRange> = regions.iter().map(DmaRegion::range).collect();
    mapper.detach();
    domain.detached();
    assert_eq!((domain.statistics().waiting, domain.statistics().mappings), (3, 0));
    mapper.attach();
    assert_eq!(domain.attached(), Ok(()));
    assert_eq!((mapper.counts(), mapper.ranges()), ((3, 6, 0), before), "at the addresses they had");
    drop(regions);
    assert_eq!((mapper.counts(), domain.statistics().addresses.live), ((0, 6, 3), 0));
}

#[test]
fn regions_that_end_while_nothing_is_attached_make_no_call() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let (dropped, unmapped): (DmaRegion<ToDevice>, DmaRegion<ToDevice>) =
        (domain.map(memory(1)).unwrap(), domain.map(memory(1)).unwrap());
    mapper.detach();
    domain.detached();
    drop(dropped);
    assert!(unmapped.unmap().unwrap().try_into_pinned().is_ok());
    mapper.attach();
    assert_eq!((domain.attached(), mapper.counts()), (Ok(()), (0, 2, 0)));
    assert_eq!(domain.statistics().addresses.live, 0);
}

#[test]
fn a_registration_has_no_address_before_it_is_mapped() {
    let mapper = ScriptedMapper::large();
    mapper.detach();
    let domain = domain(&mapper);
    let pending: PendingRegion<ToDevice> = domain.register(memory(1)).unwrap();
    assert!(!pending.is_mapped());
    let (error, pending) = pending.into_region().unwrap_err();
    assert!(matches!(error, DomainError::NotAttached { .. }));
    let given_back: SharedMemory = pending.cancel().unwrap();
    assert!(given_back.try_into_pinned().is_ok());
    drop(waiting(&domain, 2));
    mapper.attach();
    assert_eq!((domain.attached(), mapper.counts()), (Ok(()), (0, 0, 0)), "all were given up before");
}

#[test]
fn a_registration_with_a_device_attached_is_mapped_at_once() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let pending: PendingRegion<ToDevice> = domain.register(memory(1)).unwrap();
    assert!(pending.is_mapped());
    drop(pending);
    assert_eq!(mapper.counts(), (0, 1, 1));
    mapper.fail_maps(|_, range| Some(MapError::System { range, error: std::io::ErrorKind::OutOfMemory }));
    assert!(domain.register::<ToDevice>(memory(1)).is_err());
    assert_eq!((domain.statistics().waiting, domain.statistics().addresses.live), (0, 0));
}

#[test]
fn a_mapper_that_is_not_ready_makes_a_registration_wait() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    mapper
        .fail_maps(|call, range| (call == 0).then(|| MapError::NotAttached { mapper: "late".into(), range }));
    let pending: PendingRegion<ToDevice> = domain.register(memory(1)).unwrap();
    assert!(!pending.is_mapped());
    assert_eq!((domain.attached(), pending.is_mapped()), (Ok(()), true));
}

#[test]
fn one_failed_registration_does_not_keep_the_others_from_being_mapped() {
    let mapper = ScriptedMapper::large();
    mapper.detach();
    let domain = domain(&mapper);
    let registered = waiting(&domain, 3);
    mapper.attach();
    mapper.fail_maps(|call, range| {
        (call == 1).then_some(MapError::System { range, error: std::io::ErrorKind::OutOfMemory })
    });
    assert!(matches!(domain.attached(), Err(DomainError::Map(MapError::System { .. }))));
    let mapped: Vec<bool> = registered.iter().map(PendingRegion::is_mapped).collect();
    assert_eq!((mapped, domain.statistics().waiting), (vec![true, false, true], 1));
    assert_eq!(domain.attached(), Ok(()), "only the failed one is tried again");
    assert_eq!(mapper.counts(), (3, 4, 0));
}

#[test]
fn waiting_memory_gets_an_address_that_its_device_reaches() {
    let mapper = ScriptedMapper::new(&[(0, u64::MAX)], 4096);
    mapper.detach();
    let wide = domain(&mapper);
    let narrow = wide.with_width(AddressWidth::new(28).unwrap());
    let pending: PendingRegion<ToDevice> = narrow.register(memory(512)).unwrap();
    mapper.attach();
    wide.attached().unwrap();
    assert!(narrow.width().covers(pending.into_region().unwrap().range()));
}

#[test]
fn the_geometry_is_read_again_at_each_attach() {
    let mapper = ScriptedMapper::new(&[(0x1000, 0xf_ffff)], 4096);
    let domain = domain(&mapper);
    let region: DmaRegion<ToDevice> = domain.map_at(Iova::new(0x8_0000), memory(1)).unwrap();
    mapper.state().geometry.ranges = vec![range(0x4_0000, 0x6_0000)];
    mapper.state().geometry.page_sizes = 0x4000;
    assert_eq!(domain.attached(), Ok(()));
    assert_eq!(domain.geometry().ranges, [range(0x4_0000, 0x6_0000)]);
    assert!(domain.map::<ToDevice>(memory(1)).is_err(), "pages are 16 KiB now");
    let mut taken = Vec::new();
    while let Ok(next) =
        domain.map_at::<ToDevice>(Iova::new(0x4_0000 + 0x4000 * taken.len() as u64), aligned())
    {
        taken.push(next);
    }
    assert_eq!(taken.len(), 16, "up to the page that holds the old mapping");
    drop(region);
    assert!(domain.map_at::<ToDevice>(Iova::new(0x8_0000), aligned()).is_ok());
}

/// Memory of 16 KiB that begins at a multiple of 16 KiB.
fn aligned() -> SharedMemory {
    let whole = memory(8);
    let address = whole.host_address().as_u64();
    let offset = usize::try_from(address.next_multiple_of(0x4000) - address).unwrap();
    whole.slice(offset, 0x4000).unwrap()
}

#[test]
fn a_range_in_use_that_an_attach_makes_unusable_is_reported() {
    let mapper = ScriptedMapper::new(&[(0x1000, 0xffff)], 4096);
    let domain = domain(&mapper);
    let region: DmaRegion<ToDevice> = domain.map_at(Iova::new(0x9000), memory(1)).unwrap();
    mapper.state().geometry.ranges = vec![range(0x1000, 0x4000)];
    let error = domain.attached().unwrap_err();
    assert_eq!(
        error.to_string(),
        "scripted: [0x9000, 0x9fff] is in use, but the IOMMU accepts only [0x1000, 0x4fff] since the last attach"
    );
    drop(region);
    assert_eq!((domain.attached(), mapper.counts().0), (Ok(()), 0));
    let all: Vec<DmaRegion<ToDevice>> = (0..4).map(|_| domain.map(memory(1)).unwrap()).collect();
    assert!(all.iter().all(|one| range(0x1000, 0x4000).contains_range(one.range())));
    assert!(domain.map::<ToDevice>(memory(1)).is_err());
}

#[test]
fn a_geometry_without_pages_is_refused() {
    let mapper = ScriptedMapper::new(&[(0x1000, 0xffff)], 0);
    let error = Domain::new(Arc::<ScriptedMapper>::clone(&mapper), AddressWidth::FULL).unwrap_err();
    assert!(matches!(error, DomainError::Geometry { page_sizes: 0, .. }));
}

#[test]
fn leaked_mappings_end_with_the_container() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let region: DmaRegion<ToDevice> = domain.map(memory(1)).unwrap();
    mapper.fail_unmaps(|_, range| Some(Err(vdk_hal::dma::UnmapError::NotMapped { range })));
    drop(region);
    assert_eq!(domain.statistics().leaked, 1);
    mapper.detach();
    domain.detached();
    mapper.attach();
    assert_eq!((domain.attached(), mapper.counts().0), (Ok(()), 0), "a leaked mapping is not made again");
    assert_eq!((domain.statistics().leaked, domain.statistics().addresses.live), (0, 0));
}
