//! Descriptors that are linked to a circle, and completions that are addresses.

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova};

use super::cursors::{Cursors, IndexKind, advance};
use crate::sg::until_boundary;

/// A table of descriptors as the device sees it: where each lies, and which one an address
/// means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorCircle {
    first: u64,
    stride_log2: u32,
    depth: u32,
}

/// A table that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CircleError {
    /// The size of a descriptor is not a power of two, or its address not a multiple.
    #[error("descriptors of {stride:#x} bytes at iova {first}: must be aligned to a power of two")]
    Misaligned {
        /// Where the table begins.
        first: Iova,
        /// The size of a descriptor.
        stride: u64,
    },
    /// No descriptor, or the table passes the end of the address space.
    #[error("a table of {depth:#x} descriptors at iova {first} is empty or passes the end")]
    Range {
        /// Where the table begins.
        first: Iova,
        /// How many descriptors.
        depth: u32,
    },
}

/// A completion that cannot be true. The device is broken, or somebody wrote over its
/// completion word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompletedError {
    /// The address is not in the table.
    #[error("completed descriptor at iova {address} is not in the table at {first}")]
    Outside {
        /// The address.
        address: Iova,
        /// Where the table begins.
        first: Iova,
    },
    /// The address is in the middle of a descriptor.
    #[error("completed descriptor at iova {address} is not at the beginning of one")]
    Misaligned {
        /// The address.
        address: Iova,
    },
    /// The descriptor was not issued, or was completed long ago.
    #[error(
        "completed descriptor at iova {address}, slot {slot:#x}, is not among the {outstanding:#x} issued"
    )]
    NotIssued {
        /// The address.
        address: Iova,
        /// Its slot.
        slot: u32,
        /// How many are.
        outstanding: u32,
    },
    /// The cursors are those of a ring of another depth.
    #[error("cursors of a ring of {depth:#x} slots for a table of {table:#x} descriptors")]
    WrongRing {
        /// The depth of the ring.
        depth: u32,
        /// The number of descriptors.
        table: u32,
    },
    /// All slots are outstanding: the address of the last one means all or nothing. The
    /// cursors must keep one slot free.
    #[error("all {depth:#x} descriptors are outstanding, so an address cannot tell how many are done")]
    Ambiguous {
        /// How many slots there are.
        depth: u32,
    },
}

impl DescriptorCircle {
    /// The table of `depth` descriptors of `stride` bytes at `first`. The stride is a power
    /// of two, and `first` a multiple of it.
    ///
    /// # Errors
    ///
    /// [`CircleError`].
    pub fn new(first: Iova, stride: ByteLength, depth: u32) -> Result<Self, CircleError> {
        let bytes = stride.as_u64();
        if !bytes.is_power_of_two() || !first.is_aligned_to(stride) {
            return Err(CircleError::Misaligned { first, stride: bytes });
        }
        let last = bytes.checked_mul(u64::from(depth)).and_then(|length| length.checked_sub(1));
        if last.and_then(|last| first.as_u64().checked_add(last)).is_none() {
            return Err(CircleError::Range { first, depth });
        }
        Ok(Self { first: first.as_u64(), stride_log2: bytes.trailing_zeros(), depth })
    }

    /// Where the descriptor in `slot` lies; `None` when there is no such slot.
    #[inline]
    #[must_use]
    pub fn address(&self, slot: u32) -> Option<Iova> {
        // No overflow: the whole table was checked.
        (slot < self.depth).then(|| Iova::new(self.first + (u64::from(slot) << self.stride_log2)))
    }

    /// Where the descriptor behind the one in `slot` lies: what its `next` field has. The
    /// last is followed by the first.
    #[inline]
    #[must_use]
    pub fn next_address(&self, slot: u32) -> Option<Iova> {
        if slot < self.depth { self.address(advance(slot, 1, self.depth)) } else { None }
    }

    /// The slot of the descriptor at `address`, which may come from a device.
    ///
    /// # Errors
    ///
    /// [`CompletedError::Outside`], [`CompletedError::Misaligned`].
    #[inline]
    pub fn slot(&self, address: Iova) -> Result<u32, CompletedError> {
        let first = Iova::new(self.first);
        let outside = CompletedError::Outside { address, first };
        let offset = address.as_u64().checked_sub(self.first).ok_or(outside)?;
        let slot = u32::try_from(offset >> self.stride_log2).map_err(|_| outside)?;
        if slot >= self.depth {
            return Err(outside);
        }
        if offset & ((1 << self.stride_log2) - 1) != 0 {
            return Err(CompletedError::Misaligned { address });
        }
        Ok(slot)
    }

    /// How many outstanding descriptors are completed now that the device names the one at
    /// `completed` as its last. Zero when that is the one it named before, and for address
    /// zero, which a device has after a reset.
    ///
    /// The device completes in order. Changes nothing; consume that many then.
    ///
    /// # Errors
    ///
    /// [`CompletedError`].
    #[inline]
    pub fn newly_completed<K: IndexKind>(
        &self,
        cursors: &Cursors<K>,
        completed: Iova,
    ) -> Result<u32, CompletedError> {
        if completed == Iova::new(0) && self.first != 0 {
            return Ok(0);
        }
        if cursors.depth() != self.depth {
            return Err(CompletedError::WrongRing { depth: cursors.depth(), table: self.depth });
        }
        let slot = self.slot(completed)?;
        let outstanding = cursors.outstanding();
        if outstanding >= self.depth {
            return Err(CompletedError::Ambiguous { depth: self.depth });
        }
        // No overflow: both slots are below the depth.
        let oldest = cursors.consumer_slot();
        let ahead = if slot >= oldest { slot - oldest } else { slot + (self.depth - oldest) };
        if ahead < outstanding {
            Ok(ahead + 1)
        } else if ahead == self.depth - 1 {
            Ok(0)
        } else {
            Err(CompletedError::NotIssued { address: completed, slot, outstanding })
        }
    }

    /// How many descriptors lie one behind the other from `slot` on, before the end of a
    /// page and of the table, that one included: what an engine may fetch at once. It is
    /// counted from the address, so the table need not begin on a page. Zero when there is
    /// no such slot.
    #[must_use]
    pub fn adjacent(&self, slot: u32, page: ByteLength) -> u32 {
        let Some(address) = self.address(slot) else { return 0 };
        let in_page = until_boundary(address, page).as_u64() >> self.stride_log2;
        u32::try_from(in_page).unwrap_or(u32::MAX).max(1).min(self.depth - slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{FreeRunning, Run};

    const FIRST: u64 = 0x1_0000;

    fn circle(depth: u32) -> DescriptorCircle {
        DescriptorCircle::new(Iova::new(FIRST), ByteLength::new(64), depth).unwrap()
    }

    fn ring(depth: u32) -> Cursors<FreeRunning<u16>> {
        Cursors::with_usable(depth, depth - 1).unwrap()
    }

    #[test]
    fn descriptors_are_linked_to_a_circle() {
        let circle = circle(4);
        assert_eq!(circle.address(3), Some(Iova::new(FIRST + 192)));
        assert_eq!(circle.next_address(2), Some(Iova::new(FIRST + 192)));
        assert_eq!(circle.next_address(3), Some(Iova::new(FIRST)));
        assert_eq!(
            (circle.address(4), circle.next_address(4), circle.next_address(u32::MAX)),
            (None, None, None)
        );
    }

    #[test]
    fn the_address_of_the_last_completed_tells_how_many_are_new() {
        for depth in [2u32, 3, 5, 256, 65_536] {
            let (circle, mut cursors) = (circle(depth), ring(depth));
            let mut total = 0u64;
            for round in 0..200u32 {
                let count = 1 + round * 7 % cursors.usable();
                assert!(cursors.produce(count).is_some());
                assert_eq!(
                    circle.newly_completed(&cursors, last(&circle, &cursors, 0)),
                    Ok(0),
                    "not issued yet"
                );
                cursors.issue();
                let mut rest = count;
                while rest > 0 {
                    let done = 1 + round % rest;
                    let address = last(&circle, &cursors, done);
                    assert_eq!(circle.newly_completed(&cursors, address), Ok(done));
                    assert_eq!(cursors.consume(done).map(Run::count), Some(done));
                    assert_eq!(
                        circle.newly_completed(&cursors, address),
                        Ok(0),
                        "the same again is nothing new"
                    );
                    rest -= done;
                }
                total += u64::from(count);
                assert_eq!(cursors.consumed(), total);
            }
        }
    }

    /// The address that a device names after `done` more descriptors.
    fn last(circle: &DescriptorCircle, cursors: &Cursors<FreeRunning<u16>>, done: u32) -> Iova {
        let depth = u64::from(cursors.depth());
        let slot = (cursors.consumed() + u64::from(done) + depth - 1) % depth;
        circle.address(u32::try_from(slot).unwrap()).unwrap()
    }

    #[test]
    fn completions_that_cannot_be_are_refused() {
        let (circle, mut cursors) = (circle(8), ring(8));
        assert!(cursors.produce(5).is_some());
        assert_eq!(
            circle.newly_completed(&cursors, Iova::new(FIRST)),
            Err(CompletedError::NotIssued { address: Iova::new(FIRST), slot: 0, outstanding: 0 })
        );
        cursors.issue();
        assert_eq!(circle.newly_completed(&cursors, Iova::new(0)), Ok(0));
        let first = Iova::new(FIRST);
        for address in [FIRST - 64, FIRST + 8 * 64, !63, 64] {
            let address = Iova::new(address);
            assert_eq!(
                circle.newly_completed(&cursors, address),
                Err(CompletedError::Outside { address, first })
            );
        }
        let address = Iova::new(FIRST + 32);
        assert_eq!(circle.newly_completed(&cursors, address), Err(CompletedError::Misaligned { address }));
        for slot in [5, 6] {
            let address = circle.address(slot).unwrap();
            assert_eq!(
                circle.newly_completed(&cursors, address),
                Err(CompletedError::NotIssued { address, slot, outstanding: 5 })
            );
        }
        assert_eq!(circle.newly_completed(&cursors, circle.address(4).unwrap()), Ok(5));
    }

    #[test]
    fn a_ring_without_a_free_slot_cannot_be_told() {
        let circle = circle(4);
        let mut cursors = Cursors::<FreeRunning<u16>>::new(4).unwrap();
        assert!(cursors.produce(4).is_some());
        cursors.issue();
        assert_eq!(
            circle.newly_completed(&cursors, circle.address(3).unwrap()),
            Err(CompletedError::Ambiguous { depth: 4 })
        );
        assert_eq!(
            circle.newly_completed(&ring(5), circle.address(3).unwrap()),
            Err(CompletedError::WrongRing { depth: 5, table: 4 })
        );
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let new =
            |first, stride, depth| DescriptorCircle::new(Iova::new(first), ByteLength::new(stride), depth);
        assert!(matches!(new(0x20, 64, 4), Err(CircleError::Misaligned { .. })));
        assert!(matches!(new(0x30, 48, 4), Err(CircleError::Misaligned { .. })));
        assert!(matches!(new(0x40, 64, 0), Err(CircleError::Range { .. })));
        assert!(matches!(new(u64::MAX - 127, 64, 3), Err(CircleError::Range { .. })));
        let end = new(u64::MAX - 127, 64, 2).unwrap();
        assert_eq!(end.slot(end.address(1).unwrap()), Ok(1));
        assert_eq!(end.next_address(1), end.address(0));
    }

    #[test]
    fn a_run_of_adjacent_descriptors_ends_with_the_page() {
        for offset in (0..4096).step_by(32) {
            let base = 0x10_0000 + offset;
            for depth in [1, 2, 127, 128, 129, 400] {
                let table = DescriptorCircle::new(Iova::new(base), ByteLength::new(32), depth).unwrap();
                for slot in 0..depth {
                    let count = table.adjacent(slot, ByteLength::SIZE_4K);
                    let begin = base + u64::from(slot) * 32;
                    let end = begin + u64::from(count) * 32;
                    assert!(count >= 1 && slot + count <= depth);
                    assert_eq!(
                        begin / 4096,
                        (end - 1) / 4096,
                        "run of {count} from {begin:#x} leaves its page"
                    );
                    let stops = slot + count == depth || end % 4096 == 0;
                    assert!(stops, "run of {count} from {begin:#x} could be longer");
                }
                assert_eq!(table.adjacent(depth, ByteLength::SIZE_4K), 0);
            }
        }
    }
}
