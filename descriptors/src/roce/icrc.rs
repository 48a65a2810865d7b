//! The invariant CRC: what no router may change.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, in place of the local route header,
//! and over the packet from its IP header on. Fields that change on the way count as ones: type of
//! service or traffic class and flow label, time to live or hop limit, the checksums of IPv4
//! and UDP, and the byte of the base transport header that has the congestion bits. The CRC
//! stands in the packet with its lowest byte first.

use std::sync::OnceLock;

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

    /// The masks of packets that begin `lead` words behind the start of a block.
    #[inline]
    fn masks(self, lead: usize) -> Option<&'static Masks> {
        static IPV4: [Masks; 4] = masks(&[1, 8, 10, 11, 26, 27, 32], 0);
        static IPV6: [Masks; 4] = masks(&[1, 2, 3, 7, 46, 47, 52], 0x0f);
        static GLOBAL_ROUTE: [Masks; 4] = masks(&[1, 2, 3, 7, 44], 0x0f);
        match self {
            Self::Ipv4 => IPV4.get(lead),
            Self::Ipv6 => IPV6.get(lead),
            Self::GlobalRoute => GLOBAL_ROUTE.get(lead),
        }
    }
}

/// The invariant CRC of `packet`, which begins with its IP or global route header and ends
/// with its last pad byte. `None` when it ends before its base transport header does.
#[must_use]
pub fn compute(encapsulation: Encapsulation, packet: &[u8]) -> Option<u32> {
    let (headers, rest) = packet.split_at_checked(encapsulation.length())?;
    let mut masked = [[0; 16]; MASKED];
    let masked = masked.as_flattened_mut().get_mut(..headers.len())?;
    let ones = encapsulation.masks(0)?.ones.as_flattened();
    for ((to, from), ones) in masked.iter_mut().zip(headers).zip(ones) {
        *to = from | ones;
    }
    let [start, ..] = START.get_or_init(starts);
    let mut hasher = start.clone();
    hasher.update(masked);
    hasher.update(rest);
    Some(hasher.finalize())
}

/// The same for the packet in `frame` that begins at `start`, as Ethernet carries it.
///
/// The fast implementation wants multiples of 16 bytes. A packet is a multiple of four, and
/// Ethernet's header stands before it: the last bytes of that are taken along, as zeros, and the
/// register begins with what these zeros turn into the right one. Small packets are copied to
/// mask them; of larger ones only the first blocks are, and the payload is read where it stands.
#[inline]
#[must_use]
pub(super) fn of_frame(encapsulation: Encapsulation, frame: &[u8], start: usize) -> Option<u32> {
    let packet = frame.get(start..)?;
    if packet.len() < encapsulation.length() {
        return None;
    }
    // The first of all frames goes the long way too: without a call that might come back, no
    // register need be saved.
    let Some(starts) = START.get() else { return compute(encapsulation, packet) };
    let lead = packet.len().wrapping_neg() % 16;
    if !lead.is_multiple_of(4) || lead > start {
        return compute(encapsulation, packet);
    }
    let bytes = frame.get(start - lead..)?;
    let masks = encapsulation.masks(lead / 4)?;
    let mut hasher = starts.get(lead / 4)?.clone();
    let (blocks, _) = bytes.as_chunks();
    match blocks.len() {
        3 => masks.hash::<3>(blocks, &mut hasher),
        4 => masks.hash::<4>(blocks, &mut hasher),
        5 => masks.hash::<5>(blocks, &mut hasher),
        6 => masks.hash::<6>(blocks, &mut hasher),
        7 => masks.hash::<7>(blocks, &mut hasher),
        8 => masks.hash::<8>(blocks, &mut hasher),
        _ => masks.hash_long(blocks, &mut hasher),
    }
    Some(hasher.finalize())
}

/// What the fast implementation does at once.
type Block = [u8; 16];

/// What makes the first blocks of a packet those that are hashed.
struct Masks {
    /// Zeros for what stands before the packet in the first block.
    kept: Block,
    /// Ones for what may change on the way.
    ones: [Block; SMALL],
}

impl Masks {
    /// Hashes the first `N` of `blocks`, of which there are that many, with `ones`, and of the
    /// first one only what is `kept`.
    #[inline(always)]
    fn hash<const N: usize>(&self, blocks: &[Block], hasher: &mut Hasher) {
        if let (Some(blocks), Some(ones)) = (blocks.first_chunk::<N>(), self.ones.first_chunk::<N>()) {
            let mut masked = [[0; 16]; N];
            for ((to, from), ones) in masked.iter_mut().zip(blocks).zip(ones) {
                *to = (u128::from_ne_bytes(*from) | u128::from_ne_bytes(*ones)).to_ne_bytes();
            }
            if let Some(first) = masked.first_mut() {
                *first = (u128::from_ne_bytes(*first) & u128::from_ne_bytes(self.kept)).to_ne_bytes();
            }
            hasher.update(masked.as_flattened());
        }
    }

    /// Hashes more than [`SMALL`] blocks.
    #[inline(never)]
    fn hash_long(&self, blocks: &[Block], hasher: &mut Hasher) {
        self.hash::<MASKED>(blocks, hasher);
        hasher.update(blocks.get(MASKED..).unwrap_or_default().as_flattened());
    }
}

/// The masks for a lead of 0, 4, 8 and 12 bytes: `variant` are the bytes that may change, and
/// `first` the bits of the first one.
const fn masks(variant: &[usize], first: u8) -> [Masks; 4] {
    const NONE: Masks = Masks { kept: [0xff; 16], ones: [[0; 16]; SMALL] };
    let mut masks = [NONE; 4];
    let mut words = 0;
    while words < masks.len() {
        let lead = 4 * words;
        masks[words].ones[lead / 16][lead % 16] = first;
        let mut index = 0;
        while index < variant.len() {
            let place = lead + variant[index];
            masks[words].ones[place / 16][place % 16] = 0xff;
            index += 1;
        }
        let mut index = 0;
        while index < lead {
            masks[words].kept[index] = 0;
            index += 1;
        }
        words += 1;
    }
    masks
}

/// The register from which `count` bytes of zeros lead to `register`.
const fn rewound(register: u32, count: usize) -> u32 {
    let mut register = register;
    let mut bit = 0;
    while bit < 8 * count {
        register = match register >> 31 {
            0 => register << 1,
            _ => (register ^ POLYNOMIAL) << 1 | 1,
        };
        bit += 1;
    }
    register
}

/// The blocks that hold all fields that may change, behind up to 12 bytes.
const MASKED: usize = 5;
/// Up to so many blocks a packet is copied as a whole.
const SMALL: usize = 8;
/// The polynomial of Ethernet, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The register after eight bytes of ones.
const AFTER_ONES: u32 = 0xdebb_20e3;
/// The beginning of every CRC, by the number of words before the packet; what the processor
/// can do is looked up once. The implementation inverts what it is given.
static START: OnceLock<[Hasher; 4]> = OnceLock::new();

fn starts() -> [Hasher; 4] {
    [0, 4, 8, 12].map(|lead| Hasher::new_with_initial(!rewound(AFTER_ONES, lead)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_in_its_frame_has_the_crc_that_it_has_alone() {
        let frame: Vec<u8> = (0..800u32).map(|index| ((index * index) >> 3).to_le_bytes()[0]).collect();
        for encapsulation in [Encapsulation::Ipv4, Encapsulation::Ipv6, Encapsulation::GlobalRoute] {
            // No header before it, and Ethernet's with no tag, one and two.
            for start in [0, 3, 14, 18, 22] {
                for length in 0..600 {
                    let fast = of_frame(encapsulation, &frame[..start + length], start);
                    assert_eq!(
                        fast,
                        compute(encapsulation, &frame[start..start + length]),
                        "{start} {length}"
                    );
                    assert_eq!(fast.is_some(), length >= encapsulation.length());
                }
            }
        }
        assert_eq!(of_frame(Encapsulation::Ipv4, &frame[..60], 61), None);
    }
}
