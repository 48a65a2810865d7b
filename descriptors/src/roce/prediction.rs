//! Header prediction: the next packet of a connection has headers that are known beforehand.

use super::frame::Packet;
use super::icrc::{self, Encapsulation};
use super::network::{self, Ipv4, Network};
use super::number::{PKey, Qpn};
use super::opcode::Transport;

/// What the headers of the packets look like that a connection receives: RoCEv2 over IPv4
/// without tags, in the default partition, on a path without congestion.
///
/// Whatever a prediction reads, [`Frame::parse`](super::Frame::parse) reads too, and the same. The
/// other way round it need not be: what was not predicted is read as any other frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Bytes 12 to 51 of the frame where [`MASKS`] has ones, and zeros elsewhere.
    words: [u64; WORDS],
}

impl Prediction {
    /// The prediction for queue pair `number`, whose own packets have the headers `way`. `None`
    /// for what is not predicted: datagrams, which come from anywhere, and other headers.
    #[must_use]
    pub fn new(way: &Network, transport: Transport, number: Qpn) -> Option<Self> {
        let Network::Ipv4(Ipv4 { source: own, destination: peer, .. }, _) = way else { return None };
        let service = match transport {
            Transport::ReliableConnection => 0x00,
            Transport::UnreliableConnection => 0x20,
            Transport::UnreliableDatagram | Transport::CongestionNotification => return None,
        };
        let mut bytes = [0; 8 * WORDS];
        let mut put = |place: usize, part: &[u8]| {
            let room = bytes.get_mut(place - START..).and_then(|rest| rest.get_mut(..part.len()));
            room.unwrap_or_default().copy_from_slice(part);
        };
        put(12, &network::ETHERTYPE_IPV4.to_be_bytes());
        put(14, &[0x45]);
        put(23, &[network::IP_PROTOCOL_UDP]);
        put(26, &peer.octets());
        put(30, &own.octets());
        put(36, &super::UDP_PORT.to_be_bytes());
        put(TRANSPORT, &[service]);
        put(TRANSPORT + 2, &PKey::DEFAULT.0.to_be_bytes());
        put(TRANSPORT + 5, &number.to_be_bytes());
        Some(Self { words: words(&bytes) })
    }

    /// Whom a frame is for, if it is one that can be predicted.
    #[inline]
    #[must_use]
    pub fn destination(bytes: &[u8]) -> Option<Qpn> {
        let [a, b, c] = *bytes.get(TRANSPORT + 5..)?.first_chunk()?;
        Some(Qpn::from_be_bytes([a, b, c]))
    }

    /// Reads a frame from Ethernet's first byte on and verifies its invariant CRC. `None` when
    /// it is not what was predicted; it may be a good frame all the same.
    #[inline]
    #[must_use]
    pub fn read<'a>(&self, bytes: &'a [u8]) -> Option<Packet<'a>> {
        let headers: &[u8; START + 8 * WORDS] = bytes.first_chunk()?;
        let found = words(headers.last_chunk()?);
        let differs = found
            .iter()
            .zip(&self.words)
            .zip(&MASKS)
            .fold(0, |differs, ((found, word), mask)| differs | ((found ^ word) & mask));
        let [_, traffic_class, total_high, total_low, ..] = *headers.get(14..)?.first_chunk::<4>()?;
        if differs != 0
            || traffic_class & 3 == 3
            || network::sum(headers.get(14..)?.first_chunk()?) != u16::MAX
        {
            return None;
        }
        let total = u16::from_be_bytes([total_high, total_low]);
        let udp = u16::from_be_bytes(*headers.get(38..)?.first_chunk()?);
        if total.checked_sub(20) != Some(udp) {
            return None;
        }
        let frame = bytes.get(..14 + usize::from(total))?;
        let (packet, carried) = Packet::read(frame.get(TRANSPORT..)?).ok()?;
        let covered = frame.get(..frame.len() - icrc::LENGTH)?;
        (icrc::of_frame(Encapsulation::Ipv4, covered, 14) == Some(carried)).then_some(packet)
    }
}

/// The words of so many bytes.
#[inline]
fn words(bytes: &[u8; 8 * WORDS]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// Where the bytes begin that are compared: at the EtherType.
const START: usize = 12;
/// How many words are compared.
const WORDS: usize = 5;
/// Where the base transport header begins.
const TRANSPORT: usize = 14 + 20 + 8;
/// What is known beforehand.
static MASKS: [u64; WORDS] = [
    // EtherType, version and length of the header; but not service, length, identification.
    u64::from_ne_bytes([0xff, 0xff, 0xff, 0, 0, 0, 0, 0]),
    // No fragment, whatever the bit says that forbids it; protocol; source. Not the time to
    // live and the checksum.
    u64::from_ne_bytes([0xbf, 0xff, 0, 0xff, 0, 0, 0xff, 0xff]),
    // Source, destination; but not the port that tells flows.
    u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    // Port; but not length and checksum. Transport service, but not operation; version of
    // the transport, but not the flags and the pad count.
    u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0xe0, 0x0f]),
    // Partition; but not the congestion bits. Queue pair; but not the number of the packet.
    u64::from_ne_bytes([0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0]),
];
