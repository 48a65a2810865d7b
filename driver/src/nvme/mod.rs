//! NVM Express: solid-state drives, by the NVM command set of revision 1.4.
//!
//! [`Controller`] is the device, [`Namespace`] a range of blocks, [`QueuePair`] the way to
//! it: commands go in with an owner and come back with it. [`BlockQueue`] is a queue pair
//! and a namespace as a [`BlockDevice`](crate::block::BlockDevice), which takes transfers of
//! any length.
//!
//! # What is guaranteed
//!
//! - Each command is submitted whole or not at all, and ends exactly once: with what the
//!   controller says, or given up in a reset, a deletion or a removal.
//! - An owner comes back only when the controller has completed the command or was shown to
//!   have stopped. A deadline alone gives nothing back: an overdue command is aborted, and
//!   when that does not help the controller is reset.
//! - What the controller writes is checked against what it was given. A completion that
//!   makes no sense takes the queue out of service until [`QueuePair::recover`].
//! - Every wait is bounded.
//!
//! # Files
//!
//! `device` enables and resets, `stop` stops and proves it, `bring_up` asks and tells what comes after, `admin` is
//! the admin queue, `queue` a submission and a completion queue without any meaning, `pair`
//! creates, commits and polls, `submit` checks and submits, `wait` waits and watches the time, `recover` ends what is outstanding,
//! `log` and `feature` are admin commands, `blocks` is the block device, and `driver` is the
//! driver as the kit sees it.

mod admin;
mod blocks;
mod bring_up;
mod command;
mod device;
mod driver;
mod error;
mod feature;
mod log;
mod namespace;
mod pair;
mod queue;
mod recover;
mod stop;
mod submit;
mod wait;

pub use crate::wait::CompletionMode;
pub use blocks::BlockQueue;
pub use bring_up::ControllerFacts;
pub use command::{CommandError, Completion, RejectReason, Rejected, Statistics, WaitError};
pub use error::{
    AdminError, EnableError, NamespaceError, OpenQueueError, QueueError, RecoverError, ResetError,
    StartError, StopError,
};
pub use namespace::Namespace;
pub use pair::QueuePair;
pub use queue::CompletionFault;
pub use vdk_descriptors::ring::Cookie;

use core::time::Duration;
use std::sync::Arc;

use vdk_descriptors::nvme::{
    AdminOpcode, AsyncEvent, Cns, IdentifyController, IdentifyDword, IdentifyNamespace, NamespaceList,
    SubmissionEntry, Version,
};
use vdk_hal::address::ByteLength;
use vdk_hal::event::{DeviceEvent, DeviceEvents};
use vdk_hal::interrupt::EventFd;
use vdk_iommu::{AddressWidth, Domain};
use zerocopy::IntoBytes;

use crate::kit::Session;
use bring_up::new_zeroed;
use device::Device;

/// How a controller is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerOptions {
    /// How many I/O queue pairs to ask for; the controller may give fewer.
    pub queues: u16,
    /// Whether to enable an MSI-X vector for each queue.
    pub interrupts: bool,
    /// Whether to use shadow doorbells where the controller has them. They spare writes to
    /// registers, but the controller has to look at memory instead. Off at first: commands
    /// are handed over in batches, so that few writes are left to be spared.
    pub shadow_doorbells: bool,
    /// The longest transfer of one command, beside MDTS. It decides how much memory for page
    /// lists each command has.
    pub max_transfer: ByteLength,
    /// How long an admin command may take.
    pub admin_limit: Duration,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            queues: 4,
            interrupts: true,
            shadow_doorbells: false,
            max_transfer: ByteLength::new(1 << 20),
            admin_limit: Duration::from_secs(10),
        }
    }
}

/// How a queue pair is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// How many commands can be in flight, 1 to MQES.
    pub depth: u32,
    /// Whether completions raise an interrupt, where the controller has a vector for it.
    pub interrupt: bool,
    /// How many looks an adaptive wait takes before it sleeps.
    pub spins: u32,
    /// How long a command may take before an abort is sent; after twice the time the queue
    /// pair fails.
    pub time_limit: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 127, interrupt: true, spins: 2000, time_limit: Duration::from_secs(10) }
    }
}

/// A controller that runs.
///
/// Dropping it, and all its queue pairs, stops it: shutdown notified, disabled, interrupts
/// off, bus mastering off.
#[derive(Debug)]
pub struct Controller {
    device: Arc<Device>,
}

impl Controller {
    /// Starts the controller: disables it (resetting the function where that fails), then
    /// lets it on the bus, enables it, identifies it and asks for queues. Each wait is bounded
    /// by CAP.TO or the options.
    ///
    /// # Errors
    ///
    /// [`StartError`]; the controller is off then.
    pub fn start(session: Session, options: ControllerOptions) -> Result<Self, StartError> {
        let domain = Domain::new(session.dma()?, AddressWidth::FULL)?;
        Self::start_in(session, &domain, options)
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
    pub fn start_in(
        session: Session,
        domain: &Domain,
        options: ControllerOptions,
    ) -> Result<Self, StartError> {
        session.check_domain(domain)?;
        let domain = domain.with_width(AddressWidth::FULL);
        Device::start(session, domain, options).map(|device| Self { device: Arc::new(device) })
    }

    /// What the controller says of itself, and what it gave.
    #[must_use]
    pub fn facts(&self) -> &ControllerFacts {
        self.device.facts()
    }

    /// The address space of the controller: map the memory of commands there.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.device.domain()
    }

    /// Opens an I/O queue pair with the lowest free number.
    ///
    /// # Errors
    ///
    /// [`OpenQueueError`]; nothing has changed.
    pub fn queue_pair<T>(&self, options: QueueOptions) -> Result<QueuePair<T>, OpenQueueError> {
        QueuePair::open(&self.device, options)
    }

    /// All that Identify Controller returns.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn identify(&self) -> Result<Box<IdentifyController>, AdminError> {
        self.identify_with(Cns::CONTROLLER, 0)
    }

    /// The numbers of the active namespaces, ascending. A controller of revision 1.0 has no
    /// list of them; all up to its highest are looked at then.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn namespaces(&self) -> Result<Vec<u32>, AdminError> {
        if self.device.version() < Version::V1_1 {
            return self.look_for_namespaces();
        }
        let (mut found, mut last) = (Vec::new(), 0);
        loop {
            let list = self.identify_with::<NamespaceList>(Cns::ACTIVE_NAMESPACES, last)?;
            let before = found.len();
            for namespace in list.iter() {
                // A list that does not ascend would never end.
                if namespace <= last {
                    return Ok(found);
                }
                last = namespace;
                found.push(namespace);
            }
            if found.len() - before < list.namespaces.len() || last >= self.facts().namespaces {
                return Ok(found);
            }
        }
    }

    fn look_for_namespaces(&self) -> Result<Vec<u32>, AdminError> {
        // Such controllers have few; a number that cannot be must not keep anyone busy.
        let highest = self.facts().namespaces.min(1024);
        let mut found = Vec::new();
        for namespace in 1..=highest {
            if self.identify_namespace(namespace)?.size > 0 {
                found.push(namespace);
            }
        }
        Ok(found)
    }

    /// All that Identify Namespace returns; all zero for a namespace that is not active.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub fn identify_namespace(&self, namespace: u32) -> Result<Box<IdentifyNamespace>, AdminError> {
        self.identify_with(Cns::NAMESPACE, namespace)
    }

    /// A namespace to read from and write to.
    ///
    /// # Errors
    ///
    /// [`NamespaceError`].
    pub fn namespace(&self, namespace: u32) -> Result<Namespace, NamespaceError> {
        let not_active = NamespaceError::NotActive { id: namespace };
        if namespace == 0 || namespace > self.facts().namespaces {
            return Err(not_active);
        }
        let identify = self.identify_namespace(namespace)?;
        // An inactive one is all zero; an active one of 0 blocks still has a format.
        if identify.as_bytes().iter().all(|byte| *byte == 0) {
            return Err(not_active);
        }
        Namespace::new(namespace, &identify)
    }

    fn identify_with<S>(&self, cns: Cns, namespace: u32) -> Result<Box<S>, AdminError>
    where
        S: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + zerocopy::KnownLayout,
    {
        let mut dword = IdentifyDword::default();
        dword.set_cns(cns.0);
        let entry = SubmissionEntry { namespace, dword10: dword.0, ..SubmissionEntry::default() };
        self.device.admin(AdminOpcode::IDENTIFY, entry, size_of::<S>(), |_, admin| {
            let mut structure = new_zeroed::<S>();
            admin.read(0, structure.as_mut_bytes());
            structure
        })
    }

    /// The oldest event that the controller has told of and nobody has taken. Looks at
    /// memory only. Read the log page that it names, so that the controller tells of the
    /// next.
    ///
    /// # Errors
    ///
    /// [`AdminError`]; the admin queue is out of service then.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, AdminError> {
        self.device.lock_admin().next_event()
    }

    /// The event file that the admin queue signals when an event may have come.
    #[must_use]
    pub fn event(&self) -> Option<&EventFd> {
        self.device.vectors().first().map(|vector| &vector.event)
    }

    /// The oldest thing that happened to the function itself and nobody has taken: a removal,
    /// or that the kernel wants it back. Stop then. Where the kit runs the driver, it takes
    /// these and stops the driver by itself.
    #[must_use]
    pub fn next_device_event(&self) -> Option<DeviceEvent> {
        self.device.session().events().next()
    }

    /// The queue that [`next_device_event`](Self::next_device_event) takes from.
    #[must_use]
    pub fn device_events(&self) -> &DeviceEvents {
        self.device.session().events()
    }

    /// Resets the controller: disables and enables it. Queue pairs find themselves reset and
    /// end what they had in [`QueuePair::recover`].
    ///
    /// # Errors
    ///
    /// [`ResetError`].
    pub fn reset(&self) -> Result<(), ResetError> {
        self.device.reset(self.device.generation())
    }

    /// Stops the controller under its queue pairs, which find it gone. Once it has stopped,
    /// stopping again is harmless; after an error it is tried again.
    ///
    /// # Errors
    ///
    /// [`StopError`] when bus mastering could not be turned off.
    pub fn stop(&self) -> Result<(), StopError> {
        self.device.stop()
    }
}
