//! The MSI capability.

use bitfield::bitfield;

use super::{CapabilityId, ConfigError, ConfigSpace, find_capability};

bitfield! {
    /// The Message Control register of MSI.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct MsiControl(pub u16);
    impl Debug;
    /// MSI is on; INTx is off then.
    pub enable, set_enable: 0;
    /// How many vectors the function has, as a power of two up to 5.
    pub capable_log2, set_capable_log2: 3, 1;
    /// How many vectors are in use, as a power of two up to 5.
    pub enabled_log2, set_enabled_log2: 6, 4;
    /// The message address has 64 bits.
    pub address_64, set_address_64: 7;
    /// Vectors can be masked one by one.
    pub per_vector_masking, set_per_vector_masking: 8;
}

/// The MSI capability. Its layout depends on the control register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Where it begins.
    pub offset: u16,
    /// What it said when it was read.
    pub control: MsiControl,
}

impl Msi {
    /// Offset of the control register in the capability.
    pub const CONTROL: u16 = 2;
    /// Offset of the message address in the capability.
    pub const ADDRESS: u16 = 4;

    /// The capability of a function, if it has one.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read) and [`capabilities`](super::capabilities).
    pub fn find(config: &dyn ConfigSpace) -> Result<Option<Self>, ConfigError> {
        let found = find_capability(config, CapabilityId::MSI)?;
        found.map(|capability| Self::read(config, capability.offset)).transpose()
    }

    /// Reads the capability at `offset`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Malformed`] for more than 32 vectors; those of the access.
    pub fn read(config: &dyn ConfigSpace, offset: u16) -> Result<Self, ConfigError> {
        let control = MsiControl(super::field16(config, offset, Self::CONTROL)?);
        if control.capable_log2() > 5 {
            return Err(ConfigError::Malformed { offset, what: "MSI has more than 32 vectors" });
        }
        Ok(Self { offset, control })
    }

    /// How many vectors the function has, 1 to 32.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        1 << self.control.capable_log2()
    }

    /// How many vectors are in use, 1 to 32, whether MSI is on or not.
    #[must_use]
    pub fn enabled_vectors(&self) -> u16 {
        1 << self.control.enabled_log2().min(self.control.capable_log2())
    }

    /// Offset of the message data in the capability, 16 bits.
    #[must_use]
    pub fn message(&self) -> u16 {
        if self.control.address_64() { 0x0c } else { 0x08 }
    }

    /// Offset of the mask bits in the capability, 32 bits, where vectors can be masked.
    #[must_use]
    pub fn mask(&self) -> Option<u16> {
        self.control.per_vector_masking().then(|| self.message() + 4)
    }

    /// Offset of the pending bits in the capability, 32 bits, where vectors can be masked.
    #[must_use]
    pub fn pending(&self) -> Option<u16> {
        self.control.per_vector_masking().then(|| self.message() + 8)
    }

    /// The size of the capability in bytes: 10, 14, 20 or 24.
    #[must_use]
    pub fn length(&self) -> u16 {
        self.pending().map_or(self.message() + 2, |pending| pending + 4)
    }

    /// The message address.
    ///
    /// # Errors
    ///
    /// Those of the access.
    pub fn message_address(&self, config: &dyn ConfigSpace) -> Result<u64, ConfigError> {
        let low = super::field32(config, self.offset, Self::ADDRESS)?;
        let high = if self.control.address_64() {
            super::field32(config, self.offset, Self::ADDRESS + 4)?
        } else {
            0
        };
        Ok(u64::from(high) << 32 | u64::from(low))
    }
}
