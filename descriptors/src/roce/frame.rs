//! Whole frames: read from bytes, written to bytes.

use super::bth::Bth;
use super::error::{BuildError, FrameError};
use super::extension::Extension;
use super::flow::Flow;
use super::icrc;
use super::network::{Ethernet, Network};

/// All headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    /// The Ethernet header.
    pub ethernet: Ethernet,
    /// IP and UDP.
    pub network: Network,
    /// The base transport header.
    pub bth: Bth,
    /// The headers that follow from the opcode.
    pub extension: Extension,
}

/// A frame. Its payload stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// The headers.
    pub headers: Headers,
    /// The bytes of the message, without pad.
    pub payload: &'a [u8],
}

/// What the transport has in a frame. The payload stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// The headers that follow from the opcode.
    pub extension: Extension,
    /// The bytes of the message, without pad.
    pub payload: &'a [u8],
}

/// A frame whose invariant CRC nobody has looked at yet.
#[derive(Clone, Copy, Debug)]
pub struct Unverified<'a> {
    frame: Frame<'a>,
    /// From Ethernet's first byte to the last pad byte.
    covered: &'a [u8],
    carried: u32,
}

impl<'a> Frame<'a> {
    /// Reads a frame from Ethernet's first byte on and verifies its invariant CRC. Bytes
    /// behind the length that IP tells are not looked at: Ethernet pads short frames.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        Unverified::parse(bytes)?.verify()
    }

    /// What the transport has in it.
    #[inline]
    #[must_use]
    pub const fn packet(&self) -> Packet<'a> {
        let Headers { bth, extension, .. } = self.headers;
        Packet { bth, extension, payload: self.payload }
    }

    /// Writes the frame to the front of `buffer`. Returns how many bytes it has.
    ///
    /// # Errors
    ///
    /// The buffer is too short, the payload too long, or the extension headers are not those
    /// of the opcode. Nothing is written then.
    #[inline]
    pub fn build(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        let mut unsealed = self.headers.build(buffer, self.payload.len())?;
        unsealed.payload().copy_from_slice(self.payload);
        Ok(unsealed.seal())
    }
}

impl<'a> Packet<'a> {
    /// Reads what follows the headers of the network. Gives back the invariant CRC too, which
    /// is not verified. Inlined with what it calls, since its result is large and errors end there.
    #[inline(always)]
    pub(super) fn read(transport: &'a [u8]) -> Result<(Self, u32), FrameError> {
        let Some((bth, rest)) = transport.split_first_chunk() else {
            return Err(FrameError::truncated("the base transport header", Bth::LENGTH, transport.len()));
        };
        let (bth, pad) = Bth::read(bth)?;
        let Some((rest, carried)) = rest.split_last_chunk::<{ icrc::LENGTH }>() else {
            return Err(FrameError::truncated("the invariant crc", icrc::LENGTH, rest.len()));
        };
        let kind = bth.opcode.extension();
        let extension = Extension::read(kind, rest)?;
        let padded = rest.get(kind.length()..).unwrap_or_default();
        if padded.len() % 4 != 0 {
            return Err(FrameError::Unaligned(padded.len()));
        }
        let payload = padded.len().checked_sub(usize::from(pad)).and_then(|length| padded.get(..length));
        let Some(payload) = payload else {
            return Err(FrameError::Pad { pad, present: padded.len() });
        };
        Ok((Self { bth, extension, payload }, u32::from_le_bytes(*carried)))
    }
}

impl<'a> Unverified<'a> {
    /// Reads a frame from Ethernet's first byte on, but not its invariant CRC.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (ethernet, ethertype) = Ethernet::read(bytes)?;
        let packet = bytes.get(ethernet.length()..).unwrap_or_default();
        let (network, length) = Network::read(ethertype, packet)?;
        let packet = packet.get(..length).unwrap_or_default();
        let transport = packet.get(network.length()..).unwrap_or_default();
        let (Packet { bth, extension, payload }, carried) = Packet::read(transport)?;
        let covered = bytes.get(..ethernet.length() + length - icrc::LENGTH).unwrap_or_default();
        let frame = Frame { headers: Headers { ethernet, network, bth, extension }, payload };
        Ok(Self { frame, covered, carried })
    }

    /// The frame, which may have been damaged on its way.
    #[inline]
    #[must_use]
    pub const fn frame(&self) -> &Frame<'a> {
        &self.frame
    }

    /// The invariant CRC in the frame.
    #[inline]
    #[must_use]
    pub const fn carried(&self) -> u32 {
        self.carried
    }

    /// The invariant CRC that the bytes of the frame give.
    #[inline]
    #[must_use]
    pub fn computed(&self) -> u32 {
        let Headers { ethernet, network, .. } = &self.frame.headers;
        // A frame that was read has all its headers.
        icrc::of_frame(network.encapsulation(), self.covered, ethernet.length()).unwrap_or(!self.carried)
    }

    /// Whether the invariant CRC is right.
    #[inline]
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.carried == self.computed()
    }

    /// The frame, when its invariant CRC is right.
    ///
    /// # Errors
    ///
    /// [`FrameError::Icrc`].
    #[inline]
    pub fn verify(self) -> Result<Frame<'a>, FrameError> {
        let (carried, computed) = (self.carried, self.computed());
        if carried == computed { Ok(self.frame) } else { Err(FrameError::Icrc { carried, computed }) }
    }
}

impl Headers {
    /// How many bytes stand before the payload.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.ethernet.length() + self.network.length() + Bth::LENGTH + self.extension.kind().length()
    }

    /// How many bytes the frame has with `payload` bytes.
    #[inline]
    #[must_use]
    pub const fn frame_length(&self, payload: usize) -> usize {
        self.length() + payload.next_multiple_of(4) + icrc::LENGTH
    }

    /// Writes the headers to the front of `buffer` and leaves `payload` bytes to be filled.
    ///
    /// # Errors
    ///
    /// The buffer is too short, the payload too long, or the extension headers are not those
    /// of the opcode. Nothing is written then.
    #[inline]
    pub fn build<'b>(&self, buffer: &'b mut [u8], payload: usize) -> Result<Unsealed<'b>, BuildError> {
        Flow::new(&self.ethernet, &self.network).build(&self.bth, &self.extension, buffer, payload)
    }
}

/// A frame in a buffer whose payload is still to be written.
#[derive(Debug)]
#[must_use = "the frame is complete only when it is sealed"]
pub struct Unsealed<'b> {
    pub(super) frame: &'b mut [u8],
    pub(super) encapsulation: icrc::Encapsulation,
    /// Where the IP header begins.
    pub(super) network: usize,
    pub(super) payload: core::ops::Range<usize>,
}

impl Unsealed<'_> {
    /// The place of the payload. It has what the buffer had there.
    #[inline]
    pub fn payload(&mut self) -> &mut [u8] {
        self.frame.get_mut(self.payload.clone()).unwrap_or_default()
    }

    /// Writes pad and invariant CRC. Returns how many bytes the frame has.
    #[inline]
    pub fn seal(self) -> usize {
        let length = self.frame.len();
        if let Some((covered, crc)) = self.frame.split_last_chunk_mut::<{ icrc::LENGTH }>() {
            // Three bytes at most, so not worth a call.
            for byte in covered.iter_mut().skip(self.payload.end) {
                *byte = 0;
            }
            // A frame whose headers were written has them all.
            let computed = icrc::of_frame(self.encapsulation, covered, self.network).unwrap_or_default();
            *crc = computed.to_le_bytes();
        }
        length
    }
}
