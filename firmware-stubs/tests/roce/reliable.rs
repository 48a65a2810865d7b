//! A reliable connection on a good wire.

use vdk_descriptors::roce::{Opcode, PathMtu, Psn, Syndrome};
use vdk_firmware_stubs::roce::{
    Completion, CompletionOpcode, Operation, Payload, Rights, SendRequest, State, Success,
};

use crate::lab::{End, Lab, Settings, statuses};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect()
}

#[test]
fn a_write_arrives_at_every_path_mtu_and_every_length() {
    for mtu in PathMtu::ALL {
        let mut lab = Lab::new(Settings { mtu, ..Settings::default() });
        let bytes = u64::from(mtu.bytes());
        let lengths = [0, 1, 2, 3, bytes - 1, bytes, bytes + 1, 2 * bytes - 1, 2 * bytes, 2 * bytes + 1];
        for length in lengths {
            let length = u32::try_from(length).unwrap();
            let from = pattern(length as usize);
            lab.client.bytes()[..from.len()].copy_from_slice(&from);
            lab.server.bytes().fill(0xee);
            let remote = lab.server.remote(64);
            let entry = lab.client.entry(0, length);
            lab.client.post(7, Operation::Write(remote), &[entry]);
            lab.log.clear();
            lab.settle();
            assert_eq!(statuses(&lab.client.sends_done()), [(7, None)], "{mtu} {length}");
            let place = lab.server.bytes();
            assert_eq!(place[64..64 + from.len()], from[..]);
            assert!(place[..64].iter().chain(&place[64 + from.len()..]).all(|byte| *byte == 0xee));
            let requests = lab.frames(End::Client);
            assert_eq!(requests.len(), mtu.packets(length) as usize);
            assert_eq!(lab.frames(End::Server).len(), 1, "one acknowledgement for the message");
        }
    }
}

#[test]
fn each_operation_completes_on_both_sides_with_its_data() {
    let server_region = Rights::ALL.with(Rights::REMOTE_INVALIDATE);
    let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, server_region, ..Settings::default() });
    let from = pattern(700);
    lab.client.bytes()[..700].copy_from_slice(&from);
    for id in 0..4 {
        let entry = [lab.server.entry(1000 * id, 100), lab.server.entry(1000 * id + 500, 900)];
        lab.server.post_receive(100 + id, &entry);
    }
    let remote = lab.server.remote(8192);
    let (whole, eight) = (lab.client.entry(0, 700), lab.client.entry(4096, 8));
    let read = lab.client.entry(5000, 600);
    lab.client.post(1, Operation::Send, &[whole]);
    lab.client.post(2, Operation::SendWithImmediate(0x1122_3344), &[whole]);
    lab.client.post(3, Operation::SendWithInvalidate(lab.server.region.key), &[]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None), (3, None)]);
    let done = lab.server.receives_done();
    let Completion::Success(third) = done[2] else { panic!("{done:?}") };
    assert_eq!((third.invalidated, third.length), (Some(lab.server.region.key), 0));
    let Completion::Success(second) = done[1] else { panic!("{done:?}") };
    let expected = Success {
        id: 101,
        queue_pair: lab.server.number,
        opcode: CompletionOpcode::Receive,
        length: 700,
        immediate: Some(0x1122_3344),
        invalidated: None,
        source: None,
        solicited: false,
    };
    assert_eq!(second, expected);
    assert_eq!(lab.server.bytes()[1000..1100], from[..100]);
    assert_eq!(lab.server.bytes()[1500..2100], from[100..]);

    // The remote key is dead now: the next operation needs another region.
    let bytes = vec![0; 4096];
    let domain = lab.server.domain;
    let region = lab.server.endpoint.memory_mut().register(domain, Rights::ALL, bytes).unwrap();
    let at = |offset| vdk_firmware_stubs::roce::Remote { address: region.address + offset, key: region.key };
    lab.client.post(4, Operation::WriteWithImmediate(at(0), 9), &[whole]);
    lab.client.post(5, Operation::Read(at(10)), &[read]);
    lab.client.post(6, Operation::FetchAdd { remote: at(1000), add: 5 }, &[eight]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(4, None), (5, None), (6, None)]);
    let done = lab.server.receives_done();
    let Completion::Success(write) = done[0] else { panic!("{done:?}") };
    assert_eq!((write.opcode, write.length), (CompletionOpcode::ReceiveWrite, 700));
    assert_eq!(write.immediate, Some(9));
    assert_eq!(lab.client.bytes()[5000..5600], from[10..610]);
    assert_eq!(lab.client.bytes()[4096..4104], 0u64.to_ne_bytes());
    lab.client.post(7, Operation::CompareSwap { remote: at(1000), compare: 5, swap: 77 }, &[eight]);
    lab.settle();
    assert_eq!(lab.client.bytes()[4096..4104], 5u64.to_ne_bytes());
    let stored = lab.server.endpoint.memory().bytes(region.key).unwrap();
    assert_eq!(stored[1000..1008], 77u64.to_ne_bytes());
    assert_eq!((lab.client.state(), lab.server.state()), (State::ReadyToSend, State::ReadyToSend));
    assert_ne!(remote.key, region.key);
}

#[test]
fn the_psn_wraps_without_anyone_noticing() {
    for start in [0xff_fff0, 0xff_ffff, 0x7f_fff0, 0x7f_ffff, 0x80_0000, 0] {
        let settings = Settings {
            client_psn: Psn::new(start),
            server_psn: Psn::new(start),
            mtu: PathMtu::Mtu256,
            ..Settings::default()
        };
        let mut lab = Lab::new(settings);
        let from = pattern(20_000);
        lab.client.bytes()[..20_000].copy_from_slice(&from);
        let remote = lab.server.remote(0);
        let (entry, back) = (lab.client.entry(0, 20_000), lab.client.entry(30_000, 20_000));
        lab.client.post(1, Operation::Write(remote), &[entry]);
        lab.client.post(2, Operation::Read(remote), &[back]);
        lab.client.post(3, Operation::Write(remote), &[entry]);
        lab.settle();
        assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None), (3, None)]);
        assert_eq!(lab.client.bytes()[30_000..50_000], from[..]);
        let last = lab.frames(End::Client).last().unwrap().1;
        assert_eq!(last, (start + 3 * 79 - 1) & 0xff_ffff);
        let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
        assert_eq!(counters.sent_again, 0);
    }
}

#[test]
fn only_signaled_sends_complete_and_a_full_queue_says_so() {
    let mut lab = Lab::new(Settings::default());
    let remote = lab.server.remote(0);
    for id in 0..16 {
        let mut request = SendRequest::new(id, Operation::Write(remote), Payload::Inline(&[1, 2, 3]));
        request.signaled = id % 4 == 3;
        lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    }
    let request = SendRequest::new(99, Operation::Write(remote), Payload::Inline(&[]));
    let refused = lab.client.endpoint.post_send(lab.client.number, &request).unwrap_err();
    assert!(refused.to_string().contains("the queue is full: 16"), "{refused}");
    lab.settle();
    let done = statuses(&lab.client.sends_done());
    assert_eq!(done, [(3, None), (7, None), (11, None), (15, None)]);
    assert_eq!(lab.server.bytes()[..3], [1, 2, 3]);
}

#[test]
fn an_acknowledgement_is_asked_for_before_the_window_closes() {
    for window in [1, 2, 3, 8, 31, 32, 33, 128] {
        let settings = Settings { window, mtu: PathMtu::Mtu256, ..Settings::default() };
        let mut lab = Lab::new(settings);
        let (remote, entry) = (lab.server.remote(0), lab.client.entry(0, 60_000));
        lab.client.post(1, Operation::Write(remote), &[entry]);
        lab.carry(|_, _| true);
        assert_eq!(statuses(&lab.client.sends_done()), [(1, None)], "without any timer: window {window}");
        let acks = lab.log.iter().filter(|sent| sent.syndrome == Some(Syndrome::ACK)).count();
        assert!(acks >= (60_000 / 256) / 33, "{acks} at window {window}");
        let twice = lab.client.endpoint.counters(lab.client.number).unwrap().sent_again;
        assert_eq!(twice, 0);
    }
}

#[test]
fn the_solicited_event_is_on_the_last_packet_only() {
    let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, ..Settings::default() });
    let entry = lab.server.entry(0, 1000);
    lab.server.post_receive(1, &[entry]);
    let entries = [lab.client.entry(0, 600)];
    let mut request = SendRequest::new(2, Operation::Send, Payload::Entries(&entries));
    request.solicited = true;
    lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    let mut solicited = Vec::new();
    lab.run(|end, bytes| {
        if end == End::Client {
            let frame = vdk_descriptors::roce::Frame::parse(bytes).unwrap();
            solicited.push(frame.headers.bth.solicited_event);
        }
        true
    });
    assert_eq!(solicited, [false, false, true]);
    let done = lab.server.receives_done();
    assert!(matches!(done[0], Completion::Success(Success { solicited: true, .. })));
    assert_eq!(lab.frames(End::Client)[0].0, Opcode::RC_SEND_FIRST);
}

#[test]
fn the_solicited_event_is_on_requests_that_use_a_receive_only() {
    let mut lab = Lab::new(Settings::default());
    let remote = lab.server.remote(0);
    let operations = [
        (Operation::Write(remote), false),
        (Operation::WriteWithImmediate(remote, 1), true),
        (Operation::Send, true),
    ];
    for (operation, expected) in operations {
        let mut request = SendRequest::new(1, operation, Payload::Inline(&[1]));
        request.solicited = true;
        lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
        let bytes = lab.next_frame(End::Client).unwrap();
        let frame = vdk_descriptors::roce::Frame::parse(&bytes).unwrap();
        assert_eq!(frame.headers.bth.solicited_event, expected, "{operation:?}");
    }
}
