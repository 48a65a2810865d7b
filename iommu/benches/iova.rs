//! What the allocator, the pool and the translation table cost.
//!
//! `cargo bench -p vdk-iommu --bench iova`; pin it to a processor (`taskset -c 1`). Each
//! figure is the minimum of the repetitions, which alternate with those of the baseline in
//! its row. The baseline does what the loop does without the operation; subtract it for the
//! operation alone. Read the ratios; the times belong to the machine and the run. A part of
//! a row's name after `--` chooses rows.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use vdk_hal::address::{ByteLength, HostAddress, Iova, IovaRange};
use vdk_hal::memory::Pages;
use vdk_iommu::soft::{SoftIommu, SoftIommuOptions};
use vdk_iommu::{
    AddressWidth, DmaPool, Domain, IovaAllocation, IovaAllocator, Placement, PoolOptions, PoolTranslation,
};

fn main() {
    println!("{:<58}{:>10}{:>14}", "", "ns", "baseline ns");
    allocator();
    pool();
    translation();
    fragmentation();
}

/// Allocate and free with 1000 live ranges.
fn allocator() {
    let mut one_size = live(|_| 1);
    row("iova: allocate + free 4 KiB, 1000 live of 4 KiB, hit", OPERATIONS, nothing, || {
        for _ in 0..OPERATIONS {
            let taken = one_size.0.allocate(black_box(ByteLength::SIZE_4K), EVERYWHERE).unwrap();
            keep(taken.range().start());
            one_size.0.free(taken).unwrap();
        }
    });
    let sizes: Vec<u64> = (0..OPERATIONS).map(|n| mixed(n) << 12).collect();
    let sum = || sizes.iter().for_each(|size| keep(*size));
    let mut mixed_sizes = live(mixed);
    row("iova: allocate + free, mixed sizes, 1000 live, hit", OPERATIONS, sum, || {
        for size in &sizes {
            let taken = mixed_sizes.0.allocate(ByteLength::new(*size), EVERYWHERE).unwrap();
            keep(taken.range().start());
            mixed_sizes.0.free(taken).unwrap();
        }
    });
    // Replacing a random one of the live ranges by one of another size: hits and misses.
    let (mut space, mut ranges) = live(mixed);
    row("iova: replace one of 1000 live, mixed sizes", OPERATIONS, sum, || {
        let mut state = SEED;
        for size in &sizes {
            let index = below(&mut state, ranges.len());
            let new = space.allocate(ByteLength::new(*size), EVERYWHERE).unwrap();
            space.free(core::mem::replace(&mut ranges[index], new)).unwrap();
        }
    });
    // Sizes that no magazine keeps: each goes to the holes.
    let (mut space, _ranges) = live(|n| 33 + mixed(n) * 2);
    row("iova: allocate + free, 132 KiB and more, 1000 live, miss", OPERATIONS, sum, || {
        for size in &sizes {
            let taken = space.allocate(ByteLength::new(size * 2 + (33 << 12)), EVERYWHERE).unwrap();
            space.free(black_box(taken)).unwrap();
        }
    });
    let (mut space, mut ranges) = live(|n| 33 + mixed(n) * 2);
    row("iova: replace one of 1000 live, 132 KiB and more, miss", OPERATIONS, sum, || {
        let mut state = SEED;
        for size in &sizes {
            let index = below(&mut state, ranges.len());
            let new = space.allocate(ByteLength::new(size * 2 + (33 << 12)), EVERYWHERE).unwrap();
            space.free(core::mem::replace(&mut ranges[index], new)).unwrap();
        }
    });
}

/// Take and give back, alone and in groups.
fn pool() {
    let domain = domain();
    let options = PoolOptions { slabs: 16, ..PoolOptions::default() };
    let mut pool = DmaPool::new(&domain, options).unwrap();
    let _live: Vec<_> = (0..1000).map(|_| pool.take(2048).unwrap()).collect();
    row("pool: take_reused + put 2 KiB", OPERATIONS, nothing, || {
        for _ in 0..OPERATIONS {
            let buffer = pool.take_reused(black_box(2048)).unwrap();
            keep(buffer.length());
            pool.put(buffer);
        }
    });
    let mut kept = None;
    row("pool: put the one before + take_reused 2 KiB", OPERATIONS, nothing, || {
        for _ in 0..OPERATIONS {
            let buffer = pool.take_reused(black_box(2048)).unwrap();
            if let Some(before) = black_box(&mut kept).replace(buffer) {
                pool.put(before);
            }
        }
    });
    for group in [8usize, 32] {
        let mut held = Vec::with_capacity(group);
        row(&format!("pool: take_many + put_many 2 KiB, {group} at a time"), OPERATIONS, nothing, || {
            for _ in 0..OPERATIONS / group as u64 {
                pool.take_many(black_box(2048), group, black_box(&mut held)).unwrap();
                pool.put_many(black_box(&mut held));
            }
        });
    }
    row("pool: take_reused + drop 2 KiB", OPERATIONS, nothing, || {
        for _ in 0..OPERATIONS {
            drop(black_box(pool.take_reused(black_box(2048)).unwrap()));
        }
    });
    let mut plain = vec![0u8; 2048];
    let mut zero = || (0..OPERATIONS).for_each(|_| black_box(&mut plain).fill(0));
    row("pool: take (zeroed) + put 2 KiB; baseline zeroes 2 KiB", OPERATIONS, &mut zero, || {
        for _ in 0..OPERATIONS {
            let buffer = pool.take(black_box(2048)).unwrap();
            pool.put(black_box(buffer));
        }
    });
}

/// Look-ups in pools on 2 MiB slabs and on base pages.
fn translation() {
    let domain = domain();
    for (name, pages, slab, slabs) in [
        ("256 slabs of 2 MiB", Pages::Transparent, 2u64 << 20, 256),
        ("512 MiB in one slab", Pages::Transparent, 512 << 20, 1),
        ("64 slabs of 64 KiB, base pages", Pages::Base, 64 << 10, 64),
    ] {
        let options = PoolOptions { slab: ByteLength::new(slab), slabs, max_slabs: slabs, pages };
        let mut pool = DmaPool::new(&domain, options).unwrap();
        let table = pool.translation();
        // One buffer for each slab tells where the slabs lie.
        let buffers: Vec<_> = (0..slabs)
            .map(|_| pool.take_reused(usize::try_from(slab.next_power_of_two()).unwrap()).unwrap())
            .collect();
        let slabs: Vec<u64> = buffers.iter().map(|buffer| buffer.host_address().as_u64()).collect();
        look_ups(name, &table, &slabs, slab);
    }
}

fn look_ups(name: &str, table: &PoolTranslation, slabs: &[u64], slab: u64) {
    let mut state = SEED;
    let random: Vec<HostAddress> = (0..OPERATIONS)
        .map(|_| {
            let start = slabs[below(&mut state, slabs.len())];
            HostAddress::new(start + below(&mut state, usize::try_from(slab).unwrap()) as u64)
        })
        .collect();
    let read = || random.iter().for_each(|address| keep(*address));
    row(&format!("translate: single, random, {name}"), OPERATIONS, read, || {
        for address in &random {
            black_box(table.translate(*address));
        }
    });
    let mut iovas = vec![Iova::default(); random.len()];
    let copy = || random.iter().for_each(|address| keep(address.as_u64()));
    row(&format!("translate: batch, random, {name}"), OPERATIONS, copy, || {
        table.translate_pages(black_box(&random), black_box(&mut iovas)).unwrap();
    });
    let per_slab = slab >> 12;
    let pages: Vec<HostAddress> = slabs
        .iter()
        .flat_map(|start| (0..per_slab).map(move |page| HostAddress::new(start + (page << 12))))
        .take(usize::try_from(OPERATIONS).unwrap())
        .collect();
    let rounds = OPERATIONS / pages.len() as u64;
    row(&format!("translate: batch, page after page, {name}"), rounds * pages.len() as u64, nothing, || {
        for _ in 0..rounds {
            table.translate_pages(black_box(&pages), black_box(&mut iovas[..pages.len()])).unwrap();
        }
    });
}

/// How the free space of an allocator looks after long use; counts, not times.
fn fragmentation() {
    println!("\n{:<28}{:>8}{:>16}{:>16}", "after churn at a load of", "holes", "free", "largest hole");
    let space = 1u64 << 32;
    for load in [50, 70, 90, 95] {
        let range = IovaRange::new(Iova::new(4096), ByteLength::new(space)).unwrap();
        let mut allocator = IovaAllocator::new(&[range], ByteLength::SIZE_4K, Placement::BottomUp);
        let (mut ranges, mut state, mut bytes) = (Vec::<IovaAllocation>::new(), SEED, 0);
        for n in 0..400_000 {
            if bytes > space / 100 * load {
                let freed = ranges.swap_remove(below(&mut state, ranges.len()));
                bytes -= freed.range().length().as_u64();
                allocator.free(freed).unwrap();
            } else if let Ok(taken) = allocator.allocate(ByteLength::new(mixed(n) << 12), EVERYWHERE) {
                bytes += taken.range().length().as_u64();
                ranges.push(taken);
            }
        }
        allocator.flush();
        let found = allocator.statistics();
        let mib = |length: ByteLength| format!("{} MiB", length.as_u64() >> 20);
        let (free, largest) = (mib(found.free_bytes), mib(found.largest_hole));
        println!("{:<28}{:>8}{free:>16}{largest:>16}", format!("{load} %"), found.holes);
    }
}

/// An allocator with 1000 live ranges of `pages(n)` pages and the holes of as many freed.
fn live(pages: impl Fn(u64) -> u64) -> (IovaAllocator, Vec<IovaAllocation>) {
    let range = IovaRange::from_bounds(Iova::new(0x1000), Iova::new((1 << 48) - 1)).unwrap();
    let mut allocator = IovaAllocator::new(&[range], ByteLength::SIZE_4K, Placement::BottomUp);
    let mut ranges: Vec<IovaAllocation> =
        (0..2000).map(|n| allocator.allocate(ByteLength::new(pages(n) << 12), EVERYWHERE).unwrap()).collect();
    let mut state = SEED;
    while ranges.len() > 1000 {
        let index = below(&mut state, ranges.len());
        allocator.free(ranges.swap_remove(index)).unwrap();
    }
    (allocator, ranges)
}

/// A mix of sizes in pages: mostly small ones, powers of two and others, up to 2 MiB.
fn mixed(n: u64) -> u64 {
    [1, 1, 2, 1, 16, 4, 3, 1, 8, 32, 1, 7, 64, 2, 1, 512][usize::try_from(n % 16).unwrap()]
}

fn domain() -> Domain {
    Domain::new(SoftIommu::new(SoftIommuOptions::default()).domain(), AddressWidth::FULL).unwrap()
}

/// Prints the least time of an operation beside that of the baseline; both alternate.
fn row(name: &str, operations: u64, mut baseline: impl FnMut(), mut operation: impl FnMut()) {
    let chosen = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if chosen.is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let (mut least, mut least_baseline) = (Duration::MAX, Duration::MAX);
    operation();
    for _ in 0..REPETITIONS {
        least_baseline = least_baseline.min(time(&mut baseline));
        least = least.min(time(&mut operation));
    }
    let each = |time: Duration| time.as_secs_f64() * 1e9 / operations as f64;
    println!("{name:<58}{:>10.2}{:>14.2}", each(least), each(least_baseline));
}

fn time(work: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The loop alone.
fn nothing() {
    (0..OPERATIONS).for_each(keep);
}

fn keep<T>(value: T) {
    let _ = black_box(value);
}

fn below(state: &mut u64, limit: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 16).unwrap() % limit
}

const EVERYWHERE: Iova = Iova::new(u64::MAX);

const OPERATIONS: u64 = 100_000;

const REPETITIONS: u32 = 15;

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
