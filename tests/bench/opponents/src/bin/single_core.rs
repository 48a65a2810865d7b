//! Rows of one core: lists and chains of 256 (F), and the address allocator (J).

use std::hint::black_box;

use anyhow::{Context, Result, anyhow, ensure};
use vdk_descriptors::ioat::IoatDescriptor;
use vdk_descriptors::sg::{SgEntry, SgLimits, SgList};
use vdk_hal::address::{ByteLength, Iova, IovaRange, RequesterId};
use vdk_hal::dma::{DmaMapper, Permissions};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::soft::{BusMaster, BusMasterGate, SoftIommu, SoftIommuOptions};
use vdk_iommu::{IovaAllocator, Placement};
use vdk_opponents::{Side, alternate, print_ratios};
use zerocopy::{FromBytes, IntoBytes};

/// Many short blocks: some of them end before the system takes the core away.
const BLOCKS: usize = 101;
const CHAIN: u64 = 256;
const LIVE: usize = 1000;
const DESCRIPTORS: u64 = 1 << 30;
const LAST: Iova = Iova::new((1 << 48) - 1);

fn main() -> Result<()> {
    let virtio_chain = std::env::args().nth(1).context("usage: single_core PATH-OF-VIRTIO-CHAIN")?;
    chains(&virtio_chain)?;
    addresses()
}

fn chains(virtio_chain: &str) -> Result<()> {
    let pieces: Vec<SgEntry> = (0..CHAIN)
        .map(|index| SgEntry { iova: Iova::new(0x10_0000 + index * 0x2000), length: ByteLength::SIZE_4K })
        .collect();
    let limits = SgLimits { max_segment: ByteLength::new(1 << 20), ..SgLimits::NONE };
    let mut list = SgList::with_capacity(&limits, pieces.len())?;
    list.push_all(&pieces)?;
    let walked = list.clone();
    let (mut device, bytes) = device_with_chain(&pieces)?;

    let expected = pieces.iter().fold(0u64, |sum, piece| sum.wrapping_add(piece.iova.as_u64()));
    ensure!(walk_device(&mut device)? == expected, "the device walked another chain");

    let mut sides = [
        Side::new("vdk: follow 256 descriptors of 64 bytes through the soft IOMMU", 300, || {
            black_box(walk_device(&mut device).expect("the chain is mapped"));
        }),
        Side::program("virtio-queue 0.18: pop, walk 256, add_used", virtio_chain),
        Side::new("vdk: walk the entries of a list of 256", 3000, || {
            let entries = black_box(&walked).entries().iter();
            black_box(entries.fold(0u64, |sum, entry| sum.wrapping_add(entry.iova.as_u64())));
        }),
        Side::new("vdk: build a list of 256", 1000, || {
            list.clear();
            list.push_all(black_box(&pieces)).expect("256 pieces fit");
        }),
    ];
    let least = alternate(&mut sides, BLOCKS)?;
    let size = format!("the chain of vdk is {} bytes, that of virtio 16 bytes a descriptor", bytes);
    print_ratios(
        "F: scatter-gather chain of 256",
        &sides,
        &least,
        &[
            "the first two rows are the same work: the device's side of a chain in shared memory, each access checked",
            "virtio-queue bounds the length of a chain and answers in the used ring; the walk of vdk trusts `next` to end and does neither",
            &size,
        ],
    );
    Ok(())
}

/// A device that reaches a chain of one copy descriptor for each piece.
fn device_with_chain(pieces: &[SgEntry]) -> Result<(BusMaster, usize)> {
    let bytes = pieces.len() * 64;
    let memory = SharedMemory::allocate(ByteLength::from_usize(bytes), Pages::Base)?;
    for (index, piece) in pieces.iter().enumerate() {
        let next = if index + 1 == pieces.len() { 0 } else { DESCRIPTORS + (index as u64 + 1) * 64 };
        let descriptor =
            IoatDescriptor { size: 4096, source: piece.iova.as_u64(), next, ..Default::default() };
        memory.write(index * 64, descriptor.as_bytes())?;
    }
    let domain = SoftIommu::new(SoftIommuOptions::default()).domain();
    domain.map(Iova::new(DESCRIPTORS), &memory, Permissions::Read)?;
    let gate = BusMasterGate::new();
    gate.open();
    Ok((domain.bus_master(RequesterId::new(0x0100), gate), bytes))
}

fn walk_device(device: &mut BusMaster) -> Result<u64> {
    let mut burst = device.burst()?;
    let (mut sum, mut next) = (0u64, DESCRIPTORS);
    while next != 0 {
        let mut bytes = [0; 64];
        burst.read(Iova::new(next), &mut bytes)?;
        let descriptor = IoatDescriptor::read_from_bytes(&bytes).ok().context("64 bytes are a descriptor")?;
        sum = sum.wrapping_add(descriptor.source);
        next = descriptor.next;
    }
    Ok(sum)
}

fn addresses() -> Result<()> {
    let all = IovaRange::from_bounds(Iova::new(0x1000), LAST).context("a range")?;
    let mut ours = IovaAllocator::new(&[all], ByteLength::SIZE_4K, Placement::BottomUp);
    let mut live = Vec::new();
    let mut interval =
        vm_allocator::AddressAllocator::new(0x1000, 1 << 40).map_err(|error| anyhow!("{error}"))?;
    let mut ranges = range_alloc::RangeAllocator::new(0x1000u64..1 << 40);
    let mut offsets = offset_allocator::Allocator::<u32>::new(1 << 20);
    for _ in 0..LIVE {
        live.push(ours.allocate(ByteLength::SIZE_4K, LAST)?);
        interval
            .allocate(4096, 4096, vm_allocator::AllocPolicy::FirstMatch)
            .map_err(|error| anyhow!("{error}"))?;
        ranges.allocate_range(4096).map_err(|error| anyhow!("{error:?}"))?;
        offsets.allocate(1).context("one unit")?;
    }
    let mut sides = [
        Side::new("vdk: IovaAllocator", 20_000, || {
            let range = ours.allocate(black_box(ByteLength::SIZE_4K), LAST).expect("a free page");
            ours.free(black_box(range)).expect("an own range");
        }),
        Side::new("vm-allocator 0.1, first match", 100, || {
            let policy = vm_allocator::AllocPolicy::FirstMatch;
            let range = interval.allocate(black_box(4096), 4096, policy).expect("a free page");
            interval.free(black_box(&range)).expect("an own range");
        }),
        Side::new("range-alloc 0.1 (frees the latest range: its best case)", 20_000, || {
            let range = ranges.allocate_range(black_box(4096)).expect("a free page");
            ranges.free_range(black_box(range));
        }),
        Side::new("offset-allocator 0.2, one unit", 20_000, || {
            let unit = offsets.allocate(black_box(1)).expect("a free unit");
            offsets.free(black_box(unit));
        }),
    ];
    let least = alternate(&mut sides, BLOCKS)?;
    print_ratios(
        "J: allocate and free one page with 1000 live",
        &sides,
        &least,
        &[
            "ours also aligns naturally, keeps to the device's width, never gives out address 0 and cannot be freed twice",
            "range-alloc and offset-allocator have no holes, no upper limit and no alignment here",
        ],
    );
    Ok(())
}
