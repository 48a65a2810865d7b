//! Prints the least ns that virtio-queue needs to pop, walk and complete a chain of 256
//! descriptors of 4 KiB in a queue of 512.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use virtio_queue::desc::{RawDescriptor, split};
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

const CHAIN: u16 = 256;
const BLOCKS: usize = 10;
const RUNS: u32 = 200;

fn main() -> Result<()> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 16 << 20)])
        .map_err(|error| anyhow!("{error}"))?;
    let address = |index: u16| 0x10_0000 + u64::from(index) * 0x2000;
    let descriptors: Vec<RawDescriptor> = (0..CHAIN)
        .map(|index| {
            let last = index + 1 == CHAIN;
            let next = if last { 0 } else { index + 1 };
            RawDescriptor::from(split::Descriptor::new(address(index), 4096, u16::from(!last), next))
        })
        .collect();
    let mock = MockSplitQueue::new(&memory, 512);
    mock.add_desc_chains(&descriptors, 0).map_err(|error| anyhow!("{error:?}"))?;
    let mut queue: Queue = mock.create_queue().map_err(|error| anyhow!("{error:?}"))?;
    let mut walk = || {
        queue.set_next_avail(0);
        let chain = queue.pop_descriptor_chain(&memory).expect("the chain is available");
        let head = chain.head_index();
        let sum = chain.fold(0u64, |sum, descriptor| sum.wrapping_add(descriptor.addr().0));
        queue.add_used(&memory, head, 0).expect("the used ring is in memory");
        sum
    };
    ensure!(walk() == (0..CHAIN).map(address).sum::<u64>(), "virtio-queue walked another chain");
    let mut least = f64::INFINITY;
    for _ in 0..BLOCKS {
        let start = Instant::now();
        for _ in 0..RUNS {
            black_box(walk());
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(RUNS));
    }
    println!("{least:.1}");
    Ok(())
}
