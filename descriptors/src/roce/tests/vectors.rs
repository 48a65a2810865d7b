//! Frames that other implementations made. Each ICRC was verified by two more.

use crate::roce::icrc::Encapsulation;
use crate::roce::*;

/// One frame a line: a name, and its bytes.
const VECTORS: &str = include_str!("vectors.txt");

fn vectors() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    VECTORS.lines().map(|line| {
        let (name, digits) = line.split_once(": ").unwrap();
        (name, hex(digits))
    })
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2)
        .map(|byte| u8::from_str_radix(&digits[2 * byte..2 * byte + 2], 16).unwrap())
        .collect()
}

fn vector(name: &str) -> Vec<u8> {
    vectors().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("no vector {name}")).1
}

#[test]
fn each_frame_of_others_parses_and_is_rebuilt_byte_for_byte() {
    assert_eq!(vectors().count(), 37);
    for (name, bytes) in vectors() {
        let frame = Frame::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut buffer = [0xa5; MAX_FRAME];
        let length = frame.build(&mut buffer).unwrap();
        assert_eq!(buffer[..length], bytes[..], "{name}");
        assert_eq!(frame.headers.frame_length(frame.payload.len()), length, "{name}");
        assert!(buffer[length..].iter().all(|byte| *byte == 0xa5), "{name}");
    }
}

#[test]
fn fields_have_the_values_that_their_makers_gave_them() {
    let bytes = vector("rxe NAK 60");
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.headers.bth.opcode, Opcode::RC_ACKNOWLEDGE);
    assert_eq!(frame.headers.bth.destination.value(), 0x1b);
    assert_eq!(frame.headers.bth.psn.value(), 0x0d_2d0e);
    assert!(!frame.headers.bth.migrated && !frame.headers.bth.ack_request);
    let Aeth { syndrome, msn } = frame.headers.extension.acknowledge().unwrap();
    assert_eq!(syndrome.kind(), SyndromeKind::Nak(NakCode::PsnSequenceError));
    assert_eq!(msn.value(), 2812);

    let bytes = vector("scapy RC_COMPARE_SWAP swap=11.. cmp=22..");
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.headers.bth.psn.value(), 0x1008);
    assert!(frame.headers.bth.migrated && frame.headers.bth.ack_request);
    let atomic = AtomicEth {
        address: 0x7f00_0000_4000,
        key: RemoteKey(0x1234),
        swap_or_add: 0x1111_1111_1111_1111,
        compare: 0x2222_2222_2222_2222,
    };
    assert_eq!(frame.headers.extension, Extension::Atomic(atomic));
    assert_eq!(frame.headers.network.source(), "10.0.0.1".parse::<core::net::IpAddr>().unwrap());

    let bytes = vector("scapy RC_SEND_ONLY 11B pad1");
    assert_eq!(Frame::parse(&bytes).unwrap().payload, b"hello, rdma");

    let bytes = vector("scapy RC_WRITE_ONLY_IMM");
    let frame = Frame::parse(&bytes).unwrap();
    let reth = Reth { address: 0x7f00_0000_2000, key: RemoteKey(0x1234), length: 4 };
    assert_eq!(frame.headers.extension, Extension::RemoteImmediate(reth, ImmDt(0x0102_0304)));

    let bytes = vector("ConnectX-4 Lx CNP");
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.headers.bth.opcode, Opcode::CONGESTION_NOTIFICATION);
    assert!(frame.headers.bth.backward_congestion && !frame.headers.bth.forward_congestion);
    assert_eq!((frame.headers.extension, frame.payload.len()), (Extension::Congestion, 0));
    assert_eq!(frame.headers.network.traffic_class(), 0xc2);

    let bytes = vector("scapy UC SEND Only IPv6");
    let frame = Frame::parse(&bytes).unwrap();
    let Network::Ipv6(header, udp) = frame.headers.network else { panic!("{:?}", frame.headers.network) };
    assert_eq!((header.traffic_class, header.flow_label, header.hop_limit), (0xe2, 0x1_face, 0xff));
    assert_eq!((udp.source_port, udp.checksum), (49152, 0xe7c5));

    let bytes = vector("rxe UD SEND Only, connection management REQ");
    let frame = Frame::parse(&bytes).unwrap();
    let deth = Deth { key: QKey::GENERAL_SERVICES, source: Qpn::GENERAL_SERVICES };
    assert_eq!(frame.headers.extension.datagram(), Some(deth));
    assert_eq!(frame.payload.len(), 256);
}

#[test]
fn routers_may_change_what_the_invariant_crc_leaves_out_and_nothing_else() {
    for (name, variant) in [
        ("scapy RC_WRITE_ONLY_IMM", vec![1, 8, 10, 11, 26, 27, 32]),
        ("scapy UC SEND Only IPv6", vec![1, 2, 3, 7, 46, 47, 52]),
        ("hardware RoCEv1 RC RDMA WRITE Only", vec![1, 2, 3, 7, 44]),
    ] {
        let bytes = vector(name);
        let encapsulation = Frame::parse(&bytes).unwrap().headers.network.encapsulation();
        let mut packet = bytes[14..bytes.len() - 4].to_vec();
        let right = icrc::compute(encapsulation, &packet).unwrap();
        for bit in 0..packet.len() * 8 {
            packet[bit / 8] ^= 1 << (bit % 8);
            let changed = icrc::compute(encapsulation, &packet).unwrap() != right;
            // The lower half of an IPv6 version byte is traffic class.
            let free = variant.contains(&(bit / 8)) || (encapsulation != Encapsulation::Ipv4 && bit < 4);
            assert_eq!(changed, !free, "{name}: bit {bit}");
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// The definition, bit by bit: CRC-32 over ones and the masked packet.
pub(super) fn slow_crc(polynomial: u32, encapsulation: Encapsulation, packet: &[u8]) -> u32 {
    let variant: &[usize] = match encapsulation {
        Encapsulation::Ipv4 => &[1, 8, 10, 11, 26, 27, 32],
        Encapsulation::Ipv6 => &[1, 2, 3, 7, 46, 47, 52],
        Encapsulation::GlobalRoute => &[1, 2, 3, 7, 44],
    };
    let mut masked = vec![0xff; 8];
    masked.extend_from_slice(packet);
    variant.iter().for_each(|byte| masked[8 + byte] = 0xff);
    if encapsulation != Encapsulation::Ipv4 {
        masked[8] |= 0x0f;
    }
    let mut register = u32::MAX;
    for byte in masked {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = (register >> 1) ^ if register & 1 == 1 { polynomial } else { 0 };
        }
    }
    !register
}

#[test]
fn the_fast_crc_is_the_slow_one_at_every_length() {
    let packet: Vec<u8> = (0..1400u32).map(|index| ((index * index) >> 3).to_le_bytes()[0]).collect();
    for encapsulation in [Encapsulation::Ipv4, Encapsulation::Ipv6, Encapsulation::GlobalRoute] {
        for length in (0..700).chain([1023, 1024, 1080, 1400]) {
            let fast = icrc::compute(encapsulation, &packet[..length]);
            let slow = slow_crc(0xedb8_8320, encapsulation, &packet[..length.max(encapsulation.length())]);
            assert_eq!(
                fast,
                (length >= encapsulation.length()).then_some(slow),
                "{encapsulation:?} {length}"
            );
        }
    }
}

#[test]
fn the_polynomial_of_storage_protocols_is_not_taken_for_ours() {
    for (name, bytes) in vectors() {
        let frame = Unverified::parse(&bytes).unwrap();
        let start = frame.frame().headers.ethernet.length();
        let packet = &bytes[start..bytes.len() - 4];
        let castagnoli = slow_crc(0x82f6_3b78, frame.frame().headers.network.encapsulation(), packet);
        assert_ne!(frame.carried(), castagnoli, "{name}");
        let mut damaged = bytes.clone();
        let end = damaged.len();
        damaged[end - 4..].copy_from_slice(&castagnoli.to_le_bytes());
        let error = FrameError::Icrc { carried: castagnoli, computed: frame.carried() };
        assert_eq!(Frame::parse(&damaged), Err(error), "{name}");
    }
}

#[test]
fn ports_are_those_of_linux() {
    for (local, remote, port) in [(0x11, 0x11, 0xc121), (0x12, 0x12, 0xc144), (0x15, 0x15, 0xc1b9)] {
        let number = |value| Qpn::new(value).unwrap();
        assert_eq!(Qpn::source_port(number(local), number(remote)), port);
    }
}

#[test]
fn the_invariant_crc_of_a_frame_with_an_unknown_opcode_is_verified_too() {
    for (name, mut bytes) in vectors() {
        let frame = Frame::parse(&bytes).unwrap();
        let Headers { ethernet, network, bth, .. } = frame.headers;
        let (opcode, partition) = (bth.opcode.value(), bth.partition);
        let (destination, psn) = (bth.destination, bth.psn);
        let known = Envelope { ethernet, network, opcode, partition, destination, psn };
        assert_eq!(Envelope::parse(&bytes), Ok(known), "{name}");
        let (start, encapsulation) = (frame.headers.ethernet.length(), frame.headers.network.encapsulation());
        let opcode = start + frame.headers.network.length();
        let end = frame.headers.frame_length(frame.payload.len()) - 4;
        for unknown in [0x1c, 0x1d] {
            bytes[opcode] = unknown;
            let damaged = Envelope::parse(&bytes);
            assert!(matches!(damaged, Err(FrameError::Icrc { .. })), "{name}: {damaged:?}");
            let crc = slow_crc(0xedb8_8320, encapsulation, &bytes[start..end]);
            bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Envelope::parse(&bytes), Ok(Envelope { opcode: unknown, ..known }), "{name}");
            let parsed = Frame::parse(&bytes);
            assert!(matches!(parsed, Err(FrameError::Opcode { opcode, .. }) if opcode == unknown), "{name}");
        }
    }
}
