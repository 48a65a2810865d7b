//! Access by a software device that can be revoked, with the revocation complete before it
//! returns.
//!
//! An emulated device translates an address once and then uses the result many times; an
//! IOMMU must be able to take a page away and *know* that no later access happens. Here a
//! device enters a burst ([`AccessReader::enter`]), uses [`AccessToken`]s that it got for
//! [`Registration`]s, and leaves. [`Registration::revoke`] makes all tokens of the domain
//! stale and waits until every burst that began before has ended.
//!
//! # Why tokens may be kept
//!
//! A token is a bare address with the epoch in which it was made. Epochs are unique in the
//! process and an [`AccessDomain`] takes a new one at each revocation. A burst admits a
//! token only if the epochs agree, and then:
//!
//! 1. the memory was registered when the token was made, since making it borrowed the
//!    registration;
//! 2. it still is, or its revocation is waiting for this burst, since any revocation that
//!    ended would have changed the epoch.
//!
//! The burst is announced with a store that must be ordered before the load of the epoch,
//! and the new epoch with a store that must be ordered before the look at the bursts: the
//! asymmetric fences of [`barrier`], so that a burst costs no fence.

// UNSAFETY: accesses memory through addresses whose validity the epoch proves.
#![expect(unsafe_code, reason = "accesses through addresses that an epoch proves valid")]

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::SharedMemory;
use super::copy::{copy_bytes, copy_out, fill_pattern, load_word, prefetch_line, store_word};
use super::epoch::{BurstLine, Epoch};
pub use super::view::AccessView;
use crate::barrier;
use crate::mmio::RegisterValue;
use crate::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};

/// A set of registrations and of the readers that may reach them.
#[derive(Debug)]
pub struct AccessDomain {
    epoch: Epoch,
    readers: Mutex<Vec<Arc<BurstLine>>>,
}

impl AccessDomain {
    /// An empty domain.
    #[must_use]
    pub fn new() -> Arc<Self> {
        barrier::prepare();
        Arc::new(Self { epoch: Epoch::new(next_epoch()), readers: Mutex::default() })
    }

    /// Registers memory so that readers of this domain can be given tokens for it.
    #[must_use]
    pub fn register(self: &Arc<Self>, memory: SharedMemory) -> Registration {
        Registration { domain: Arc::clone(self), memory: Some(memory) }
    }

    /// A reader, for one device thread.
    #[must_use]
    pub fn reader(self: &Arc<Self>) -> AccessReader {
        let burst = Arc::new(BurstLine::new());
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&burst));
        AccessReader { domain: Arc::clone(self), burst }
    }

    /// Makes every token stale and waits until every burst that is under way has ended.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] when a burst does not end within [`REVOKE_TIME`]. The tokens are stale even then,
    /// but the burst may still be using one.
    pub fn revoke_tokens(&self) -> Result<(), TimedOut> {
        self.epoch.advance(next_epoch());
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, REVOKE_TIME);
        for reader in readers {
            let Some(seen) = reader.burst() else { continue };
            poll_until(&clock, deadline, Pace::FAST, "the end of a device's burst", || {
                Ok::<_, TimedOut>(reader.has_ended(seen).then_some(()))
            })?;
        }
        Ok(())
    }
}

/// How long a revocation waits for the bursts that are under way. What a device waits for in
/// a burst must end well before.
pub const REVOKE_TIME: Duration = Duration::from_secs(2);

/// Memory that the readers of a domain may be given tokens for. Dropping it revokes them;
/// if that fails the memory is leaked, never freed.
#[derive(Debug)]
pub struct Registration {
    domain: Arc<AccessDomain>,
    memory: Option<SharedMemory>,
}

impl Registration {
    /// The memory registered.
    ///
    /// # Panics
    ///
    /// Never: the memory leaves only with the registration.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        // PANIC: only `revoke` and `drop` take the memory, and they end the registration.
        self.memory.as_ref().expect("memory leaves a registration only when it ends")
    }

    /// Ends the registration and gives the memory back. No access by any reader happens
    /// after this returns.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] and the registration itself when a reader does not leave its burst.
    /// It can be tried again; dropping the registration instead tries once more by itself.
    ///
    /// # Panics
    ///
    /// Never: a live registration holds its memory.
    pub fn revoke(mut self) -> Result<SharedMemory, (TimedOut, Self)> {
        match self.domain.revoke_tokens() {
            // PANIC: as in `memory`; `self` has not ended before.
            Ok(()) => Ok(self.memory.take().expect("a live registration holds its memory")),
            Err(error) => Err((error, self)),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if let Err(error) = self.domain.revoke_tokens() {
            log::error!("a device burst does not end; leaking {memory:?}: {error}");
            core::mem::forget(memory);
        }
    }
}

/// One device thread's way into a domain.
#[derive(Debug)]
pub struct AccessReader {
    domain: Arc<AccessDomain>,
    burst: Arc<BurstLine>,
}

impl AccessReader {
    /// Begins a burst. It must be short: a revocation waits for its end.
    #[inline]
    pub fn enter(&mut self) -> AccessBurst<'_> {
        let epoch = self.begin();
        AccessBurst { reader: self, epoch }
    }

    /// Keeps all memory of the domain in place for as long as the result lives: a burst
    /// that owns its reader and accesses nothing itself. A revocation that begins
    /// meanwhile waits for it, or times out.
    #[must_use]
    pub fn hold(mut self) -> AccessHold {
        self.begin();
        AccessHold { _reader: self }
    }

    /// The reader is borrowed mutably or owned: it is the only one to begin and to end.
    #[inline(always)]
    fn begin(&mut self) -> u64 {
        self.burst.begin(&self.domain.epoch)
    }
}

impl Drop for AccessReader {
    fn drop(&mut self) {
        // A hold, or a burst that was forgotten, ends here.
        self.burst.end();
        let mut readers = self.domain.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| !Arc::ptr_eq(reader, &self.burst));
    }
}

/// A burst that owns its reader; see [`AccessReader::hold`].
#[derive(Debug)]
pub struct AccessHold {
    _reader: AccessReader,
}

/// A burst of accesses. While it lives no revocation in its domain completes.
///
/// # Invariants
///
/// The reader's line is odd, and `epoch` was loaded after it became so.
#[derive(Debug)]
pub struct AccessBurst<'reader> {
    reader: &'reader mut AccessReader,
    epoch: u64,
}

impl AccessBurst<'_> {
    /// The epoch of the burst; tokens of another epoch are stale.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Ends the burst and begins the next one: a revocation that waits goes on. Tokens stay
    /// valid if there was none.
    #[inline]
    pub fn renew(&mut self) {
        self.epoch = self.reader.begin();
    }

    /// A token for registered memory, or [`Stale`] when the registration belongs to
    /// another domain.
    #[inline]
    pub fn admit(&self, registration: &Registration) -> Result<AccessToken, Stale> {
        if !Arc::ptr_eq(&registration.domain, &self.reader.domain) {
            return Err(Stale);
        }
        let memory = registration.memory();
        let length = memory.length().to_usize().ok_or(Stale)?;
        let address = memory.checked_pointer(0, length).map_err(|_| Stale)?;
        Ok(AccessToken { address, length, epoch: self.epoch })
    }

    /// Copies out of the token's memory.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the token is of another epoch or the range is not inside its memory;
    /// nothing is copied then. The same holds for every access below.
    #[inline]
    pub fn read(&self, token: &AccessToken, offset: usize, bytes: &mut [u8]) -> Result<(), Stale> {
        let source = self.pointer(token, offset, bytes.len())?;
        // SAFETY: `pointer` proved the source valid; the destination is an exclusive slice.
        unsafe { copy_out(source, bytes) };
        Ok(())
    }

    /// Copies into the token's memory.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self, token: &AccessToken, offset: usize, bytes: &[u8]) -> Result<(), Stale> {
        let destination = self.pointer(token, offset, bytes.len())?;
        // SAFETY: `pointer` proved the destination valid; the source is a slice.
        unsafe { copy_bytes(bytes.as_ptr(), destination, bytes.len()) };
        Ok(())
    }

    /// Copies `length` bytes between two tokens' memory; the ranges may overlap.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn copy(
        &self,
        destination: (&AccessToken, usize),
        source: (&AccessToken, usize),
        length: usize,
    ) -> Result<(), Stale> {
        let from = self.pointer(source.0, source.1, length)?;
        let to = self.pointer(destination.0, destination.1, length)?;
        // SAFETY: `pointer` proved both ranges valid until the burst ends.
        unsafe { copy_bytes(from, to, length) };
        Ok(())
    }

    /// Sets `length` bytes to the bytes of `pattern`, lowest first, over and over.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn fill(&self, token: &AccessToken, offset: usize, length: usize, pattern: u64) -> Result<(), Stale> {
        let destination = self.pointer(token, offset, length)?;
        // SAFETY: `pointer` proved the range valid until the burst ends.
        unsafe { fill_pattern(destination, length, pattern) };
        Ok(())
    }

    /// Loads an aligned word in one access.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and when the word is not aligned.
    ///
    /// # Panics
    ///
    /// For an `ordering` that a load cannot have.
    #[inline]
    pub fn load<T: RegisterValue>(
        &self,
        token: &AccessToken,
        offset: usize,
        ordering: Ordering,
    ) -> Result<T, Stale> {
        let address = self.word::<T>(token, offset)?;
        // SAFETY: `word` proved range and alignment.
        Ok(T::from_u64(unsafe { load_word(address, T::WIDTH, ordering) }))
    }

    /// Stores an aligned word in one access.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    ///
    /// # Panics
    ///
    /// For an `ordering` that a store cannot have.
    #[inline]
    pub fn store<T: RegisterValue>(
        &self,
        token: &AccessToken,
        offset: usize,
        value: T,
        ordering: Ordering,
    ) -> Result<(), Stale> {
        let address = self.word::<T>(token, offset)?;
        // SAFETY: `word` proved range and alignment.
        unsafe { store_word(address, T::WIDTH, value.to_u64(), ordering) };
        Ok(())
    }

    /// The token's memory for several accesses, whose epoch is compared once.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the token is of another epoch.
    #[inline(always)]
    pub fn view(&self, token: &AccessToken) -> Result<AccessView<'_>, Stale> {
        if token.epoch != self.epoch {
            return Err(Stale);
        }
        // SAFETY: the memory is alive until the burst ends: see the module text. The result
        // borrows the burst.
        Ok(unsafe { AccessView::new(token.address, token.length) })
    }

    /// Asks the processor for the cache line at `offset`; does nothing for a stale token.
    #[inline(always)]
    pub fn prefetch(&self, token: &AccessToken, offset: usize) {
        if let Ok(address) = self.pointer(token, offset, 1) {
            prefetch_line(address);
        }
    }

    #[inline(always)]
    fn word<T: RegisterValue>(&self, token: &AccessToken, offset: usize) -> Result<*mut u8, Stale> {
        let width = T::WIDTH.bytes();
        let address = self.pointer(token, offset, width)?;
        if address.addr().is_multiple_of(width) { Ok(address) } else { Err(Stale) }
    }

    #[inline(always)]
    fn pointer(&self, token: &AccessToken, offset: usize, length: usize) -> Result<*mut u8, Stale> {
        let inside = offset <= token.length && length <= token.length - offset;
        if token.epoch != self.epoch || !inside {
            return Err(Stale);
        }
        // SAFETY: the offset is inside the memory, which is alive: see the module text.
        Ok(unsafe { token.address.add(offset) })
    }
}

impl Drop for AccessBurst<'_> {
    #[inline]
    fn drop(&mut self) {
        self.reader.burst.end();
    }
}

/// The address of registered memory, valid in bursts of one epoch.
#[derive(Clone, Copy)]
pub struct AccessToken {
    address: *mut u8,
    length: usize,
    epoch: u64,
}

// SAFETY: a token is a number; using it needs a burst of its domain and epoch.
unsafe impl Send for AccessToken {}
// SAFETY: as for `Send`.
unsafe impl Sync for AccessToken {}

impl AccessToken {
    /// A token that every burst refuses.
    pub const STALE: Self = Self { address: core::ptr::null_mut(), length: 0, epoch: 0 };

    /// The epoch in which the token is valid.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The size of the memory in bytes.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").field("length", &self.length).field("epoch", &self.epoch).finish()
    }
}

/// A token was used outside its epoch or its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the access is outside what the token covers, or the token is no longer valid")]
pub struct Stale;

fn next_epoch() -> u64 {
    // ORDERING: Relaxed; only uniqueness matters. 2^64 revocations do not happen.
    NEXT_EPOCH.fetch_add(1, Ordering::Relaxed)
}

static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::ByteLength;
    use crate::memory::Pages;
    use std::sync::atomic::AtomicBool;

    fn page(domain: &Arc<AccessDomain>) -> Registration {
        domain.register(SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap())
    }

    #[test]
    fn a_token_dies_with_any_revocation_of_its_domain() {
        let domain = AccessDomain::new();
        let (first, second) = (page(&domain), page(&domain));
        let mut reader = domain.reader();
        let burst = reader.enter();
        let token = burst.admit(&first).unwrap();
        burst.write(&token, 4000, &[5; 96]).unwrap();
        assert_eq!(burst.write(&token, 4000, &[5; 97]), Err(Stale));
        assert_eq!(burst.load::<u64>(&token, 4001, Ordering::Relaxed), Err(Stale));
        assert_eq!(burst.load::<u16>(&token, 4094, Ordering::Relaxed), Ok(0x0505));
        assert_eq!(burst.load::<u16>(&token, 4095, Ordering::Relaxed), Err(Stale));
        burst.fill(&token, 1, 19, 0x0807_0605_0403_0201).unwrap();
        assert_eq!(burst.fill(&token, 4090, 7, 0), Err(Stale));
        let mut bytes = [9; 22];
        burst.read(&token, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 0, 0]);
        drop(burst);
        assert_eq!(reader.enter().read(&token, 0, &mut [0; 8]), Ok(()));
        drop(second);
        let burst = reader.enter();
        assert_eq!(burst.read(&token, 0, &mut [0; 8]), Err(Stale));
        assert_eq!(burst.read(&AccessToken::STALE, 0, &mut []), Err(Stale));
        let token = burst.admit(&first).unwrap();
        assert_eq!(burst.load(&token, 4000, Ordering::Relaxed), Ok(0x0505_0505_0505_0505u64));
        let other = AccessDomain::new();
        assert_eq!(burst.admit(&page(&other)).unwrap_err(), Stale);
    }

    #[test]
    #[cfg_attr(miri, ignore = "waits for another thread by counting")]
    fn every_read_looks_at_the_memory_again() {
        let domain = AccessDomain::new();
        let registration = page(&domain);
        let memory = registration.memory().clone();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            memory.write_value(0, &7u64).unwrap();
        });
        let mut reader = domain.reader();
        let burst = reader.enter();
        let token = burst.admit(&registration).unwrap();
        // A compiler that keeps the first value would go round in vain.
        let mut word = [0; 8];
        let seen = (0..1u64 << 36).any(|_| {
            burst.read(&token, 0, &mut word).unwrap();
            word[0] == 7
        });
        assert!(seen);
        writer.join().unwrap();
    }

    #[test]
    fn revocation_waits_for_the_burst_and_no_access_follows() {
        let domain = AccessDomain::new();
        let registration = page(&domain);
        let stop = Arc::new(AtomicBool::new(false));
        let (entered, has_entered) = std::sync::mpsc::channel();
        let device = std::thread::spawn({
            let (domain, stop) = (Arc::clone(&domain), Arc::clone(&stop));
            let mut reader = domain.reader();
            let mut token = reader.enter().admit(&registration).unwrap();
            move || {
                let mut writes = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let burst = reader.enter();
                    for _ in 0..64 {
                        if burst.store(&token, 0, writes, Ordering::Relaxed).is_err() {
                            token = AccessToken::STALE;
                        } else {
                            writes += 1;
                        }
                    }
                    drop(burst);
                    if writes > 1000 {
                        let _ = entered.send(());
                    }
                }
                writes
            }
        });
        has_entered.recv().unwrap();
        let mut memory = registration.revoke().unwrap().try_into_pinned().unwrap();
        memory[..8].fill(0xee);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(memory[..8], [0xee; 8]);
        stop.store(true, Ordering::Relaxed);
        assert!(device.join().unwrap() > 1000);
    }

    #[test]
    fn a_forgotten_burst_does_not_hide_the_next_one() {
        let domain = AccessDomain::new();
        let registration = page(&domain);
        let mut reader = domain.reader();
        core::mem::forget(reader.enter());
        let burst = reader.enter();
        assert!(burst.reader.burst.burst().is_some());
        let (timeout, registration) = registration.revoke().unwrap_err();
        assert_eq!(timeout.what, "the end of a device's burst");
        drop(burst);
        core::mem::forget(reader.enter());
        drop(reader);
        assert_eq!(registration.revoke().unwrap().length(), ByteLength::SIZE_4K);
    }

    #[test]
    fn renewal_lets_a_revocation_go_on_and_a_hold_stops_it() {
        let domain = AccessDomain::new();
        let registration = page(&domain);
        let mut reader = domain.reader();
        let mut burst = reader.enter();
        let token = burst.admit(&registration).unwrap();
        burst.renew();
        assert_eq!(burst.read(&token, 0, &mut [0; 8]), Ok(()));
        let revoked = AtomicBool::new(false);
        let memory = std::thread::scope(|scope| {
            let revocation = scope.spawn(|| {
                let memory = registration.revoke().unwrap();
                revoked.store(true, Ordering::Relaxed);
                memory
            });
            while burst.read(&token, 0, &mut [0; 8]).is_ok() {
                assert!(!revoked.load(Ordering::Relaxed));
                burst.renew();
            }
            drop(burst);
            revocation.join().unwrap()
        });
        let hold = reader.hold();
        let (_, registration) = domain.register(memory).revoke().unwrap_err();
        drop(hold);
        assert!(registration.revoke().is_ok());
    }
}
