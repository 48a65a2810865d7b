//! All frames of two captures of Linux's own traffic.

use crate::roce::*;

#[expect(unreachable_pub, reason = "other crates have it too")]
#[path = "../../../../tests/data/roce/frames.rs"]
mod pcap;

use pcap::frames;

const VERBS: &[u8] = include_bytes!("../../../../tests/data/roce/verbs-ipv4.pcap");
const PERFTEST: &[u8] = include_bytes!("../../../../tests/data/roce/perftest-ipv4.pcap");

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
