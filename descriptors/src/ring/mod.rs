//! Rings between a driver and a device: whose turn it is.
//!
//! # Two kinds of index
//!
//! - [`FreeRunning`] indices count entries and wrap at their own width, which is wider than
//!   the ring: all N slots are usable, a depth of 1 works, and full and empty differ.
//! - [`Wrapped`] indices are slot numbers: one slot stays empty, or full would look like
//!   empty, so N - 1 are usable.
//!
//! [`Cursors`] keeps both ends of one ring of either kind. Counts are 64 bits wide inside;
//! what a device sees is a view of them. The depth is a field, never a constant: it is the
//! smaller of what driver and device want ([`ZeroBased`] for sizes that devices give less
//! one).
//!
//! # The way of an entry
//!
//! A [`Producer`] reserves slots, all or none, writes them, publishes them, and rings once
//! for as many batches as it likes; the doorbell needs the token of the fence before it.
//! The device, or a [`Consumer`] or [`PhaseConsumer`], takes entries in order. Whatever it
//! says about its progress is checked: [`Cursors::accept_consumed`],
//! [`DescriptorCircle::newly_completed`]. Owners of posted work ride in [`Completions`]
//! (any order) or [`InOrder`], and each comes back exactly once.
//!
//! Nothing here allocates, locks or makes a system call after construction.
//!
//! ```
//! use vdk_descriptors::ring::{Cursors, FreeRunning, Handover, Producer};
//! use vdk_hal::memory::{Pages, SharedMemory};
//! use vdk_hal::{address::ByteLength, mmio::Doorbell};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base)?;
//! let bell: Doorbell<u16> = Doorbell::mapped(memory.slice(2048, 2)?, None).ok_or("misaligned")?;
//!
//! let cursors = Cursors::<FreeRunning<u16>>::new(8)?;
//! let mut ring = Producer::<[u64; 8], _>::new(memory.slots(0, 8)?, cursors, Handover::Doorbell)?;
//! let mut batch = ring.reserve(2).ok_or("the ring is full")?;
//! batch.write(&[1; 8])?;
//! batch.write(&[2; 8])?;
//! batch.publish();
//! if let Some((token, index)) = ring.doorbell() {
//!     bell.ring(token, index)?;
//! }
//! assert_eq!(memory.read_value::<u16>(2048)?, 2);
//! # Ok(())
//! # }
//! ```
//!
//! Without the token, which only the fence yields, a doorbell cannot be rung:
//!
//! ```compile_fail,E0061
//! fn tail_before_entries(bell: &vdk_hal::mmio::Doorbell<u16>) {
//!     let _ = bell.ring(2);
//! }
//! ```
//!
//! ```compile_fail,E0423
//! let token = vdk_hal::barrier::DoorbellToken(());
//! ```

mod circle;
mod completions;
mod consumer;
mod cursors;
mod event;
mod in_order;
mod phase;
mod producer;
mod table;
mod zero_based;

pub use circle::{CircleError, CompletedError, DescriptorCircle};
pub use completions::{CompletionError, Completions, Cookie, Full, LengthError, written_length};
pub use consumer::Consumer;
pub use cursors::{
    Cursors, DepthError, FreeRunning, IndexError, IndexKind, RingIndex, Run, RunSlots, Wrapped,
};
pub use event::{arm_then_look, need_ring};
pub use in_order::InOrder;
pub use phase::{Head, PhaseBit, PhaseConsumer, PhasePosition};
pub use producer::{Handover, Producer, Reservation, ReservationFull};
pub use table::{SlotTable, TableError};
pub use zero_based::ZeroBased;
