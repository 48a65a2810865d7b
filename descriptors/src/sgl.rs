//! Scatter-gather lists as NVMe has them: for memory that page pointers cannot describe.
//!
//! A command carries one descriptor. For contiguous data it is the data itself; for more
//! pieces it points to a segment of descriptors in memory, one for each piece. See NVMe
//! Base 2.0 §4.1.2 "Scatter Gather List".

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::memory::Slots;

use crate::nvme::{SglDescriptor, SglIdentifier};
use crate::sg::SgEntry;

/// Memory for the descriptors of one command, visible to the device at `iova`.
#[derive(Debug)]
pub struct SglSegment {
    iova: Iova,
    descriptors: Slots<SglDescriptor>,
}

/// What a controller expects of its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SglFormat {
    /// Addresses and lengths are multiples of 4.
    pub whole_dwords: bool,
    /// The longest transfer.
    pub max_transfer: Option<ByteLength>,
}

/// Why memory cannot be described. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SglError {
    /// There are no bytes, or an entry has none.
    #[error("entry {index} has no bytes")]
    Empty {
        /// The number of the entry; zero also for a list without entries.
        index: usize,
    },
    /// The controller wants whole dwords; copy the data to an aligned place.
    #[error(
        "entry {index}, {length:#x} bytes at iova {iova}, is not whole dwords, which the controller wants"
    )]
    Unaligned {
        /// The number of the entry.
        index: usize,
        /// Where it begins.
        iova: Iova,
        /// Its size.
        length: u64,
    },
    /// One descriptor says at most 2^32 - 1 bytes; split the command.
    #[error("entry {index} has {length:#x} bytes, a descriptor says 32 bits")]
    EntryTooLong {
        /// The number of the entry.
        index: usize,
        /// Its size.
        length: u64,
    },
    /// More bytes than the controller moves in one command; split the command.
    #[error("a transfer of {length:#x} bytes is above the limit of {limit:#x}")]
    TooLong {
        /// The size of the data.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// More pieces than the segment holds; split the command.
    #[error("{needed} pieces need as many descriptors, the segment holds {available}")]
    SegmentTooShort {
        /// How many pieces there are.
        needed: usize,
        /// How many descriptors fit.
        available: usize,
    },
}

impl SglSegment {
    /// The memory that the device sees at `iova` and this process as `descriptors`.
    #[must_use]
    pub fn new(iova: Iova, descriptors: Slots<SglDescriptor>) -> Self {
        Self { iova, descriptors }
    }

    /// How many pieces it can describe.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.descriptors.count()
    }
}

impl SglFormat {
    /// The descriptor for the bytes of `entries`, in order. The segment is filled when
    /// there is more than one; the doorbell's fence orders it before the command.
    ///
    /// # Errors
    ///
    /// [`SglError`]; nothing was written.
    pub fn build(&self, entries: &[SgEntry], segment: &SglSegment) -> Result<SglDescriptor, SglError> {
        self.check(entries)?;
        if let [entry] = entries {
            return Ok(data_block(entry));
        }
        let (needed, available) = (entries.len(), segment.capacity());
        // 16 bytes each; the length of the segment has 32 bits.
        let length = u32::try_from(needed.saturating_mul(size_of::<SglDescriptor>()));
        let (true, Ok(length)) = (needed <= available, length) else {
            return Err(SglError::SegmentTooShort { needed, available });
        };
        for (slot, entry) in entries.iter().enumerate() {
            segment.descriptors.write(slot, &data_block(entry));
        }
        Ok(SglDescriptor::new(SglIdentifier::LAST_SEGMENT, segment.iova.as_u64(), length))
    }

    fn check(&self, entries: &[SgEntry]) -> Result<(), SglError> {
        if entries.is_empty() {
            return Err(SglError::Empty { index: 0 });
        }
        let mut total = 0u64;
        for (index, entry) in entries.iter().enumerate() {
            let (iova, length) = (entry.iova, entry.length.as_u64());
            if length == 0 {
                return Err(SglError::Empty { index });
            }
            if u32::try_from(length).is_err() {
                return Err(SglError::EntryTooLong { index, length });
            }
            if self.whole_dwords && !(iova.as_u64() | length).is_multiple_of(4) {
                return Err(SglError::Unaligned { index, iova, length });
            }
            total = total.saturating_add(length);
        }
        match self.max_transfer {
            Some(limit) if total > limit.as_u64() => {
                Err(SglError::TooLong { length: total, limit: limit.as_u64() })
            }
            _ => Ok(()),
        }
    }
}

/// A descriptor of data whose length was checked.
fn data_block(entry: &SgEntry) -> SglDescriptor {
    let length = u32::try_from(entry.length.as_u64()).unwrap_or(u32::MAX);
    SglDescriptor::new(SglIdentifier::DATA_BLOCK, entry.iova.as_u64(), length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_hal::memory::{Pages, SharedMemory};

    const FORMAT: SglFormat = SglFormat { whole_dwords: true, max_transfer: Some(ByteLength::SIZE_2M) };

    fn segment() -> (SharedMemory, SglSegment) {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let segment = SglSegment::new(Iova::new(0x8000), memory.slots(0, 4).unwrap());
        (memory, segment)
    }

    fn entry(iova: u64, length: u64) -> SgEntry {
        SgEntry { iova: Iova::new(iova), length: ByteLength::new(length) }
    }

    #[test]
    fn contiguous_data_needs_no_segment() {
        let (memory, segment) = segment();
        let built = FORMAT.build(&[entry(0x1_0004, 12)], &segment).unwrap();
        assert_eq!(built, SglDescriptor::new(SglIdentifier::DATA_BLOCK, 0x1_0004, 12));
        assert_eq!(memory.read_value::<u64>(0), Ok(0));
    }

    #[test]
    fn pieces_with_holes_become_one_segment_in_order() {
        let (memory, segment) = segment();
        let built = FORMAT.build(&[entry(0x1000, 2000), entry(0x9000, 2096)], &segment).unwrap();
        assert_eq!(built, SglDescriptor::new(SglIdentifier::LAST_SEGMENT, 0x8000, 32));
        assert_eq!(memory.read_value::<[u64; 2]>(0), Ok([0x1000, 2000]));
        assert_eq!(memory.read_value::<[u64; 2]>(16), Ok([0x9000, 2096]));
        assert_eq!(memory.read_value::<[u64; 2]>(32), Ok([0, 0]));
    }

    #[test]
    fn what_cannot_be_described_is_refused_and_writes_nothing() {
        let (memory, segment) = segment();
        assert_eq!(FORMAT.build(&[], &segment), Err(SglError::Empty { index: 0 }));
        let holes = [entry(0x1000, 4), entry(0x2000, 0)];
        assert_eq!(FORMAT.build(&holes, &segment), Err(SglError::Empty { index: 1 }));
        let odd = FORMAT.build(&[entry(0x1000, 4), entry(0x2002, 4)], &segment);
        assert!(matches!(odd, Err(SglError::Unaligned { index: 1, .. })));
        let any = SglFormat { whole_dwords: false, max_transfer: None };
        assert!(any.build(&[entry(0x1001, 3)], &segment).is_ok());
        assert!(matches!(any.build(&[entry(0, 1 << 32)], &segment), Err(SglError::EntryTooLong { .. })));
        let long = [entry(0x1000, 0x20_0000), entry(0x80_0000, 4)];
        assert_eq!(
            FORMAT.build(&long, &segment),
            Err(SglError::TooLong { length: 0x20_0004, limit: 0x20_0000 })
        );
        let many: Vec<_> = (0..5).map(|n| entry(n * 0x1000, 4)).collect();
        let refused = FORMAT.build(&many, &segment);
        assert_eq!(refused, Err(SglError::SegmentTooShort { needed: 5, available: 4 }));
        assert!(FORMAT.build(&many[..4], &segment).is_ok());
        assert_eq!(memory.read_value::<u64>(64), Ok(0));
    }
}
