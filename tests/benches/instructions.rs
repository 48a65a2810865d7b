//! The instructions that the hot paths need: the regression gate, since time on a shared
//! machine says nothing.
//!
//! Each kernel runs [`ROUNDS`] times, and the count recorded beside it is of all rounds
//! with their loop. A run fails when it needs 5 % more; record the new count only with a
//! reason in the commit. `tests/run --only instructions` runs it under valgrind.

#![expect(missing_docs, reason = "what the macros of the harness declare has none")]

use std::hint::black_box;
use std::sync::Arc;

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, main};
use gungraun::{library_benchmark, library_benchmark_group};
use vdk_hal::address::{ByteLength, Iova, RequesterId};
use vdk_hal::barrier;
use vdk_hal::dma::{DmaMapper, Permissions};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::mmio::{Doorbell, Kick, MappedBlock};
use vdk_iommu::soft::{BusMaster, BusMasterGate, SoftIommu, SoftIommuOptions};

/// How often each kernel runs.
const ROUNDS: u64 = 1000;

/// Fails above 5 % more than `recorded` instructions.
fn recorded(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions + instructions / 20;
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)]));
    config
}

vdk_hal::register_block! {
    /// One register.
    struct Registers(0x40) {
        /// Thirty-two bits.
        WORD: u32 @ 0x14, ReadWrite;
    }
}

fn page() -> SharedMemory {
    SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap()
}

fn registers() -> MappedBlock<Registers> {
    MappedBlock::new(&page()).unwrap()
}

#[library_benchmark(config = recorded(7_009))]
#[bench::mapped(registers())]
fn register_read(block: MappedBlock<Registers>) -> MappedBlock<Registers> {
    for _ in 0..ROUNDS {
        black_box(black_box(&block).read(Registers::WORD));
    }
    block
}

#[library_benchmark(config = recorded(8_009))]
#[bench::mapped(registers())]
fn register_write(block: MappedBlock<Registers>) -> MappedBlock<Registers> {
    for _ in 0..ROUNDS {
        black_box(&block).write(Registers::WORD, black_box(7));
    }
    block
}

fn bell() -> Doorbell<u32> {
    Doorbell::mapped(page(), Some(Kick::new().unwrap())).unwrap()
}

#[library_benchmark(config = recorded(20_033))]
#[bench::device_awake(bell())]
fn doorbell_ring(bell: Doorbell<u32>) -> Doorbell<u32> {
    for _ in 0..ROUNDS {
        black_box(&bell).ring(barrier::doorbell(), black_box(7)).unwrap();
    }
    bell
}

/// A device that may reach two regions of 1 MiB, warmed up.
fn device() -> BusMaster {
    let domain = SoftIommu::new(SoftIommuOptions::default()).domain();
    for (iova, permissions) in [(SOURCE, Permissions::Read), (DESTINATION, Permissions::Write)] {
        let memory = SharedMemory::allocate(ByteLength::new(1 << 20), Pages::Base).unwrap();
        domain.map(iova, &memory, permissions).unwrap();
    }
    let gate = BusMasterGate::new();
    gate.open();
    let mut device = domain.bus_master(RequesterId::new(0x0100), Arc::clone(&gate));
    device.copy(DESTINATION, SOURCE, 64).unwrap();
    device
}

#[library_benchmark(config = recorded(43_157))]
#[bench::hit(device())]
fn soft_iommu_burst_copy_of_64_bytes(mut device: BusMaster) -> BusMaster {
    let mut burst = device.burst().unwrap();
    for round in 0..ROUNDS {
        let offset = ByteLength::new(round * 64);
        let to = DESTINATION.checked_add(offset).unwrap();
        let from = SOURCE.checked_add(offset).unwrap();
        burst.copy(black_box(to), black_box(from), 64).unwrap();
    }
    drop(burst);
    device
}

#[library_benchmark(config = recorded(33_117))]
#[bench::enter_and_leave(device())]
fn soft_iommu_burst(mut device: BusMaster) -> BusMaster {
    for _ in 0..ROUNDS {
        black_box(black_box(&mut device).burst().unwrap());
    }
    device
}

const SOURCE: Iova = Iova::new(1 << 30);
const DESTINATION: Iova = Iova::new(2 << 30);

library_benchmark_group!(
    name = registers_and_doorbells,
    benchmarks = [register_read, register_write, doorbell_ring]
);
library_benchmark_group!(
    name = software_iommu,
    benchmarks = [soft_iommu_burst_copy_of_64_bytes, soft_iommu_burst]
);

main!(library_benchmark_groups = [registers_and_doorbells, software_iommu]);
