//! What went wrong with queue pairs elsewhere.

use vdk_descriptors::roce::{PathMtu, Psn};
use vdk_firmware_stubs::roce::{
    Attributes, EndpointError, Operation, Payload, PostError, QueuePairOptions, QueueSizes, ReceiveRequest,
    Remote, Rights, ScatterGatherEntry, SendRequest, Side, State, Status,
};

use crate::lab::{End, Lab, Settings, connect, statuses};
use crate::random::Random;

#[test]
fn a_write_or_read_of_no_bytes_reaches_nothing_and_needs_no_key() {
    let mut lab = Lab::new(Settings::default());
    // It serves as a sign of life. The right to the operation is needed all the same.
    let nothing = Remote { address: 0xdead_beef, key: 0xffff_ffff };
    lab.server.post_receive(7, &[]);
    lab.client.post(1, Operation::Write(nothing), &[]);
    lab.client.post(2, Operation::WriteWithImmediate(nothing, 5), &[]);
    lab.client.post(3, Operation::Read(nothing), &[]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None), (3, None)]);
    assert_eq!(statuses(&lab.server.receives_done()), [(7, None)]);
    let mut lab = Lab::new(Settings { server_access: Rights::NONE, ..Settings::default() });
    lab.client.post(1, Operation::Write(nothing), &[]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::RemoteInvalidRequest))]);
}

#[test]
fn messages_around_a_multiple_of_the_path_mtu_arrive_whole_through_loss() {
    for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
        for length in [4095, 4096, 4097, 8191, 8192, 8193, 1 << 20] {
            let settings = Settings { mtu, region: 1 << 20, retries: 7, ..Settings::default() };
            let mut lab = Lab::new(settings);
            let mut random = Random::new(u64::from(length));
            random.fill(lab.client.bytes());
            let (entry, remote) = (lab.client.entry(0, length), lab.server.remote(0));
            lab.client.post(1, Operation::Write(remote), &[entry]);
            lab.run(|_, _| !random.percent(5));
            assert_eq!(statuses(&lab.client.sends_done()), [(1, None)], "{mtu} {length}");
            let sent = lab.client.bytes()[..length as usize].to_vec();
            assert!(lab.server.bytes()[..length as usize] == sent, "{mtu} {length}");
        }
    }
}

#[test]
fn the_window_holds_across_the_wrap_of_psns() {
    for (window, allowed) in [(1, 1), (4, 4), (100, 100), (0, 1)] {
        let client_psn = Psn::new(0xff_fff0);
        let settings =
            Settings { client_psn, window, mtu: PathMtu::Mtu256, timeout: 0, ..Settings::default() };
        let mut lab = Lab::new(settings);
        let (entry, remote) = (lab.client.entry(0, 60_000), lab.server.remote(0));
        lab.client.post(1, Operation::Write(remote), &[entry]);
        let sent = std::iter::from_fn(|| lab.next_frame(End::Client)).count();
        assert_eq!(sent, allowed, "window {window}");
        let last = lab.log.last().unwrap().psn;
        assert_eq!(last, client_psn.after(u32::try_from(allowed).unwrap() - 1));
    }
}

#[test]
fn destroying_at_any_moment_returns_each_of_many_requests_once() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let sizes = QueueSizes { sends: 64, receives: 64, entries: 1, inline: 0 };
        let mut lab = Lab::new(Settings { sizes, ..Settings::default() });
        for id in 0..64 {
            lab.client.post(id, Operation::Send, &[]);
            lab.server.post_receive(100 + id, &[]);
            lab.client.post_receive(100 + id, &[]);
        }
        let mut budget = random.below(150);
        lab.carry(|_, _| {
            budget = budget.saturating_sub(1);
            budget != 0
        });
        let number = lab.client.number;
        let done = statuses(&lab.client.sends_done());
        let left = lab.client.endpoint.destroy(number).unwrap();
        let done = done.into_iter().map(|(id, _)| (Side::Send, id));
        let mut all: Vec<_> = done.chain(left).map(|(side, id)| (side == Side::Receive, id)).collect();
        all.sort_unstable();
        let expected: Vec<_> = (0..64).map(|id| (false, id)).chain((100..164).map(|id| (true, id))).collect();
        assert_eq!(all, expected, "seed {seed}");
        assert!(lab.client.sends_done().is_empty() && lab.client.receives_done().is_empty());
    }
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_name_it_and_not_the_next() {
    let mut lab = Lab::new(Settings::default());
    for id in 0..3 {
        lab.client.post_receive(id, &[]);
    }
    let old = lab.client.number;
    lab.client.endpoint.modify(old, State::Error, &Attributes::NONE).unwrap();
    assert_eq!(lab.client.endpoint.destroy(old), Ok(Vec::new()));
    let node = &mut lab.client;
    let options = QueuePairOptions { domain: node.domain, ..QueuePairOptions::default() };
    let new = node.endpoint.create(&options, node.send, node.receive).unwrap();
    assert_ne!(old, new);
    let stale = node.receives_done();
    assert_eq!(stale.len(), 3);
    assert!(stale.iter().all(|done| done.queue_pair() == old && done.status() == Some(Status::Flushed)));
}

#[test]
fn a_queue_pair_can_be_destroyed_between_two_of_its_completions() {
    let mut lab = Lab::new(Settings::default());
    let (remote, number) = (lab.server.remote(0), lab.client.number);
    for id in 0..4 {
        lab.client.post(id, Operation::Write(remote), &[]);
    }
    lab.settle();
    let node = &mut lab.client;
    assert_eq!(node.endpoint.poll(node.send).map(|done| done.id()), Some(0));
    assert_eq!(node.endpoint.destroy(number), Ok(Vec::new()));
    // What had completed before stays true.
    assert_eq!(statuses(&node.sends_done()), [(1, None), (2, None), (3, None)]);
    let request = SendRequest::new(9, Operation::Write(remote), Payload::Inline(&[]));
    assert_eq!(node.endpoint.post_send(number, &request), Err(EndpointError::QueuePair(number)));
    lab.settle();
    assert!(lab.client.sends_done().is_empty());
}

#[test]
fn after_a_hundred_thousand_sends_and_some_failures_every_slot_is_free() {
    let mut random = Random::new(23);
    let settings = Settings::default();
    let mut lab = Lab::new(settings);
    let good = lab.client.entry(0, 8);
    let bad = vdk_firmware_stubs::roce::ScatterGatherEntry { key: 0, ..good };
    let (remote, number) = (lab.server.remote(0), lab.client.number);
    let (mut posted, mut ended) = (0, 0);
    while posted < 100_000 {
        for _ in 0..1 + random.below(16) {
            let entries = [if random.percent(1) { bad } else { good }];
            let request = SendRequest::new(posted, Operation::Write(remote), Payload::Entries(&entries));
            posted += u64::from(lab.client.endpoint.post_send(number, &request).is_ok());
        }
        lab.settle();
        lab.log.clear();
        ended += lab.client.sends_done().len() as u64;
        if lab.client.state() == State::Error {
            reconnect(&mut lab, &settings);
        }
    }
    assert_eq!(posted, ended);
    let entries = [good];
    let request = SendRequest::new(0, Operation::Write(remote), Payload::Entries(&entries));
    for _ in 0..settings.sizes.sends {
        lab.client.endpoint.post_send(number, &request).unwrap();
    }
    let full = EndpointError::Post(PostError::QueueFull { capacity: settings.sizes.sends });
    assert_eq!(lab.client.endpoint.post_send(number, &request), Err(full));
}

/// Resets both queue pairs and connects them again.
fn reconnect(lab: &mut Lab, settings: &Settings) {
    for end in [End::Client, End::Server] {
        let path = lab.destination(end).path;
        let peer = lab.node(end.other()).number;
        let psns = (Psn::new(5), Psn::new(5));
        let node = lab.node(end);
        node.endpoint.modify(node.number, State::Reset, &Attributes::NONE).unwrap();
        connect(node, settings, Rights::ALL, psns, path, peer);
    }
}

#[test]
fn a_completion_queue_that_nobody_polls_holds_up_no_other() {
    let mut lab = Lab::new(Settings::default());
    let node = &mut lab.client;
    let (send, receive) = [(); 2].map(|()| node.endpoint.completion_queue(1).unwrap()).into();
    let options = QueuePairOptions { domain: node.domain, ..QueuePairOptions::default() };
    let other = node.endpoint.create(&options, send, receive).unwrap();
    let initial = Attributes {
        partition_index: Some(0),
        port: Some(1),
        access: Some(Rights::NONE),
        ..Attributes::NONE
    };
    node.endpoint.modify(other, State::Init, &initial).unwrap();
    // Flush completions of one queue pair come to its own queue, whichever was first.
    for id in 0..3 {
        node.endpoint.post_receive(other, &ReceiveRequest { id: 50 + id, entries: &[] }).unwrap();
        node.post_receive(id, &[]);
    }
    node.endpoint.modify(other, State::Error, &Attributes::NONE).unwrap();
    let number = node.number;
    node.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
    let flushed = Some(Status::Flushed);
    assert_eq!(statuses(&node.receives_done()), [(0, flushed), (1, flushed), (2, flushed)]);
    let late: Vec<u64> = std::iter::from_fn(|| node.endpoint.poll(receive)).map(|done| done.id()).collect();
    assert_eq!(late, [50, 51, 52]);
}

#[test]
fn a_request_of_more_pieces_than_the_queue_allows_is_refused_and_arrives_split() {
    const PIECES: usize = 64;
    for most in [1, 3, 30] {
        let sizes = QueueSizes { sends: 64, receives: 64, entries: most, inline: 0 };
        let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, sizes, ..Settings::default() });
        for (place, byte) in lab.client.bytes().iter_mut().enumerate() {
            *byte = place.to_le_bytes()[0] ^ place.to_le_bytes()[1];
        }
        // Pieces of 1 to 64 bytes, each a bit away from the next, and at the other side in the
        // opposite order.
        let piece = |node: &crate::lab::Node, place: usize| {
            node.entry(place as u64 * 100, u32::try_from(place).unwrap() + 1)
        };
        let from: Vec<_> = (0..PIECES).map(|place| piece(&lab.client, place)).collect();
        let to: Vec<_> = (0..PIECES).rev().map(|place| piece(&lab.server, place)).collect();
        let refused = EndpointError::Post(PostError::Entries { count: PIECES, most });
        let request = SendRequest::new(99, Operation::Send, Payload::Entries(&from));
        assert_eq!(lab.client.endpoint.post_send(lab.client.number, &request), Err(refused));
        let receive = ReceiveRequest { id: 99, entries: &to };
        assert_eq!(lab.server.endpoint.post_receive(lab.server.number, &receive), Err(refused));
        // One piece too many is too many, and as many as allowed are not.
        let room = usize::try_from(most).unwrap();
        let request = SendRequest::new(99, Operation::Send, Payload::Entries(&from[..=room]));
        let refused = EndpointError::Post(PostError::Entries { count: room + 1, most });
        assert_eq!(lab.client.endpoint.post_send(lab.client.number, &request), Err(refused));

        let mut expected = Vec::new();
        for (id, (pieces, places)) in (0..).zip(from.chunks(room).zip(to.chunks(room))) {
            // A receive takes the whole of its pieces, whatever message fills them.
            let bytes = |entries: &[_]| entries.iter().map(|e: &ScatterGatherEntry| e.length).sum::<u32>();
            let length = bytes(pieces);
            let tail = lab.server.entry(8192, 2048);
            let mut places = places.to_vec();
            if bytes(&places) < length {
                *places.last_mut().unwrap() = tail;
            }
            lab.server.post_receive(id, &places);
            lab.client.post(id, Operation::Send, pieces);
            lab.settle();
            let sent: Vec<u8> = collect(&mut lab.client, pieces);
            let mut received = collect(&mut lab.server, &places);
            received.truncate(sent.len());
            assert_eq!(received, sent, "max_sge {most}, request {id}");
            expected.push((id, None));
        }
        assert_eq!(statuses(&lab.client.sends_done()), expected, "max_sge {most}");
        assert_eq!(statuses(&lab.server.receives_done()), expected, "max_sge {most}");
        // The answer to a READ comes to as many pieces.
        let pieces: Vec<_> = from[..room].to_vec();
        let length: usize = pieces.iter().map(|entry| entry.length as usize).sum();
        lab.server.bytes()[16384..16384 + length].fill(0x5e);
        lab.client.post(7, Operation::Read(lab.server.remote(16384)), &pieces);
        lab.settle();
        assert_eq!(statuses(&lab.client.sends_done()), [(7, None)]);
        assert_eq!(collect(&mut lab.client, &pieces), vec![0x5e; length]);
        let beside = usize::try_from(pieces[0].length).unwrap();
        assert_ne!(lab.client.bytes()[beside], 0x5e, "between two pieces nothing is written");
    }
}

/// The bytes of some pieces of a region, one piece after the other.
fn collect(node: &mut crate::lab::Node, pieces: &[ScatterGatherEntry]) -> Vec<u8> {
    let base = node.region.address;
    let bytes = node.bytes();
    let piece = |entry: &ScatterGatherEntry| {
        let start = usize::try_from(entry.address - base).unwrap();
        bytes[start..start + entry.length as usize].to_vec()
    };
    pieces.iter().flat_map(piece).collect()
}
