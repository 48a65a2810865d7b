//! RoCEv2: the frames of RDMA over UDP, IP and Ethernet.
//!
//! Layout only: what is in a frame, how it is read and written, what the codes mean. What a
//! queue pair does about it is not here. RoCEv1, the same packets with a global route header
//! right after Ethernet, is read and written too.
//!
//! - [`Frame::parse`] reads a frame and verifies its invariant CRC; [`Unverified::parse`]
//!   leaves that to the caller. Any bytes give a frame or a [`FrameError`].
//! - [`Frame::build`] writes one into a buffer; [`Headers::build`] leaves the payload to be
//!   filled in place. What was built parses to what it was built from. A [`Flow`] builds packets
//!   that have all but the transport's headers in common, and a [`Prediction`] reads such.
//! - [`neighbour`]: the questions for an Ethernet address, ARP and neighbour discovery.
//! - [`Psn`], [`Msn`]: sequence numbers, which wrap and have no order.
//! - [`PathMtu`], [`RnrTimer`], [`AckTimeout`], [`CreditCode`]: the tables behind the codes.
//!
//! Names and values are those of the InfiniBand Architecture Specification, volume 1, and
//! of its annexes on RoCE.

mod bth;
mod envelope;
mod error;
mod extension;
mod flow;
mod frame;
mod gid;
pub mod icrc;
mod limits;
pub mod neighbour;
mod network;
mod number;
mod opcode;
mod prediction;
mod syndrome;
#[cfg(test)]
mod tests;

pub use bth::Bth;
pub use envelope::Envelope;
pub use error::{BuildError, Foreign, FrameError};
pub use extension::{Aeth, AtomicAckEth, AtomicEth, Deth, Extension, ExtensionHeaders, Ieth, ImmDt, Reth};
pub use flow::Flow;
pub use frame::{Frame, Headers, Packet, Unsealed, Unverified};
pub use gid::Gid;
pub use limits::{AckTimeout, CreditCode, PathMtu, RnrTimer};
pub use network::{Ethernet, Ipv4, Ipv6, Network, Udp, VlanTag};
pub use number::{Msn, PKey, Psn, QKey, Qpn, RemoteKey};
pub use opcode::{ExtensionKind, Opcode, Operation, Position, Transport};
pub use prediction::Prediction;
pub use smoltcp::wire::EthernetAddress;
pub use syndrome::{NakCode, Syndrome, SyndromeKind};

/// The UDP port that RoCEv2 is sent to.
pub const UDP_PORT: u16 = 4791;

/// The most bytes that a frame can have: two VLAN tags, IPv6, the longest headers, a payload
/// of 4096 bytes and the invariant CRC.
pub const MAX_FRAME: usize = 14 + 8 + 40 + 8 + 12 + 28 + 4096 + 4;
