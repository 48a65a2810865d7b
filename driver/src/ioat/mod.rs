//! Intel I/OAT, the DMA engine of Xeon chipsets, interface version 3.
//!
//! [`Ioat`] is the device, [`Channel`] one of its engines. A channel takes copies and fills
//! of scatter-gather lists, hands them over in batches with one doorbell, and gives what
//! rode along back when they end.
//!
//! # What is guaranteed
//!
//! - Each operation is posted whole or not at all, and ends exactly once: with success,
//!   with the error that the engine halted on, or given up in a reset.
//! - An owner comes back only when the engine is done with the operation, or was shown to
//!   have stopped. A deadline alone gives nothing back.
//! - What the engine writes is checked against what it was given. A completion word that
//!   makes no sense takes the channel out of service until [`Channel::recover`].
//! - Every wait is bounded.
//!
//! # Files
//!
//! `device` starts and stops the device, `ring` is the descriptor table without any
//! register, `channel` posts and polls, `wait` waits, `stream` feeds long lists, `recover`
//! stops and restarts, and `driver` is the driver as the kit sees it.

mod channel;
mod device;
mod driver;
mod error;
mod recover;
mod ring;
mod stream;
#[cfg(test)]
mod tests;
mod wait;

pub use crate::wait::CompletionMode;
pub use channel::{Channel, ChannelOptions};
pub use device::EngineFacts;
pub use error::{
    ChannelError, CompletionFault, OpenChannelError, OperationError, RejectReason, Rejected,
    ResetDeviceError, StartError, StopError, StreamError, WaitError,
};
pub use recover::Recovery;

use std::sync::Arc;

use vdk_hal::event::DeviceEvents;
use vdk_hal::reset::ResetKind;
use vdk_iommu::{AddressWidth, Domain};

use crate::kit::Session;
use device::Device;

/// The name of one operation of a channel. Numbers are given in the order of posting and are
/// never used again, not even after a reset, so that an old cookie cannot mean a new
/// operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub(crate) u64);

impl Cookie {
    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// The end of one operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<T> {
    /// Which operation.
    pub cookie: Cookie,
    /// How it ended.
    pub result: Result<(), OperationError>,
    /// What rode along.
    pub owner: T,
}

/// What happened on a channel since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Descriptors handed to the engine, with the one that starts each chain.
    pub descriptors: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Interrupts received.
    pub interrupts: u64,
    /// Operations that ended.
    pub operations: u64,
    /// Operations that ended with an error.
    pub failed: u64,
    /// Bytes of the operations posted, without those that were not done.
    pub bytes: u64,
    /// Looks at the completion word that found nothing, in waits.
    pub spins: u64,
    /// Completion words that came late or twice.
    pub stale_words: u64,
    /// Resets after a failure.
    pub recoveries: u64,
}

/// A device that runs.
///
/// Dropping it, and all its channels, stops it: channels reset, interrupts off, bus
/// mastering off.
#[derive(Debug)]
pub struct Ioat {
    device: Arc<Device>,
}

impl Ioat {
    /// Starts the device: checks the interface version, resets every channel (and the
    /// function, where a channel does not obey), enables interrupts, and turns bus mastering
    /// on last.
    ///
    /// # Errors
    ///
    /// [`StartError`]; the device is off then.
    pub fn start(session: Session) -> Result<Self, StartError> {
        let domain = Domain::new(session.dma()?, AddressWidth::FULL)?;
        Self::start_in(session, &domain)
    }

    /// As [`start`](Self::start), in an address space that other drivers map memory in too:
    /// that of `session`, so that what one maps all devices in it reach.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`SessionError::OtherAddressSpace`] for a domain over
    /// another address space; the device was not touched then.
    ///
    /// [`SessionError::OtherAddressSpace`]: crate::kit::SessionError::OtherAddressSpace
    pub fn start_in(session: Session, domain: &Domain) -> Result<Self, StartError> {
        session.check_domain(domain)?;
        let domain = domain.with_width(AddressWidth::FULL);
        Device::start(session, domain).map(|device| Self { device: Arc::new(device) })
    }

    /// What happens to the function itself: a removal, or that the kernel wants it back. Stop
    /// then. Where the kit runs the driver, it takes these and stops the driver by itself.
    #[must_use]
    pub fn device_events(&self) -> &DeviceEvents {
        self.device.session().events()
    }

    /// What the engine says of itself.
    #[must_use]
    pub fn facts(&self) -> EngineFacts {
        self.device.facts()
    }

    /// The address space of the device: map what it is to copy there.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.device.domain()
    }

    /// Opens a channel, counted from 0.
    ///
    /// # Errors
    ///
    /// [`OpenChannelError`]; the channel is as it was.
    pub fn channel<T>(&self, number: u8, options: ChannelOptions) -> Result<Channel<T>, OpenChannelError> {
        Channel::open(&self.device, number, options)
    }

    /// Resets the whole function, for an engine that does not obey its own reset, and lets
    /// it work again. Close every channel before. Only a reset that hits no other function is
    /// taken.
    ///
    /// # Errors
    ///
    /// [`ResetDeviceError`]; when nothing was done, or the reset was refused, the device works
    /// as before, and else [`stop`](Self::stop) and a new start remain.
    pub fn reset(&self) -> Result<ResetKind, ResetDeviceError> {
        self.device.reset()
    }

    /// Stops the device under its channels: every channel is reset, and bus mastering is
    /// off. Channels that are still open find it gone and end what they had with
    /// [`OperationError::Gone`]. Stopping twice is harmless.
    ///
    /// # Errors
    ///
    /// [`StopError`] when bus mastering could not be turned off.
    pub fn stop(&self) -> Result<(), StopError> {
        self.device.stop()
    }
}
