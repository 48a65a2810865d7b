//! What carries a RoCE packet: Ethernet with its tags, IPv4 or IPv6, UDP.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket,
};

use super::UDP_PORT;
use super::error::{Foreign, FrameError};
use super::icrc::Encapsulation;

/// The Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ethernet {
    /// Whom the frame is for.
    pub destination: EthernetAddress,
    /// Who sent it.
    pub source: EthernetAddress,
    /// VLAN tags, the outer one first. The second is there only when the first is.
    pub tags: [Option<VlanTag>; 2],
}

/// An 802.1Q or 802.1ad tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// The EtherType that introduces it: 0x8100, 0x88a8 or 0x9100.
    pub ethertype: u16,
    /// Priority, drop eligibility and VLAN number.
    pub control: u16,
}

impl VlanTag {
    /// The VLAN number: 12 bits.
    #[must_use]
    pub const fn vlan(self) -> u16 {
        self.control & 0x0fff
    }

    const fn is_tag(ethertype: u16) -> bool {
        matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
    }
}

/// The IPv4 header: without options, never fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4 {
    /// Who sent the packet.
    pub source: Ipv4Addr,
    /// Whom it is for.
    pub destination: Ipv4Addr,
    /// Differentiated services (bits 7:2) and congestion (bits 1:0), once "type of service".
    pub traffic_class: u8,
    /// What would tell its fragments.
    pub identification: u16,
    /// Whether routers must not fragment it.
    pub dont_fragment: bool,
    /// How many routers it may pass.
    pub time_to_live: u8,
}

/// The IPv6 header, or the global route header of RoCEv1, which looks the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6 {
    /// Who sent the packet.
    pub source: Ipv6Addr,
    /// Whom it is for.
    pub destination: Ipv6Addr,
    /// Differentiated services (bits 7:2) and congestion (bits 1:0).
    pub traffic_class: u8,
    /// What tells flows: 20 bits.
    pub flow_label: u32,
    /// How many routers it may pass.
    pub hop_limit: u8,
}

/// The UDP header; its destination is [`UDP_PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Udp {
    /// What tells flows; receivers ignore it.
    pub source_port: u16,
    /// The checksum, which is 0 in RoCE. Nobody verifies it: the invariant CRC is stronger.
    pub checksum: u16,
}

/// The headers between Ethernet and the base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// RoCEv2 over IPv4.
    Ipv4(Ipv4, Udp),
    /// RoCEv2 over IPv6.
    Ipv6(Ipv6, Udp),
    /// RoCEv1: a global route header.
    GlobalRoute(Ipv6),
}

impl Network {
    /// The headers of RoCEv2 from `source` to `destination`: not to be fragmented, 64 hops,
    /// no priority. `None` when one address is IPv4 and the other IPv6.
    #[must_use]
    pub const fn new(source: IpAddr, destination: IpAddr, source_port: u16) -> Option<Self> {
        let udp = Udp { source_port, checksum: 0 };
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4 {
                    source,
                    destination,
                    traffic_class: 0,
                    identification: 0,
                    dont_fragment: true,
                    time_to_live: 64,
                };
                Some(Self::Ipv4(header, udp))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6 { source, destination, traffic_class: 0, flow_label: 0, hop_limit: 64 };
                Some(Self::Ipv6(header, udp))
            }
            _ => None,
        }
    }

    /// Who sent the packet.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        match self {
            Self::Ipv4(header, _) => IpAddr::V4(header.source),
            Self::Ipv6(header, _) | Self::GlobalRoute(header) => IpAddr::V6(header.source),
        }
    }

    /// Whom it is for.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        match self {
            Self::Ipv4(header, _) => IpAddr::V4(header.destination),
            Self::Ipv6(header, _) | Self::GlobalRoute(header) => IpAddr::V6(header.destination),
        }
    }

    /// Whether packets with these headers go from where those with `other` go to, and to where
    /// they come from.
    #[inline]
    #[must_use]
    pub fn goes_back(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ipv4(one, _), Self::Ipv4(other, _)) => {
                one.source == other.destination && one.destination == other.source
            }
            (
                Self::Ipv6(one, _) | Self::GlobalRoute(one),
                Self::Ipv6(other, _) | Self::GlobalRoute(other),
            ) => one.source == other.destination && one.destination == other.source,
            _ => false,
        }
    }

    /// Differentiated services and congestion.
    #[inline]
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::Ipv4(header, _) => header.traffic_class,
            Self::Ipv6(header, _) | Self::GlobalRoute(header) => header.traffic_class,
        }
    }

    /// Which headers they are.
    #[inline]
    #[must_use]
    pub const fn encapsulation(&self) -> Encapsulation {
        match self {
            Self::Ipv4(..) => Encapsulation::Ipv4,
            Self::Ipv6(..) => Encapsulation::Ipv6,
            Self::GlobalRoute(_) => Encapsulation::GlobalRoute,
        }
    }

    /// How many bytes they have.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.encapsulation().length() - super::Bth::LENGTH
    }

    const fn ethertype(&self) -> u16 {
        match self {
            Self::Ipv4(..) => ETHERTYPE_IPV4,
            Self::Ipv6(..) => ETHERTYPE_IPV6,
            Self::GlobalRoute(_) => ETHERTYPE_ROCE_V1,
        }
    }

    /// Reads the headers at the front of `packet`. Gives back how many bytes of `packet` the
    /// headers say there are; the frame has at least that many.
    #[inline]
    pub(super) fn read(ethertype: u16, packet: &[u8]) -> Result<(Self, usize), FrameError> {
        match ethertype {
            ETHERTYPE_IPV4 => Self::read_ipv4(packet),
            ETHERTYPE_IPV6 => {
                let (header, protocol, length) = read_ipv6(packet)?;
                if protocol != IpProtocol::Udp {
                    return Err(FrameError::Foreign(Foreign::Protocol(protocol.into())));
                }
                let udp = packet.get(40..length).ok_or_else(|| cut_short("ipv6", packet, 40, length))?;
                Ok((Self::Ipv6(header, read_udp(udp)?), length))
            }
            ETHERTYPE_ROCE_V1 => {
                let (header, protocol, length) = read_ipv6(packet)?;
                if protocol != NEXT_IS_BTH {
                    return Err(FrameError::Foreign(Foreign::Protocol(protocol.into())));
                }
                if packet.len() < length {
                    return Err(FrameError::truncated("the global route header", length, packet.len()));
                }
                Ok((Self::GlobalRoute(header), length))
            }
            other => Err(FrameError::Foreign(Foreign::EtherType(other))),
        }
    }

    #[inline]
    fn read_ipv4(packet: &[u8]) -> Result<(Self, usize), FrameError> {
        let Some(header) = packet.first_chunk::<20>() else {
            let error = FrameError::truncated("the ipv4 header", 20, packet.len());
            return Err(unless_other_protocol(packet, 9, &[IpProtocol::Udp], error));
        };
        let view = Ipv4Packet::new_unchecked(&header[..]);
        if view.version() != 4 {
            return Err(FrameError::IpVersion(view.version()));
        }
        if view.next_header() != IpProtocol::Udp {
            return Err(FrameError::Foreign(Foreign::Protocol(view.next_header().into())));
        }
        if view.header_len() != 20 {
            return Err(unless_foreign(packet, FrameError::Ipv4Options(view.header_len())));
        }
        if view.frag_offset() != 0 {
            return Err(FrameError::Foreign(Foreign::Fragment));
        }
        if view.more_frags() {
            let field = u16::from_be_bytes([header[6], header[7]]);
            return Err(unless_foreign(packet, FrameError::Fragment(field)));
        }
        if sum(header) != u16::MAX {
            return Err(unless_foreign(packet, FrameError::Ipv4Checksum(view.checksum())));
        }
        let length = usize::from(view.total_len());
        let udp = packet.get(20..length).ok_or_else(|| cut_short("ipv4", packet, 20, length))?;
        let header = Ipv4 {
            source: view.src_addr(),
            destination: view.dst_addr(),
            traffic_class: header[1],
            identification: view.ident(),
            dont_fragment: view.dont_frag(),
            time_to_live: view.hop_limit(),
        };
        Ok((Self::Ipv4(header, read_udp(udp)?), length))
    }

    /// Writes the headers to `place`, which has exactly their length. Lengths and the checksum
    /// of IPv4 are zero: they belong to a packet.
    pub(super) fn write(&self, place: &mut [u8]) {
        match self {
            Self::Ipv4(header, udp) => {
                let mut bytes = [0; 20];
                let mut view = Ipv4Packet::new_unchecked(&mut bytes[..]);
                view.set_version(4);
                view.set_header_len(20);
                view.set_dscp(header.traffic_class >> 2);
                view.set_ecn(header.traffic_class & 3);
                view.set_ident(header.identification);
                view.set_dont_frag(header.dont_fragment);
                view.set_hop_limit(header.time_to_live);
                view.set_next_header(IpProtocol::Udp);
                view.set_src_addr(header.source);
                view.set_dst_addr(header.destination);
                if let Some((front, rest)) = place.split_first_chunk_mut() {
                    *front = bytes;
                    udp.write(rest);
                }
            }
            Self::Ipv6(header, udp) => {
                if let Some((front, rest)) = place.split_first_chunk_mut() {
                    *front = header.bytes(IpProtocol::Udp);
                    udp.write(rest);
                }
            }
            Self::GlobalRoute(header) => {
                if let Some(front) = place.first_chunk_mut() {
                    *front = header.bytes(NEXT_IS_BTH);
                }
            }
        }
    }
}

impl Ethernet {
    /// A header without tags.
    #[must_use]
    pub const fn new(source: EthernetAddress, destination: EthernetAddress) -> Self {
        Self { destination, source, tags: [None; 2] }
    }

    /// How many bytes, tags included.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        match self.tags {
            [None, _] => 14,
            [Some(_), None] => 18,
            [Some(_), Some(_)] => 22,
        }
    }

    /// Reads the header at the front of `frame`. Gives back the EtherType of what follows.
    #[inline]
    pub(super) fn read(frame: &[u8]) -> Result<(Self, u16), FrameError> {
        let view = EthernetFrame::new_checked(frame)
            .map_err(|_| FrameError::truncated("the ethernet header", 14, frame.len()))?;
        let mut header = Self::new(view.src_addr(), view.dst_addr());
        let mut ethertype = u16::from(view.ethertype());
        let mut rest = view.payload();
        for tag in &mut header.tags {
            if !VlanTag::is_tag(ethertype) {
                break;
            }
            let Some(([high, low, next @ ..], behind)) = rest.split_first_chunk::<4>() else {
                return Err(FrameError::truncated("the vlan tag", 4, rest.len()));
            };
            *tag = Some(VlanTag { ethertype, control: u16::from_be_bytes([*high, *low]) });
            ethertype = u16::from_be_bytes(*next);
            rest = behind;
        }
        Ok((header, ethertype))
    }

    /// Writes the header of a frame with `network` to `place`, which has exactly its length.
    #[inline]
    pub(super) fn write(&self, place: &mut [u8], network: &Network) {
        let mut ethertype = network.ethertype();
        if let [Some(outer), inner] = self.tags {
            let following = inner.map_or(ethertype, |inner| inner.ethertype);
            put_tag(place, 14, outer.control, following);
            if let Some(inner) = inner {
                put_tag(place, 18, inner.control, ethertype);
            }
            ethertype = outer.ethertype;
        }
        let mut view = EthernetFrame::new_unchecked(place);
        view.set_dst_addr(self.destination);
        view.set_src_addr(self.source);
        view.set_ethertype(EthernetProtocol::from(ethertype));
    }
}

impl Ipv6 {
    #[inline]
    fn bytes(&self, next: IpProtocol) -> [u8; 40] {
        let mut bytes = [0; 40];
        let mut view = Ipv6Packet::new_unchecked(&mut bytes[..]);
        view.set_version(6);
        view.set_traffic_class(self.traffic_class);
        view.set_flow_label(self.flow_label & 0xf_ffff);
        view.set_next_header(next);
        view.set_hop_limit(self.hop_limit);
        view.set_src_addr(self.source);
        view.set_dst_addr(self.destination);
        bytes
    }
}

impl Udp {
    #[inline]
    fn write(self, place: &mut [u8]) {
        let mut view = UdpPacket::new_unchecked(place);
        view.set_src_port(self.source_port);
        view.set_dst_port(UDP_PORT);
        view.set_checksum(self.checksum);
    }
}

fn put_tag(place: &mut [u8], offset: usize, control: u16, following: u16) {
    if let Some(place) = place.get_mut(offset..).and_then(<[u8]>::first_chunk_mut::<4>) {
        let ([a, b], [c, d]) = (control.to_be_bytes(), following.to_be_bytes());
        *place = [a, b, c, d];
    }
}

/// The sum in ones' complement of an IPv4 header, as its checksum has it: 0xffff when that is
/// right. Its bytes are in the order of the machine: the carries go around, so any order has
/// the same sum.
#[inline]
pub(super) fn sum(header: &[u8; 20]) -> u16 {
    let (words, _) = header.as_chunks();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    // Sixteen bits thrice, the carries added again: the last time there is none.
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let [low, high, ..] = ((sum & 0xffff) + (sum >> 16)).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// What is wrong with an IPv4 packet of UDP; or that it is sent to another port, or a later
/// fragment, which has no port, in which case it is none of ours.
#[cold]
fn unless_foreign(packet: &[u8], error: FrameError) -> FrameError {
    let start = packet.first().map_or(20, |byte| usize::from(byte & 0x0f) * 4);
    let later = packet.get(6..8).is_some_and(|field| [field[0] & 0x1f, field[1]] != [0, 0]);
    if later {
        FrameError::Foreign(Foreign::Fragment)
    } else if start < 20 {
        error
    } else {
        unless_other_port(packet.get(start..).unwrap_or_default(), error)
    }
}

/// What is wrong with the UDP datagram that begins in `udp`, however short that is; or that it
/// is sent to another port.
#[cold]
fn unless_other_port(udp: &[u8], error: FrameError) -> FrameError {
    match udp {
        [_, _, high, low, ..] => match u16::from_be_bytes([*high, *low]) {
            UDP_PORT => error,
            port => FrameError::Foreign(Foreign::Port(port)),
        },
        _ => error,
    }
}

/// What is wrong with an IP packet of UDP that ends before the length in its header.
#[cold]
fn cut_short(part: &'static str, packet: &[u8], header: usize, length: usize) -> FrameError {
    let error = FrameError::truncated(part, length.max(header), packet.len());
    unless_other_port(packet.get(header..).unwrap_or_default(), error)
}

/// What is wrong with an IP header that is cut short; or that its packet is not of `ours`, as
/// the byte at `place` says when it is there.
#[cold]
fn unless_other_protocol(packet: &[u8], place: usize, ours: &[IpProtocol], error: FrameError) -> FrameError {
    match packet.get(place) {
        Some(byte) if !ours.contains(&IpProtocol::from(*byte)) => {
            FrameError::Foreign(Foreign::Protocol(*byte))
        }
        _ => error,
    }
}

/// Reads an IPv6 header. Gives back what follows it and how many bytes the packet has, which
/// may be more than there are.
#[inline]
fn read_ipv6(packet: &[u8]) -> Result<(Ipv6, IpProtocol, usize), FrameError> {
    let Some(header) = packet.first_chunk::<40>() else {
        let error = FrameError::truncated("the ipv6 header", 40, packet.len());
        return Err(unless_other_protocol(packet, 6, &[IpProtocol::Udp, NEXT_IS_BTH], error));
    };
    let view = Ipv6Packet::new_unchecked(&header[..]);
    if view.version() != 6 {
        return Err(FrameError::IpVersion(view.version()));
    }
    let length = view.total_len();
    let header = Ipv6 {
        source: view.src_addr(),
        destination: view.dst_addr(),
        traffic_class: view.traffic_class(),
        flow_label: view.flow_label(),
        hop_limit: view.hop_limit(),
    };
    Ok((header, view.next_header(), length))
}

/// Reads the UDP header of a packet that IP says is `packet`.
#[inline]
fn read_udp(packet: &[u8]) -> Result<Udp, FrameError> {
    let Some(header) = packet.first_chunk::<8>() else {
        let error = FrameError::truncated("the udp header", 8, packet.len());
        return Err(unless_other_port(packet, error));
    };
    let view = UdpPacket::new_unchecked(&header[..]);
    if view.dst_port() != UDP_PORT {
        return Err(FrameError::Foreign(Foreign::Port(view.dst_port())));
    }
    if usize::from(view.len()) != packet.len() {
        return Err(FrameError::UdpLength { udp: usize::from(view.len()), ip: packet.len() });
    }
    Ok(Udp { source_port: view.src_port(), checksum: view.checksum() })
}

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
/// What follows an IP header: UDP.
pub(super) const IP_PROTOCOL_UDP: u8 = 17;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ROCE_V1: u16 = 0x8915;
/// What the global route header has as its next header: a base transport header.
const NEXT_IS_BTH: IpProtocol = IpProtocol::Unknown(0x1b);
