//! What is predicted reads as any frame does, whatever the bytes.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::round_trip::{bth, ethernet, extension, network};
use crate::roce::*;

const NUMBER: u32 = 0x00_1234;

fn transport() -> impl Strategy<Value = Transport> {
    select(&[Transport::ReliableConnection, Transport::UnreliableConnection][..])
}

/// The headers of somebody's packets.
fn way() -> impl Strategy<Value = Network> {
    network().prop_filter("only IPv4 is predicted", |way| matches!(way, Network::Ipv4(..)))
}

/// A packet that comes back on `way`, its service often another one.
fn packet(way: Network) -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..300);
    (ethernet(), network(), bth(), any::<[u64; 4]>(), payload, any::<u8>()).prop_map(
        move |(mut ethernet, mut network, mut bth, words, payload, strange)| {
            if let (Network::Ipv4(header, _), Network::Ipv4(way, _)) = (&mut network, &way) {
                (header.source, header.destination) = (way.destination, way.source);
            }
            if strange & 0x07 != 0 {
                ethernet.tags = [None; 2];
            }
            if strange & 0x38 != 0 {
                bth.partition = PKey::DEFAULT;
            }
            if strange & 0xc0 != 0 {
                bth.destination = Qpn::new(NUMBER).unwrap();
            }
            let extension = extension(bth.opcode.extension(), words);
            let headers = Headers { ethernet, network, bth, extension };
            let mut bytes = vec![0; headers.frame_length(payload.len())];
            Frame { headers, payload: &payload }.build(&mut bytes).unwrap();
            bytes
        },
    )
}

fn way_and_packet() -> impl Strategy<Value = (Network, Vec<u8>)> {
    way().prop_flat_map(|way| (Just(way), packet(way)))
}

/// Makes checksum and invariant CRC of a changed frame right, so that it is judged by the rest.
fn repair(bytes: &mut [u8]) {
    bytes[24..26].fill(0);
    let sum: u32 = bytes[14..34].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let [.., high, low] = (!((sum & 0xffff) + (sum >> 16))).to_be_bytes();
    bytes[24..26].copy_from_slice(&[high, low]);
    let end = 14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    if let Some((packet, place)) =
        bytes.get_mut(14..end).and_then(<[u8]>::split_last_chunk_mut::<{ icrc::LENGTH }>)
        && let Some(crc) = icrc::compute(icrc::Encapsulation::Ipv4, packet)
    {
        *place = crc.to_le_bytes();
    }
}

/// What a prediction must read, by the way that any frame goes.
fn predictable<'a>(way: &Network, transport: Transport, bytes: &'a [u8]) -> Option<Packet<'a>> {
    let frame = Frame::parse(bytes).ok()?;
    let Headers { ethernet, network, bth, .. } = &frame.headers;
    let Network::Ipv4(header, _) = network else { return None };
    let predicted = ethernet.tags == [None; 2]
        && network.goes_back(way)
        && header.traffic_class & 3 != 3
        // The reserved bit beside those of fragments.
        && bytes[20] & 0x80 == 0
        && bth.opcode.transport() == transport
        && bth.partition == PKey::DEFAULT
        && bth.destination == Qpn::new(NUMBER).unwrap();
    predicted.then(|| frame.packet())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_prediction_reads_what_any_frame_reads_as_and_nothing_else(
        (way, good) in way_and_packet(),
        transport in transport(),
        changes in proptest::collection::vec((0..64usize, any::<u8>()), 0..3),
        repaired in any::<bool>(),
        behind in 0..20usize,
        cut in proptest::option::weighted(0.1, any::<Index>()),
    ) {
        let prediction = Prediction::new(&way, transport, Qpn::new(NUMBER).unwrap()).unwrap();
        prop_assert_eq!(prediction.read(&good), predictable(&way, transport, &good));
        let mut bytes = good;
        for (place, value) in changes {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        bytes.resize(bytes.len() + behind, 0);
        if repaired {
            repair(&mut bytes);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        prop_assert_eq!(prediction.read(&bytes), predictable(&way, transport, &bytes));
    }

    #[test]
    fn random_bytes_are_not_predicted(way in way(), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let prediction = Prediction::new(&way, Transport::ReliableConnection, Qpn::new(NUMBER).unwrap()).unwrap();
        prop_assert_eq!(prediction.read(&bytes), None);
    }
}

/// An acknowledgement that comes back on the way of queue pair [`NUMBER`].
fn acknowledgement() -> (Prediction, Headers, Vec<u8>) {
    let (own, peer) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let number = Qpn::new(NUMBER).unwrap();
    let way = Network::new(own, peer, 0xc001).unwrap();
    let station = |host| EthernetAddress([2, 0, 0, 0, 0, host]);
    let headers = Headers {
        ethernet: Ethernet::new(station(2), station(1)),
        network: Network::new(peer, own, 0xc777).unwrap(),
        bth: Bth::new(Opcode::RC_ACKNOWLEDGE, number, Psn::new(5)),
        extension: Extension::Acknowledge(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(3) }),
    };
    let mut bytes = vec![0; headers.frame_length(0)];
    Frame { headers, payload: &[] }.build(&mut bytes).unwrap();
    (Prediction::new(&way, Transport::ReliableConnection, number).unwrap(), headers, bytes)
}

#[test]
fn the_next_packet_of_a_connection_is_predicted_and_any_damage_to_it_is_not() {
    let (prediction, headers, bytes) = acknowledgement();
    let Headers { bth, extension, .. } = headers;
    assert_eq!(Prediction::destination(&bytes), Some(bth.destination));
    assert_eq!(prediction.read(&bytes), Some(Packet { bth, extension, payload: &[] }));
    // Ethernet's addresses nobody verifies; the invariant CRC covers neither those fields of IP
    // that its checksum does, nor the UDP checksum, nor the byte with the congestion bits.
    for place in (12..bytes.len()).filter(|place| ![40, 41, 46].contains(place)) {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << bit;
            assert_eq!(prediction.read(&damaged), None, "byte {place}, bit {bit}");
        }
    }
    for end in 0..bytes.len() {
        assert_eq!(prediction.read(&bytes[..end]), None, "{end}");
    }
}

#[test]
fn what_comes_from_anywhere_or_over_other_headers_is_not_predicted() {
    let number = Qpn::new(NUMBER).unwrap();
    let four = Network::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 1).unwrap();
    let six = Network::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 1).unwrap();
    assert_eq!(Prediction::new(&four, Transport::UnreliableDatagram, number), None);
    assert_eq!(Prediction::new(&four, Transport::CongestionNotification, number), None);
    assert_eq!(Prediction::new(&six, Transport::ReliableConnection, number), None);
}
