//! All frames of two captures of Linux's own traffic.

use crate::roce::*;

const VERBS: &[u8] = include_bytes!("../../../../tests/data/roce/verbs-ipv4.pcap");
const PERFTEST: &[u8] = include_bytes!("../../../../tests/data/roce/perftest-ipv4.pcap");

/// The frames of a pcap file, little-endian.
fn frames(mut file: &[u8]) -> Vec<&[u8]> {
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    file = &file[24..];
    let mut frames = Vec::new();
    while !file.is_empty() {
        let length = u32::from_le_bytes(file[8..12].try_into().unwrap());
        let (frame, rest) = file[16..].split_at(usize::try_from(length).unwrap());
        frames.push(frame);
        file = rest;
    }
    frames
}

#[test]
fn every_frame_of_linux_parses_verifies_and_is_rebuilt_byte_for_byte() {
    for (file, expected) in [(VERBS, (189, 2)), (PERFTEST, (360, 2))] {
        let (mut roce, mut other) = (0, 0);
        let mut buffer = [0; MAX_FRAME];
        for bytes in frames(file) {
            match Frame::parse(bytes) {
                Ok(frame) => {
                    let length = frame.build(&mut buffer).unwrap();
                    assert_eq!(buffer[..length], bytes[..length]);
                    assert_eq!(bytes.len(), length);
                    roce += 1;
                }
                Err(error) if error.is_foreign() => {
                    assert!(neighbour::Neighbour::parse(bytes).is_some());
                    other += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((roce, other), expected);
    }
}

#[test]
fn each_changed_bit_of_a_frame_is_noticed_or_means_nothing() {
    let bytes = frames(VERBS).into_iter().find(|bytes| bytes.len() > 200).unwrap();
    let original = Frame::parse(bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(frame) = Frame::parse(&changed) {
            // Ethernet has its own check; the rest is what routers may change.
            let Headers { network, bth, extension, .. } = frame.headers;
            let mut same = original.headers.bth;
            (same.forward_congestion, same.backward_congestion) =
                (bth.forward_congestion, bth.backward_congestion);
            assert_eq!((bth, extension, frame.payload), (same, original.headers.extension, original.payload));
            assert_eq!(network.source(), original.headers.network.source());
        }
    }
}
