//! What a frame says whatever its opcode is.

use super::bth::Bth;
use super::error::FrameError;
use super::icrc;
use super::network::{Ethernet, Network};
use super::number::{PKey, Psn, Qpn};

/// The headers of a frame that do not depend on its opcode. The invariant CRC covers bytes, and
/// what they mean need not be known to verify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The Ethernet header.
    pub ethernet: Ethernet,
    /// IP and UDP.
    pub network: Network,
    /// The opcode, which need not be one of [`Opcode::ALL`](super::Opcode::ALL).
    pub opcode: u8,
    /// The partition.
    pub partition: PKey,
    /// Whom it is for.
    pub destination: Qpn,
    /// Its number.
    pub psn: Psn,
}

impl Envelope {
    /// Reads the headers from Ethernet's first byte on and verifies the invariant CRC.
    ///
    /// # Errors
    ///
    /// [`FrameError::Icrc`], or what is wrong with the headers.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let (ethernet, ethertype) = Ethernet::read(bytes)?;
        let packet = bytes.get(ethernet.length()..).unwrap_or_default();
        let (network, length) = Network::read(ethertype, packet)?;
        let packet = packet.get(..length).unwrap_or_default();
        let transport = packet.get(network.length()..).unwrap_or_default();
        let Some((header, rest)) = transport.split_first_chunk::<{ Bth::LENGTH }>() else {
            return Err(FrameError::truncated("the base transport header", Bth::LENGTH, transport.len()));
        };
        let truncated = FrameError::truncated("the invariant crc", icrc::LENGTH, rest.len());
        if rest.len() < icrc::LENGTH {
            return Err(truncated);
        }
        let (covered, carried) = packet.split_last_chunk::<{ icrc::LENGTH }>().ok_or(truncated)?;
        let carried = u32::from_le_bytes(*carried);
        let computed = icrc::compute(network.encapsulation(), covered).ok_or(truncated)?;
        if carried != computed {
            return Err(FrameError::Icrc { carried, computed });
        }
        let [opcode, flags, key_high, key_low, _, q0, q1, q2, _, p0, p1, p2] = *header;
        if flags & 0x0f != 0 {
            return Err(FrameError::TransportVersion(flags & 0x0f));
        }
        let (destination, psn) = (Qpn::from_be_bytes([q0, q1, q2]), Psn::from_be_bytes([p0, p1, p2]));
        let partition = PKey(u16::from_be_bytes([key_high, key_low]));
        Ok(Self { ethernet, network, opcode, partition, destination, psn })
    }
}
