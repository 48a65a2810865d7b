//! Lists against an independent reader: it knows bytes, not entries.

use super::*;
use proptest::prelude::*;

const PAGE: u64 = 4096;

/// The bytes in order as maximal runs, in 128 bits so that nothing wraps.
fn runs(pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u128, u128)> {
    let mut runs: Vec<(u128, u128)> = Vec::new();
    for (start, length) in pieces {
        let (first, behind) = (u128::from(start), u128::from(start) + u128::from(length));
        match runs.last_mut() {
            Some(run) if run.1 == first => run.1 = behind,
            _ => runs.push((first, behind)),
        }
    }
    runs
}

fn plain(list: &SgList) -> Vec<(u64, u64)> {
    list.entries().iter().map(|entry| (entry.iova.as_u64(), entry.length.as_u64())).collect()
}

/// Checks every promise of a list against the pieces that it was built from.
fn check(list: &SgList, pieces: &[(u64, u64)]) {
    let entries = plain(list);
    assert_eq!(runs(entries.iter().copied()), runs(pieces.iter().copied()), "other bytes");
    let sum: u128 = pieces.iter().map(|piece| u128::from(piece.1)).sum();
    assert_eq!(u128::from(list.total().as_u64()), sum);
    let limits = list.limits();
    let one_block = |start: u64, length: u64, block: Option<ByteLength>| {
        block.is_none_or(|block| start / block.as_u64() == (start + (length - 1)) / block.as_u64())
    };
    let obeys = |start: u64, length: u64| {
        length > 0
            && length <= limits.max_segment.as_u64()
            && start.is_multiple_of(limits.alignment.as_u64())
            && length.is_multiple_of(limits.alignment.as_u64())
            && one_block(start, length, limits.boundary)
            && one_block(start, length, limits.page)
    };
    for (start, length) in &entries {
        assert!(obeys(*start, *length), "entry {start:#x}+{length:#x} breaks {limits:?}");
    }
    for pair in entries.windows(2) {
        let ((start, length), (next, more)) = (pair[0], pair[1]);
        let joined = start.checked_add(length) == Some(next) && obeys(start, length + more);
        assert!(!joined, "{start:#x}+{length:#x} and {next:#x}+{more:#x} could be one");
    }
    assert!(limits.max_count.is_none_or(|count| entries.len() <= count));
}

fn build(limits: &SgLimits, pieces: &[(u64, u64)]) -> SgList {
    let mut list = SgList::new(limits).unwrap();
    for (start, length) in pieces {
        list.push(Iova::new(*start), ByteLength::new(*length)).unwrap();
    }
    check(&list, pieces);
    list
}

fn page_limits() -> SgLimits {
    SgLimits { page: Some(ByteLength::SIZE_4K), ..SgLimits::NONE }
}

#[test]
fn pieces_are_cut_at_pages_and_merged_when_adjacent() {
    let list = build(&page_limits(), &[(0x1ffe, 4), (0x2002, 10), (0x5000, 1)]);
    assert_eq!(plain(&list), [(0x1ffe, 2), (0x2000, 12), (0x5000, 1)]);
    let list = build(&SgLimits::NONE, &[(0x1000, 0x1000), (0x2000, 0x1000), (0x1000, 1)]);
    assert_eq!(plain(&list), [(0x1000, 0x2000), (0x1000, 1)]);
}

#[test]
fn a_4_gib_line_is_not_crossed() {
    const LINE: u64 = 1 << 32;
    let limits = SgLimits { boundary: Some(ByteLength::SIZE_4G), ..SgLimits::NONE };
    let list = build(&limits, &[(LINE - 1, 2), (2 * LINE - PAGE, 3 * LINE)]);
    assert_eq!(
        plain(&list),
        [
            (LINE - 1, 1),
            (LINE, 1),
            (2 * LINE - PAGE, PAGE),
            (2 * LINE, LINE),
            (3 * LINE, LINE),
            (4 * LINE, LINE - PAGE)
        ]
    );
    let merged = build(&limits, &[(LINE - 2, 1), (LINE - 1, 1), (LINE, 1), (LINE + 1, 1)]);
    assert_eq!(plain(&merged), [(LINE - 2, 2), (LINE, 2)]);
}

#[test]
fn a_2_mib_line_is_not_crossed_and_the_segment_limit_starts_again_behind_it() {
    const LINE: u64 = 2 << 20;
    let limits = SgLimits {
        boundary: Some(ByteLength::SIZE_2M),
        max_segment: ByteLength::new(1_500_000),
        ..SgLimits::NONE
    };
    let list = build(&limits, &[(LINE, 2 * LINE)]);
    assert_eq!(
        plain(&list),
        [
            (LINE, 1_500_000),
            (LINE + 1_500_000, LINE - 1_500_000),
            (2 * LINE, 1_500_000),
            (2 * LINE + 1_500_000, LINE - 1_500_000)
        ]
    );
}

#[test]
fn a_piece_may_have_1_byte_or_4_gib() {
    let limits = SgLimits { max_segment: ByteLength::new(1 << 20), ..SgLimits::NONE };
    let list = build(&limits, &[(7, 1), (1 << 33, 1 << 32)]);
    assert_eq!(list.count(), 1 + 4096);
    let list = build(&SgLimits::NONE, &[(1 << 33, 1 << 32)]);
    assert_eq!(plain(&list), [(1 << 33, 1 << 32)]);
}

#[test]
fn a_hundred_thousand_segments_hold_every_byte() {
    let limits = SgLimits {
        boundary: Some(ByteLength::SIZE_2M),
        max_segment: ByteLength::new(1 << 20),
        ..SgLimits::NONE
    };
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut pieces = Vec::new();
    let mut next = (1u64 << 32) - (40 << 20);
    for _ in 0..100_000 {
        let length = 1 + random() % 9000;
        pieces.push((next, length));
        next += length + if random().is_multiple_of(4) { 0 } else { random() % 5000 };
    }
    let source = build(&limits, &pieces);
    assert!(source.count() > 70_000, "{}", source.count());
    let mut destination = SgList::new(&page_limits()).unwrap();
    let total = source.total();
    destination.push(Iova::new(1 << 45), total).unwrap();
    let segments: Vec<_> = refine(&source, &destination, ByteLength::new(1 << 20)).unwrap().collect();
    let sources = segments.iter().map(|s| (s.source.as_u64(), u64::from(s.length)));
    assert_eq!(runs(sources), runs(pieces.iter().copied()));
    let destinations = segments.iter().map(|s| (s.destination.as_u64(), u64::from(s.length)));
    assert_eq!(runs(destinations), runs([(1 << 45, total.as_u64())]));
}

#[test]
fn zero_bytes_and_addresses_past_the_end_are_refused() {
    let mut list = SgList::new(&SgLimits::NONE).unwrap();
    let iova = Iova::new(0x1000);
    assert_eq!(list.push(iova, ByteLength::ZERO), Err(SgError::ZeroLength { iova }));
    let iova = Iova::new(u64::MAX);
    assert_eq!(list.push(iova, ByteLength::new(2)), Err(SgError::PastEnd { iova, length: 2 }));
    assert!(list.is_empty() && list.total().is_zero());
    list.push(iova, ByteLength::new(1)).unwrap();
    list.push(Iova::new(0), ByteLength::new(1)).unwrap();
    assert_eq!(plain(&list), [(u64::MAX, 1), (0, 1)]);
    build(&SgLimits::NONE, &[(0x1000, u64::MAX - 0xfff), (0, 0x10), (0x10, 0x10)]);
}

#[test]
fn the_sum_of_all_pieces_is_checked() {
    let mut list = build(&SgLimits::NONE, &[(0x10, u64::MAX - 0x10)]);
    assert_eq!(list.push(Iova::new(0), ByteLength::new(0x11)), Err(SgError::TooLong));
    assert_eq!(list.push(Iova::new(u64::MAX), ByteLength::new(1)), Ok(()));
    assert_eq!(list.push(Iova::new(0), ByteLength::new(0x10)), Err(SgError::TooLong));
    assert_eq!(plain(&list), [(0x10, u64::MAX - 0xf)]);
}

#[test]
fn an_unaligned_piece_is_refused() {
    let limits = SgLimits { alignment: ByteLength::new(4), ..SgLimits::NONE };
    let mut list = SgList::new(&limits).unwrap();
    for (start, length) in [(1, 4), (2, 4), (3, 4), (4, 5)] {
        let iova = Iova::new(start);
        assert_eq!(
            list.push(iova, ByteLength::new(length)),
            Err(SgError::Unaligned { iova, length, alignment: 4 })
        );
    }
    assert!(list.is_empty());
}

#[test]
fn a_push_beyond_the_count_leaves_the_list_as_it_was() {
    let limits = SgLimits { max_count: Some(3), ..page_limits() };
    let mut list = build(&limits, &[(0x1000, PAGE), (0x2000, 8)]);
    let error = list.push(Iova::new(0x2008), ByteLength::new(2 * PAGE)).unwrap_err();
    assert_eq!(error, SgError::TooManyEntries { needed: 4, limit: 3 });
    check(&list, &[(0x1000, PAGE), (0x2000, 8)]);
    list.push(Iova::new(0x2008), ByteLength::new(PAGE)).unwrap();
    assert_eq!(plain(&list), [(0x1000, PAGE), (0x2000, PAGE), (0x3000, 8)]);
    let error = list.push(Iova::new(0x9000), ByteLength::new(1)).unwrap_err();
    assert_eq!(error, SgError::TooManyEntries { needed: 4, limit: 3 });
    let error = list.push(Iova::new(0), ByteLength::new(u64::MAX)).unwrap_err();
    assert!(matches!(error, SgError::TooLong), "{error}");
    check(&list, &[(0x1000, 2 * PAGE + 8)]);
}

#[test]
fn a_batch_is_taken_as_a_whole_or_not_at_all() {
    let limits = SgLimits { max_count: Some(4), ..SgLimits::NONE };
    let mut list = build(&limits, &[(0x1000, 0x100)]);
    let entry = |iova, length| SgEntry { iova: Iova::new(iova), length: ByteLength::new(length) };
    let bad = [entry(0x1100, 0x100), entry(0x3000, 1), entry(0x4000, 0)];
    let error = SgError::ZeroLength { iova: Iova::new(0x4000) };
    assert_eq!(list.push_all(&bad), Err(error));
    check(&list, &[(0x1000, 0x100)]);
    assert_eq!(list.push_each(bad), Err(error));
    check(&list, &[(0x1000, 0x100)]);
    let mut other = list.clone();
    let good = [entry(0x1100, 0x100), entry(0x3000, 1)];
    list.push_all(&good).unwrap();
    other.push_each(good).unwrap();
    assert_eq!(plain(&list), [(0x1000, 0x200), (0x3000, 1)]);
    assert_eq!(plain(&other), plain(&list));
}

#[test]
fn a_cleared_list_is_built_again_in_the_same_memory() {
    let mut list = SgList::with_capacity(&page_limits(), 256).unwrap();
    let memory = list.entries().as_ptr();
    for round in 0..3 {
        for piece in 0..256 {
            list.push(Iova::new(round + piece * 2 * PAGE), ByteLength::new(PAGE / 2)).unwrap();
        }
        assert_eq!(list.count(), 256);
        assert_eq!(list.entries().as_ptr(), memory);
        list.clear();
        assert!(list.is_empty() && list.total().is_zero());
    }
}

fn any_limits() -> impl Strategy<Value = SgLimits> {
    let power = |from: u32, to: u32| (from..=to).prop_map(|log2| ByteLength::new(1 << log2));
    (power(0, 3), 8u64..20_000, proptest::option::of(power(3, 14)), proptest::option::of(power(3, 14)))
        .prop_map(|(alignment, maximum, boundary, page)| SgLimits {
            max_segment: ByteLength::new(maximum),
            boundary,
            alignment,
            page,
            max_count: None,
        })
}

/// Pieces near to one another, so that many are adjacent, and some near the end of the
/// address space.
fn any_pieces() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let piece = (0u64..4, 1u64..30_000, 0u64..3);
    (
        prop_oneof![Just(0u64), Just((1 << 32) - 50_000), Just(u64::MAX - 2_000_000)],
        proptest::collection::vec(piece, 0..24),
    )
        .prop_map(|(base, steps)| {
            let mut next = base & !7;
            let mut pieces = Vec::new();
            for (gap, length, scale) in steps {
                let start = next + gap * 8;
                let length = (length >> (scale * 4)).max(1).next_multiple_of(8);
                pieces.push((start, length));
                next = start + length;
            }
            pieces
        })
}

proptest! {
    #[test]
    fn every_list_holds_the_bytes_of_its_pieces(limits in any_limits(), pieces in any_pieces()) {
        let list = build(&limits, &pieces);
        let entries: Vec<_> = pieces
            .iter()
            .map(|(start, length)| SgEntry { iova: Iova::new(*start), length: ByteLength::new(*length) })
            .collect();
        let mut at_once = SgList::new(&limits).unwrap();
        at_once.push_all(&entries).unwrap();
        prop_assert_eq!(plain(&at_once), plain(&list));
        prop_assert_eq!(at_once.total(), list.total());
    }

    #[test]
    fn a_refused_push_changes_nothing(
        limits in any_limits(),
        pieces in any_pieces(),
        count in 1usize..12,
    ) {
        let limits = SgLimits { max_count: Some(count), ..limits };
        let mut list = SgList::new(&limits).unwrap();
        let mut taken = Vec::new();
        for (start, length) in pieces {
            if list.push(Iova::new(start), ByteLength::new(length)).is_ok() {
                taken.push((start, length));
            }
            check(&list, &taken);
        }
    }

    #[test]
    fn a_copy_moves_every_byte_to_its_place(
        source_limits in any_limits(),
        destination_limits in any_limits(),
        pieces in any_pieces(),
        cuts in proptest::collection::vec(1u64..5_000, 1..24),
        maximum in 8u64..5_000,
    ) {
        let source = build(&source_limits, &pieces);
        let total = source.total().as_u64();
        let mut destination_pieces = Vec::new();
        let (mut done, mut at) = (0, 1u64 << 40);
        for cut in cuts.iter().cycle() {
            if done == total {
                break;
            }
            let length = (cut * 8).min(total - done);
            destination_pieces.push((at, length));
            at += length + (cut % 2) * 64;
            done += length;
        }
        let destination = build(&destination_limits, &destination_pieces);
        let segments: Vec<_> = refine(&source, &destination, ByteLength::new(maximum)).unwrap().collect();
        prop_assert!(segments.iter().all(|s| s.length > 0 && u64::from(s.length) <= maximum));
        let sources = segments.iter().map(|s| (s.source.as_u64(), u64::from(s.length)));
        prop_assert_eq!(runs(sources), runs(pieces));
        let destinations = segments.iter().map(|s| (s.destination.as_u64(), u64::from(s.length)));
        prop_assert_eq!(runs(destinations), runs(destination_pieces));
        let bytewise = |segments: &[CopySegment]| -> u64 {
            segments.iter().map(|s| u64::from(s.length)).sum()
        };
        prop_assert_eq!(bytewise(&segments), total);
    }
}
