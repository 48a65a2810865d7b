//! Events, congestion, and what a queue pair that takes nothing keeps to itself.

use vdk_descriptors::roce::{Bth, Extension, Frame, Headers, Network, Opcode, PKey, Psn};
use vdk_firmware_stubs::roce::{
    Attributes, EndpointError, Event, Operation, Payload, QueuePairOptions, QueueSizes, SendRequest, State,
};

use crate::lab::{End, Lab, Settings, statuses};

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut buffer = [0; 5000];
    let length = frame.build(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// A WRITE of the client and the same with both congestion bits.
fn write(lab: &mut Lab) -> (Vec<u8>, Vec<u8>) {
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let plain = lab.next_frame(End::Client).unwrap();
    let mut frame = Frame::parse(&plain).unwrap();
    let Network::Ipv4(ip, _) = &mut frame.headers.network else { panic!("{frame:?}") };
    ip.traffic_class = 3;
    let marked = bytes(&frame);
    (plain, marked)
}

/// A congestion notification to the client with the headers of an answer of the server.
fn notification(lab: &mut Lab) -> Headers {
    let (request, _) = write(lab);
    lab.deliver(End::Server, &request);
    let answer = lab.next_frame(End::Server).unwrap();
    let mut headers = Frame::parse(&answer).unwrap().headers;
    headers.bth = Bth::new(Opcode::CONGESTION_NOTIFICATION, headers.bth.destination, Psn::new(0));
    headers.extension = Extension::Congestion;
    headers
}

#[test]
fn a_queue_pair_is_established_once_and_by_a_request_that_it_takes() {
    let mut lab = Lab::new(Settings::default());
    let number = lab.server.number;
    let (first, _) = write(&mut lab);
    let (second, _) = write(&mut lab);
    let (third, _) = write(&mut lab);
    // The server goes back to RTR, and expects what the client begins with.
    let path = {
        let headers = Frame::parse(&first).unwrap().headers;
        let Network::Ipv4(..) = headers.network else { panic!() };
        let back = vdk_firmware_stubs::roce::Path::new(lab.server.station, lab.client.station, 0xc123);
        back.unwrap()
    };
    let settings = Settings::default();
    lab.server.endpoint.modify(number, State::Reset, &Attributes::NONE).unwrap();
    let init = Attributes {
        partition_index: Some(0),
        port: Some(1),
        access: Some(vdk_firmware_stubs::roce::Rights::ALL),
        ..Attributes::NONE
    };
    lab.server.endpoint.modify(number, State::Init, &init).unwrap();
    let receive = Attributes {
        path: Some(path),
        path_mtu: Some(settings.mtu),
        destination: Some(lab.client.number),
        receive_psn: Some(settings.client_psn),
        responder_depth: Some(4),
        rnr_timer: vdk_descriptors::roce::RnrTimer::new(12),
        ..Attributes::NONE
    };
    lab.server.endpoint.modify(number, State::ReadyToReceive, &receive).unwrap();
    lab.deliver(End::Server, &second);
    assert_eq!(lab.server.endpoint.event(), None, "what comes out of turn is not taken");
    for frame in [&first, &second, &third] {
        lab.deliver(End::Server, frame);
    }
    assert_eq!(lab.server.endpoint.event(), Some(Event::Established(number)));
    assert_eq!(lab.server.endpoint.event(), None);
}

#[test]
fn congestion_is_one_event_until_it_is_asked_for() {
    let mut lab = Lab::new(Settings::default());
    let headers = notification(&mut lab);
    let frame = bytes(&Frame { headers, payload: &[] });
    for _ in 0..2000 {
        lab.deliver(End::Client, &frame);
    }
    let number = lab.client.number;
    assert_eq!(lab.client.endpoint.event(), Some(Event::Congestion(number)));
    assert_eq!(lab.client.endpoint.event(), None);
    lab.deliver(End::Client, &frame);
    assert_eq!(lab.client.endpoint.event(), Some(Event::Congestion(number)));
}

#[test]
fn a_notification_from_elsewhere_or_another_partition_slows_nobody() {
    let mut lab = Lab::new(Settings::default());
    let headers = notification(&mut lab);
    let mut elsewhere = headers;
    let Network::Ipv4(ip, _) = &mut elsewhere.network else { panic!("{headers:?}") };
    ip.source = [10, 0, 0, 77].into();
    let mut partition = headers;
    partition.bth.partition = PKey(0x8123);
    for headers in [elsewhere, partition] {
        lab.deliver(End::Client, &bytes(&Frame { headers, payload: &[] }));
    }
    assert_eq!(lab.client.endpoint.event(), None);
    let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
    assert_eq!((counters.congestion_received, counters.dropped), (0, 2));
}

#[test]
fn a_queue_pair_that_takes_nothing_tells_nobody_of_congestion() {
    for before in [true, false] {
        let mut lab = Lab::new(Settings::default());
        let (_, marked) = write(&mut lab);
        let number = lab.server.number;
        if before {
            lab.deliver(End::Server, &marked);
        }
        lab.server.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
        lab.deliver(End::Server, &marked);
        assert_eq!(lab.next_frame(End::Server), None, "{before}");
    }
}

#[test]
fn draining_a_drained_queue_again_reports_nothing() {
    let mut lab = Lab::new(Settings::default());
    let number = lab.client.number;
    let wanted = Attributes { drained_event: Some(true), ..Attributes::NONE };
    lab.client.endpoint.modify(number, State::SendQueueDrain, &wanted).unwrap();
    assert_eq!(lab.client.endpoint.event(), Some(Event::SendQueueDrained(number)));
    lab.client.endpoint.modify(number, State::SendQueueDrain, &Attributes::NONE).unwrap();
    assert_eq!(lab.client.endpoint.event(), None);
}

#[test]
fn a_connection_ignores_the_destination_of_a_request() {
    let mut lab = Lab::new(Settings::default());
    let mut elsewhere = lab.destination(End::Client);
    elsewhere.queue_pair = vdk_descriptors::roce::Qpn::new(0x77).unwrap();
    let mut request =
        SendRequest::new(1, Operation::Write(lab.server.remote(0)), Payload::Inline(&[1, 2, 3, 4]));
    request.destination = Some(&elsewhere);
    lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    let frame = lab.next_frame(End::Client).unwrap();
    assert_eq!(Frame::parse(&frame).unwrap().headers.bth.destination, lab.server.number);
    lab.deliver(End::Server, &frame);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    assert_eq!(lab.server.bytes()[..4], [1, 2, 3, 4]);
}

#[test]
fn queues_of_any_size_asked_for_are_made_or_refused() {
    let mut lab = Lab::new(Settings::default());
    let node = &mut lab.client;
    let most = QueueSizes::MOST;
    let cases = [
        (QueueSizes { sends: u32::MAX, ..most }, most.sends),
        (QueueSizes { receives: u32::MAX, ..most }, most.receives),
        (QueueSizes { entries: u32::MAX, ..most }, most.entries),
        (QueueSizes { inline: u32::MAX, ..most }, most.inline),
    ];
    for (sizes, expected) in cases {
        let options = QueuePairOptions { sizes, ..QueuePairOptions::default() };
        let refused = node.endpoint.create(&options, node.send, node.receive);
        let Err(EndpointError::QueueSize { value, most, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((value, most), (u32::MAX, expected));
    }
    let sizes = QueueSizes { inline: 0, entries: 1, ..most };
    let options = QueuePairOptions { sizes, ..QueuePairOptions::default() };
    assert!(node.endpoint.create(&options, node.send, node.receive).is_ok());
}
