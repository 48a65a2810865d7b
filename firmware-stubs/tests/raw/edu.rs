//! The educational device.

use core::time::Duration;

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::dma::Permissions;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_iommu::soft::FaultReason;

use crate::harness::*;

const MEMORY_AT: u64 = 0x10_0000;
const BUFFER: u64 = 0x4_0000;

fn transfer(bench: &Bench, source: u64, destination: u64, count: u64, command: u64) {
    bench.write(0x80, source);
    bench.write(0x88, destination);
    bench.write(0x90, count);
    bench.write(0x98, command | 1);
    wait_until("the transfer", || bench.read::<u64>(0x98) & 1 == 0);
}

#[test]
fn it_identifies_itself_and_inverts_what_is_written() {
    let bench = Bench::edu();
    assert_eq!(bench.read::<u32>(0x00), 0x0100_00ed);
    bench.write(0x04, 0x1234_5678u32);
    assert_eq!(bench.read::<u32>(0x04), 0xedcb_a987);
    assert_eq!(bench.faults(), Vec::<String>::new());
}

#[test]
fn it_computes_factorials_and_says_when_it_is_ready() {
    let bench = Bench::edu();
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Msi, &[Some(event.clone())]).unwrap();
    for (number, factorial) in [(0u32, 1u32), (10, 3_628_800), (13, 1_932_053_504), (1_000_000, 0)] {
        bench.write(0x08, number);
        wait_until("the factorial", || bench.read::<u32>(0x20) & 1 == 0);
        assert_eq!(bench.read::<u32>(0x08), factorial);
    }
    assert_eq!(event.take(), 0);
    bench.write(0x20, 0xffu32);
    assert_eq!(bench.read::<u32>(0x20), 0x80);
    bench.write(0x08, 5u32);
    assert!(event.wait(Duration::from_secs(20)).unwrap());
    assert_eq!((bench.read::<u32>(0x08), bench.read::<u32>(0x24)), (120, 1));
    bench.write(0x64, 1u32);
    assert_eq!(bench.read::<u32>(0x24), 0);
}

#[test]
fn bytes_go_into_the_buffer_and_back() {
    let bench = Bench::edu();
    let memory = bench.map(MEMORY_AT, 8192, Permissions::ReadWrite);
    let data = pattern(1, 4096);
    memory.write(0, &data).unwrap();
    transfer(&bench, MEMORY_AT, BUFFER, 4096, 0);
    transfer(&bench, BUFFER + 100, MEMORY_AT + 4096, 3996, 2);
    let all = bytes(&memory);
    assert_eq!(all[..4096], data[..]);
    assert_eq!(all[4096..8092], data[100..]);
    assert_eq!(all[8092..], [0; 100]);
    let statistics = bench.node.statistics();
    assert_eq!((statistics.descriptors, statistics.bytes, statistics.doorbells), (2, 8092, 2));
    assert_eq!(bench.faults(), Vec::<String>::new());
}

#[test]
fn a_transfer_interrupts_when_it_was_asked_to() {
    let bench = Bench::edu();
    bench.map(MEMORY_AT, 4096, Permissions::ReadWrite);
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Intx, &[Some(event.clone())]).unwrap();
    transfer(&bench, MEMORY_AT, BUFFER, 16, 0);
    assert_eq!(event.take(), 0);
    transfer(&bench, MEMORY_AT, BUFFER, 16, 4);
    assert_eq!((event.take(), bench.read::<u32>(0x24)), (1, 0x100));
}

#[test]
fn a_transfer_that_leaves_the_buffer_moves_nothing() {
    let bench = Bench::edu();
    let memory = bench.map(MEMORY_AT, 8192, Permissions::ReadWrite);
    memory.fill(0, 8192, 0x5a).unwrap();
    for (address, count) in [(BUFFER - 1, 16), (BUFFER + 4090, 7), (BUFFER, 4097), (0, 1), (BUFFER, u64::MAX)]
    {
        transfer(&bench, address, MEMORY_AT, count, 2);
        transfer(&bench, MEMORY_AT, address, count, 0);
    }
    assert_eq!(bench.node.driver_fault_count(), 10);
    assert!(bench.faults()[0].ends_with("leaves the device's buffer"), "{:?}", bench.faults());
    transfer(&bench, BUFFER, MEMORY_AT, 4096, 2);
    let all = bytes(&memory);
    assert!(all[..4096].iter().all(|byte| *byte == 0), "the buffer was not written either");
    assert!(all[4096..].iter().all(|byte| *byte == 0x5a));
    assert_eq!(bench.node.iommu().fault_count(), 0);
}

#[test]
fn addresses_beyond_the_mask_are_refused() {
    let bench = Bench::edu();
    let high = 1 << 28;
    bench.map(high - 4096, 8192, Permissions::ReadWrite);
    transfer(&bench, high - 16, BUFFER, 16, 0);
    assert_eq!(bench.faults(), Vec::<String>::new());
    transfer(&bench, high - 15, BUFFER, 16, 0);
    assert_eq!(bench.faults(), ["address 0xffffff1 does not fit the 28 bits that the device drives"]);
    let wide = Bench::new(StubKind::Edu, StubOptions { address_bits: 40, ..StubOptions::default() });
    wide.map(high - 4096, 8192, Permissions::ReadWrite);
    transfer(&wide, high - 15, BUFFER, 16, 0);
    assert_eq!(wide.faults(), Vec::<String>::new());
}

#[test]
fn the_iommu_is_asked_in_the_right_direction() {
    let bench = Bench::edu();
    bench.map(MEMORY_AT, 4096, Permissions::Read);
    transfer(&bench, MEMORY_AT, BUFFER, 16, 0);
    transfer(&bench, BUFFER, MEMORY_AT, 16, 2);
    transfer(&bench, MEMORY_AT + 4096, BUFFER, 16, 0);
    let reasons: Vec<FaultReason> = bench.node.iommu().faults().iter().map(|fault| fault.reason).collect();
    assert_eq!(reasons, [FaultReason::NotWritable, FaultReason::NotMapped]);
    assert_eq!(bench.function.config().read16(STATUS).unwrap() & 0x2000, 0x2000, "master abort");
}

#[test]
fn registers_are_locked_while_a_transfer_runs() {
    let options = StubOptions { transfer_time: Duration::from_secs(3600), ..StubOptions::default() };
    let bench = Bench::new(StubKind::Edu, options);
    bench.write(0x80, 0x1000u64);
    bench.write(0x98, 1u64);
    for register in [0x80, 0x88, 0x90, 0x98] {
        bench.write(register, 7u64);
    }
    assert_eq!((bench.read::<u64>(0x80), bench.read::<u64>(0x98)), (0x1000, 1));
    assert_eq!(bench.faults(), ["a transfer is running"]);
    assert_eq!(bench.node.driver_fault_count(), 4);
}

#[test]
fn widths_and_holes_are_as_the_specification_has_them() {
    let bench = Bench::edu();
    assert_eq!(bench.read::<u64>(0x00), u64::MAX);
    assert_eq!(bench.read::<u8>(0x04), 0xff);
    assert_eq!(bench.read::<u16>(0x80), 0xffff);
    assert_eq!(bench.read::<u32>(0x0c), u32::MAX);
    assert_eq!(bench.read::<u32>(BUFFER), u32::MAX, "the buffer is not in the BAR");
    assert_eq!(bench.read::<u32>(0x60), u32::MAX);
    bench.write(0x00, 5u32);
    bench.write(0x80, 0x8000_0000u32);
    assert_eq!((bench.read::<u64>(0x80), bench.read::<u32>(0x80)), (0x8000_0000, 0x8000_0000));
    assert_eq!(
        bench.faults(),
        [
            "the register has no 64-bit access",
            "the register has no 8-bit access",
            "the register has no 16-bit access",
            "there is no register",
            "the register is write only",
            "the register is read only",
        ]
    );
}
