//! Emulated devices on a vfio-user socket, for QEMU's `vfio-user-pci`, for the client of
//! [`vdk_hal::vfio_user`], and for any other client.
//!
//! A [`Server`] has one device and one client at a time; who comes meanwhile is told that
//! the device is busy. Each client gets a session of its own, as by opening the function:
//! when it goes away, however it does, the device is reset and its memory is let go.
//!
//! # What a client can rely on
//!
//! - Its mappings are those of a software IOMMU: the device reaches what is mapped, with the
//!   permissions of the mapping, and nothing else. What is outside is a fault that is logged.
//! - Memory that comes without a file is reached by messages to the client. A client that does
//!   not answer within a second, or wrongly, makes the access a fault. It must answer while
//!   it waits for a register: the device may be in the middle of the access.
//! - An unmap is answered when no access can follow.
//! - Interrupts keep their event files across a reset.
//! - Whole pages of doorbells are offered to be mapped; the device thread then looks at them
//!   without being woken.
//!
//! # What is not taken on trust
//!
//! Every length, index, flag and count of a message, and how many file descriptors come
//! along. A file of memory may be cut short at any time: the device then reads ones. It must
//! be one of memfd, tmpfs or hugetlbfs, whose pages nobody but the kernel provides. An event
//! file may block and be full: who signals it is not held up for long. A
//! message that does not go on ends the session, as does one that makes no sense; commands
//! that are merely wrong are answered with an error.
//!
//! # Not there
//!
//! Migration, and files that stand for registers, are not offered.
//!
//! # Files
//!
//! `server` takes clients, `session` is the loop of one of them, `negotiation` its
//! beginning, `conversation` is both directions of the socket, `description` says what the device is, `regions` reads and writes,
//! `interrupts` sets interrupts up, and `memory` is what the client has mapped.

mod conversation;
mod description;
mod files;
mod interrupts;
mod memory;
mod negotiation;
mod regions;
mod reply;
mod server;
mod session;

pub use server::{RunningServer, ServeError, Server, ServerOptions, StopServer};

use vdk_hal::address::{Iova, IovaRange};
use vdk_iommu::soft::SoftIommuOptions;

/// An IOMMU that accepts what clients map: every address, zero included. Where the machine
/// of a client has holes or an IOMMU of its own, that is the client's business.
#[must_use]
pub fn iommu_options() -> SoftIommuOptions {
    // The last page has no address after it.
    let all = IovaRange::from_bounds(Iova::new(0), Iova::new(u64::MAX - 0x1000));
    SoftIommuOptions { ranges: all.into_iter().collect(), ..SoftIommuOptions::default() }
}
