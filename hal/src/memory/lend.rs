//! A caller's own pages, lent to devices for a scope.

// UNSAFETY: describes borrowed memory for as long as it is borrowed.
#![expect(unsafe_code, reason = "borrowed memory described for the scope of the borrow")]

use core::ptr::NonNull;
use core::time::Duration;

use super::mapping::require_whole_pages;
use super::{MemoryError, SharedMemory};
use crate::poll::{Clock, Deadline, SystemClock};

/// Lends `buffer` to `scope` as shared memory, and takes it back when `scope` returns.
///
/// The buffer must begin and end on page boundaries: a device reaches whole pages, so
/// anything else would expose its neighbours.
///
/// Whatever `scope` mapped must be unmapped when it returns. A mapping or a clone that is
/// still alive then is waited for, 10 s at most; after that the process is aborted, since
/// returning would hand out `&mut` to memory that a device still writes.
///
/// # Errors
///
/// [`MemoryError::Unaligned`], [`MemoryError::Empty`]; `scope` is not called then.
pub fn lend<R>(buffer: &mut [u8], scope: impl FnOnce(&SharedMemory) -> R) -> Result<R, MemoryError> {
    require_whole_pages(buffer.as_ptr(), buffer.len())?;
    let length = buffer.len();
    let address = NonNull::from(buffer).cast::<u8>();
    // SAFETY:
    // 1. The range is that of an exclusive slice, borrowed until this function returns.
    // 2. `buffer` is not used again, so no Rust reference into it is live.
    // 3. `Reclaim` keeps this function from returning or unwinding while a clone lives.
    // 4. The range is whole pages, checked above.
    let memory = unsafe { SharedMemory::from_lent_pages(address, length) };
    let reclaim = Reclaim(Some(memory));
    let Some(memory) = &reclaim.0 else { return Err(MemoryError::Empty) };
    Ok(scope(memory))
}

/// Waits, in its destructor, until it holds the last reference.
struct Reclaim(Option<SharedMemory>);

impl Drop for Reclaim {
    fn drop(&mut self) {
        let Some(mut memory) = self.0.take() else { return };
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, Duration::from_secs(10));
        while let Err(shared) = memory.end() {
            memory = shared;
            if deadline.is_over(&clock) {
                log::error!("lent memory {memory:?} is still mapped after its scope ended; aborting");
                std::process::abort();
            }
            clock.sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::ByteLength;
    use crate::memory::{Pages, PinnedMemory};

    #[test]
    fn lent_pages_come_back_with_what_was_written() {
        let mut pages = PinnedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let clone = lend(&mut pages, |memory| {
            memory.write(100, b"device").unwrap();
            let clone = memory.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                clone.write(200, b"late").unwrap();
            })
        })
        .unwrap();
        assert_eq!((&pages[100..106], &pages[200..204]), (&b"device"[..], &b"late"[..]));
        clone.join().unwrap();
        assert!(lend(&mut pages[1..], |_| ()).is_err());
    }
}
