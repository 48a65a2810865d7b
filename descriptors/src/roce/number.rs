//! Numbers that name things on the wire: packets, messages, queue pairs, partitions, keys.

use core::fmt;

use crate::serial::Serial24;

macro_rules! sequence {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(Serial24);

        impl $name {
            /// The largest number; zero follows it.
            pub const MAX: Self = Self(Serial24::MAX);

            /// The number with the low 24 bits of `value`.
            #[inline]
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(Serial24::new(value))
            }

            /// The numeric value, below 2^24.
            #[inline]
            #[must_use]
            pub const fn value(self) -> u32 {
                self.0.value()
            }

            /// The number `count` steps later.
            #[inline]
            #[must_use]
            pub const fn after(self, count: u32) -> Self {
                Self(self.0.after(count))
            }

            /// The next number.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                self.after(1)
            }

            /// The number before this one.
            #[inline]
            #[must_use]
            pub const fn previous(self) -> Self {
                self.after(u32::MAX)
            }

            /// How many steps lead from `earlier` to `self`: 0 to 2^24 less one. It is for
            /// the caller to know which is the earlier.
            #[inline]
            #[must_use]
            pub const fn distance_from(self, earlier: Self) -> u32 {
                self.0.distance_from(earlier.0)
            }

            /// The way from `other` to `self`, the shorter one: positive when `self` is
            /// later, -2^23 to 2^23 less one.
            #[inline]
            #[must_use]
            pub const fn offset_from(self, other: Self) -> i32 {
                (self.distance_from(other) << 8).cast_signed() >> 8
            }

            /// Whether `self` is later than `other`, by less than 2^23.
            #[inline]
            #[must_use]
            pub const fn is_after(self, other: Self) -> bool {
                self.0.is_after(other.0)
            }

            /// The 64-bit count that shows `self` in 24 bits and is nearest to `near`.
            #[inline]
            #[must_use]
            pub const fn extend(self, near: u64) -> u64 {
                self.0.extend(near)
            }

            /// The three bytes of the wire.
            #[inline]
            #[must_use]
            pub const fn to_be_bytes(self) -> [u8; 3] {
                let [_, high, middle, low] = self.value().to_be_bytes();
                [high, middle, low]
            }

            /// The number in three bytes of the wire.
            #[inline]
            #[must_use]
            pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
                Self::new(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.value())
            }
        }
    };
}

sequence! {
    /// A packet sequence number. It wraps and has no order; it has distances.
    Psn
}

sequence! {
    /// A message sequence number: how many requests a responder has finished.
    Msn
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management: not used on Ethernet.
    pub const SUBNET_MANAGEMENT: Self = Self(0);
    /// General services, where connection management is spoken.
    pub const GENERAL_SERVICES: Self = Self(1);
    /// All receivers of a multicast group.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// The number, or `None` when it needs more than 24 bits.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MULTICAST.0 { Some(Self(value)) } else { None }
    }

    /// The number with the low 24 bits of `value`.
    #[inline]
    #[must_use]
    pub const fn from_low_bits(value: u32) -> Self {
        Self(value & Self::MULTICAST.0)
    }

    /// The numeric value, below 2^24.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The three bytes of the wire.
    #[inline]
    #[must_use]
    pub const fn to_be_bytes(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }

    /// The number in three bytes of the wire.
    #[inline]
    #[must_use]
    pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    /// The UDP source port that Linux gives to the packets of a connection, 0xc000 to
    /// 0xffff: switches spread flows by it, receivers ignore it.
    #[must_use]
    pub const fn source_port(local: Self, remote: Self) -> u16 {
        let mut flow = local.0 as u64 * remote.0 as u64;
        flow ^= flow >> 20;
        flow ^= flow >> 40;
        // A flow label has 20 bits, a port of this range 14.
        let port = (flow & 0x3fff) ^ ((flow >> 14) & 0x3f);
        // CAST: 14 bits.
        #[expect(clippy::cast_possible_truncation, reason = "14 bits")]
        let port = port as u16;
        port | 0xc000
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A partition key: 15 bits that must be equal, and whether the holder is a full member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The partition that all belong to, as a full member. RoCE knows no other.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether the holder may speak to limited members too.
    #[inline]
    #[must_use]
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether a packet with key `other` may reach a holder of this key: the same partition,
    /// and not two limited members.
    #[inline]
    #[must_use]
    pub const fn admits(self, other: Self) -> bool {
        let partition = self.0 & 0x7fff;
        partition != 0 && partition == other.0 & 0x7fff && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for PKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// A queue key: what a datagram must carry to be received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// The key of [`Qpn::GENERAL_SERVICES`].
    pub const GENERAL_SERVICES: Self = Self(0x8001_0000);

    /// Whether a work request that names this key sends its queue pair's own key instead:
    /// the top bit is for privileged senders.
    #[inline]
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A key that gives a peer access to a memory region ("R_Key").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

impl fmt::Display for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
