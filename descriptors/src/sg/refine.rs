//! Walking the two sides of a copy together.

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova};

use super::boundary::aligned_maximum;
use super::{SgEntry, SgList};

/// A part of a copy that is contiguous on both sides; what one descriptor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopySegment {
    /// Where to read.
    pub source: Iova,
    /// Where to write.
    pub destination: Iova,
    /// How many bytes, never zero.
    pub length: u32,
}

/// Why two lists do not make a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RefineError {
    /// The sides have different sizes.
    #[error("the source has {source_length:#x} bytes, the destination {destination_length:#x}")]
    LengthMismatch {
        /// The size of the source.
        source_length: u64,
        /// The size of the destination.
        destination_length: u64,
    },
    /// The engine moves less at once than the alignment of a side.
    #[error("at most {maximum:#x} bytes at once cannot keep an alignment of {alignment:#x}")]
    MaximumBelowAlignment {
        /// What the engine moves at once.
        maximum: u64,
        /// The larger of the alignments of the two lists.
        alignment: u64,
    },
}

/// The segments of a copy from `source` to `destination`, in order, each contiguous on both
/// sides and at most `maximum` long.
///
/// A segment crosses no limit of either list, and where `maximum` cuts, the cut keeps the
/// alignment of both. Where an entry of one list ends a segment ends too, wherever that is in
/// the other: an engine with an alignment needs lists whose entries end alike. How many segments
/// there are is bounded by neither list's count.
///
/// # Errors
///
/// [`RefineError`].
pub fn refine<'a>(
    source: &'a SgList,
    destination: &'a SgList,
    maximum: ByteLength,
) -> Result<Refine<'a>, RefineError> {
    let (source_length, destination_length) = (source.total().as_u64(), destination.total().as_u64());
    if source_length != destination_length {
        return Err(RefineError::LengthMismatch { source_length, destination_length });
    }
    let alignment = source.limits().alignment.max(destination.limits().alignment);
    let representable = maximum.min(ByteLength::new(u64::from(u32::MAX)));
    match u32::try_from(aligned_maximum(representable, alignment).as_u64()) {
        Ok(maximum) if maximum > 0 => Ok(Refine {
            source: Side::new(source.entries()),
            destination: Side::new(destination.entries()),
            maximum,
        }),
        _ => Err(RefineError::MaximumBelowAlignment {
            maximum: maximum.as_u64(),
            alignment: alignment.as_u64(),
        }),
    }
}

/// The segments of a copy; see [`refine`]. A clone begins where the original stands, so
/// `refined.clone().count()` tells how many descriptors are needed.
#[derive(Clone, Debug)]
pub struct Refine<'a> {
    source: Side<'a>,
    destination: Side<'a>,
    maximum: u32,
}

impl Iterator for Refine<'_> {
    type Item = CopySegment;

    #[inline]
    fn next(&mut self) -> Option<CopySegment> {
        // Both sides have the same total, so they end together.
        let available = self.source.available()?.min(self.destination.available()?);
        let length = u32::try_from(available).unwrap_or(u32::MAX).min(self.maximum);
        Some(CopySegment {
            source: self.source.take(length),
            destination: self.destination.take(length),
            length,
        })
    }
}

/// One side: the rest of the current entry, and the entries behind it.
#[derive(Clone, Debug)]
struct Side<'a> {
    start: u64,
    rest: u64,
    entries: core::slice::Iter<'a, SgEntry>,
}

impl<'a> Side<'a> {
    fn new(entries: &'a [SgEntry]) -> Self {
        Self { start: 0, rest: 0, entries: entries.iter() }
    }

    /// How many bytes are contiguous here, not zero; `None` at the end of the list.
    #[inline]
    fn available(&mut self) -> Option<u64> {
        if self.rest == 0 {
            let entry = self.entries.next()?;
            self.start = entry.iova.as_u64();
            self.rest = entry.length.as_u64();
        }
        Some(self.rest)
    }

    /// Goes on by `length` bytes, at most what is available.
    #[inline]
    fn take(&mut self, length: u32) -> Iova {
        let address = Iova::new(self.start);
        // The last byte of an entry may be the last of the address space.
        self.start = self.start.wrapping_add(u64::from(length));
        self.rest -= u64::from(length);
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sg::SgLimits;

    fn list(pieces: &[(u64, u64)]) -> SgList {
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        for (iova, length) in pieces {
            list.push(Iova::new(*iova), ByteLength::new(*length)).unwrap();
        }
        list
    }

    fn segment(source: u64, destination: u64, length: u32) -> CopySegment {
        CopySegment { source: Iova::new(source), destination: Iova::new(destination), length }
    }

    #[test]
    fn both_sides_are_cut_where_either_ends() {
        let source = list(&[(0x1000, 10), (0x2000, 20)]);
        let destination = list(&[(0x8000, 15), (0x9000, 15)]);
        let refined = refine(&source, &destination, ByteLength::new(8)).unwrap();
        assert_eq!(refined.clone().count(), 5);
        assert_eq!(
            refined.collect::<Vec<_>>(),
            [
                segment(0x1000, 0x8000, 8),
                segment(0x1008, 0x8008, 2),
                segment(0x2000, 0x800a, 5),
                segment(0x2005, 0x9000, 8),
                segment(0x200d, 0x9008, 7),
            ]
        );
    }

    #[test]
    fn lists_of_different_sizes_are_refused() {
        let error = refine(&list(&[(0, 10)]), &list(&[(0x100, 11)]), ByteLength::SIZE_4K).unwrap_err();
        assert_eq!(error, RefineError::LengthMismatch { source_length: 10, destination_length: 11 });
        assert_eq!(error.to_string(), "the source has 0xa bytes, the destination 0xb");
    }

    #[test]
    fn empty_lists_make_a_copy_without_segments() {
        assert_eq!(refine(&list(&[]), &list(&[]), ByteLength::SIZE_4K).unwrap().next(), None);
    }

    #[test]
    fn a_maximum_beyond_32_bits_is_cut_at_32_bits() {
        let source = list(&[(0, 1 << 32)]);
        let destination = list(&[(1 << 40, 1 << 32)]);
        let segments: Vec<_> = refine(&source, &destination, ByteLength::SIZE_1G).unwrap().collect();
        assert_eq!(segments.len(), 4);
        let segments: Vec<_> = refine(&source, &destination, ByteLength::new(u64::MAX)).unwrap().collect();
        assert_eq!(
            segments,
            [segment(0, 1 << 40, u32::MAX), segment(0xffff_ffff, (1 << 40) + 0xffff_ffff, 1)]
        );
    }

    #[test]
    fn cuts_keep_the_alignment_of_both_lists() {
        let limits = SgLimits { alignment: ByteLength::new(64), ..SgLimits::NONE };
        let mut source = SgList::new(&limits).unwrap();
        source.push(Iova::new(0x1000), ByteLength::new(256)).unwrap();
        let destination = list(&[(0x8001, 256)]);
        let lengths: Vec<_> =
            refine(&source, &destination, ByteLength::new(100)).unwrap().map(|s| s.length).collect();
        assert_eq!(lengths, [64; 4]);
        let error = refine(&source, &destination, ByteLength::new(63)).unwrap_err();
        assert_eq!(error, RefineError::MaximumBelowAlignment { maximum: 63, alignment: 64 });
        assert!(refine(&source, &destination, ByteLength::ZERO).is_err());
    }
}
