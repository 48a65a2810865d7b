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
}

impl Feature {
    fn number(self) -> u32 {
        match self {
            Self::BusMaster => abi::VFIO_DEVICE_FEATURE_BUS_MASTER,
            Self::LowPowerEntry => abi::VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY,
            Self::LowPowerEntryWithWakeup => abi::VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY_WITH_WAKEUP,
            Self::LowPowerExit => abi::VFIO_DEVICE_FEATURE_LOW_POWER_EXIT,
        }
    }

    /// Whether the device has it. Changes nothing.
    pub(super) fn is_there(self, device: &Device) -> bool {
        let flags = abi::VFIO_DEVICE_FEATURE_PROBE | abi::VFIO_DEVICE_FEATURE_SET;
        device.exchange(Call::Feature, &mut self.message(flags, &[])).is_ok()
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
