//! The header: what a function is and how it answers.
//!
//! Register numbers are those of the PCI Local Bus Specification, as in Linux's
//! `include/uapi/linux/pci_regs.h`.

use bitfield::bitfield;

use super::{CapabilityId, ConfigError, ConfigSpace, find_capability};
use crate::function::PciIdentity;

/// Where the registers of the header lie. Those from `BAR0` on depend on the header type.
pub mod register {
    /// Vendor ID, 16 bits.
    pub const VENDOR_ID: u16 = 0x00;
    /// Device ID, 16 bits.
    pub const DEVICE_ID: u16 = 0x02;
    /// Command, 16 bits.
    pub const COMMAND: u16 = 0x04;
    /// Status, 16 bits, write-1-to-clear.
    pub const STATUS: u16 = 0x06;
    /// Revision ID, 8 bits.
    pub const REVISION_ID: u16 = 0x08;
    /// Programming interface, 8 bits; subclass and base class follow.
    pub const CLASS_CODE: u16 = 0x09;
    /// Cache line size, 8 bits.
    pub const CACHE_LINE_SIZE: u16 = 0x0c;
    /// Latency timer, 8 bits.
    pub const LATENCY_TIMER: u16 = 0x0d;
    /// Header type, 8 bits.
    pub const HEADER_TYPE: u16 = 0x0e;
    /// Built-in self test, 8 bits.
    pub const BIST: u16 = 0x0f;
    /// The first base address register, 32 bits; the others follow.
    pub const BAR0: u16 = 0x10;
    /// Subsystem vendor ID of a type 0 header, 16 bits.
    pub const SUBSYSTEM_VENDOR_ID: u16 = 0x2c;
    /// Subsystem ID of a type 0 header, 16 bits.
    pub const SUBSYSTEM_ID: u16 = 0x2e;
    /// Expansion ROM base address of a type 0 header, 32 bits.
    pub const ROM_ADDRESS: u16 = 0x30;
    /// Expansion ROM base address of a type 1 header, 32 bits.
    pub const BRIDGE_ROM_ADDRESS: u16 = 0x38;
    /// Offset of the first capability in a type 0 or type 1 header, 8 bits.
    pub const CAPABILITIES_POINTER: u16 = 0x34;
    /// Offset of the first capability in a type 2 header, 8 bits.
    pub const CARDBUS_CAPABILITIES_POINTER: u16 = 0x14;
    /// Subsystem vendor ID of a type 2 header, 16 bits; the subsystem ID follows.
    pub const CARDBUS_SUBSYSTEM_VENDOR_ID: u16 = 0x40;
    /// Interrupt line, 8 bits.
    pub const INTERRUPT_LINE: u16 = 0x3c;
    /// Interrupt pin, 8 bits: 0 for none, 1 to 4 for INTA to INTD.
    pub const INTERRUPT_PIN: u16 = 0x3d;
}

bitfield! {
    /// The Command register: what the function may do on the bus.
    ///
    /// See PCIe 6.0 §7.5.1.1.3 "Command Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct Command(pub u16);
    impl Debug;
    /// The function answers accesses to its I/O BARs.
    pub io_space, set_io_space: 0;
    /// The function answers accesses to its memory BARs.
    pub memory_space, set_memory_space: 1;
    /// The function may issue memory requests: DMA and message-signalled interrupts.
    pub bus_master, set_bus_master: 2;
    /// Monitors special cycles; hard-wired to zero with PCI Express.
    pub special_cycles, set_special_cycles: 3;
    /// May use memory write and invalidate; hard-wired to zero with PCI Express.
    pub memory_write_invalidate, set_memory_write_invalidate: 4;
    /// Snoops VGA palette writes; hard-wired to zero with PCI Express.
    pub vga_palette_snoop, set_vga_palette_snoop: 5;
    /// Reports poisoned data and parity errors in Status.
    pub parity_error_response, set_parity_error_response: 6;
    /// Reports fatal and non-fatal errors to the root complex.
    pub system_error_enable, set_system_error_enable: 8;
    /// May issue fast back-to-back cycles; hard-wired to zero with PCI Express.
    pub fast_back_to_back, set_fast_back_to_back: 9;
    /// INTx is not asserted.
    pub interrupt_disable, set_interrupt_disable: 10;
}

bitfield! {
    /// The Status register. The error bits are cleared by writing ones to them, which is
    /// why Command, in the same 32-bit word, is written with 16-bit accesses only.
    ///
    /// See PCIe 6.0 §7.5.1.1.4 "Status Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct Status(pub u16);
    impl Debug;
    /// The function needs no time after a reset before it can be accessed.
    pub immediate_readiness, set_immediate_readiness: 0;
    /// An INTx interrupt is pending in the function, whether disabled or not.
    pub interrupt, set_interrupt: 3;
    /// The capability list exists.
    pub capabilities_list, set_capabilities_list: 4;
    /// The function received or sent poisoned data as a master; write 1 to clear.
    pub master_data_parity_error, set_master_data_parity_error: 8;
    /// The function completed a request with "completer abort"; write 1 to clear.
    pub signaled_target_abort, set_signaled_target_abort: 11;
    /// A request of the function was completed with "completer abort"; write 1 to clear.
    pub received_target_abort, set_received_target_abort: 12;
    /// A request of the function was completed with "unsupported request"; write 1 to clear.
    pub received_master_abort, set_received_master_abort: 13;
    /// The function sent an error message; write 1 to clear.
    pub signaled_system_error, set_signaled_system_error: 14;
    /// The function received poisoned data; write 1 to clear.
    pub detected_parity_error, set_detected_parity_error: 15;
}

impl Status {
    /// The bits that are cleared by writing ones to them.
    pub const WRITE_ONE_TO_CLEAR: Self = Self(0xf900);
}

/// The layout of the header after its first 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderLayout {
    /// Type 0: an endpoint, with six BARs.
    Endpoint,
    /// Type 1: a bridge, with two BARs.
    Bridge,
    /// Type 2: a CardBus bridge, with one BAR.
    CardBus,
    /// A type that no standard describes.
    Unknown(u8),
}

impl HeaderLayout {
    /// How many base address registers the header has.
    #[must_use]
    pub const fn bar_count(self) -> u8 {
        match self {
            Self::Endpoint => 6,
            Self::Bridge => 2,
            Self::CardBus => 1,
            Self::Unknown(_) => 0,
        }
    }

    /// Where the expansion ROM register is, where there is one.
    #[must_use]
    pub const fn rom_register(self) -> Option<u16> {
        match self {
            Self::Endpoint => Some(register::ROM_ADDRESS),
            Self::Bridge => Some(register::BRIDGE_ROM_ADDRESS),
            Self::CardBus | Self::Unknown(_) => None,
        }
    }

    /// Where the offset of the first capability is, where the layout is known.
    #[must_use]
    pub const fn capabilities_pointer(self) -> Option<u16> {
        match self {
            Self::Endpoint | Self::Bridge => Some(register::CAPABILITIES_POINTER),
            Self::CardBus => Some(register::CARDBUS_CAPABILITIES_POINTER),
            Self::Unknown(_) => None,
        }
    }
}

/// The Header Type register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderType(pub u8);

impl HeaderType {
    /// The layout of the rest of the header.
    #[must_use]
    pub const fn layout(self) -> HeaderLayout {
        match self.0 & 0x7f {
            0 => HeaderLayout::Endpoint,
            1 => HeaderLayout::Bridge,
            2 => HeaderLayout::CardBus,
            other => HeaderLayout::Unknown(other),
        }
    }

    /// Whether the device may have functions other than number 0.
    #[must_use]
    pub const fn is_multi_function(self) -> bool {
        self.0 & 0x80 != 0
    }
}

/// Reads the header type.
///
/// # Errors
///
/// [`ConfigError::DeviceGone`] when it reads all ones, which no function has; those of the
/// access.
pub fn read_header_type(config: &dyn ConfigSpace) -> Result<HeaderType, ConfigError> {
    match config.read8(register::HEADER_TYPE)? {
        0xff => Err(gone_or(config, register::HEADER_TYPE, "the header type is all ones")),
        value => Ok(HeaderType(value)),
    }
}

/// What the function is.
///
/// The subsystem of a bridge comes from its subsystem capability and is zero without one.
/// A virtual function whose kernel does not fill in the IDs has `0xffff` for both.
///
/// # Errors
///
/// [`ConfigError::DeviceGone`] when configuration space answers all ones; those of the
/// access.
pub fn identity(config: &dyn ConfigSpace) -> Result<PciIdentity, ConfigError> {
    require_present(config)?;
    let class_and_revision = config.read32(register::REVISION_ID)?;
    let (subsystem_vendor, subsystem) = match read_header_type(config)?.layout() {
        HeaderLayout::Endpoint => {
            (config.read16(register::SUBSYSTEM_VENDOR_ID)?, config.read16(register::SUBSYSTEM_ID)?)
        }
        HeaderLayout::Bridge => bridge_subsystem(config)?,
        HeaderLayout::CardBus | HeaderLayout::Unknown(_) => (0, 0),
    };
    Ok(PciIdentity {
        vendor: config.read16(register::VENDOR_ID)?,
        device: config.read16(register::DEVICE_ID)?,
        // CAST: the low byte of the word.
        revision: (class_and_revision & 0xff) as u8,
        class: class_and_revision >> 8,
        subsystem_vendor,
        subsystem,
    })
}

/// A bridge without the capability, or with a list that cannot be walked, has none.
fn bridge_subsystem(config: &dyn ConfigSpace) -> Result<(u16, u16), ConfigError> {
    match find_capability(config, CapabilityId::SUBSYSTEM_ID) {
        Ok(Some(capability)) => {
            let [vendor, id] = [4, 6].map(|register| config.read16(super::at(capability.offset, register)));
            Ok((vendor?, id?))
        }
        Ok(None) | Err(ConfigError::Malformed { .. } | ConfigError::Privilege { .. }) => Ok((0, 0)),
        Err(error) => Err(error),
    }
}

/// Tells whether the function still answers.
///
/// One word of all ones proves nothing: the identification of a virtual function reads so.
/// The class code does not, so both together decide.
///
/// # Errors
///
/// [`ConfigError::DeviceGone`]; those of the access.
pub fn require_present(config: &dyn ConfigSpace) -> Result<(), ConfigError> {
    let gone =
        config.read32(register::VENDOR_ID)? == u32::MAX && config.read32(register::REVISION_ID)? == u32::MAX;
    if gone { Err(ConfigError::DeviceGone) } else { Ok(()) }
}

/// The error for a value of all ones: the function is gone, or what it says is wrong.
pub(crate) fn gone_or(config: &dyn ConfigSpace, offset: u16, what: &'static str) -> ConfigError {
    match require_present(config) {
        Ok(()) => ConfigError::Malformed { offset, what },
        Err(error) => error,
    }
}

/// Reads the Command register.
///
/// # Errors
///
/// [`ConfigError::DeviceGone`] when it reads all ones, which no function has; those of the
/// access.
pub fn read_command(config: &dyn ConfigSpace) -> Result<Command, ConfigError> {
    match config.read16(register::COMMAND)? {
        u16::MAX => Err(gone_or(config, register::COMMAND, "the Command register is all ones")),
        value => Ok(Command(value)),
    }
}

/// Writes the Command register with one 16-bit access, so that Status is not touched.
///
/// # Errors
///
/// Those of the access.
pub fn write_command(config: &dyn ConfigSpace, command: Command) -> Result<(), ConfigError> {
    config.write16(register::COMMAND, command.0)
}

/// Changes the Command register and returns what it was. Writes nothing when nothing
/// changes.
///
/// # Errors
///
/// As [`read_command`] and [`write_command`].
pub fn update_command(
    config: &dyn ConfigSpace,
    change: impl FnOnce(&mut Command),
) -> Result<Command, ConfigError> {
    let before = read_command(config)?;
    let mut after = before;
    change(&mut after);
    if after != before {
        write_command(config, after)?;
    }
    Ok(before)
}

/// Reads the Status register.
///
/// # Errors
///
/// [`ConfigError::DeviceGone`] when it reads all ones; those of the access.
pub fn read_status(config: &dyn ConfigSpace) -> Result<Status, ConfigError> {
    match config.read16(register::STATUS)? {
        u16::MAX => Err(gone_or(config, register::STATUS, "the Status register is all ones")),
        value => Ok(Status(value)),
    }
}

/// Clears error bits of the Status register: those that are set in `errors`.
///
/// # Errors
///
/// Those of the access.
pub fn clear_status(config: &dyn ConfigSpace, errors: Status) -> Result<(), ConfigError> {
    config.write16(register::STATUS, errors.0 & Status::WRITE_ONE_TO_CLEAR.0)
}
