//! Sizes that a device gives less one.

use core::fmt;

use crate::ring::RingIndex;

/// A size as a register or command has it: zero means one entry.
///
/// The only way between the raw value and the size, so that nobody subtracts one on one
/// path and forgets it on the other. Sizes are at least 1, and the largest raw value does
/// not overflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZeroBased<I>(I);

impl<I: RingIndex> ZeroBased<I> {
    /// The size behind a raw value that a device gave.
    #[must_use]
    pub fn from_raw(raw: I) -> Self {
        Self(raw)
    }

    /// The size of `count` entries; `None` for zero and for what the width cannot say.
    #[must_use]
    pub fn from_count(count: u64) -> Option<Self> {
        let raw = I::truncate(count.checked_sub(1)?);
        (raw.to_u64() == count - 1).then_some(Self(raw))
    }

    /// What goes into the register or command.
    #[must_use]
    pub fn raw(self) -> I {
        self.0
    }

    /// How many entries: one more than the raw value.
    ///
    /// A 64-bit raw value of all ones gives 2^64 - 1 entries.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0.to_u64().saturating_add(1)
    }
}

impl<I: RingIndex> fmt::Debug for ZeroBased<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZeroBased({} entries)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_raw_values_differ_by_one_over_the_whole_width() {
        assert_eq!(ZeroBased::<u16>::from_raw(0xffff).count(), 65_536);
        assert_eq!(ZeroBased::<u16>::from_count(65_536).unwrap().raw(), 0xffff);
        assert_eq!(ZeroBased::<u16>::from_count(65_537), None);
        assert_eq!(ZeroBased::<u16>::from_count(0), None);
        assert_eq!(ZeroBased::<u16>::from_count(1).unwrap().raw(), 0);
        assert_eq!(ZeroBased::<u8>::from_count(257), None);
        for raw in 0..=u8::MAX {
            let size = ZeroBased::from_raw(raw);
            assert_eq!(size.count(), u64::from(raw) + 1);
            assert_eq!(ZeroBased::from_count(size.count()), Some(size));
        }
    }
}
