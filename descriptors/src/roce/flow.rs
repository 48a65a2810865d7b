//! The headers of a flow, written once and copied in front of each of its packets.

use super::bth::Bth;
use super::error::BuildError;
use super::extension::Extension;
use super::frame::Unsealed;
use super::icrc::{self, Encapsulation};
use super::network::{Ethernet, Network};

/// The headers in front of the base transport header, as bytes. From packet to packet only the
/// lengths change, and with them the checksum of IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    bytes: [u8; LONGEST],
    /// How many of the bytes there are.
    length: usize,
    /// Where IP begins.
    network: usize,
    encapsulation: Encapsulation,
    /// The sum of the IPv4 header without its total length and its checksum.
    sum: u32,
}

impl Flow {
    /// The flow of the packets with these headers.
    #[must_use]
    pub fn new(ethernet: &Ethernet, network: &Network) -> Self {
        let encapsulation = network.encapsulation();
        let (start, length) = (ethernet.length(), ethernet.length() + network.length());
        let mut flow = Self { bytes: [0; LONGEST], length, network: start, encapsulation, sum: 0 };
        if let Some((front, rest)) = flow.bytes.split_at_mut_checked(start)
            && let Some(place) = rest.get_mut(..network.length())
        {
            ethernet.write(front, network);
            network.write(place);
            if let (Encapsulation::Ipv4, Some(header)) = (encapsulation, place.first_chunk::<20>()) {
                let (words, _) = header.as_chunks();
                flow.sum = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
            }
        }
        flow
    }

    /// Writes the headers of a packet to the front of `buffer` and leaves `payload` bytes to be
    /// filled.
    ///
    /// # Errors
    ///
    /// The buffer is too short, the payload too long, or the extension headers are not those
    /// of the opcode. Nothing is written then.
    #[inline]
    pub fn build<'b>(
        &self,
        bth: &Bth,
        extension: &Extension,
        buffer: &'b mut [u8],
        payload: usize,
    ) -> Result<Unsealed<'b>, BuildError> {
        let kind = bth.opcode.extension();
        if extension.kind() != kind {
            return Err(BuildError::Extension { opcode: bth.opcode });
        }
        // What IP counts is less than this and 64 bytes more, so no length below overflows.
        if payload > MAX_PAYLOAD {
            return Err(BuildError::PayloadTooLong(payload));
        }
        let padded = payload.next_multiple_of(4);
        let following = Bth::LENGTH + kind.length() + padded + icrc::LENGTH;
        let needed = self.length + following;
        let (Ok(following), Ok(pad)) = (u16::try_from(following), u8::try_from(padded - payload)) else {
            return Err(BuildError::PayloadTooLong(payload));
        };
        let present = buffer.len();
        let Some(frame) = buffer.get_mut(..needed) else {
            return Err(BuildError::BufferTooShort { needed, present });
        };
        let (front, rest) = frame.split_at_mut(self.length);
        self.write(front, following);
        if let Some((place, rest)) = rest.split_first_chunk_mut() {
            bth.write(place, pad);
            if let Some(place) = rest.get_mut(..kind.length()) {
                extension.write(place);
            }
        }
        let payload = self.length + Bth::LENGTH + kind.length()..needed - icrc::LENGTH - usize::from(pad);
        Ok(Unsealed { frame, encapsulation: self.encapsulation, network: self.network, payload })
    }

    /// Writes the headers to `place`, which has exactly their length, before `following` bytes
    /// with the base transport header and the invariant CRC among them.
    #[inline]
    fn write(&self, place: &mut [u8], following: u16) {
        // No headers are shorter than these, whose copy is a few instructions.
        if let (Some((place, more)), Some((bytes, rest))) =
            (place.split_first_chunk_mut::<SHORTEST>(), self.bytes.split_first_chunk())
        {
            *place = *bytes;
            if !more.is_empty()
                && let Some(rest) = rest.get(..more.len())
            {
                more.copy_from_slice(rest);
            }
        }
        let Some(network) = place.get_mut(self.network..) else { return };
        match self.encapsulation {
            Encapsulation::Ipv4 => {
                let Some(headers) = network.first_chunk_mut::<28>() else { return };
                let total = following + 28;
                let sum = self.sum + u32::from(total);
                let sum = (sum & 0xffff) + (sum >> 16);
                let [.., high, low] = (!((sum & 0xffff) + (sum >> 16))).to_be_bytes();
                [headers[2], headers[3]] = total.to_be_bytes();
                [headers[10], headers[11]] = [high, low];
                [headers[24], headers[25]] = (following + 8).to_be_bytes();
            }
            Encapsulation::Ipv6 => {
                let Some(headers) = network.first_chunk_mut::<48>() else { return };
                [headers[4], headers[5]] = (following + 8).to_be_bytes();
                [headers[44], headers[45]] = (following + 8).to_be_bytes();
            }
            Encapsulation::GlobalRoute => {
                let Some(headers) = network.first_chunk_mut::<40>() else { return };
                [headers[4], headers[5]] = following.to_be_bytes();
            }
        }
    }
}

/// The shortest headers: no tag, IPv4 and UDP.
const SHORTEST: usize = 14 + 20 + 8;
/// The longest headers: two tags, IPv6 and UDP.
const LONGEST: usize = 14 + 8 + 40 + 8;
/// The longest payload: what IPv4 can count, less all headers and the invariant CRC.
const MAX_PAYLOAD: usize = 0xffff - 20 - 8 - Bth::LENGTH - Extension::MAX_LENGTH - icrc::LENGTH - 3;
