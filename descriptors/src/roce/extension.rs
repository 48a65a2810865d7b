//! The headers between the base transport header and the payload.

use super::error::FrameError;
use super::number::{Msn, QKey, Qpn, RemoteKey};
use super::opcode::ExtensionKind;
use super::syndrome::Syndrome;

/// RETH: the memory of a WRITE or of a READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Where it begins, in the address space of the key.
    pub address: u64,
    /// What gives access to it.
    pub key: RemoteKey,
    /// How many bytes the whole message has.
    pub length: u32,
}

/// AETH: an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// Yes, not yet or no.
    pub syndrome: Syndrome,
    /// How many requests the responder has finished.
    pub msn: Msn,
}

/// AtomicETH: an operation on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Where they are; a multiple of eight.
    pub address: u64,
    /// What gives access to them.
    pub key: RemoteKey,
    /// The new value of a compare and swap, or what is added.
    pub swap_or_add: u64,
    /// The value to compare with; zero for an addition.
    pub compare: u64,
}

/// AtomicAckETH: what was there before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicAckEth(pub u64);

/// ImmDt: four bytes that go into the completion at the receiver. The value is big-endian on
/// the wire, and no one interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmDt(pub u32);

/// IETH: the key that the receiver shall invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth(pub RemoteKey);

/// DETH: a datagram's sender and its right to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// The key that the receiver must have.
    pub key: QKey,
    /// The queue pair that sent it.
    pub source: Qpn,
}

/// The extension headers of a packet; which they are follows from its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    /// None.
    None,
    /// ImmDt.
    Immediate(ImmDt),
    /// IETH.
    Invalidate(Ieth),
    /// RETH.
    Remote(Reth),
    /// RETH, ImmDt.
    RemoteImmediate(Reth, ImmDt),
    /// AETH.
    Acknowledge(Aeth),
    /// AETH, AtomicAckETH.
    AtomicAcknowledge(Aeth, AtomicAckEth),
    /// AtomicETH.
    Atomic(AtomicEth),
    /// DETH.
    Datagram(Deth),
    /// DETH, ImmDt.
    DatagramImmediate(Deth, ImmDt),
    /// The 16 reserved bytes of a congestion notification.
    Congestion,
}

/// Every header that an extension can consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtensionHeaders {
    /// ImmDt.
    pub immediate: ImmDt,
    /// IETH.
    pub invalidate: Ieth,
    /// RETH.
    pub remote: Reth,
    /// AETH.
    pub acknowledge: Aeth,
    /// AtomicAckETH.
    pub original: AtomicAckEth,
    /// AtomicETH.
    pub atomic: AtomicEth,
    /// DETH.
    pub datagram: Deth,
}

impl Extension {
    /// The longest, in bytes.
    pub const MAX_LENGTH: usize = ExtensionKind::Atomic.length();

    /// The extension of a kind, made of those headers that it consists of.
    #[must_use]
    pub const fn of(kind: ExtensionKind, headers: &ExtensionHeaders) -> Self {
        let ExtensionHeaders { immediate, invalidate, remote, acknowledge, original, atomic, datagram } =
            *headers;
        match kind {
            ExtensionKind::None => Self::None,
            ExtensionKind::Immediate => Self::Immediate(immediate),
            ExtensionKind::Invalidate => Self::Invalidate(invalidate),
            ExtensionKind::Remote => Self::Remote(remote),
            ExtensionKind::RemoteImmediate => Self::RemoteImmediate(remote, immediate),
            ExtensionKind::Acknowledge => Self::Acknowledge(acknowledge),
            ExtensionKind::AtomicAcknowledge => Self::AtomicAcknowledge(acknowledge, original),
            ExtensionKind::Atomic => Self::Atomic(atomic),
            ExtensionKind::Datagram => Self::Datagram(datagram),
            ExtensionKind::DatagramImmediate => Self::DatagramImmediate(datagram, immediate),
            ExtensionKind::Congestion => Self::Congestion,
        }
    }

    /// Which headers they are.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> ExtensionKind {
        match self {
            Self::None => ExtensionKind::None,
            Self::Immediate(_) => ExtensionKind::Immediate,
            Self::Invalidate(_) => ExtensionKind::Invalidate,
            Self::Remote(_) => ExtensionKind::Remote,
            Self::RemoteImmediate(..) => ExtensionKind::RemoteImmediate,
            Self::Acknowledge(_) => ExtensionKind::Acknowledge,
            Self::AtomicAcknowledge(..) => ExtensionKind::AtomicAcknowledge,
            Self::Atomic(_) => ExtensionKind::Atomic,
            Self::Datagram(_) => ExtensionKind::Datagram,
            Self::DatagramImmediate(..) => ExtensionKind::DatagramImmediate,
            Self::Congestion => ExtensionKind::Congestion,
        }
    }

    /// The immediate data, when there is some.
    #[inline]
    #[must_use]
    pub const fn immediate(&self) -> Option<ImmDt> {
        match self {
            Self::Immediate(immediate)
            | Self::RemoteImmediate(_, immediate)
            | Self::DatagramImmediate(_, immediate) => Some(*immediate),
            _ => None,
        }
    }

    /// The acknowledgement, when there is one.
    #[inline]
    #[must_use]
    pub const fn acknowledge(&self) -> Option<Aeth> {
        match self {
            Self::Acknowledge(aeth) | Self::AtomicAcknowledge(aeth, _) => Some(*aeth),
            _ => None,
        }
    }

    /// The remote memory, when there is some.
    #[inline]
    #[must_use]
    pub const fn remote(&self) -> Option<Reth> {
        match self {
            Self::Remote(reth) | Self::RemoteImmediate(reth, _) => Some(*reth),
            _ => None,
        }
    }

    /// The datagram header, when there is one.
    #[inline]
    #[must_use]
    pub const fn datagram(&self) -> Option<Deth> {
        match self {
            Self::Datagram(deth) | Self::DatagramImmediate(deth, _) => Some(*deth),
            _ => None,
        }
    }

    /// Reads the headers of `kind` at the front of `bytes`.
    #[inline(always)]
    pub(super) fn read(kind: ExtensionKind, bytes: &[u8]) -> Result<Self, FrameError> {
        let short = || FrameError::truncated("the extension header", kind.length(), bytes.len());
        Ok(match kind {
            ExtensionKind::None => Self::None,
            ExtensionKind::Immediate => Self::Immediate(immediate(bytes).ok_or_else(short)?),
            ExtensionKind::Invalidate => {
                let ImmDt(key) = immediate(bytes).ok_or_else(short)?;
                Self::Invalidate(Ieth(RemoteKey(key)))
            }
            ExtensionKind::Remote => Self::Remote(remote(bytes).ok_or_else(short)?.0),
            ExtensionKind::RemoteImmediate => {
                let (reth, rest) = remote(bytes).ok_or_else(short)?;
                Self::RemoteImmediate(reth, immediate(rest).ok_or_else(short)?)
            }
            ExtensionKind::Acknowledge => Self::Acknowledge(acknowledge(bytes).ok_or_else(short)?.0),
            ExtensionKind::AtomicAcknowledge => {
                let (aeth, rest) = acknowledge(bytes).ok_or_else(short)?;
                let (original, _) = word(rest).ok_or_else(short)?;
                Self::AtomicAcknowledge(aeth, AtomicAckEth(original))
            }
            ExtensionKind::Atomic => Self::Atomic(atomic(bytes).ok_or_else(short)?),
            ExtensionKind::Datagram => Self::Datagram(datagram(bytes).ok_or_else(short)?.0),
            ExtensionKind::DatagramImmediate => {
                let (deth, rest) = datagram(bytes).ok_or_else(short)?;
                Self::DatagramImmediate(deth, immediate(rest).ok_or_else(short)?)
            }
            ExtensionKind::Congestion => {
                bytes.get(..kind.length()).ok_or_else(short)?;
                Self::Congestion
            }
        })
    }

    /// Writes the headers to `place`, which has exactly their length.
    #[inline]
    pub(super) fn write(&self, place: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Immediate(ImmDt(value)) | Self::Invalidate(Ieth(RemoteKey(value))) => {
                put(place, value.to_be_bytes());
            }
            Self::Remote(reth) => {
                put(place, reth.bytes());
            }
            Self::RemoteImmediate(reth, ImmDt(value)) => {
                put(put(place, reth.bytes()), value.to_be_bytes());
            }
            Self::Acknowledge(aeth) => {
                put(place, aeth.bytes());
            }
            Self::AtomicAcknowledge(aeth, AtomicAckEth(original)) => {
                put(put(place, aeth.bytes()), original.to_be_bytes());
            }
            Self::Atomic(atomic) => {
                let rest = put(place, atomic.address.to_be_bytes());
                let rest = put(rest, atomic.key.0.to_be_bytes());
                let rest = put(rest, atomic.swap_or_add.to_be_bytes());
                put(rest, atomic.compare.to_be_bytes());
            }
            Self::Datagram(deth) => {
                put(place, deth.bytes());
            }
            Self::DatagramImmediate(deth, ImmDt(value)) => {
                put(put(place, deth.bytes()), value.to_be_bytes());
            }
            Self::Congestion => place.fill(0),
        }
    }
}

impl Reth {
    #[inline]
    fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let rest = put(&mut bytes, self.address.to_be_bytes());
        let rest = put(rest, self.key.0.to_be_bytes());
        put(rest, self.length.to_be_bytes());
        bytes
    }
}

impl Aeth {
    #[inline]
    fn bytes(&self) -> [u8; 4] {
        let [high, middle, low] = self.msn.to_be_bytes();
        [self.syndrome.to_byte(), high, middle, low]
    }
}

impl Deth {
    #[inline]
    fn bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let rest = put(&mut bytes, self.key.0.to_be_bytes());
        put(rest, self.source.value().to_be_bytes());
        bytes
    }
}

/// Writes `bytes` to the front of `place` and gives back the rest of it.
#[inline]
fn put<const N: usize>(place: &mut [u8], bytes: [u8; N]) -> &mut [u8] {
    match place.split_first_chunk_mut() {
        Some((front, rest)) => {
            *front = bytes;
            rest
        }
        None => &mut [],
    }
}

#[inline]
fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (front, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*front), rest))
}

#[inline]
fn half(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (front, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*front), rest))
}

#[inline]
fn immediate(bytes: &[u8]) -> Option<ImmDt> {
    half(bytes).map(|(value, _)| ImmDt(value))
}

#[inline]
fn remote(bytes: &[u8]) -> Option<(Reth, &[u8])> {
    let (address, rest) = word(bytes)?;
    let (key, rest) = half(rest)?;
    let (length, rest) = half(rest)?;
    Some((Reth { address, key: RemoteKey(key), length }, rest))
}

#[inline]
fn acknowledge(bytes: &[u8]) -> Option<(Aeth, &[u8])> {
    let ([syndrome, msn @ ..], rest) = bytes.split_first_chunk::<4>()?;
    Some((Aeth { syndrome: Syndrome::from_byte(*syndrome), msn: Msn::from_be_bytes(*msn) }, rest))
}

#[inline]
fn atomic(bytes: &[u8]) -> Option<AtomicEth> {
    let (address, rest) = word(bytes)?;
    let (key, rest) = half(rest)?;
    let (swap_or_add, rest) = word(rest)?;
    let (compare, _) = word(rest)?;
    Some(AtomicEth { address, key: RemoteKey(key), swap_or_add, compare })
}

#[inline]
fn datagram(bytes: &[u8]) -> Option<(Deth, &[u8])> {
    let (key, rest) = half(bytes)?;
    let (source, rest) = half(rest)?;
    Some((Deth { key: QKey(key), source: Qpn::from_low_bits(source) }, rest))
}
