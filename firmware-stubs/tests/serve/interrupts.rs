//! Interrupts as QEMU sets them up.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_setfl};
use vdk_firmware_stubs::StubKind;
use vdk_hal::interrupt::EventFd;
use vdk_hal::vfio_user::message::{Command, DeviceInfo, Header, InterruptInfo, InterruptSet, region};
use zerocopy::IntoBytes;

use crate::harness::*;

const INTX: u32 = 0;
const MSI: u32 = 1;
const MSIX: u32 = 2;
const NONE_TRIGGER: u32 = InterruptSet::DATA_NONE | InterruptSet::ACTION_TRIGGER;
const FILE_TRIGGER: u32 = InterruptSet::DATA_EVENT_FILE | InterruptSet::ACTION_TRIGGER;
const BOOL_TRIGGER: u32 = InterruptSet::DATA_BOOL | InterruptSet::ACTION_TRIGGER;

fn info(client: &Client, index: u32) -> InterruptInfo {
    let request = InterruptInfo { argument_size: 16, index, ..InterruptInfo::default() };
    client.call(Command::DEVICE_GET_IRQ_INFO, &[request.as_bytes()]).unwrap().parse().unwrap().0
}

/// Makes an edu raise its interrupt.
fn raise(client: &Client) {
    client.write32(0x60, 1);
}

fn acknowledge(client: &Client) {
    client.write32(0x64, 1);
}

#[test]
fn a_line_is_masked_when_it_fires_and_shown_in_the_status_register() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let expected = InterruptInfo::EVENT_FILE | InterruptInfo::MASKABLE | InterruptInfo::AUTOMASKED;
    assert_eq!((info(&client, INTX).flags, info(&client, INTX).count), (expected, 1));
    let event = EventFd::new().unwrap();
    let status = || client.config32(4) >> 16 & 0x8;
    client.set_interrupts((INTX, 0, 1), FILE_TRIGGER, &[], &[&event]).unwrap();
    assert_eq!(status(), 0);
    for round in 0..3 {
        raise(&client);
        assert!(event.wait(LONG).unwrap(), "round {round}");
        assert_eq!((event.take(), status()), (1, 0x8));
        raise(&client);
        assert_eq!(event.take(), 0, "it is masked");
        acknowledge(&client);
        assert_eq!(status(), 0);
        let unmask = InterruptSet::DATA_NONE | InterruptSet::ACTION_UNMASK;
        client.set_interrupts((INTX, 0, 1), unmask, &[], &[]).unwrap();
    }
    client.set_interrupts((INTX, 0, 0), NONE_TRIGGER, &[], &[]).unwrap();
    raise(&client);
    assert_eq!(event.take(), 0, "it is off");
}

#[test]
fn an_event_file_can_unmask_the_line() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let (event, unmask) = (EventFd::new().unwrap(), EventFd::new().unwrap());
    client.set_interrupts((INTX, 0, 1), FILE_TRIGGER, &[], &[&event]).unwrap();
    let flags = InterruptSet::DATA_EVENT_FILE | InterruptSet::ACTION_UNMASK;
    client.set_interrupts((INTX, 0, 1), flags, &[], &[&unmask]).unwrap();
    raise(&client);
    assert!(event.wait(LONG).unwrap());
    assert_eq!(event.take(), 1);
    // Still asserted: it fires again as soon as it is unmasked.
    unmask.signal(1);
    assert!(event.wait(LONG).unwrap());
    assert_eq!((event.take(), unmask.take()), (1, 0));
}

#[test]
fn vectors_are_set_up_as_qemu_does_it() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    assert_eq!(info(&client, MSIX).count, 2);
    assert_eq!(info(&client, MSIX).flags & InterruptInfo::NO_RESIZE, 0);
    let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    // First without a file, to enable the kind and nothing more, then off, then in earnest.
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[]).unwrap();
    client.set_interrupts((MSIX, 0, 0), NONE_TRIGGER, &[], &[]).unwrap();
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[&events[0]]).unwrap();
    client.set_interrupts((MSIX, 1, 1), FILE_TRIGGER, &[], &[&events[1]]).unwrap();
    assert!(client.config32(u64::from(msix_capability(&client))) >> 31 != 0, "MSI-X is enabled");
    client.set_interrupts((MSIX, 0, 2), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(events.each_ref().map(EventFd::take), [1, 1]);
    client.set_interrupts((MSIX, 0, 2), BOOL_TRIGGER, &[0, 7], &[]).unwrap();
    assert_eq!(events.each_ref().map(EventFd::take), [0, 1]);
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[]).unwrap();
    client.set_interrupts((MSIX, 0, 2), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(events.each_ref().map(EventFd::take), [0, 1], "the first was taken away");
    for _ in 0..2 {
        client.set_interrupts((MSIX, 0, 0), NONE_TRIGGER, &[], &[]).unwrap();
    }
    assert_eq!(events.each_ref().map(EventFd::take), [0, 0], "disabling fires nothing");
    assert_eq!(client.set_interrupts((MSIX, 0, 1), NONE_TRIGGER, &[], &[]), Err(EINVAL), "it is off");
}

#[test]
fn a_reset_keeps_the_event_files_and_so_does_one_by_configuration_space() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let event = EventFd::new().unwrap();
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[&event]).unwrap();
    client.enable();
    client.call(Command::DEVICE_RESET, &[]).unwrap();
    assert_eq!(client.config32(4) & 0x6, 0, "decoding and bus mastering are off");
    client.set_interrupts((MSIX, 0, 1), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(event.take(), 1);
    let express = capability(&client, 0x10);
    client.write(region::CONFIG, u64::from(express) + 8, &0x8000u16.to_le_bytes()).unwrap();
    client.set_interrupts((MSIX, 0, 1), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(event.take(), 1);
}

#[test]
fn a_device_without_a_reset_says_so() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    assert_eq!(client.call(Command::DEVICE_RESET, &[]).err(), Some(EOPNOTSUPP));
    let request = DeviceInfo { argument_size: 16, ..DeviceInfo::default() };
    let reply = client.call(Command::DEVICE_GET_INFO, &[request.as_bytes()]).unwrap();
    let (info, _) = reply.parse::<DeviceInfo>().unwrap();
    assert_eq!((info.flags, info.regions, info.interrupts), (DeviceInfo::PCI, 9, 5));
}

#[test]
fn the_client_hears_of_errors_and_of_the_wish_to_have_the_device_back() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    client.set_interrupts((3, 0, 1), FILE_TRIGGER, &[], &[&events[0]]).unwrap();
    client.set_interrupts((4, 0, 1), FILE_TRIGGER, &[], &[&events[1]]).unwrap();
    served.node.report_error();
    assert!(events[0].wait(LONG).unwrap());
    served.node.request_release();
    assert!(events[1].wait(LONG).unwrap());
    assert_eq!(events.each_ref().map(EventFd::take), [1, 1]);
    client.set_interrupts((4, 0, 1), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(events.each_ref().map(EventFd::take), [0, 1], "the loop-back works too");
}

#[test]
fn setups_that_make_no_sense_are_refused_and_change_nothing() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let event = EventFd::new().unwrap();
    let both = [&event, &event];
    let refused = |vectors: (u32, u32, u32), flags: u32, bytes: &[u8], events: &[&EventFd], error: u32| {
        let result = client.set_interrupts(vectors, flags, bytes, events);
        assert_eq!(result, Err(error), "{vectors:?} {flags:#x}");
    };
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[&event]).unwrap();
    refused((5, 0, 1), FILE_TRIGGER, &[], &[&event], EINVAL);
    refused((u32::MAX, 0, 1), FILE_TRIGGER, &[], &[&event], EINVAL);
    refused((MSIX, 0, 3), FILE_TRIGGER, &[], &[], EINVAL);
    refused((MSIX, 2, 1), FILE_TRIGGER, &[], &[&event], EINVAL);
    refused((MSIX, u32::MAX, 2), FILE_TRIGGER, &[], &both, EINVAL);
    refused((MSIX, 1, u32::MAX), NONE_TRIGGER, &[], &[], EINVAL);
    refused((MSIX, 0, 2), FILE_TRIGGER, &[], &[&event], EINVAL);
    refused((MSIX, 0, 1), FILE_TRIGGER, &[], &both, EINVAL);
    refused((MSIX, 0, 1), NONE_TRIGGER, &[], &[&event], EINVAL);
    refused((MSIX, 0, 2), BOOL_TRIGGER, &[1], &[], EINVAL);
    refused((MSIX, 0, 0), FILE_TRIGGER, &[], &[], EINVAL);
    refused((MSIX, 1, 0), NONE_TRIGGER, &[], &[], EINVAL);
    refused((MSIX, 0, 1), InterruptSet::DATA_NONE, &[], &[], EINVAL);
    refused((MSIX, 0, 1), InterruptSet::ACTION_TRIGGER, &[], &[], EINVAL);
    refused((MSIX, 0, 1), FILE_TRIGGER | InterruptSet::DATA_NONE, &[], &[&event], EINVAL);
    refused((MSIX, 0, 1), NONE_TRIGGER | InterruptSet::ACTION_MASK, &[], &[], EINVAL);
    refused((MSIX, 0, 1), NONE_TRIGGER | 1 << 6, &[], &[], EINVAL);
    refused((MSI, 0, 1), FILE_TRIGGER, &[], &[&event], EINVAL);
    refused((INTX, 0, 1), FILE_TRIGGER, &[], &[&event], EINVAL);
    refused(
        (MSIX, 0, 1),
        InterruptSet::DATA_EVENT_FILE | InterruptSet::ACTION_MASK,
        &[],
        &[&event],
        EOPNOTSUPP,
    );
    client.set_interrupts((MSIX, 0, 1), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(event.take(), 1, "all that changed nothing");
}

#[test]
fn a_masked_vector_waits_until_it_is_unmasked() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let event = EventFd::new().unwrap();
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[&event]).unwrap();
    for action in [InterruptSet::ACTION_MASK, InterruptSet::ACTION_UNMASK] {
        client.set_interrupts((MSIX, 0, 1), InterruptSet::DATA_NONE | action, &[], &[]).unwrap();
        client.set_interrupts((MSIX, 0, 1), InterruptSet::DATA_BOOL | action, &[1], &[]).unwrap();
    }
    assert_eq!(event.take(), 0);
}

#[test]
fn an_event_file_that_blocks_and_is_full_holds_nobody_up() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let event = EventFd::from_owned(file.try_clone().unwrap()).unwrap();
    client.set_interrupts((MSIX, 0, 1), FILE_TRIGGER, &[], &[&event]).unwrap();
    fcntl_setfl(&file, OFlags::empty()).unwrap();
    rustix::io::write(&file, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    client.set_interrupts((MSIX, 0, 1), NONE_TRIGGER, &[], &[]).unwrap();
    assert_eq!(event.take(), 1);
    // One that is gone while it has a full one takes nothing along.
    rustix::io::write(&file, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let request = InterruptSet { argument_size: 20, flags: NONE_TRIGGER, index: MSIX, start: 0, count: 1 };
    client.send(
        Header { command: Command::DEVICE_SET_IRQS.0, ..Header::default() },
        &[request.as_bytes()],
        &[],
    );
    drop(client);
    wait_until("a session for the next client", || served.connect().negotiate().is_ok());
}

/// Where the capability with a number is.
fn capability(client: &Client, id: u8) -> u8 {
    let mut at = client.read(region::CONFIG, 0x34, 1).unwrap()[0];
    while at != 0 {
        let header = client.read(region::CONFIG, u64::from(at), 2).unwrap();
        if header[0] == id {
            return at;
        }
        at = header[1];
    }
    panic!("there is no capability {id:#x}");
}

fn msix_capability(client: &Client) -> u8 {
    capability(client, 0x11)
}
