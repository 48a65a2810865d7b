//! The syndrome of an acknowledgement: yes, not yet, or no.

use core::fmt;

use super::limits::{CreditCode, RnrTimer};

/// The first byte of an AETH. Any byte is one; [`kind`](Self::kind) says what it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Syndrome(u8);

/// What a [`Syndrome`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyndromeKind {
    /// Everything up to the PSN has arrived.
    Ack(CreditCode),
    /// The receiver has no place for the message yet: send again after this time.
    RnrNak(RnrTimer),
    /// The request is refused.
    Nak(NakCode),
    /// The standard gives the byte no meaning.
    Reserved(u8),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing: go back to the PSN of this NAK.
    PsnSequenceError = 0,
    /// The request is not one that this queue pair can execute.
    InvalidRequest = 1,
    /// The key, the range or the rights do not fit.
    RemoteAccessError = 2,
    /// The responder failed while it executed the request.
    RemoteOperationalError = 3,
    /// Only for reliable datagrams.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// All, in the order of their codes.
    pub const ALL: [Self; 5] = [
        Self::PsnSequenceError,
        Self::InvalidRequest,
        Self::RemoteAccessError,
        Self::RemoteOperationalError,
        Self::InvalidRdRequest,
    ];

    /// The code: 0 to 4.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::PsnSequenceError),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccessError),
            3 => Some(Self::RemoteOperationalError),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequenceError => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationalError => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
        })
    }
}

impl Syndrome {
    /// A positive acknowledgement without end-to-end credits.
    pub const ACK: Self = Self(0x1f);

    /// A positive acknowledgement.
    #[inline]
    #[must_use]
    pub const fn ack(credits: CreditCode) -> Self {
        Self(credits.code())
    }

    /// Receiver not ready.
    #[inline]
    #[must_use]
    pub const fn rnr_nak(timer: RnrTimer) -> Self {
        Self(0x20 | timer.code())
    }

    /// A negative acknowledgement.
    #[inline]
    #[must_use]
    pub const fn nak(code: NakCode) -> Self {
        Self(0x60 | code.code())
    }

    /// The syndrome in a byte of the wire.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// The byte of the wire.
    #[inline]
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// What it means.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> SyndromeKind {
        match self.0 >> 5 {
            0 => SyndromeKind::Ack(CreditCode::from_low_bits(self.0)),
            1 => SyndromeKind::RnrNak(RnrTimer::from_low_bits(self.0)),
            3 => match NakCode::from_code(self.0 & 0x1f) {
                Some(code) => SyndromeKind::Nak(code),
                None => SyndromeKind::Reserved(self.0),
            },
            _ => SyndromeKind::Reserved(self.0),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x} {self})", self.0)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            SyndromeKind::Ack(CreditCode::UNLIMITED) => f.write_str("ACK"),
            SyndromeKind::Ack(credits) => write!(f, "ACK, {credits}"),
            SyndromeKind::RnrNak(timer) => write!(f, "RNR NAK, {timer}"),
            SyndromeKind::Nak(code) => write!(f, "NAK, {code}"),
            SyndromeKind::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_syndrome_and_gives_itself_back() {
        let mut reserved = 0;
        for byte in 0..=u8::MAX {
            let syndrome = Syndrome::from_byte(byte);
            let again = match syndrome.kind() {
                SyndromeKind::Ack(credits) => Syndrome::ack(credits),
                SyndromeKind::RnrNak(timer) => Syndrome::rnr_nak(timer),
                SyndromeKind::Nak(code) => Syndrome::nak(code),
                SyndromeKind::Reserved(byte) => {
                    reserved += 1;
                    Syndrome::from_byte(byte)
                }
            };
            assert_eq!(again.to_byte(), byte);
        }
        assert_eq!(reserved, 256 - 32 - 32 - 5);
    }

    #[test]
    fn syndromes_are_named() {
        let names: Vec<String> = [0x1f, 0x05, 0x2c, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x40]
            .map(|byte| Syndrome::from_byte(byte).to_string())
            .to_vec();
        assert_eq!(
            names,
            [
                "ACK",
                "ACK, 6 credits",
                "RNR NAK, 0.64 ms",
                "NAK, PSN sequence error",
                "NAK, invalid request",
                "NAK, remote access error",
                "NAK, remote operational error",
                "NAK, invalid RD request",
                "reserved syndrome 0x65",
                "reserved syndrome 0x40",
            ]
        );
    }
}
