//! What a device can take in one entry of a list, and how many.

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova};

use super::SgEntry;
use super::boundary::{aligned_maximum, until_boundary};

/// What a device declares about the entries of a scatter-gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SgLimits {
    /// No entry is longer.
    pub max_segment: ByteLength,
    /// No entry crosses a multiple of it; a power of two.
    pub boundary: Option<ByteLength>,
    /// Every entry begins at a multiple of it and is a multiple of it long; a power of two,
    /// 1 when the device does not care.
    pub alignment: ByteLength,
    /// The page of a device that takes addresses page by page: no entry leaves its page. A
    /// power of two. The smaller of `page` and `boundary` counts.
    pub page: Option<ByteLength>,
    /// How many entries a list may have.
    pub max_count: Option<usize>,
}

impl SgLimits {
    /// No limits at all: entries of any size, alignment and number.
    pub const NONE: Self = Self {
        max_segment: ByteLength::new(u64::MAX),
        boundary: None,
        alignment: ByteLength::new(1),
        page: None,
        max_count: None,
    };
}

/// Limits that contradict themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SgLimitsError {
    /// A size that must be a power of two is not.
    #[error("{name} of {value:#x} bytes is not a power of two")]
    NotPowerOfTwo {
        /// Which limit: "alignment", "boundary" or "page".
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// Pieces cannot be aligned and as small as asked.
    #[error("{name} of {value:#x} bytes is smaller than the alignment of {alignment:#x} bytes")]
    BelowAlignment {
        /// Which limit: "maximum segment", "boundary" or "page".
        name: &'static str,
        /// Its value.
        value: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A list that may have no entry.
    #[error("a maximum count of zero entries admits no list")]
    ZeroCount,
}

/// The limits in the form that the arithmetic needs.
///
/// # Invariants
///
/// `maximum` is not zero and a multiple of `alignment_mask + 1`, which is a power of two.
/// `block` is zero (no boundary) or a power of two that is a multiple of the alignment;
/// `cut_mask` has all ones above it, and always the top bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cutter {
    pub(super) maximum: u64,
    pub(super) alignment_mask: u64,
    /// Two addresses that agree in these bits are in one block.
    pub(super) cut_mask: u64,
    block: u64,
}

impl Cutter {
    pub(super) fn new(limits: &SgLimits) -> Result<Self, SgLimitsError> {
        let alignment = power_of_two("alignment", limits.alignment)?;
        let mut block = 0;
        for (name, limit) in [("boundary", limits.boundary), ("page", limits.page)] {
            let Some(limit) = limit else { continue };
            let value = power_of_two(name, limit)?;
            if value < alignment {
                return Err(SgLimitsError::BelowAlignment { name, value, alignment });
            }
            block = if block == 0 { value } else { value.min(block) };
        }
        let maximum = aligned_maximum(limits.max_segment, limits.alignment).as_u64();
        if maximum == 0 {
            let value = limits.max_segment.as_u64();
            return Err(SgLimitsError::BelowAlignment { name: "maximum segment", value, alignment });
        }
        if limits.max_count == Some(0) {
            return Err(SgLimitsError::ZeroCount);
        }
        // INVARIANT: `maximum` was rounded to the alignment and is not zero; `block` is the
        // smaller of two powers of two that are not below the alignment.
        let cut_mask = if block == 0 { 1 << 63 } else { !(block - 1) };
        Ok(Self { maximum, alignment_mask: alignment - 1, cut_mask, block })
    }

    /// The last address of a piece that needs no cutting; `None` also when that is not
    /// certain and for a piece that is to be refused.
    #[inline(always)]
    pub(super) fn last_of_whole(&self, piece: &SgEntry) -> Option<u64> {
        let (start, length) = (piece.iova.as_u64(), piece.length.as_u64());
        let below = length.wrapping_sub(1);
        let last = start.wrapping_add(below);
        // A length of zero fails the first test. A range that wraps changes the top bit,
        // which is always in the mask.
        let whole = below < self.maximum
            && ((start ^ last) & self.cut_mask) | ((start | length) & self.alignment_mask) == 0;
        whole.then_some(last)
    }

    /// How long the first piece of a run is.
    #[inline]
    fn first(&self, start: u64, length: u64) -> u64 {
        let piece = length.min(self.maximum);
        if self.block == 0 {
            return piece;
        }
        piece.min(until_boundary(Iova::new(start), ByteLength::new(self.block)).as_u64())
    }

    /// Into how many pieces a run is cut; the run is not empty and passes no end.
    pub(super) fn count(&self, start: u64, length: u64) -> u64 {
        let pieces = |bytes: u64| bytes.div_ceil(self.maximum);
        if self.block == 0 {
            return pieces(length);
        }
        let head = length.min(until_boundary(Iova::new(start), ByteLength::new(self.block)).as_u64());
        let rest = length - head;
        pieces(head) + (rest / self.block) * pieces(self.block) + pieces(rest % self.block)
    }
}

fn power_of_two(name: &'static str, value: ByteLength) -> Result<u64, SgLimitsError> {
    let value = value.as_u64();
    if value.is_power_of_two() { Ok(value) } else { Err(SgLimitsError::NotPowerOfTwo { name, value }) }
}

/// Cuts one run of addresses into entries that a device takes; see [`Pieces::new`].
#[derive(Clone, Debug)]
pub struct Pieces {
    cutter: Cutter,
    start: u64,
    rest: u64,
}

impl Pieces {
    /// The pieces of `length` bytes from `start`, in order and as long as `limits` allow.
    /// [`SgLimits::max_count`] is not looked at; no bytes give no pieces. Begin and end of
    /// the run are taken as they are: only the cuts are aligned.
    ///
    /// # Errors
    ///
    /// [`SgLimitsError`] for limits that contradict themselves.
    pub fn new(start: Iova, length: ByteLength, limits: &SgLimits) -> Result<Self, SgLimitsError> {
        Ok(Self::cut(Cutter::new(limits)?, start.as_u64(), length.as_u64()))
    }

    pub(super) fn cut(cutter: Cutter, start: u64, length: u64) -> Self {
        Self { cutter, start, rest: length }
    }
}

impl Iterator for Pieces {
    type Item = SgEntry;

    #[inline]
    fn next(&mut self) -> Option<SgEntry> {
        if self.rest == 0 {
            return None;
        }
        let length = self.cutter.first(self.start, self.rest);
        let entry = SgEntry { iova: Iova::new(self.start), length: ByteLength::new(length) };
        // The last piece of a run may end at 2^64; nothing is read from `start` then.
        self.start = self.start.wrapping_add(length);
        self.rest -= length;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_long_run_stay_aligned() {
        const GIB_4: u64 = 1 << 32;
        let limits = SgLimits {
            max_segment: ByteLength::new(GIB_4 - (64 << 10)),
            alignment: ByteLength::SIZE_2M,
            ..SgLimits::NONE
        };
        for whole in 1..=3 {
            for length in [whole * GIB_4 - 4096, whole * GIB_4, whole * GIB_4 + 4096] {
                let pieces: Vec<_> =
                    Pieces::new(Iova::new(GIB_4), ByteLength::new(length), &limits).unwrap().collect();
                assert!(pieces.iter().all(|piece| piece.iova.is_aligned_to(ByteLength::SIZE_2M)));
                assert!(pieces.iter().all(|piece| piece.length <= limits.max_segment));
                assert_eq!(pieces.iter().map(|piece| piece.length.as_u64()).sum::<u64>(), length);
                let cutter = Cutter::new(&limits).unwrap();
                assert_eq!(cutter.count(GIB_4, length), pieces.len() as u64);
            }
        }
    }

    #[test]
    fn limits_that_contradict_themselves_are_refused() {
        let odd = SgLimits { alignment: ByteLength::new(3), ..SgLimits::NONE };
        let error = Cutter::new(&odd).unwrap_err();
        assert_eq!(error, SgLimitsError::NotPowerOfTwo { name: "alignment", value: 3 });
        let zero = SgLimits { boundary: Some(ByteLength::ZERO), ..SgLimits::NONE };
        assert_eq!(zero.boundary.map(|_| Cutter::new(&zero).is_err()), Some(true));
        let small =
            SgLimits { max_segment: ByteLength::new(3), alignment: ByteLength::new(4), ..SgLimits::NONE };
        assert!(matches!(
            Cutter::new(&small),
            Err(SgLimitsError::BelowAlignment { name: "maximum segment", value: 3, alignment: 4 })
        ));
        let page =
            SgLimits { page: Some(ByteLength::new(2)), alignment: ByteLength::new(4), ..SgLimits::NONE };
        assert!(matches!(Cutter::new(&page), Err(SgLimitsError::BelowAlignment { name: "page", .. })));
        let none = SgLimits { max_count: Some(0), ..SgLimits::NONE };
        assert_eq!(Cutter::new(&none).unwrap_err(), SgLimitsError::ZeroCount);
    }

    #[test]
    fn a_run_may_end_with_the_address_space() {
        let limits = SgLimits { boundary: Some(ByteLength::SIZE_4K), ..SgLimits::NONE };
        let start = u64::MAX - 6000;
        let pieces: Vec<_> = Pieces::new(Iova::new(start), ByteLength::new(6001), &limits).unwrap().collect();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[1].iova, Iova::new(u64::MAX - 4095));
        assert_eq!(pieces[1].length, ByteLength::SIZE_4K);
    }
}
