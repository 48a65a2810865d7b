//! Header prediction is only faster: with a VLAN tag, which is never predicted, each frame does
//! the same.

use vdk_descriptors::roce::icrc::{self, Encapsulation};
use vdk_descriptors::roce::{PathMtu, Psn};
use vdk_firmware_stubs::roce::{Operation, Payload, Rights, SendRequest, Service};

use crate::hostile::frame;
use crate::lab::{End, Lab, Settings};
use crate::random::Random;

/// The frame with a tag in front of its EtherType.
fn tagged(bytes: &[u8]) -> Vec<u8> {
    let (front, rest) = bytes.split_at(bytes.len().min(12));
    [front, &[0x81, 0, 0, 5], rest].concat()
}

/// The frame without that tag.
fn untagged(bytes: &[u8]) -> Vec<u8> {
    if bytes[12..].starts_with(&[0x81, 0, 0, 5]) {
        [&bytes[..12], &bytes[16..]].concat()
    } else {
        bytes.to_vec()
    }
}

/// Changes some bytes, most often so that the checksums are right again.
fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(4) {
        0 => {
            // Congestion on the path.
            bytes[15] |= 3;
        }
        1 => bytes.truncate(usize::try_from(random.below(bytes.len() as u64)).unwrap()),
        _ => {
            for _ in 0..=random.below(2) {
                let place = usize::try_from(random.below(bytes.len().min(80) as u64)).unwrap();
                bytes[place] = random.next().to_le_bytes()[0];
            }
        }
    }
    if bytes.len() < 34 || random.percent(20) {
        return;
    }
    bytes[24..26].fill(0);
    let sum: u32 = bytes[14..34].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let [.., high, low] = (!((sum & 0xffff) + (sum >> 16))).to_be_bytes();
    bytes[24..26].copy_from_slice(&[high, low]);
    let end = 14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    if let Some((packet, place)) = bytes.get_mut(14..end).and_then(<[u8]>::split_last_chunk_mut::<4>)
        && let Some(crc) = icrc::compute(Encapsulation::Ipv4, packet)
    {
        *place = crc.to_le_bytes();
    }
}

/// The same lab twice: one gets its frames as they are, the other with a tag.
struct Twins {
    labs: [Lab; 2],
}

impl Twins {
    fn deliver(&mut self, to: End, bytes: &[u8]) {
        let [plain, other] = &mut self.labs;
        plain.deliver(to, bytes);
        other.deliver(to, &tagged(bytes));
    }

    fn next_frame(&mut self, from: End) -> Option<Vec<u8>> {
        let [plain, other] = self.labs.each_mut().map(|lab| lab.next_frame(from));
        assert_eq!(plain, other.map(|bytes| untagged(&bytes)));
        plain
    }

    fn post(&mut self, random: &mut Random, id: u64) {
        let length = u32::try_from(random.below(700)).unwrap();
        let choice = random.below(4);
        let place = random.below(64) * 8;
        let [plain, other] = self.labs.each_mut().map(|lab| {
            let (entry, remote) = (lab.client.entry(0, length), lab.server.remote(place));
            let atomic = lab.client.entry(4096, 8);
            let (operation, entry) = match choice {
                0 => (Operation::Send, entry),
                1 => (Operation::Read(remote), entry),
                2 => (Operation::FetchAdd { remote, add: 1 }, atomic),
                _ => (Operation::Write(remote), entry),
            };
            let destination = lab.destination(End::Client);
            let entries = [entry];
            let request = SendRequest::new(id, operation, Payload::Entries(&entries));
            let request = SendRequest { destination: Some(&destination), ..request };
            lab.client.endpoint.post_send(lab.client.number, &request)
        });
        assert_eq!(plain, other);
    }

    fn tick(&mut self) {
        let [plain, other] = self.labs.each_mut().map(Lab::next_deadline);
        assert_eq!(plain, other);
    }

    /// Asserts that nobody could tell the two apart.
    fn compare(&mut self) {
        for end in [End::Client, End::Server] {
            let [plain, other] = self.labs.each_mut().map(|lab| {
                let node = lab.node(end);
                let (sends, receives) = (node.sends_done(), node.receives_done());
                let event = node.endpoint.event();
                let endpoint = &node.endpoint;
                let counters = *endpoint.counters(node.number).unwrap();
                let expected = endpoint.expected_psn(node.number);
                let unacknowledged = endpoint.unacknowledged_psn(node.number);
                let psns = (expected, unacknowledged, endpoint.deadline());
                let refused = *endpoint.frame_counters();
                (sends, receives, event, counters, psns, refused, node.state(), node.bytes().to_vec())
            });
            assert_eq!(plain, other);
        }
    }
}

#[test]
fn a_frame_does_the_same_whether_it_was_predicted_or_not() {
    let mut taken = 0;
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let services = [Service::ReliableConnected, Service::ReliableConnected, Service::UnreliableConnected];
        let settings = Settings {
            service: if random.percent(10) { Service::Datagram } else { random.pick(&services) },
            mtu: PathMtu::Mtu256,
            server_access: random.pick(&[Rights::ALL, Rights::ALL, Rights::REMOTE_READ]),
            region: 8 << 10,
            ..Settings::default()
        };
        let mut twins = Twins { labs: [Lab::new(settings), Lab::new(settings)] };
        for id in 0..8 {
            for lab in &mut twins.labs {
                let entry = lab.server.entry(0, 2000);
                lab.server.post_receive(id, &[entry]);
            }
        }
        for step in 0..150 {
            let end = random.pick(&[End::Client, End::Server]);
            let chance = random.below(100);
            let mut bytes = match chance {
                0..10 => {
                    twins.post(&mut random, step);
                    continue;
                }
                10..13 => {
                    twins.tick();
                    continue;
                }
                13..30 => {
                    let node = twins.labs[0].node(end);
                    let near = node.endpoint.expected_psn(node.number);
                    let sent = twins.labs[0].psns[0];
                    frame(&mut random, &twins.labs[0], end, &[near.unwrap(), sent, Psn::new(7)])
                }
                _ => match twins.next_frame(end.other()) {
                    Some(bytes) => bytes,
                    None => continue,
                },
            };
            if random.percent(20) {
                change(&mut random, &mut bytes);
            }
            twins.deliver(end, &bytes);
            twins.compare();
        }
        let server = &twins.labs[0].server;
        taken += server.endpoint.counters(server.number).unwrap().frames_received;
    }
    assert!(taken > 2000, "only {taken} frames reached a queue pair");
}
