//! The transport core, both ends in one thread, memory to memory.
//!
//! Each figure stands beside a plain copy of the same bytes that was measured in turn with
//! it, and is the best of many rounds. `cargo bench -p vdk-firmware-stubs --bench roce`.

mod pair;

use std::hint::black_box;
use std::time::{Duration, Instant};

use pair::{Pair, REGION};

/// The shortest of the rounds of each of two things, done in turn.
fn in_turn(rounds: u32, mut one: impl FnMut(), mut two: impl FnMut()) -> [Duration; 2] {
    let mut best = [Duration::MAX; 2];
    for _ in 0..rounds {
        let begun = Instant::now();
        one();
        best[0] = best[0].min(begun.elapsed());
        let begun = Instant::now();
        two();
        best[1] = best[1].min(begun.elapsed());
    }
    best
}

fn main() {
    let mut pair = Pair::new();
    let (from, mut to) = (vec![1_u8; REGION], vec![0_u8; REGION]);
    let whole = u32::try_from(REGION).unwrap();
    let [ours, copy] =
        in_turn(300, || pair.write(whole), || black_box(&mut to).copy_from_slice(black_box(&from)));
    println!(
        "WRITE of 1 MiB at path MTU 4096, both ends: {:.1} us; plain copy: {:.1} us; ratio {:.3}",
        ours.as_secs_f64() * 1e6,
        copy.as_secs_f64() * 1e6,
        copy.as_secs_f64() / ours.as_secs_f64()
    );
    const MANY: u32 = 10_000;
    let mut small = Pair::new();
    let [ours, _] = in_turn(
        30,
        || {
            for _ in 0..MANY {
                small.write(8);
            }
        },
        || {},
    );
    println!(
        "WRITE of 8 bytes with its acknowledgement, both ends: {:.1} ns",
        ours.as_secs_f64() * 1e9 / f64::from(MANY)
    );
    assert!(to == from && pair.written() == from);
}
