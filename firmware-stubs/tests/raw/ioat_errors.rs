//! What an I/OAT refuses, and how it says so.

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::config::{Status, read_status};
use vdk_hal::dma::Permissions;
use vdk_iommu::soft::FaultReason;

use crate::harness::*;

const SOURCE: u64 = 0x4000_0000;
const DESTINATION: u64 = 0x8000_0000;

fn ioat() -> Bench {
    let bench = Bench::new(StubKind::Ioat, StubOptions::default());
    bench.map(SOURCE, 4096, Permissions::Read);
    bench.map(DESTINATION, 4096, Permissions::Write);
    bench
}

/// Runs one good descriptor and then a bad one, which must halt the channel with `errors`.
fn assert_halts(bench: &Bench, errors: u32, bad: impl FnOnce(&mut Channel<'_>)) {
    let mut channel = Channel::start(bench, 0, 16);
    let good = channel.post(8, COMPLETE, SOURCE, DESTINATION);
    bad(&mut channel);
    channel.ring_doorbell();
    channel.wait_for_state(HALTED);
    assert_eq!(channel.errors(), errors);
    assert_eq!(channel.status(), good | HALTED, "the one before the bad one is the last");
    assert_eq!(channel.word(), good | HALTED, "written as the control register asks");
}

#[test]
fn wrong_descriptors_halt_the_channel_with_their_error() {
    let cases: [(u32, u32, u32, u64, u64); 10] = [
        // A size of zero, above the cap, and of a null descriptor.
        (0x800, 0, COMPLETE, SOURCE, DESTINATION),
        (0x800, (1 << 20) + 1, COMPLETE, SOURCE, DESTINATION),
        (0x800, 0, NULL, 0, 0),
        // XOR, an operation that does not exist, a reserved bit, DCA, a source bit in a fill.
        (0x400, 8, 0x8700_0000, SOURCE, DESTINATION),
        (0x400, 8, 0x4200_0000, SOURCE, DESTINATION),
        (0x400, 8, 1 << 11, SOURCE, DESTINATION),
        (0x400, 8, 1 << 9, SOURCE, DESTINATION),
        (0x400, 8, FILL | 0x40, SOURCE, DESTINATION),
        // Past the end of the address space.
        (0x001, 16, COMPLETE, u64::MAX - 8, DESTINATION),
        (0x002, 16, COMPLETE, SOURCE, u64::MAX - 8),
    ];
    for (errors, size, control, source, destination) in cases {
        let bench = ioat();
        assert_halts(&bench, errors, |channel| {
            channel.post(size, control, source, destination);
        });
        assert_eq!(bench.node.iommu().fault_count(), 0, "found before the bus was asked");
    }
}

#[test]
fn what_the_iommu_refuses_halts_the_channel_and_is_logged_twice() {
    let cases = [
        (0x100, FaultReason::NotMapped, 0x5000_0000, DESTINATION),
        (0x200, FaultReason::NotMapped, SOURCE, 0x5000_0000),
        (0x100, FaultReason::NotReadable, DESTINATION, DESTINATION),
        (0x200, FaultReason::NotWritable, SOURCE, SOURCE),
    ];
    for (errors, reason, source, destination) in cases {
        let bench = ioat();
        assert!(!read_status(bench.function.config()).unwrap().received_master_abort());
        assert_halts(&bench, errors, |channel| {
            channel.post(8, COMPLETE, source, destination);
        });
        let faults = bench.node.iommu().faults();
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].reason, faults[0].write), (reason, errors == 0x200));
        assert_eq!(faults[0].requester, bench.function.address().requester_id());
        let status = read_status(bench.function.config()).unwrap();
        assert!(status.received_master_abort());
        vdk_hal::config::clear_status(bench.function.config(), Status(0x2000)).unwrap();
        assert!(!read_status(bench.function.config()).unwrap().received_master_abort());
    }
}

#[test]
fn a_broken_chain_halts_the_channel() {
    // `next` points nowhere, then to an address that is not a multiple of 64.
    for (next, errors) in [(0x7000_0000u64, 0x4), (RING + 32, 0x8)] {
        let bench = ioat();
        assert_halts(&bench, errors, |channel| {
            channel.ring.write_value(24, &next).unwrap();
            channel.post(8, COMPLETE, SOURCE, DESTINATION);
        });
    }
    for chain in [0x7000_0000u64, RING + 32] {
        let bench = ioat();
        let mut channel = Channel::start(&bench, 0, 16);
        channel.write_split(CHAINADDR, chain);
        channel.post(8, COMPLETE, SOURCE, DESTINATION);
        channel.ring_doorbell();
        channel.wait_for_state(HALTED);
        assert_eq!(channel.errors(), 0x10);
    }
}

#[test]
fn a_completion_word_that_cannot_be_written_halts_the_channel() {
    for address in [0, 0x7000_0000, SOURCE, COMPLETION + 4] {
        let bench = ioat();
        let mut channel = Channel::start(&bench, 0, 16);
        channel.write_split(CHANCMP, address);
        channel.post(8, COMPLETE, SOURCE, DESTINATION);
        channel.ring_doorbell();
        channel.wait_for_state(HALTED);
        assert_eq!(channel.errors(), 0x1000, "{address:#x}");
    }
}

#[test]
fn errors_are_cleared_by_ones_and_block_a_new_chain_until_then() {
    let bench = ioat();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.post(0, COMPLETE, SOURCE, DESTINATION);
    channel.ring_doorbell();
    channel.wait_for_state(HALTED);
    channel.write_split(CHAINADDR, channel.address(0));
    assert_eq!(bench.faults(), ["channel 0 works or has errors and got a chain"]);
    channel.write(CHANERR, 0xffu32);
    assert_eq!(channel.errors(), 0x800, "zeros do not clear");
    channel.write(CHANERR, 0x800u32);
    assert_eq!(channel.errors(), 0);
    channel.begin(0);
    channel.copy(8, SOURCE, DESTINATION);
}

#[test]
fn a_masked_error_is_noted_and_does_not_halt() {
    let bench = ioat();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.write(CHANERRMASK, 0x100u32);
    channel.post(8, COMPLETE, 0x5000_0000, DESTINATION);
    let good = channel.post(8, COMPLETE, SOURCE, DESTINATION);
    channel.ring_doorbell();
    channel.wait_for(good);
    assert_eq!((channel.errors(), channel.status()), (0x100, good | 0x10 | IDLE));
    channel.write(CHANERR, 0x100u32);
    assert_eq!(channel.status(), good | IDLE);
}

#[test]
fn a_doorbell_before_the_chain_is_a_driver_fault_and_taken_back() {
    for mapped_doorbells in [true, false] {
        let bench = Bench::new(StubKind::Ioat, StubOptions { mapped_doorbells, ..StubOptions::default() });
        bench.write(0x86, 3u16);
        wait_until("the doorbell", || bench.read::<u16>(0x86) == 0);
        assert_eq!(bench.faults(), ["channel 0 has no chain yet and got a doorbell"]);
        assert_eq!(bench.read::<u64>(0x80 + CHANSTS), HALTED);
    }
}

#[test]
fn a_doorbell_for_a_halted_channel_is_a_driver_fault() {
    let bench = ioat();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.post(0, COMPLETE, SOURCE, DESTINATION);
    channel.ring_doorbell();
    channel.wait_for_state(HALTED);
    channel.post(8, COMPLETE, SOURCE, DESTINATION);
    channel.ring_doorbell();
    wait_until("the doorbell", || channel.read::<u16>(DMACOUNT) == 1);
    assert_eq!(bench.faults(), ["channel 0 is halted and got a doorbell"]);
}

#[test]
fn work_without_bus_mastering_is_a_driver_fault_and_moves_nothing() {
    let bench = ioat();
    let destination = bench.map(0x9000_0000, 4096, Permissions::Write);
    bench.function.set_bus_master(false).unwrap();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.post(8, COMPLETE, SOURCE, 0x9000_0000);
    channel.ring_doorbell();
    channel.wait_for_state(HALTED);
    assert_eq!(bench.faults(), ["work was handed over while bus mastering is off"]);
    assert_eq!(channel.word(), 0, "nor is a completion word written");
    assert_eq!(bytes(&destination), vec![0; 4096]);
    assert_eq!(bench.node.iommu().faults()[0].reason, FaultReason::BusMasterOff);
}

#[test]
fn a_doorbell_while_decoding_is_off_never_arrives() {
    let bench = ioat();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.post(8, COMPLETE, SOURCE, DESTINATION);
    bench.function.config().write16(COMMAND, BUS_MASTER).unwrap();
    channel.ring_doorbell();
    bench.function.config().write16(COMMAND, BUS_MASTER | MEMORY).unwrap();
    assert_eq!(channel.read::<u16>(DMACOUNT), 0);
    assert_eq!((channel.status(), channel.word()), (ARMED, 0));
    assert_eq!(bench.faults(), ["memory decoding is off in the command register"]);
    channel.ring_doorbell();
    channel.wait_for(channel.address(0));
}

#[test]
fn commands_that_do_not_exist_halt_and_those_out_of_place_are_refused() {
    let bench = ioat();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(8, SOURCE, DESTINATION);
    channel.command(0x01);
    assert_eq!((channel.status() & 7, bench.faults().len()), (IDLE, 1), "START is of version 1");
    channel.command(SUSPEND | RESUME);
    assert_eq!((channel.status() & 7, channel.errors()), (HALTED, 0x20));
    assert_eq!(bench.faults().len(), 2);
    channel.command(SUSPEND);
    channel.command(ABORT);
    assert_eq!(bench.faults().len(), 2, "stopping what is stopped is no fault");
}

#[test]
fn registers_take_their_own_width_only() {
    let bench = ioat();
    assert_eq!(bench.read::<u16>(0x00), 0xffff);
    assert_eq!(bench.read::<u32>(0x84), u32::MAX, "command and count together");
    assert_eq!(bench.read::<u32>(0x40), u32::MAX, "there is nothing");
    assert_eq!(bench.read::<u32>(0x1000), u32::MAX);
    bench.write(0x90, 0x1234_5678_9abc_de40u64);
    assert_eq!(bench.read::<u64>(0x90), 0, "no 64-bit write");
    bench.write(0x08, 1u8);
    assert_eq!(bench.read::<u8>(0x08), 0x32);
    bench.write(0x90, 0x40u32);
    bench.write(0x94, 0x12u32);
    assert_eq!((bench.read::<u64>(0x90), bench.read::<u32>(0x94)), (0x12_0000_0040, 0x12));
    assert_eq!(
        bench.faults(),
        [
            "the register has no 16-bit access",
            "the register has no 32-bit access",
            "there is no register",
            "the register has no 64-bit access",
            "the register is read only",
        ]
    );
    assert_eq!(bench.node.driver_fault_count(), 6);
}
