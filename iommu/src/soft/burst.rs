//! A run of accesses of one bus master: the fast path.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use vdk_hal::address::{Iova, IovaRange};
use vdk_hal::memory::access::{AccessBurst, AccessView};
use vdk_hal::mmio::RegisterValue;

use super::bus_master::Port;
use super::fault::{FaultReason, TranslationFault};
use super::iotlb::{Iotlb, Stream};

/// After how many bytes a burst renews itself, so that a revocation can go on and a closed
/// gate is seen: 256 KiB. An access counts 64 bytes at least.
pub const BURST_BYTES: u64 = 256 << 10;

/// A run of accesses during which no mapping of the domain can be taken away.
///
/// An access whose mapping is the last one used for its purpose costs two comparisons; see
/// [`BusMaster`](super::BusMaster) for what all accesses have in common. An unmap in the
/// domain waits for the end of the burst: keep it short, or [`renew`](Self::renew) it when
/// nothing is accessed for a while. Accesses renew it after [`BURST_BYTES`].
pub struct Burst<'device> {
    pub(super) access: AccessBurst<'device>,
    pub(super) iotlb: &'device mut Iotlb,
    pub(super) port: &'device Port,
    pub(super) budget: u64,
}

impl<'device> Burst<'device> {
    #[inline(always)]
    pub(super) fn new(access: AccessBurst<'device>, iotlb: &'device mut Iotlb, port: &'device Port) -> Self {
        Self { access, iotlb, port, budget: BUDGET }
    }

    /// Copies from `address` on into the device.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be read.
    #[inline]
    pub fn read(&mut self, address: Iova, bytes: &mut [u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        if self.spend(bytes.len() as u64) && self.read_by_last(address, bytes) {
            return Ok(());
        }
        self.read_anew(address, bytes)
    }

    /// The mappings that were used last, for a loop that ends soon by itself: the burst is
    /// not renewed in it. `None` when one of them is gone.
    #[inline(always)]
    #[must_use]
    pub fn last_used(&self) -> Option<LastUsed<'_>> {
        Some(LastUsed {
            read: self.window(Stream::Read)?,
            source: self.window(Stream::CopySource)?,
            destination: self.window(Stream::CopyDestination)?,
        })
    }

    /// The word at `address`, for a store in this burst that cannot fail any more. `None`
    /// unless the mapping that was written last, other than by a copy, has it.
    #[inline(always)]
    #[must_use]
    pub fn last_written(&self, address: Iova) -> Option<&AtomicU64> {
        let window = self.window(Stream::Write)?;
        window.memory.word(window.offset(address)).ok()
    }

    #[inline(always)]
    fn window(&self, stream: Stream) -> Option<Window<'_>> {
        let last = self.iotlb.last(stream);
        let memory = self.access.view(&last.token).ok()?;
        Some(Window { start: last.start.as_u64(), memory })
    }

    /// Copies out of the device to `address` and on.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be written.
    #[inline]
    pub fn write(&mut self, address: Iova, bytes: &[u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        if self.spend(bytes.len() as u64) && self.write_by_last(address, bytes) {
            return Ok(());
        }
        self.write_anew(address, bytes)
    }

    /// Copies `length` bytes within the address space. Ranges that overlap are copied
    /// correctly when the copy is not divided; it is divided, front to back, where a
    /// mapping ends and into parts of [`BURST_BYTES`].
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be read or written; a
    /// source comes before the destination of the same byte.
    #[inline]
    pub fn copy(&mut self, destination: Iova, source: Iova, length: u64) -> Result<(), TranslationFault> {
        if self.spend(length) && self.copy_by_last(destination, source, length) {
            return Ok(());
        }
        self.copy_anew(destination, source, length)
    }

    /// Fills `length` bytes with the bytes of `pattern`, lowest first, over and over.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be written.
    #[inline]
    pub fn fill(&mut self, address: Iova, length: u64, pattern: u64) -> Result<(), TranslationFault> {
        if self.spend(length) && self.fill_by_last(address, length, pattern) {
            return Ok(());
        }
        self.fill_anew(address, length, pattern)
    }

    /// Loads a word in one access, with Acquire order.
    ///
    /// # Errors
    ///
    /// A [`TranslationFault`]; [`FaultReason::Misaligned`] unless `address` is a multiple
    /// of 8.
    #[inline]
    pub fn load_u64(&mut self, address: Iova) -> Result<u64, TranslationFault> {
        // ORDERING: Acquire, as the method promises.
        self.load(address, Ordering::Acquire)
    }

    /// Stores a word in one access, with Release order.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64).
    #[inline]
    pub fn store_u64(&mut self, address: Iova, value: u64) -> Result<(), TranslationFault> {
        // ORDERING: Release, as the method promises.
        self.store(address, value, Ordering::Release)
    }

    /// Loads a word of any width in one access.
    ///
    /// # Errors
    ///
    /// A [`TranslationFault`]; [`FaultReason::Misaligned`] unless `address` is a multiple
    /// of the width.
    ///
    /// # Panics
    ///
    /// For an `ordering` that a load cannot have.
    #[inline]
    pub fn load<T: RegisterValue>(
        &mut self,
        address: Iova,
        ordering: Ordering,
    ) -> Result<T, TranslationFault> {
        // CAST: a width is at most 8.
        if self.spend(T::WIDTH.bytes() as u64) {
            let last = self.iotlb.last(Stream::Read);
            if let Ok(value) = self.access.load(&last.token, last.offset(address), ordering) {
                return Ok(value);
            }
        }
        self.load_anew(address, ordering)
    }

    /// Stores a word of any width in one access.
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
        &mut self,
        address: Iova,
        value: T,
        ordering: Ordering,
    ) -> Result<(), TranslationFault> {
        // CAST: a width is at most 8.
        if self.spend(T::WIDTH.bytes() as u64) {
            let last = self.iotlb.last(Stream::Write);
            if self.access.store(&last.token, last.offset(address), value, ordering).is_ok() {
                return Ok(());
            }
        }
        self.store_anew(address, value, ordering)
    }

    /// The mapping that `address` is in: a range that the device may touch in this burst.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] that an access would have.
    pub fn translate(&mut self, address: Iova, write: bool) -> Result<IovaRange, TranslationFault> {
        self.locate_range(if write { Stream::Write } else { Stream::Read }, address)
    }

    /// Asks the processor for the cache line at `address`, which is about to be
    /// [read](Self::read). It does nothing unless the mapping that was read last has it, and
    /// never faults.
    #[inline(always)]
    pub fn prefetch(&self, address: Iova) {
        let last = self.iotlb.last(Stream::Read);
        self.access.prefetch(&last.token, last.offset(address));
    }

    /// Ends the burst and begins the next one, so that revocations that wait go on.
    ///
    /// # Errors
    ///
    /// [`FaultReason::BusMasterOff`] at address 0 when the gate was closed meanwhile.
    pub fn renew(&mut self) -> Result<(), TranslationFault> {
        self.renew_at(Iova::new(0), false)
    }

    #[inline(always)]
    fn spend(&mut self, length: u64) -> bool {
        let left = length.checked_add(ACCESS_COST).and_then(|cost| self.budget.checked_sub(cost));
        if let Some(left) = left {
            self.budget = left;
        }
        left.is_some()
    }

    #[inline(always)]
    pub(super) fn read_by_last(&self, address: Iova, bytes: &mut [u8]) -> bool {
        let last = self.iotlb.last(Stream::Read);
        self.access.read(&last.token, last.offset(address), bytes).is_ok()
    }

    #[inline(always)]
    pub(super) fn write_by_last(&self, address: Iova, bytes: &[u8]) -> bool {
        let last = self.iotlb.last(Stream::Write);
        self.access.write(&last.token, last.offset(address), bytes).is_ok()
    }

    #[inline(always)]
    pub(super) fn fill_by_last(&self, address: Iova, length: u64, pattern: u64) -> bool {
        let last = self.iotlb.last(Stream::Write);
        let (token, offset) = (&last.token, last.offset(address));
        usize::try_from(length).is_ok_and(|length| self.access.fill(token, offset, length, pattern).is_ok())
    }

    #[inline(always)]
    pub(super) fn copy_by_last(&self, destination: Iova, source: Iova, length: u64) -> bool {
        let from = self.iotlb.last(Stream::CopySource);
        let to = self.iotlb.last(Stream::CopyDestination);
        let to = (&to.token, to.offset(destination));
        let from = (&from.token, from.offset(source));
        usize::try_from(length).is_ok_and(|length| self.access.copy(to, from, length).is_ok())
    }

    pub(super) fn renew_at(&mut self, address: Iova, write: bool) -> Result<(), TranslationFault> {
        self.access.renew();
        // After the renewal, as the gate demands.
        if self.port.gate.is_open() {
            self.budget = BUDGET;
            Ok(())
        } else {
            // No access is within this budget, so that the next one comes here again.
            self.budget = 0;
            Err(self.port.fault(FaultReason::BusMasterOff, address, write))
        }
    }
}

/// A mapping during a burst.
#[derive(Clone, Copy)]
struct Window<'burst> {
    start: u64,
    memory: AccessView<'burst>,
}

impl Window<'_> {
    /// Where `address` lies in the memory; outside it when the mapping does not have it.
    #[inline(always)]
    fn offset(&self, address: Iova) -> usize {
        usize::try_from(address.as_u64().wrapping_sub(self.start)).unwrap_or(usize::MAX)
    }
}

/// The mappings that a burst read from, copied from and copied to last: the fastest path,
/// with one comparison of a range for each access. What they do not cover is left to the
/// methods of [`Burst`], which tell more.
#[derive(Clone, Copy)]
pub struct LastUsed<'burst> {
    read: Window<'burst>,
    source: Window<'burst>,
    destination: Window<'burst>,
}

impl LastUsed<'_> {
    /// As [`Burst::read`]. When it is false nothing was read.
    #[inline(always)]
    #[must_use = "nothing was read when the result is false"]
    pub fn read(&self, address: Iova, bytes: &mut [u8]) -> bool {
        self.read.memory.read(self.read.offset(address), bytes).is_ok()
    }

    /// As [`Burst::copy`]. When it is false nothing was copied.
    #[inline(always)]
    #[must_use = "nothing was copied when the result is false"]
    pub fn copy(&self, destination: Iova, source: Iova, length: u64) -> bool {
        let Ok(length) = usize::try_from(length) else { return false };
        let (from, to) = (&self.source, &self.destination);
        to.memory.copy_from(to.offset(destination), &from.memory, from.offset(source), length).is_ok()
    }
}

impl fmt::Debug for LastUsed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastUsed").finish_non_exhaustive()
    }
}

impl fmt::Debug for Burst<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Burst")
            .field("requester", &self.port.requester)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// What an access costs beside its bytes.
pub(super) const ACCESS_COST: u64 = 64;

/// What a burst may spend: one access of the full length.
const BUDGET: u64 = BURST_BYTES + ACCESS_COST;
