//! The invariant CRC: what no router may change.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, in place of the local route header,
//! and over the packet from its IP header on. Fields that change on the way count as ones: type of
//! service or traffic class and flow label, time to live or hop limit, the checksums of IPv4
//! and UDP, and the byte of the base transport header that has the congestion bits. The CRC
//! stands in the packet with its lowest byte first.

use crc32fast::Hasher;

/// How long the invariant CRC is.
pub const LENGTH: usize = 4;

/// Which headers a packet begins with, and so which of its fields may change on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// IPv4 without options, UDP.
    Ipv4,
    /// IPv6 without extension headers, UDP.
    Ipv6,
    /// The global route header of RoCEv1.
    GlobalRoute,
}

impl Encapsulation {
    /// How many bytes there are up to the end of the base transport header.
    #[inline]
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Ipv4 => 20 + 8 + 12,
            Self::Ipv6 => 40 + 8 + 12,
            Self::GlobalRoute => 40 + 12,
        }
    }

    /// Sets the fields that may change to ones; `headers` has at least `length` bytes.
    #[inline]
    fn mask(self, headers: &mut [u8]) {
        let (ranges, congestion): (&[core::ops::Range<usize>], usize) = match self {
            Self::Ipv4 => (&[1..2, 8..9, 10..12, 26..28], 32),
            Self::Ipv6 => (&[1..4, 7..8, 46..48], 52),
            Self::GlobalRoute => (&[1..4, 7..8], 44),
        };
        for range in ranges {
            if let Some(field) = headers.get_mut(range.clone()) {
                field.fill(0xff);
            }
        }
        if let Some(byte) = headers.get_mut(congestion) {
            *byte = 0xff;
        }
        // The version stays, the traffic class begins in the lower half of its byte.
        if self != Self::Ipv4
            && let Some(byte) = headers.first_mut()
        {
            *byte |= 0x0f;
        }
    }
}

/// The invariant CRC of `packet`, which begins with its IP or global route header and ends
/// with its last pad byte. `None` when it ends before its base transport header does.
///
/// The payload is read where it stands. Only the first bytes, those with fields to mask, are
/// copied; so are small packets as a whole.
#[inline]
#[must_use]
pub fn compute(encapsulation: Encapsulation, packet: &[u8]) -> Option<u32> {
    let headers = encapsulation.length();
    if packet.len() < headers {
        return None;
    }
    if packet.len() <= SMALL {
        let mut block = [0; SMALL];
        Some(hash(&mut block, encapsulation, packet, &[]))
    } else {
        // What is left is a multiple of 16 bytes, which the fast implementation does at once.
        let (head, rest) = packet.split_at_checked(headers + (packet.len() - headers) % 16)?;
        let mut block = [0; HEAD];
        Some(hash(&mut block, encapsulation, head, rest))
    }
}

/// Hashes `head`, with its fields masked, and `rest`. `block` is zero and longer than `head`.
///
/// Leading zeros do not change a CRC whose register is zero, and the register may be added
/// to the first bytes instead of being set. So `head` is moved to the end of a block of a
/// length for which the implementation is fast.
#[inline]
fn hash<const N: usize>(block: &mut [u8; N], encapsulation: Encapsulation, head: &[u8], rest: &[u8]) -> u32 {
    let length = if head.len() <= BLOCK { BLOCK } else { head.len().next_multiple_of(16) };
    let mut hasher = Hasher::new_with_initial(ZERO_REGISTER);
    if let Some(block) = block.get_mut(..length)
        && let Some(place) = block.get_mut(length - head.len()..)
    {
        place.copy_from_slice(head);
        encapsulation.mask(place);
        for (byte, register) in place.iter_mut().zip(AFTER_ONES.to_le_bytes()) {
            *byte ^= register;
        }
        hasher.update(block);
    }
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

/// Up to this length a packet is copied as a whole.
const SMALL: usize = 256;
/// The shortest length that the implementation does with carry-less multiplication.
const BLOCK: usize = 128;
/// The headers up to the base transport header, 15 bytes more, and what makes it [`BLOCK`].
const HEAD: usize = 128;
/// The register after eight bytes of ones.
const AFTER_ONES: u32 = 0xdebb_20e3;
/// What tells the implementation to begin with a register of zero.
const ZERO_REGISTER: u32 = u32::MAX;
