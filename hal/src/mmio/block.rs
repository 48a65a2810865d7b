//! A declared set of registers at a place in a BAR.

// UNSAFETY: volatile accesses at offsets that the declarations prove to be inside.
#![expect(unsafe_code, reason = "volatile access at offsets proven by the declarations")]

use core::marker::PhantomData;

use super::{
    Doorbell, ReadSideEffects, Readable, Register, RegisterSet, RegisterValue, Split, Width, Writable,
};
use crate::bar::{Bar, BarError};
use crate::memory::SharedMemory;

/// A set of registers, mapped or trapped, each access checked for a device that is gone.
#[derive(Clone, Debug)]
pub struct RegisterBlock<S> {
    bar: Bar,
    base: u64,
    // Invariant in `S`, as `Register` is.
    _set: PhantomData<fn(S) -> S>,
}

impl<S: RegisterSet> RegisterBlock<S> {
    pub(crate) fn new(bar: Bar, base: u64) -> Result<Self, BarError> {
        let size = bar.info().size.as_u64();
        // CAST: `usize` is at most 64 bits wide.
        if base.checked_add(S::LENGTH as u64).is_none_or(|end| end > size) {
            return Err(BarError::SetOutOfBounds {
                bar: bar.info().index,
                set: S::NAME,
                offset: base,
                // CAST: as above.
                length: S::LENGTH as u64,
                size,
            });
        }
        if !base.is_multiple_of(8) {
            return Err(BarError::Misaligned { bar: bar.info().index, offset: base, width: Width::U64 });
        }
        Ok(Self { bar, base, _set: PhantomData })
    }

    /// The BAR that the set lies in.
    #[must_use]
    pub fn bar(&self) -> &Bar {
        &self.bar
    }

    /// Reads a register whose reads have no effect on the device.
    ///
    /// # Errors
    ///
    /// As [`Bar::read`], which see for a device that is gone.
    #[inline]
    pub fn read<T: RegisterValue, A: Readable>(&self, register: Register<S, T, A>) -> Result<T, BarError> {
        self.read_at(register.offset(), register.split())
    }

    /// Reads a register whose reads change the device's state.
    ///
    /// # Errors
    ///
    /// As [`Bar::read`].
    #[inline]
    pub fn take<T: RegisterValue>(
        &mut self,
        register: Register<S, T, ReadSideEffects>,
    ) -> Result<T, BarError> {
        self.read_at(register.offset(), register.split())
    }

    /// Writes a register.
    ///
    /// # Errors
    ///
    /// As [`Bar::write`].
    #[inline]
    pub fn write<T: RegisterValue, A: Writable>(
        &self,
        register: Register<S, T, A>,
        value: T,
    ) -> Result<(), BarError> {
        let offset = self.offset(register.offset());
        let Some(split) = register.split() else { return self.bar.write(offset, value) };
        // CAST: keeps the low word by intention.
        #[expect(clippy::cast_possible_truncation, reason = "splits a 64-bit value")]
        let (low, high) = (value.to_u64() as u32, (value.to_u64() >> 32) as u32);
        match split {
            Split::LowHigh => {
                self.bar.write(offset, low)?;
                self.bar.write(offset + 4, high)
            }
            Split::HighLow => {
                self.bar.write(offset + 4, high)?;
                self.bar.write(offset, low)
            }
        }
    }

    /// The fast path to a register that is rung: resolved once, with no look-up on use.
    ///
    /// # Errors
    ///
    /// [`BarError::Forbidden`] when the BAR is not writable; a split register is refused
    /// as [`BarError::Misaligned`], since a doorbell is one access.
    pub fn doorbell<T: RegisterValue, A: Writable>(
        &self,
        register: Register<S, T, A>,
    ) -> Result<Doorbell<T>, BarError> {
        let bar = self.bar.info().index;
        let offset = self.offset(register.offset());
        if register.split().is_some() {
            return Err(BarError::Misaligned { bar, offset, width: T::WIDTH });
        }
        if !self.bar.permissions().write {
            return Err(BarError::Forbidden { bar, access: "writable" });
        }
        Ok(match self.bar.area(offset, T::WIDTH) {
            Some((area, inside)) => {
                let word = area.memory.slice(inside, T::WIDTH.bytes()).map_err(|_| BarError::Misaligned {
                    bar,
                    offset,
                    width: T::WIDTH,
                })?;
                Doorbell::mapped(word, area.kick.clone()).ok_or(BarError::Misaligned {
                    bar,
                    offset,
                    width: T::WIDTH,
                })?
            }
            None => Doorbell::trapped(self.bar.clone(), offset),
        })
    }

    /// The set as plain memory, when all of it is mapped and may be read and written.
    #[must_use]
    pub fn mapped(&self) -> Option<MappedBlock<S>> {
        let permissions = self.bar.permissions();
        // CAST: `usize` is at most 64 bits wide.
        let (area, inside) = self.bar.area_of(self.base, S::LENGTH as u64)?;
        if !permissions.read || !permissions.write || area.kick.is_some() {
            return None;
        }
        MappedBlock::new(&area.memory.slice(inside, S::LENGTH).ok()?)
    }

    #[inline]
    fn read_at<T: RegisterValue>(&self, offset: usize, split: Option<Split>) -> Result<T, BarError> {
        let offset = self.offset(offset);
        let Some(split) = split else { return self.bar.read(offset) };
        let (low, high): (u32, u32) = match split {
            Split::LowHigh => {
                let low = self.bar.read(offset)?;
                (low, self.bar.read(offset + 4)?)
            }
            Split::HighLow => {
                let high = self.bar.read(offset + 4)?;
                (self.bar.read(offset)?, high)
            }
        };
        Ok(T::from_u64(u64::from(high) << 32 | u64::from(low)))
    }

    #[inline]
    fn offset(&self, register: usize) -> u64 {
        // CAST: `usize` is at most 64 bits wide. The sum was checked in `new`.
        self.base + register as u64
    }
}

/// A set of registers in mapped memory; every access is one instruction.
///
/// A device that is gone answers all ones and swallows writes here; ask
/// [`Bar::liveness`] where that matters.
///
/// # Invariants
///
/// `first` is aligned to 8 and begins `S::LENGTH` bytes inside `memory`.
#[derive(Clone, Debug)]
pub struct MappedBlock<S> {
    first: *mut u8,
    memory: SharedMemory,
    // Invariant in `S`, as `Register` is.
    _set: PhantomData<fn(S) -> S>,
}

// SAFETY: the pointer is into `memory`, which is `Send`, and is used for volatile access.
unsafe impl<S> Send for MappedBlock<S> {}
// SAFETY: accesses are single volatile words; registers tolerate concurrent access.
unsafe impl<S> Sync for MappedBlock<S> {}

impl<S: RegisterSet> MappedBlock<S> {
    /// The set at the beginning of `memory`; `None` when it does not fit or is misaligned.
    #[must_use]
    pub fn new(memory: &SharedMemory) -> Option<Self> {
        let first = memory.checked_pointer(0, S::LENGTH).ok()?;
        // INVARIANT: range checked by `checked_pointer`, alignment here.
        first.addr().is_multiple_of(8).then(|| Self { first, memory: memory.clone(), _set: PhantomData })
    }

    /// The memory that the set lies in.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Reads a register whose reads have no effect on the device.
    #[inline(always)]
    #[must_use]
    pub fn read<T: RegisterValue, A: Readable>(&self, register: Register<S, T, A>) -> T {
        let address = self.address(&register);
        match register.split() {
            // SAFETY: inside the set and aligned, by the declaration and the type invariant.
            None => unsafe { crate::bar::read_volatile(address) },
            Some(split) => read_split(address, split),
        }
    }

    /// Reads a register whose reads change the device's state.
    #[inline(always)]
    pub fn take<T: RegisterValue>(&mut self, register: Register<S, T, ReadSideEffects>) -> T {
        let address = self.address(&register);
        match register.split() {
            // SAFETY: as in `read`.
            None => unsafe { crate::bar::read_volatile(address) },
            Some(split) => read_split(address, split),
        }
    }

    /// Writes a register.
    #[inline(always)]
    pub fn write<T: RegisterValue, A: Writable>(&self, register: Register<S, T, A>, value: T) {
        let address = self.address(&register);
        match register.split() {
            // SAFETY: as in `read`.
            None => unsafe { crate::bar::write_volatile(address, value) },
            Some(split) => write_split(address, split, value.to_u64()),
        }
    }

    #[inline(always)]
    fn address<T: RegisterValue, A>(&self, register: &Register<S, T, A>) -> *mut u8 {
        // SAFETY: `offset + width <= S::LENGTH`, asserted where the register was declared, for
        // the same `S`: neither type converts into that of another set.
        unsafe { self.first.add(register.offset()) }
    }
}

#[inline(always)]
fn read_split<T: RegisterValue>(address: *mut u8, split: Split) -> T {
    // SAFETY: a split register is 8 bytes at an address aligned to 4, so the upper word is
    // inside the set as well.
    let upper = unsafe { address.add(4) };
    // SAFETY: as above.
    let read = |word: *mut u8| u64::from(unsafe { crate::bar::read_volatile::<u32>(word) });
    let (low, high) = match split {
        Split::LowHigh => {
            let low = read(address);
            (low, read(upper))
        }
        Split::HighLow => {
            let high = read(upper);
            (read(address), high)
        }
    };
    T::from_u64(high << 32 | low)
}

#[inline(always)]
fn write_split(address: *mut u8, split: Split, value: u64) {
    // CAST: keeps the words by intention.
    #[expect(clippy::cast_possible_truncation, reason = "splits a 64-bit value")]
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: as in `read_split`.
    let upper = unsafe { address.add(4) };
    // SAFETY: as in `read_split`.
    let write = |word: *mut u8, half: u32| unsafe { crate::bar::write_volatile::<u32>(word, half) };
    match split {
        Split::LowHigh => {
            write(address, low);
            write(upper, high);
        }
        Split::HighLow => {
            write(upper, high);
            write(address, low);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::ByteLength;
    use crate::memory::Pages;

    crate::register_block! {
        /// A set for the tests.
        pub(crate) struct TestRegisters(0x20) {
            /// Split, at an address that is only aligned to 4.
            SPLIT: u64 @ 0x04, ReadWrite, split HighLow;
            /// A byte.
            BYTE: u8 @ 0x0d, ReadWrite;
            /// Changes when read.
            POP: u16 @ 0x1e, ReadSideEffects;
        }
    }

    #[test]
    fn mapped_registers_are_plain_little_endian_memory() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let mut block = MappedBlock::<TestRegisters>::new(&memory.slice(0x40, 0x20).unwrap()).unwrap();
        block.write(TestRegisters::SPLIT, 0x1122_3344_5566_7788);
        block.write(TestRegisters::BYTE, 0xab);
        assert_eq!(memory.read_value::<u32>(0x48), Ok(0x1122_3344));
        assert_eq!(memory.read_value::<u8>(0x4d), Ok(0xab));
        assert_eq!(block.read(TestRegisters::SPLIT), 0x1122_3344_5566_7788);
        memory.write_value(0x5e, &0x0102u16).unwrap();
        assert_eq!(block.take(TestRegisters::POP), 0x0102);
        assert!(MappedBlock::<TestRegisters>::new(&memory.slice(0, 0x1f).unwrap()).is_none());
        assert!(MappedBlock::<TestRegisters>::new(&memory.slice(4, 0x40).unwrap()).is_none());
        assert_eq!(TestRegisters::REGISTERS.len(), 3);
        assert_eq!(TestRegisters::REGISTERS[0].split, Some(Split::HighLow));
    }
}
