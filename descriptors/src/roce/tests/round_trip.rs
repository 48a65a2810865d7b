//! What is built parses to what it was built from, and any bytes are parsed without harm.

use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::sample::select;

use crate::roce::*;

fn station() -> impl Strategy<Value = EthernetAddress> {
    any::<[u8; 6]>().prop_map(EthernetAddress)
}

pub(super) fn ethernet() -> impl Strategy<Value = Ethernet> {
    let tag = || {
        (select(&[0x8100u16, 0x88a8, 0x9100][..]), any::<u16>())
            .prop_map(|(ethertype, control)| VlanTag { ethertype, control })
    };
    (station(), station(), proptest::option::of(tag()), proptest::option::of(tag())).prop_map(
        |(destination, source, outer, inner)| Ethernet {
            destination,
            source,
            tags: [outer, outer.and(inner)],
        },
    )
}

pub(super) fn network() -> impl Strategy<Value = Network> {
    let four = (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u8>(), any::<u16>(), any::<bool>(), any::<u8>())
        .prop_map(|(source, destination, traffic_class, identification, dont_fragment, time_to_live)| Ipv4 {
            source: Ipv4Addr::from(source),
            destination: Ipv4Addr::from(destination),
            traffic_class,
            identification,
            dont_fragment,
            time_to_live,
        });
    let six = || {
        (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), 0u32..1 << 20, any::<u8>()).prop_map(
            |(source, destination, traffic_class, flow_label, hop_limit)| Ipv6 {
                source: Ipv6Addr::from(source),
                destination: Ipv6Addr::from(destination),
                traffic_class,
                flow_label,
                hop_limit,
            },
        )
    };
    let udp =
        || (any::<u16>(), any::<u16>()).prop_map(|(source_port, checksum)| Udp { source_port, checksum });
    prop_oneof![
        (four, udp()).prop_map(|(header, udp)| Network::Ipv4(header, udp)),
        (six(), udp()).prop_map(|(header, udp)| Network::Ipv6(header, udp)),
        six().prop_map(Network::GlobalRoute),
    ]
}

pub(super) fn bth() -> impl Strategy<Value = Bth> {
    (select(Opcode::ALL), any::<[bool; 5]>(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        |(opcode, flags, partition, destination, psn)| Bth {
            opcode,
            solicited_event: flags[0],
            migrated: flags[1],
            partition: PKey(partition),
            forward_congestion: flags[2],
            backward_congestion: flags[3],
            destination: Qpn::from_low_bits(destination),
            ack_request: flags[4],
            psn: Psn::new(psn),
        },
    )
}

pub(super) fn extension(kind: ExtensionKind, words: [u64; 4]) -> Extension {
    let [a, b, c, d] = words;
    let low = |word: u64| u32::from_le_bytes(word.to_le_bytes()[..4].try_into().unwrap());
    let reth = Reth { address: a, key: RemoteKey(low(b)), length: low(c) };
    let immediate = ImmDt(low(d));
    let aeth = Aeth { syndrome: Syndrome::from_byte(a.to_le_bytes()[7]), msn: Msn::new(low(a)) };
    let deth = Deth { key: QKey(low(a)), source: Qpn::from_low_bits(low(b)) };
    let headers = ExtensionHeaders {
        immediate,
        invalidate: Ieth(RemoteKey(low(b))),
        remote: reth,
        acknowledge: aeth,
        original: AtomicAckEth(b),
        atomic: AtomicEth { address: a, key: RemoteKey(low(b)), swap_or_add: c, compare: d },
        datagram: deth,
    };
    let extension = Extension::of(kind, &headers);
    assert_eq!(extension.kind(), kind);
    extension
}

fn headers() -> impl Strategy<Value = Headers> {
    (ethernet(), network(), bth(), any::<[u64; 4]>()).prop_map(|(ethernet, network, bth, words)| Headers {
        ethernet,
        network,
        bth,
        extension: extension(bth.opcode.extension(), words),
    })
}

proptest! {
    #[test]
    fn a_built_frame_parses_to_what_it_was_built_from(headers in headers(), payload in proptest::collection::vec(any::<u8>(), 0..600), behind in 0..20usize) {
        let frame = Frame { headers, payload: &payload };
        let mut buffer = vec![0x5a; headers.frame_length(payload.len()) + behind];
        let length = frame.build(&mut buffer).unwrap();
        prop_assert_eq!(length + behind, buffer.len());
        // What Ethernet pads is not looked at.
        prop_assert_eq!(Frame::parse(&buffer), Ok(frame));
        prop_assert!(buffer[length..].iter().all(|byte| *byte == 0x5a));
        // No shorter buffer is enough, and none is touched then.
        let mut short = vec![0x5a; length - 1];
        let error = BuildError::BufferTooShort { needed: length, present: length - 1 };
        prop_assert_eq!(frame.build(&mut short), Err(error));
        prop_assert!(short.iter().all(|byte| *byte == 0x5a));
        // Every cut is noticed.
        for end in (0..length).step_by(7).chain([length - 1]) {
            prop_assert!(Frame::parse(&buffer[..end]).is_err());
        }
    }

    #[test]
    fn headers_that_the_opcode_does_not_have_are_refused(headers in headers(), other in select(Opcode::ALL)) {
        let mut headers = headers;
        let fits = other.extension() == headers.bth.opcode.extension();
        headers.bth.opcode = other;
        let result = headers.build(&mut [0; MAX_FRAME], 0).map(|unsealed| unsealed.seal());
        let expected = if fits { Ok(headers.frame_length(0)) } else { Err(BuildError::Extension { opcode: other }) };
        prop_assert_eq!(result, expected);
    }

    #[test]
    fn any_bytes_give_a_frame_or_an_error(headers in headers(), payload in proptest::collection::vec(any::<u8>(), 0..80), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
        let mut bytes = vec![0; headers.frame_length(payload.len())];
        Frame { headers, payload: &payload }.build(&mut bytes).unwrap();
        for (place, value) in changes {
            *place.get_mut(&mut bytes[..]) = value;
        }
        if let Ok(unverified) = Unverified::parse(&bytes) {
            let frame = *unverified.frame();
            let mut buffer = vec![0; frame.headers.frame_length(frame.payload.len())];
            prop_assert_eq!(frame.build(&mut buffer), Ok(buffer.len()));
            prop_assert_eq!(Frame::parse(&buffer), Ok(frame));
        }
    }

    #[test]
    fn random_bytes_are_parsed_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Frame::parse(&bytes);
    }
}

#[test]
fn a_payload_that_no_packet_can_carry_is_refused() {
    let address = Ipv4Addr::LOCALHOST.into();
    let station = EthernetAddress([2; 6]);
    let headers = Headers {
        ethernet: Ethernet::new(station, station),
        network: Network::new(address, address, 0xc000).unwrap(),
        bth: Bth::new(Opcode::RC_SEND_ONLY, Qpn::GENERAL_SERVICES, Psn::new(0)),
        extension: Extension::None,
    };
    let mut buffer = vec![0; 1 << 17];
    for length in [65_500, 70_000, usize::MAX] {
        assert_eq!(headers.build(&mut buffer, length).err(), Some(BuildError::PayloadTooLong(length)));
    }
    let length = headers.build(&mut buffer, 65_000).unwrap().seal();
    assert_eq!(Frame::parse(&buffer[..length]).unwrap().payload.len(), 65_000);
    assert_eq!(Network::new(address, Ipv6Addr::LOCALHOST.into(), 1), None);
}
