//! Numbers that wrap: 16, 24 and 32 bits wide.
//!
//! A device counts modulo a power of two, so which of two numbers is later is only known
//! when they are less than half the period apart. Comparing them with `<`, or taking the
//! maximum, works until the first wrap. These types have no order; they have a distance,
//! and [`extend`](SerialU16::extend) turns one into a 64-bit count next to a known one.

use core::fmt;

macro_rules! serial {
    ($(#[$doc:meta])* $name:ident, $bits:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// How many bits the number has.
            pub const BITS: u32 = $bits;
            /// The largest number; zero follows it.
            pub const MAX: Self = Self(u32::MAX >> (32 - $bits));

            /// The number with the low bits of `value`.
            #[inline]
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & Self::MAX.0)
            }

            /// The number that a 64-bit count shows in this width.
            #[inline]
            #[must_use]
            pub const fn truncate(count: u64) -> Self {
                // CAST: keeps the low bits by intention.
                #[expect(clippy::cast_possible_truncation, reason = "keeps the low bits")]
                Self::new(count as u32)
            }

            /// The numeric value.
            #[inline]
            #[must_use]
            pub const fn value(self) -> u32 {
                self.0
            }

            /// The number `count` steps later.
            #[inline]
            #[must_use]
            pub const fn after(self, count: u32) -> Self {
                Self::new(self.0.wrapping_add(count))
            }

            /// How many steps lead from `earlier` to `self`: 0 to the period less one. It
            /// is for the caller to know which is the earlier.
            #[inline]
            #[must_use]
            pub const fn distance_from(self, earlier: Self) -> u32 {
                self.0.wrapping_sub(earlier.0) & Self::MAX.0
            }

            /// Whether `self` is later than `other`: by less than half the period.
            #[inline]
            #[must_use]
            pub const fn is_after(self, other: Self) -> bool {
                let distance = self.distance_from(other);
                distance != 0 && distance <= Self::MAX.0 / 2
            }

            /// The 64-bit count that shows `self` in this width and is nearest to `near`,
            /// a count that is less than half a period away. Below zero it wraps.
            #[inline]
            #[must_use]
            pub const fn extend(self, near: u64) -> u64 {
                let ahead = self.distance_from(Self::truncate(near)) as u64;
                if ahead <= (Self::MAX.0 / 2) as u64 {
                    near.wrapping_add(ahead)
                } else {
                    near.wrapping_add(ahead).wrapping_sub(Self::MAX.0 as u64 + 1)
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

serial! {
    /// A 16-bit number: DMACOUNT of I/OAT, queue indices.
    SerialU16, 16
}

serial! {
    /// A 24-bit number: packet and message sequence numbers of RDMA, CQ consumer indices.
    Serial24, 24
}

serial! {
    /// A 32-bit number.
    SerialU32, 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_over_the_wrap_count_like_any_others() {
        let mut number = Serial24::new(Serial24::MAX.value() - 3);
        let first = number;
        let mut count = u64::from(number.value());
        for step in 1..=16 {
            let next = number.after(1);
            assert!(next.is_after(number) && !number.is_after(next));
            assert_eq!(next.distance_from(first), step);
            count = next.extend(count);
            assert_eq!(count, u64::from(first.value()) + u64::from(step));
            number = next;
        }
        assert_eq!(number.value(), 12);
        let mut wide = SerialU32::new(u32::MAX - 3);
        let mut narrow = SerialU16::new(0xffff - 3);
        for _ in 0..16 {
            (wide, narrow) = (wide.after(1), narrow.after(1));
        }
        assert_eq!((wide.value(), narrow.value()), (12, 12));
    }

    #[test]
    fn a_24_bit_number_is_extended_against_a_64_bit_count() {
        let near = (7 << 24) + 0xff_fffe;
        assert_eq!(Serial24::new(0xff_fffe).extend(near), near);
        assert_eq!(Serial24::new(1).extend(near), near + 3);
        assert_eq!(Serial24::new(0xff_fff0).extend(near), near - 14);
        assert_eq!(Serial24::truncate(near + 0x7f_ffff).extend(near), near + 0x7f_ffff);
        assert_eq!(Serial24::truncate(near + 0x80_0000).extend(near), near - 0x80_0000);
        assert_eq!(Serial24::new(0xff_ffff).extend((8 << 24) + 2), (8 << 24) - 1);
    }

    #[test]
    fn a_number_equal_to_another_or_half_a_period_away_is_not_after_it() {
        let zero = SerialU16::new(0);
        assert!(!zero.is_after(zero));
        assert!(SerialU16::new(0x7fff).is_after(zero));
        assert!(!SerialU16::new(0x8000).is_after(zero));
        assert!(!SerialU16::new(0xffff).is_after(zero) && zero.is_after(SerialU16::new(0xffff)));
    }

    proptest! {
        #[test]
        fn extension_undoes_truncation_within_half_a_period(near in (1u64 << 40)..(1 << 50), step in -8_388_608i64..8_388_607) {
            let count = near.wrapping_add_signed(step);
            prop_assert_eq!(Serial24::truncate(count).extend(near), count);
            let small = near.wrapping_add_signed(step / 512);
            prop_assert_eq!(SerialU16::truncate(small).extend(near), small);
            prop_assert_eq!(SerialU32::truncate(count).extend(near), count);
        }
    }
}
