//! Packets whose opcode nobody knows. The standard has a responder refuse one as an invalid
//! request when its PSN is the expected one; Linux's rxe drops it, since it takes every packet that
//! is no request that it knows for an answer.

use vdk_descriptors::roce::icrc::{Encapsulation, compute};
use vdk_descriptors::roce::{Frame, Qpn};
use vdk_firmware_stubs::roce::{Event, Operation, Payload, SendRequest, Service, State, Status};

use crate::lab::{End, Lab, Settings, statuses};

/// Where the header begins behind Ethernet, IPv4 and UDP.
const HEADER: usize = 14 + 20 + 8;

/// `frame` with `change` done to its base transport header, and the invariant CRC that belongs to it.
fn changed(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    change(&mut bytes[HEADER..]);
    let end = bytes.len() - 4;
    let crc = compute(Encapsulation::Ipv4, &bytes[14..end]).unwrap();
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A lab whose client has posted `count` WRITEs of eight bytes, and their frames.
fn writes(settings: Settings, count: u64) -> (Lab, Vec<Vec<u8>>) {
    let mut lab = Lab::new(settings);
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    for id in 0..count {
        lab.client.post(id, Operation::Write(remote), &[entry]);
    }
    let frames = (0..count).map(|_| lab.next_frame(End::Client).unwrap()).collect();
    (lab, frames)
}

fn counters(lab: &Lab) -> (u64, u64) {
    let counters = lab.server.endpoint.counters(lab.server.number).unwrap();
    (counters.frames_received, counters.dropped)
}

#[test]
fn an_unknown_request_in_its_turn_is_refused_and_fails_both_ends() {
    for opcode in [0x15].into_iter().chain(0x18..=0x1f) {
        let (mut lab, frames) = writes(Settings::default(), 1);
        let receive = lab.server.entry(0, 64);
        lab.server.post_receive(7, &[receive]);
        lab.deliver(End::Server, &changed(&frames[0], |header| header[0] = opcode));
        lab.settle();
        assert_eq!(lab.refusals(End::Server), [0x61], "{opcode:#04x}");
        assert_eq!(statuses(&lab.client.sends_done()), [(0, Some(Status::RemoteInvalidRequest))]);
        assert_eq!(statuses(&lab.server.receives_done()), [(7, Some(Status::Flushed))]);
        let number = lab.server.number;
        assert_eq!(lab.server.endpoint.event(), Some(Event::RequestError(number)));
        for node in [&lab.client, &lab.server] {
            assert_eq!(node.endpoint.state(node.number), Some(State::Error), "{opcode:#04x}");
        }
        assert!(lab.server.bytes()[..8].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn an_unknown_request_out_of_its_turn_is_a_gap_or_nothing() {
    let (mut lab, frames) = writes(Settings::default(), 3);
    let unknown = |frame: &[u8]| changed(frame, |header| header[0] = 0x1e);
    for _ in 0..2 {
        lab.deliver(End::Server, &unknown(&frames[1]));
    }
    lab.settle_with(|from, _| from == End::Server);
    assert_eq!(lab.refusals(End::Server), [0x60], "one gap is told once");
    lab.deliver(End::Server, &frames[0]);
    assert!(lab.next_frame(End::Server).is_some());
    // What came before is not executed again, and has no answer that anybody remembers.
    lab.deliver(End::Server, &unknown(&frames[0]));
    assert_eq!(lab.next_frame(End::Server), None);
    assert_eq!(lab.server.endpoint.state(lab.server.number), Some(State::ReadyToSend));
    assert_eq!(counters(&lab).1, 1);
}

#[test]
fn an_unknown_packet_that_is_damaged_or_not_the_peers_vanishes() {
    let (mut lab, frames) = writes(Settings::default(), 1);
    let unknown = changed(&frames[0], |header| header[0] = 0x15);
    let mut damaged = unknown.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut elsewhere = unknown.clone();
    // The source address, with the checksum of the header for it.
    elsewhere[14 + 15] ^= 1;
    let sum = u16::from_be_bytes([elsewhere[24], elsewhere[25]]) ^ 1;
    elsewhere[24..26].copy_from_slice(&sum.to_be_bytes());
    let elsewhere = changed(&elsewhere, |_| ());
    assert!(Frame::parse(&changed(&elsewhere, |header| header[0] = 0x0a)).is_ok());
    let vanishing = [
        ("damaged", damaged),
        ("elsewhere", elsewhere),
        ("partition", changed(&unknown, |header| header[2..4].copy_from_slice(&[0x80, 1]))),
        ("another service", changed(&unknown, |header| header[0] = 0x35)),
        ("no service", changed(&unknown, |header| header[0] = 0xff)),
        ("transport version", changed(&unknown, |header| header[1] |= 3)),
        ("queue pair", changed(&unknown, |header| header[5..8].copy_from_slice(&[0x77, 0, 0]))),
    ];
    for (name, frame) in &vanishing {
        lab.deliver(End::Server, frame);
        assert_eq!(lab.next_frame(End::Server), None, "{name}");
        assert_eq!(lab.server.endpoint.state(lab.server.number), Some(State::ReadyToSend), "{name}");
    }
    assert_eq!(counters(&lab), (4, 4));
    let frames_lost = lab.server.endpoint.frame_counters();
    assert_eq!((frames_lost.unreadable, frames_lost.misdirected, frames_lost.homeless), (2, 0, 1));
    lab.deliver(End::Server, &unknown);
    lab.settle();
    assert_eq!(lab.refusals(End::Server), [0x61]);
}

#[test]
fn an_unreliable_connection_loses_the_message_with_an_unknown_packet() {
    let mut lab = Lab::new(Settings { service: Service::UnreliableConnected, ..Settings::default() });
    let (source, target) = (lab.client.entry(0, 2048), lab.server.entry(4096, 2048));
    lab.client.bytes()[..2048].fill(0xa5);
    for id in 0..2 {
        lab.server.post_receive(id, &[target]);
        lab.client.post(id, Operation::Send, &[source]);
    }
    let frames: Vec<_> = (0..4).map(|_| lab.next_frame(End::Client).unwrap()).collect();
    lab.deliver(End::Server, &frames[0]);
    lab.deliver(End::Server, &changed(&frames[1], |header| header[0] = 0x3f));
    // The message is lost, not only the packet.
    lab.deliver(End::Server, &frames[1]);
    assert_eq!(statuses(&lab.server.receives_done()), []);
    for frame in &frames[2..] {
        lab.deliver(End::Server, frame);
    }
    assert_eq!(statuses(&lab.server.receives_done()), [(0, None)]);
    assert_eq!(lab.next_frame(End::Server), None);
}

#[test]
fn a_datagram_with_an_unknown_opcode_vanishes() {
    let mut lab = Lab::new(Settings { service: Service::Datagram, ..Settings::default() });
    let receive = lab.server.entry(0, 1024);
    lab.server.post_receive(1, &[receive]);
    let destination = lab.destination(End::Client);
    let mut request = SendRequest::new(1, Operation::Send, Payload::Inline(&[1, 2, 3, 4]));
    request.destination = Some(&destination);
    let number: Qpn = lab.client.number;
    lab.client.endpoint.post_send(number, &request).unwrap();
    let frame = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &changed(&frame, |header| header[0] = 0x7f));
    assert_eq!((counters(&lab), lab.next_frame(End::Server)), ((1, 1), None));
    lab.deliver(End::Server, &frame);
    assert_eq!(statuses(&lab.server.receives_done()), [(1, None)]);
}
