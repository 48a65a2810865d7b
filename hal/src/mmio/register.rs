//! Register declarations.

use core::fmt;
use core::marker::PhantomData;

use super::{RegisterValue, Width};

/// A set of registers declared with [`register_block!`](crate::register_block).
pub trait RegisterSet: 'static {
    /// How many bytes the set spans.
    const LENGTH: usize;
    /// Its name.
    const NAME: &'static str;
    /// Its registers in order, for tools that print them.
    const REGISTERS: &'static [RegisterInfo];
}

/// What a register's accesses do; for tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reading has no effect on the device.
    ReadPure,
    /// Reading changes the device's state.
    ReadSideEffects,
    /// Readable without effect, and writable.
    ReadWrite,
    /// Readable without effect; writing a one clears the bit.
    ReadWriteClear,
    /// Only writable.
    WriteOnly,
}

/// One register of a set; for tools.
#[derive(Clone, Copy, Debug)]
pub struct RegisterInfo {
    /// Its name in the data sheet.
    pub name: &'static str,
    /// Its offset in the set, in bytes.
    pub offset: usize,
    /// Its width.
    pub width: Width,
    /// What accesses do.
    pub access: AccessKind,
    /// Whether a 64-bit register must be accessed as two 32-bit words.
    pub split: Option<Split>,
}

/// The order of the two 32-bit accesses that make up a 64-bit one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Low word first.
    LowHigh,
    /// High word first.
    HighLow,
}

/// One register: `T` wide, in the set `S`, with the access kind `A`.
pub struct Register<S, T, A> {
    offset: usize,
    name: &'static str,
    split: Option<Split>,
    // Invariant in `S`: sets that are subtypes of each other may differ in length.
    _set: PhantomData<fn(S) -> S>,
    _value: PhantomData<fn() -> T>,
    _access: PhantomData<fn() -> A>,
}

impl<S: RegisterSet, T: RegisterValue, A> Register<S, T, A> {
    /// Declares a register. A wrong offset does not compile when the result is a constant,
    /// as [`register_block!`](crate::register_block) makes it.
    ///
    /// # Panics
    ///
    /// When the register is misaligned or not inside its set, or is split and not 64 bits
    /// wide.
    #[must_use]
    pub const fn new(name: &'static str, offset: usize, split: Option<Split>) -> Self {
        let bytes = T::WIDTH.bytes();
        let alignment = if split.is_some() { 4 } else { bytes };
        assert!(offset.is_multiple_of(alignment), "a register is naturally aligned");
        let inside = offset <= S::LENGTH && bytes <= S::LENGTH - offset;
        assert!(inside, "a register lies inside its set");
        assert!(split.is_none() || bytes == 8, "only a 64-bit register is split");
        Self { offset, name, split, _set: PhantomData, _value: PhantomData, _access: PhantomData }
    }

    /// Its offset in the set, in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Its name in the data sheet.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How a 64-bit register must be split.
    #[inline(always)]
    #[must_use]
    pub const fn split(&self) -> Option<Split> {
        self.split
    }
}

impl<S, T, A> Clone for Register<S, T, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, T, A> Copy for Register<S, T, A> {}

impl<S, T, A> fmt::Debug for Register<S, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:#x}", self.name, self.offset)
    }
}

/// Access kind: reading has no effect on the device; not writable.
#[derive(Debug)]
pub enum ReadPure {}

/// Access kind: reading changes the device's state, so it needs `&mut`; not writable.
#[derive(Debug)]
pub enum ReadSideEffects {}

/// Access kind: readable without effect, and writable.
#[derive(Debug)]
pub enum ReadWrite {}

/// Access kind: readable without effect; writing a one clears the bit, so it must not be
/// updated by read-modify-write.
#[derive(Debug)]
pub enum ReadWriteClear {}

/// Access kind: only writable.
#[derive(Debug)]
pub enum WriteOnly {}

/// An access kind whose reads have no effect on the device.
pub trait Readable {}
/// An access kind that can be written.
pub trait Writable {}

impl Readable for ReadPure {}
impl Readable for ReadWrite {}
impl Readable for ReadWriteClear {}
impl Writable for ReadWrite {}
impl Writable for ReadWriteClear {}
impl Writable for WriteOnly {}

/// Declares a set of registers: name, width, offset, access kind and prose in one place.
///
/// ```
/// vdk_hal::register_block! {
///     /// The registers of a timer.
///     pub struct TimerRegisters(0x20) {
///         /// What time it is, in ticks.
///         COUNT: u64 @ 0x00, ReadPure, split LowHigh;
///         /// Bit 0 starts the timer.
///         CONTROL: u32 @ 0x08, ReadWrite;
///         /// Which comparators matched; write ones to clear.
///         MATCHED: u8 @ 0x10, ReadWriteClear;
///     }
/// }
/// assert_eq!(TimerRegisters::CONTROL.offset(), 8);
/// ```
///
/// A register outside the set or off its natural alignment does not compile.
#[macro_export]
macro_rules! register_block {
    (
        $(#[$outer:meta])*
        $visibility:vis struct $set:ident($length:expr) {
            $(
                $(#[$inner:meta])*
                $name:ident: $type:ident @ $offset:expr, $access:ident $(, split $split:ident)?;
            )*
        }
    ) => {
        $(#[$outer])*
        #[derive(Debug)]
        $visibility enum $set {}

        impl $crate::mmio::RegisterSet for $set {
            const LENGTH: usize = $length;
            const NAME: &'static str = stringify!($set);
            const REGISTERS: &'static [$crate::mmio::RegisterInfo] = &[
                $($crate::mmio::RegisterInfo {
                    name: stringify!($name),
                    offset: $offset,
                    width: <$type as $crate::mmio::RegisterValue>::WIDTH,
                    access: $crate::mmio::AccessKind::$access,
                    split: $crate::register_block!(@split $($split)?),
                },)*
            ];
        }

        impl $set {
            $(
                $(#[$inner])*
                $visibility const $name: $crate::mmio::Register<Self, $type, $crate::mmio::$access> =
                    $crate::mmio::Register::new(
                        stringify!($name),
                        $offset,
                        $crate::register_block!(@split $($split)?),
                    );
            )*
        }

        // A constant that nothing uses is not evaluated, and a wrong one would pass.
        const _: () = {
            $(assert!(<$set>::$name.offset() < <$set as $crate::mmio::RegisterSet>::LENGTH);)*
        };
    };
    (@split) => { None };
    (@split $split:ident) => { Some($crate::mmio::Split::$split) };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::register_block! {
        /// A set for the tests.
        struct Small(0x10) {
            /// Its only register.
            WORD: u32 @ 0x00, ReadWrite;
        }
    }

    #[test]
    #[should_panic(expected = "a register lies inside its set")]
    fn an_offset_whose_end_wraps_around_is_outside() {
        let _ = Register::<Small, u64, ReadWrite>::new("WRAPS", usize::MAX - 7, None);
    }

    #[test]
    #[should_panic(expected = "a register lies inside its set")]
    fn a_register_that_begins_at_the_end_is_outside() {
        let _ = Register::<Small, u8, ReadWrite>::new("END", Small::WORD.offset() + 0x10, None);
    }
}
