//! The base transport header: twelve bytes that each packet has.

use super::error::FrameError;
use super::number::{PKey, Psn, Qpn};
use super::opcode::Opcode;

/// The base transport header. The pad count is not here: it follows from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver shall raise an event for this message.
    pub solicited_event: bool,
    /// MigReq: the path is in its normal state. Hardware sends true, Linux's rxe false, and
    /// both take either.
    pub migrated: bool,
    /// The partition.
    pub partition: PKey,
    /// The packet was marked on a congested path.
    pub forward_congestion: bool,
    /// The receiver met congestion on the way of its own sender.
    pub backward_congestion: bool,
    /// Whom it is for.
    pub destination: Qpn,
    /// The responder shall acknowledge this packet.
    pub ack_request: bool,
    /// Its number.
    pub psn: Psn,
}

impl Bth {
    /// How many bytes.
    pub const LENGTH: usize = 12;

    /// A header with the flags that hardware sends: in the default partition, migrated, no
    /// event, no acknowledgement asked for.
    #[must_use]
    pub const fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited_event: false,
            migrated: true,
            partition: PKey::DEFAULT,
            forward_congestion: false,
            backward_congestion: false,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header; the second value is the pad count. Reserved bits are ignored.
    #[inline(always)]
    pub(super) fn read(bytes: &[u8; Self::LENGTH]) -> Result<(Self, u8), FrameError> {
        let [opcode, flags, key_high, key_low, congestion, q0, q1, q2, acknowledge, p0, p1, p2] = *bytes;
        if flags & 0x0f != 0 {
            return Err(FrameError::TransportVersion(flags & 0x0f));
        }
        let destination = Qpn::from_be_bytes([q0, q1, q2]);
        let psn = Psn::from_be_bytes([p0, p1, p2]);
        let opcode = Opcode::new(opcode).ok_or(FrameError::Opcode { opcode, destination, psn })?;
        let header = Self {
            opcode,
            solicited_event: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            partition: PKey(u16::from_be_bytes([key_high, key_low])),
            forward_congestion: congestion & 0x80 != 0,
            backward_congestion: congestion & 0x40 != 0,
            destination,
            ack_request: acknowledge & 0x80 != 0,
            psn,
        };
        Ok((header, (flags >> 4) & 3))
    }

    /// Writes the header before a payload that needs `pad` pad bytes.
    #[inline]
    pub(super) fn write(&self, place: &mut [u8; Self::LENGTH], pad: u8) {
        let flags = u8::from(self.solicited_event) << 7 | u8::from(self.migrated) << 6 | (pad & 3) << 4;
        let congestion = u32::from(self.forward_congestion) << 31 | u32::from(self.backward_congestion) << 30;
        let words = [
            u32::from(self.opcode.value()) << 24 | u32::from(flags) << 16 | u32::from(self.partition.0),
            congestion | self.destination.value(),
            u32::from(self.ack_request) << 31 | self.psn.value(),
        ];
        for (place, word) in place.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
    }
}
