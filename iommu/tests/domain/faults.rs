//! What is left when the mapper fails.

use std::sync::Arc;

use vdk_hal::address::ByteLength;
use vdk_hal::dma::{MapError, UnmapError};
use vdk_iommu::{Bidirectional, DmaGroup, DmaRegion, DomainError, FromDevice, ToDevice};

use crate::mapper::ScriptedMapper;
use crate::{domain, memory, range};

#[test]
fn an_unmap_that_ended_nothing_is_an_error_and_the_region_stays() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let region: DmaRegion<ToDevice> = domain.map(memory(4)).unwrap();
    let range = region.range();
    mapper.fail_unmaps(|call, _| (call == 0).then_some(Ok(ByteLength::ZERO)));
    let (error, region) = region.unmap().unwrap_err();
    assert_eq!(error, UnmapError::Incomplete { range, returned: ByteLength::ZERO });
    let statistics = domain.statistics();
    assert_eq!((statistics.mappings, statistics.mapped_bytes, statistics.leaked), (1, range.length(), 0));
    assert_eq!((statistics.unmap_calls, statistics.unmap_failures), (1, 1));
    let other: DmaRegion<ToDevice> = domain.map(memory(4)).unwrap();
    assert!(!other.range().overlaps(range), "the addresses are still in use");
    region.write(0, b"still usable").unwrap();
    assert!(region.unmap().unwrap().try_into_pinned().is_ok(), "the second try succeeds");
    drop(other);
    assert_eq!((mapper.counts().0, domain.statistics().mappings), (0, 0));
}

#[test]
fn any_size_but_the_one_mapped_is_an_incomplete_unmap() {
    for returned in [4096, 0x3fff, 0x4001, u64::MAX] {
        let mapper = ScriptedMapper::large();
        let region: DmaRegion<ToDevice> = domain(&mapper).map(memory(4)).unwrap();
        mapper.fail_unmaps(move |call, _| (call == 0).then_some(Ok(ByteLength::new(returned))));
        let (error, region) = region.unmap().unwrap_err();
        assert!(matches!(error, UnmapError::Incomplete { returned: r, .. } if r.as_u64() == returned));
        assert!(region.unmap().is_ok());
    }
}

#[test]
fn already_mapped_is_never_success() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let existing = range(0x1000, 0x1000);
    mapper.fail_maps(move |_, range| Some(MapError::AlreadyMapped { range, existing }));
    let error = domain.map::<ToDevice>(memory(1)).unwrap_err();
    assert!(matches!(error, DomainError::Map(MapError::AlreadyMapped { .. })), "{error}");
    mapper.fail_maps(|_, _| None);
    let statistics = domain.statistics();
    assert_eq!((statistics.mappings, statistics.map_calls, statistics.map_failures), (0, 1, 1));
    assert_eq!(statistics.addresses.live, 0);
    assert!(domain.map::<ToDevice>(memory(1)).is_ok());
}

#[test]
fn a_region_whose_unmap_fails_on_drop_leaks_memory_and_addresses() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let memory = memory(1);
    let region: DmaRegion<FromDevice> = domain.map(memory.clone()).unwrap();
    let range = region.range();
    mapper.fail_unmaps(|_, range| {
        Some(Err(UnmapError::System { range, error: std::io::ErrorKind::ResourceBusy }))
    });
    drop(region);
    let statistics = domain.statistics();
    assert_eq!((statistics.leaked, statistics.mappings, statistics.addresses.live), (1, 1, 1));
    let next: DmaRegion<FromDevice> = domain.map(crate::memory(1)).unwrap();
    assert!(!next.range().overlaps(range));
    drop((next, domain));
    mapper.state().mappings.clear();
    drop(mapper);
    assert!(memory.try_into_pinned().is_err(), "a reference is kept for ever, so the pages are never freed");
}

#[test]
fn a_failed_map_in_a_group_undoes_the_ones_before_it() {
    for failing in 0..4 {
        let mapper = ScriptedMapper::large();
        let domain = domain(&mapper);
        let before = domain.statistics().addresses.free_bytes;
        mapper.fail_maps(move |call, range| {
            let error = std::io::ErrorKind::OutOfMemory;
            (call == failing).then_some(MapError::System { range, error })
        });
        let pieces: Vec<_> = (0..4).map(|_| memory(2)).collect();
        let error = domain.map_adjacent::<ToDevice>(pieces.clone()).unwrap_err();
        assert!(matches!(error, DomainError::Map(MapError::System { .. })), "{error}");
        assert_eq!(mapper.counts(), (0, failing + 1, failing), "every mapping made was ended");
        let statistics = domain.statistics();
        assert_eq!((statistics.mappings, statistics.leaked), (0, 0));
        assert_eq!(statistics.addresses.free_bytes, before);
        for piece in pieces {
            assert!(piece.try_into_pinned().is_ok(), "nothing else holds the memory");
        }
    }
}

#[test]
fn a_group_that_can_neither_be_made_nor_undone_is_leaked_and_its_addresses_stay() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let error = std::io::ErrorKind::OutOfMemory;
    mapper.fail_maps(move |call, range| (call == 2).then_some(MapError::System { range, error }));
    mapper.fail_unmaps(|call, _| (call == 1).then_some(Ok(ByteLength::ZERO)));
    let pieces: Vec<_> = (0..4).map(|_| memory(1)).collect();
    assert!(domain.map_adjacent::<ToDevice>(pieces.clone()).is_err());
    let statistics = domain.statistics();
    assert_eq!((statistics.mappings, statistics.leaked, statistics.addresses.live), (1, 1, 1));
    mapper.state().mappings.clear();
    assert!(pieces.into_iter().all(|piece| piece.try_into_pinned().is_err()));
}

#[test]
fn a_group_that_failed_to_unmap_tries_only_the_rest_again() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let group: DmaGroup<Bidirectional> = domain.map_adjacent(vec![memory(1), memory(1), memory(1)]).unwrap();
    mapper.fail_unmaps(|call, _| (call == 1).then_some(Ok(ByteLength::ZERO)));
    let (_, group) = group.unmap().unwrap_err();
    assert_eq!((mapper.counts().0, domain.statistics().mappings), (2, 2));
    assert_eq!(domain.attached(), Ok(()), "what was unmapped is not mapped again");
    assert_eq!(mapper.counts(), (2, 3, 2));
    assert_eq!(group.unmap().unwrap().len(), 3);
    assert_eq!(mapper.counts(), (0, 3, 4));
    assert_eq!(domain.statistics().addresses.live, 0);
}

#[test]
fn counters_are_exact_after_a_thousand_maps_at_the_limit() {
    let mapper = ScriptedMapper::new(&[(0x1000, 0x8fff)], 4096);
    mapper.state().limit = Some(1);
    let domain = domain(&mapper);
    let mut pages = memory(8);
    for round in 1..=1000 {
        let region: DmaRegion<ToDevice> = domain.map(pages).unwrap();
        assert_eq!(domain.statistics().mapped_bytes, ByteLength::new(8 << 12));
        pages = region.unmap().unwrap();
        let statistics = domain.statistics();
        assert_eq!((statistics.mappings, statistics.mapped_bytes), (0, ByteLength::ZERO));
        assert_eq!((statistics.map_calls, statistics.unmap_calls), (round, round));
    }
}

#[test]
fn a_bar_that_hits_the_limit_of_locked_memory_is_named_in_the_error() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let limit = ByteLength::new(8 << 20);
    let locked = MapError::LockedMemory {
        needed: ByteLength::SIZE_1G,
        in_use: ByteLength::ZERO,
        limit,
        fix: "in this shell: ulimit -l 1048576".to_owned(),
        per_user: false,
    };
    let fault = locked.clone();
    mapper.fail_maps(move |_, _| Some(fault.clone()));
    let bar = domain.map_bar::<Bidirectional>(memory(1)).unwrap_err();
    assert_eq!(bar, DomainError::LockedBar { source: locked.clone() });
    assert!(bar.to_string().contains("the BAR of a device, which iommufd counts as locked memory"));
    assert_eq!(domain.map::<Bidirectional>(memory(1)).unwrap_err(), DomainError::Map(locked));
}

#[test]
fn maps_and_unmaps_from_many_threads_end_even() {
    let mapper = ScriptedMapper::large();
    let domain = Arc::new(domain(&mapper));
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let domain = Arc::clone(&domain);
            std::thread::spawn(move || {
                let mut kept: Vec<DmaRegion<Bidirectional>> = Vec::new();
                for round in 0..100 {
                    kept.push(domain.map(memory(1 + (round + worker) % 5)).unwrap());
                    if round % 3 == 2 {
                        kept.swap_remove(0).unmap().unwrap();
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let statistics = domain.statistics();
    assert_eq!((statistics.mappings, statistics.map_calls, statistics.unmap_calls), (0, 400, 400));
    assert_eq!((mapper.counts(), statistics.addresses.live), ((0, 400, 400), 0));
}
