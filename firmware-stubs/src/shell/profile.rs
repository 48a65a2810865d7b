//! What a function looks like on PCI.

use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::BarKind;
use vdk_hal::function::PciIdentity;

use crate::options::StubError;

/// What a function looks like on PCI: everything that configuration space says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What a person calls it: `stub:ioat`.
    pub name: String,
    /// What it is.
    pub identity: PciIdentity,
    /// Its BARs.
    pub bars: Vec<BarProfile>,
    /// Whether it has an INTx line.
    pub intx: bool,
    /// Its MSI capability.
    pub msi: Option<MsiProfile>,
    /// Its MSI-X capability.
    pub msix: Option<MsixProfile>,
    /// Its power management capability.
    pub power: Option<PowerProfile>,
    /// Its PCI Express capability; with one, configuration space has 4096 bytes, with an
    /// AER and a serial number capability, else 256.
    pub express: Option<ExpressProfile>,
    /// Registers of its own in configuration space, outside capabilities.
    pub registers: Vec<ConfigRegister>,
    /// The serial number, if there is PCI Express.
    pub serial_number: u64,
}

/// One base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarProfile {
    /// Its number.
    pub index: BarIndex,
    /// What it decodes.
    pub kind: BarKind,
    /// Whether it is prefetchable.
    pub prefetchable: bool,
    /// How much it decodes.
    pub size: ByteLength,
}

/// An MSI capability with 64-bit addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiProfile {
    /// How many vectors, a power of two up to 32.
    pub vectors: u16,
    /// Whether vectors can be masked one by one.
    pub maskable: bool,
}

/// An MSI-X capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixProfile {
    /// How many vectors, 1 to 2048.
    pub vectors: u16,
    /// The BAR with the table, and where in it.
    pub table: (BarIndex, u32),
    /// The BAR with the pending bits, and where in it.
    pub pending: (BarIndex, u32),
}

/// A power management capability with D0 and D3hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerProfile {
    /// Whether the function keeps its state from D3hot to D0.
    pub no_soft_reset: bool,
}

/// A PCI Express capability of a root complex integrated endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpressProfile {
    /// Whether it can be reset by a function-level reset.
    pub function_level_reset: bool,
}

/// A 32-bit register in configuration space that a device has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRegister {
    /// Where, a multiple of 4.
    pub offset: u16,
    /// Which bits can be written.
    pub writable: u32,
    /// Which bits are cleared by writing a one.
    pub write_one_to_clear: u32,
    /// The value after a reset.
    pub value: u32,
}

impl Profile {
    /// The size of configuration space in bytes.
    pub(crate) fn config_size(&self) -> u16 {
        if self.express.is_some() { 4096 } else { 256 }
    }

    /// The BAR with a number.
    pub(crate) fn bar(&self, index: BarIndex) -> Option<&BarProfile> {
        self.bars.iter().find(|bar| bar.index == index)
    }

    /// Checks that the description is one that PCI allows.
    pub(crate) fn check(&self) -> Result<(), StubError> {
        let wrong = |what| Err(StubError::Profile { what });
        if self.name.is_empty() || self.name.contains('\0') {
            return wrong("the name is empty or has a zero byte");
        }
        let mut taken = [false; BarIndex::COUNT];
        for bar in &self.bars {
            let size = bar.size.as_u64();
            let (least, most, slots) = match bar.kind {
                BarKind::Io => (4, 256, 1),
                BarKind::Memory32 => (16, 1 << 31, 1),
                BarKind::Memory64 => (16, 1 << 63, 2),
            };
            if !size.is_power_of_two() || !(least..=most).contains(&size) {
                return wrong("the size of a BAR is not a power of two in its range");
            }
            for slot in bar.index.as_usize()..bar.index.as_usize() + slots {
                match taken.get_mut(slot) {
                    None => return wrong("a 64-bit BAR has no upper half"),
                    Some(true) => return wrong("two BARs use one register"),
                    Some(free) => *free = true,
                }
            }
        }
        if self.msi.is_some_and(|msi| !msi.vectors.is_power_of_two() || msi.vectors > 32) {
            return wrong("MSI has a power of two of vectors, 32 at most");
        }
        if let Some(msix) = self.msix {
            if msix.vectors == 0 || msix.vectors > 2048 {
                return wrong("MSI-X has 1 to 2048 vectors");
            }
            let pending = u32::from(msix.vectors.div_ceil(64)) * 8;
            let parts = [(msix.table, u32::from(msix.vectors) * 16), (msix.pending, pending)];
            for ((bar, offset), length) in parts {
                let size = self.bar(bar).map_or(0, |bar| bar.size.as_u64());
                if !offset.is_multiple_of(8) || u64::from(offset) + u64::from(length) > size {
                    return wrong("the MSI-X table or its pending bits are not inside their BAR");
                }
            }
        }
        let size = self.config_size();
        if self.registers.iter().any(|register| register.offset > size - 4 || register.offset % 4 != 0) {
            return wrong("a register is outside configuration space");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(index: u8, kind: BarKind, size: u64) -> BarProfile {
        let index = BarIndex::new(index).unwrap();
        BarProfile { index, kind, prefetchable: false, size: ByteLength::new(size) }
    }

    fn profile(bars: Vec<BarProfile>) -> Profile {
        Profile {
            name: "stub:test".to_owned(),
            identity: PciIdentity::default(),
            bars,
            intx: true,
            msi: None,
            msix: None,
            power: None,
            express: None,
            registers: Vec::new(),
            serial_number: 0,
        }
    }

    #[test]
    fn impossible_bars_are_refused() {
        assert_eq!(profile(vec![bar(4, BarKind::Memory64, 1 << 63)]).check(), Ok(()));
        for (bars, what) in [
            (vec![bar(5, BarKind::Memory64, 4096)], "a 64-bit BAR has no upper half"),
            (
                vec![bar(0, BarKind::Memory64, 4096), bar(1, BarKind::Memory32, 4096)],
                "two BARs use one register",
            ),
            (vec![bar(0, BarKind::Memory32, 24)], "the size of a BAR is not a power of two in its range"),
            (vec![bar(0, BarKind::Io, 512)], "the size of a BAR is not a power of two in its range"),
        ] {
            assert_eq!(profile(bars).check(), Err(StubError::Profile { what }));
        }
    }

    #[test]
    fn an_msix_table_outside_its_bar_is_refused() {
        let mut profile = profile(vec![bar(2, BarKind::Memory32, 0x1000)]);
        let two = BarIndex::new(2).unwrap();
        profile.msix = Some(MsixProfile { vectors: 64, table: (two, 0x800), pending: (two, 0xc00) });
        assert_eq!(profile.check(), Ok(()));
        for (table, pending) in [(0xc08, 0), (0x804, 0), (0x800, 0xffc), (0x800, 0x1000)] {
            profile.msix = Some(MsixProfile { vectors: 64, table: (two, table), pending: (two, pending) });
            assert!(profile.check().is_err(), "{table:#x} {pending:#x}");
        }
    }
}
