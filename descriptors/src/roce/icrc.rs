//! The invariant CRC: what no router may change.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, in place of the local route header,
//! and over the packet from its IP header on. Fields that change on the way count as ones: type of
//! service or traffic class and flow label, time to live or hop limit, the checksums of IPv4
//! and UDP, and the byte of the base transport header that has the congestion bits. The CRC
//! stands in the packet with its lowest byte first.

use std::sync::LazyLock;

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
        match self {
            Self::Ipv4 => {
                let Some(bytes) = headers.first_chunk_mut::<40>() else { return };
                for field in [1, 8, 10, 11, 26, 27, 32] {
                    bytes[field] = 0xff;
                }
            }
            // The version stays, the traffic class begins in the lower half of its byte.
            Self::Ipv6 => {
                let Some(bytes) = headers.first_chunk_mut::<60>() else { return };
                bytes[0] |= 0x0f;
                for field in [1, 2, 3, 7, 46, 47, 52] {
                    bytes[field] = 0xff;
                }
            }
            Self::GlobalRoute => {
                let Some(bytes) = headers.first_chunk_mut::<52>() else { return };
                bytes[0] |= 0x0f;
                for field in [1, 2, 3, 7, 44] {
                    bytes[field] = 0xff;
                }
            }
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
    if packet.len() <= BLOCK {
        Some(hash::<BLOCK>(encapsulation, packet, &[]))
    } else if packet.len() <= SMALL {
        Some(hash::<SMALL>(encapsulation, packet, &[]))
    } else {
        // What is left is a multiple of 16 bytes, which the fast implementation does at once.
        let (head, rest) = packet.split_at_checked(headers + (packet.len() - headers) % 16)?;
        Some(hash::<BLOCK>(encapsulation, head, rest))
    }
}

/// Hashes `head`, which has at most `N` bytes, with its fields masked, and `rest`.
///
/// Leading zeros do not change a CRC whose register is zero, and the register may be added
/// to the first bytes instead of being set. So `head` is moved to the end of a block of zeros of
/// a length for which the implementation is fast.
#[inline]
fn hash<const N: usize>(encapsulation: Encapsulation, head: &[u8], rest: &[u8]) -> u32 {
    let mut block = [0; N];
    let length = if N == BLOCK { N } else { head.len().next_multiple_of(16) };
    let mut hasher = START.clone();
    if let Some(block) = block.get_mut(..length)
        && let Some(place) = block.get_mut(length - head.len()..)
    {
        place.copy_from_slice(head);
        encapsulation.mask(place);
        if let Some(first) = place.first_chunk_mut() {
            *first = (u32::from_le_bytes(*first) ^ AFTER_ONES).to_le_bytes();
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
/// The shortest length that the implementation does with carry-less multiplication. The headers
/// up to the base transport header and 15 bytes more are shorter.
const BLOCK: usize = 128;
/// The register after eight bytes of ones.
const AFTER_ONES: u32 = 0xdebb_20e3;
/// What tells the implementation to begin with a register of zero.
const ZERO_REGISTER: u32 = u32::MAX;
/// The beginning of every CRC; what the processor can do is looked up once.
static START: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_with_initial(ZERO_REGISTER));
