//! The interrupts of an I/OAT.

use core::time::Duration;

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::dma::Permissions;
use vdk_hal::interrupt::{EventFd, InterruptKind};

use crate::harness::*;

const MEMORY_AT: u64 = 0x4000_0000;

fn ioat() -> Bench {
    let bench = Bench::new(StubKind::Ioat, StubOptions::default());
    bench.map(MEMORY_AT, 4096, Permissions::ReadWrite);
    bench
}

fn events(bench: &Bench, kind: InterruptKind) -> Vec<EventFd> {
    let count = bench.function.interrupts().vector_count(kind);
    let events: Vec<EventFd> = (0..count).map(|_| EventFd::new().unwrap()).collect();
    let given: Vec<Option<EventFd>> = events.iter().cloned().map(Some).collect();
    bench.function.interrupts().enable(kind, &given).unwrap();
    events
}

fn take(event: &EventFd) -> u64 {
    assert!(event.wait(Duration::from_secs(20)).unwrap(), "no interrupt");
    event.take()
}

fn post_interrupt(channel: &mut Channel<'_>) {
    let address = channel.post(8, COMPLETE | INTERRUPT, MEMORY_AT, MEMORY_AT + 64);
    channel.ring_doorbell();
    channel.wait_for(address);
}

#[test]
fn each_channel_has_its_vector_and_sends_once_until_it_is_rearmed() {
    let bench = ioat();
    let events = events(&bench, InterruptKind::Msix);
    bench.write(0x03, 0x09u8);
    let mut channel = Channel::start(&bench, 1, 16);
    post_interrupt(&mut channel);
    assert_eq!(take(&events[1]), 1);
    assert_eq!(channel.read::<u16>(CHANCTRL) & 1, 1, "sent, and no other follows");
    post_interrupt(&mut channel);
    post_interrupt(&mut channel);
    assert_eq!(events[1].take(), 0);
    channel.write(CHANCTRL, 0x001du16);
    assert_eq!(take(&events[1]), 1, "what came meanwhile is sent once");
    channel.write(CHANCTRL, 0x001du16);
    assert_eq!((events[0].take(), events[1].take()), (0, 0));
    assert_eq!(bench.node.statistics().interrupts, [(InterruptKind::Msix, 1, 2)]);
}

#[test]
fn one_vector_for_all_channels_is_served_as_the_attention_register_says() {
    let bench = ioat();
    let event = &events(&bench, InterruptKind::Msi)[0];
    bench.write(0x03, 0x01u8);
    let mut channels = [Channel::start(&bench, 0, 16), Channel::start(&bench, 1, 16)];
    post_interrupt(&mut channels[1]);
    assert_eq!(take(event), 1);
    assert_eq!(bench.read::<u8>(0x03), 0x07, "enabled, a channel, signalled");
    assert_eq!(bench.read::<u8>(0x03), 0x02, "reading has closed the gate");
    assert_eq!(bench.read::<u32>(0x04), 0b10);
    assert_eq!(bench.read::<u32>(0x04), 0, "reading has cleared it");
    post_interrupt(&mut channels[0]);
    assert_eq!(event.take(), 0, "not before the gate is opened again");
    bench.write(0x03, 0x01u8);
    assert_eq!(take(event), 1);
    assert_eq!(bench.read::<u32>(0x04), 0b01);
}

#[test]
fn the_line_follows_attention_and_the_status_register_shows_it() {
    let bench = ioat();
    let event = &events(&bench, InterruptKind::Intx)[0];
    bench.write(0x03, 0x01u8);
    let mut channel = Channel::start(&bench, 0, 16);
    let pending = || bench.function.config().read16(STATUS).unwrap() & 0x8 != 0;
    assert!(!pending());
    post_interrupt(&mut channel);
    assert_eq!(take(event), 1);
    assert!(pending());
    bench.function.interrupts().unmask(InterruptKind::Intx, 0).unwrap();
    assert_eq!(take(event), 1, "still asserted");
    assert_eq!(bench.read::<u32>(0x04), 1);
    assert!(!pending());
    bench.function.interrupts().unmask(InterruptKind::Intx, 0).unwrap();
    assert_eq!(event.take(), 0);
}

#[test]
fn a_halt_interrupts_when_the_control_register_asks_for_it() {
    for (control, expected) in [(0x001du16, 1), (0x000d, 0)] {
        let bench = ioat();
        let events = events(&bench, InterruptKind::Msix);
        bench.write(0x03, 0x09u8);
        let mut channel = Channel::start(&bench, 0, 16);
        channel.write(CHANCTRL, control);
        channel.post(0, COMPLETE, MEMORY_AT, MEMORY_AT);
        channel.ring_doorbell();
        channel.wait_for_state(HALTED);
        assert_eq!(events[0].take(), expected);
    }
}

#[test]
fn interrupts_held_back_by_the_delay_register_become_one() {
    let bench = ioat();
    let events = events(&bench, InterruptKind::Msix);
    bench.write(0x03, 0x09u8);
    bench.write(0x0c, 0xffffu16);
    assert_eq!(bench.read::<u16>(0x0c), 0xbfff, "14 bits of delay, and the device can do it");
    let mut channel = Channel::start(&bench, 0, 16);
    post_interrupt(&mut channel);
    channel.write(CHANCTRL, 0x001du16);
    post_interrupt(&mut channel);
    assert_eq!(take(&events[0]), 1);
    assert_eq!(bench.node.statistics().interrupt_count(), 1);
}

#[test]
fn without_the_master_enable_nothing_is_sent_until_it_is_set() {
    let bench = ioat();
    let events = events(&bench, InterruptKind::Msix);
    bench.write(0x03, 0x08u8);
    let mut channel = Channel::start(&bench, 0, 16);
    post_interrupt(&mut channel);
    assert_eq!(events[0].take(), 0);
    bench.write(0x03, 0x09u8);
    assert_eq!(take(&events[0]), 1);
}

#[test]
fn no_interrupt_comes_before_its_completion_word() {
    let bench = ioat();
    let events = events(&bench, InterruptKind::Msix);
    bench.write(0x03, 0x09u8);
    let mut channel = Channel::start(&bench, 0, 64);
    for _ in 0..500 {
        let address = channel.post(8, COMPLETE | INTERRUPT, MEMORY_AT, MEMORY_AT + 64);
        channel.ring_doorbell();
        assert_eq!(take(&events[0]), 1);
        assert_eq!(channel.word() & !0x3f, address);
        channel.write(CHANCTRL, 0x001du16);
    }
}
