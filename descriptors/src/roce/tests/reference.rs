//! Frames written byte by byte, as the standard draws them, to hold the builder to.

use proptest::prelude::*;

use super::round_trip::{bth, ethernet, extension, network};
use super::vectors::slow_crc;
use crate::roce::*;

fn reference(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let Headers { ethernet, network, bth, extension } = headers;
    let padded = payload.len().next_multiple_of(4);
    let transport = u16::try_from(12 + bth.opcode.extension().length() + padded + 4).unwrap();
    let mut frame = [ethernet.destination.0, ethernet.source.0].concat();
    for tag in ethernet.tags.iter().flatten() {
        frame.extend(tag.ethertype.to_be_bytes());
        frame.extend(tag.control.to_be_bytes());
    }
    let ethertype: u16 = match network {
        Network::Ipv4(..) => 0x0800,
        Network::Ipv6(..) => 0x86dd,
        Network::GlobalRoute(_) => 0x8915,
    };
    frame.extend(ethertype.to_be_bytes());
    let start = frame.len();
    match network {
        Network::Ipv4(ip, udp) => {
            let mut header = vec![0x45, ip.traffic_class];
            header.extend((transport + 28).to_be_bytes());
            header.extend(ip.identification.to_be_bytes());
            header.extend([u8::from(ip.dont_fragment) << 6, 0, ip.time_to_live, 17, 0, 0]);
            header.extend(ip.source.octets());
            header.extend(ip.destination.octets());
            let mut sum: u32 =
                header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
            while sum > 0xffff {
                sum = (sum >> 16) + (sum & 0xffff);
            }
            header[10..12].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
            frame.extend(header);
            udp_header(&mut frame, *udp, transport);
        }
        Network::Ipv6(ip, udp) => {
            ipv6_header(&mut frame, ip, 17, transport + 8);
            udp_header(&mut frame, *udp, transport);
        }
        Network::GlobalRoute(ip) => ipv6_header(&mut frame, ip, 0x1b, transport),
    }
    let pad = u8::try_from(padded - payload.len()).unwrap();
    let flag = |flag, bit: u32| u8::from(flag) << bit;
    frame.extend([bth.opcode.value(), flag(bth.solicited_event, 7) | flag(bth.migrated, 6) | pad << 4]);
    frame.extend(bth.partition.0.to_be_bytes());
    frame.push(flag(bth.forward_congestion, 7) | flag(bth.backward_congestion, 6));
    frame.extend(&bth.destination.value().to_be_bytes()[1..]);
    frame.push(flag(bth.ack_request, 7));
    frame.extend(&bth.psn.value().to_be_bytes()[1..]);
    extension_headers(&mut frame, extension);
    frame.extend(payload);
    frame.resize(frame.len() + usize::from(pad), 0);
    let crc = slow_crc(0xedb8_8320, network.encapsulation(), &frame[start..]);
    frame.extend(crc.to_le_bytes());
    frame
}

fn udp_header(frame: &mut Vec<u8>, udp: Udp, transport: u16) {
    for word in [udp.source_port, 4791, transport + 8, udp.checksum] {
        frame.extend(word.to_be_bytes());
    }
}

fn ipv6_header(frame: &mut Vec<u8>, ip: &Ipv6, next: u8, payload: u16) {
    frame.extend((6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label).to_be_bytes());
    frame.extend(payload.to_be_bytes());
    frame.extend([next, ip.hop_limit]);
    frame.extend(ip.source.octets());
    frame.extend(ip.destination.octets());
}

fn extension_headers(frame: &mut Vec<u8>, extension: &Extension) {
    let remote = |frame: &mut Vec<u8>, reth: &Reth| {
        frame.extend(reth.address.to_be_bytes());
        frame.extend(reth.key.0.to_be_bytes());
        frame.extend(reth.length.to_be_bytes());
    };
    let acknowledge = |frame: &mut Vec<u8>, aeth: &Aeth| {
        frame.extend((u32::from(aeth.syndrome.to_byte()) << 24 | aeth.msn.value()).to_be_bytes());
    };
    let datagram = |frame: &mut Vec<u8>, deth: &Deth| {
        frame.extend(deth.key.0.to_be_bytes());
        frame.extend(deth.source.value().to_be_bytes());
    };
    match extension {
        Extension::None => {}
        Extension::Immediate(ImmDt(value)) | Extension::Invalidate(Ieth(RemoteKey(value))) => {
            frame.extend(value.to_be_bytes());
        }
        Extension::Remote(reth) => remote(frame, reth),
        Extension::RemoteImmediate(reth, ImmDt(value)) => {
            remote(frame, reth);
            frame.extend(value.to_be_bytes());
        }
        Extension::Acknowledge(aeth) => acknowledge(frame, aeth),
        Extension::AtomicAcknowledge(aeth, AtomicAckEth(original)) => {
            acknowledge(frame, aeth);
            frame.extend(original.to_be_bytes());
        }
        Extension::Atomic(atomic) => {
            frame.extend(atomic.address.to_be_bytes());
            frame.extend(atomic.key.0.to_be_bytes());
            frame.extend(atomic.swap_or_add.to_be_bytes());
            frame.extend(atomic.compare.to_be_bytes());
        }
        Extension::Datagram(deth) => datagram(frame, deth),
        Extension::DatagramImmediate(deth, ImmDt(value)) => {
            datagram(frame, deth);
            frame.extend(value.to_be_bytes());
        }
        Extension::Congestion => frame.extend([0; 16]),
    }
}

/// What a flow builds in a buffer that has something in it.
fn built(flow: &Flow, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0x5a; headers.frame_length(payload.len()) + 3];
    let mut unsealed = flow.build(&headers.bth, &headers.extension, &mut buffer, payload.len()).unwrap();
    unsealed.payload().copy_from_slice(payload);
    let length = unsealed.seal();
    assert_eq!(buffer.split_off(length), [0x5a; 3]);
    buffer
}

#[test]
fn each_opcode_at_each_length_is_built_as_the_standard_draws_it() {
    let address = |text: &str| text.parse::<core::net::IpAddr>().unwrap();
    let four = Network::new(address("10.0.0.1"), address("10.0.255.254"), 0xc123).unwrap();
    let six = Network::new(address("fd00::1"), address("fe80::2:3"), 0xffff).unwrap();
    let Network::Ipv6(route, _) = six else { panic!("{six:?}") };
    let tag = |control| Some(VlanTag { ethertype: 0x8100, control });
    let bytes: Vec<u8> = (0..1025u32).map(|index| (index * 7).to_le_bytes()[0]).collect();
    for network in [four, six, Network::GlobalRoute(route)] {
        for tags in [[None, None], [tag(5), None], [tag(5), tag(0x2fff)]] {
            let ends = [EthernetAddress([2, 0, 0, 0, 0, 1]), EthernetAddress([0xff; 6])];
            let mut ethernet = Ethernet::new(ends[0], ends[1]);
            ethernet.tags = tags;
            let flow = Flow::new(&ethernet, &network);
            for (index, opcode) in (0..).zip(Opcode::ALL) {
                let mut bth = Bth::new(*opcode, Qpn::from_low_bits(0x11_2200 + index), Psn::new(index));
                bth.ack_request = index % 2 == 0;
                let words = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 77, u64::MAX];
                let extension = extension(opcode.extension(), words);
                let headers = Headers { ethernet, network, bth, extension };
                for length in (0..70).chain([255, 256, 1023, 1024, 1025]) {
                    let payload = &bytes[..length];
                    let frame = built(&flow, &headers, payload);
                    assert_eq!(frame, reference(&headers, payload), "{headers:?} {length}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_a_flow_built_before_leaves_no_trace_in_a_packet(
        ethernet in ethernet(),
        network in network(),
        packets in proptest::collection::vec((bth(), any::<[u64; 4]>(), proptest::collection::vec(any::<u8>(), 0..300)), 1..6),
    ) {
        let flow = Flow::new(&ethernet, &network);
        for (bth, words, payload) in packets {
            let headers = Headers { ethernet, network, bth, extension: extension(bth.opcode.extension(), words) };
            let expected = reference(&headers, &payload);
            prop_assert_eq!(&built(&flow, &headers, &payload), &expected);
            let mut buffer = vec![0; expected.len()];
            prop_assert_eq!(Frame { headers, payload: &payload }.build(&mut buffer), Ok(expected.len()));
            prop_assert_eq!(&buffer, &expected);
        }
    }
}
