//! Frames from somebody who means harm: no panic, nothing touched that was not granted, and
//! no work without end.

use vdk_descriptors::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, Extension, ExtensionHeaders, Frame, Headers, Ieth,
    ImmDt, Msn, Network, Opcode, PathMtu, Psn, QKey, RemoteKey, Reth, Syndrome,
};
use vdk_firmware_stubs::roce::{Memory, Operation, Reach, Rights, Service, Status};

use crate::lab::{End, Lab, Q_KEY, Settings, statuses};
use crate::random::{Random, damage};

fn low32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap()
}

/// A well-formed frame with whatever content, most of it nearly right.
pub(crate) fn frame(random: &mut Random, lab: &Lab, to: End, near: &[Psn]) -> Vec<u8> {
    let (node, peer) = match to {
        End::Client => (&lab.client, &lab.server),
        End::Server => (&lab.server, &lab.client),
    };
    let opcode = random.pick(Opcode::ALL);
    let offset = low32(random.below(5)).wrapping_sub(2);
    let psn =
        if random.percent(95) { random.pick(near).after(offset) } else { Psn::new(low32(random.next())) };
    let mut bth = Bth::new(opcode, node.number, psn);
    bth.ack_request = random.percent(50);
    bth.solicited_event = random.percent(10);
    let address = match random.below(5) {
        0 => random.next(),
        1 => u64::MAX - random.below(64),
        _ => {
            node.region.address.wrapping_add(random.below(70_000)).wrapping_sub(2000) & !(random.below(2) * 7)
        }
    };
    let key = match random.below(8) {
        0 => low32(random.next()),
        1 => node.region.key ^ 0x100,
        _ => node.region.key,
    };
    let length = match random.below(6) {
        0 => low32(random.next()),
        1 => 1 << 31,
        2 => 0,
        _ => low32(random.below(3000)),
    };
    let reth = Reth { address, key: RemoteKey(key), length };
    let syndrome =
        random.pick(&[0x1f, 0x1f, 0x00, 0x60, 0x61, 0x62, 0x63, 0x64, 0x20, 0x2c, 0x3f, 0x40, 0xff]);
    let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(low32(random.next())) };
    let immediate = ImmDt(low32(random.next()));
    let deth = Deth { key: if random.percent(70) { Q_KEY } else { QKey(1) }, source: peer.number };
    let (swap_or_add, compare) = (random.next(), random.next());
    let extension = Extension::of(
        opcode.extension(),
        &ExtensionHeaders {
            immediate,
            invalidate: Ieth(RemoteKey(key)),
            remote: reth,
            acknowledge: aeth,
            original: AtomicAckEth(random.next()),
            atomic: AtomicEth { address, key: RemoteKey(key), swap_or_add, compare },
            datagram: deth,
        },
    );
    let size = random.pick(&[0, 0, 1, 8, 255, 256, 256, 256, 257, 1024, 4096]);
    let mut payload = vec![0; size];
    random.fill(&mut payload);
    let ethernet = Ethernet::new(peer.station.ethernet, node.station.ethernet);
    let network = Network::new(peer.station.address, node.station.address, 0xc000).unwrap();
    let headers = Headers { ethernet, network, bth, extension };
    let mut buffer = vec![0; 6000];
    let length = Frame { headers, payload: &payload }.build(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

#[test]
fn hostile_requests_touch_nothing_that_was_not_granted() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let services = [Service::ReliableConnected, Service::UnreliableConnected, Service::Datagram];
        let settings = Settings {
            service: random.pick(&services),
            mtu: PathMtu::Mtu256,
            server_access: random.pick(&[Rights::ALL, Rights::REMOTE_READ]),
            ..Settings::default()
        };
        let mut lab = Lab::new(settings);
        let domain = lab.server.domain;
        let secret =
            lab.server.endpoint.memory_mut().register(domain, Rights::LOCAL_WRITE, vec![0x5e; 4096]).unwrap();
        let entry = lab.server.entry(0, 2000);
        for id in 0..8 {
            lab.server.post_receive(id, &[entry]);
        }
        for _ in 0..300 {
            let expected = lab.server.endpoint.expected_psn(lab.server.number).unwrap();
            let bytes = frame(&mut random, &lab, End::Server, &[expected, expected, Psn::new(7)]);
            lab.deliver(End::Server, &bytes);
            // A READ of 2 GiB has eight million packets: they come one by one, when asked for.
            for _ in 0..random.below(6) {
                let _ = lab.next_frame(End::Server);
            }
        }
        assert!(lab.server.endpoint.memory().bytes(secret.key).unwrap().iter().all(|byte| *byte == 0x5e));
        let done = lab.server.receives_done();
        assert!(done.len() <= 8, "seed {seed}: each receive once");
        assert!(done.iter().enumerate().all(|(place, done)| done.id() == place as u64), "seed {seed}");
    }
}

#[test]
fn hostile_answers_complete_each_send_at_most_once() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, timeout: 6, ..Settings::default() });
        let start = lab.psns[0];
        let (entry, remote) = (lab.client.entry(0, 1000), lab.server.remote(0));
        let number = lab.client.entry(4096, 8);
        for id in 0..4 {
            lab.client.post(4 * id, Operation::Write(remote), &[entry]);
            lab.client.post(4 * id + 1, Operation::Read(remote), &[entry]);
            lab.client.post(4 * id + 2, Operation::FetchAdd { remote, add: 1 }, &[number]);
            lab.client.post(4 * id + 3, Operation::Send, &[entry]);
        }
        let mut done = Vec::new();
        for _ in 0..400 {
            for _ in 0..random.below(4) {
                let _ = lab.next_frame(End::Client);
            }
            let near: Vec<Psn> = (0..8).map(|step| start.after(4 * step)).collect();
            let bytes = frame(&mut random, &lab, End::Client, &near);
            lab.deliver(End::Client, &bytes);
            if random.percent(5) {
                lab.next_deadline();
            }
            done.extend(lab.client.sends_done());
        }
        let ids: Vec<u64> = done.iter().map(vdk_firmware_stubs::roce::Completion::id).collect();
        assert_eq!(ids, (0..done.len() as u64).collect::<Vec<_>>(), "seed {seed}");
        let first_error = done.iter().position(|done| done.status().is_some()).unwrap_or(done.len());
        assert!(done[first_error..].iter().all(|done| done.status().is_some()), "seed {seed}");
    }
}

#[test]
fn random_and_damaged_bytes_vanish() {
    let mut random = Random::new(1);
    let mut lab = Lab::new(Settings::default());
    let (entry, remote) = (lab.client.entry(0, 500), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let good = lab.next_frame(End::Client).unwrap();
    for _ in 0..20_000 {
        let mut bytes = if random.percent(50) {
            let mut bytes = good.clone();
            damage(&mut random, &mut bytes);
            bytes
        } else {
            vec![0; usize::try_from(random.below(200)).unwrap()]
        };
        if bytes.len() < 200 {
            random.fill(&mut bytes);
        }
        lab.deliver(End::Server, &bytes);
    }
    assert_eq!(lab.server.endpoint.counters(lab.server.number).unwrap().frames_received, 0);
    assert!(lab.next_frame(End::Server).is_none());
    assert!(lab.server.bytes().iter().all(|byte| *byte == 0));
    lab.deliver(End::Server, &good);
    assert!(lab.next_frame(End::Server).is_some());
}

#[test]
fn a_peer_that_counts_backwards_for_ever_leads_an_unreliable_connection_nowhere() {
    let service = Service::UnreliableConnected;
    let mut lab = Lab::new(Settings { service, ..Settings::default() });
    let (number, mut psn) = (lab.server.number, lab.psns[0]);
    for round in 1..=20 {
        // The furthest that still counts as back.
        psn = psn.after((1 << 23) + 1);
        let like = frame(&mut Random::new(round), &lab, End::Server, &[psn]);
        let bth = Bth::new(Opcode::UC_WRITE_LAST, number, psn);
        let headers = Headers { bth, extension: Extension::None, ..Frame::parse(&like).unwrap().headers };
        let mut bytes = vec![0; headers.frame_length(8)];
        Frame { headers, payload: &[0; 8] }.build(&mut bytes).unwrap();
        lab.deliver(End::Server, &bytes);
        assert_eq!(lab.server.endpoint.expected_psn(number), Some(psn.after(1)));
        assert_eq!(lab.server.endpoint.counters(number).unwrap().dropped, round);
    }
}

#[test]
fn a_peer_cannot_invalidate_the_key_of_an_ordinary_registration() {
    let mut lab = Lab::new(Settings::default());
    let place = lab.server.entry(0, 64);
    lab.server.post_receive(8, &[place]);
    lab.server.post_receive(9, &[place]);
    lab.client.post(1, Operation::SendWithInvalidate(lab.server.region.key), &[]);
    lab.settle();
    assert_eq!(lab.refusals(End::Server), [0x62]);
    assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::RemoteAccess))]);
    // The receive that the message used says what was wrong with it.
    let done = [(8, Some(Status::RemoteInvalidRequest)), (9, Some(Status::Flushed))];
    assert_eq!(statuses(&lab.server.receives_done()), done);
    let (key, address) = (lab.server.region.key, lab.server.region.address);
    let (rights, domain) = (Rights::REMOTE_WRITE, lab.server.domain);
    let reach = Reach { key, address, length: 64, rights, domain };
    assert_eq!(lab.server.endpoint.memory().check(&reach), Ok(()), "the key still works");
}
