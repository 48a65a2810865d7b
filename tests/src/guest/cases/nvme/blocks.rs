//! Blocks at the edges, and transfers longer than a command.

use anyhow::{Context, Result, ensure};
use vdk_descriptors::nvme::DatasetRange;
use vdk_driver::block::{BlockDevice, BlockOperation, BlockRequest};
use vdk_driver::nvme::{BlockQueue, CompletionMode, ControllerOptions, QueueOptions};
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, DmaRegion};

use super::bed::{Bed, LONG, pattern, same, start};
use crate::guest::Guest;

/// The first and last block, and every length around the limit of a command.
pub(super) fn edges(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 4 << 20)?;
    let (block, blocks) = (bed.block(), bed.namespace.blocks());
    let most = usize::try_from(bed.pair.max_transfer().as_u64())?;
    for (round, length) in [block, 2 * block, most - block, most].into_iter().enumerate() {
        let count = (length / block) as u64;
        for lba in [0, 1, blocks / 2, blocks - count] {
            let seed = lba.wrapping_add(round as u64 * 1000);
            bed.fill(0, length, seed)?;
            let memory = [bed.entry(0, length)?];
            bed.write(lba, &memory)?;
            bed.clear()?;
            bed.read(lba, &memory)?;
            bed.check(0, length, seed).with_context(|| format!("{length:#x} bytes at LBA {lba:#x}"))?;
        }
    }
    // What is beside them was left alone.
    let memory = [bed.entry(0, 3 * block)?];
    bed.fill(0, 3 * block, 1)?;
    bed.write(8, &memory)?;
    bed.fill(0, block, 2)?;
    bed.write(9, &[bed.entry(0, block)?])?;
    bed.clear()?;
    bed.read(8, &memory)?;
    let (mut found, old) = (vec![0; 3 * block], pattern(3 * block, 1));
    bed.region.read(0, &mut found)?;
    same(&found[..block], &old[..block])?;
    same(&found[block..2 * block], &pattern(block, 2))?;
    same(&found[2 * block..], &old[2 * block..])
}

/// A block device takes any length, in any order, and the memory comes back.
pub(super) fn split(guest: &Guest) -> Result<()> {
    let controller = start(guest, ControllerOptions::default())?;
    let first = *controller.namespaces()?.first().context("no namespace")?;
    let namespace = controller.namespace(first)?;
    let most = controller.facts().max_transfer.as_u64();
    let length = usize::try_from(3 * most + namespace.block_length().as_u64())?;
    for depth in [1, 2, 64] {
        let options = QueueOptions { depth, ..QueueOptions::default() };
        let mut queue: BlockQueue<DmaRegion<Bidirectional>> =
            BlockQueue::open(&controller, namespace, options, CompletionMode::Adaptive)?;
        let memory = SharedMemory::allocate(ByteLength::from_usize(length), Pages::Base)?;
        let region: DmaRegion<Bidirectional> = controller.domain().map(memory)?;
        let wanted = pattern(length, u64::from(depth));
        region.write(0, &wanted)?;
        let blocks = length as u64 >> namespace.block_exponent();
        let region = exchange(&mut queue, BlockOperation::Write, blocks, region)?;
        region.write(0, &vec![0; length])?;
        let region = exchange(&mut queue, BlockOperation::Read, blocks, region)?;
        let mut found = vec![0; length];
        region.read(0, &mut found)?;
        same(&found, &wanted).with_context(|| format!("at depth {depth}"))?;
        ensure!(queue.statistics().commands == 8, "{} commands", queue.statistics().commands);
    }
    Ok(())
}

fn exchange(
    queue: &mut BlockQueue<DmaRegion<Bidirectional>>,
    operation: BlockOperation,
    blocks: u64,
    memory: DmaRegion<Bidirectional>,
) -> Result<DmaRegion<Bidirectional>> {
    let id = queue.submit(BlockRequest { operation, lba: 3, blocks, memory: Some(memory) })?;
    queue.commit()?;
    let mut ended = Vec::new();
    while ended.is_empty() {
        queue.wait(LONG)?;
        queue.poll(&mut |end| ended.push(end))?;
    }
    ensure!(ended.len() == 1 && queue.outstanding() == 0, "{} ends", ended.len());
    let end = ended.remove(0);
    ensure!(end.id == id, "{:?} ended instead of {id:?}", end.id);
    end.result?;
    end.memory.context("the memory did not come back")
}

/// Flush, write zeroes and dataset management.
pub(super) fn others(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 20)?;
    let block = bed.block();
    let memory = [bed.entry(0, 8 * block)?];
    bed.fill(0, 8 * block, 5)?;
    bed.pair.write_durable(&bed.namespace, 16, &memory, 0)?;
    bed.finish()?;
    bed.pair.flush(&bed.namespace, 1)?;
    bed.finish()?;
    let commands = bed.controller.facts().commands;
    if commands.write_zeroes() {
        bed.pair.write_zeroes(&bed.namespace, 18, 3, false, 2)?;
        bed.finish()?;
        bed.clear()?;
        bed.read(16, &memory)?;
        let (mut found, mut wanted) = (vec![0; 8 * block], pattern(8 * block, 5));
        wanted[2 * block..5 * block].fill(0);
        bed.region.read(0, &mut found)?;
        same(&found, &wanted)?;
    }
    if commands.dataset_management() {
        let range = |lba: u64| DatasetRange { attributes: 0, blocks: 1, starting_lba: lba };
        let ranges: Vec<_> = (0..256).map(|index| range(64 + 2 * index)).collect();
        bed.pair.deallocate(&bed.namespace, &ranges, 3)?;
        bed.finish()?;
        bed.pair.deallocate(&bed.namespace, &ranges[..1], 4)?;
        bed.finish()?;
    }
    Ok(())
}
