//! What an access through the software IOMMU costs, beside plain copies of the same memory.
//!
//! `cargo bench -p vdk-iommu --bench soft`; pin it to a processor (`taskset -c 1`). Each
//! figure is the minimum of the repetitions, and the plain copy and the translated one of a
//! row alternate. Read the ratios; the times belong to the machine and the run.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vdk_hal::address::{ByteLength, Iova, IovaRange, RequesterId};
use vdk_hal::dma::{DmaMapper, Permissions};
use vdk_hal::memory::{Pages, PinnedMemory, SharedMemory};
use vdk_iommu::soft::{BusMaster, BusMasterGate, SoftDomain, SoftIommu, SoftIommuOptions};

fn main() {
    println!("{:<58}{:>12}{:>12}{:>8}", "", "ns", "plain ns", "ratio");
    copies();
    fills();
    streams();
    bursts();
    misses();
    mappings();
}

/// Copies inside one burst, both last-hit entries right.
fn copies() {
    for (length, count) in [(64u64, 1024u64), (256, 512), (4096, 32), (65536, 4)] {
        let size = ByteLength::new((length * count).max(4096));
        let mut source = PinnedMemory::allocate(size, Pages::Base).unwrap();
        let mut destination = PinnedMemory::allocate(size, Pages::Base).unwrap();
        source.fill(1);
        let (mut plain, mut translated) = (Duration::MAX, Duration::MAX);
        let rounds = (20_000_000 / (length * count)).clamp(4, 400);
        for _ in 0..REPETITIONS {
            plain = plain.min(time(rounds * count, || {
                for _ in 0..rounds {
                    let (from, to) = (black_box(&source[..]), black_box(&mut destination[..]));
                    let length = usize::try_from(length).unwrap();
                    for (to, from) in to.chunks_exact_mut(length).zip(from.chunks_exact(length)) {
                        to.copy_from_slice(from);
                    }
                }
            }));
            let machine = Machine::new();
            let (from, to) = (source.share(), destination.share());
            machine.domain.map(FROM, &from, Permissions::Read).unwrap();
            machine.domain.map(TO, &to, Permissions::Write).unwrap();
            let mut device = machine.device();
            translated = translated.min(time(rounds * count, || {
                for _ in 0..rounds {
                    let mut burst = device.burst().unwrap();
                    for index in 0..count {
                        let offset = black_box(index) * length;
                        burst.copy(at(TO, offset), at(FROM, offset), black_box(length)).unwrap();
                    }
                }
            }));
            drop(device);
            machine.unmap(FROM, size);
            machine.unmap(TO, size);
            (source, destination) = (from.try_into_pinned().unwrap(), to.try_into_pinned().unwrap());
        }
        row(&format!("burst: copy {length} B, {count} places, last-hit"), translated, Some(plain));
    }
}

/// Fills inside one burst, beside a fill of private memory.
fn fills() {
    let machine = Machine::new();
    machine.allocate(TO, 16);
    let mut device = machine.device();
    let mut private = vec![0u64; 8192];
    for length in [64u64, 4096, 65536] {
        let (mut plain, mut translated) = (Duration::MAX, Duration::MAX);
        for _ in 0..REPETITIONS * 10 {
            let words = usize::try_from(length / 8).unwrap();
            plain = plain.min(time(256, || {
                for word in 0..256 {
                    black_box(&mut private[..words]).fill(black_box(word));
                }
            }));
            translated = translated.min(time(256, || {
                let mut burst = device.burst().unwrap();
                for word in 0..256 {
                    burst.fill(black_box(TO), length, black_box(word)).unwrap();
                }
            }));
        }
        row(&format!("burst: fill {length} B (beside: [u64]::fill)"), translated, Some(plain));
    }
}

/// What a copy engine does for a descriptor of 64 B: read it, copy, write the completion.
fn streams() {
    let machine = Machine::new();
    machine.allocate(FROM, 64);
    machine.allocate(TO, 64);
    machine.allocate(RING, 64);
    machine.allocate(DONE, 1);
    let mut device = machine.device();
    let mut descriptor = [0; 64];
    let time = best(1024, || {
        let mut burst = device.burst().unwrap();
        for index in 0..1024 {
            let offset = black_box(index) * 64;
            burst.read(at(RING, offset), &mut descriptor).unwrap();
            burst.copy(at(TO, offset), at(FROM, offset), 64).unwrap();
            burst.store_u64(DONE, black_box(index)).unwrap();
        }
    });
    row("burst: read 64 B + copy 64 B + store 8 B, 4 mappings", time, None);
    for (name, mappings) in [("2 mappings", 2), ("8 mappings", 8), ("32 mappings", 32), ("256 mappings", 256)]
    {
        let machine = Machine::new();
        for index in 0..mappings {
            machine.allocate(at(FROM, index * 0x1_0000), 4);
        }
        machine.allocate(TO, 64);
        let mut device = machine.device();
        let mut state = 1;
        let places: Vec<u64> = (0..1024)
            .map(|_| random(&mut state) % mappings * 0x1_0000 + random(&mut state) % 256 * 64)
            .collect();
        let time = best(1024, || {
            let mut burst = device.burst().unwrap();
            for (index, place) in (0..).zip(&places) {
                burst.copy(at(TO, index * 64), at(FROM, *place), 64).unwrap();
            }
        });
        row(&format!("burst: copy 64 B from a random one of {name}"), time, None);
    }
}

/// What a burst costs itself.
fn bursts() {
    let machine = Machine::new();
    machine.allocate(FROM, 1);
    let mut device = machine.device();
    let empty = best(1024, || {
        for _ in 0..1024 {
            black_box(&device.burst().unwrap());
        }
    });
    row("burst: begin and end", empty, None);
    let load = best(1024, || {
        for _ in 0..1024 {
            black_box(device.load_u64(black_box(FROM)).unwrap());
        }
    });
    row("bus master: load 8 B, one burst each", load, None);
    let copy = best(1024, || {
        for _ in 0..1024 {
            device.copy(black_box(at(FROM, 64)), black_box(FROM), black_box(64)).unwrap();
        }
    });
    row("bus master: copy 64 B, one burst each", copy, None);
}

/// Accesses that find nothing in the IOTLB.
fn misses() {
    let machine = Machine::new();
    for index in 0..4096 {
        machine.allocate(at(FROM, index * 0x2000), 1);
    }
    let mut device = machine.device();
    let mut state = 1;
    let places: Vec<Iova> = (0..4096).map(|_| at(FROM, random(&mut state) % 4096 * 0x2000)).collect();
    let time = best(4096, || {
        let mut burst = device.burst().unwrap();
        for place in &places {
            black_box(burst.translate(*place, false).unwrap());
        }
    });
    row("burst: translate, random of 4096 mappings of 4 KiB", time, None);
}

/// Making and ending a mapping.
fn mappings() {
    for (name, pages) in [("4 KiB", 1), ("2 MiB", 512), ("1 GiB", 1 << 18)] {
        let machine = Machine::new();
        let memory = SharedMemory::allocate(ByteLength::new(pages * 4096), Pages::Base).unwrap();
        let time = best(64, || {
            for _ in 0..64 {
                machine.domain.map(FROM, &memory, Permissions::ReadWrite).unwrap();
                machine.unmap(FROM, memory.length());
            }
        });
        row(&format!("map and unmap {name}"), time, None);
    }
}

struct Machine {
    domain: Arc<SoftDomain>,
    gate: Arc<BusMasterGate>,
}

impl Machine {
    fn new() -> Self {
        let gate = BusMasterGate::new();
        gate.open();
        Self { domain: SoftIommu::new(SoftIommuOptions::default()).domain(), gate }
    }

    fn device(&self) -> BusMaster {
        self.domain.bus_master(RequesterId::new(8), Arc::clone(&self.gate))
    }

    fn allocate(&self, iova: Iova, pages: u64) {
        let memory = SharedMemory::allocate(ByteLength::new(pages * 4096), Pages::Base).unwrap();
        memory.populate().unwrap();
        self.domain.map(iova, &memory, Permissions::ReadWrite).unwrap();
    }

    fn unmap(&self, iova: Iova, length: ByteLength) {
        self.domain.unmap(IovaRange::new(iova, length).unwrap()).unwrap();
    }
}

fn best(operations: u64, mut work: impl FnMut()) -> Duration {
    (0..REPETITIONS * 10).map(|_| time(operations, &mut work)).min().unwrap()
}

/// The time of one of `operations`, in units of a thousandth of a nanosecond.
fn time(operations: u64, work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed() * 1000 / u32::try_from(operations).unwrap()
}

fn row(name: &str, time: Duration, plain: Option<Duration>) {
    let nanoseconds = |time: Duration| time.as_secs_f64() * 1e6;
    print!("{name:<58}{:>12.2}", nanoseconds(time));
    match plain {
        Some(plain) => {
            println!("{:>12.2}{:>8.2}", nanoseconds(plain), nanoseconds(plain) / nanoseconds(time))
        }
        None => println!(),
    }
}

fn at(start: Iova, offset: u64) -> Iova {
    Iova::new(start.as_u64() + offset)
}

/// Marsaglia's xorshift.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

const FROM: Iova = Iova::new(0x1_0000_0000);
const TO: Iova = Iova::new(0x2_0000_0000);
const RING: Iova = Iova::new(0x3_0000_0000);
const DONE: Iova = Iova::new(0x3_1000_0000);
const REPETITIONS: u32 = 15;
