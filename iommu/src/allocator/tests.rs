//! Behaviour of the allocator; the numbers in brackets are usable ranges in pages.

use proptest::prelude::*;

use super::*;

const PAGE: ByteLength = ByteLength::SIZE_4K;
const EVERYWHERE: Iova = Iova::new(u64::MAX);

fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::from_bounds(Iova::new(start), Iova::new(last)).unwrap()
}

fn pages(start: u64, last: u64) -> IovaRange {
    range(start << 12, (last << 12) | 0xfff)
}

fn both_placements(check: impl Fn(Placement)) {
    check(Placement::BottomUp);
    check(Placement::TopDown);
}

#[test]
fn sizes_are_rounded_to_pages_and_aligned_naturally() {
    both_placements(|placement| {
        let mut allocator = IovaAllocator::new(&[range(0, (1 << 36) - 1)], PAGE, placement);
        for (asked, length, alignment) in [
            (0, 4 << 10, 4 << 10),
            (1, 4 << 10, 4 << 10),
            (4097, 8 << 10, 4 << 10),
            ((2 << 20) - 4096, (2 << 20) - 4096, 4 << 10),
            (2 << 20, 2 << 20, 2 << 20),
            ((2 << 20) + 1, (2 << 20) + 4096, 2 << 20),
            ((1 << 30) - 1, 1 << 30, 1 << 30),
            (1 << 30, 1 << 30, 1 << 30),
            (3 << 30, 3 << 30, 1 << 30),
        ] {
            let taken = allocator.allocate(ByteLength::new(asked), EVERYWHERE).unwrap().range();
            assert_eq!(taken.length(), ByteLength::new(length), "{asked}");
            assert!(taken.start().is_aligned_to(ByteLength::new(alignment)), "{asked}: {taken}");
        }
        let aligned = allocator.allocate_aligned(PAGE, ByteLength::new(5 << 30), EVERYWHERE).unwrap();
        assert!(aligned.range().start().is_aligned_to(ByteLength::new(8 << 30)), "rounded up");
    });
}

#[test]
fn address_zero_and_parts_of_pages_are_never_handed_out() {
    let mut allocator =
        IovaAllocator::new(&[range(0, 0x2fff), range(0x5800, 0x77fe)], PAGE, Placement::BottomUp);
    let mut starts: Vec<u64> =
        (0..3).map(|_| allocator.allocate(PAGE, EVERYWHERE).unwrap().range().start().as_u64()).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0x1000, 0x2000, 0x6000]);
    assert!(allocator.allocate(PAGE, EVERYWHERE).is_err());
    assert!(allocator.reserve(pages(0, 0), EVERYWHERE).is_err());
}

#[test]
fn a_39_bit_iommu_never_gets_an_address_above_its_aperture() {
    both_placements(|placement| {
        let mut allocator = IovaAllocator::new(&[range(0, (1 << 39) - 1)], PAGE, placement);
        let mut taken = 0u64;
        while let Ok(next) = allocator.allocate(ByteLength::new(8 << 30), EVERYWHERE) {
            assert!(next.range().last().as_u64() < 1 << 39);
            taken += 1;
        }
        assert_eq!(taken, 63, "64 times 8 GiB less the one with page 0");
        let beyond = allocator.reserve(range(1 << 39, (1 << 39) | 0xfff), EVERYWHERE).unwrap_err();
        assert_eq!(beyond.reason, UnavailableReason::Unusable);
    });
}

#[test]
fn the_device_width_bounds_every_address() {
    both_placements(|placement| {
        let limit = Iova::new((1 << 58) - 1);
        let mut allocator = IovaAllocator::new(&[range(0x1_0000, u64::MAX)], PAGE, placement);
        for length in [1u64 << 12, 1 << 21, 1 << 30, 1 << 40, 1 << 56] {
            let taken = allocator.allocate(ByteLength::new(length), limit).unwrap().range();
            assert!(taken.last() <= limit, "{taken}");
        }
        assert!(allocator.allocate(ByteLength::new(1 << 58), limit).is_err());
        let wide = allocator.allocate(ByteLength::new(1 << 58), EVERYWHERE).unwrap().range();
        assert!(wide.last() > limit);
        let beyond = allocator.reserve(pages(1 << 46, 1 << 46), limit).unwrap_err();
        assert_eq!(beyond.reason, UnavailableReason::BeyondLimit { limit });
    });
}

#[test]
fn a_32_bit_device_runs_out_cleanly_and_keeps_what_it_has() {
    both_placements(|placement| {
        let limit = Iova::new(u32::MAX.into());
        let ranges = [range(0, 0xfedf_ffff), range(0xfef0_0000, u64::MAX)];
        let mut allocator = IovaAllocator::new(&ranges, PAGE, placement);
        let gigabyte = ByteLength::SIZE_1G;
        // The first GiB has page 0, the last one the interrupt window.
        let granted = [1, 2].map(|_| allocator.allocate(gigabyte, limit).unwrap());
        let error = allocator.allocate(gigabyte, limit).unwrap_err();
        assert_eq!((error.asked, error.alignment, error.limit), (gigabyte, gigabyte, limit));
        assert_eq!(error.largest_hole, ByteLength::new((1 << 30) - 4096));
        assert!(error.free > ByteLength::new(1 << 60));
        let text = error.to_string();
        assert!(text.starts_with("no iova for 1 GiB aligned to 1 GiB up to 0xffffffff: "), "{text}");
        assert_eq!(allocator.statistics().live, 2);
        for allocation in granted {
            assert_eq!(allocator.free(allocation), Ok(()));
        }
        assert!(allocator.allocate(gigabyte, limit).is_ok());
    });
}

#[test]
fn pages_of_64_kib_are_the_unit_where_the_iommu_says_so() {
    let page = ByteLength::new(64 << 10);
    let mut allocator = IovaAllocator::new(&[range(0x1000, 0x5_ffff)], page, Placement::BottomUp);
    let first = allocator.allocate(PAGE, EVERYWHERE).unwrap().range();
    assert_eq!(first, range(0x1_0000, 0x1_ffff));
    let part = allocator.reserve(pages(0x31, 0x31), EVERYWHERE).unwrap_err();
    assert_eq!(part.reason, UnavailableReason::Misaligned { page });
    assert!(allocator.reserve(range(0x3_0000, 0x3_ffff), EVERYWHERE).is_ok());
}

#[test]
fn absurd_sizes_and_pages_are_refused_without_overflow() {
    let everything = [range(0, u64::MAX)];
    let mut allocator = IovaAllocator::new(&everything, PAGE, Placement::BottomUp);
    for length in [u64::MAX, u64::MAX - 4095, u64::MAX - (1 << 30) + 2] {
        assert!(allocator.allocate(ByteLength::new(length), EVERYWHERE).is_err(), "{length:#x}");
    }
    assert!(allocator.allocate_aligned(PAGE, ByteLength::new(u64::MAX), EVERYWHERE).is_err());
    assert!(allocator.allocate_aligned(PAGE, ByteLength::new(1 << 63), EVERYWHERE).is_ok());
    assert!(
        allocator.allocate(PAGE, Iova::new(0)).is_err()
            && allocator.allocate(PAGE, Iova::new(0x1ffe)).is_err()
    );
    assert!(allocator.allocate(PAGE, Iova::new(0x1fff)).is_ok());
    let mut huge_pages = IovaAllocator::new(&everything, ByteLength::new(u64::MAX), Placement::TopDown);
    let half = huge_pages.allocate(PAGE, EVERYWHERE).unwrap();
    assert_eq!(half.range(), range(1 << 63, u64::MAX));
    assert!(huge_pages.allocate(PAGE, EVERYWHERE).is_err());
    assert!(IovaAllocator::new(&[], PAGE, Placement::BottomUp).allocate(PAGE, EVERYWHERE).is_err());
}

#[test]
fn an_allocation_is_given_back_only_to_its_allocator() {
    let ranges = [pages(1, 4)];
    let mut mine = IovaAllocator::new(&ranges, PAGE, Placement::BottomUp);
    let mut other = IovaAllocator::new(&ranges, PAGE, Placement::BottomUp);
    let allocation = mine.allocate(PAGE, EVERYWHERE).unwrap();
    let allocation = other.free(allocation).unwrap_err();
    assert_eq!(other.statistics().free_bytes, ByteLength::new(4 << 12));
    assert_eq!(mine.free(allocation), Ok(()));
}

#[test]
fn cached_ranges_merge_before_exhaustion_is_reported() {
    let mut allocator = IovaAllocator::new(&[pages(1, 16)], PAGE, Placement::BottomUp);
    let singles: Vec<_> = (0..16).map(|_| allocator.allocate(PAGE, EVERYWHERE).unwrap()).collect();
    for single in singles {
        allocator.free(single).unwrap();
    }
    assert_eq!(allocator.statistics().cached, 16);
    assert_eq!(allocator.statistics().free_bytes, ByteLength::new(16 << 12));
    let all = allocator.allocate(ByteLength::new(16 << 12), EVERYWHERE).unwrap();
    assert_eq!((all.range(), allocator.statistics().cached), (pages(1, 16), 0));
    allocator.free(all).unwrap();
    let low = allocator.allocate(PAGE, EVERYWHERE).unwrap();
    allocator.free(low).unwrap();
    let reserved = allocator.reserve(pages(1, 16), EVERYWHERE).unwrap();
    allocator.free(reserved).unwrap();
}

#[test]
fn a_freed_range_is_met_again_from_the_magazine_if_it_suits() {
    let mut allocator = IovaAllocator::new(&[pages(1, 4000)], PAGE, Placement::TopDown);
    let high = allocator.allocate(PAGE, EVERYWHERE).unwrap();
    let low = allocator.allocate(PAGE, Iova::new(0x1f_ffff)).unwrap();
    assert_eq!((low.range(), high.range()), (pages(0x1ff, 0x1ff), pages(4000, 4000)));
    allocator.free(low).unwrap();
    allocator.free(high).unwrap();
    let again = allocator.allocate(PAGE, Iova::new(0x1f_ffff)).unwrap();
    assert_eq!(again.range(), pages(0x1ff, 0x1ff), "the latest is above the limit");
    let statistics = allocator.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.live), (1, 2, 1));
    // A large range at an odd place, as `reserve` makes them, is not reused as a natural one.
    let odd = allocator.reserve(pages(0x201, 0x400), EVERYWHERE).unwrap();
    allocator.free(odd).unwrap();
    let natural = allocator.allocate(ByteLength::SIZE_2M, EVERYWHERE).unwrap();
    assert!(natural.range().start().is_aligned_to(ByteLength::SIZE_2M));
}

#[test]
fn ranges_that_are_no_longer_usable_are_reported_and_not_reused() {
    let mut allocator = IovaAllocator::new(&[pages(1, 8)], PAGE, Placement::BottomUp);
    let first = allocator.allocate(PAGE, EVERYWHERE).unwrap();
    let second = allocator.allocate(PAGE, EVERYWHERE).unwrap();
    assert_eq!(allocator.set_ranges(&[pages(2, 3)], PAGE), [pages(1, 1)]);
    assert!(!allocator.is_usable(pages(1, 1)) && allocator.is_usable(pages(2, 3)));
    allocator.free(first).unwrap();
    let third = allocator.allocate(PAGE, EVERYWHERE).unwrap();
    assert_eq!(third.range(), pages(3, 3));
    assert!(allocator.allocate(PAGE, EVERYWHERE).is_err());
    allocator.free(second).unwrap();
    assert!(allocator.allocate(PAGE, EVERYWHERE).is_ok());
}

/// A pseudo-random sequence; the same in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn a_small_aperture_serves_100_000_requests_as_long_as_a_hole_exists() {
    both_placements(|placement| {
        let mut allocator = IovaAllocator::new(&[pages(1, 64)], PAGE, placement);
        let mut used = [false; 65];
        let mut live: Vec<IovaAllocation> = Vec::new();
        let (mut state, mut refused) = (0x9e37_79b9_7f4a_7c15, 0);
        for _ in 0..100_000 {
            let choice = random(&mut state);
            if choice & 1 == 0 && !live.is_empty() {
                let index = usize::try_from(choice >> 8).unwrap() % live.len();
                let allocation = live.swap_remove(index);
                let first = usize::try_from(allocation.range().start().as_u64() >> 12).unwrap();
                let last = usize::try_from(allocation.range().last().as_u64() >> 12).unwrap();
                used[first..=last].fill(false);
                allocator.free(allocation).unwrap();
                continue;
            }
            let count = 1 + (choice >> 8) % 8;
            let wanted = usize::try_from(count).unwrap();
            match allocator.allocate(ByteLength::new(count << 12), EVERYWHERE) {
                Ok(allocation) => {
                    let first = usize::try_from(allocation.range().start().as_u64() >> 12).unwrap();
                    let pages = &mut used[first..first + wanted];
                    assert!(pages.iter().all(|page| !*page), "overlap at {first}");
                    pages.fill(true);
                    live.push(allocation);
                }
                Err(error) => {
                    let free = used[1..].windows(wanted).any(|pages| pages.iter().all(|page| !*page));
                    assert!(!free, "a hole of {wanted} pages exists: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "the aperture was never full");
        for allocation in live {
            allocator.free(allocation).unwrap();
        }
        assert_eq!(allocator.allocate(ByteLength::new(64 << 12), EVERYWHERE).unwrap().range(), pages(1, 64));
    });
}

#[test]
fn churn_does_not_fragment_a_half_full_space() {
    let pages_total = 1 << 16;
    let mut allocator = IovaAllocator::new(&[pages(1, pages_total)], PAGE, Placement::BottomUp);
    let mut live: Vec<IovaAllocation> = Vec::new();
    let mut state = 0x1234_5678_9abc_def1;
    for _ in 0..200_000 {
        let choice = random(&mut state);
        if allocator.statistics().live_bytes.as_u64() >> 12 > pages_total / 2 {
            let index = usize::try_from(choice).unwrap() % live.len();
            allocator.free(live.swap_remove(index)).unwrap();
        } else {
            let length = ByteLength::new((1 + choice % 64) << 12);
            live.push(allocator.allocate(length, EVERYWHERE).unwrap());
        }
    }
    allocator.flush();
    let statistics = allocator.statistics();
    let half = ByteLength::new(statistics.free_bytes.as_u64() / 2);
    assert!(statistics.largest_hole >= half, "most of the free space is one hole: {statistics:?}");
}

proptest! {
    #[test]
    fn live_ranges_never_overlap_and_everything_comes_back(
        requests in prop::collection::vec((1u64..600, any::<bool>(), 0u32..12), 1..120),
    ) {
        let space = pages(1, 4096);
        let mut allocator = IovaAllocator::new(&[space], PAGE, Placement::TopDown);
        let mut live: Vec<IovaAllocation> = Vec::new();
        for (count, free_first, shift) in requests {
            if free_first && !live.is_empty() {
                allocator.free(live.remove(0)).unwrap();
            }
            let alignment = ByteLength::new(1 << (12 + shift));
            if let Ok(new) = allocator.allocate_aligned(ByteLength::new(count << 12), alignment, EVERYWHERE) {
                prop_assert!(space.contains_range(new.range()));
                prop_assert!(new.range().start().is_aligned_to(alignment));
                prop_assert!(live.iter().all(|other| !other.range().overlaps(new.range())));
                live.push(new);
            }
        }
        let bytes: u64 = live.iter().map(|one| one.range().length().as_u64()).sum();
        let statistics = allocator.statistics();
        prop_assert_eq!((statistics.live, statistics.live_bytes.as_u64()), (live.len(), bytes));
        prop_assert_eq!(statistics.free_bytes.as_u64() + bytes, 4096 << 12);
        for allocation in live {
            allocator.free(allocation).unwrap();
        }
        prop_assert_eq!(allocator.reserve(space, EVERYWHERE).unwrap().range(), space);
    }
}
