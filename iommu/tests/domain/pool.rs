//! Buffers of a pool: where they lie, what they hold, and where they go.

use std::collections::BTreeMap;

use vdk_hal::address::{ByteLength, HostAddress, Iova, IovaRange};
use vdk_hal::memory::Pages;
use vdk_iommu::{AddressWidth, DmaBuffer, DmaPool, DomainError, PoolError, PoolOptions};

use crate::domain;
use crate::mapper::ScriptedMapper;

/// A pool of small slabs on base pages.
fn small(mapper: &std::sync::Arc<ScriptedMapper>, slabs: usize, max_slabs: usize) -> DmaPool {
    let options = PoolOptions { slab: ByteLength::new(64 << 10), slabs, max_slabs, pages: Pages::Base };
    DmaPool::new(&domain(mapper), options).unwrap()
}

fn content(buffer: &DmaBuffer) -> Vec<u8> {
    let mut bytes = vec![0xee; buffer.length().to_usize().unwrap()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn buffers_never_overlap_nor_cross_slabs_whatever_their_sizes() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 8);
    let mut state = 88_172_645_463_325_252u64;
    let mut live: Vec<(DmaBuffer, u8)> = Vec::new();
    for round in 0..4000u32 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let length = 1 + usize::try_from(state >> 20).unwrap() % (1 << (state % 13));
        let canary = u8::try_from(round % 255 + 1).unwrap();
        match pool.take(length) {
            Ok(buffer) => {
                assert!(content(&buffer).iter().all(|byte| *byte == 0), "zeroed for its new owner");
                buffer.write(0, &vec![canary; length]).unwrap();
                live.push((buffer, canary));
            }
            Err(PoolError::Exhausted { .. }) => assert!(live.len() > 20),
            Err(error) => panic!("{error}"),
        }
        if state & 0x300 == 0 || live.len() > 90 {
            let (buffer, canary) = live.swap_remove(usize::try_from(state >> 40).unwrap() % live.len());
            assert!(content(&buffer).iter().all(|byte| *byte == canary), "nobody else wrote here");
            if state & 0x1000 == 0 { drop(buffer) } else { pool.put(buffer) }
        }
    }
    let slabs = mapper.ranges();
    assert!((2..=8).contains(&slabs.len()));
    let mut ranges: Vec<IovaRange> = Vec::new();
    for (buffer, canary) in &live {
        assert!(content(buffer).iter().all(|byte| byte == canary));
        let range = IovaRange::new(buffer.iova(), buffer.capacity()).unwrap();
        assert!(slabs.iter().any(|slab| slab.contains_range(range)), "{range} lies in one slab");
        assert!(buffer.iova().is_aligned_to(buffer.capacity().min(ByteLength::SIZE_4K)));
        assert!(ranges.iter().all(|other| !other.overlaps(range)));
        ranges.push(range);
    }
}

#[test]
fn a_slab_is_mapped_once_whatever_is_cut_from_it() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 2, 2);
    assert_eq!(mapper.counts(), (2, 2, 0), "mapped when the pool is made");
    let mut kept: Vec<DmaBuffer> = (0..50).map(|n| pool.take(1 + n * 37).unwrap()).collect();
    for length in 1..500 {
        let buffer = pool.take(length).unwrap();
        if length % 2 == 0 { pool.put(buffer) } else { drop(buffer) }
    }
    assert_eq!(mapper.counts(), (2, 2, 0));
    kept.truncate(1);
    drop(pool);
    assert_eq!(mapper.counts(), (1, 2, 1), "the slab of the last buffer stays mapped");
    kept.clear();
    assert_eq!(mapper.counts(), (0, 2, 2));
}

#[test]
fn what_one_owner_left_is_gone_for_the_next_unless_asked_for() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let secret = pool.take(3000).unwrap();
    secret.fill(0, 3000, 0x5a).unwrap();
    let place = secret.iova();
    pool.put(secret);
    let reused = pool.take_reused(3000).unwrap();
    assert_eq!((reused.iova(), content(&reused)[2999]), (place, 0x5a));
    drop(reused);
    let fresh = pool.take(4096).unwrap();
    assert_eq!((fresh.iova(), content(&fresh)), (place, vec![0; 4096]));
}

#[test]
fn a_buffer_grants_only_the_bytes_that_were_asked_for() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let buffer = pool.take(100).unwrap();
    assert_eq!((buffer.length(), buffer.capacity()), (ByteLength::new(100), ByteLength::new(128)));
    let part = buffer.segment(40, 60).unwrap();
    assert_eq!((part.iova.as_u64(), part.length.as_u64()), (buffer.iova().as_u64() + 40, 60));
    assert_eq!(buffer.whole(), buffer.segment(0, 100).unwrap());
    assert!(buffer.segment(0, 0).is_err() && buffer.segment(41, 60).is_err());
    assert!(buffer.write(99, &[0; 2]).is_err() && buffer.read(100, &mut [0]).is_err());
    assert!(buffer.fill(0, 101, 0).is_err() && buffer.volatile_slice(usize::MAX, 2).is_err());
    let error = buffer.read(60, &mut [0; 41]).unwrap_err();
    assert_eq!((error.offset, error.length, error.limit), (60, 41, 100));
    assert_eq!(buffer.volatile_slice(60, 40).unwrap().len(), 40);
}

#[test]
fn lengths_that_no_slab_holds_are_refused() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let largest = pool.largest_buffer();
    assert_eq!(largest, ByteLength::new(64 << 10));
    for length in [0, (64 << 10) + 1, usize::MAX] {
        let error = pool.take(length).unwrap_err();
        assert!(matches!(error, PoolError::Length { largest: l, .. } if l == largest), "{length}: {error}");
    }
    let whole = pool.take(64 << 10).unwrap();
    assert!(matches!(pool.take(1), Err(PoolError::Exhausted { slabs: 1, .. })));
    pool.put(whole);
    assert!(pool.take(1).is_ok());
    for slab in [0, u64::MAX, 1 << 40] {
        let options = PoolOptions { slab: ByteLength::new(slab), ..PoolOptions::default() };
        assert!(matches!(DmaPool::new(&domain(&mapper), options), Err(PoolError::Slab { .. })));
    }
}

#[test]
fn small_buffers_merge_when_a_large_one_needs_their_room() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let buffers: Vec<DmaBuffer> = (0..1024).map(|_| pool.take(64).unwrap()).collect();
    assert!(matches!(pool.take(64), Err(PoolError::Exhausted { .. })));
    assert_eq!(pool.statistics().free, ByteLength::ZERO);
    for (index, buffer) in buffers.into_iter().enumerate() {
        if index % 2 == 0 { pool.put(buffer) } else { drop(buffer) }
    }
    assert_eq!(pool.statistics().free, ByteLength::new(64 << 10));
    assert_eq!(pool.take(64 << 10).unwrap().capacity(), ByteLength::new(64 << 10));
    assert_eq!(mapper.counts(), (1, 1, 0));
}

#[test]
fn buffers_come_home_from_other_threads() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let buffers: Vec<DmaBuffer> = (0..16).map(|_| pool.take(4096).unwrap()).collect();
    let places: Vec<Iova> = buffers.iter().map(DmaBuffer::iova).collect();
    let threads: Vec<_> =
        buffers.into_iter().map(|buffer| std::thread::spawn(move || drop(buffer))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let again: Vec<DmaBuffer> = (0..16).map(|_| pool.take(4096).unwrap()).collect();
    let mut found: Vec<Iova> = again.iter().map(DmaBuffer::iova).collect();
    found.sort_unstable();
    assert_eq!((found, pool.statistics().dropped), (places, 16));
}

#[test]
fn a_buffer_put_into_another_pool_goes_back_to_its_own() {
    let (mapper, other) = (ScriptedMapper::large(), ScriptedMapper::large());
    let (mut first, mut second) = (small(&mapper, 1, 1), small(&other, 1, 1));
    let buffer = first.take(64 << 10).unwrap();
    let place = buffer.host_address();
    second.put(buffer);
    assert_eq!(first.take(64 << 10).unwrap().host_address(), place);
    assert_ne!(second.take(64 << 10).unwrap().host_address(), place);
}

#[test]
fn a_forgotten_buffer_is_lost_and_never_handed_out_again() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let forgotten = pool.take(32 << 10).unwrap();
    let place = forgotten.iova();
    core::mem::forget(forgotten);
    let other = pool.take(32 << 10).unwrap();
    assert_ne!(other.iova(), place);
    assert!(matches!(pool.take(1), Err(PoolError::Exhausted { .. })));
    drop((other, pool));
    assert_eq!(mapper.counts(), (1, 1, 0), "a device may still have its address");
}

#[test]
fn a_slab_that_cannot_be_mapped_fails_the_request_and_nothing_else() {
    let mapper = ScriptedMapper::large();
    mapper.state().limit = Some(1);
    let mut pool = small(&mapper, 1, 3);
    let first = pool.take(64 << 10).unwrap();
    assert!(matches!(pool.take(1), Err(PoolError::Domain(DomainError::Map(_)))));
    mapper.state().limit = Some(2);
    let second = pool.take(64 << 10).unwrap();
    assert_eq!((pool.statistics().slabs.total(), mapper.counts().0), (2, 2));
    assert_ne!(first.iova(), second.iova());
}

#[test]
fn slabs_lie_in_the_width_of_the_device_and_their_pages_are_counted() {
    let mapper = ScriptedMapper::new(&[(0, u64::MAX)], 4096);
    let narrow = domain(&mapper).with_width(AddressWidth::new(28).unwrap());
    let options = PoolOptions { slabs: 3, ..PoolOptions::default() };
    let mut pool = DmaPool::new(&narrow, options).unwrap();
    assert!(mapper.ranges().iter().all(|slab| narrow.width().covers(*slab)));
    assert!(mapper.ranges().iter().all(|slab| slab.start().is_aligned_to(ByteLength::SIZE_2M)));
    let statistics = pool.statistics();
    assert_eq!((statistics.slabs.total(), statistics.free), (3, ByteLength::new(6 << 20)));
    // Whether huge pages are reserved depends on the machine; a downgrade must show.
    assert_eq!(statistics.downgraded, 3 - statistics.slabs.huge_2m);
    let chosen = PoolOptions { pages: Pages::Base, ..PoolOptions::default() };
    let statistics = DmaPool::new(&narrow, chosen).unwrap().statistics();
    assert_eq!((statistics.slabs.base_pages, statistics.downgraded), (1, 0));
}

#[test]
fn every_byte_of_every_slab_translates_to_what_the_device_sees() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 3, 3);
    let table = pool.translation();
    for (range, memory, _) in mapper.state().mappings.values() {
        let host = memory.host_address().as_u64();
        let at = |offset| table.translate(HostAddress::new(host + offset));
        let first = at(0).unwrap();
        assert_eq!(first.iova, range.start());
        assert!(first.length >= ByteLength::SIZE_4K && first.length <= range.length());
        let last = at(0xffff).unwrap();
        assert_eq!((last.iova, last.length), (range.last(), ByteLength::new(1)));
        for offset in (0..0x1_0000).step_by(777) {
            assert_eq!(at(offset).unwrap().iova.as_u64(), range.start().as_u64() + offset);
        }
    }
    let buffer = pool.take(5000).unwrap();
    let found = table.translate(buffer.host_address()).unwrap();
    assert_eq!(found.iova, buffer.iova());
    let (kept, other) = (
        buffer.host_address(),
        mapper.state().mappings.values().map(|m| m.1.host_address()).collect::<Vec<_>>(),
    );
    drop(pool);
    assert!(table.translate(kept).is_some(), "the slab of a live buffer stays");
    drop(buffer);
    assert!(other.iter().all(|host| table.translate(*host).is_none()));
}

#[test]
fn a_pool_frees_and_cuts_the_same_bytes_for_ever() {
    let mapper = ScriptedMapper::large();
    let mut pool = small(&mapper, 1, 1);
    let mut places: BTreeMap<u64, u32> = BTreeMap::new();
    for round in 0..2000u32 {
        let length = 64 << (round % 9);
        let buffers: Vec<DmaBuffer> = (0..3).map(|_| pool.take(length).unwrap()).collect();
        for buffer in buffers {
            *places.entry(buffer.iova().as_u64()).or_default() += 1;
            if round % 3 == 0 { drop(buffer) } else { pool.put(buffer) }
        }
    }
    assert_eq!(places.values().sum::<u32>(), 6000);
    assert_eq!(pool.statistics().free, ByteLength::new(64 << 10));
}
