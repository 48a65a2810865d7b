//! Limits and times that the wire shows as codes: path MTU, timers, credits.

use core::fmt;
use core::time::Duration;

/// How many bytes of a message one packet carries at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// All, the smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The MTU with this code, 1 to 5.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The MTU of so many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::Mtu256),
            512 => Some(Self::Mtu512),
            1024 => Some(Self::Mtu1024),
            2048 => Some(Self::Mtu2048),
            4096 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The largest that fits into an Ethernet link of `mtu` bytes with all headers, as Linux
    /// computes it: 1024 on a link of 1500, 4096 on one of 4200.
    #[must_use]
    pub const fn for_link(mtu: u32) -> Option<Self> {
        match mtu.saturating_sub(LINK_OVERHEAD) {
            0..256 => None,
            256..512 => Some(Self::Mtu256),
            512..1024 => Some(Self::Mtu512),
            1024..2048 => Some(Self::Mtu1024),
            2048..4096 => Some(Self::Mtu2048),
            _ => Some(Self::Mtu4096),
        }
    }

    /// The code in connection management and in the verbs: 1 to 5.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// How many bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// How many packets a message of `length` bytes needs; one when it is empty.
    #[inline]
    #[must_use]
    pub const fn packets(self, length: u32) -> u32 {
        if length == 0 { 1 } else { length.div_ceil(self.bytes()) }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// The headers that an Ethernet payload has at most around the bytes of a message.
const LINK_OVERHEAD: u32 = 80;

macro_rules! five_bits {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u8);

        impl $name {
            /// The code, or `None` when it is above 31.
            #[inline]
            #[must_use]
            pub const fn new(code: u8) -> Option<Self> {
                if code < 32 { Some(Self(code)) } else { None }
            }

            /// The code with the low five bits of `bits`.
            #[inline]
            #[must_use]
            pub const fn from_low_bits(bits: u8) -> Self {
                Self(bits & 0x1f)
            }

            /// The code: 0 to 31.
            #[inline]
            #[must_use]
            pub const fn code(self) -> u8 {
                self.0
            }
        }
    };
}

five_bits! {
    /// How long a requester waits after "receiver not ready". Code 0 is the longest time,
    /// 655.36 ms.
    RnrTimer
}

impl Default for RnrTimer {
    /// Code 12: 0.64 ms.
    fn default() -> Self {
        Self(12)
    }
}

impl RnrTimer {
    /// The time to wait.
    #[inline]
    #[must_use]
    pub const fn delay(self) -> Duration {
        Duration::from_micros(RNR_HUNDREDTHS[self.0 as usize] as u64 * 10)
    }

    /// The shortest timer that is not shorter than `delay`; the longest there is when none
    /// is that long.
    #[must_use]
    pub fn at_least(delay: Duration) -> Self {
        let shortest = (1..32).map(Self).find(|timer| timer.delay() >= delay);
        shortest.unwrap_or(Self(0))
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = RNR_HUNDREDTHS[usize::from(self.0)];
        write!(f, "{}.{:02} ms", hundredths / 100, hundredths % 100)
    }
}

/// The delays of [`RnrTimer`] in hundredths of a millisecond.
const RNR_HUNDREDTHS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

five_bits! {
    /// How long a requester waits for an answer: 4.096 us times two to the power of the
    /// code. Code 0: it waits for ever.
    AckTimeout
}

impl AckTimeout {
    /// Waits for ever.
    pub const DISABLED: Self = Self(0);

    /// The time to wait; `None` when there is no limit.
    #[inline]
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_nanos(4096 << self.0)) }
    }
}

impl Default for AckTimeout {
    /// Code 14: 67.1 ms.
    fn default() -> Self {
        Self(14)
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(duration) => write!(f, "{duration:?}"),
            None => f.write_str("no limit"),
        }
    }
}

five_bits! {
    /// How many more messages a responder can take, in an acknowledgement.
    CreditCode
}

impl CreditCode {
    /// The responder does not count credits: send what you like.
    pub const UNLIMITED: Self = Self(31);

    /// The largest code that promises no more than `credits`.
    #[must_use]
    pub fn at_most(credits: u32) -> Self {
        let codes = CREDITS.iter().zip(0u8..);
        codes.take_while(|(promised, _)| **promised <= credits).last().map_or(Self(0), |(_, code)| Self(code))
    }

    /// How many; `None` when they are not counted.
    #[inline]
    #[must_use]
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }
}

impl fmt::Display for CreditCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.credits() {
            Some(credits) => write!(f, "{credits} credits"),
            None => f.write_str("unlimited credits"),
        }
    }
}

/// What the codes of [`CreditCode`] below 31 promise.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_mtu_has_a_code_and_bytes_and_fits_its_link() {
        for (index, mtu) in PathMtu::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(mtu.code()), index + 1);
            assert_eq!(mtu.bytes(), 256 << index);
            assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
            assert_eq!(PathMtu::from_bytes(mtu.bytes()), Some(mtu));
            assert_eq!(PathMtu::for_link(mtu.bytes() + 80), Some(mtu));
        }
        assert_eq!((PathMtu::from_code(0), PathMtu::from_code(6)), (None, None));
        assert_eq!(PathMtu::from_bytes(1500), None);
        assert_eq!(PathMtu::for_link(1500), Some(PathMtu::Mtu1024));
        assert_eq!(PathMtu::for_link(4200), Some(PathMtu::Mtu4096));
        assert_eq!((PathMtu::for_link(335), PathMtu::for_link(0)), (None, None));
        let mtu = PathMtu::Mtu1024;
        assert_eq!([0, 1, 1023, 1024, 1025, 2048].map(|length| mtu.packets(length)), [1, 1, 1, 1, 2, 2]);
        assert_eq!(PathMtu::Mtu256.packets(u32::MAX), 1 << 24);
    }

    #[test]
    fn receiver_not_ready_timers_double_every_other_code() {
        let millis = |code| RnrTimer::new(code).unwrap().delay().as_micros();
        assert_eq!(millis(0), 655_360);
        assert_eq!((millis(1), millis(12), millis(16)), (10, 640, 2560));
        // Linux has 61.41 here, which doubles nothing.
        assert_eq!(millis(25), 61_440);
        assert_eq!(millis(31), 491_520);
        for code in 6..32 {
            assert_eq!(millis(code), 2 * millis(code - 2), "{code}");
        }
        assert_eq!(RnrTimer::at_least(Duration::from_micros(641)).code(), 13);
        assert_eq!(RnrTimer::at_least(Duration::from_micros(640)).code(), 12);
        assert_eq!(RnrTimer::at_least(Duration::ZERO).code(), 1);
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)).code(), 0);
        assert_eq!(RnrTimer::new(32), None);
        assert_eq!(RnrTimer::default().to_string(), "0.64 ms");
    }

    #[test]
    fn acknowledgement_timeouts_are_powers_of_two() {
        assert_eq!(AckTimeout::DISABLED.duration(), None);
        let nanos = |code| AckTimeout::new(code).unwrap().duration().unwrap().as_nanos();
        assert_eq!(nanos(1), 8_192);
        assert_eq!(nanos(12), 16_777_216);
        assert_eq!(nanos(14), 67_108_864);
        assert_eq!(nanos(31), 4096 << 31);
        assert_eq!(AckTimeout::new(32), None);
    }

    #[test]
    fn credits_are_never_promised_beyond_what_is_there() {
        let credits = |code| CreditCode::new(code).unwrap().credits();
        assert_eq!(credits(0), Some(0));
        assert_eq!((credits(5), credits(6), credits(7)), (Some(6), Some(8), Some(12)));
        assert_eq!((credits(30), credits(31)), (Some(32768), None));
        for count in (0..5000).chain([32767, 32768, u32::MAX]) {
            let code = CreditCode::at_most(count);
            assert!(code.credits().unwrap() <= count);
            let above = CreditCode::new(code.code() + 1).unwrap().credits();
            assert!(above.is_none_or(|above| above > count), "{count}");
        }
    }
}
