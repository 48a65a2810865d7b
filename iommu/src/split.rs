//! Cutting a long range into pieces that keep an alignment.

use thiserror::Error;
use vdk_hal::address::ByteLength;

/// One piece of a range: `offset` from its start and `length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the piece begins, a multiple of the alignment.
    pub offset: ByteLength,
    /// How long it is, never zero.
    pub length: ByteLength,
}

/// Cuts `length` into pieces of at most `longest` so that each begins on a multiple of
/// `alignment` from the start.
///
/// The limit is rounded **down** to the alignment: pieces of 4 GiB - 64 KiB under an
/// alignment of 2 MiB would leave every piece but the first misaligned.
///
/// A length of zero gives no pieces.
///
/// # Errors
///
/// [`SplitError`] when `alignment` is not a power of two, or no aligned piece fits below
/// `longest`.
pub fn split(length: ByteLength, longest: ByteLength, alignment: ByteLength) -> Result<Pieces, SplitError> {
    let step = longest.as_u64() & !alignment.as_u64().wrapping_sub(1);
    if !alignment.as_u64().is_power_of_two() || step == 0 {
        return Err(SplitError { longest, alignment });
    }
    Ok(Pieces { offset: 0, rest: length.as_u64(), step })
}

/// The pieces of a range, in order; made by [`split`].
#[derive(Clone, Debug)]
pub struct Pieces {
    offset: u64,
    rest: u64,
    step: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let length = self.rest.min(self.step);
        if length == 0 {
            return None;
        }
        let piece = Piece { offset: ByteLength::new(self.offset), length: ByteLength::new(length) };
        self.rest -= length;
        // The sum is at most the length that was asked for.
        self.offset += length;
        Some(piece)
    }
}

/// No piece can keep the alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "pieces of at most {longest} cannot begin on multiples of {alignment}: the limit must be at least the alignment, a power of two"
)]
pub struct SplitError {
    /// The limit.
    pub longest: ByteLength,
    /// The alignment.
    pub alignment: ByteLength,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(length: u64, longest: u64, alignment: u64) {
        let (longest_length, alignment_length) = (ByteLength::new(longest), ByteLength::new(alignment));
        let mut end = 0;
        for piece in split(ByteLength::new(length), longest_length, alignment_length).unwrap() {
            assert_eq!(piece.offset.as_u64(), end, "pieces follow one another");
            assert!(piece.offset.is_aligned_to(alignment_length), "{piece:?}");
            assert!(!piece.length.is_zero() && piece.length <= longest_length, "{piece:?}");
            end += piece.length.as_u64();
        }
        assert_eq!(end, length);
    }

    #[test]
    fn pieces_around_each_4_gib_stay_aligned() {
        let page = 4096;
        for gigabytes in (0..=24).step_by(4) {
            for length in [(gigabytes << 30) - page, gigabytes << 30, (gigabytes << 30) + page] {
                check(u64::try_from(length).unwrap_or(0), (4 << 30) - (64 << 10), 2 << 20);
            }
        }
    }

    #[test]
    fn a_limit_below_the_alignment_is_refused() {
        let (small, large) = (ByteLength::SIZE_4K, ByteLength::SIZE_2M);
        assert_eq!(split(large, small, large).unwrap_err(), SplitError { longest: small, alignment: large });
        assert!(split(large, large, ByteLength::new(3)).is_err());
        assert!(split(large, large, ByteLength::ZERO).is_err());
    }

    proptest! {
        #[test]
        fn any_split_covers_the_range_once(
            length in 0u64..1 << 34, shift in 0u32..22, longest in 1u64 << 24..1 << 30,
        ) {
            check(length, longest, 1 << shift);
        }
    }
}
