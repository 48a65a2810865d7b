//! Fault plans at work.

use core::time::Duration;
use std::time::Instant;

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::bar::{BarError, LivenessState};
use vdk_hal::config::ConfigError;
use vdk_hal::dma::Permissions;
use vdk_hal::event::DeviceEvent;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::reset::ResetKind;

use crate::harness::*;

const MEMORY_AT: u64 = 0x4000_0000;

fn ioat(plan: &str) -> (Bench, EventFd) {
    let options = StubOptions { fault_plan: plan.parse().unwrap(), seed: 11, ..StubOptions::default() };
    let bench = Bench::new(StubKind::Ioat, options);
    bench.map(MEMORY_AT, 4096, Permissions::ReadWrite);
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Msix, &[Some(event.clone())]).unwrap();
    bench.write(0x03, 0x09u8);
    (bench, event)
}

fn post(channel: &mut Channel<'_>) -> u64 {
    channel.write(CHANCTRL, 0x001du16);
    let address = channel.post(8, COMPLETE | INTERRUPT, MEMORY_AT, MEMORY_AT + 64);
    channel.ring_doorbell();
    address
}

#[test]
fn a_dropped_completion_is_missing_and_the_next_one_is_there() {
    let (bench, event) = ioat("drop-completion@2");
    let mut channel = Channel::start(&bench, 0, 16);
    let first = post(&mut channel);
    channel.wait_for(first);
    let second = post(&mut channel);
    channel.wait_for_state(IDLE);
    assert_eq!((channel.word(), channel.status()), (first | IDLE, second | IDLE));
    assert_eq!(event.take(), 1);
    let third = post(&mut channel);
    channel.wait_for(third);
    wait_until("the interrupt", || event.take() == 1);
}

#[test]
fn a_completion_fault_waits_for_a_descriptor_that_asks_for_one() {
    let (bench, _) = ioat("drop-completion@1");
    let mut channel = Channel::start(&bench, 0, 16);
    channel.post(8, 0, MEMORY_AT, MEMORY_AT + 64);
    channel.post(8, COMPLETE, MEMORY_AT, MEMORY_AT + 64);
    channel.ring_doorbell();
    channel.wait_for_state(IDLE);
    assert_eq!(channel.word(), 0);
    channel.copy(8, MEMORY_AT, MEMORY_AT + 64);
}

#[test]
fn a_delayed_completion_comes_later_and_holds_up_the_channel() {
    let (bench, event) = ioat("delay-completion@2:2s");
    let mut channel = Channel::start(&bench, 0, 16);
    let begin = Instant::now();
    let first = post(&mut channel);
    channel.wait_for(first);
    wait_until("the interrupt", || event.take() == 1);
    let second = channel.post(8, COMPLETE | INTERRUPT, MEMORY_AT, MEMORY_AT + 64);
    let third = channel.post(8, COMPLETE, MEMORY_AT, MEMORY_AT + 128);
    channel.write(CHANCTRL, 0x001du16);
    channel.ring_doorbell();
    wait_until("the second descriptor", || bench.node.statistics().descriptors >= 2);
    assert_eq!(channel.status(), second | ACTIVE);
    channel.wait_for(third);
    assert!(begin.elapsed() >= Duration::from_secs(2));
    assert_eq!((event.take(), channel.status()), (1, third | IDLE));
}

#[test]
fn a_duplicate_reports_the_old_completion_before_the_new_one() {
    let (bench, event) = ioat("duplicate-completion@1");
    let mut channel = Channel::start(&bench, 0, 16);
    let first = post(&mut channel);
    channel.wait_for(first);
    wait_until("the interrupt", || event.take() == 1);
    channel.completion.store(0, 0u64, core::sync::atomic::Ordering::Relaxed).unwrap();
    let second = post(&mut channel);
    wait_until("a completion", || channel.word() != 0);
    // The stale one was there first, whether this thread was in time to see it or not.
    channel.wait_for(second);
    wait_until("all completions to be counted", || bench.node.statistics().completions == 3);
    wait_until("the interrupt", || event.take() == 1);
    channel.write(CHANCTRL, 0x001du16);
    assert_eq!(event.take(), 1, "the interrupt of the real one waited to be allowed");
}

#[test]
fn a_corrupt_completion_names_a_wrong_descriptor_the_same_with_the_same_seed() {
    let word = || {
        let (bench, _) = ioat("corrupt-completion@1");
        let mut channel = Channel::start(&bench, 0, 16);
        let address = post(&mut channel);
        wait_until("a completion", || channel.word() != 0);
        assert_ne!(channel.word() & !0x3f, address);
        assert_eq!(channel.word() & 0x3f, IDLE);
        assert_eq!(channel.status(), address | IDLE);
        channel.word()
    };
    assert_eq!(word(), word());
}

#[test]
fn a_halt_has_the_code_of_the_plan_and_strikes_once() {
    let (bench, event) = ioat("ch1.halt@1:0x40, halt@3:0x80");
    let mut channel = Channel::start(&bench, 0, 16);
    let good = [post(&mut channel), post(&mut channel)];
    post(&mut channel);
    channel.wait_for_state(HALTED);
    assert_eq!((channel.errors(), channel.status()), (0x80, good[1] | HALTED));
    assert_eq!(channel.word(), good[1] | HALTED);
    event.drain();
    channel.command(RESET);
    channel.begin(5);
    let address = post(&mut channel);
    channel.wait_for(address);
}

#[test]
fn a_channel_that_stops_obeys_only_a_reset_of_the_function() {
    let (bench, _) = ioat("ch0.stop@2");
    let mut channel = Channel::start(&bench, 0, 16);
    let first = post(&mut channel);
    channel.wait_for(first);
    post(&mut channel);
    let written = core::cell::Cell::new(0u32);
    wait_until("the stop", || {
        written.set(written.get() + 1);
        channel.write(CHANERRMASK, written.get());
        channel.read::<u32>(CHANERRMASK) != written.get()
    });
    assert_eq!(channel.status() & 7, ACTIVE);
    channel.command(RESET);
    assert_eq!(channel.read::<u8>(CHANCMD), RESET, "the reset does not end");
    assert_eq!(channel.word(), first | IDLE);
    let mut other = Channel::start(&bench, 1, 16);
    other.copy(8, MEMORY_AT, MEMORY_AT + 64);
    bench.function.reset(ResetKind::FunctionLevel).unwrap();
    bench.function.config().write16(COMMAND, MEMORY | BUS_MASTER).unwrap();
    assert_eq!(channel.read::<u8>(CHANCMD), 0);
    channel.begin(0);
    channel.copy(8, MEMORY_AT, MEMORY_AT + 64);
}

#[test]
fn a_function_that_answers_all_ones_swallows_writes_and_tells_nobody() {
    let (bench, _) = ioat("all-ones@2");
    let mut channel = Channel::start(&bench, 0, 16);
    let first = post(&mut channel);
    channel.wait_for(first);
    post(&mut channel);
    let bar = bar0();
    wait_until("the loss", || bench.bar.read::<u8>(8) == Err(BarError::DeviceGone { bar }));
    assert_eq!(bench.bar.liveness(), LivenessState::Live);
    assert_eq!(bench.bar.write(0x80, 1u16), Ok(()), "a posted write looks fine");
    assert_eq!(bench.bar.flush(4), Err(BarError::DeviceGone { bar }));
    assert_eq!(bench.function.config().read16(0), Err(ConfigError::DeviceGone));
    assert_eq!(bench.function.config().write16(COMMAND, 0), Ok(()));
    assert_eq!(bench.function.events().next(), None);
    assert_eq!(channel.word(), first | IDLE);
    bench.function.close();
}

#[test]
fn a_function_that_vanishes_is_removed_in_the_middle_of_a_batch() {
    let (bench, _) = ioat("vanish@100");
    let mut channel = Channel::start(&bench, 0, 256);
    for _ in 0..200 {
        channel.post(8, COMPLETE, MEMORY_AT, MEMORY_AT + 64);
    }
    channel.ring_doorbell();
    assert!(bench.function.events().event().wait(Duration::from_secs(20)).unwrap());
    assert_eq!(bench.bar.liveness(), LivenessState::Gone);
    assert_eq!(bench.function.events().next(), Some(DeviceEvent::Removed));
    assert_eq!(bench.node.statistics().descriptors, 99);
    assert_eq!(channel.word() & !0x3f, channel.address(98));
}

#[test]
fn a_plan_can_be_replaced_and_counts_anew() {
    let (bench, _) = ioat("halt@1:0x1");
    bench.node.set_fault_plan(&"halt@2:0x2".parse().unwrap());
    let mut channel = Channel::start(&bench, 0, 16);
    post(&mut channel);
    post(&mut channel);
    channel.wait_for_state(HALTED);
    assert_eq!(channel.errors(), 0x2);
}

#[test]
fn an_edu_loses_its_completion_or_is_late() {
    for (plan, ends) in [("drop-completion@1", false), ("delay-completion@1:10ms", true)] {
        let options = StubOptions { fault_plan: plan.parse().unwrap(), ..StubOptions::default() };
        let bench = Bench::new(StubKind::Edu, options);
        bench.map(0x10_0000, 4096, Permissions::ReadWrite);
        let begin = Instant::now();
        bench.write(0x80, 0x10_0000u64);
        bench.write(0x88, 0x4_0000u64);
        bench.write(0x90, 16u64);
        bench.write(0x98, 1u64);
        if ends {
            wait_until("the transfer", || bench.read::<u64>(0x98) & 1 == 0);
            assert!(begin.elapsed() >= Duration::from_millis(10));
        } else {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(bench.read::<u64>(0x98) & 1, 1, "it runs for ever");
        }
    }
}
