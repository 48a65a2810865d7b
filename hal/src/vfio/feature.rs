//! Optional features of a device: bus mastering and low power.

use core::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

use vfio_bindings::bindings::vfio as abi;

use super::device::{Device, Unreached};
use super::kernel::Call;
use super::message::Message;
use crate::interrupt::EventFd;

/// What can be asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    BusMaster,
    LowPowerEntry,
    LowPowerEntryWithWakeup,
    LowPowerExit,
    VfToken,
    DmaLogging,
    Migration,
}

/// A feature that a kernel may offer for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFeature {
    /// What it is, in a few words.
    pub name: &'static str,
    /// Whether the kernel offers it for this device.
    pub offered: bool,
}

/// What is told to a person.
const NAMED: &[(&str, Feature)] = &[
    ("bus mastering by call", Feature::BusMaster),
    ("low power", Feature::LowPowerEntry),
    ("low power with wake-up", Feature::LowPowerEntryWithWakeup),
    ("VF token", Feature::VfToken),
    ("log of DMA writes", Feature::DmaLogging),
    ("migration", Feature::Migration),
];

/// Which features there are. Changes nothing.
pub(super) fn offered(device: &Device) -> Result<Vec<DeviceFeature>, Unreached> {
    let ask = |&(name, feature): &(&'static str, Feature)| match feature.probe(device, 0) {
        Ok(_) => Ok(DeviceFeature { name, offered: true }),
        Err(Unreached::Failed(_)) => Ok(DeviceFeature { name, offered: false }),
        Err(error) => Err(error),
    };
    NAMED.iter().map(ask).collect()
}

impl Feature {
    fn number(self) -> u32 {
        match self {
            Self::BusMaster => abi::VFIO_DEVICE_FEATURE_BUS_MASTER,
            Self::LowPowerEntry => abi::VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY,
            Self::LowPowerEntryWithWakeup => abi::VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY_WITH_WAKEUP,
            Self::LowPowerExit => abi::VFIO_DEVICE_FEATURE_LOW_POWER_EXIT,
            Self::VfToken => abi::VFIO_DEVICE_FEATURE_PCI_VF_TOKEN,
            Self::DmaLogging => abi::VFIO_DEVICE_FEATURE_DMA_LOGGING_START,
            Self::Migration => abi::VFIO_DEVICE_FEATURE_MIGRATION,
        }
    }

    /// Whether the device has it and it can be set. Changes nothing.
    pub(super) fn is_there(self, device: &Device) -> bool {
        self.probe(device, abi::VFIO_DEVICE_FEATURE_SET).is_ok()
    }

    fn probe(self, device: &Device, how: u32) -> Result<u32, Unreached> {
        let flags = abi::VFIO_DEVICE_FEATURE_PROBE | how;
        device.exchange(Call::Feature, &mut self.message(flags, &[]))
    }

    fn set(self, device: &Device, payload: &[u8]) -> Result<(), Unreached> {
        device
            .exchange_anyhow(Call::Feature, &mut self.message(abi::VFIO_DEVICE_FEATURE_SET, payload))
            .map(|_| ())
    }

    fn message(self, flags: u32, payload: &[u8]) -> Message {
        let header = offset_of!(abi::vfio_device_feature, data);
        Message::new(header + payload.len())
            .with(offset_of!(abi::vfio_device_feature, flags), flags | self.number())
            .with_bytes(header, payload)
    }
}

/// Turns bus mastering on or off.
pub(super) fn set_bus_master(device: &Device, on: bool) -> Result<(), Unreached> {
    let operation =
        if on { abi::VFIO_DEVICE_FEATURE_SET_MASTER } else { abi::VFIO_DEVICE_FEATURE_CLEAR_MASTER };
    Feature::BusMaster.set(device, &operation.to_ne_bytes())
}

/// Lets the kernel put the device to sleep. With a `wakeup`, that is signalled when the
/// device wakes by itself.
pub(super) fn enter_low_power(device: &Device, wakeup: Option<&EventFd>) -> Result<(), Unreached> {
    let Some(wakeup) = wakeup else { return Feature::LowPowerEntry.set(device, &[]) };
    let mut payload = [0; size_of::<abi::vfio_device_low_power_entry_with_wakeup>()];
    let descriptor = wakeup.as_fd().as_raw_fd().to_ne_bytes();
    for (place, byte) in payload.iter_mut().zip(descriptor) {
        *place = byte;
    }
    Feature::LowPowerEntryWithWakeup.set(device, &payload)
}

/// Wakes the device.
pub(super) fn exit_low_power(device: &Device) -> Result<(), Unreached> {
    Feature::LowPowerExit.set(device, &[])
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::io::Errno;

    use super::*;
    use crate::vfio::mock::MockFile;

    #[test]
    fn features_are_probed_and_nothing_is_set() {
        let file = MockFile::new(|call, message, _| {
            assert_eq!(call, Call::Feature);
            let flags = message.word(offset_of!(abi::vfio_device_feature, flags)).unwrap();
            assert_eq!(flags & !abi::VFIO_DEVICE_FEATURE_MASK, abi::VFIO_DEVICE_FEATURE_PROBE, "{flags:#x}");
            match flags & abi::VFIO_DEVICE_FEATURE_MASK {
                abi::VFIO_DEVICE_FEATURE_BUS_MASTER | abi::VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY => Ok(0),
                abi::VFIO_DEVICE_FEATURE_MIGRATION => Err(Errno::OPNOTSUPP),
                _ => Err(Errno::NOTTY),
            }
        });
        let found = offered(&file.device()).unwrap();
        let there: Vec<&str> = found.iter().filter(|one| one.offered).map(|one| one.name).collect();
        assert_eq!((found.len(), there), (NAMED.len(), vec!["bus mastering by call", "low power"]));
        assert_eq!(file.calls().len(), NAMED.len());
    }

    #[test]
    fn a_device_that_goes_away_is_not_one_without_features() {
        let gone = AtomicBool::new(false);
        let file = MockFile::new(move |_, _, _| {
            // ORDERING: Relaxed; one thread.
            if gone.swap(true, Ordering::Relaxed) { Err(Errno::NODEV) } else { Ok(0) }
        });
        assert_eq!(offered(&file.device()), Err(Unreached::Gone));
    }
}
