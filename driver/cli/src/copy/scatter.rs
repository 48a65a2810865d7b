//! Scattered memory: one half of the copy's buffers as pieces that do not lie in the order
//! of the file.

use vdk_driver::descriptors::sg::{SgError, SgList};
use vdk_driver::hal::address::ByteLength;
use vdk_driver::iommu::{Direction, DmaRegion};

/// Where in a region each piece of a half lies, in the order of the file. Neighbours in
/// the file are never neighbours in memory, so that a scatter-gather list cannot merge them.
#[derive(Debug)]
pub(super) struct Scatter {
    pieces: Vec<Piece>,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where it begins in the region.
    pub(super) offset: usize,
    /// Its size in bytes, at least 1.
    pub(super) length: usize,
}

impl Scatter {
    /// Cuts `length` bytes into at most `count` pieces. With `shifted` the first piece is
    /// half as long as the others, so that two layouts never cut at the same places.
    pub(super) fn new(length: usize, count: usize, shifted: bool) -> Self {
        let nominal = length.div_ceil(count.max(1)).max(1);
        let mut lengths = Vec::with_capacity(count + 1);
        let mut left = length;
        let mut next = if shifted { nominal.div_ceil(2) } else { nominal };
        while left > 0 {
            let taken = next.min(left);
            lengths.push(taken);
            left -= taken;
            next = nominal;
        }
        // Memory holds the pieces in the order 1, 0, 3, 2, ...
        let mut offsets = vec![0; lengths.len()];
        let mut offset = 0;
        for slot in 0..lengths.len() {
            let piece = if slot ^ 1 < lengths.len() { slot ^ 1 } else { slot };
            offsets[piece] = offset;
            offset += lengths[piece];
        }
        let pieces = offsets.into_iter().zip(lengths).map(|(offset, length)| Piece { offset, length });
        Self { pieces: pieces.collect() }
    }

    /// The pieces that hold the first `length` bytes, in the order of the file.
    pub(super) fn pieces(&self, length: usize) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.iter().scan(length, |left, piece| {
            let length = piece.length.min(*left);
            *left -= length;
            (length > 0).then_some(Piece { offset: piece.offset, length })
        })
    }

    /// Fills `list` with the pieces of `region` that hold the first `length` bytes.
    pub(super) fn describe<D: Direction>(
        &self,
        region: &DmaRegion<D>,
        length: usize,
        list: &mut SgList,
    ) -> Result<(), SgError> {
        list.clear();
        let base = region.iova();
        for piece in self.pieces(length) {
            // PANIC: a piece lies inside its region, whose last address exists.
            let start = base.checked_add(ByteLength::from_usize(piece.offset)).expect("inside the region");
            list.push(start, ByteLength::from_usize(piece.length))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once_and_never_touch_their_neighbour() {
        for (length, count, shifted) in [
            (4096, 1, false),
            (4096, 7, false),
            (4097, 256, true),
            (10, 10, false),
            (1, 1, true),
            (100, 3, true),
        ] {
            let scatter = Scatter::new(length, count, shifted);
            let mut covered = vec![0; length];
            let pieces: Vec<Piece> = scatter.pieces(length).collect();
            assert!(pieces.len() <= count + 1);
            for piece in &pieces {
                covered[piece.offset..piece.offset + piece.length].iter_mut().for_each(|byte| *byte += 1);
            }
            assert!(covered.iter().all(|count| *count == 1), "{length} {count} {shifted}");
            for pair in pieces.windows(2) {
                assert_ne!(pair[0].offset + pair[0].length, pair[1].offset);
            }
        }
    }

    #[test]
    fn a_shorter_half_uses_the_first_pieces() {
        let scatter = Scatter::new(100, 4, false);
        let pieces: Vec<Piece> = scatter.pieces(60).collect();
        assert_eq!(pieces.iter().map(|piece| piece.length).collect::<Vec<_>>(), [25, 25, 10]);
        assert_eq!(scatter.pieces(0).count(), 0);
    }
}
