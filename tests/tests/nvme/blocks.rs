//! Blocks through the emulated controller.

use core::time::Duration;

use vdk_driver::block::{BlockDevice, BlockEnd, BlockOperation, BlockRequest, RefuseReason};
use vdk_driver::nvme::{
    BlockQueue, CompletionMode, ControllerOptions, NamespaceError, QueueOptions, RejectReason,
};
use vdk_firmware_stubs::{NamespaceOptions, StubOptions};
use vdk_hal::address::ByteLength;
use vdk_iommu::{DmaBuffer, DmaPool, PoolOptions};

use crate::harness::*;

fn namespaces(sizes: &[(u64, u32)]) -> StubOptions {
    let namespaces = sizes.iter().map(|(bytes, block_size)| NamespaceOptions {
        bytes: *bytes,
        block_size: *block_size,
        file: None,
    });
    StubOptions { namespaces: namespaces.collect(), ..StubOptions::default() }
}

#[test]
fn the_controller_and_its_namespaces_are_what_they_were_made() {
    let node = stub(namespaces(&[(1 << 20, 512), (2 << 20, 4096)]));
    let controller = start(&node);
    assert_eq!(controller.namespaces().unwrap(), [1, 2]);
    let (first, second) = (controller.namespace(1).unwrap(), controller.namespace(2).unwrap());
    assert_eq!((first.blocks(), first.block_length().as_u64()), (2048, 512));
    assert_eq!((second.blocks(), second.block_length().as_u64()), (512, 4096));
    for absent in [0, 3, u32::MAX] {
        assert_eq!(controller.namespace(absent), Err(NamespaceError::NotActive { id: absent }));
    }
    assert!(!controller.facts().serial.is_empty() && !controller.facts().model.is_empty());
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn transfers_of_any_length_and_place_come_back_through_a_block_device() {
    for block in [512u32, 4096] {
        let node = stub(namespaces(&[(8 << 20, block)]));
        let controller = start(&node);
        let namespace = controller.namespace(1).unwrap();
        for depth in [1, 3, 32] {
            let options = QueueOptions { depth, ..QueueOptions::default() };
            let mut queue: BlockQueue<DmaBuffer> =
                BlockQueue::open(&controller, namespace, options, CompletionMode::Adaptive).unwrap();
            let mut pool = DmaPool::new(controller.domain(), PoolOptions::default()).unwrap();
            let most = queue.geometry().max_transfer.as_u64();
            for length in [u64::from(block), most, most + u64::from(block), 1_200_000 / 4096 * 4096] {
                let bytes = bytes(usize::try_from(length).unwrap(), u64::from(depth));
                let buffer = pool.take(usize::try_from(length).unwrap()).unwrap();
                buffer.write(0, &bytes).unwrap();
                let blocks = length / u64::from(block);
                let buffer = run(&mut queue, BlockOperation::Write, blocks, Some(buffer)).unwrap();
                buffer.fill(0, bytes.len(), 0).unwrap();
                let buffer = run(&mut queue, BlockOperation::Read, blocks, Some(buffer)).unwrap();
                let mut found = vec![0; bytes.len()];
                buffer.read(0, &mut found).unwrap();
                assert!(found == bytes, "{length:#x} bytes at depth {depth}");
            }
            assert!(run(&mut queue, BlockOperation::Flush, 0, None).is_none());
            assert!(run(&mut queue, BlockOperation::WriteZeroes, 5, None).is_none());
            assert!(run(&mut queue, BlockOperation::Discard, 5, None).is_none());
        }
        assert_eq!(node.driver_faults(), []);
    }
}

/// Bytes that a seed repeats.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed << 8 | 0x9e37_79b9;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn run(
    queue: &mut BlockQueue<DmaBuffer>,
    operation: BlockOperation,
    blocks: u64,
    memory: Option<DmaBuffer>,
) -> Option<DmaBuffer> {
    let id = queue.submit(BlockRequest { operation, lba: 1, blocks, memory }).unwrap();
    queue.commit().unwrap();
    let mut ends: Vec<BlockEnd<DmaBuffer>> = Vec::new();
    while ends.is_empty() {
        queue.wait(LONG).unwrap();
        queue.poll(&mut |end| ends.push(end)).unwrap();
    }
    assert_eq!((ends.len(), queue.outstanding()), (1, 0));
    let end = ends.remove(0);
    assert_eq!(end.id, id);
    end.result.unwrap();
    end.memory
}

#[test]
fn many_requests_at_once_each_end_once() {
    let node = stub(StubOptions::default());
    let controller = start(&node);
    let namespace = controller.namespace(1).unwrap();
    let options = QueueOptions { depth: 8, ..QueueOptions::default() };
    let mut queue: BlockQueue<DmaBuffer> =
        BlockQueue::open(&controller, namespace, options, CompletionMode::Adaptive).unwrap();
    let mut pool =
        DmaPool::new(controller.domain(), PoolOptions { max_slabs: 64, ..PoolOptions::default() }).unwrap();
    let most = queue.geometry().max_transfer.as_u64();
    // Eight requests of three commands each: more than the queue holds.
    let length = usize::try_from(2 * most + 512).unwrap();
    let mut ids = Vec::new();
    for request in 0..8 {
        let memory = Some(pool.take(length).unwrap());
        let lba = request * 5000;
        let blocks = length as u64 / 512;
        let request = BlockRequest { operation: BlockOperation::Read, lba, blocks, memory };
        ids.push(queue.submit(request).unwrap().0);
    }
    let refused =
        queue.submit(BlockRequest { operation: BlockOperation::Flush, lba: 0, blocks: 0, memory: None });
    assert!(matches!(refused.unwrap_err().reason, RefuseReason::Full { requests: 8 }));
    queue.commit().unwrap();
    let mut ended = Vec::new();
    while queue.outstanding() > 0 {
        queue.wait(LONG).unwrap();
        queue.poll(&mut |end| ended.push((end.id.0, end.result.is_ok(), end.memory.is_some()))).unwrap();
    }
    ended.sort_unstable();
    assert_eq!(ended, ids.iter().map(|id| (*id, true, true)).collect::<Vec<_>>());
    assert_eq!(queue.statistics().commands, 24);
}

#[test]
fn requests_that_cannot_be_are_refused_with_the_fix() {
    let node = stub(StubOptions::default());
    let controller = start(&node);
    let namespace = controller.namespace(1).unwrap();
    let mut queue: BlockQueue<DmaBuffer> =
        BlockQueue::open(&controller, namespace, QueueOptions::default(), CompletionMode::Poll).unwrap();
    let mut pool = DmaPool::new(controller.domain(), PoolOptions::default()).unwrap();
    let size = namespace.blocks();
    for (lba, blocks) in [(0, 0), (size, 1), (size - 1, 2), (u64::MAX, 1), (1, u64::MAX)] {
        let memory = Some(pool.take(4096).unwrap());
        let refused =
            queue.submit(BlockRequest { operation: BlockOperation::Read, lba, blocks, memory }).unwrap_err();
        assert!(matches!(refused.reason, RefuseReason::Range { .. }), "{refused}");
        assert!(refused.request.memory.is_some());
    }
    let memory = Some(pool.take(512).unwrap());
    let short = queue.submit(BlockRequest { operation: BlockOperation::Read, lba: 0, blocks: 2, memory });
    assert!(matches!(short.unwrap_err().reason, RefuseReason::Memory { needed: 1024, length: 512, .. }));
    let none =
        queue.submit(BlockRequest { operation: BlockOperation::Write, lba: 0, blocks: 1, memory: None });
    assert!(matches!(none.unwrap_err().reason, RefuseReason::Memory { length: 0, .. }));
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn list_entries_around_a_list_page_move_the_right_bytes() {
    // The emulated controller moves 1 MiB at most: 256 pages and one more for an offset.
    let node = stub(StubOptions { max_transfer_log2: 20, ..StubOptions::default() });
    let mut bed = Bed::on(node, LONG);
    let memory = region(&bed.controller, 4 << 20);
    for (pages, offset) in [(1, 0), (1, 4), (2, 0), (2, 512), (3, 0), (255, 0), (256, 0), (256, 2048)] {
        let length = pages * 4096;
        let bytes = bytes(length, pages as u64);
        memory.write(offset, &bytes).unwrap();
        bed.pair.write(&bed.namespace, 7, &[part(&memory, offset, length)], 0).unwrap();
        assert_eq!(bed.run(), (vec![(0, Ok(0))], None));
        let other = (2 << 20) + 4092 - offset;
        bed.pair.read(&bed.namespace, 7, &[part(&memory, other, length)], 1).unwrap();
        assert_eq!(bed.run(), (vec![(1, Ok(0))], None));
        let mut found = vec![0; length];
        memory.read(other, &mut found).unwrap();
        assert!(found == bytes, "{pages} pages at {offset}");
    }
    assert_eq!(bed.node.driver_faults(), []);
}

#[test]
fn sixty_four_queues_are_asked_for_when_four_are_given() {
    let node = stub(StubOptions { queue_pairs: 4, queue_entries: 64, ..StubOptions::default() });
    let controller = start_with(&node, ControllerOptions { queues: 64, ..ControllerOptions::default() });
    assert_eq!((controller.facts().queues, controller.facts().queue_entries), (4, 64));
    let options = QueueOptions { depth: 63, ..QueueOptions::default() };
    let pairs: Vec<_> = (0..4).map(|_| controller.queue_pair::<u32>(options).unwrap()).collect();
    assert_eq!(pairs.iter().map(|pair| pair.number()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let error = controller.queue_pair::<u32>(options).unwrap_err().to_string();
    assert!(error.contains("all 4 I/O queues") && error.contains("64 were asked for"), "{error}");
    drop(pairs);
    for depth in [0, 64, 65_536] {
        let options = QueueOptions { depth, ..options };
        let error = controller.queue_pair::<u32>(options).unwrap_err().to_string();
        assert!(error.contains("MQES") && error.contains("64 entries"), "{error}");
    }
    assert!(controller.queue_pair::<u32>(QueueOptions { depth: 1, ..options }).is_ok());
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn transfers_that_one_command_cannot_carry_are_refused_by_a_queue_pair() {
    let mut bed = Bed::new(Duration::from_secs(60));
    let most = usize::try_from(bed.pair.max_transfer().as_u64()).unwrap();
    let memory = region(&bed.controller, 2 << 20);
    let rejected = bed.pair.read(&bed.namespace, 0, &[part(&memory, 0, most + 512)], 9).unwrap_err();
    assert!(matches!(rejected.reason, RejectReason::TooLong { because: "MDTS", .. }), "{rejected}");
    assert_eq!(rejected.owner, 9);
    let tiny = start_options(&bed, ByteLength::SIZE_4K);
    let error = tiny.to_string();
    assert!(error.contains("ControllerOptions::max_transfer"), "{error}");
}

/// What a controller says that was started with a smaller limit of its own.
fn start_options(bed: &Bed, max_transfer: ByteLength) -> vdk_driver::nvme::Rejected<u32> {
    let node = stub(StubOptions::default());
    let controller = start_with(&node, ControllerOptions { max_transfer, ..ControllerOptions::default() });
    let mut pair = controller.queue_pair(QueueOptions::default()).unwrap();
    let memory = region(&controller, 1 << 16);
    pair.read(&bed.namespace, 0, &[part(&memory, 0, 8192)], 1).unwrap_err()
}
