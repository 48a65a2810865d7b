//! The MSI-X table and pending bits as registers in a BAR.

use vdk_hal::address::BarIndex;
use vdk_hal::mmio::Width;

use super::interrupts::{InterruptState, MASKED, Vector};
use super::profile::MsixProfile;
use crate::driver_fault::DriverFaultKind;

/// Which part of MSI-X an access of a BAR meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MsixPart {
    /// The table, with the offset in it.
    Table(u64),
    /// The pending bits, with the offset in them.
    Pending(u64),
}

impl MsixPart {
    /// The part at `offset` of `bar`, if there is one.
    pub(crate) fn find(profile: &MsixProfile, bar: BarIndex, offset: u64) -> Option<Self> {
        let inside = |(part, start): (BarIndex, u32), length: u64| {
            let distance = offset.checked_sub(u64::from(start))?;
            (part == bar && distance < length).then_some(distance)
        };
        let vectors = u64::from(profile.vectors);
        inside(profile.table, vectors * ENTRY)
            .map(Self::Table)
            .or_else(|| inside(profile.pending, vectors.div_ceil(64) * 8).map(Self::Pending))
    }

    /// Reads 32 or 64 bits.
    pub(crate) fn read(self, state: &InterruptState, width: Width) -> Result<u64, DriverFaultKind> {
        let words = words(width)?;
        let word = |offset: u64| match self {
            Self::Table(_) => table_word(state, offset),
            Self::Pending(_) => pending_word(state, offset),
        };
        let (Self::Table(start) | Self::Pending(start)) = self;
        let low = u64::from(word(start));
        Ok(if words == 2 { low | u64::from(word(start + 4)) << 32 } else { low })
    }

    /// Writes 32 or 64 bits.
    pub(crate) fn write(
        self,
        state: &mut InterruptState,
        width: Width,
        value: u64,
    ) -> Result<(), DriverFaultKind> {
        let words = words(width)?;
        let Self::Table(start) = self else { return Err(DriverFaultKind::ReadOnly) };
        for index in 0..words {
            // CAST: keeps one word by intention.
            #[expect(clippy::cast_possible_truncation, reason = "splits a 64-bit write")]
            let word = (value >> (32 * index)) as u32;
            write_table_word(state, start + 4 * index, word);
        }
        Ok(())
    }
}

fn words(width: Width) -> Result<u64, DriverFaultKind> {
    match width {
        Width::U32 => Ok(1),
        Width::U64 => Ok(2),
        Width::U8 | Width::U16 => Err(DriverFaultKind::Width(width)),
    }
}

fn table_word(state: &InterruptState, offset: u64) -> u32 {
    let Some(vector) = entry(state, offset) else { return 0 };
    // CAST: keeps the words by intention.
    #[expect(clippy::cast_possible_truncation, reason = "splits an address")]
    match offset % ENTRY {
        0 => vector.address as u32,
        4 => (vector.address >> 32) as u32,
        8 => vector.message,
        _ => vector.control,
    }
}

fn write_table_word(state: &mut InterruptState, offset: u64, word: u32) {
    let number = u16::try_from(offset / ENTRY).unwrap_or(u16::MAX);
    let Some(vector) = state.msix.vectors.get_mut(usize::from(number)) else { return };
    match offset % ENTRY {
        // The two lowest bits of a message address are zero.
        0 => vector.address = vector.address & !0xffff_ffff | u64::from(word & !0x3),
        4 => vector.address = vector.address & 0xffff_ffff | u64::from(word) << 32,
        8 => vector.message = word,
        // Bits 31:1 are reserved; devices keep what is written there, and so does this one.
        _ => state.write_vector_control(number, word),
    }
}

fn pending_word(state: &InterruptState, offset: u64) -> u32 {
    let first = usize::try_from(offset * 8).unwrap_or(usize::MAX);
    let vectors = state.msix.vectors.iter().skip(first).take(32).enumerate();
    vectors.fold(0, |all, (number, vector)| all | u32::from(vector.pending) << number)
}

fn entry(state: &InterruptState, offset: u64) -> Option<&Vector> {
    state.msix.vectors.get(usize::try_from(offset / ENTRY).ok()?)
}

/// The size of a table entry in bytes.
const ENTRY: u64 = 16;

const _: () = assert!(MASKED == 1, "the mask is bit 0 of Vector Control");
