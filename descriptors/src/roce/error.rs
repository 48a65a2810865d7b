//! Why bytes are no frame, and why a frame cannot be built.

use thiserror::Error;

use super::number::{Psn, Qpn};
use super::opcode::Opcode;

/// Why bytes are no RoCE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Something else is in the frame.
    #[error("not RoCE: {0}")]
    Foreign(Foreign),
    /// The bytes end inside a header, or before the length that a header tells.
    #[error("{part} needs {needed:#x} bytes, {present:#x} are there: the frame was cut short")]
    Truncated {
        /// What is cut short.
        part: &'static str,
        /// How many bytes it needs.
        needed: usize,
        /// How many there are.
        present: usize,
    },
    /// The version in the IP header is not the one of the EtherType.
    #[error("the ip header has version {0}, which its ethertype contradicts")]
    IpVersion(u8),
    /// The IPv4 header has options, which RoCE does not use.
    #[error("the ipv4 header has {0:#x} bytes: options are not supported")]
    Ipv4Options(u8),
    /// The checksum of the IPv4 header is wrong.
    #[error("the ipv4 header checksum {0:#06x} is wrong: the header was damaged")]
    Ipv4Checksum(u16),
    /// Only a fragment of an IP packet.
    #[error("the packet is a fragment (field {0:#06x}): roce is never fragmented")]
    Fragment(u16),
    /// UDP and IP disagree about the length.
    #[error("udp has {udp:#x} bytes, its ip packet {ip:#x}: the lengths contradict each other")]
    UdpLength {
        /// The length in the UDP header.
        udp: usize,
        /// The bytes that IP has for it.
        ip: usize,
    },
    /// The transport version is not zero.
    #[error("transport version {0} is unknown: only 0 is defined")]
    TransportVersion(u8),
    /// An opcode that this module does not describe. The header around it is sound;
    /// [`Envelope`](super::Envelope) reads it, and tells whether the rest is.
    #[error("opcode {opcode:#04x} to queue pair {destination} is reserved or not supported")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// Whom it is for.
        destination: Qpn,
        /// Its number.
        psn: Psn,
    },
    /// Payload and pad are not a multiple of four bytes.
    #[error("payload and pad have {0:#x} bytes, which is no multiple of four")]
    Unaligned(usize),
    /// More pad bytes than there are bytes.
    #[error("{pad} pad bytes in a payload of {present:#x} bytes")]
    Pad {
        /// The pad count.
        pad: u8,
        /// Bytes of payload and pad.
        present: usize,
    },
    /// The invariant CRC is wrong.
    #[error("the invariant crc is {carried:#010x}, the bytes give {computed:#010x}: the frame was damaged")]
    Icrc {
        /// What the frame says.
        carried: u32,
        /// What its bytes give.
        computed: u32,
    },
}

impl FrameError {
    /// Whether the bytes are a frame of some other protocol, rather than a broken one.
    #[must_use]
    pub const fn is_foreign(&self) -> bool {
        matches!(self, Self::Foreign(_))
    }

    pub(super) const fn truncated(part: &'static str, needed: usize, present: usize) -> Self {
        Self::Truncated { part, needed, present }
    }
}

/// What a frame has that RoCE has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Foreign {
    /// Another EtherType.
    #[error("ethertype {0:#06x}")]
    EtherType(u16),
    /// Another protocol in IP.
    #[error("ip protocol {0:#04x}")]
    Protocol(u8),
    /// Another UDP port.
    #[error("udp port {0}")]
    Port(u16),
    /// A later fragment of an IP packet: it has no UDP header, and RoCE is never fragmented.
    #[error("a later fragment of an ip packet")]
    Fragment,
}

/// Why a frame cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The buffer is too short.
    #[error("the frame has {needed:#x} bytes, the buffer {present:#x}: give a larger one")]
    BufferTooShort {
        /// How many bytes the frame has.
        needed: usize,
        /// How many the buffer has.
        present: usize,
    },
    /// The payload does not fit into an IP packet.
    #[error("a payload of {0:#x} bytes does not fit into an ip packet")]
    PayloadTooLong(usize),
    /// The extension headers are not those of the opcode.
    #[error("{opcode} is not followed by these extension headers")]
    Extension {
        /// The opcode.
        opcode: Opcode,
    },
}
