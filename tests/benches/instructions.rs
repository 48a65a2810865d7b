//! The instructions that the hot paths need: the regression gate, since time on a shared
//! machine says nothing.
//!
//! Each kernel runs [`ROUNDS`] times, and the count recorded beside it is of all rounds
//! with their loop. A run fails when it needs 5 % more; record the new count only with a
//! reason in the commit. It also fails when a kernel calls the system or allocates. `tests/run --only instructions` runs it under valgrind.

#![expect(missing_docs, reason = "what the macros of the harness declare has none")]

#[path = "../../firmware-stubs/benches/pair/mod.rs"]
mod pair;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use gungraun::{Callgrind, Dhat, DhatMetric, EventKind, LibraryBenchmarkConfig, main};
use gungraun::{library_benchmark, library_benchmark_group};
use pair::Pair;
use vdk_descriptors::roce::{
    Bth, Ethernet, EthernetAddress, Extension, Frame, Headers, Network, Opcode, Psn, Qpn,
};
use vdk_descriptors::sg::{CopySegment, SgEntry, SgLimits, SgList, refine};
use vdk_driver::ioat::{Channel, ChannelOptions, Ioat};
use vdk_driver::kit::Session;
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::address::{ByteLength, HostAddress, Iova, IovaRange, RequesterId};
use vdk_hal::barrier;
use vdk_hal::dma::{DmaMapper, Permissions};
use vdk_hal::function::PciNode;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::mmio::{Doorbell, Kick, MappedBlock};
use vdk_iommu::soft::{BusMaster, BusMasterGate, SoftIommu, SoftIommuOptions};
use vdk_iommu::{
    AddressWidth, Bidirectional, DmaPool, DmaRegion, Domain, IovaAllocation, IovaAllocator, Placement,
    PoolOptions, PoolTranslation,
};

/// How often each kernel runs.
const ROUNDS: u64 = 1000;

/// Fails above 5 % more than `recorded` instructions, at one allocation on the heap, and at
/// more system calls than the device's thread may make meanwhile, which are counted too.
fn recorded(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions + instructions / 20;
    let mut callgrind = Callgrind::with_args(["collect-systime=yes"]);
    callgrind.hard_limits([(EventKind::Ir, limit), (EventKind::SysCount, ROUNDS / 100)]);
    let mut dhat = Dhat::default();
    dhat.hard_limits([(DhatMetric::TotalBlocks, 0u64)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind).tool(dhat);
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

#[library_benchmark(config = recorded(19_028))]
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

#[library_benchmark(config = recorded(32_115))]
#[bench::enter_and_leave(device())]
fn soft_iommu_burst(mut device: BusMaster) -> BusMaster {
    for _ in 0..ROUNDS {
        black_box(black_box(&mut device).burst().unwrap());
    }
    device
}

/// 256 places of 4 KiB of which no two touch, and a list with room for them.
fn scattered() -> (Vec<SgEntry>, SgList) {
    let pieces = (0..256)
        .map(|index| SgEntry { iova: Iova::new(index * 0x3000 + 0x1000), length: ByteLength::SIZE_4K })
        .collect();
    let limits = SgLimits { max_segment: ByteLength::new(1 << 20), ..SgLimits::NONE };
    (pieces, SgList::with_capacity(&limits, 256).unwrap())
}

fn built() -> SgList {
    let (pieces, mut list) = scattered();
    list.push_all(&pieces).unwrap();
    list
}

#[library_benchmark(config = recorded(752_799))]
#[bench::of_256(scattered())]
fn sg_list_build(parts: (Vec<SgEntry>, SgList)) -> (Vec<SgEntry>, SgList) {
    let (pieces, mut list) = parts;
    for _ in 0..ROUNDS / 10 {
        list.clear();
        list.push_all(black_box(&pieces)).unwrap();
    }
    (pieces, list)
}

#[library_benchmark(config = recorded(124_443))]
#[bench::of_256(built())]
fn sg_list_walk(list: SgList) -> SgList {
    for _ in 0..ROUNDS / 10 {
        let sum = black_box(&list).entries().iter().fold(0u64, |sum, entry| {
            sum.wrapping_add(entry.iova.as_u64()).wrapping_add(entry.length.as_u64())
        });
        black_box(sum);
    }
    list
}

#[library_benchmark(config = recorded(746_476))]
#[bench::of_256((built(), built()))]
fn sg_list_refine(lists: (SgList, SgList)) -> (SgList, SgList) {
    for _ in 0..ROUNDS / 10 {
        for segment in refine(black_box(&lists.0), &lists.1, ByteLength::new(1 << 20)).unwrap() {
            black_box(segment);
        }
    }
    lists
}

/// An allocator with 1000 live ranges of 4 KiB and a warm magazine.
fn addresses() -> (IovaAllocator, Vec<IovaAllocation>) {
    let all = IovaRange::from_bounds(Iova::new(0x1000), LAST).unwrap();
    let mut allocator = IovaAllocator::new(&[all], ByteLength::SIZE_4K, Placement::BottomUp);
    let live = (0..1000).map(|_| allocator.allocate(ByteLength::SIZE_4K, LAST).unwrap()).collect();
    let warm = allocator.allocate(ByteLength::SIZE_4K, LAST).unwrap();
    allocator.free(warm).unwrap();
    (allocator, live)
}

#[library_benchmark(config = recorded(113_168))]
#[bench::hit(addresses())]
fn iova_allocate_and_free(
    parts: (IovaAllocator, Vec<IovaAllocation>),
) -> (IovaAllocator, Vec<IovaAllocation>) {
    let (mut allocator, live) = parts;
    for _ in 0..ROUNDS {
        let allocation = allocator.allocate(black_box(ByteLength::SIZE_4K), LAST).unwrap();
        allocator.free(black_box(allocation)).unwrap();
    }
    (allocator, live)
}

fn pool() -> DmaPool {
    let domain = Domain::new(SoftIommu::new(SoftIommuOptions::default()).domain(), width()).unwrap();
    let options = PoolOptions { pages: Pages::Base, ..PoolOptions::default() };
    let mut pool = DmaPool::new(&domain, options).unwrap();
    let warm = pool.take(2048).unwrap();
    pool.put(warm);
    pool
}

fn width() -> AddressWidth {
    AddressWidth::new(64).unwrap()
}

#[library_benchmark(config = recorded(61_196))]
#[bench::warm(pool())]
fn pool_take_and_put(mut pool: DmaPool) -> DmaPool {
    for _ in 0..ROUNDS {
        let buffer = pool.take_reused(black_box(2048)).unwrap();
        pool.put(black_box(buffer));
    }
    pool
}

/// A pool, its table, and the addresses of 256 of its pages that follow one another.
type Pages256 = (DmaPool, Arc<PoolTranslation>, Vec<HostAddress>);

fn pages_of_a_pool() -> Pages256 {
    let mut pool = pool();
    let buffer = pool.take(1 << 20).unwrap();
    let pages = (0..256).map(|page| buffer.host_address().as_u64() + page * 4096);
    let pages = pages.map(HostAddress::new).collect();
    pool.put(buffer);
    let translation = pool.translation();
    (pool, translation, pages)
}

#[library_benchmark(config = recorded(14_783))]
#[bench::one_by_one(pages_of_a_pool())]
fn pool_translate(parts: Pages256) -> Pages256 {
    for page in &parts.2 {
        black_box(parts.1.translate(black_box(*page)).unwrap());
    }
    parts
}

#[library_benchmark(config = recorded(3_012))]
#[bench::batch_of_256((pages_of_a_pool(), vec![Iova::new(0); 256]))]
fn pool_translate_pages(parts: (Pages256, Vec<Iova>)) -> (Pages256, Vec<Iova>) {
    let (parts, mut iovas) = parts;
    parts.1.translate_pages(black_box(&parts.2), black_box(&mut iovas)).unwrap();
    (parts, iovas)
}

/// A channel of an emulated I/OAT with room for all rounds, and a copy to post.
struct Engine {
    channel: Channel<u64>,
    segment: [CopySegment; 1],
    node: Arc<StubNode>,
    _memory: DmaRegion<Bidirectional>,
}

/// The device stays awake, so that no call to the kernel is among what is counted.
fn engine() -> Engine {
    let options = StubOptions { spin: Duration::from_secs(600), ..StubOptions::default() };
    let node = StubNode::new(StubKind::Ioat, options).unwrap();
    let opened: Arc<dyn PciNode> = node.clone();
    let ioat = Ioat::start(Session::open(&opened, "instructions").unwrap()).unwrap();
    let memory = ioat.domain().map(page()).unwrap();
    let channel = ioat.channel(0, ChannelOptions { depth: 2047, ..ChannelOptions::default() }).unwrap();
    let destination = Iova::new(memory.iova().as_u64() + 2048);
    let segment = [CopySegment { source: memory.iova(), destination, length: 64 }];
    Engine { channel, segment, node, _memory: memory }
}

/// The same when the device has done all rounds and nobody has looked.
fn finished() -> Engine {
    let mut engine = engine();
    for round in 0..ROUNDS {
        engine.channel.copy(&engine.segment, round).unwrap();
    }
    let before = engine.node.statistics();
    engine.channel.commit().unwrap();
    loop {
        let now = engine.node.statistics();
        if now.descriptors >= before.descriptors + ROUNDS && now.completions > before.completions {
            break;
        }
        std::thread::yield_now();
    }
    // The last completion word comes after its descriptor was counted.
    std::thread::sleep(Duration::from_millis(100));
    engine
}

#[library_benchmark(config = recorded(72_809))]
#[bench::of_64_bytes(engine())]
fn ioat_post_copy(mut engine: Engine) -> Engine {
    for round in 0..ROUNDS {
        engine.channel.copy(black_box(&engine.segment), round).unwrap();
    }
    engine
}

#[library_benchmark(config = recorded(138_139))]
#[bench::of_64_bytes(engine())]
fn ioat_post_and_commit_copy(mut engine: Engine) -> Engine {
    for round in 0..ROUNDS {
        engine.channel.copy(black_box(&engine.segment), round).unwrap();
        engine.channel.commit().unwrap();
    }
    engine
}

#[library_benchmark(config = recorded(78_259))]
#[bench::one_by_one(engine())]
fn ioat_post_copy_each(mut engine: Engine) -> Engine {
    for round in 0..ROUNDS {
        let mut copies = std::iter::once((black_box(engine.segment[0]), round));
        engine.channel.copy_each(&mut copies).unwrap();
    }
    engine
}

#[library_benchmark(config = recorded(52_503))]
#[bench::of_32(engine())]
fn ioat_post_copy_each_in_batches(mut engine: Engine) -> Engine {
    let segment = engine.segment[0];
    for batch in 0..ROUNDS / 32 {
        let mut copies = (0..32).map(|place| (black_box(segment), 32 * batch + place));
        assert_eq!(engine.channel.copy_each(&mut copies).ok(), Some(32));
    }
    engine
}

#[library_benchmark(config = recorded(59_167))]
#[bench::one_by_one(finished())]
fn ioat_poll(mut engine: Engine) -> Engine {
    for _ in 0..ROUNDS {
        let ended = engine.channel.poll(1, |end| {
            black_box(end);
        });
        assert_eq!(ended, Ok(1));
    }
    engine
}

/// A SEND with 1 KiB, and the room for its frame.
type FrameOf1KiB = (Headers, Vec<u8>, Vec<u8>);

fn frame_of_1_kib() -> FrameOf1KiB {
    let (from, to) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let headers = Headers {
        ethernet: Ethernet::new(EthernetAddress([2, 0, 0, 0, 0, 1]), EthernetAddress([2, 0, 0, 0, 0, 2])),
        network: Network::new(from, to, 0xc000).unwrap(),
        bth: Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11).unwrap(), Psn::new(1)),
        extension: Extension::None,
    };
    let (payload, mut buffer) = (vec![7; 1024], vec![0; headers.frame_length(1024)]);
    Frame { headers, payload: &payload }.build(&mut buffer).unwrap();
    (headers, payload, buffer)
}

#[library_benchmark(config = recorded(1_172_068))]
#[bench::of_1_kib(frame_of_1_kib())]
fn roce_frame_build(parts: FrameOf1KiB) -> FrameOf1KiB {
    let (headers, payload, mut buffer) = parts;
    for _ in 0..ROUNDS {
        let frame = Frame { headers: *black_box(&headers), payload: &payload };
        frame.build(black_box(&mut buffer)).unwrap();
    }
    (headers, payload, buffer)
}

#[library_benchmark(config = recorded(1_062_067))]
#[bench::of_1_kib(frame_of_1_kib())]
fn roce_frame_parse(parts: FrameOf1KiB) -> FrameOf1KiB {
    for _ in 0..ROUNDS {
        black_box(Frame::parse(black_box(&parts.2)).unwrap());
    }
    parts
}

/// Two connected ends of which one has written all there is, so that nothing grows any more.
fn connected() -> Pair {
    let mut pair = Pair::new();
    pair.write(LONG_WRITE);
    // What the client's memory is filled with.
    assert_eq!(pair.written()[pair::REGION - 1], 1);
    pair
}

/// 1 MiB: 256 packets at path MTU 4096.
const LONG_WRITE: u32 = 1 << 20;

#[library_benchmark(config = recorded(3_274_110))]
#[bench::of_8_bytes(connected())]
fn roce_write_and_acknowledge(mut pair: Pair) -> Pair {
    for _ in 0..ROUNDS {
        pair.write(black_box(8));
    }
    pair
}

// Four WRITEs, so 1024 packets.
#[library_benchmark(config = recorded(6_364_046))]
#[bench::of_1_mib(connected())]
fn roce_packets_of_long_write(mut pair: Pair) -> Pair {
    for _ in 0..4 {
        pair.write(black_box(LONG_WRITE));
    }
    pair
}

const LAST: Iova = Iova::new((1 << 48) - 1);
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

library_benchmark_group!(name = lists, benchmarks = [sg_list_build, sg_list_walk, sg_list_refine]);
library_benchmark_group!(name = addresses_of_a_domain, benchmarks = [iova_allocate_and_free]);
library_benchmark_group!(
    name = pool_of_buffers,
    benchmarks = [pool_take_and_put, pool_translate, pool_translate_pages]
);
library_benchmark_group!(
    name = copy_engine,
    benchmarks = [
        ioat_post_copy,
        ioat_post_and_commit_copy,
        ioat_post_copy_each,
        ioat_post_copy_each_in_batches,
        ioat_poll
    ]
);
library_benchmark_group!(name = roce_frames, benchmarks = [roce_frame_build, roce_frame_parse]);
library_benchmark_group!(
    name = roce_core,
    benchmarks = [roce_write_and_acknowledge, roce_packets_of_long_write]
);

main!(
    library_benchmark_groups = [
        registers_and_doorbells,
        software_iommu,
        lists,
        addresses_of_a_domain,
        pool_of_buffers,
        copy_engine,
        roce_frames,
        roce_core
    ]
);
