//! Widths of an access and the integers that have them.

use core::fmt;

/// The width of one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// One byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
}

impl Width {
    /// The width of `bytes` bytes, if there is one.
    #[must_use]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            1 => Some(Self::U8),
            2 => Some(Self::U16),
            4 => Some(Self::U32),
            8 => Some(Self::U64),
            _ => None,
        }
    }

    /// How many bytes the access has.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    /// All ones in this width: what a function that is gone answers.
    #[must_use]
    pub const fn all_ones(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-bit", self.bytes() * 8)
    }
}

/// An integer that a register can hold: `u8`, `u16`, `u32` or `u64`.
pub trait RegisterValue:
    Copy + Send + Sync + fmt::Debug + fmt::LowerHex + PartialEq + sealed::Sealed + 'static
{
    /// Its width.
    const WIDTH: Width;

    /// The value with zeros above.
    fn to_u64(self) -> u64;

    /// The low bits of `value`.
    fn from_u64(value: u64) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! register_values {
    ($($type:ty: $width:ident),*) => {$(
        impl sealed::Sealed for $type {}

        impl RegisterValue for $type {
            const WIDTH: Width = Width::$width;

            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }

            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, clippy::allow_attributes, reason = "u64 is among the types")]
            fn from_u64(value: u64) -> Self {
                // CAST: keeps the low bits by contract.
                value as $type
            }
        }
    )*};
}

register_values!(u8: U8, u16: U16, u32: U32, u64: U64);
