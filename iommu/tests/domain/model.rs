//! Random sequences of maps, unmaps and failures against a model.

use proptest::prelude::*;
use vdk_hal::address::{ByteLength, IovaRange};
use vdk_hal::dma::{MapError, UnmapError};
use vdk_hal::memory::SharedMemory;
use vdk_iommu::{Bidirectional, DmaGroup, DmaRegion};

use crate::mapper::ScriptedMapper;
use crate::{domain, memory};

#[derive(Clone, Debug)]
enum Operation {
    Map { pages: u64, fails: bool },
    MapAdjacent { pieces: Vec<u64>, failing: Option<u64> },
    Unmap { index: usize, fails: bool },
    Drop { index: usize },
    Attach,
}

fn operation() -> impl Strategy<Value = Operation> {
    let index = any::<usize>;
    prop_oneof![
        4 => (1u64..9, prop::bool::weighted(0.2)).prop_map(|(pages, fails)| Operation::Map { pages, fails }),
        2 => (prop::collection::vec(1u64..5, 1..5), prop::option::weighted(0.3, 0u64..5))
            .prop_map(|(pieces, failing)| Operation::MapAdjacent { pieces, failing }),
        3 => (index(), prop::bool::weighted(0.3)).prop_map(|(index, fails)| Operation::Unmap { index, fails }),
        2 => index().prop_map(|index| Operation::Drop { index }),
        1 => Just(Operation::Attach),
    ]
}

/// A region or a group, and how many mappings of it the mapper must have.
enum Live {
    Region(DmaRegion<Bidirectional>),
    Group(DmaGroup<Bidirectional>, usize),
}

impl Live {
    fn range(&self) -> IovaRange {
        match self {
            Self::Region(region) => region.range(),
            Self::Group(group, _) => group.range(),
        }
    }

    fn mappings(&self) -> usize {
        match self {
            Self::Region(_) => 1,
            Self::Group(_, mappings) => *mappings,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_leaves_the_mapper_and_the_bookkeeping_agreeing(
        operations in prop::collection::vec(operation(), 1..60),
        limit in 4u32..20,
    ) {
        let mapper = ScriptedMapper::new(&[(0, 0x4_0fff)], 4096);
        mapper.state().limit = Some(limit);
        let domain = domain(&mapper);
        let all_free = domain.statistics().addresses.free_bytes;
        let mut live: Vec<Live> = Vec::new();
        for operation in operations {
            let before = domain.statistics();
            let calls = mapper.state().map_calls;
            match operation {
                Operation::Map { pages, fails } => {
                    mapper.fail_maps(move |_, range| fails.then(|| failure(range)));
                    match domain.map(memory(pages)) {
                        Ok(region) => live.push(Live::Region(region)),
                        Err(_) => assert_unchanged(&before, &domain.statistics()),
                    }
                }
                Operation::MapAdjacent { pieces, failing } => {
                    mapper.fail_maps(move |call, range| {
                        failing.is_some_and(|failing| call == calls + failing).then(|| failure(range))
                    });
                    let pieces: Vec<SharedMemory> = pieces.into_iter().map(memory).collect();
                    match domain.map_adjacent(pieces) {
                        Ok(group) => {
                            let mappings = group.mappings();
                            live.push(Live::Group(group, mappings));
                        }
                        Err(_) => assert_unchanged(&before, &domain.statistics()),
                    }
                }
                Operation::Unmap { index, fails } if !live.is_empty() => {
                    mapper.fail_unmaps(move |_, _| fails.then_some(Ok(ByteLength::ZERO)));
                    let one = live.swap_remove(index % live.len());
                    match one {
                        Live::Region(region) => match region.unmap() {
                            Ok(memory) => prop_assert!(!fails && memory.try_into_pinned().is_ok()),
                            Err((error, region)) => {
                                prop_assert!(fails && matches!(error, UnmapError::Incomplete { .. }), "{}", error);
                                live.push(Live::Region(region));
                            }
                        },
                        Live::Group(group, mappings) => match group.unmap() {
                            Ok(_) => prop_assert!(!fails),
                            Err((_, group)) => live.push(Live::Group(group, mappings)),
                        },
                    }
                    mapper.fail_unmaps(|_, _| None);
                }
                Operation::Drop { index } if !live.is_empty() => drop(live.swap_remove(index % live.len())),
                Operation::Unmap { .. } | Operation::Drop { .. } => {}
                Operation::Attach => prop_assert_eq!(domain.attached(), Ok(())),
            }
            let statistics = domain.statistics();
            let expected: usize = live.iter().map(Live::mappings).sum();
            prop_assert_eq!((mapper.counts().0, statistics.mappings), (expected, expected));
            let made = statistics.map_calls - statistics.map_failures;
            let ended = statistics.unmap_calls - statistics.unmap_failures;
            prop_assert_eq!(made - ended, u64::try_from(expected).unwrap());
            let bytes: u64 = live.iter().map(|one| one.range().length().as_u64()).sum();
            prop_assert_eq!(statistics.mapped_bytes.as_u64(), bytes);
            for (index, one) in live.iter().enumerate() {
                prop_assert!(live[..index].iter().all(|other| !other.range().overlaps(one.range())));
            }
        }
        live.clear();
        let statistics = domain.statistics();
        prop_assert_eq!((mapper.counts().0, statistics.mappings, statistics.leaked), (0, 0, 0));
        prop_assert_eq!(statistics.addresses.free_bytes, all_free);
    }
}

fn failure(range: IovaRange) -> MapError {
    MapError::System { range, error: std::io::ErrorKind::OutOfMemory }
}

/// A failed call changed nothing but the counts of calls.
fn assert_unchanged(before: &vdk_iommu::DomainStatistics, after: &vdk_iommu::DomainStatistics) {
    assert_eq!((before.mappings, before.mapped_bytes), (after.mappings, after.mapped_bytes));
    assert_eq!((before.waiting, before.leaked), (after.waiting, after.leaked));
    assert_eq!(before.addresses.live, after.addresses.live);
    assert_eq!(before.addresses.free_bytes, after.addresses.free_bytes);
}
