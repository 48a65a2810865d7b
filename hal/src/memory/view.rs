//! The memory of a token during one burst.

// UNSAFETY: accesses memory through addresses whose validity the burst proves.
#![expect(unsafe_code, reason = "accesses through addresses that a burst keeps valid")]

use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;

use super::access::Stale;
use super::copy::{copy_bytes, copy_out};

/// The memory of an [`AccessToken`](super::access::AccessToken) while the burst lasts that
/// made the view: loops over many small accesses compare the epoch once, and nothing in them
/// has to be loaded again.
///
/// It borrows the burst, so the burst can neither end nor be renewed while a view lives; a
/// revocation waits as long. Keep the loop short.
///
/// # Invariants
///
/// `address` is valid for reads and writes of `length` bytes for as long as the burst is
/// borrowed.
#[derive(Clone, Copy, Debug)]
pub struct AccessView<'burst> {
    address: *mut u8,
    length: usize,
    burst: PhantomData<&'burst ()>,
}

impl<'burst> AccessView<'burst> {
    /// A view of memory that the burst behind the lifetime keeps in place.
    ///
    /// # Safety
    ///
    /// The type's invariant holds for the lifetime of the result.
    #[inline(always)]
    pub(super) unsafe fn new(address: *mut u8, length: usize) -> Self {
        Self { address, length, burst: PhantomData }
    }

    /// Copies out of the memory.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the range is not inside the memory; nothing is copied then. The same
    /// holds for every access below.
    #[inline(always)]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Stale> {
        let source = self.pointer(offset, bytes.len())?;
        // SAFETY: `pointer` proved the source valid; the destination is an exclusive slice.
        unsafe { copy_out(source, bytes) };
        Ok(())
    }

    /// Copies `length` bytes from `source_offset` of `source`; the ranges may overlap.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline(always)]
    pub fn copy_from(
        &self,
        offset: usize,
        source: &AccessView<'_>,
        source_offset: usize,
        length: usize,
    ) -> Result<(), Stale> {
        let from = source.pointer(source_offset, length)?;
        let to = self.pointer(offset, length)?;
        // SAFETY: `pointer` proved both ranges valid while their bursts are borrowed.
        unsafe { copy_bytes(from, to, length) };
        Ok(())
    }

    /// The word at `offset`, for accesses in one piece while the burst lasts.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and when the address is not a multiple of 8.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> Result<&'burst AtomicU64, Stale> {
        let address: *mut u64 = self.pointer(offset, size_of::<u64>())?.cast();
        if !address.is_aligned() {
            return Err(Stale);
        }
        // SAFETY: `pointer` proved the word valid while the burst is borrowed, and it is
        // aligned. Others that access it do so through raw pointers, too.
        Ok(unsafe { AtomicU64::from_ptr(address) })
    }

    #[inline(always)]
    fn pointer(&self, offset: usize, length: usize) -> Result<*mut u8, Stale> {
        if offset > self.length || length > self.length - offset {
            return Err(Stale);
        }
        // SAFETY: the offset is inside the memory, which the burst keeps in place.
        Ok(unsafe { self.address.add(offset) })
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use crate::address::ByteLength;
    use crate::memory::access::{AccessDomain, Stale};
    use crate::memory::{Pages, SharedMemory};

    #[test]
    fn a_view_reads_and_copies_inside_its_memory_only() {
        let domain = AccessDomain::new();
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        memory.write(4000, &[7; 96]).unwrap();
        let registration = domain.register(memory);
        let mut reader = domain.reader();
        let burst = reader.enter();
        let token = burst.admit(&registration).unwrap();
        let view = burst.view(&token).unwrap();
        let mut bytes = [0; 96];
        view.read(4000, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 96]);
        view.copy_from(0, &view, 4032, 64).unwrap();
        view.read(0, &mut bytes[..65]).unwrap();
        assert_eq!((bytes[63], bytes[64]), (7, 0));
        // Nothing outside is reached, and nothing is copied by half.
        for (offset, length) in [(4001, 96), (4097, 0), (usize::MAX, 64), (8, usize::MAX)] {
            assert_eq!(view.copy_from(0, &view, offset, length), Err(Stale), "{offset} {length}");
            assert_eq!(view.copy_from(offset, &view, 0, length), Err(Stale), "{offset} {length}");
        }
        assert_eq!(view.read(4090, &mut bytes[..7]), Err(Stale));
        // A word is there only where all of it is, and aligned.
        // ORDERING: Relaxed; there is one thread.
        view.word(4088).unwrap().store(0x1122_3344_5566_7788, Ordering::Relaxed);
        view.read(4088, &mut bytes[..8]).unwrap();
        assert_eq!(bytes[..8], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        for offset in [4092, 4089, 4096, usize::MAX - 7] {
            assert!(view.word(offset).is_err(), "{offset}");
        }
    }

    #[test]
    fn a_token_of_an_earlier_epoch_has_no_view() {
        let domain = AccessDomain::new();
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let registration = domain.register(memory);
        let mut reader = domain.reader();
        let token = reader.enter().admit(&registration).unwrap();
        assert!(reader.enter().view(&token).is_ok());
        drop(registration);
        assert_eq!(reader.enter().view(&token).err(), Some(Stale));
    }
}
