//! What the base address registers of a function decode, from configuration space.
//!
//! See PCIe 6.0 §7.5.1.2.1 "Base Address Registers".

use super::{BarInfo, BarKind};
use crate::address::{BarIndex, ByteLength};
use crate::config::{
    Command, ConfigError, ConfigSpace, gone_or, read_command, read_header_type, register, write_command,
};

/// The expansion ROM of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RomInfo {
    /// How much it decodes, a power of two.
    pub size: ByteLength,
    /// The bus address it is programmed with, zero when unassigned.
    pub address: u64,
    /// Whether it answers, together with memory space in Command.
    pub enabled: bool,
}

/// What all base address registers of a function decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BarLayout {
    bars: [Option<BarInfo>; BarIndex::COUNT],
    rom: Option<RomInfo>,
}

impl BarLayout {
    /// The BAR with a number; `None` when there is none or it is the upper half of another.
    #[must_use]
    pub fn bar(&self, index: BarIndex) -> Option<BarInfo> {
        // PANIC: an index is below `COUNT` by its invariant.
        self.bars[index.as_usize()]
    }

    /// The BARs in order.
    pub fn bars(&self) -> impl Iterator<Item = BarInfo> + '_ {
        self.bars.iter().copied().flatten()
    }

    pub(crate) fn set(&mut self, bar: BarInfo) {
        // PANIC: an index is below `COUNT` by its invariant.
        self.bars[bar.index.as_usize()] = Some(bar);
    }

    pub(crate) fn set_rom(&mut self, rom: RomInfo) {
        self.rom = Some(rom);
    }

    /// The expansion ROM.
    #[must_use]
    pub fn rom(&self) -> Option<RomInfo> {
        self.rom
    }
}

/// A base address register as it is programmed, its size unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRegister {
    /// Its number; for a 64-bit register that of the lower half.
    pub index: BarIndex,
    /// What it decodes. A register that does not exist reads as 32-bit memory at zero.
    pub kind: BarKind,
    /// Whether reads have no side effects and writes may be merged.
    pub prefetchable: bool,
    /// The bus address it is programmed with.
    pub address: u64,
    raw: u32,
}

/// The base address registers of a function as they are programmed. One that takes two
/// slots is one item. Nothing is written. A fault is the last item.
///
/// # Errors
///
/// Those of the access; the items have [`ConfigError::Malformed`] for a reserved type and
/// for a 64-bit register without room for its upper half.
pub fn bar_registers(config: &dyn ConfigSpace) -> Result<BarRegisters<'_>, ConfigError> {
    let slots = read_header_type(config)?.layout().bar_count();
    Ok(BarRegisters { config, next: 0, slots })
}

/// The iterator of [`bar_registers`].
pub struct BarRegisters<'a> {
    config: &'a dyn ConfigSpace,
    next: u8,
    slots: u8,
}

impl Iterator for BarRegisters<'_> {
    type Item = Result<BarRegister, ConfigError>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = BarIndex::new(self.next).filter(|index| index.as_u8() < self.slots)?;
        let item = self.decode(index);
        self.next = match &item {
            Ok(BarRegister { kind: BarKind::Memory64, .. }) => self.next + 2,
            Ok(_) => self.next + 1,
            Err(_) => self.slots,
        };
        Some(item)
    }
}

impl BarRegisters<'_> {
    fn decode(&self, index: BarIndex) -> Result<BarRegister, ConfigError> {
        let offset = slot(index.as_u8());
        let raw = self.config.read32(offset)?;
        let malformed = |what| Err(gone_or(self.config, offset, what));
        let prefetchable = raw & (IO_SPACE | PREFETCHABLE) == PREFETCHABLE;
        let (kind, address) = match (raw & IO_SPACE != 0, (raw >> 1) & 3) {
            (true, _) => (BarKind::Io, u64::from(raw & IO_ADDRESS)),
            // Type 1 meant "below 1 MiB" once; it decodes like a 32-bit register.
            (false, 0 | 1) => (BarKind::Memory32, u64::from(raw & MEMORY_ADDRESS)),
            (false, 2) if index.as_u8() + 1 < self.slots => {
                let upper = self.config.read32(offset + 4)?;
                (BarKind::Memory64, u64::from(upper) << 32 | u64::from(raw & MEMORY_ADDRESS))
            }
            (false, 2) => return malformed("a 64-bit BAR is in the last slot"),
            (false, _) => return malformed("a BAR has a reserved type"),
        };
        Ok(BarRegister { index, kind, prefetchable, address, raw })
    }
}

/// Finds out what the function decodes by the sizing protocol: all ones are written to each
/// register, and what it keeps says how much it decodes. I/O and memory decoding are off
/// meanwhile, and **every register is put back**, also when this fails. The function must
/// not be in use.
///
/// # Errors
///
/// - [`ConfigError::Malformed`] for a register that does not decode a power of two, or is
///   of a reserved type, or lacks its upper half;
/// - [`ConfigError::Ignored`] when a register does not go back to what it was;
/// - [`ConfigError::DeviceGone`]; those of the access.
pub fn size_bars(config: &dyn ConfigSpace) -> Result<BarLayout, ConfigError> {
    let rom_register = read_header_type(config)?.layout().rom_register();
    let mut decoding = DecodingOff::new(config)?;
    let mut layout = BarLayout::default();
    for register in bar_registers(config)? {
        let register = register?;
        // PANIC: an index is below `COUNT` by its invariant.
        layout.bars[register.index.as_usize()] = size_bar(config, &register)?;
    }
    if let Some(offset) = rom_register {
        layout.rom = size_rom(config, offset)?;
    }
    decoding.restore()?;
    Ok(layout)
}

fn size_bar(config: &dyn ConfigSpace, register: &BarRegister) -> Result<Option<BarInfo>, ConfigError> {
    let offset = slot(register.index.as_u8());
    let low = probe(config, offset, register.raw, u32::MAX)?;
    let type_mask = if register.kind == BarKind::Io { !IO_ADDRESS } else { !MEMORY_ADDRESS };
    if low & type_mask != register.raw & type_mask {
        return Err(gone_or(config, offset, "the type of a BAR changes when it is sized"));
    }
    let mask = match register.kind {
        BarKind::Memory32 => u64::from(low & MEMORY_ADDRESS) | UPPER_ONES,
        // A function may decode 16 bits of I/O space; the upper half is zero then.
        BarKind::Io if low >> 16 == 0 => u64::from(low & IO_ADDRESS) | UPPER_ONES | 0xffff_0000,
        BarKind::Io => u64::from(low & IO_ADDRESS) | UPPER_ONES,
        BarKind::Memory64 => {
            // CAST: the upper half of the address.
            let programmed = (register.address >> 32) as u32;
            let high = probe(config, offset + 4, programmed, u32::MAX)?;
            u64::from(high) << 32 | u64::from(low & MEMORY_ADDRESS)
        }
    };
    let exists = match register.kind {
        BarKind::Memory32 => low & MEMORY_ADDRESS != 0,
        BarKind::Io => low & IO_ADDRESS != 0,
        BarKind::Memory64 => true,
    };
    if !exists {
        return Ok(None);
    }
    let size = size_of_mask(mask)
        .ok_or(ConfigError::Malformed { offset, what: "a BAR does not decode a power of two" })?;
    Ok(Some(BarInfo {
        index: register.index,
        kind: register.kind,
        prefetchable: register.prefetchable,
        size,
        address: register.address,
    }))
}

fn size_rom(config: &dyn ConfigSpace, offset: u16) -> Result<Option<RomInfo>, ConfigError> {
    let raw = config.read32(offset)?;
    // Bit 0 enables the ROM: it stays clear while the address is all ones.
    let low = probe(config, offset, raw, ROM_ADDRESS)?;
    if low == u32::MAX {
        return Err(gone_or(config, offset, "the ROM register is all ones"));
    }
    if low & ROM_ADDRESS == 0 {
        return Ok(None);
    }
    let size = size_of_mask(u64::from(low & ROM_ADDRESS) | UPPER_ONES)
        .ok_or(ConfigError::Malformed { offset, what: "the ROM does not decode a power of two" })?;
    Ok(Some(RomInfo { size, address: u64::from(raw & ROM_ADDRESS), enabled: raw & 1 != 0 }))
}

/// The size that an address mask stands for: its bits are ones from the size up.
fn size_of_mask(mask: u64) -> Option<ByteLength> {
    let size = 1u64.checked_shl(mask.trailing_zeros())?;
    (mask == !(size - 1)).then(|| ByteLength::new(size))
}

/// What a register keeps of `pattern`. It is put back to `programmed` in any case.
fn probe(config: &dyn ConfigSpace, offset: u16, programmed: u32, pattern: u32) -> Result<u32, ConfigError> {
    let mut guard = Programmed { config, offset, value: Some(programmed) };
    config.write32(offset, pattern)?;
    let kept = config.read32(offset)?;
    guard.restore()?;
    Ok(kept)
}

/// Puts a register back when it is dropped.
struct Programmed<'a> {
    config: &'a dyn ConfigSpace,
    offset: u16,
    value: Option<u32>,
}

impl Programmed<'_> {
    fn restore(&mut self) -> Result<(), ConfigError> {
        let Some(value) = self.value.take() else { return Ok(()) };
        self.config.write32(self.offset, value)?;
        match self.config.read32(self.offset)? {
            now if now == value => Ok(()),
            u32::MAX => Err(gone_or(self.config, self.offset, "a BAR is all ones after it was sized")),
            _ => Err(ConfigError::Ignored { offset: self.offset, register: "a base address" }),
        }
    }
}

impl Drop for Programmed<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            log::error!("the register at {:#x} could not be put back: {error}", self.offset);
        }
    }
}

/// Keeps a function from decoding, and restores its Command register when it is dropped.
struct DecodingOff<'a> {
    config: &'a dyn ConfigSpace,
    command: Option<Command>,
}

impl<'a> DecodingOff<'a> {
    fn new(config: &'a dyn ConfigSpace) -> Result<Self, ConfigError> {
        let command = read_command(config)?;
        let mut off = command;
        off.set_io_space(false);
        off.set_memory_space(false);
        // The guard exists before the write, so that a write that fails half is undone.
        let guard = Self { config, command: (off != command).then_some(command) };
        if guard.command.is_some() {
            write_command(config, off)?;
        }
        Ok(guard)
    }

    fn restore(&mut self) -> Result<(), ConfigError> {
        self.command.take().map_or(Ok(()), |command| write_command(self.config, command))
    }
}

impl Drop for DecodingOff<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            log::error!("the Command register could not be put back: {error}");
        }
    }
}

fn slot(index: u8) -> u16 {
    register::BAR0 + 4 * u16::from(index)
}

const IO_SPACE: u32 = 1;
const PREFETCHABLE: u32 = 8;
const IO_ADDRESS: u32 = !0x3;
const MEMORY_ADDRESS: u32 = !0xf;
const ROM_ADDRESS: u32 = !0x7ff;
const UPPER_ONES: u64 = 0xffff_ffff_0000_0000;

#[cfg(test)]
mod tests;
