//! Memory that a device can reach.
//!
//! # The soundness argument
//!
//! 1. While a device may reach memory, no Rust reference to it exists. It is then a
//!    [`SharedMemory`], which offers copies and atomic words only.
//! 2. [`PinnedMemory`] is the same memory owned by one piece of code and reachable by no
//!    device; it dereferences to `[u8]`. [`PinnedMemory::share`] and
//!    [`SharedMemory::try_into_pinned`] move between the two states, and the way back is
//!    open only to the last owner of pages that nobody else was ever shown: not to those
//!    of a file that came from elsewhere or was handed out, nor to a device's.
//! 3. A mapping into an IOMMU owns a clone of the [`SharedMemory`], so that the pages
//!    outlive it; see [`DmaMapper`](crate::dma::DmaMapper).
//! 4. Memory that can go away under an access, as a BAR does with its device, is mapped
//!    with [`SharedMemory::map_guarded`]: the access then meets ones, as on the bus.
//! 5. Single words are accessed as atomics or volatile. A copy of many bytes is a plain one,
//!    for its speed, which is an assumption and not a rule of the language: whoever writes
//!    the bytes meanwhile is taken for an agent outside the program, as a device is, also
//!    when it is a thread that plays one. What makes it hold in practice: no reference to
//!    the bytes exists that a copy could be judged by; a compiler fence comes after each
//!    copy, or the copy is in a burst of [`access`], whose end, a Release store, comes after
//!    it; and what was read is any bytes at all, so that a mixture of old and new is a valid
//!    value. Who needs more than that shares a word, and copies after it has said so.
//! 6. A software device reaches memory through [`access`], whose revocation is complete
//!    before it returns.

pub mod access;
mod copy;
mod epoch;
mod fault;
mod fault_table;
mod guarded;
mod lend;
mod mapping;
mod pinned;
mod shared;
mod slots;
mod view;

pub use copy::fill_bytes_of;
pub(crate) use copy::store_word;
pub use lend::lend;
pub use mapping::{Pages, page_size};
pub use pinned::PinnedMemory;
pub use shared::{OutOfBounds, SharedMemory};
pub use slots::{Slot, Slots, StreamBatch};

use thiserror::Error;

use crate::address::{ByteLength, HostAddress};

/// Why memory could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region must have at least one byte.
    #[error("a memory region must have at least one byte")]
    Empty,
    /// The size does not fit the address space.
    #[error("{length} rounded up to pages of {page} does not fit the address space")]
    TooLong {
        /// The size asked for.
        length: ByteLength,
        /// The page size.
        page: ByteLength,
    },
    /// The system has no memory of this kind to give.
    #[error("cannot allocate {length} on {pages} pages: {error}{hint}")]
    Allocate {
        /// The size asked for, rounded up to whole pages.
        length: ByteLength,
        /// The kind of pages.
        pages: Pages,
        /// What the system said.
        error: std::io::Error,
        /// What to do about it, empty when nothing is known.
        hint: String,
    },
    /// A caller's buffer does not begin and end on page boundaries.
    #[error(
        "buffer at {address} of {length} is not whole pages of {page}: a device would also reach \
         what shares its first or last page; copy it into pinned memory instead"
    )]
    Unaligned {
        /// Where the buffer begins.
        address: HostAddress,
        /// Its size.
        length: ByteLength,
        /// The page size.
        page: ByteLength,
    },
    /// A file could not be mapped.
    #[error("cannot map {length} of the file at offset {offset:#x}: {error}")]
    MapFile {
        /// The offset in the file.
        offset: u64,
        /// The size.
        length: ByteLength,
        /// What the system said.
        error: std::io::Error,
    },
}
