//! The PCI Express capability, and Advanced Features, which offers conventional functions
//! the same reset.

use core::fmt;
use core::time::Duration;

use bitfield::bitfield;

use super::{CapabilityId, ConfigError, ConfigSpace, find_capability};
use crate::address::ByteLength;
use crate::poll::{Clock, Deadline, Pace, TimedOut, poll_until};

bitfield! {
    /// The PCI Express Capabilities register.
    ///
    /// See PCIe 6.0 §7.5.3.2 "PCI Express Capabilities Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct ExpressFlags(pub u16);
    impl Debug;
    /// The version of the capability; 2 is current.
    pub version, set_version: 3, 0;
    /// The kind of function as a number; see [`PortType`].
    pub port_type_bits, set_port_type_bits: 7, 4;
    /// The port leads to a slot.
    pub slot, set_slot: 8;
    /// Which MSI or MSI-X vector the capability itself interrupts with.
    pub interrupt_message, set_interrupt_message: 13, 9;
}

bitfield! {
    /// The Device Capabilities register.
    ///
    /// See PCIe 6.0 §7.5.3.3 "Device Capabilities Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct DeviceCapabilities(pub u32);
    impl Debug;
    /// The largest payload that the function takes, as a power of two above 128 bytes.
    pub max_payload_bits, set_max_payload_bits: 2, 0;
    /// Requests may use 8-bit tags.
    pub extended_tags, set_extended_tags: 5;
    /// Errors are reported by role.
    pub role_based_errors, set_role_based_errors: 15;
    /// The function can be reset alone.
    pub function_level_reset, set_function_level_reset: 28;
}

bitfield! {
    /// The Device Status register. All but the last two bits are cleared by writing ones.
    ///
    /// See PCIe 6.0 §7.5.3.5 "Device Status Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct DeviceStatus(pub u16);
    impl Debug;
    /// A correctable error was detected; write 1 to clear.
    pub correctable_error, set_correctable_error: 0;
    /// A non-fatal error was detected; write 1 to clear.
    pub non_fatal_error, set_non_fatal_error: 1;
    /// A fatal error was detected; write 1 to clear.
    pub fatal_error, set_fatal_error: 2;
    /// An unsupported request was received; write 1 to clear.
    pub unsupported_request, set_unsupported_request: 3;
    /// Auxiliary power is there.
    pub auxiliary_power, set_auxiliary_power: 4;
    /// Requests of the function have not been completed yet.
    pub transactions_pending, set_transactions_pending: 5;
}

bitfield! {
    /// The Link Capabilities register.
    ///
    /// See PCIe 6.0 §7.5.3.6 "Link Capabilities Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct LinkCapabilities(pub u32);
    impl Debug;
    /// The highest speed as a number; see [`LinkSpeed`].
    pub max_speed_bits, set_max_speed_bits: 3, 0;
    /// How many lanes the port has.
    pub max_width, set_max_width: 9, 4;
    /// The number of the port.
    pub port_number, set_port_number: 31, 24;
}

bitfield! {
    /// The Link Status register.
    ///
    /// See PCIe 6.0 §7.5.3.8 "Link Status Register".
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct LinkStatus(pub u16);
    impl Debug;
    /// The speed as a number; see [`LinkSpeed`].
    pub speed_bits, set_speed_bits: 3, 0;
    /// How many lanes are in use.
    pub width, set_width: 9, 4;
    /// The link is being trained.
    pub training, set_training: 11;
    /// The data link layer is up, where the port reports it.
    pub active, set_active: 13;
}

/// The kind of a PCI Express function. Numbers without a meaning are carried as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortType(pub u8);

impl PortType {
    /// An endpoint.
    pub const ENDPOINT: Self = Self(0x0);
    /// An endpoint that also needs I/O space.
    pub const LEGACY_ENDPOINT: Self = Self(0x1);
    /// A root port.
    pub const ROOT_PORT: Self = Self(0x4);
    /// The upstream port of a switch.
    pub const UPSTREAM_PORT: Self = Self(0x5);
    /// A downstream port of a switch.
    pub const DOWNSTREAM_PORT: Self = Self(0x6);
    /// A bridge from PCI Express to PCI.
    pub const PCI_BRIDGE: Self = Self(0x7);
    /// A bridge from PCI to PCI Express.
    pub const REVERSE_BRIDGE: Self = Self(0x8);
    /// An endpoint inside the root complex, without a link.
    pub const INTEGRATED_ENDPOINT: Self = Self(0x9);
    /// An event collector inside the root complex, without a link.
    pub const EVENT_COLLECTOR: Self = Self(0xa);

    /// Whether a function of this kind has link registers.
    #[must_use]
    pub const fn has_link(self) -> bool {
        !matches!(self, Self::INTEGRATED_ENDPOINT | Self::EVENT_COLLECTOR)
    }
}

impl fmt::Display for PortType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::ENDPOINT => "endpoint",
            Self::LEGACY_ENDPOINT => "legacy endpoint",
            Self::ROOT_PORT => "root port",
            Self::UPSTREAM_PORT => "upstream switch port",
            Self::DOWNSTREAM_PORT => "downstream switch port",
            Self::PCI_BRIDGE => "PCI Express to PCI bridge",
            Self::REVERSE_BRIDGE => "PCI to PCI Express bridge",
            Self::INTEGRATED_ENDPOINT => "root complex integrated endpoint",
            Self::EVENT_COLLECTOR => "root complex event collector",
            Self(other) => return write!(f, "port type {other:#x}"),
        })
    }
}

/// The speed of a link. Numbers without a meaning are carried as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkSpeed(pub u8);

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "2.5 GT/s",
            2 => "5 GT/s",
            3 => "8 GT/s",
            4 => "16 GT/s",
            5 => "32 GT/s",
            6 => "64 GT/s",
            other => return write!(f, "speed {other:#x}"),
        })
    }
}

/// The PCI Express capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Where it begins.
    pub offset: u16,
    /// Its version and the kind of function.
    pub flags: ExpressFlags,
    /// What the function can do.
    pub device: DeviceCapabilities,
    /// What its link can do, where it has one.
    pub link: Option<LinkCapabilities>,
}

impl Express {
    /// Offset of the capabilities register in the capability.
    pub const FLAGS: u16 = 0x02;
    /// Offset of Device Capabilities in the capability.
    pub const DEVICE_CAPABILITIES: u16 = 0x04;
    /// Offset of Device Control in the capability.
    pub const DEVICE_CONTROL: u16 = 0x08;
    /// Offset of Device Status in the capability.
    pub const DEVICE_STATUS: u16 = 0x0a;
    /// Offset of Link Capabilities in the capability.
    pub const LINK_CAPABILITIES: u16 = 0x0c;
    /// Offset of Link Control in the capability.
    pub const LINK_CONTROL: u16 = 0x10;
    /// Offset of Link Status in the capability.
    pub const LINK_STATUS: u16 = 0x12;
    /// The size of a version 2 capability in bytes.
    pub const LENGTH: u16 = 0x3c;
    /// The bit of Device Control that begins a function-level reset.
    pub const INITIATE_FUNCTION_LEVEL_RESET: u16 = 1 << 15;

    /// The capability of a function, if it has one.
    ///
    /// # Errors
    ///
    /// As [`capabilities`](super::capabilities).
    pub fn find(config: &dyn ConfigSpace) -> Result<Option<Self>, ConfigError> {
        let found = find_capability(config, CapabilityId::PCI_EXPRESS)?;
        found.map(|capability| Self::read(config, capability.offset)).transpose()
    }

    /// Reads the capability at `offset`.
    ///
    /// # Errors
    ///
    /// Those of the access.
    pub fn read(config: &dyn ConfigSpace, offset: u16) -> Result<Self, ConfigError> {
        let flags = ExpressFlags(super::field16(config, offset, Self::FLAGS)?);
        let device = DeviceCapabilities(super::field32(config, offset, Self::DEVICE_CAPABILITIES)?);
        let mut capability = Self { offset, flags, device, link: None };
        if capability.port_type().has_link() {
            let link = super::field32(config, offset, Self::LINK_CAPABILITIES)?;
            capability.link = Some(LinkCapabilities(link));
        }
        Ok(capability)
    }

    /// The kind of function.
    #[must_use]
    pub fn port_type(&self) -> PortType {
        // CAST: four bits.
        PortType((self.flags.port_type_bits() & 0xf) as u8)
    }

    /// The largest payload that the function takes; `None` for a reserved value.
    #[must_use]
    pub fn max_payload(&self) -> Option<ByteLength> {
        let bits = self.device.max_payload_bits();
        (bits <= 5).then(|| ByteLength::new(128 << bits))
    }

    /// Whether the function can be reset alone.
    #[must_use]
    pub fn function_level_reset(&self) -> bool {
        self.device.function_level_reset()
    }

    /// The Device Status register.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DeviceGone`]; those of the access.
    pub fn device_status(&self, config: &dyn ConfigSpace) -> Result<DeviceStatus, ConfigError> {
        super::field16(config, self.offset, Self::DEVICE_STATUS).map(DeviceStatus)
    }

    /// Whether requests of the function have not been completed yet.
    ///
    /// # Errors
    ///
    /// As [`device_status`](Self::device_status).
    pub fn transactions_pending(&self, config: &dyn ConfigSpace) -> Result<bool, ConfigError> {
        self.device_status(config).map(|status| status.transactions_pending())
    }

    /// The Link Status register, where the function has a link.
    ///
    /// # Errors
    ///
    /// As [`device_status`](Self::device_status).
    pub fn link_status(&self, config: &dyn ConfigSpace) -> Result<Option<LinkStatus>, ConfigError> {
        if self.link.is_none() {
            return Ok(None);
        }
        super::field16(config, self.offset, Self::LINK_STATUS).map(|status| Some(LinkStatus(status)))
    }

    /// Resets the function: waits for its requests to end, begins the reset, and gives it
    /// the 100 ms that the standard asks for before configuration space is touched again.
    /// Returns when configuration space answers. Command and BARs are at zero afterwards.
    ///
    /// Bus mastering is to be turned off before. Backends with a reset of their own
    /// (kernel VFIO) restore configuration space as well: use that where there is one.
    ///
    /// # Errors
    ///
    /// - [`ConfigError::NotSupported`] without the capability bit; nothing is written;
    /// - [`ConfigError::TimedOut`] when the function does not answer within 1 s after that;
    /// - [`ConfigError::DeviceGone`]; those of the access.
    pub fn reset_function(&self, config: &dyn ConfigSpace, clock: &impl Clock) -> Result<(), ConfigError> {
        if !self.function_level_reset() {
            return Err(ConfigError::NotSupported { what: "function-level reset" });
        }
        wait_for_transactions(clock, || self.transactions_pending(config))?;
        let control = super::field16(config, self.offset, Self::DEVICE_CONTROL)?;
        config.write16(
            super::at(self.offset, Self::DEVICE_CONTROL),
            control | Self::INITIATE_FUNCTION_LEVEL_RESET,
        )?;
        wait_for_answer(config, clock)
    }
}

/// Waits for requests to end, 1 s at most: a function that never ends them is reset all
/// the same, as there is nothing else to be done about it.
fn wait_for_transactions(
    clock: &impl Clock,
    pending: impl Fn() -> Result<bool, ConfigError>,
) -> Result<(), ConfigError> {
    let deadline = Deadline::after(clock, Duration::from_secs(1));
    let ended = poll_until(clock, deadline, Pace::SLOW, "the end of pending requests", || {
        pending().map(|pending| (!pending).then_some(()))
    });
    match ended {
        Err(ConfigError::TimedOut(error)) => {
            log::warn!("resetting a function with requests pending: {error}");
            Ok(())
        }
        other => other,
    }
}

fn wait_for_answer(config: &dyn ConfigSpace, clock: &impl Clock) -> Result<(), ConfigError> {
    clock.sleep(Duration::from_millis(100));
    let deadline = Deadline::after(clock, Duration::from_secs(1));
    poll_until(clock, deadline, Pace::SLOW, "an answer after reset", || {
        match super::require_present(config) {
            Ok(()) => Ok(Some(())),
            Err(ConfigError::DeviceGone) => Ok(None),
            Err(error) => Err(error),
        }
    })
}

/// The Advanced Features capability: function-level reset of a conventional function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvancedFeatures {
    /// Where it begins.
    pub offset: u16,
    /// Whether the function can be reset alone: both the reset and the pending bit exist.
    pub function_level_reset: bool,
}

impl AdvancedFeatures {
    /// Offset of the capabilities byte in the capability.
    pub const CAPABILITIES: u16 = 3;
    /// Offset of the control byte in the capability; bit 0 begins the reset.
    pub const CONTROL: u16 = 4;
    /// Offset of the status byte in the capability; bit 0 says that requests are pending.
    pub const STATUS: u16 = 5;
    /// The size of the capability in bytes.
    pub const LENGTH: u16 = 6;

    /// The capability of a function, if it has one.
    ///
    /// # Errors
    ///
    /// As [`capabilities`](super::capabilities).
    pub fn find(config: &dyn ConfigSpace) -> Result<Option<Self>, ConfigError> {
        let Some(found) = find_capability(config, CapabilityId::ADVANCED_FEATURES)? else { return Ok(None) };
        let bits = config.read8(super::at(found.offset, Self::CAPABILITIES))?;
        Ok(Some(Self { offset: found.offset, function_level_reset: bits & 3 == 3 }))
    }

    /// Resets the function as [`Express::reset_function`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reset_function(&self, config: &dyn ConfigSpace, clock: &impl Clock) -> Result<(), ConfigError> {
        if !self.function_level_reset {
            return Err(ConfigError::NotSupported { what: "function-level reset" });
        }
        wait_for_transactions(clock, || {
            config.read8(super::at(self.offset, Self::STATUS)).map(|status| status & 1 != 0)
        })?;
        config.write8(super::at(self.offset, Self::CONTROL), 1)?;
        wait_for_answer(config, clock)
    }
}

impl From<TimedOut> for ConfigError {
    fn from(error: TimedOut) -> Self {
        Self::TimedOut(error)
    }
}
