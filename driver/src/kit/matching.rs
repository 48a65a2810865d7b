//! Match strings: which functions a personality takes, by registers of configuration space.
//!
//! A match string is a list of alternatives, separated by spaces. Each is `value` or
//! `value&mask` in hex, with or without `0x`, and hits when
//! `(register & mask) == (value & mask)`. The value is the whole 32-bit register, so an ID
//! is written with the device first: `0x20218086` is device 2021 of vendor 8086.

use core::fmt;

use thiserror::Error;

use crate::hal::function::PciIdentity;

/// What a match string is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatchKey {
    /// Device and vendor ID, register 0x00.
    Primary,
    /// Subsystem ID and subsystem vendor ID, register 0x2c.
    Secondary,
    /// Either of the two. Only here does a hit of register 0x00 raise the score.
    Either,
    /// Class code and revision, register 0x08. The revision does not count unless the mask
    /// says so.
    Class,
}

impl MatchKey {
    /// The mask of an alternative that names none.
    #[must_use]
    pub const fn default_mask(self) -> u32 {
        match self {
            Self::Primary | Self::Secondary | Self::Either => 0xffff_ffff,
            Self::Class => 0xffff_ff00,
        }
    }

    /// The registers that are compared, in order.
    #[must_use]
    pub const fn registers(self) -> &'static [u8] {
        match self {
            Self::Primary => &[PRIMARY],
            Self::Secondary => &[SECONDARY],
            Self::Either => &[PRIMARY, SECONDARY],
            Self::Class => &[CLASS],
        }
    }
}

impl fmt::Display for MatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::Either => "either",
            Self::Class => "class",
        })
    }
}

/// One alternative of a match string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alternative {
    /// What the register should hold.
    pub value: u32,
    /// Which bits of it count.
    pub mask: u32,
}

impl Alternative {
    /// Whether a register value hits.
    #[must_use]
    pub const fn hits(self, register: u32) -> bool {
        register & self.mask == self.value & self.mask
    }
}

/// A match string that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatchString {
    // INVARIANT: `next_alternative` succeeds up to the end, and finds at least one.
    text: &'static str,
}

impl MatchString {
    /// Checks a text.
    ///
    /// # Errors
    ///
    /// [`ParseMatchError`], with the position of the first byte that is wrong.
    pub const fn new(text: &'static str) -> Result<Self, ParseMatchError> {
        let mut position = 0;
        let mut count = 0usize;
        loop {
            match next_alternative(text.as_bytes(), position) {
                Err(error) => return Err(error),
                Ok(None) if count == 0 => return Err(ParseMatchError::Empty),
                Ok(None) => return Ok(Self { text }),
                Ok(Some((_, next))) => {
                    position = next;
                    count += 1;
                }
            }
        }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.text
    }

    /// The alternatives in order. Those without a mask get that of `key`.
    pub fn alternatives(self, key: MatchKey) -> impl Iterator<Item = Alternative> {
        let mut position = 0;
        core::iter::from_fn(move || {
            // An error ends the list; by the invariant there is none.
            let (raw, next) = next_alternative(self.text.as_bytes(), position).ok().flatten()?;
            position = next;
            Some(Alternative { value: raw.value, mask: raw.mask.unwrap_or(key.default_mask()) })
        })
    }
}

/// Which functions match: every key that is given has to (AND), by any of the alternatives
/// of its string (OR).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PciMatch {
    primary: Option<MatchString>,
    secondary: Option<MatchString>,
    either: Option<MatchString>,
    class: Option<MatchString>,
}

impl PciMatch {
    /// No key yet. A match without keys is refused at registration.
    #[must_use]
    pub const fn new() -> Self {
        Self { primary: None, secondary: None, either: None, class: None }
    }

    /// Adds or replaces the string of a key.
    #[must_use]
    pub const fn with(self, key: MatchKey, string: MatchString) -> Self {
        let mut this = self;
        match key {
            MatchKey::Primary => this.primary = Some(string),
            MatchKey::Secondary => this.secondary = Some(string),
            MatchKey::Either => this.either = Some(string),
            MatchKey::Class => this.class = Some(string),
        }
        this
    }

    /// Matches device and vendor ID. For constants: a malformed text does not compile.
    ///
    /// ```compile_fail
    /// # use vdk_driver::kit::PciMatch;
    /// const MATCH: PciMatch = PciMatch::new().primary("0x20218086&");
    /// ```
    ///
    /// # Panics
    ///
    /// When the text is malformed and the call is not in a constant; use
    /// [`MatchString::new`] and [`with`](Self::with) there.
    #[must_use]
    pub const fn primary(self, text: &'static str) -> Self {
        self.with(MatchKey::Primary, checked(text))
    }

    /// Matches the subsystem; otherwise as [`primary`](Self::primary).
    ///
    /// # Panics
    ///
    /// As [`primary`](Self::primary).
    #[must_use]
    pub const fn secondary(self, text: &'static str) -> Self {
        self.with(MatchKey::Secondary, checked(text))
    }

    /// Matches the device or the subsystem; otherwise as [`primary`](Self::primary).
    ///
    /// # Panics
    ///
    /// As [`primary`](Self::primary).
    #[must_use]
    pub const fn either(self, text: &'static str) -> Self {
        self.with(MatchKey::Either, checked(text))
    }

    /// Matches class code and revision; otherwise as [`primary`](Self::primary).
    ///
    /// # Panics
    ///
    /// As [`primary`](Self::primary).
    #[must_use]
    pub const fn class(self, text: &'static str) -> Self {
        self.with(MatchKey::Class, checked(text))
    }

    /// The keys that are given, with their strings.
    pub fn keys(self) -> impl Iterator<Item = (MatchKey, MatchString)> {
        [
            (MatchKey::Primary, self.primary),
            (MatchKey::Secondary, self.secondary),
            (MatchKey::Either, self.either),
            (MatchKey::Class, self.class),
        ]
        .into_iter()
        .filter_map(|(key, string)| Some((key, string?)))
    }

    /// Compares with a function.
    ///
    /// # Errors
    ///
    /// [`Miss`] of the first key that does not match.
    pub fn evaluate(self, identity: &PciIdentity) -> Result<Hit, Miss> {
        let mut hit = Hit { by_primary_of_either: false, mask_bits: 0 };
        for (key, string) in self.keys() {
            let found = key.registers().iter().find_map(|&register| {
                let value = register_value(identity, register);
                let mask = string.alternatives(key).filter(|a| a.hits(value)).map(|a| a.mask.count_ones());
                // The most specific of the alternatives that hit speaks for the key.
                mask.max().map(|bits| (register, bits))
            });
            let Some((register, bits)) = found else {
                return Err(Miss { key, string, identity: *identity });
            };
            hit.by_primary_of_either |= key == MatchKey::Either && register == PRIMARY;
            hit.mask_bits += bits;
        }
        Ok(hit)
    }
}

/// How a match was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hit {
    /// Whether [`MatchKey::Either`] hit register 0x00.
    pub by_primary_of_either: bool,
    /// How many register bits had to be right, over all keys: how specific the match is.
    pub mask_bits: u32,
}

/// Why a function did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Miss {
    /// The key that failed.
    pub key: MatchKey,
    /// Its match string.
    pub string: MatchString,
    /// What it was compared with.
    pub identity: PciIdentity,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} wants \"{}\" but ", self.key, self.string.as_str())?;
        for (index, &register) in self.key.registers().iter().enumerate() {
            let and = if index == 0 { "" } else { " and " };
            let value = register_value(&self.identity, register);
            write!(f, "{and}register {register:#04x} is {value:#010x}")?;
        }
        Ok(())
    }
}

/// A text that is not a match string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseMatchError {
    /// There is no alternative in it.
    #[error("a match string needs at least one value such as 0x20218086")]
    Empty,
    /// A hex digit was expected.
    #[error("byte {position} of the match string: expected a hex digit")]
    ExpectedDigit {
        /// Where, in bytes from the start.
        position: usize,
    },
    /// A number is over, and neither a space nor `&` follows.
    #[error("byte {position} of the match string: expected a space, or & and a mask")]
    ExpectedEnd {
        /// Where, in bytes from the start.
        position: usize,
    },
    /// A number has more than 32 bits.
    #[error("byte {position} of the match string: the number does not fit in 32 bits")]
    TooLarge {
        /// Where the digit is that does not fit.
        position: usize,
    },
}

/// The value of a register that match strings know, zero for others.
#[must_use]
pub(crate) const fn register_value(identity: &PciIdentity, register: u8) -> u32 {
    let (high, low) = match register {
        PRIMARY => (identity.device, identity.vendor),
        SECONDARY => (identity.subsystem, identity.subsystem_vendor),
        CLASS => return (identity.class << 8) | identity.revision as u32,
        _ => return 0,
    };
    ((high as u32) << 16) | low as u32
}

const fn checked(text: &'static str) -> MatchString {
    match MatchString::new(text) {
        Ok(string) => string,
        // PANIC: in a constant this is the compile error that the documentation promises.
        Err(ParseMatchError::Empty) => panic!("the match string is empty"),
        Err(ParseMatchError::ExpectedDigit { .. }) => panic!("a hex digit is missing in the match string"),
        Err(ParseMatchError::ExpectedEnd { .. }) => panic!("a space is missing in the match string"),
        Err(ParseMatchError::TooLarge { .. }) => panic!("a number in the match string exceeds 32 bits"),
    }
}

#[derive(Clone, Copy)]
struct RawAlternative {
    value: u32,
    mask: Option<u32>,
}

type Parsed = Result<Option<(RawAlternative, usize)>, ParseMatchError>;

/// The alternative at or after `start`, and where the next one may begin.
const fn next_alternative(text: &[u8], start: usize) -> Parsed {
    let mut position = start;
    while position < text.len() && text[position] == b' ' {
        position += 1;
    }
    if position == text.len() {
        return Ok(None);
    }
    let (value, end) = match number(text, position) {
        Ok(parsed) => parsed,
        Err(error) => return Err(error),
    };
    if end == text.len() || text[end] == b' ' {
        return Ok(Some((RawAlternative { value, mask: None }, end)));
    }
    if text[end] != b'&' {
        return Err(ParseMatchError::ExpectedEnd { position: end });
    }
    match number(text, end + 1) {
        Err(error) => Err(error),
        Ok((mask, end)) if end == text.len() || text[end] == b' ' => {
            Ok(Some((RawAlternative { value, mask: Some(mask) }, end)))
        }
        Ok((_, end)) => Err(ParseMatchError::ExpectedEnd { position: end }),
    }
}

/// The hex number at `start`, and where it ends.
const fn number(text: &[u8], start: usize) -> Result<(u32, usize), ParseMatchError> {
    let mut position = start;
    if start + 1 < text.len() && text[start] == b'0' && (text[start + 1] | 0x20) == b'x' {
        position += 2;
    }
    let first = position;
    let mut value = 0u32;
    while position < text.len() {
        let digit = match text[position] {
            byte @ b'0'..=b'9' => byte - b'0',
            byte @ b'a'..=b'f' => byte - b'a' + 10,
            byte @ b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        if value >> 28 != 0 {
            return Err(ParseMatchError::TooLarge { position });
        }
        value = (value << 4) | digit as u32;
        position += 1;
    }
    if position == first {
        return Err(ParseMatchError::ExpectedDigit { position });
    }
    Ok((value, position))
}

const PRIMARY: u8 = 0x00;
const CLASS: u8 = 0x08;
const SECONDARY: u8 = 0x2c;
