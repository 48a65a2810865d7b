//! How many address bits a device drives.

use core::fmt;

use vdk_hal::address::{Iova, IovaRange};

/// The width of a device's DMA addresses, 1 to 64 bits. A device drops the bits above it,
/// or reads a meaning into them, so no address beyond it may be given to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressWidth(u8);

impl AddressWidth {
    /// All 64 bits.
    pub const FULL: Self = Self(64);

    /// A width of `bits`; `None` unless it is 1 to 64.
    #[must_use]
    pub const fn new(bits: u8) -> Option<Self> {
        if bits >= 1 && bits <= 64 { Some(Self(bits)) } else { None }
    }

    /// The number of bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The last address that the device reaches.
    #[must_use]
    pub const fn last(self) -> Iova {
        Iova::new(u64::MAX >> (64 - self.0))
    }

    /// Whether the device reaches every address of `range`.
    #[must_use]
    pub fn covers(self, range: IovaRange) -> bool {
        range.last() <= self.last()
    }
}

impl fmt::Display for AddressWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_address_of_each_width_is_all_ones() {
        assert_eq!(AddressWidth::new(28).unwrap().last(), Iova::new(0x0fff_ffff));
        assert_eq!(AddressWidth::new(1).unwrap().last(), Iova::new(1));
        assert_eq!(AddressWidth::FULL.last(), Iova::new(u64::MAX));
        assert_eq!((AddressWidth::new(0), AddressWidth::new(65)), (None, None));
    }
}
