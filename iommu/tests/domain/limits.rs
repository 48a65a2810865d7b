//! Merging of neighbours, and the limit of mappings.

use vdk_hal::address::ByteLength;
use vdk_hal::dma::MapError;
use vdk_hal::memory::SharedMemory;
use vdk_iommu::{Bidirectional, DmaGroup, DmaRegion, DomainError, ToDevice};

use crate::mapper::ScriptedMapper;
use crate::{domain, memory};

const HUGE: usize = 2 << 20;

#[test]
fn sixty_four_neighbouring_pages_take_one_mapping() {
    let mapper = ScriptedMapper::large();
    mapper.state().limit = Some(4);
    let domain = domain(&mapper);
    let whole = memory(64 * 512);
    let pieces: Vec<SharedMemory> = (0..64).map(|page| whole.slice(page * HUGE, HUGE).unwrap()).collect();
    let group: DmaGroup<ToDevice> = domain.map_adjacent(pieces).unwrap();
    assert_eq!((mapper.counts(), group.mappings()), ((1, 1, 0), 1));
    assert_eq!(group.length(), ByteLength::new(128 << 20));
    assert!(group.iova().is_aligned_to(ByteLength::SIZE_2M));
    let given_back = group.unmap().unwrap();
    assert_eq!((given_back.len(), mapper.counts()), (64, (0, 1, 1)));
}

#[test]
fn five_separate_pages_do_not_fit_a_limit_of_four_and_nothing_leaks() {
    let mapper = ScriptedMapper::large();
    mapper.state().limit = Some(4);
    let domain = domain(&mapper);
    let pieces: Vec<_> = (0..5).map(|_| memory(1)).collect();
    let error = domain.map_adjacent::<ToDevice>(pieces).unwrap_err();
    assert_eq!(error, DomainError::Map(MapError::TooManyMappings { limit: 4 }));
    assert!(error.to_string().contains("dma_entry_limit"), "{error}");
    assert_eq!(mapper.counts(), (0, 0, 0), "the limit is known before the first call");
    assert_eq!(domain.statistics().addresses.live, 0);
    assert!(domain.map_adjacent::<ToDevice>((0..4).map(|_| memory(1)).collect()).is_ok());
}

#[test]
fn single_maps_are_refused_at_the_limit_until_one_ends() {
    let mapper = ScriptedMapper::large();
    mapper.state().limit = Some(2);
    let domain = domain(&mapper);
    let first: DmaRegion<ToDevice> = domain.map(memory(1)).unwrap();
    let second: DmaRegion<ToDevice> = domain.map(memory(1)).unwrap();
    for _ in 0..3 {
        let error = domain.map::<ToDevice>(memory(1)).unwrap_err();
        assert_eq!(error, DomainError::Map(MapError::TooManyMappings { limit: 2 }));
    }
    assert_eq!(mapper.counts(), (2, 2, 0));
    drop(first);
    assert!(domain.map::<ToDevice>(memory(1)).is_ok());
    drop(second);
    // The administrator raised the limit: the mapper is asked again before a refusal.
    mapper.state().limit = Some(3);
    let three: Vec<DmaRegion<ToDevice>> = (0..3).map(|_| domain.map(memory(1)).unwrap()).collect();
    assert_eq!((three.len(), mapper.counts().0), (3, 3));
}

#[test]
fn a_limit_that_the_mapper_does_not_announce_undoes_the_group() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    mapper.fail_maps(|call, _| (call >= 4).then_some(MapError::TooManyMappings { limit: 4 }));
    let error = domain.map_adjacent::<ToDevice>((0..6).map(|_| memory(1)).collect()).unwrap_err();
    assert_eq!(error, DomainError::Map(MapError::TooManyMappings { limit: 4 }));
    assert_eq!(mapper.counts(), (0, 5, 4));
}

#[test]
fn a_group_is_contiguous_for_the_device_and_reads_and_writes_across_its_pieces() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let (whole, other) = (memory(4), memory(2));
    let pieces = vec![whole.slice(0, 4096).unwrap(), other, whole.slice(4096, 8192).unwrap()];
    let group: DmaGroup<Bidirectional> = domain.map_adjacent(pieces).unwrap();
    assert_eq!(mapper.counts().0, 3, "neighbours in memory that are apart in the list stay apart");
    let ranges = mapper.ranges();
    assert!(ranges.windows(2).all(|pair| pair[0].last().as_u64() + 1 == pair[1].start().as_u64()));
    assert_eq!((ranges[0].start(), ranges[2].last()), (group.range().start(), group.range().last()));
    let bytes: Vec<u8> = (0..20_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    group.write(100, &bytes).unwrap();
    let mut back = vec![0; 20_000];
    group.read(100, &mut back).unwrap();
    assert_eq!(back, bytes);
    let mut byte = [0];
    whole.read(4096, &mut byte).unwrap();
    assert_eq!(byte[0], bytes[4096 + 8192 - 100], "the third piece begins after three pages");
    assert_eq!(group.segment(4000, 9000).unwrap().length, ByteLength::new(9000));
    assert!(group.write(20_380, &bytes[..101]).is_err() && group.segment(0, 0).is_err());
    assert_eq!((group.read(20_480, &mut []), group.write(0, &[])), (Ok(()), Ok(())));
}

#[test]
fn an_empty_group_is_refused() {
    let mapper = ScriptedMapper::large();
    assert_eq!(domain(&mapper).map_adjacent::<ToDevice>(Vec::new()).unwrap_err(), DomainError::EmptyGroup);
}
