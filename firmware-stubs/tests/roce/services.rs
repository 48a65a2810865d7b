//! Unreliable connections, datagrams, states and queues.

use vdk_descriptors::roce::{Frame, Opcode, PathMtu, Psn, QKey};
use vdk_firmware_stubs::roce::{
    ADDRESS_AREA, Attributes, Completion, EndpointError, Event, Operation, Payload, PostError,
    QueuePairOptions, ReceiveRequest, SendRequest, Service, Side, State, Status, Success, TransitionError,
};

use crate::lab::{End, Lab, Q_KEY, Settings, statuses};

fn unreliable() -> Settings {
    Settings { service: Service::UnreliableConnected, mtu: PathMtu::Mtu256, ..Settings::default() }
}

fn datagrams() -> Settings {
    Settings { service: Service::Datagram, ..Settings::default() }
}

#[test]
fn after_a_gap_an_unreliable_connection_drops_until_a_message_begins() {
    let mut lab = Lab::new(unreliable());
    for id in 0..3 {
        let entry = lab.server.entry(4096 * (id + 1), 2000);
        lab.server.post_receive(id, &[entry]);
    }
    for (id, length) in [(1, 700), (2, 800), (3, 900)] {
        let entry = lab.client.entry(0, length);
        lab.client.post(id, Operation::Send, &[entry]);
    }
    let mut count = 0;
    lab.run(|_, _| {
        count += 1;
        // The middle of the second message.
        count != 5
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None), (3, None)]);
    let done = lab.server.receives_done();
    let lengths: Vec<(u64, u32)> = done
        .iter()
        .map(|done| match done {
            Completion::Success(success) => (success.id, success.length),
            Completion::Error(_) => panic!("{done:?}"),
        })
        .collect();
    assert_eq!(lengths, [(0, 700), (1, 900)], "the receive of the lost message takes the next");
    assert!(lab.frames(End::Server).is_empty(), "nothing is answered");
    assert_eq!(lab.server.state(), State::ReadyToSend);
}

#[test]
fn an_unreliable_connection_has_no_reads_and_a_datagram_no_writes() {
    let remote = vdk_firmware_stubs::roce::Remote::default();
    for (settings, operation) in [
        (unreliable(), Operation::Read(remote)),
        (unreliable(), Operation::FetchAdd { remote, add: 1 }),
        (unreliable(), Operation::SendWithInvalidate(1)),
        (datagrams(), Operation::Write(remote)),
        (datagrams(), Operation::Read(remote)),
    ] {
        let mut lab = Lab::new(settings);
        let request = SendRequest::new(1, operation, Payload::Entries(&[]));
        let answer = lab.client.endpoint.post_send(lab.client.number, &request);
        assert_eq!(answer, Err(EndpointError::Post(PostError::Operation { service: settings.service })));
    }
}

#[test]
fn a_datagram_arrives_behind_forty_bytes_with_its_ip_header() {
    let mut lab = Lab::new(datagrams());
    let entry = lab.server.entry(100, 140);
    lab.server.post_receive(5, &[entry]);
    lab.client.bytes()[..100].fill(0xab);
    lab.server.bytes().fill(0xee);
    let destination = lab.destination(End::Client);
    let entries = [lab.client.entry(0, 100)];
    let operation = Operation::SendWithImmediate(77);
    let mut request = SendRequest::new(1, operation, Payload::Entries(&entries));
    request.destination = Some(&destination);
    lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    let mut header = Vec::new();
    lab.run(|_, bytes| {
        header = bytes[14..34].to_vec();
        true
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    let done = lab.server.receives_done();
    let Completion::Success(success) = done[0] else { panic!("{done:?}") };
    assert_eq!((success.length, success.source), (100, Some(lab.client.number)));
    assert_eq!(success.immediate, Some(77));
    assert_eq!(ADDRESS_AREA, 40);
    let bytes = lab.server.bytes();
    assert_eq!(bytes[100..120], [0; 20]);
    assert_eq!(bytes[120..140], header[..]);
    assert_eq!(bytes[140..240], [0xab; 100]);
    assert_eq!((bytes[99], bytes[240]), (0xee, 0xee));
}

#[test]
fn a_datagram_with_a_wrong_key_vanishes_and_a_controlled_key_means_the_own() {
    let mut lab = Lab::new(datagrams());
    let entry = lab.server.entry(0, 1000);
    lab.server.post_receive(5, &[entry]);
    for (id, q_key) in [(1, QKey(Q_KEY.0 + 1)), (2, QKey(0x8000_0000))] {
        let mut destination = lab.destination(End::Client);
        destination.q_key = q_key;
        let mut request = SendRequest::new(id, Operation::Send, Payload::Inline(&[1]));
        request.destination = Some(&destination);
        lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    }
    lab.settle();
    assert_eq!(statuses(&lab.server.receives_done()), [(5, None)]);
    let counters = lab.server.endpoint.counters(lab.server.number).unwrap();
    assert_eq!((counters.q_key_violations, counters.receives), (1, 1));
}

#[test]
fn a_datagram_is_one_packet_with_a_destination_and_its_receive_holds_the_address_too() {
    let mut lab = Lab::new(datagrams());
    let entries = [lab.client.entry(0, 1025)];
    let destination = lab.destination(End::Client);
    let mut request = SendRequest::new(1, Operation::Send, Payload::Entries(&entries));
    let number = lab.client.number;
    let answer = lab.client.endpoint.post_send(number, &request);
    assert_eq!(answer, Err(EndpointError::Post(PostError::NoDestination)));
    request.destination = Some(&destination);
    let answer = lab.client.endpoint.post_send(number, &request);
    assert_eq!(answer, Err(EndpointError::Post(PostError::Length { length: 1025, most: 1024 })));
    let entry = lab.server.entry(0, 139);
    lab.server.post_receive(5, &[entry]);
    let entries = [lab.client.entry(0, 100)];
    request.payload = Payload::Entries(&entries);
    lab.client.endpoint.post_send(number, &request).unwrap();
    lab.settle();
    assert_eq!(statuses(&lab.server.receives_done()), [(5, Some(Status::LocalLength))]);
    assert_eq!((lab.client.state(), lab.server.state()), (State::ReadyToSend, State::Error));
}

#[test]
fn a_failed_unreliable_send_queue_goes_on_after_a_change_to_ready_to_send() {
    let mut lab = Lab::new(unreliable());
    let mut entry = lab.client.entry(0, 100);
    entry.key ^= 0x100;
    lab.client.post(1, Operation::Send, &[entry]);
    lab.client.post(2, Operation::Send, &[]);
    lab.settle();
    let done = statuses(&lab.client.sends_done());
    assert_eq!(done, [(1, Some(Status::LocalProtection)), (2, Some(Status::Flushed))]);
    assert_eq!(lab.client.state(), State::SendQueueError);
    lab.client.post(3, Operation::Send, &[]);
    assert_eq!(statuses(&lab.client.sends_done()), [(3, Some(Status::Flushed))]);
    let number = lab.client.number;
    lab.client.endpoint.modify(number, State::ReadyToSend, &Attributes::NONE).unwrap();
    lab.server.post_receive(9, &[]);
    lab.client.post(4, Operation::Send, &[]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(4, None)]);
    assert_eq!(statuses(&lab.server.receives_done()), [(9, None)]);
}

#[test]
fn draining_finishes_what_was_begun_begins_nothing_and_reports_once() {
    let mut lab = Lab::new(Settings { window: 2, mtu: PathMtu::Mtu256, ..Settings::default() });
    let (entry, remote) = (lab.client.entry(0, 2000), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    lab.client.post(2, Operation::Write(remote), &[entry]);
    assert!(lab.next_frame(End::Client).is_some());
    let number = lab.client.number;
    let wanted = Attributes { drained_event: Some(true), ..Attributes::NONE };
    lab.client.endpoint.modify(number, State::SendQueueDrain, &wanted).unwrap();
    let answer = lab.client.endpoint.modify(number, State::ReadyToSend, &Attributes::NONE);
    assert_eq!(answer, Err(EndpointError::Transition(TransitionError::Draining)));
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    assert_eq!(lab.client.endpoint.event(), Some(Event::SendQueueDrained(number)));
    assert_eq!(lab.client.endpoint.event(), None);
    lab.client.post(3, Operation::Write(remote), &[entry]);
    lab.settle();
    assert!(lab.client.sends_done().is_empty(), "nothing begins");
    lab.client.endpoint.modify(number, State::ReadyToSend, &Attributes::NONE).unwrap();
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(2, None), (3, None)]);
}

#[test]
fn what_can_be_posted_depends_on_the_state() {
    for (state, send, receive) in [
        (State::Reset, false, false),
        (State::Init, false, true),
        (State::ReadyToReceive, false, true),
        (State::ReadyToSend, true, true),
        (State::SendQueueDrain, true, true),
        (State::Error, true, true),
    ] {
        let mut lab = Lab::new(Settings::default());
        let node = &mut lab.client;
        let number = node.number;
        let reset = |node: &mut crate::lab::Node| {
            node.endpoint.modify(number, State::Reset, &Attributes::NONE).unwrap();
        };
        let init = Attributes {
            partition_index: Some(0),
            port: Some(1),
            access: Some(vdk_firmware_stubs::roce::Rights::ALL),
            ..Attributes::NONE
        };
        match state {
            State::Reset => reset(node),
            State::Init => {
                reset(node);
                node.endpoint.modify(number, State::Init, &init).unwrap();
            }
            State::ReadyToReceive => {
                reset(node);
                node.endpoint.modify(number, State::Init, &init).unwrap();
                let path = lab.destination(End::Client).path;
                let attributes = Attributes {
                    path: Some(path),
                    path_mtu: Some(PathMtu::Mtu1024),
                    destination: Some(lab.server.number),
                    receive_psn: Some(Psn::new(0)),
                    responder_depth: Some(1),
                    rnr_timer: Some(vdk_descriptors::roce::RnrTimer::default()),
                    ..Attributes::NONE
                };
                lab.client.endpoint.modify(number, state, &attributes).unwrap();
            }
            State::ReadyToSend => {}
            other => node.endpoint.modify(number, other, &Attributes::NONE).unwrap(),
        }
        assert_eq!(lab.client.state(), state);
        let request = SendRequest::new(1, Operation::Send, Payload::Entries(&[]));
        let endpoint = &mut lab.client.endpoint;
        assert_eq!(endpoint.post_send(number, &request).is_ok(), send, "{state:?}");
        let request = ReceiveRequest { id: 2, entries: &[] };
        assert_eq!(endpoint.post_receive(number, &request).is_ok(), receive, "{state:?}");
        if state == State::Error {
            assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::Flushed))]);
            assert_eq!(statuses(&lab.client.receives_done()), [(2, Some(Status::Flushed))]);
        }
    }
}

#[test]
fn reset_empties_both_queues_without_a_completion() {
    let mut lab = Lab::new(Settings::default());
    let remote = lab.server.remote(0);
    for id in 0..3 {
        lab.client.post(id, Operation::Write(remote), &[]);
        lab.client.post_receive(id, &[]);
    }
    let number = lab.client.number;
    lab.client.endpoint.modify(number, State::Reset, &Attributes::NONE).unwrap();
    assert!(lab.client.sends_done().is_empty() && lab.client.receives_done().is_empty());
    assert!(lab.next_frame(End::Client).is_none());
    let settings = Settings::default();
    let path = lab.destination(End::Client).path;
    let psns = (settings.client_psn, settings.server_psn);
    let peer = lab.server.number;
    crate::lab::connect(&mut lab.client, &settings, vdk_firmware_stubs::roce::Rights::ALL, psns, path, peer);
    for id in 10..26 {
        lab.client.post(id, Operation::Write(remote), &[]);
        lab.client.post_receive(id, &[]);
    }
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()).len(), 16);
}

#[test]
fn destroying_gives_back_what_is_posted_once() {
    for completed in 0..5 {
        let mut lab = Lab::new(Settings::default());
        let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
        for id in 0..5 {
            lab.client.post(id, Operation::Write(remote), &[entry]);
            lab.client.post_receive(100 + id, &[]);
        }
        let mut passed = 0;
        lab.carry(|end, _| {
            passed += u32::from(end == End::Client);
            passed <= completed && end == End::Client || end == End::Server
        });
        let done = statuses(&lab.client.sends_done());
        let number = lab.client.number;
        let left = lab.client.endpoint.destroy(number).unwrap();
        let mut ids: Vec<u64> = done.iter().map(|(id, _)| *id).collect();
        ids.extend(left.iter().filter(|(side, _)| *side == Side::Send).map(|(_, id)| *id));
        assert_eq!(ids, [0, 1, 2, 3, 4], "{completed}");
        let receives: Vec<u64> =
            left.iter().filter(|(side, _)| *side == Side::Receive).map(|(_, id)| *id).collect();
        assert_eq!(receives, [100, 101, 102, 103, 104]);
        assert_eq!(lab.client.endpoint.destroy(number), Err(EndpointError::QueuePair(number)));
        lab.settle();
        assert!(lab.client.sends_done().is_empty());
    }
}

#[test]
fn each_completion_queue_gets_only_its_side_and_none_is_lost_unpolled() {
    let mut lab = Lab::new(Settings::default());
    let remote = lab.server.remote(0);
    for round in 0..100 {
        lab.server.post_receive(round, &[]);
        lab.client.post(round, Operation::WriteWithImmediate(remote, 1), &[]);
        lab.settle();
    }
    let sends = statuses(&lab.client.sends_done());
    let receives = statuses(&lab.server.receives_done());
    let expected: Vec<_> = (0..100).map(|id| (id, None)).collect();
    assert_eq!((&sends, &receives), (&expected, &expected));
    assert!(lab.client.receives_done().is_empty() && lab.server.sends_done().is_empty());
}

#[test]
fn a_slot_is_free_only_when_its_own_send_completed() {
    let mut lab = Lab::new(Settings::default());
    for id in 0..16 {
        lab.server.post_receive(id, &[]);
        lab.client.post(id, Operation::Send, &[]);
    }
    // All arrive, and no acknowledgement comes back.
    lab.carry(|end, _| end == End::Client);
    assert_eq!(lab.server.receives_done().len(), 16);
    let request = SendRequest::new(99, Operation::Send, Payload::Inline(&[]));
    let answer = lab.client.endpoint.post_send(lab.client.number, &request);
    assert_eq!(answer, Err(EndpointError::Post(PostError::QueueFull { capacity: 16 })));
}

#[test]
fn lengths_and_counts_of_entries_are_checked_without_wrapping() {
    let mut lab = Lab::new(Settings::default());
    let number = lab.client.number;
    let mut entries = [lab.client.entry(0, 0x8000_0000), lab.client.entry(0, 0x8000_0010)];
    let mut post = |entries: &[_]| {
        let request = SendRequest::new(1, Operation::Send, Payload::Entries(entries));
        lab.client.endpoint.post_send(number, &request)
    };
    let length = 0x1_0000_0010;
    assert_eq!(post(&entries), Err(EndpointError::Post(PostError::Length { length, most: 1 << 31 })));
    entries[0].length = 0;
    let three = [entries[0], entries[0], entries[0]];
    assert_eq!(post(&three), Err(EndpointError::Post(PostError::Entries { count: 3, most: 2 })));
    let request = SendRequest::new(1, Operation::Send, Payload::Inline(&[0; 65]));
    let answer = lab.client.endpoint.post_send(number, &request);
    assert_eq!(answer, Err(EndpointError::Post(PostError::Inline { length: 65, most: 64 })));
    lab.settle();
    assert!(lab.client.sends_done().is_empty(), "refused and completed at once cannot be");
}

#[test]
fn there_are_as_many_queue_pairs_as_allowed_and_numbers_are_not_used_twice() {
    let mut lab = Lab::new(Settings::default());
    let node = &mut lab.client;
    let options = QueuePairOptions::default();
    let mut numbers = vec![node.number];
    for _ in 0..3 {
        numbers.push(node.endpoint.create(&options, node.send, node.receive).unwrap());
    }
    let refused = node.endpoint.create(&options, node.send, node.receive);
    assert_eq!(refused, Err(EndpointError::Quota(4)));
    assert_eq!(node.endpoint.destroy(numbers[3]), Ok(Vec::new()));
    let next = node.endpoint.create(&options, node.send, node.receive).unwrap();
    assert!(!numbers.contains(&next));
}

#[test]
fn a_marked_packet_is_answered_with_a_notification_which_slows_the_sender() {
    let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, ..Settings::default() });
    let (entry, remote) = (lab.client.entry(0, 60_000), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let bytes = lab.next_frame(End::Client).unwrap();
    let mut headers = Frame::parse(&bytes).unwrap();
    let vdk_descriptors::roce::Network::Ipv4(ip, _) = &mut headers.headers.network else { panic!() };
    ip.traffic_class = 3;
    let mut buffer = [0; 5000];
    let length = headers.build(&mut buffer).unwrap();
    lab.deliver(End::Server, &buffer[..length]);
    let notification = lab.next_frame(End::Server).unwrap();
    let frame = Frame::parse(&notification).unwrap();
    assert_eq!(frame.headers.bth.opcode, Opcode::CONGESTION_NOTIFICATION);
    assert!(frame.headers.bth.backward_congestion);
    assert_eq!(frame.headers.bth.destination, lab.client.number);
    lab.deliver(End::Client, &notification);
    assert_eq!(lab.client.endpoint.event(), Some(Event::Congestion(lab.client.number)));
    let burst = std::iter::from_fn(|| lab.next_frame(End::Client)).count();
    assert_eq!(burst, 63, "half of the window, with the packet that was sent before");
    lab.deliver(End::Server, &buffer[..length]);
    assert_eq!(lab.server.endpoint.counters(lab.server.number).unwrap().congestion_sent, 1);
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let mut lab = Lab::new(Settings::default());
    let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
    lab.client.post(1, Operation::Read(remote), &[entry]);
    let entries = [entry];
    let mut request = SendRequest::new(2, Operation::Write(remote), Payload::Entries(&entries));
    request.fence = true;
    lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    let read = lab.next_frame(End::Client).unwrap();
    assert!(lab.next_frame(End::Client).is_none());
    lab.deliver(End::Server, &read);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None)]);
}

#[test]
fn no_more_reads_are_outstanding_than_both_sides_agreed() {
    let mut lab = Lab::new(Settings { initiator_depth: 3, responder_depth: 3, ..Settings::default() });
    let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
    for id in 0..8 {
        lab.client.post(id, Operation::Read(remote), &[entry]);
    }
    let burst = std::iter::from_fn(|| lab.next_frame(End::Client)).count();
    assert_eq!(burst, 3);
    lab.run(|_, _| true);
    // The three that were taken off the wire here are asked for again.
    let done = statuses(&lab.client.sends_done());
    assert_eq!(done, (0..8).map(|id| (id, None)).collect::<Vec<_>>());
}

#[test]
fn an_error_completion_has_no_more_than_its_request_and_status() {
    let mut lab = Lab::new(Settings::default());
    let number = lab.client.number;
    lab.client.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
    lab.client.post(7, Operation::Send, &[]);
    let done = lab.client.sends_done();
    let Completion::Error(failure) = done[0] else { panic!("{done:?}") };
    assert_eq!((failure.id, failure.queue_pair, failure.status), (7, number, Status::Flushed));
    assert!(!matches!(done[0], Completion::Success(Success { .. })));
}
