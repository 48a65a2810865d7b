//! An I/OAT moves bytes: chains, fills, the states and commands of a channel.

use std::time::Duration;

use proptest::prelude::*;
use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::dma::Permissions;

use crate::harness::*;

const SOURCE: u64 = 0x4000_0000;
const DESTINATION: u64 = 0x8000_0000;

fn ioat(mapped_doorbells: bool) -> Bench {
    Bench::new(StubKind::Ioat, StubOptions { mapped_doorbells, ..StubOptions::default() })
}

#[test]
fn the_device_says_what_it_is() {
    let bench = ioat(true);
    assert_eq!(bench.read::<u8>(0x00), 2, "channels");
    assert_eq!(bench.read::<u8>(0x01), 20, "transfer cap");
    assert_eq!(bench.read::<u8>(0x08), 0x32, "version");
    assert_eq!(bench.read::<u16>(0x0c), 0x8000, "interrupts can be delayed");
    assert_eq!(bench.read::<u32>(0x10), 0x40, "copy and fill only");
    assert_eq!(bench.read::<u16>(0x14), 0, "no direct cache access");
    for channel in [0x80, 0x100] {
        assert_eq!(bench.read::<u64>(channel + CHANSTS), HALTED);
        assert_eq!(bench.read::<u16>(channel + DMACOUNT), 0);
    }
    assert_eq!(bench.bar.mapped_areas().len(), 2);
    assert_eq!(bench.bar.mapped_areas()[1].offset, 0x106);
    assert_eq!(bench.faults(), Vec::<String>::new());
}

#[test]
fn chains_of_any_length_are_copied_and_followed() {
    for (mapped, count) in [(true, 1), (true, 63), (true, 64), (true, 65), (true, 1000), (false, 300)] {
        let bench = ioat(mapped);
        assert_eq!(bench.bar.mapped_areas().is_empty(), !mapped);
        let source = bench.map(SOURCE, 4 << 20, Permissions::Read);
        let destination = bench.map(DESTINATION, 4 << 20, Permissions::Write);
        let data = pattern(count, 4 << 20);
        source.write(0, &data).unwrap();
        let mut channel = Channel::start(&bench, 1, 1024);
        let mut expected = vec![0; 4 << 20];
        let (mut from, mut to, mut last) = (13, 4 << 20, 0);
        for index in 0..count {
            let size = 1 + index * 37 % 4001;
            to -= size;
            let control = if index + 1 == count { COMPLETE } else { 0 };
            last = channel.post(size as u32, control, SOURCE + from as u64, DESTINATION + to as u64);
            expected[to..to + size].copy_from_slice(&data[from..from + size]);
            from += size;
        }
        channel.ring_doorbell();
        channel.wait_for(last);
        assert_eq!(bytes(&destination), expected, "{count} descriptors");
        assert_eq!(channel.status(), last | IDLE);
        assert_eq!(channel.word(), last | IDLE);
        let statistics = bench.node.statistics();
        assert_eq!((statistics.descriptors, statistics.bytes), (count as u64, from as u64 - 13));
        assert_eq!((statistics.completions, statistics.interrupt_count()), (1, 0));
        assert_eq!(bench.faults(), Vec::<String>::new());
        assert_eq!(bench.node.iommu().fault_count(), 0);
    }
}

#[test]
fn the_count_wraps_many_times_around_a_small_ring() {
    let bench = ioat(true);
    let source = bench.map(SOURCE, 4096, Permissions::Read);
    let destination = bench.map(DESTINATION, 4096, Permissions::Write);
    let mut channel = Channel::start(&bench, 0, 64);
    let mut counted = 0u32;
    while counted < 140_000 {
        source.write_value(0, &counted).unwrap();
        let batch = 1 + counted % 61;
        let mut last = 0;
        for _ in 0..batch {
            last = channel.post(4, COMPLETE, SOURCE, DESTINATION + u64::from(counted % 1000) * 4);
        }
        channel.ring_doorbell();
        channel.wait_for(last);
        assert_eq!(destination.read_value::<u32>((counted % 1000) as usize * 4), Ok(counted));
        counted += batch;
    }
    assert_eq!(channel.announced, (counted & 0xffff) as u16);
    assert_eq!(channel.read::<u16>(DMACOUNT), channel.announced);
    assert_eq!(bench.node.statistics().descriptors, u64::from(counted));
}

#[test]
fn descriptors_announced_one_by_one_are_all_executed_once_whatever_they_are() {
    let options = StubOptions { spin: Duration::from_millis(20), ..StubOptions::default() };
    let bench = Bench::new(StubKind::Ioat, options);
    let memory = bench.map(SOURCE, 64 << 10, Permissions::ReadWrite);
    let mut expected = pattern(5, 64 << 10);
    memory.write(0, &expected).unwrap();
    let mut channel = Channel::start(&bench, 0, 16);
    let (mut bytes_moved, mut completions) = (0, 0);
    for index in 0..2000_usize {
        let size = [64, 1, 4096, 7, 64][index % 5];
        let from = index * 61 % (30 << 10);
        // Sometimes onto itself, a little further on: that must not be done twice.
        let to = if index.is_multiple_of(4) { from + size / 2 } else { (32 << 10) + index * 97 % (28 << 10) };
        let (source, destination) = (SOURCE + from as u64, SOURCE + to as u64);
        let last = match index % 7 {
            3 => {
                expected[to..to + size].fill(0xa5);
                channel.post(size as u32, FILL | COMPLETE, 0xa5a5_a5a5_a5a5_a5a5, destination)
            }
            5 => {
                channel.post(1, NULL | COMPLETE, 0, 0);
                expected.copy_within(from..from + size, to);
                channel.post(size as u32, COMPLETE, source, destination)
            }
            _ => {
                expected.copy_within(from..from + size, to);
                channel.post(size as u32, COMPLETE, source, destination)
            }
        };
        bytes_moved += size as u64;
        completions += 1;
        channel.ring_doorbell();
        channel.wait_for(last);
        if index == 1000 {
            // Every cached translation is stale now.
            bench.map(DESTINATION, 4096, Permissions::Read);
            bench.unmap(DESTINATION, 4096);
        }
    }
    assert!(bytes(&memory) == expected, "the bytes differ");
    assert_eq!(channel.errors(), 0);
    let statistics = bench.node.statistics();
    assert_eq!((statistics.bytes, statistics.completions), (bytes_moved, completions));
    assert_eq!((statistics.doorbells, statistics.descriptors), (2000, 2285));
    // What cannot be executed halts the channel here as elsewhere.
    channel.post(64, COMPLETE, SOURCE, DESTINATION);
    channel.ring_doorbell();
    channel.wait_for_state(HALTED);
    assert_eq!(bench.node.iommu().fault_count(), 1);
    assert_eq!(bench.faults(), Vec::<String>::new());
}

#[test]
fn a_long_transfer_and_overlapping_ones_are_right() {
    let options = StubOptions { transfer_cap_log2: 22, ..StubOptions::default() };
    let bench = Bench::new(StubKind::Ioat, options);
    let source = bench.map(SOURCE, 4 << 20, Permissions::ReadWrite);
    let destination = bench.map(DESTINATION, 4 << 20, Permissions::Write);
    let data = pattern(3, 4 << 20);
    source.write(0, &data).unwrap();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(4 << 20, SOURCE, DESTINATION);
    assert_eq!(bytes(&destination), data);
    channel.copy(1000, SOURCE, SOURCE + 300);
    assert_eq!(&bytes(&source)[300..1300], &data[..1000]);
}

#[test]
fn a_fill_repeats_its_pattern_from_the_first_byte_on() {
    let bench = ioat(true);
    let destination = bench.map(DESTINATION, 512 << 10, Permissions::Write);
    let mut channel = Channel::start(&bench, 0, 16);
    let fill = channel.post(300_001, FILL | COMPLETE, 0x0807_0605_0403_0201, DESTINATION + 5);
    channel.ring_doorbell();
    channel.wait_for(fill);
    let filled = bytes(&destination);
    assert!(filled[5..300_006].iter().enumerate().all(|(index, byte)| *byte == (index % 8) as u8 + 1));
    assert_eq!((&filled[..5], &filled[300_006..300_016]), (&[0; 5][..], &[0; 10][..]));
}

#[test]
fn a_null_descriptor_moves_nothing_and_completes() {
    let bench = ioat(true);
    let mut channel = Channel::start(&bench, 0, 16);
    assert_eq!(channel.status(), ARMED);
    let null = channel.post(1, NULL | COMPLETE | FENCE, 0, 0);
    channel.ring_doorbell();
    channel.wait_for(null);
    assert_eq!(bench.node.statistics().bytes, 0);
    assert_eq!(bench.node.iommu().fault_count(), 0);
}

#[test]
fn channels_work_side_by_side() {
    let bench = ioat(true);
    let source = bench.map(SOURCE, 64 << 10, Permissions::Read);
    let destination = bench.map(DESTINATION, 64 << 10, Permissions::Write);
    let data = pattern(9, 64 << 10);
    source.write(0, &data).unwrap();
    let mut channels = [Channel::start(&bench, 0, 64), Channel::start(&bench, 1, 64)];
    let mut last = [0; 2];
    for part in 0..64u64 {
        let at = part * 1024;
        let channel = (part % 2) as usize;
        last[channel] = channels[channel].post(1024, COMPLETE, SOURCE + at, DESTINATION + at);
    }
    for (channel, last) in channels.iter().zip(last) {
        channel.ring_doorbell();
        channel.wait_for(last);
    }
    assert_eq!(bytes(&destination), data);
}

#[test]
fn a_suspended_channel_waits_and_resumes() {
    let bench = ioat(true);
    bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(8, SOURCE, SOURCE + 8);
    channel.command(SUSPEND);
    channel.wait_for_state(SUSPENDED);
    let before = channel.word();
    let next = channel.post(8, COMPLETE, SOURCE, SOURCE + 8);
    channel.ring_doorbell();
    assert_eq!(channel.status() & 7, SUSPENDED);
    assert_eq!(channel.word(), before);
    channel.command(RESUME);
    channel.wait_for(next);
    assert_eq!(channel.status(), next | IDLE);
    assert_eq!(bench.faults(), Vec::<String>::new());
    channel.command(RESUME);
    assert_eq!(bench.faults(), ["channel 0 cannot take command 0x10 now"]);
}

#[test]
fn an_idle_channel_can_be_suspended_and_given_a_new_chain() {
    let bench = ioat(true);
    bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(8, SOURCE, SOURCE + 8);
    channel.command(SUSPEND);
    assert_eq!(channel.status() & 7, SUSPENDED);
    channel.begin(7);
    assert_eq!(channel.read::<u16>(DMACOUNT), 0, "the count begins at zero again");
    assert_eq!(channel.status(), ARMED, "nothing of the new chain is completed");
    channel.copy(8, SOURCE, SOURCE + 16);
    assert_eq!(channel.status(), channel.address(7) | IDLE);
}

#[test]
fn an_aborted_channel_is_halted_without_an_error() {
    let bench = ioat(true);
    bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(8, SOURCE, SOURCE + 8);
    channel.command(ABORT);
    assert_eq!((channel.status() & 7, channel.errors()), (HALTED, 0));
    channel.begin(0);
    channel.copy(8, SOURCE, SOURCE + 8);
}

#[test]
fn append_reads_the_next_pointer_again() {
    let bench = ioat(true);
    bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let mut channel = Channel::start(&bench, 0, 16);
    channel.ring.write_value(24, &0u64).unwrap();
    channel.copy(8, SOURCE, SOURCE + 8);
    // The end of the chain was read already, so that linking it now needs the command.
    channel.ring.write_value(24, &channel.address(5)).unwrap();
    channel.slot = 5;
    channel.command(APPEND);
    channel.copy(8, SOURCE, SOURCE + 8);
    assert_eq!(channel.status(), channel.address(5) | IDLE);
}

#[test]
fn a_reset_brings_a_channel_back_to_power_on() {
    let bench = ioat(true);
    bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let mut channel = Channel::start(&bench, 0, 16);
    channel.write(CHANERRMASK, 0x30000u32);
    channel.copy(8, SOURCE, SOURCE + 8);
    channel.command(RESET);
    assert_eq!(channel.read::<u8>(CHANCMD), 0, "the reset has ended");
    assert_eq!(channel.status(), HALTED);
    assert_eq!(channel.read::<u16>(DMACOUNT), 0);
    assert_eq!(channel.read::<u16>(CHANCTRL), 0);
    assert_eq!((channel.read::<u64>(CHANCMP), channel.read::<u64>(CHAINADDR)), (0, 0));
    assert_eq!((channel.errors(), channel.read::<u32>(CHANERRMASK)), (0, 0));
    channel.begin(3);
    channel.copy(8, SOURCE, SOURCE + 8);
    assert_eq!(bench.faults(), Vec::<String>::new());
}

#[test]
fn the_in_use_bit_is_taken_by_the_first_reader() {
    let bench = ioat(true);
    assert_eq!(bench.read::<u16>(0x80), 0);
    assert_eq!(bench.read::<u16>(0x80), 0x100);
    bench.write(0x80, 0x0100u16);
    assert_eq!(bench.read::<u16>(0x80), 0x100, "written as one it stays");
    bench.write(0x80, 0u16);
    assert_eq!(bench.read::<u16>(0x80), 0);
}

#[test]
fn data_is_there_when_the_completion_is() {
    let bench = ioat(true);
    let source = bench.map(SOURCE, 4096, Permissions::Read);
    let destination = bench.map(DESTINATION, 4096, Permissions::Write);
    let mut channel = Channel::start(&bench, 0, 2);
    for round in 0..3_000u64 {
        source.write_value(0, &round).unwrap();
        source.write_value(4088, &!round).unwrap();
        channel.copy(4096, SOURCE, DESTINATION);
        assert_eq!(destination.read_value::<u64>(0), Ok(round));
        assert_eq!(destination.read_value::<u64>(4088), Ok(!round));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_segments_move_exactly_their_bytes(
        segments in prop::collection::vec((0..60_000u64, 1..5000u64), 1..200),
        mapped in any::<bool>(),
    ) {
        let bench = ioat(mapped);
        let source = bench.map(SOURCE, 64 << 10, Permissions::Read);
        let destination = bench.map(DESTINATION, 1 << 20, Permissions::Write);
        let data = pattern(segments.len(), 64 << 10);
        source.write(0, &data).unwrap();
        let mut channel = Channel::start(&bench, 0, 256);
        let mut expected = vec![0; 1 << 20];
        let (mut to, mut last) = (1, 0);
        for (from, size) in &segments {
            last = channel.post(*size as u32, COMPLETE, SOURCE + from, DESTINATION + to);
            let (at, from, size) = (to as usize, *from as usize, *size as usize);
            expected[at..at + size].copy_from_slice(&data[from..from + size]);
            to += size as u64;
        }
        channel.ring_doorbell();
        channel.wait_for(last);
        prop_assert_eq!(bytes(&destination), expected);
        prop_assert_eq!(bench.node.statistics().bytes, to - 1);
    }
}
