//! The power management capability.

use core::fmt;
use core::time::Duration;

use bitfield::bitfield;

use super::{CapabilityId, ConfigError, ConfigSpace, find_capability};
use crate::poll::Clock;

/// A power state of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PowerState {
    /// Fully on.
    D0,
    /// Light sleep, optional.
    D1,
    /// Deeper sleep, optional.
    D2,
    /// Only configuration space answers.
    D3Hot,
}

impl PowerState {
    fn from_bits(bits: u16) -> Self {
        match bits & 3 {
            0 => Self::D0,
            1 => Self::D1,
            2 => Self::D2,
            _ => Self::D3Hot,
        }
    }

    const fn bits(self) -> u16 {
        match self {
            Self::D0 => 0,
            Self::D1 => 1,
            Self::D2 => 2,
            Self::D3Hot => 3,
        }
    }

    /// How long the function may not be accessed after a change between two states.
    const fn settle_time(from: Self, to: Self) -> Duration {
        match (from, to) {
            (Self::D3Hot, _) | (_, Self::D3Hot) => Duration::from_millis(10),
            (Self::D2, _) | (_, Self::D2) => Duration::from_micros(200),
            (Self::D0 | Self::D1, Self::D0 | Self::D1) => Duration::ZERO,
        }
    }
}

impl fmt::Display for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::D0 => "D0",
            Self::D1 => "D1",
            Self::D2 => "D2",
            Self::D3Hot => "D3hot",
        })
    }
}

bitfield! {
    /// The Power Management Capabilities register.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct PowerCapabilities(pub u16);
    impl Debug;
    /// The version of the specification; 3 is current.
    pub version, set_version: 2, 0;
    /// The driver must do something of its own after a return to D0.
    pub device_specific_initialization, set_device_specific_initialization: 5;
    /// D1 is supported.
    pub d1, set_d1: 9;
    /// D2 is supported.
    pub d2, set_d2: 10;
    /// From which states the function can wake the system: D0, D1, D2, D3hot, D3cold.
    pub wake_states, set_wake_states: 15, 11;
}

bitfield! {
    /// The Power Management Control/Status register.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct PowerControl(pub u16);
    impl Debug;
    /// The power state as a number.
    pub state_bits, set_state_bits: 1, 0;
    /// The function keeps its state from D3hot to D0; else the way is a reset.
    pub no_soft_reset, set_no_soft_reset: 3;
    /// The function may wake the system.
    pub wake_enable, set_wake_enable: 8;
    /// The function wants to wake the system; write 1 to clear.
    pub wake_status, set_wake_status: 15;
}

/// The power management capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerManagement {
    /// Where it begins.
    pub offset: u16,
    /// What it can do.
    pub capabilities: PowerCapabilities,
}

impl PowerManagement {
    /// Offset of the capabilities register in the capability.
    pub const CAPABILITIES: u16 = 2;
    /// Offset of the control register in the capability.
    pub const CONTROL: u16 = 4;
    /// The size of the capability in bytes.
    pub const LENGTH: u16 = 8;

    /// The capability of a function, if it has one.
    ///
    /// # Errors
    ///
    /// As [`capabilities`](super::capabilities).
    pub fn find(config: &dyn ConfigSpace) -> Result<Option<Self>, ConfigError> {
        let found = find_capability(config, CapabilityId::POWER_MANAGEMENT)?;
        found.map(|capability| Self::read(config, capability.offset)).transpose()
    }

    /// Reads the capability at `offset`.
    ///
    /// # Errors
    ///
    /// Those of the access.
    pub fn read(config: &dyn ConfigSpace, offset: u16) -> Result<Self, ConfigError> {
        let capabilities = super::field16(config, offset, Self::CAPABILITIES)?;
        Ok(Self { offset, capabilities: PowerCapabilities(capabilities) })
    }

    /// The control register.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DeviceGone`]; those of the access.
    pub fn control(&self, config: &dyn ConfigSpace) -> Result<PowerControl, ConfigError> {
        super::field16(config, self.offset, Self::CONTROL).map(PowerControl)
    }

    /// The state that the function is in.
    ///
    /// # Errors
    ///
    /// As [`control`](Self::control).
    pub fn state(&self, config: &dyn ConfigSpace) -> Result<PowerState, ConfigError> {
        self.control(config).map(|control| PowerState::from_bits(control.state_bits()))
    }

    /// Whether the function has a state.
    #[must_use]
    pub fn supports(&self, state: PowerState) -> bool {
        match state {
            PowerState::D0 | PowerState::D3Hot => true,
            PowerState::D1 => self.capabilities.d1(),
            PowerState::D2 => self.capabilities.d2(),
        }
    }

    /// Puts the function into `state`, waits the time that the standard gives it, and looks
    /// whether it went there. Returns whether the function lost its state on the way: BARs,
    /// Command and all that the driver had set up are then to be written again.
    ///
    /// # Errors
    ///
    /// - [`ConfigError::NotSupported`] for a state that the function does not have, and for
    ///   a step to a lighter sleep, which has to go through D0; nothing is written;
    /// - [`ConfigError::Ignored`] when the function stays where it was;
    /// - [`ConfigError::DeviceGone`]; those of the access.
    pub fn change_state(
        &self,
        config: &dyn ConfigSpace,
        clock: &impl Clock,
        state: PowerState,
    ) -> Result<bool, ConfigError> {
        if !self.supports(state) {
            return Err(ConfigError::NotSupported { what: "this power state" });
        }
        let mut control = self.control(config)?;
        let from = PowerState::from_bits(control.state_bits());
        if from == state {
            return Ok(false);
        }
        if state != PowerState::D0 && state < from {
            return Err(ConfigError::NotSupported { what: "a lighter sleep without D0 in between" });
        }
        control.set_state_bits(state.bits());
        // A one would clear the wake status, which is not ours to take.
        control.set_wake_status(false);
        config.write16(super::at(self.offset, Self::CONTROL), control.0)?;
        clock.sleep(PowerState::settle_time(from, state));
        let after = self.control(config)?;
        if PowerState::from_bits(after.state_bits()) != state {
            let offset = super::at(self.offset, Self::CONTROL);
            return Err(ConfigError::Ignored { offset, register: "the power state" });
        }
        Ok(from == PowerState::D3Hot && !control.no_soft_reset())
    }
}
