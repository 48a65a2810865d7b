//! Memory owned by one piece of code.

// UNSAFETY: makes slices of memory that it proves to be exclusive.
#![expect(unsafe_code, reason = "slices of exclusively owned memory")]

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::io;
use std::sync::Arc;

use super::mapping::Mapping;
use super::{MemoryError, Pages, SharedMemory};
use crate::address::{ByteLength, HostAddress};

/// Page-aligned memory that only its owner reaches: no device, no other process, no other
/// thread. It dereferences to `[u8]`.
///
/// # Invariants
///
/// `mapping` is the only strong reference to its region, and there is no weak one; the
/// region is private.
pub struct PinnedMemory {
    mapping: Arc<Mapping>,
}

impl PinnedMemory {
    /// Allocates zeroed memory, `length` rounded up to whole `pages`.
    ///
    /// # Errors
    ///
    /// - [`MemoryError::Empty`] for a length of zero;
    /// - [`MemoryError::TooLong`] when it does not fit the address space;
    /// - [`MemoryError::Allocate`] when the system has none, with the way to get more.
    pub fn allocate(length: ByteLength, pages: Pages) -> Result<Self, MemoryError> {
        // INVARIANT: a fresh `Arc` is the only reference.
        Ok(Self { mapping: Arc::new(Mapping::allocate(length, pages)?) })
    }

    /// Takes a vector whose buffer begins and ends on page boundaries, without a copy.
    ///
    /// # Errors
    ///
    /// The vector comes back with [`MemoryError::Unaligned`] or [`MemoryError::Empty`];
    /// [`copy_of`](Self::copy_of) takes any buffer.
    pub fn from_vec(vector: Vec<u8>) -> Result<Self, (MemoryError, Vec<u8>)> {
        // INVARIANT: a fresh `Arc` is the only reference.
        Ok(Self { mapping: Arc::new(Mapping::from_vec(vector)?) })
    }

    /// Allocates memory and copies `bytes` to its beginning.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn copy_of(bytes: &[u8]) -> Result<Self, MemoryError> {
        let mut memory = Self::allocate(ByteLength::from_usize(bytes.len()), Pages::Base)?;
        memory[..bytes.len()].copy_from_slice(bytes);
        Ok(memory)
    }

    /// The memory as an exclusive owner again, if `mapping` is the last reference and its
    /// pages cannot be reached in another way.
    pub(super) fn from_last_reference(mapping: Arc<Mapping>) -> Result<Self, Arc<Mapping>> {
        let mut mapping = mapping;
        // INVARIANT: `get_mut` succeeds only for the only reference, strong or weak.
        match Arc::get_mut(&mut mapping) {
            Some(only) if only.is_private() => Ok(Self { mapping }),
            _ => Err(mapping),
        }
    }

    /// Makes the memory shareable with devices. No `[u8]` of it exists afterwards.
    #[must_use]
    pub fn share(self) -> SharedMemory {
        // Lending the pages in between may have undone it.
        self.mapping.exclude_from_fork();
        SharedMemory::from_mapping(self.mapping)
    }

    /// The vector that the memory was made of by [`from_vec`](Self::from_vec).
    ///
    /// # Errors
    ///
    /// The memory itself when it was not made of a vector.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        match Arc::try_unwrap(self.mapping) {
            Ok(mapping) => mapping.into_vec().map_err(|mapping| Self { mapping: Arc::new(mapping) }),
            // By the invariant this is the only reference; were it not, keep what there is.
            Err(mapping) => Err(Self { mapping }),
        }
    }

    /// Touches every page now, so that no later access faults.
    ///
    /// # Errors
    ///
    /// What `madvise(2)` reports; "invalid argument" before Linux 5.14.
    pub fn populate(&self) -> io::Result<()> {
        self.mapping.populate()
    }

    /// Where the memory lies in this process.
    #[must_use]
    pub fn host_address(&self) -> HostAddress {
        self.mapping.host_address()
    }

    /// The size, whole pages.
    #[must_use]
    pub fn length(&self) -> ByteLength {
        ByteLength::from_usize(self.mapping.length())
    }

    /// The pages behind the memory.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.mapping.pages()
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY:
        // 1. The range is valid by the invariant of `Mapping`.
        // 2. Nobody else can write it: `self` holds the only reference (type invariant),
        //    and a device reaches only what is shared.
        // 3. The lifetime is that of `&self`.
        unsafe { core::slice::from_raw_parts(self.mapping.as_non_null().as_ptr(), self.mapping.length()) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other slice of it.
        unsafe { core::slice::from_raw_parts_mut(self.mapping.as_non_null().as_ptr(), self.mapping.length()) }
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMemory")
            .field("address", &self.host_address())
            .field("length", &self.length())
            .field("pages", &self.pages())
            .finish()
    }
}
