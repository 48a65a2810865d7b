//! The MSI-X capability and its table.

use bitfield::bitfield;

use super::{CapabilityId, ConfigError, ConfigSpace, find_capability};
use crate::address::{BarIndex, ByteLength};
use crate::bar::{Bar, BarError};
use crate::mmio::Width;

bitfield! {
    /// The Message Control register of MSI-X.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct MsixControl(pub u16);
    impl Debug;
    /// How many vectors the function has, less one.
    pub last_vector, set_last_vector: 10, 0;
    /// Every vector is masked, whatever its own mask bit says.
    pub function_mask, set_function_mask: 14;
    /// MSI-X is on; INTx and MSI are off then.
    pub enable, set_enable: 15;
}

bitfield! {
    /// The Vector Control word of a table entry. Only bit 0 is the mask: devices keep other
    /// things in the rest, which is preserved.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct VectorControl(pub u32);
    impl Debug;
    /// The vector sends no message; it becomes pending instead.
    pub masked, set_masked: 0;
}

/// Where the table or the pending bits lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixLocation {
    /// In which BAR.
    pub bar: BarIndex,
    /// Where in it, a multiple of 8.
    pub offset: u64,
    /// How long, in bytes.
    pub length: ByteLength,
}

impl MsixLocation {
    /// Splits a register into the number of the BAR (bits 2:0) and the offset (the rest).
    fn decode(register: u32, at: u16, length: u64) -> Result<Self, ConfigError> {
        // CAST: three bits.
        let bar = BarIndex::new((register & 7) as u8)
            .ok_or(ConfigError::Malformed { offset: at, what: "MSI-X lies in a BAR above 5" })?;
        Ok(Self { bar, offset: u64::from(register & !7), length: ByteLength::new(length) })
    }
}

/// The MSI-X capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Where it begins.
    pub offset: u16,
    /// What the control register said when it was read.
    pub control: MsixControl,
    /// Where the table of vectors lies, 16 bytes a vector.
    pub table: MsixLocation,
    /// Where the pending bits lie, one bit a vector in 64-bit words.
    pub pending: MsixLocation,
}

impl Msix {
    /// Offset of the control register in the capability.
    pub const CONTROL: u16 = 2;
    /// Offset of the table's place in the capability.
    pub const TABLE: u16 = 4;
    /// Offset of the pending bits' place in the capability.
    pub const PENDING: u16 = 8;
    /// The size of the capability in bytes.
    pub const LENGTH: u16 = 12;
    /// The size of a table entry in bytes.
    pub const ENTRY: u64 = 16;

    /// The capability of a function, if it has one.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read) and [`capabilities`](super::capabilities).
    pub fn find(config: &dyn ConfigSpace) -> Result<Option<Self>, ConfigError> {
        let found = find_capability(config, CapabilityId::MSIX)?;
        found.map(|capability| Self::read(config, capability.offset)).transpose()
    }

    /// Reads the capability at `offset`. Whether table and pending bits fit their BARs is
    /// for the caller to check, who knows the BARs.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Malformed`] when they lie in a BAR that cannot be; those of the access.
    pub fn read(config: &dyn ConfigSpace, offset: u16) -> Result<Self, ConfigError> {
        let control = MsixControl(super::field16(config, offset, Self::CONTROL)?);
        let vectors = u64::from(control.last_vector()) + 1;
        let table = super::field32(config, offset, Self::TABLE)?;
        let pending = super::field32(config, offset, Self::PENDING)?;
        Ok(Self {
            offset,
            control,
            table: MsixLocation::decode(table, super::at(offset, Self::TABLE), vectors * Self::ENTRY)?,
            pending: MsixLocation::decode(
                pending,
                super::at(offset, Self::PENDING),
                vectors.div_ceil(64) * 8,
            )?,
        })
    }

    /// How many vectors the function has, 1 to 2048.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.control.last_vector() + 1
    }
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsixEntry {
    /// Where the message goes.
    pub address: u64,
    /// What the message says.
    pub message: u32,
    /// Whether the vector is masked.
    pub control: VectorControl,
}

/// The table of vectors in a BAR. With kernel VFIO the table belongs to the kernel: use
/// [`Interrupts`](crate::interrupt::Interrupts) there, and this only to look.
#[derive(Clone, Debug)]
pub struct MsixTable {
    bar: Bar,
    offset: u64,
    vectors: u16,
}

impl MsixTable {
    /// The table that `msix` describes, in `bar`.
    ///
    /// # Errors
    ///
    /// [`BarError::Absent`] when it is another BAR, [`BarError::OutOfBounds`] when the table
    /// does not fit into it.
    pub fn new(bar: Bar, msix: &Msix) -> Result<Self, BarError> {
        let info = *bar.info();
        let MsixLocation { bar: index, offset, length } = msix.table;
        if info.index != index {
            return Err(BarError::Absent { function: "the MSI-X table".to_owned(), bar: index });
        }
        if offset.checked_add(length.as_u64()).is_none_or(|end| end > info.size.as_u64()) {
            let size = info.size.as_u64();
            return Err(BarError::OutOfBounds { bar: index, offset, width: Width::U64, size });
        }
        Ok(Self { bar, offset, vectors: msix.vectors() })
    }

    /// Reads the entry of a vector, or `None` when there is no such vector.
    ///
    /// # Errors
    ///
    /// As [`Bar::read`].
    pub fn entry(&self, vector: u16) -> Result<Option<MsixEntry>, BarError> {
        let Some(at) = self.at(vector) else { return Ok(None) };
        let low: u32 = self.bar.read(at)?;
        let high: u32 = self.bar.read(at + 4)?;
        Ok(Some(MsixEntry {
            address: u64::from(high) << 32 | u64::from(low),
            message: self.bar.read(at + 8)?,
            control: VectorControl(self.bar.read(at + 12)?),
        }))
    }

    /// Sets or clears the mask bit of a vector and leaves the other bits as they are.
    /// Returns whether there is such a vector.
    ///
    /// # Errors
    ///
    /// As [`Bar::read`] and [`Bar::write`].
    pub fn set_masked(&mut self, vector: u16, masked: bool) -> Result<bool, BarError> {
        let Some(at) = self.at(vector) else { return Ok(false) };
        let mut control = VectorControl(self.bar.read(at + 12)?);
        control.set_masked(masked);
        self.bar.write(at + 12, control.0)?;
        Ok(true)
    }

    fn at(&self, vector: u16) -> Option<u64> {
        (vector < self.vectors).then(|| self.offset + u64::from(vector) * Msix::ENTRY)
    }
}
