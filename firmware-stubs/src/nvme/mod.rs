//! An NVM Express 1.4 controller with the NVM command set.
//!
//! Registers, queue entries and structures are in [`vdk_descriptors::nvme`]. The controller
//! has the ids of no vendor and is found by its class. It has one port, up to 64
//! namespaces without metadata in blocks of 512 or 4096 bytes, and doorbells 128 bytes
//! apart. MSI-X has one vector for each completion queue.
//!
//! Commands are executed in the order in which they are fetched, one after the other. Those
//! that would take long, such as a format, are done in slices, and others wait for them.
//!
//! # Stricter than hardware
//!
//! - Registers of 32 bits take 32-bit accesses, those of 64 bits a whole or halves.
//! - Registers that may not change while the controller is enabled do not, and enabling
//!   with values that it does not have is a fatal error.
//! - A doorbell value that is no place in the queue, or consumes what was never posted, is
//!   taken back; one of a queue that does not exist as well. Both raise the event that the
//!   specification has for them.
//! - Commands are checked as a whole, data pointers included, before anything is moved.
//! - Whatever keeps the controller from its queues is a fatal error: CSTS.CFS.
//!
//! All of these but the last two are written down as driver faults.
//!
//! # Not modelled
//!
//! Metadata and protection information, fused commands, namespace management, firmware
//! updates, security, sanitize, reservations, directives, power states beside the first,
//! weighted arbitration, memory of the controller, and interrupt coalescing, whose feature
//! only keeps what is written. A flush of a namespace with a file waits for the system.

mod admin;
mod bus;
mod doorbell;
mod engine;
mod events;
mod features;
mod identify;
mod interrupts;
mod io;
mod logs;
mod namespace;
mod prp;
mod queue;
mod registers;
mod sgl;
mod transfer;
mod trouble;

use core::time::Duration;

use vdk_descriptors::nvme::{BAR, CLASS_CODE, ControllerCapabilities, DOORBELLS};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::BarKind;
use vdk_hal::function::PciIdentity;

use self::bus::Nvme;
use self::doorbell::STRIDE_EXPONENT;
use self::namespace::Namespace;
use crate::options::{StubError, StubOptions};
use crate::shell::{BarProfile, DeviceModel, ExpressProfile, MsiProfile, MsixProfile, PowerProfile, Profile};

/// The profile and the model of a controller.
pub(crate) fn build(options: &StubOptions) -> Result<(Profile, Box<dyn DeviceModel>), StubError> {
    StubError::check_range("the count of queue pairs", u64::from(options.queue_pairs), 1..=MOST_PAIRS)?;
    StubError::check_range("the size of a queue", u64::from(options.queue_entries), 2..=0x1_0000)?;
    StubError::check_range("the longest transfer", u64::from(options.max_transfer_log2), 13..=20)?;
    StubError::check_range(
        "the time to start, in units of 500 ms,",
        timeout_units(options.ready_timeout),
        1..=255,
    )?;
    // CAST: `usize` is at most 64 bits wide.
    StubError::check_range("the count of namespaces", options.namespaces.len() as u64, 1..=64)?;
    let bar = BarIndex::new(BAR).ok_or(StubError::Profile { what: "there is no such BAR" })?;
    let vectors = options.queue_pairs + 1;
    let serial_number = options.seed ^ u64::from(options.address.requester_id().as_u16()) << 48;
    let profile = Profile {
        name: "stub:nvme".to_owned(),
        identity: PciIdentity {
            vendor: VENDOR_ID,
            device: DEVICE_ID,
            revision: 0x01,
            class: CLASS_CODE,
            subsystem_vendor: VENDOR_ID,
            subsystem: 0,
        },
        bars: vec![BarProfile { index: bar, kind: BarKind::Memory64, prefetchable: false, size: BAR_LENGTH }],
        intx: true,
        msi: Some(MsiProfile { vectors: vectors.next_power_of_two().min(32), maskable: true }),
        msix: Some(MsixProfile {
            vectors,
            table: (bar, MSIX_TABLE_OFFSET),
            pending: (bar, MSIX_PENDING_OFFSET),
        }),
        power: Some(PowerProfile { no_soft_reset: options.no_soft_reset }),
        express: Some(ExpressProfile { function_level_reset: true }),
        registers: Vec::new(),
        serial_number,
    };
    let namespaces = (1..).zip(&options.namespaces).map(|(id, options)| Namespace::new(id, options));
    let namespaces = namespaces.collect::<Result<_, _>>()?;
    Ok((profile, Box::new(Nvme::new(bar, options, serial_number, namespaces))))
}

/// The unit of CAP.TO is 500 ms.
fn timeout_units(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis().div_ceil(500)).unwrap_or(u64::MAX)
}

/// CAP.
fn capabilities(options: &StubOptions) -> ControllerCapabilities {
    let mut capabilities = ControllerCapabilities::default();
    capabilities.set_max_queue_entries(u16::try_from(options.queue_entries - 1).unwrap_or(u16::MAX));
    capabilities.set_contiguous_queues_required(true);
    capabilities.set_timeout_units(u8::try_from(timeout_units(options.ready_timeout)).unwrap_or(u8::MAX));
    capabilities.set_doorbell_stride_exponent(STRIDE_EXPONENT);
    capabilities.set_nvm_command_set(true);
    capabilities.set_page_exponent_max(4);
    capabilities
}

/// An id that no vendor has, as emulated devices use it.
const VENDOR_ID: u16 = 0x1234;
const DEVICE_ID: u16 = 0x4e56;
/// So many pairs of I/O queues have room for their doorbells.
const MOST_PAIRS: u64 = 64;
/// Registers, doorbells, then the MSI-X table and pending bits.
const BAR_LENGTH: ByteLength = ByteLength::new(0x1_0000);
const MSIX_TABLE_OFFSET: u32 = 0x8000;
const MSIX_PENDING_OFFSET: u32 = 0x9000;

const _: () = assert!(
    DOORBELLS + (MOST_PAIRS + 1) * 2 * doorbell::STRIDE.as_u64() <= MSIX_TABLE_OFFSET as u64,
    "the doorbells end before the MSI-X table"
);
