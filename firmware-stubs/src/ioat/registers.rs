//! Which register an access means, and whether it may.

use vdk_hal::mmio::{AccessKind, RegisterInfo, Split, Width};

use crate::driver_fault::DriverFaultKind;

/// An access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Where the register lies in its set.
    pub(super) register: usize,
    /// Which part of it.
    pub(super) part: Part,
    kind: AccessKind,
}

/// Which part of a register an access means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Low,
    High,
}

/// Finds the register of `set` that an access means.
pub(super) fn find(set: &[RegisterInfo], offset: u64, width: Width) -> Result<Access, DriverFaultKind> {
    let offset = usize::try_from(offset).map_err(|_| DriverFaultKind::Hole)?;
    let inside = |info: &&RegisterInfo| (info.offset..info.offset + info.width.bytes()).contains(&offset);
    let info = set.iter().find(inside).ok_or(DriverFaultKind::Hole)?;
    let part = match (info.split, offset - info.offset) {
        (_, 0) if width == info.width => Part::Whole,
        (Some(Split::LowHigh | Split::HighLow), 0) if width == Width::U32 => Part::Low,
        (Some(Split::LowHigh | Split::HighLow), 4) if width == Width::U32 => Part::High,
        _ => return Err(DriverFaultKind::Width(width)),
    };
    Ok(Access { register: info.offset, part, kind: info.access })
}

impl Access {
    pub(super) fn for_read(self) -> Result<Self, DriverFaultKind> {
        if self.kind == AccessKind::WriteOnly { Err(DriverFaultKind::WriteOnly) } else { Ok(self) }
    }

    /// A 64-bit register takes no 64-bit write: not all devices of this interface do.
    pub(super) fn for_write(self, width: Width) -> Result<Self, DriverFaultKind> {
        match self.kind {
            AccessKind::ReadPure | AccessKind::ReadSideEffects => Err(DriverFaultKind::ReadOnly),
            _ if width == Width::U64 => Err(DriverFaultKind::Width(width)),
            AccessKind::ReadWrite | AccessKind::ReadWriteClear | AccessKind::WriteOnly => Ok(self),
        }
    }

    /// The part of a register's value that is meant.
    pub(super) fn part_of(self, value: u64) -> u64 {
        match self.part {
            Part::Whole => value,
            Part::Low => value & LOW,
            Part::High => value >> 32,
        }
    }

    /// A register's value with the part that is meant replaced.
    pub(super) fn replace(self, old: u64, value: u64) -> u64 {
        match self.part {
            Part::Whole => value,
            Part::Low => old & !LOW | value & LOW,
            Part::High => old & LOW | value << 32,
        }
    }
}

const LOW: u64 = 0xffff_ffff;

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_descriptors::ioat::{IoatChannelRegisters, IoatRegisters};
    use vdk_hal::mmio::RegisterSet;

    #[test]
    fn only_the_declared_widths_are_accepted() {
        let set = IoatChannelRegisters::REGISTERS;
        let status = find(set, 0x08, Width::U64).unwrap();
        assert_eq!((status.register, status.part), (0x08, Part::Whole));
        assert_eq!(find(set, 0x0c, Width::U32).unwrap().part, Part::High);
        assert_eq!(find(set, 0x0a, Width::U16), Err(DriverFaultKind::Width(Width::U16)));
        assert_eq!(find(set, 0x04, Width::U32), Err(DriverFaultKind::Width(Width::U32)));
        assert_eq!(find(set, 0x05, Width::U8), Err(DriverFaultKind::Hole));
        assert_eq!(find(set, 0x07, Width::U8), Err(DriverFaultKind::Width(Width::U8)));
        assert_eq!(find(set, 0x50, Width::U32), Err(DriverFaultKind::Hole));
        assert_eq!(status.for_write(Width::U64), Err(DriverFaultKind::ReadOnly));
        let chain = find(set, 0x10, Width::U64).unwrap();
        assert_eq!(chain.for_write(Width::U64), Err(DriverFaultKind::Width(Width::U64)));
        let count = find(IoatRegisters::REGISTERS, 0x00, Width::U8).unwrap();
        assert_eq!(count.for_write(Width::U8), Err(DriverFaultKind::ReadOnly));
    }

    #[test]
    fn halves_of_a_register_are_replaced_apart() {
        let set = IoatChannelRegisters::REGISTERS;
        let low = find(set, 0x10, Width::U32).unwrap();
        let high = find(set, 0x14, Width::U32).unwrap();
        let value = high.replace(low.replace(0, 0x8000_0040), 0x12);
        assert_eq!(value, 0x12_8000_0040);
        assert_eq!((low.part_of(value), high.part_of(value)), (0x8000_0040, 0x12));
    }
}
