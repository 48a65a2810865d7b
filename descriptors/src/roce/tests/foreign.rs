//! Frames of other protocols, whole and cut by the snapshot length of a capture.

use crate::roce::*;

/// An Ethernet frame of `ethertype` with `packet`.
fn frame(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(packet);
    bytes
}

/// An IPv4 packet with `protocol`, fragment field `fragment`, and UDP to `port`.
fn ipv4(protocol: u8, fragment: u16, port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 60, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    let sum: u32 = packet.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(udp(port));
    packet
}

/// An IPv6 packet with `protocol` and UDP to `port`.
fn ipv6(protocol: u8, port: u16) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 40, protocol, 64];
    packet.extend([0x20; 32]);
    packet.extend(udp(port));
    packet
}

fn udp(port: u16) -> Vec<u8> {
    let mut bytes = vec![0x30, 0x39];
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 40, 0, 0]);
    bytes.extend([0; 32]);
    bytes
}

fn error(ethertype: u16, packet: &[u8]) -> FrameError {
    Unverified::parse(&frame(ethertype, packet)).unwrap_err()
}

#[test]
fn a_packet_of_another_protocol_is_foreign_however_short_the_capture_cut_it() {
    for kept in 10..60 {
        let found = error(0x0800, &ipv4(6, 0, 4791)[..kept]);
        assert_eq!(found, FrameError::Foreign(Foreign::Protocol(6)), "{kept}");
    }
    for kept in 7..80 {
        let found = error(0x86dd, &ipv6(6, 4791)[..kept]);
        assert_eq!(found, FrameError::Foreign(Foreign::Protocol(6)), "{kept}");
        let found = error(0x8915, &ipv6(6, 4791)[..kept]);
        assert_eq!(found, FrameError::Foreign(Foreign::Protocol(6)), "{kept}");
    }
}

#[test]
fn a_datagram_to_another_port_is_foreign_as_soon_as_its_port_was_captured() {
    for kept in 24..60 {
        let found = error(0x0800, &ipv4(17, 0, 53)[..kept]);
        assert_eq!(found, FrameError::Foreign(Foreign::Port(53)), "{kept}");
        let ours = error(0x0800, &ipv4(17, 0, UDP_PORT)[..kept]);
        assert!(!ours.is_foreign(), "{kept}: {ours}");
    }
    for kept in 44..=80 {
        let found = error(0x86dd, &ipv6(17, 53)[..kept]);
        assert_eq!(found, FrameError::Foreign(Foreign::Port(53)), "{kept}");
    }
    let cut = error(0x86dd, &ipv6(17, UDP_PORT)[..50]);
    assert_eq!(cut, FrameError::Truncated { part: "ipv6", needed: 80, present: 50 });
    let cut = error(0x8915, &ipv6(0x1b, 0)[..50]);
    assert_eq!(cut, FrameError::Truncated { part: "the global route header", needed: 80, present: 50 });
}

#[test]
fn later_fragments_are_foreign_and_a_first_one_to_our_port_is_not() {
    // The bytes of a later fragment are no UDP header, even when they look like one to our port.
    for field in [0x0001, 0x00b9, 0x20b9, 0x1fff] {
        let found = error(0x0800, &ipv4(17, field, UDP_PORT));
        assert_eq!(found, FrameError::Foreign(Foreign::Fragment), "{field:#x}");
    }
    assert_eq!(error(0x0800, &ipv4(17, 0x2000, UDP_PORT)), FrameError::Fragment(0x2000));
    assert_eq!(error(0x0800, &ipv4(17, 0x2000, 53)), FrameError::Foreign(Foreign::Port(53)));
}
