//! Addresses and sizes as distinct types with checked arithmetic.
//!
//! An address that a device uses ([`Iova`]), an address of this process
//! ([`HostAddress`]) and a size ([`ByteLength`]) never convert into one another
//! silently: libvfn shipped swapped `(iova, length)` arguments for three years
//! because both were `uint64_t`.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// An I/O virtual address: what a device puts on the bus, translated by the IOMMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(u64);

impl Iova {
    /// Creates an address from its numeric value.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The numeric value.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `self + length`, or `None` past the end of the 64-bit space.
    #[must_use]
    pub const fn checked_add(self, length: ByteLength) -> Option<Self> {
        match self.0.checked_add(length.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// How far `self` lies above `base`, or `None` when it lies below.
    #[must_use]
    pub const fn checked_offset_from(self, base: Self) -> Option<ByteLength> {
        match self.0.checked_sub(base.0) {
            Some(distance) => Some(ByteLength(distance)),
            None => None,
        }
    }

    /// Whether the address is a multiple of `alignment`, a power of two in bytes.
    #[must_use]
    pub const fn is_aligned_to(self, alignment: ByteLength) -> bool {
        self.0 & alignment.0.wrapping_sub(1) == 0
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// An address in this process. It is a number for diagnosis and look-up, not a pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddress(u64);

impl HostAddress {
    /// Creates an address from its numeric value.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The numeric value.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `self + length`, or `None` past the end of the 64-bit space.
    #[must_use]
    pub const fn checked_add(self, length: ByteLength) -> Option<Self> {
        match self.0.checked_add(length.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// How far `self` lies above `base`, or `None` when it lies below.
    #[must_use]
    pub const fn checked_offset_from(self, base: Self) -> Option<ByteLength> {
        match self.0.checked_sub(base.0) {
            Some(distance) => Some(ByteLength(distance)),
            None => None,
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteLength(u64);

impl ByteLength {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// 4 KiB.
    pub const SIZE_4K: Self = Self(1 << 12);
    /// 2 MiB.
    pub const SIZE_2M: Self = Self(1 << 21);
    /// 1 GiB.
    pub const SIZE_1G: Self = Self(1 << 30);
    /// 4 GiB.
    pub const SIZE_4G: Self = Self(1 << 32);

    /// Creates a size from a count of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates a size from a count of bytes in memory.
    #[must_use]
    pub const fn from_usize(bytes: usize) -> Self {
        // CAST: `usize` is at most 64 bits wide on every supported target.
        Self(bytes as u64)
    }

    /// The count of bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The count of bytes as an index, or `None` where it does not fit `usize`.
    #[must_use]
    pub fn to_usize(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Whether the size is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `self + other`, or `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// `self - other`, or `None` when `other` is larger.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// The next multiple of `alignment` (a power of two), or `None` on overflow.
    #[must_use]
    pub const fn checked_align_up(self, alignment: Self) -> Option<Self> {
        let mask = alignment.0.wrapping_sub(1);
        match self.0.checked_add(mask) {
            Some(sum) => Some(Self(sum & !mask)),
            None => None,
        }
    }

    /// Whether the size is a multiple of `alignment`, a power of two.
    #[must_use]
    pub const fn is_aligned_to(self, alignment: Self) -> bool {
        self.0 & alignment.0.wrapping_sub(1) == 0
    }
}

impl fmt::Display for ByteLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (unit, name) in UNITS {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{} {name}", self.0 / unit);
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// A non-empty range of I/O virtual addresses, **both ends inclusive**, as the kernel
/// reports them, so that a range may reach the last byte of the 64-bit space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IovaRange {
    start: Iova,
    last: Iova,
}

impl IovaRange {
    /// The range of `length` bytes from `start`; `None` when it is empty or passes the end
    /// of the 64-bit space.
    #[must_use]
    pub const fn new(start: Iova, length: ByteLength) -> Option<Self> {
        if length.0 == 0 {
            return None;
        }
        match start.0.checked_add(length.0 - 1) {
            Some(last) => Some(Self { start, last: Iova(last) }),
            None => None,
        }
    }

    /// The range from `start` to `last`, both included; `None` when `last` lies below.
    #[must_use]
    pub const fn from_bounds(start: Iova, last: Iova) -> Option<Self> {
        if last.0 < start.0 { None } else { Some(Self { start, last }) }
    }

    /// The first address.
    #[must_use]
    pub const fn start(self) -> Iova {
        self.start
    }

    /// The last address, which belongs to the range.
    #[must_use]
    pub const fn last(self) -> Iova {
        self.last
    }

    /// The size. The full 64-bit space, which has 2^64 bytes, gives 2^64 - 1.
    #[must_use]
    pub const fn length(self) -> ByteLength {
        ByteLength((self.last.0 - self.start.0).saturating_add(1))
    }

    /// Whether `address` lies in the range.
    #[must_use]
    pub const fn contains(self, address: Iova) -> bool {
        self.start.0 <= address.0 && address.0 <= self.last.0
    }

    /// Whether every address of `other` lies in the range.
    #[must_use]
    pub const fn contains_range(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.last.0 <= self.last.0
    }

    /// The addresses in both ranges.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::from_bounds(self.start.max(other.start), self.last.min(other.last))
    }

    /// Whether the ranges share an address.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.intersection(other).is_some()
    }
}

impl fmt::Display for IovaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x}]", self.start.0, self.last.0)
    }
}

/// Where a function sits on PCI: segment (domain), bus, device and function number.
///
/// Firmware has 16 bits for a segment. Linux numbers domains that firmware does not know,
/// such as those behind Intel's VMD, from `0x10000` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    segment: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Bdf {
    /// Creates an address; `None` unless `device` is below 32 and `function` below 8.
    #[must_use]
    pub const fn new(segment: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        if device < 32 && function < 8 { Some(Self { segment, bus, device, function }) } else { None }
    }

    /// The segment group (PCI domain).
    #[must_use]
    pub const fn segment(self) -> u32 {
        self.segment
    }

    /// The bus number.
    #[must_use]
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// The device number, below 32.
    #[must_use]
    pub const fn device(self) -> u8 {
        self.device
    }

    /// The function number, below 8.
    #[must_use]
    pub const fn function(self) -> u8 {
        self.function
    }

    /// The 16-bit requester ID that the function puts into its transactions.
    ///
    /// See PCIe 6.0 §2.2.6.2 "Transaction Descriptor - Transaction ID Field".
    #[must_use]
    pub const fn requester_id(self) -> RequesterId {
        RequesterId(((self.bus as u16) << 8) | ((self.device as u16) << 3) | self.function as u16)
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, bus, device, function } = self;
        write!(f, "{segment:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a PCI address: write segment:bus:device.function in hex, such as 0000:01:00.0")]
pub struct ParseBdfError(String);

impl FromStr for Bdf {
    type Err = ParseBdfError;

    /// Reads `0000:01:00.0`, or `01:00.0` for segment 0. A segment has up to 8 digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_bdf(text).ok_or_else(|| ParseBdfError(text.to_owned()))
    }
}

fn parse_bdf(text: &str) -> Option<Bdf> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut fields = rest.rsplit(':');
    let device = hex_digits(fields.next()?, 2)?;
    let bus = hex_digits(fields.next()?, 2)?;
    let segment = match fields.next() {
        Some(field) => hex_digits(field, 8)?,
        None => 0,
    };
    if fields.next().is_some() {
        return None;
    }
    let function = hex_digits(function, 1)?;
    Bdf::new(segment, u8::try_from(bus).ok()?, u8::try_from(device).ok()?, u8::try_from(function).ok()?)
}

fn hex_digits(text: &str, most: usize) -> Option<u32> {
    let valid = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if valid { u32::from_str_radix(text, 16).ok() } else { None }
}

/// The requester ID of a transaction: bus, device and function number in 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequesterId(u16);

impl RequesterId {
    /// Creates an ID from its numeric value.
    #[must_use]
    pub const fn new(id: u16) -> Self {
        Self(id)
    }

    /// The numeric value.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        self.0
    }
}

impl fmt::Display for RequesterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{:x}", self.0 >> 8, (self.0 >> 3) & 0x1f, self.0 & 7)
    }
}

/// The number of a base address register, 0 to 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BarIndex(u8);

impl BarIndex {
    /// How many base address registers a type 0 header has.
    pub const COUNT: usize = 6;

    /// Creates an index; `None` above 5.
    #[must_use]
    pub const fn new(index: u8) -> Option<Self> {
        if index < 6 { Some(Self(index)) } else { None }
    }

    /// The number as an array index.
    #[must_use]
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }

    /// The number.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.0
    }

    /// All six indices in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..6).map(Self)
    }
}

impl fmt::Display for BarIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BAR{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bdf_text_round_trips_and_rejects_nonsense() {
        let bdf: Bdf = "0001:a0:1f.7".parse().unwrap();
        assert_eq!((bdf.segment(), bdf.bus(), bdf.device(), bdf.function()), (1, 0xa0, 0x1f, 7));
        assert_eq!(bdf.to_string(), "0001:a0:1f.7");
        assert_eq!("05:02.1".parse::<Bdf>().unwrap().to_string(), "0000:05:02.1");
        for bad in ["", "0:0", "00:20.0", "00:00.8", "0000:00:00.0x", "1:2:3:4.0", "+0:01.0", "g0:00.0"] {
            assert!(bad.parse::<Bdf>().is_err(), "{bad}");
        }
        assert!("000010000:00:00.0".parse::<Bdf>().is_err() && ":00:00.0".parse::<Bdf>().is_err());
        assert_eq!(bdf.requester_id().as_u16(), 0xa0ff);
    }

    #[test]
    fn a_segment_may_be_one_that_linux_numbers_itself() {
        let behind_vmd: Bdf = "10000:e1:00.0".parse().unwrap();
        assert_eq!((behind_vmd.segment(), behind_vmd.bus()), (0x10000, 0xe1));
        assert_eq!(behind_vmd.to_string(), "10000:e1:00.0");
        assert_eq!("ffffffff:00:00.0".parse::<Bdf>().unwrap().segment(), u32::MAX);
        assert_eq!("00000001:00:00.0".parse::<Bdf>().unwrap().to_string(), "0001:00:00.0");
    }

    #[test]
    fn ranges_have_inclusive_ends() {
        let top = IovaRange::new(Iova::new(u64::MAX - 4095), ByteLength::SIZE_4K).unwrap();
        assert_eq!(top.last(), Iova::new(u64::MAX));
        assert_eq!(top.length(), ByteLength::SIZE_4K);
        assert_eq!(IovaRange::new(Iova::new(u64::MAX - 4095), ByteLength::new(4097)), None);
        assert_eq!(IovaRange::new(Iova::new(0), ByteLength::ZERO), None);
        let whole = IovaRange::from_bounds(Iova::new(0), Iova::new(u64::MAX)).unwrap();
        assert_eq!(whole.length().as_u64(), u64::MAX);
        assert!(whole.contains_range(top));
        let below = IovaRange::new(Iova::new(0), ByteLength::SIZE_4K).unwrap();
        let next = IovaRange::new(Iova::new(4096), ByteLength::SIZE_4K).unwrap();
        assert!(!below.overlaps(next) && !below.contains(next.start()));
    }

    #[test]
    fn sizes_print_in_the_largest_exact_unit() {
        assert_eq!(ByteLength::new(64 << 20).to_string(), "64 MiB");
        assert_eq!(ByteLength::new(4097).to_string(), "4097 bytes");
        assert_eq!(ByteLength::new(u64::MAX).checked_align_up(ByteLength::SIZE_4K), None);
    }
}
