//! Who has this address? ARP for IPv4, neighbour discovery for IPv6.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Message,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::error::BuildError;

/// A frame that asks for, or tells, the Ethernet address of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbour {
    /// Somebody asks.
    Question {
        /// The Ethernet address of who asks.
        asker: EthernetAddress,
        /// Its own address; unspecified when it only wants to know whether the address is free.
        from: IpAddr,
        /// The address that it looks for.
        target: IpAddr,
    },
    /// Somebody answers.
    Answer {
        /// The Ethernet address that was looked for.
        holder: EthernetAddress,
        /// The address it belongs to.
        target: IpAddr,
    },
}

/// The longest frame that this module builds, in bytes.
pub const MAX_LENGTH: usize = 14 + 40 + 32;

impl Neighbour {
    /// Reads a frame; `None` when it is no question and no answer, or a wrong one.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        match frame.ethertype() {
            EthernetProtocol::Arp => Self::parse_arp(frame.payload()),
            EthernetProtocol::Ipv6 => Self::parse_discovery(frame.payload()),
            _ => None,
        }
    }

    fn parse_arp(packet: &[u8]) -> Option<Self> {
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        } = ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?
        else {
            return None;
        };
        if !source_hardware_addr.is_unicast() {
            return None;
        }
        match operation {
            ArpOperation::Request => Some(Self::Question {
                asker: source_hardware_addr,
                from: source_protocol_addr.into(),
                target: target_protocol_addr.into(),
            }),
            ArpOperation::Reply => {
                Some(Self::Answer { holder: source_hardware_addr, target: source_protocol_addr.into() })
            }
            ArpOperation::Unknown(_) => None,
        }
    }

    fn parse_discovery(packet: &[u8]) -> Option<Self> {
        let ip = Ipv6Packet::new_checked(packet).ok()?;
        // A router would have lowered the limit: only neighbours can send this.
        if ip.version() != 6 || ip.next_header() != IpProtocol::Icmpv6 || ip.hop_limit() != 255 {
            return None;
        }
        let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
        if !matches!(icmp.msg_type(), Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert)
            || icmp.msg_code() != 0
        {
            return None;
        }
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let message =
            Icmpv6Repr::parse(&source, &destination, &icmp, &ChecksumCapabilities::default()).ok()?;
        match message {
            Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) => {
                // Without an address of its own, the asker only looks whether one is free.
                let asker = match lladdr {
                    Some(address) => ethernet(address)?,
                    None if source.is_unspecified() => EthernetAddress([0; 6]),
                    None => return None,
                };
                Some(Self::Question { asker, from: source.into(), target: target_addr.into() })
            }
            Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. }) => {
                Some(Self::Answer { holder: ethernet(lladdr?)?, target: target_addr.into() })
            }
            _ => None,
        }
    }
}

/// Writes the question for `target` to the front of `buffer`. `own` and `from` are the
/// addresses of who asks. Returns how many bytes it has.
///
/// # Errors
///
/// The buffer is too short; [`MAX_LENGTH`] is enough.
pub fn question(
    buffer: &mut [u8],
    own: EthernetAddress,
    from: IpAddr,
    target: IpAddr,
) -> Result<usize, BuildError> {
    match target {
        IpAddr::V4(target) => {
            let from = if let IpAddr::V4(from) = from { from } else { Ipv4Addr::UNSPECIFIED };
            let message = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: own,
                source_protocol_addr: from,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            build_arp(buffer, EthernetAddress::BROADCAST, own, &message)
        }
        IpAddr::V6(target) => {
            let from = if let IpAddr::V6(from) = from { from } else { Ipv6Addr::UNSPECIFIED };
            let message = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(own.into()) };
            // The multicast group of all whose address ends in the same three bytes.
            let [.., a, b, c] = target.octets();
            let low = u16::from_be_bytes([b, c]);
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low);
            let destination = EthernetAddress([0x33, 0x33, 0xff, a, b, c]);
            build_discovery(buffer, destination, own, (from, group), message)
        }
    }
}

/// Writes the answer that `own` holds `target` to the front of `buffer`, for `asker` with its
/// address `to`. Returns how many bytes it has.
///
/// # Errors
///
/// The buffer is too short; [`MAX_LENGTH`] is enough.
pub fn answer(
    buffer: &mut [u8],
    own: EthernetAddress,
    target: IpAddr,
    asker: EthernetAddress,
    to: IpAddr,
) -> Result<usize, BuildError> {
    match target {
        IpAddr::V4(target) => {
            let to = if let IpAddr::V4(to) = to { to } else { Ipv4Addr::UNSPECIFIED };
            let message = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: own,
                source_protocol_addr: target,
                target_hardware_addr: asker,
                target_protocol_addr: to,
            };
            build_arp(buffer, asker, own, &message)
        }
        IpAddr::V6(target) => {
            let (flags, destination, to) = match to {
                IpAddr::V6(to) if !to.is_unspecified() => (NdiscNeighborFlags::SOLICITED, asker, to),
                // Who has no address yet is told along with all others.
                _ => (
                    NdiscNeighborFlags::empty(),
                    EthernetAddress([0x33, 0x33, 0, 0, 0, 1]),
                    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
                ),
            };
            let message = NdiscRepr::NeighborAdvert {
                flags: flags | NdiscNeighborFlags::OVERRIDE,
                target_addr: target,
                lladdr: Some(own.into()),
            };
            build_discovery(buffer, destination, own, (target, to), message)
        }
    }
}

fn build_arp(
    buffer: &mut [u8],
    destination: EthernetAddress,
    own: EthernetAddress,
    message: &ArpRepr,
) -> Result<usize, BuildError> {
    let (length, payload) =
        build_ethernet(buffer, destination, own, EthernetProtocol::Arp, message.buffer_len())?;
    message.emit(&mut ArpPacket::new_unchecked(payload));
    Ok(length)
}

fn build_discovery(
    buffer: &mut [u8],
    destination: EthernetAddress,
    own: EthernetAddress,
    (from, to): (Ipv6Addr, Ipv6Addr),
    message: NdiscRepr<'_>,
) -> Result<usize, BuildError> {
    let message = Icmpv6Repr::Ndisc(message);
    let following = message.buffer_len();
    let (length, packet) = build_ethernet(buffer, destination, own, EthernetProtocol::Ipv6, 40 + following)?;
    let mut ip = Ipv6Packet::new_unchecked(packet);
    ip.set_version(6);
    ip.set_traffic_class(0);
    ip.set_flow_label(0);
    ip.set_payload_len(u16::try_from(following).unwrap_or(u16::MAX));
    ip.set_next_header(IpProtocol::Icmpv6);
    ip.set_hop_limit(255);
    ip.set_src_addr(from);
    ip.set_dst_addr(to);
    let mut icmp = Icmpv6Packet::new_unchecked(ip.payload_mut());
    message.emit(&from, &to, &mut icmp, &ChecksumCapabilities::default());
    Ok(length)
}

/// Writes the Ethernet header. Gives back the length of the frame and the place behind it.
fn build_ethernet(
    buffer: &mut [u8],
    destination: EthernetAddress,
    own: EthernetAddress,
    ethertype: EthernetProtocol,
    following: usize,
) -> Result<(usize, &mut [u8]), BuildError> {
    let (needed, present) = (14 + following, buffer.len());
    let frame = buffer.get_mut(..needed).ok_or(BuildError::BufferTooShort { needed, present })?;
    let (header, rest) = frame.split_at_mut(14);
    let mut header = EthernetFrame::new_unchecked(header);
    header.set_dst_addr(destination);
    header.set_src_addr(own);
    header.set_ethertype(ethertype);
    rest.fill(0);
    Ok((needed, rest))
}

/// An Ethernet address of one station, out of a neighbour discovery option.
fn ethernet(address: RawHardwareAddress) -> Option<EthernetAddress> {
    let address = EthernetAddress(address.as_bytes().try_into().ok()?);
    address.is_unicast().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0, 0, 1]);
    const PEER: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0, 0, 2]);

    #[test]
    fn questions_and_answers_of_both_kinds_are_read_back() {
        let mut buffer = [0xee; MAX_LENGTH];
        for (ours, theirs) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fe80::1:2")] {
            let (ours, theirs): (IpAddr, IpAddr) = (ours.parse().unwrap(), theirs.parse().unwrap());
            let length = question(&mut buffer, OWN, ours, theirs).unwrap();
            let asked = Neighbour::Question { asker: OWN, from: ours, target: theirs };
            assert_eq!(Neighbour::parse(&buffer[..length]), Some(asked));
            let length = answer(&mut buffer, PEER, theirs, OWN, ours).unwrap();
            assert_eq!(
                Neighbour::parse(&buffer[..length]),
                Some(Neighbour::Answer { holder: PEER, target: theirs })
            );
            assert_eq!(buffer[..6], OWN.0);
            for short in 0..length {
                assert!(answer(&mut buffer[..short], PEER, theirs, OWN, ours).is_err());
                assert_eq!(Neighbour::parse(&buffer[..short]), None);
            }
        }
        let free =
            question(&mut buffer, OWN, Ipv6Addr::UNSPECIFIED.into(), "fd00::5".parse().unwrap()).unwrap();
        assert_eq!(buffer[..6], [0x33, 0x33, 0xff, 0, 0, 5]);
        assert!(matches!(Neighbour::parse(&buffer[..free]), Some(Neighbour::Question { .. })));
    }

    #[test]
    fn the_arp_request_of_linux_is_read() {
        // From the first frame of a capture of two guests.
        let frame = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 4, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0x52,
            0x54, 0, 0, 0, 4, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1,
        ];
        let expected = Neighbour::Question {
            asker: EthernetAddress([0x52, 0x54, 0, 0, 0, 4]),
            from: "10.0.0.2".parse().unwrap(),
            target: "10.0.0.1".parse().unwrap(),
        };
        assert_eq!(Neighbour::parse(&frame), Some(expected));
    }

    #[test]
    fn what_came_over_a_router_or_was_damaged_is_not_believed() {
        let mut buffer = [0; MAX_LENGTH];
        let (ours, theirs) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let length = answer(&mut buffer, PEER, theirs, OWN, ours).unwrap();
        for (byte, bit) in [(14 + 7, 1), (length - 1, 1), (14 + 6, 2), (14 + 40 + 20, 4)] {
            buffer[byte] ^= bit;
            assert_eq!(Neighbour::parse(&buffer[..length]), None, "byte {byte}");
            buffer[byte] ^= bit;
        }
        assert!(Neighbour::parse(&buffer[..length]).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..3u8) {
            // Close enough to be read on.
            if bytes.len() > 60 {
                match kind {
                    0 => bytes[12..20].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4]),
                    1 => {
                        bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
                        bytes[14] = 0x60;
                        let length = u8::try_from(bytes.len() - 54).unwrap();
                        bytes[18..22].copy_from_slice(&[0, length, 58, 255]);
                        bytes[54] = 135 + (bytes[54] & 1);
                        bytes[55] = 0;
                    }
                    _ => {}
                }
            }
            let _ = Neighbour::parse(&bytes);
        }
    }
}
