//! Open and close, removal, and everything at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::bar::{BarError, LivenessState};
use vdk_hal::config::ConfigError;
use vdk_hal::dma::Permissions;
use vdk_hal::event::DeviceEvent;
use vdk_hal::function::{OpenError, PciNode};
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind};
use vdk_hal::memory::SharedMemory;
use vdk_hal::reset::{ResetError, ResetKind};

use crate::harness::*;

const SOURCE: u64 = 0x4000_0000;
const DESTINATION: u64 = 0x8000_0000;

fn ioat() -> Bench {
    Bench::new(StubKind::Ioat, StubOptions::default())
}

#[test]
fn a_function_is_open_once_and_the_error_names_the_holder() {
    let bench = ioat();
    let error = bench.node.open().err().unwrap();
    let OpenError::Busy { function, holder } = &error else { panic!("{error}") };
    assert_eq!(function, "stub:ioat");
    assert!(holder.starts_with(&format!("process {}", std::process::id())), "{holder}");
    bench.function.close();
    assert!(bench.node.open().is_ok());
}

#[test]
fn every_handle_of_a_closed_session_says_so() {
    let bench = ioat();
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Msix, &[Some(event.clone())]).unwrap();
    let doorbell = bench.bar.mapped_areas()[0].memory.clone();
    bench.function.close();
    bench.function.close();
    let bar = bar0();
    assert_eq!(bench.bar.read::<u8>(8), Err(BarError::NotOpen { bar }));
    assert_eq!(bench.bar.write(3, 1u8), Err(BarError::NotOpen { bar }));
    assert_eq!(bench.bar.liveness(), LivenessState::Closed);
    assert_eq!(bench.function.config().read16(0), Err(ConfigError::NotOpen));
    assert_eq!(bench.function.config().write16(COMMAND, MEMORY), Err(ConfigError::NotOpen));
    assert_eq!(bench.function.set_bus_master(true), Err(ConfigError::NotOpen));
    assert!(matches!(bench.function.bar(bar), Err(BarError::NotOpen { .. })));
    assert!(matches!(bench.function.reset(ResetKind::FunctionLevel), Err(ResetError::System { .. })));
    let interrupts = bench.function.interrupts();
    assert_eq!(interrupts.enable(InterruptKind::Msi, &[None]), Err(InterruptError::NotOpen));
    assert_eq!(interrupts.self_test(InterruptKind::Msix, 0), Err(InterruptError::NotOpen));
    assert_eq!(interrupts.disable_all(InterruptKind::Msix), Ok(()));
    assert_eq!(event.take(), 0);
    // The next session is not reached by what the last one left.
    let next = Bench::open(Arc::clone(&bench.node));
    doorbell.store(0, 1u16, Ordering::Relaxed).unwrap();
    assert_eq!(bench.bar.write(DMACOUNT + 0x80, 1u16), Err(BarError::NotOpen { bar }));
    assert_eq!(interrupts.enable(InterruptKind::Msi, &[None]), Err(InterruptError::NotOpen));
    assert_eq!(next.read::<u16>(0x86), 0);
    assert_eq!(next.faults(), Vec::<String>::new());
}

#[test]
fn a_new_session_finds_a_reset_function_with_bus_mastering_off() {
    let bench = ioat();
    bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(8, SOURCE, SOURCE + 64);
    let node = Arc::clone(&bench.node);
    drop(channel);
    drop(bench);
    let function = node.open().unwrap();
    assert_eq!(function.config().read16(COMMAND), Ok(0));
    assert_eq!(function.interrupts().enabled(), None);
    function.config().write16(COMMAND, MEMORY).unwrap();
    assert_eq!(function.bar(bar0()).unwrap().read::<u64>(0x80 + CHANSTS), Ok(HALTED));
}

#[test]
fn an_edu_without_reset_is_quiet_for_the_next_session() {
    let bench = Bench::edu();
    bench.write(0x04, 5u32);
    bench.write(0x60, 1u32);
    bench.write(0x98, 1u64);
    let node = Arc::clone(&bench.node);
    drop(bench);
    let next = Bench::open(node);
    assert_eq!((next.read::<u32>(0x24), next.read::<u64>(0x98)), (0, 0));
    assert_eq!(next.read::<u32>(0x04), !5, "the rest is as it was: there is no reset");
}

#[test]
fn mappings_of_one_session_are_not_those_of_the_next() {
    let bench = ioat();
    let left = bench.map(SOURCE, 4096, Permissions::ReadWrite);
    let node = Arc::clone(&bench.node);
    drop(bench);
    let next = Bench::open(node);
    let mut channel = Channel::start(&next, 0, 16);
    channel.post(8, COMPLETE, SOURCE, SOURCE + 8);
    channel.ring_doorbell();
    channel.wait_for_state(HALTED);
    assert_eq!(bytes(&left), vec![0; 4096]);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_sessions_leave_no_file_open() {
    let node = StubNode::new(StubKind::Ioat, StubOptions::default()).unwrap();
    // Other tests of this process open files meanwhile: look at the difference per session.
    let before = open_files();
    for _ in 0..1000 {
        let bench = Bench::open(Arc::clone(&node));
        assert_eq!(bench.read::<u8>(0), 2);
    }
    let after = open_files();
    assert!(after < before + 500, "{before} files were open, now {after}");
}

#[test]
fn after_removal_everything_fails_and_the_session_is_told() {
    let bench = ioat();
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Msix, &[Some(event.clone())]).unwrap();
    let mut channel = Channel::start(&bench, 0, 16);
    bench.node.remove();
    bench.node.remove();
    let bar = bar0();
    assert_eq!(bench.bar.read::<u8>(8), Err(BarError::DeviceGone { bar }));
    assert_eq!(bench.bar.write(3, 1u8), Err(BarError::DeviceGone { bar }));
    assert_eq!(bench.bar.flush(4), Err(BarError::DeviceGone { bar }));
    assert_eq!(bench.function.config().read16(0), Err(ConfigError::DeviceGone));
    assert_eq!(bench.function.set_bus_master(false), Err(ConfigError::DeviceGone));
    assert_eq!(bench.node.identity(), Err(ConfigError::DeviceGone));
    assert!(matches!(bench.function.reset(ResetKind::FunctionLevel), Err(ResetError::Gone { .. })));
    let interrupts = bench.function.interrupts();
    assert_eq!(interrupts.enable(InterruptKind::Msi, &[None]), Err(InterruptError::Gone));
    assert_eq!(interrupts.disable_all(InterruptKind::Msix), Ok(()));
    assert_eq!(bench.function.events().next(), Some(DeviceEvent::Removed));
    assert_eq!(bench.function.events().next(), None, "told once");
    // A mapped doorbell is only memory.
    channel.announced = 1;
    let doorbell = bench.bar.mapped_areas()[0].clone();
    doorbell.memory.store(0, 1u16, Ordering::Release).unwrap();
    doorbell.kick.unwrap().after_write();
    bench.function.close();
    assert!(matches!(bench.node.open(), Err(OpenError::Gone { .. })));
    assert_eq!(event.take(), 0);
}

#[test]
fn a_release_request_reaches_the_session_and_closing_answers_it() {
    let bench = ioat();
    bench.node.request_release();
    bench.node.request_release();
    assert!(bench.function.events().event().wait(core::time::Duration::ZERO).unwrap());
    assert_eq!(bench.function.events().next(), Some(DeviceEvent::ReleaseRequested));
    assert_eq!(bench.function.events().next(), None, "the same request is not queued twice");
    bench.function.close();
    bench.node.request_release();
    let next = Bench::open(Arc::clone(&bench.node));
    assert_eq!(next.function.events().next(), None, "it was meant for the last session");
}

/// Keeps a channel copying until the test says stop, counting on nothing.
fn keep_busy(bench: &Bench, stop: &AtomicBool) {
    let mut channel = Channel::start(bench, 0, 1024);
    let mut from = 0;
    while !stop.load(Ordering::Relaxed) && bench.bar.liveness() == LivenessState::Live {
        for _ in 0..200 {
            channel.post(4096, COMPLETE, SOURCE + from, DESTINATION + from);
            from = (from + 4096) % (1 << 20);
        }
        let doorbell = 0x80 + DMACOUNT;
        vdk_hal::barrier::dma_wmb();
        if bench.bar.write(doorbell, channel.announced).is_err() {
            return;
        }
        std::thread::yield_now();
    }
}

fn snapshot_stays(memory: &SharedMemory) -> bool {
    let before = bytes(memory);
    std::thread::sleep(core::time::Duration::from_millis(20));
    before == bytes(memory)
}

#[test]
fn removal_in_the_middle_of_a_copy_ends_it() {
    for _ in 0..10 {
        let bench = ioat();
        let source = bench.map(SOURCE, 1 << 20, Permissions::Read);
        let destination = bench.map(DESTINATION, 1 << 20, Permissions::Write);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| keep_busy(&bench, &stop));
            wait_until("some work", || bench.node.statistics().descriptors > 500);
            bench.node.remove();
            source.fill(0, 1 << 20, 0xff).unwrap();
            assert!(snapshot_stays(&destination), "a byte moved after the removal");
            stop.store(true, Ordering::Relaxed);
        });
        // Unmapping works as ever.
        bench.unmap(SOURCE, 1 << 20);
        bench.unmap(DESTINATION, 1 << 20);
    }
}

#[test]
fn an_unmap_in_the_middle_of_a_copy_ends_it_with_a_fault() {
    for _ in 0..10 {
        let bench = ioat();
        let source = bench.map(SOURCE, 1 << 20, Permissions::Read);
        let destination = bench.map(DESTINATION, 1 << 20, Permissions::Write);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| keep_busy(&bench, &stop));
            wait_until("some work", || bench.node.statistics().descriptors > 500);
            bench.unmap(DESTINATION, 1 << 20);
            source.fill(0, 1 << 20, 0xff).unwrap();
            assert!(snapshot_stays(&destination), "a byte was written after the unmap");
            wait_until("the halt", || bench.read::<u64>(0x88) & 7 == HALTED);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(bench.read::<u32>(0xa8) & 0x200, 0x200, "write data error");
        assert_eq!(bench.node.iommu().fault_count(), 1);
    }
}

#[test]
fn trapped_accesses_get_in_while_the_device_is_busy() {
    let bench = ioat();
    bench.map(SOURCE, 1 << 20, Permissions::Read);
    bench.map(DESTINATION, 1 << 20, Permissions::Write);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| keep_busy(&bench, &stop));
        wait_until("some work", || bench.node.statistics().descriptors > 500);
        let before = bench.node.statistics().descriptors;
        for _ in 0..2000 {
            assert_eq!(bench.read::<u8>(0x08), 0x32);
        }
        wait_until("more work", || bench.node.statistics().descriptors > before);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(bench.faults(), Vec::<String>::new());
}

#[test]
fn a_device_that_sleeps_hears_every_doorbell() {
    for mapped_doorbells in [true, false] {
        let options =
            StubOptions { spin: core::time::Duration::ZERO, mapped_doorbells, ..StubOptions::default() };
        let bench = Bench::new(StubKind::Ioat, options);
        bench.map(SOURCE, 4096, Permissions::ReadWrite);
        let mut channel = Channel::start(&bench, 0, 16);
        for _ in 0..2000 {
            channel.copy(8, SOURCE, SOURCE + 64);
        }
        assert_eq!(bench.node.statistics().descriptors, 2000);
        // It may have been awake each time, so it is left alone until one doorbell wakes it.
        let begun = std::time::Instant::now();
        while bench.node.statistics().wakeups == 0 {
            assert!(begun.elapsed() < core::time::Duration::from_secs(20), "it never slept");
            std::thread::sleep(core::time::Duration::from_millis(1));
            channel.copy(8, SOURCE, SOURCE + 64);
        }
    }
}

/// One step of a driver that knows no order.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(usize),
    Submit(u32),
    Copy,
    Command(u8),
    ClearErrors,
    FunctionReset,
    PowerCycle,
    BusMaster(bool),
    Decoding(bool),
    Reopen,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..8usize).prop_map(Step::Begin),
        4 => (0..3000u32).prop_map(Step::Submit),
        3 => Just(Step::Copy),
        2 => prop_oneof![Just(RESET), Just(SUSPEND), Just(RESUME), Just(ABORT), Just(APPEND), any::<u8>()]
            .prop_map(Step::Command),
        1 => Just(Step::ClearErrors),
        1 => Just(Step::FunctionReset),
        1 => Just(Step::PowerCycle),
        1 => any::<bool>().prop_map(Step::BusMaster),
        1 => any::<bool>().prop_map(Step::Decoding),
        1 => Just(Step::Reopen),
    ]
}

/// Brings the function to work again whatever was done to it, and copies once.
fn recover_and_copy(bench: &Bench) {
    bench.function.reset(ResetKind::FunctionLevel).unwrap();
    bench.function.config().write16(COMMAND, MEMORY | BUS_MASTER).unwrap();
    let domain = bench.function.dma();
    for (start, length) in [(RING, 4096), (COMPLETION, 4096), (SOURCE, 4096), (DESTINATION, 4096)] {
        let start = vdk_hal::address::Iova::new(start);
        let length = vdk_hal::address::ByteLength::new(length);
        // What the steps have mapped is taken away, if they have.
        let _ = domain.unmap(vdk_hal::address::IovaRange::new(start, length).unwrap());
    }
    let source = bench.map(SOURCE, 4096, Permissions::Read);
    let destination = bench.map(DESTINATION, 4096, Permissions::Write);
    let data = pattern(5, 4096);
    source.write(0, &data).unwrap();
    let mut channel = Channel::start(bench, 0, 8);
    channel.copy(4096, SOURCE, DESTINATION);
    assert_eq!(bytes(&destination), data);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_steps_leaves_a_function_that_can_be_reset_and_used(
        steps in prop::collection::vec(any_step(), 0..40),
        mapped_doorbells in any::<bool>(),
    ) {
        let options = StubOptions { mapped_doorbells, ..StubOptions::default() };
        let node = StubNode::new(StubKind::Ioat, options).unwrap();
        let mut bench = Bench::open(Arc::clone(&node));
        bench.map(RING, 4096, Permissions::Read);
        bench.map(SOURCE, 4096, Permissions::ReadWrite);
        let mut count = 0u16;
        for step in steps {
            let channel = 0x80;
            match step {
                Step::Begin(slot) => {
                    bench.write(channel + CHANCMP, SOURCE as u32);
                    bench.write(channel + CHANCMP + 4, 0u32);
                    bench.write(channel + CHAINADDR, RING as u32 + slot as u32 * 64);
                    bench.write(channel + CHAINADDR + 4, 0u32);
                    count = 0;
                }
                Step::Submit(more) => {
                    count = count.wrapping_add(more as u16);
                    bench.write(channel + DMACOUNT, count);
                }
                Step::Copy => {
                    let _ = bench.read::<u64>(channel + CHANSTS);
                }
                Step::Command(command) => bench.write(channel + CHANCMD, command),
                Step::ClearErrors => bench.write(channel + CHANERR, u32::MAX),
                Step::FunctionReset => bench.function.reset(ResetKind::FunctionLevel).unwrap(),
                Step::PowerCycle => bench.function.reset(ResetKind::PowerManagement).unwrap(),
                Step::BusMaster(on) => bench.function.set_bus_master(on).unwrap(),
                Step::Decoding(on) => {
                    let command = if on { MEMORY | BUS_MASTER } else { 0 };
                    bench.function.config().write16(COMMAND, command).unwrap();
                }
                Step::Reopen => {
                    bench.function.close();
                    bench = Bench::open(Arc::clone(&node));
                    bench.map(RING, 4096, Permissions::Read);
                }
            }
        }
        recover_and_copy(&bench);
        bench.function.close();
    }
}
