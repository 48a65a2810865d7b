//! Events, congestion, and what a queue pair that takes nothing keeps to itself.

use vdk_descriptors::roce::{
    Bth, Extension, Frame, Headers, Network, Opcode, PKey, Psn, Qpn, RemoteKey, Reth, RnrTimer,
};
use vdk_firmware_stubs::roce::{
    Attributes, Endpoint, EndpointError, Event, MOST_COMPLETIONS, Operation, Path, Payload, QueuePairOptions,
    QueueSizes, ReceiveRequest, Rights, SendRequest, State,
};

use crate::lab::{End, Lab, Settings, connect, statuses};

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

/// `count` queue pairs of the server beside the one that it has, each as far as RTR, and the frame
/// that establishes each and the one that is refused.
fn crowd(lab: &mut Lab, count: u32) -> Vec<(Qpn, Vec<u8>, Vec<u8>)> {
    let (good, _) = write(lab);
    let good = Frame::parse(&good).unwrap();
    let settings = Settings::default();
    let path = Path::new(lab.server.station, lab.client.station, 0xc123).unwrap();
    let stations = vec![lab.server.station];
    let node = &mut lab.server;
    node.endpoint = Endpoint::new(stations, usize::try_from(count).unwrap());
    let queue = node.endpoint.completion_queue(1).unwrap();
    let sizes = QueueSizes { sends: 1, receives: 1, entries: 1, inline: 0 };
    let init =
        Attributes { partition_index: Some(0), port: Some(1), access: Some(Rights::ALL), ..Attributes::NONE };
    let receive = Attributes {
        path: Some(path),
        path_mtu: Some(settings.mtu),
        destination: Some(lab.client.number),
        receive_psn: Some(good.headers.bth.psn),
        responder_depth: Some(1),
        rnr_timer: RnrTimer::new(12),
        ..Attributes::NONE
    };
    let frames = (0..count).map(|_| {
        let options = QueuePairOptions { sizes, ..QueuePairOptions::default() };
        let number = node.endpoint.create(&options, queue, queue).unwrap();
        node.endpoint.modify(number, State::Init, &init).unwrap();
        node.endpoint.modify(number, State::ReadyToReceive, &receive).unwrap();
        let frame = |opcode, psn, extension, payload| {
            let headers = Headers { bth: Bth::new(opcode, number, psn), extension, ..good.headers };
            bytes(&Frame { headers, payload })
        };
        let reth = Reth { address: 0, key: RemoteKey(0), length: 0 };
        let psn = good.headers.bth.psn;
        let first = frame(Opcode::RC_WRITE_ONLY, psn, Extension::Remote(reth), &[]);
        (number, first, frame(Opcode::RC_SEND_LAST, psn.next(), Extension::None, &[1; 4]))
    });
    frames.collect()
}

#[test]
fn what_ends_a_queue_pair_is_told_once_however_much_waits_unread() {
    let mut lab = Lab::new(Settings::default());
    let crowd = crowd(&mut lab, 3000);
    // Each has two events before the first one is read, and the last kind that comes is the one
    // that matters.
    for (_, first, _) in &crowd {
        lab.deliver(End::Server, first);
    }
    for (_, _, refused) in &crowd {
        lab.deliver(End::Server, refused);
        lab.deliver(End::Server, refused);
    }
    for (number, ..) in &crowd {
        assert_eq!(lab.server.endpoint.event(), Some(Event::Established(*number)));
        assert_eq!(lab.server.endpoint.event(), Some(Event::RequestError(*number)));
    }
    assert_eq!(lab.server.endpoint.event(), None);
}

#[test]
fn events_of_a_queue_pair_that_is_gone_are_gone_and_all_others_stay() {
    let mut lab = Lab::new(Settings::default());
    let crowd = crowd(&mut lab, 40);
    for (_, first, refused) in &crowd {
        lab.deliver(End::Server, first);
        lab.deliver(End::Server, refused);
    }
    assert_eq!(lab.server.endpoint.event(), Some(Event::Established(crowd[0].0)));
    for (number, ..) in crowd.iter().step_by(2) {
        lab.server.endpoint.destroy(*number).unwrap();
    }
    let left: Vec<Event> = std::iter::from_fn(|| lab.server.endpoint.event()).collect();
    let expected: Vec<Event> = crowd
        .iter()
        .skip(1)
        .step_by(2)
        .flat_map(|(number, ..)| [Event::Established(*number), Event::RequestError(*number)])
        .collect();
    assert_eq!(left, expected);
}

#[test]
fn a_queue_pair_that_fails_again_says_so_again() {
    let mut lab = Lab::new(Settings::default());
    let (number, _, refused) = crowd(&mut lab, 1).remove(0);
    let psn = Frame::parse(&refused).unwrap().headers.bth.psn;
    let path = Path::new(lab.server.station, lab.client.station, 0xc123).unwrap();
    let settings = Settings::default();
    let peer = lab.client.number;
    for round in 0..3 {
        lab.server.endpoint.modify(number, State::Reset, &Attributes::NONE).unwrap();
        lab.server.number = number;
        connect(&mut lab.server, &settings, Rights::ALL, (psn, psn), path, peer);
        lab.deliver(End::Server, &refused);
        assert_eq!(lab.server.endpoint.event(), Some(Event::RequestError(number)), "{round}");
        assert_eq!(lab.server.endpoint.event(), None, "{round}");
    }
}

#[test]
fn a_completion_queue_of_any_size_asked_for_is_made_or_refused() {
    let mut lab = Lab::new(Settings::default());
    let endpoint = &mut lab.client.endpoint;
    for value in [MOST_COMPLETIONS + 1, u32::MAX] {
        let refused = endpoint.completion_queue(value);
        let expected = EndpointError::QueueSize { name: "number of completions", value, most: 0x20_0000 };
        assert_eq!(refused, Err(expected));
        assert_eq!(
            expected.to_string(),
            format!(
                "the number of completions is {value:#x}, and at most 0x200000 are possible; ask for fewer"
            )
        );
    }
    // Nothing was made of what was refused, and one with room for nothing loses nothing.
    let queue = endpoint.completion_queue(0).unwrap();
    let options = QueuePairOptions::default();
    let number = endpoint.create(&options, queue, queue).unwrap();
    let init = Attributes {
        partition_index: Some(0),
        port: Some(1),
        access: Some(Rights::NONE),
        ..Attributes::NONE
    };
    endpoint.modify(number, State::Init, &init).unwrap();
    for id in 0..3 {
        endpoint.post_receive(number, &ReceiveRequest { id, entries: &[] }).unwrap();
    }
    endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
    let done: Vec<u64> = std::iter::from_fn(|| endpoint.poll(queue)).map(|done| done.id()).collect();
    assert_eq!(done, [0, 1, 2]);
}
