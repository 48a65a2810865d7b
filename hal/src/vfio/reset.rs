//! Resets of an open function.

use core::time::Duration;

use rustix::io::Errno;

use super::device::Unreached;
use super::group::{owned_group, owned_groups};
use super::hot_reset::{self, HotResetInfo};
use super::kernel::Call;
use super::session::Session;
use crate::config::{
    AdvancedFeatures, Command, ConfigError, Express, PowerManagement, read_command, require_present,
    update_command, write_command,
};
use crate::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};
use crate::reset::{ResetError, ResetKind};

impl Session {
    /// The kinds that work now. A hot reset works when every function that it would hit is
    /// this process's.
    pub(super) fn reset_kinds(&self) -> Vec<ResetKind> {
        let mut kinds = Vec::new();
        if self.can_reset {
            kinds.push(self.own_kind());
        }
        if !kinds.contains(&ResetKind::Hot)
            && let Ok(Some(info)) = HotResetInfo::read(&self.device)
            && self.outsiders(&info).is_empty()
        {
            kinds.push(ResetKind::Hot);
        }
        kinds
    }

    /// The kind that the kernel's "reset the device" is: it takes the best that there is.
    fn own_kind(&self) -> ResetKind {
        let express = Express::find(&self.config).ok().flatten();
        let advanced = AdvancedFeatures::find(&self.config).ok().flatten();
        if express.is_some_and(|express| express.function_level_reset())
            || advanced.is_some_and(|advanced| advanced.function_level_reset)
        {
            return ResetKind::FunctionLevel;
        }
        let power = PowerManagement::find(&self.config).ok().flatten();
        let loses_state = power.and_then(|power| power.control(&self.config).ok());
        match loses_state {
            Some(control) if !control.no_soft_reset() => ResetKind::PowerManagement,
            _ => ResetKind::Hot,
        }
    }

    fn outsiders(&self, info: &HotResetInfo) -> Vec<String> {
        info.outsiders(self.address, &owned_groups(), &self.root)
    }

    pub(super) fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        let function = || self.name.clone();
        let refused = |error: Unreached| match error {
            Unreached::Gone => ResetError::Gone { function: function() },
            Unreached::Failed(Errno::NOTTY) => ResetError::NotSupported { function: function(), kind },
            error => ResetError::System { function: function(), kind, error: error.kind() },
        };
        self.device.reach(|_| Ok(())).map_err(refused)?;
        let alone = self.can_reset && self.own_kind() == kind;
        let mut groups = Vec::new();
        if !alone {
            let info = match kind {
                ResetKind::Hot => HotResetInfo::read(&self.device).map_err(refused)?,
                ResetKind::FunctionLevel | ResetKind::PowerManagement => None,
            };
            let Some(info) = info else {
                return Err(ResetError::NotSupported { function: function(), kind });
            };
            let others = self.outsiders(&info);
            if !others.is_empty() {
                return Err(ResetError::NotOwner { function: function(), kind, others: others.join(", ") });
            }
            groups = info.groups().into_iter().filter_map(owned_group).collect();
        }
        let before = read_command(&self.config).map_err(|error| self.config_refused(kind, &error))?;
        if let Err(error) = self.quiesce() {
            self.go_on(before);
            return Err(self.config_refused(kind, &error));
        }
        let done = if alone {
            self.device.reach(|file| file.command(Call::Reset, 0)).map(|_| ())
        } else {
            let proofs: Vec<[u8; 4]> = groups.iter().map(|group| group.proof()).collect();
            hot_reset::hot_reset(&self.device, &proofs)
        };
        if let Err(error) = done {
            // The kernel has said that it can, so that this means a link that did not come back.
            if error == Unreached::Failed(Errno::NOTTY) && !alone {
                self.settle(kind)?;
                return Err(ResetError::LinkDown { function: function(), kind });
            }
            self.go_on(before);
            return Err(refused(error));
        }
        self.settle(kind)
    }

    /// Interrupts, bus mastering and memory space off. The kernel brings the registers back
    /// to what they are now.
    fn quiesce(&self) -> Result<(), ConfigError> {
        self.interrupts.disable_enabled();
        self.set_bus_master(false)?;
        update_command(&self.config, |command| {
            command.set_bus_master(false);
            command.set_memory_space(false);
        })?;
        Ok(())
    }

    /// Undoes [`quiesce`](Self::quiesce), but for the interrupts, when nothing was reset.
    fn go_on(&self, before: Command) {
        let written = write_command(&self.config, before);
        if let Err(error) = written.and_then(|()| self.set_bus_master(before.bus_master())) {
            log::warn!("{}: not reset, and bus mastering and memory space stay off: {error}", self.name);
        }
    }

    /// Waits until the function answers again and asserts the state that a reset leaves.
    fn settle(&self, kind: ResetKind) -> Result<(), ResetError> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, SETTLE);
        let answered = poll_until(&clock, deadline, Pace::SLOW, "an answer", || {
            Ok::<_, TimedOut>(require_present(&self.config).is_ok().then_some(()))
        });
        if answered.is_err() {
            let milliseconds = u64::try_from(SETTLE.as_millis()).unwrap_or(u64::MAX);
            return Err(ResetError::TimedOut { function: self.name.clone(), kind, milliseconds });
        }
        self.interrupts.forget();
        let off = read_command(&self.config).and_then(|command| {
            if command.bus_master() || command.memory_space() {
                update_command(&self.config, |command| {
                    command.set_bus_master(false);
                    command.set_memory_space(false);
                })?;
            }
            Ok(())
        });
        off.map_err(|error| self.config_refused(kind, &error))?;
        self.device.set_decoding(false);
        Ok(())
    }

    fn config_refused(&self, kind: ResetKind, error: &ConfigError) -> ResetError {
        let function = self.name.clone();
        match error {
            ConfigError::DeviceGone => ResetError::Gone { function },
            ConfigError::System { error, .. } => ResetError::System { function, kind, error: *error },
            ConfigError::NotOpen => {
                ResetError::System { function, kind, error: std::io::ErrorKind::NotConnected }
            }
            _ => ResetError::System { function, kind, error: std::io::ErrorKind::Other },
        }
    }
}

/// What a function may take after a reset, by PCIe; the kernel has waited before.
const SETTLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
