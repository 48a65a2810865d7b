//! The way of the frames: what is kept ready of it never outlives a change.

use std::net::{IpAddr, Ipv6Addr};

use vdk_descriptors::roce::{EthernetAddress, Frame, PathMtu, VlanTag};
use vdk_firmware_stubs::roce::{
    Attributes, Destination, Operation, Path, Payload, Rights, SendRequest, Service, State,
};

use crate::lab::{End, Lab, Settings, connect, statuses};

/// A way from the client to a host that is not the server.
fn elsewhere(lab: &Lab, six: bool, port: u16) -> Path {
    let address = |host| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host);
    let (mut from, mut to) = (lab.client.station, lab.server.station);
    to.ethernet = EthernetAddress([2, 0, 0, 0, 0, 9]);
    if six {
        (from.address, to.address) = (IpAddr::V6(address(1)), IpAddr::V6(address(2)));
    } else {
        to.address = "10.0.0.99".parse().unwrap();
    }
    Path::new(from, to, port).unwrap()
}

/// The way that the next frame of the client takes, and its bytes of payload.
fn next(lab: &mut Lab) -> (Path, usize) {
    let bytes = lab.next_frame(End::Client).unwrap();
    let frame = Frame::parse(&bytes).unwrap();
    (Path { ethernet: frame.headers.ethernet, network: frame.headers.network }, frame.payload.len())
}

/// Gives a queue pair another path, which it takes when its send queue is drained.
fn repath(lab: &mut Lab, end: End, path: Path) {
    let node = lab.node(end);
    let (number, path) = (node.number, Attributes { path: Some(path), ..Attributes::NONE });
    node.endpoint.modify(number, State::SendQueueDrain, &Attributes::NONE).unwrap();
    node.endpoint.modify(number, State::SendQueueDrain, &path).unwrap();
    node.endpoint.modify(number, State::ReadyToSend, &Attributes::NONE).unwrap();
}

#[test]
fn a_queue_pair_whose_path_changes_sends_every_frame_on_the_new_one() {
    let mut lab = Lab::new(Settings::default());
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    let first = Path::new(lab.client.station, lab.server.station, 0xc123).unwrap();
    let mut tagged = elsewhere(&lab, false, 0xc001);
    tagged.ethernet.tags[0] = Some(VlanTag { ethertype: 0x8100, control: 7 });
    for (id, path) in
        (0..).zip([elsewhere(&lab, false, 0xc001), elsewhere(&lab, true, 0xc002), tagged, first])
    {
        restart(&mut lab, &Settings::default(), first);
        lab.client.post(10 + id, Operation::Write(remote), &[entry]);
        lab.settle();
        repath(&mut lab, End::Client, path);
        lab.client.post(id, Operation::Write(remote), &[entry]);
        assert_eq!(next(&mut lab), (path, 8), "{id}");
        // Sent again, since no answer came.
        assert!(lab.next_deadline());
        assert_eq!(next(&mut lab), (path, 8), "{id}");
    }
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()).last(), Some(&(3, None)));
}

#[test]
fn a_responder_whose_path_changes_answers_on_the_new_one() {
    let mut lab = Lab::new(Settings::default());
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    let mut sender = lab.client.station;
    for (id, host) in (0..).zip([2, 7, 8, 2]) {
        sender.ethernet = EthernetAddress([0x52, 0x54, 0, 0, 0, host]);
        let path = Path::new(lab.server.station, sender, 0xc200 + u16::from(host)).unwrap();
        repath(&mut lab, End::Server, path);
        lab.client.post(id, Operation::Write(remote), &[entry]);
        let request = lab.next_frame(End::Client).unwrap();
        lab.deliver(End::Server, &request);
        let answer = lab.next_frame(End::Server).unwrap();
        let headers = Frame::parse(&answer).unwrap().headers;
        assert_eq!((headers.ethernet, headers.network), (path.ethernet, path.network));
        lab.deliver(End::Client, &answer);
        assert_eq!(statuses(&lab.client.sends_done()), [(id, None)]);
    }
}

/// Connects the client and the server anew.
fn restart(lab: &mut Lab, settings: &Settings, path: Path) {
    let psns = (settings.client_psn, settings.server_psn);
    for end in [End::Client, End::Server] {
        let (number, peer) = match end {
            End::Client => (lab.client.number, lab.server.number),
            End::Server => (lab.server.number, lab.client.number),
        };
        let back = Path::new(lab.server.station, lab.client.station, 0xc123).unwrap();
        let (path, psns) = if end == End::Client { (path, psns) } else { (back, (psns.1, psns.0)) };
        let node = lab.node(end);
        node.endpoint.modify(number, State::Reset, &Attributes::NONE).unwrap();
        connect(node, settings, Rights::ALL, psns, path, peer);
    }
}

#[test]
fn a_queue_pair_that_is_reset_keeps_nothing_of_its_path_and_its_mtu() {
    let mut lab = Lab::new(Settings::default());
    let (entry, remote) = (lab.client.entry(0, 5000), lab.server.remote(0));
    let first = Path::new(lab.client.station, lab.server.station, 0xc123).unwrap();
    for (id, mtu, path) in [
        (0, PathMtu::Mtu1024, first),
        (1, PathMtu::Mtu256, elsewhere(&lab, true, 0xc003)),
        (2, PathMtu::Mtu512, elsewhere(&lab, false, 0xc004)),
    ] {
        restart(&mut lab, &Settings { mtu, ..Settings::default() }, path);
        lab.client.post(id, Operation::Write(remote), &[entry]);
        let bytes = usize::try_from(mtu.bytes()).unwrap();
        assert_eq!(next(&mut lab), (path, bytes));
        assert_eq!(next(&mut lab), (path, bytes));
        // The last frame of the message, whose length is another.
        while let Some(frame) = lab.next_frame(End::Client) {
            let payload = Frame::parse(&frame).unwrap().payload.len();
            assert!(payload == bytes || payload == 5000 % bytes);
        }
    }
    restart(&mut lab, &Settings::default(), first);
    lab.client.post(9, Operation::Write(remote), &[entry]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()).last(), Some(&(9, None)));
}

#[test]
fn each_datagram_goes_its_own_way() {
    let mut lab = Lab::new(Settings { service: Service::Datagram, ..Settings::default() });
    let entry = lab.client.entry(0, 100);
    let ways = [elsewhere(&lab, false, 0xc001), elsewhere(&lab, true, 0xc002)];
    for (id, path) in (0..).zip([ways[0], ways[1], ways[0], ways[1]]) {
        let destination = Destination { path, ..lab.destination(End::Client) };
        let entries = [entry];
        let mut request = SendRequest::new(id, Operation::Send, Payload::Entries(&entries));
        request.destination = Some(&destination);
        lab.client.endpoint.post_send(lab.client.number, &request).unwrap();
    }
    for path in [ways[0], ways[1], ways[0], ways[1]] {
        assert_eq!(next(&mut lab), (path, 100));
    }
}
