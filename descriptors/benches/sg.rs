//! What building and walking a list of 256 segments costs.
//!
//! Each figure is the minimum of several repetitions, in nanoseconds for the whole list,
//! beside a baseline of the same run: writing and summing a plain array of the same size.
//! It says what it measured and asserts nothing: machines differ.

use std::hint::black_box;
use std::time::Instant;

use vdk_descriptors::sg::{SgEntry, SgLimits, SgList, refine};
use vdk_hal::address::{ByteLength, Iova};

const SEGMENTS: u64 = 256;
const REPETITIONS: usize = 15;
const ROUNDS: u32 = 20_000;

fn main() {
    let limits = SgLimits {
        max_segment: ByteLength::new(1 << 20),
        boundary: Some(ByteLength::SIZE_4G),
        max_count: Some(65_536),
        ..SgLimits::NONE
    };
    let pieces: Vec<SgEntry> = (0..SEGMENTS)
        .map(|n| SgEntry { iova: Iova::new((1 << 30) + n * 3 * 4096 + n % 7), length: ByteLength::new(4096) })
        .collect();
    let adjacent: Vec<SgEntry> = (0..SEGMENTS)
        .map(|n| SgEntry { iova: Iova::new((1 << 30) + n * 4096), length: ByteLength::new(4096) })
        .collect();

    let mut array: Vec<SgEntry> = Vec::with_capacity(pieces.len());
    report("baseline: copy an array of 256", || {
        array.clear();
        array.extend_from_slice(black_box(&pieces));
        array.len() as u64
    });
    report("baseline: sum an array of 256", || sum(black_box(&pieces)));

    let mut list = SgList::with_capacity(&limits, pieces.len()).expect("limits are consistent");
    report("build 256 with push", || {
        list.clear();
        for piece in black_box(&pieces) {
            list.push(piece.iova, piece.length).expect("pieces are valid");
        }
        list.total().as_u64()
    });
    report("build 256 with push_all", || {
        list.clear();
        list.push_all(black_box(&pieces)).expect("pieces are valid");
        list.total().as_u64()
    });
    report("build 256 with push_each", || {
        list.clear();
        list.push_each(black_box(&pieces).iter().copied()).expect("pieces are valid");
        list.total().as_u64()
    });
    assert_eq!(list.count() as u64, SEGMENTS);
    report("walk 256", || sum(black_box(&list).entries()));

    let mut merged = SgList::with_capacity(&limits, pieces.len()).expect("limits are consistent");
    report("build from 256 adjacent pieces", || {
        merged.clear();
        merged.push_all(black_box(&adjacent)).expect("pieces are valid");
        merged.total().as_u64()
    });
    assert_eq!(merged.count(), 1);
    report("refine 256 against 256", || {
        let segments = refine(black_box(&list), black_box(&list), ByteLength::new(1 << 20));
        segments.map_or(0, |segments| {
            segments.fold(0, |sum, s| sum + s.source.as_u64() + s.destination.as_u64() + u64::from(s.length))
        })
    });
    report("refine 256 against 1", || {
        let segments = refine(black_box(&list), black_box(&merged), ByteLength::new(1 << 20));
        segments.map_or(0, |segments| {
            segments.fold(0, |sum, s| sum + s.source.as_u64() + s.destination.as_u64() + u64::from(s.length))
        })
    });
}

fn sum(entries: &[SgEntry]) -> u64 {
    entries.iter().fold(0, |sum, entry| sum + entry.iova.as_u64() + entry.length.as_u64())
}

fn report(name: &str, mut work: impl FnMut() -> u64) {
    let mut best = f64::MAX;
    for _ in 0..REPETITIONS {
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            black_box(work());
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
    }
    println!("{name:<34} {best:>9.1} ns");
}
