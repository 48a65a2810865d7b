//! Arithmetic at boundaries: page ends, 4 GiB lines, alignments.

use vdk_hal::address::{ByteLength, Iova};

/// Whether `length` bytes from `start` touch more than one block of `boundary` bytes, a
/// power of two. No bytes touch none.
///
/// It compares the block of the first byte with that of the **last** byte: the byte after
/// the last may lie in the next block, and a single address bit says nothing about a range
/// that is longer than a block.
///
/// A range that passes the end of the 64-bit space crosses every boundary.
#[inline]
#[must_use]
pub const fn crosses(start: Iova, length: ByteLength, boundary: ByteLength) -> bool {
    if length.is_zero() {
        return false;
    }
    let first = start.as_u64();
    match first.checked_add(length.as_u64() - 1) {
        Some(last) => (first ^ last) & !(boundary.as_u64().wrapping_sub(1)) != 0,
        None => true,
    }
}

/// How many bytes lie from `start` to the next multiple of `boundary`, a power of two:
/// 1 to `boundary`.
#[inline]
#[must_use]
pub const fn until_boundary(start: Iova, boundary: ByteLength) -> ByteLength {
    let mask = boundary.as_u64().wrapping_sub(1);
    ByteLength::new(boundary.as_u64() - (start.as_u64() & mask))
}

/// The largest piece that keeps the next piece aligned: `maximum` rounded **down** to a
/// multiple of `alignment`, a power of two. Zero when `maximum` is smaller.
#[inline]
#[must_use]
pub const fn aligned_maximum(maximum: ByteLength, alignment: ByteLength) -> ByteLength {
    ByteLength::new(maximum.as_u64() & !(alignment.as_u64().wrapping_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written with division instead of masks.
    fn blocks(start: u64, length: u64, boundary: u64) -> u64 {
        if length == 0 { 0 } else { (start + length - 1) / boundary - start / boundary + 1 }
    }

    #[test]
    fn crossing_is_told_by_the_first_and_the_last_byte() {
        for boundary in [4096, 1 << 32] {
            for base in [0, boundary, 3 * boundary, 1 << 40] {
                for offset in [0, 1, 4, 2048, boundary - 4096, boundary - 1] {
                    for length in [0, 1, 4095, 4096, 4097, 8192, 8193, boundary - 1, boundary, boundary + 1] {
                        let start = base + offset;
                        assert_eq!(
                            crosses(Iova::new(start), ByteLength::new(length), ByteLength::new(boundary)),
                            blocks(start, length, boundary) > 1,
                            "{start:#x} + {length:#x} over {boundary:#x}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_last_byte_of_the_address_space_belongs_to_its_block() {
        let start = Iova::new(u64::MAX - 4095);
        assert!(!crosses(start, ByteLength::SIZE_4K, ByteLength::SIZE_4K));
        assert!(crosses(start, ByteLength::new(4097), ByteLength::SIZE_4K));
        assert_eq!(until_boundary(Iova::new(u64::MAX), ByteLength::SIZE_4K), ByteLength::new(1));
        assert_eq!(until_boundary(start, ByteLength::SIZE_4K), ByteLength::SIZE_4K);
    }

    #[test]
    fn the_maximum_is_rounded_down_to_the_alignment() {
        let maximum = ByteLength::new((1 << 32) - (64 << 10));
        assert_eq!(aligned_maximum(maximum, ByteLength::SIZE_2M).as_u64(), (1 << 32) - (2 << 20));
        assert_eq!(aligned_maximum(maximum, ByteLength::new(1)), maximum);
        assert_eq!(aligned_maximum(ByteLength::SIZE_4K, ByteLength::SIZE_2M), ByteLength::ZERO);
    }
}
