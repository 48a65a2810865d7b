//! Copies of every shape.

use vdk_descriptors::sg::{SgEntry, SgLimits, SgList};
use vdk_driver::ioat::{Completion, CompletionMode, RejectReason};
use vdk_firmware_stubs::StubOptions;
use vdk_hal::address::{ByteLength, Iova};
use vdk_iommu::{Bidirectional, DmaRegion, FromDevice, ToDevice};

use crate::harness::*;

#[test]
fn chains_of_any_length_move_every_byte_across_every_boundary() {
    const SOURCE_BYTES: usize = 8 << 20;
    const DESTINATION_BYTES: usize = 64 << 20;
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    // Both lie across a multiple of 4 GiB, and so across pages and multiples of 2 MiB.
    let source: DmaRegion<ToDevice> = region_at(&ioat, 0xffc0_0000, SOURCE_BYTES as u64);
    let destination: DmaRegion<FromDevice> = region_at(&ioat, 0x7_fe00_0000, DESTINATION_BYTES as u64);
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let input = numbers.bytes(SOURCE_BYTES);
    source.write(0, &input).unwrap();
    let mut expected = vec![0; DESTINATION_BYTES];
    let mut channel = ioat.channel::<usize>(0, options(65536)).unwrap();
    let mode = CompletionMode::Adaptive;
    for count in [1, 255, 256, 257, 100_000] {
        let longest = if count > 1000 { 600 } else { 9000 };
        let mut lists = [SgLimits::NONE; 2].map(|limits| SgList::new(&limits).unwrap());
        let mut at = numbers.below(4096);
        for _ in 0..count {
            let length = 1 + numbers.below(longest);
            let from = numbers.below(SOURCE_BYTES - length);
            let bytes = ByteLength::from_usize(length);
            lists[0].push(source.segment(from, length).unwrap().iova, bytes).unwrap();
            lists[1].push(destination.segment(at, length).unwrap().iova, bytes).unwrap();
            expected[at..at + length].copy_from_slice(&input[from..from + length]);
            // A gap, so that neighbours are not merged and an overrun shows.
            at += length + 1 + numbers.below(16);
        }
        assert_eq!(lists[1].count(), count);
        if count > channel.capacity() {
            let rejected = channel.copy_sg(&lists[0], &lists[1], count).unwrap_err();
            let RejectReason::TooLong { needed, capacity: 65535 } = rejected.reason else {
                panic!("{rejected}")
            };
            assert!(needed >= count as u64 && rejected.owner == count);
            let unexpected = |end: Completion<usize>| panic!("{end:?} ended before the copy");
            channel.copy_sg_streamed(&lists[0], &lists[1], count, mode, LONG, unexpected).unwrap();
        } else {
            channel.copy_sg(&lists[0], &lists[1], count).unwrap();
        }
        let ends = drain(&mut channel, mode);
        assert_eq!(ends.iter().map(|end| (end.owner, end.result)).collect::<Vec<_>>(), [(count, Ok(()))]);
        let mut output = vec![0; DESTINATION_BYTES];
        destination.read(0, &mut output).unwrap();
        let difference = output.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(difference, None, "a chain of {count} segments");
    }
    assert_eq!(node.iommu().faults(), []);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn pieces_that_differ_on_both_sides_and_exceed_the_cap_are_cut_to_fit() {
    let node = stub(StubOptions { transfer_cap_log2: 12, ..StubOptions::default() });
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 20);
    let input = Numbers(7).bytes(100_000);
    memory.write(3, &input).unwrap();
    let mut lists = [SgLimits::NONE; 2].map(|limits| SgList::new(&limits).unwrap());
    let at = |offset: u64| Iova::new(memory.iova().as_u64() + offset);
    lists[0].push(at(3), ByteLength::new(70_000)).unwrap();
    lists[0].push(at(70_003), ByteLength::new(30_000)).unwrap();
    for (offset, length) in [(200_001, 10_000), (300_002, 1), (400_000, 89_999)] {
        lists[1].push(at(offset), ByteLength::new(length)).unwrap();
    }
    let mut channel = ioat.channel::<()>(0, options(255)).unwrap();
    channel.copy_sg(&lists[0], &lists[1], ()).unwrap();
    assert_eq!(drain(&mut channel, CompletionMode::Poll).len(), 1);
    let mut output = vec![0; 10_000];
    memory.read(200_001, &mut output).unwrap();
    assert!(output == input[..10_000]);
    memory.read(300_002, &mut output[..1]).unwrap();
    assert_eq!(output[0], input[10_000]);
    output.resize(89_999, 0);
    memory.read(400_000, &mut output).unwrap();
    assert!(output == input[10_001..]);
    // The same with one long segment, and a fill longer than the cap and not a multiple of 8.
    channel.copy(&[segment((&memory, 3), (&memory, 600_000), 100_000)], ()).unwrap();
    let entry = SgEntry { iova: at(800_000), length: ByteLength::new(9_003) };
    channel.fill(0x0706_0504_0302_0100, &[entry], ()).unwrap();
    assert_eq!(drain(&mut channel, CompletionMode::Interrupt).len(), 2);
    output.resize(100_000, 0);
    memory.read(600_000, &mut output).unwrap();
    assert!(output == input);
    output.resize(9_004, 0);
    memory.read(800_000, &mut output).unwrap();
    assert!(output[..9_003].iter().enumerate().all(|(index, byte)| usize::from(*byte) == index % 8));
    assert_eq!(output[9_003], 0);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn rings_of_depth_1_2_and_65536_wrap_many_times() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 20);
    for (depth, operations) in [(1, 2_000), (2, 4_000), (3, 4_000), (65536, 300_000)] {
        let mut channel = ioat.channel::<u32>(1, options(depth)).unwrap();
        let (mut posted, mut expected) = (0u32, 0u32);
        while expected < operations {
            while posted < operations {
                let slot = usize::try_from(posted % 1000).unwrap() * 8;
                match channel.copy(&[segment((&memory, slot), (&memory, 500_000 + slot), 8)], posted) {
                    Ok(_) => posted += 1,
                    Err(rejected) => {
                        assert_eq!(rejected.owner, posted);
                        break;
                    }
                }
            }
            channel.wait(CompletionMode::Adaptive, LONG).unwrap();
            channel
                .poll(usize::MAX, |end| {
                    assert_eq!((end.owner, end.result), (expected, Ok(())));
                    expected += 1;
                })
                .unwrap();
        }
        assert_eq!((posted, channel.outstanding(), channel.free()), (operations, 0, channel.capacity()));
        let statistics = channel.statistics();
        assert_eq!(statistics.descriptors, u64::from(operations) + 1);
        assert_eq!(statistics.bytes, u64::from(operations) * 8);
        assert!(statistics.doorbells <= statistics.descriptors);
    }
    assert_eq!(node.iommu().faults(), []);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn a_batch_rings_one_doorbell_and_interrupts_only_who_waits_for_it() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let mut channel = ioat.channel::<u32>(0, options(255)).unwrap();
    let before = channel.statistics();
    for owner in 0..200 {
        channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], owner).unwrap();
    }
    assert_eq!(drain(&mut channel, CompletionMode::Poll).len(), 200);
    let after = channel.statistics();
    assert_eq!((after.doorbells - before.doorbells, after.descriptors - before.descriptors), (1, 200));
    assert_eq!(after.interrupts, 0);
    channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 0).unwrap();
    drain(&mut channel, CompletionMode::Interrupt);
    // However many were sent while nobody slept, an arming lets one through.
    assert!(node.statistics().interrupt_count() <= 4, "{:?}", node.statistics());
}
