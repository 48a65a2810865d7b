//! A run of accesses of one bus master: the fast path.

use core::fmt;
use core::sync::atomic::Ordering;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::memory::access::AccessBurst;
use vdk_hal::mmio::RegisterValue;

use super::bus_master::Port;
use super::fault::{FaultReason, TranslationFault};
use super::iotlb::{Iotlb, Stream, Translation};

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
    access: AccessBurst<'device>,
    iotlb: &'device mut Iotlb,
    port: &'device Port,
    budget: u64,
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
        let fast = self.spend(bytes.len() as u64) && {
            let last = self.iotlb.last(Stream::Read);
            self.access.read(&last.token, last.offset(address), bytes).is_ok()
        };
        if fast { Ok(()) } else { self.read_by_parts(address, bytes) }
    }

    /// Copies out of the device to `address` and on.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be written.
    #[inline]
    pub fn write(&mut self, address: Iova, bytes: &[u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let fast = self.spend(bytes.len() as u64) && {
            let last = self.iotlb.last(Stream::Write);
            self.access.write(&last.token, last.offset(address), bytes).is_ok()
        };
        if fast { Ok(()) } else { self.write_by_parts(address, bytes) }
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
        let fast = self.spend(length) && {
            let from = self.iotlb.last(Stream::CopySource);
            let to = self.iotlb.last(Stream::CopyDestination);
            let to = (&to.token, to.offset(destination));
            let from = (&from.token, from.offset(source));
            usize::try_from(length).is_ok_and(|length| self.access.copy(to, from, length).is_ok())
        };
        if fast { Ok(()) } else { self.copy_by_parts(destination, source, length) }
    }

    /// Fills `length` bytes with the bytes of `pattern`, lowest first, over and over.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be written.
    pub fn fill(&mut self, address: Iova, length: u64, pattern: u64) -> Result<(), TranslationFault> {
        let mut block = [0; FILL_BLOCK + 8];
        let words = usize::try_from(length).unwrap_or(usize::MAX).div_ceil(8).saturating_add(1);
        for word in block.as_chunks_mut().0.iter_mut().take(words) {
            *word = pattern.to_le_bytes();
        }
        let mut part = Part::new(self.port, address, length, true)?;
        while let Some(address) = part.address() {
            let (translation, most) = self.locate(Stream::Write, address, part.left)?;
            let mut offset = translation.offset(address);
            let mut left = most;
            while left > 0 {
                let count = left.min(FILL_BLOCK);
                // The part may begin in the middle of a pattern.
                let phase = part.phase();
                let bytes = block.get(phase..phase + count).unwrap_or_default();
                self.access
                    .write(&translation.token, offset, bytes)
                    .map_err(|_| self.port.fault(FaultReason::NotMapped, address, true))?;
                part.advance(count);
                offset += count;
                left -= count;
            }
        }
        Ok(())
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
        if self.spend(ACCESS_COST) {
            let last = self.iotlb.last(Stream::Read);
            if let Ok(value) = self.access.load(&last.token, last.offset(address), ordering) {
                return Ok(value);
            }
        }
        let translation = self.locate_word(Stream::Read, address, T::WIDTH.bytes())?;
        self.access
            .load(&translation.token, translation.offset(address), ordering)
            .map_err(|_| self.port.fault(FaultReason::Misaligned, address, false))
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
        if self.spend(ACCESS_COST) {
            let last = self.iotlb.last(Stream::Write);
            if self.access.store(&last.token, last.offset(address), value, ordering).is_ok() {
                return Ok(());
            }
        }
        let translation = self.locate_word(Stream::Write, address, T::WIDTH.bytes())?;
        self.access
            .store(&translation.token, translation.offset(address), value, ordering)
            .map_err(|_| self.port.fault(FaultReason::Misaligned, address, true))
    }

    /// The mapping that `address` is in: a range that the device may touch in this burst.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] that an access would have.
    pub fn translate(&mut self, address: Iova, write: bool) -> Result<IovaRange, TranslationFault> {
        let stream = if write { Stream::Write } else { Stream::Read };
        let (translation, _) = self.locate(stream, address, 1)?;
        let length = ByteLength::from_usize(translation.token.length());
        IovaRange::new(translation.start, length)
            .ok_or_else(|| self.port.fault(FaultReason::Overflow, address, write))
    }

    /// Asks the processor for the cache line at `address`, which is about to be read. It
    /// does nothing where no translation is cached, and never faults.
    #[inline]
    pub fn prefetch(&self, address: Iova) {
        if let Some(translation) = self.iotlb.peek(self.access.epoch(), address) {
            self.access.prefetch(&translation.token, translation.offset(address));
        }
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
        // An access that is too long makes it wrap, which is not within the budget; or it
        // wraps twice, and then the access fails for its length.
        let left = self.budget.wrapping_sub(length).wrapping_sub(ACCESS_COST);
        let within = left <= BUDGET;
        if within {
            self.budget = left;
        }
        within
    }

    #[cold]
    #[inline(never)]
    fn read_by_parts(&mut self, address: Iova, bytes: &mut [u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let mut part = Part::new(self.port, address, bytes.len() as u64, false)?;
        let mut rest = bytes;
        while let Some(address) = part.address() {
            let (translation, count) = self.locate(Stream::Read, address, part.left)?;
            let (now, later) = rest.split_at_mut(count.min(rest.len()));
            self.access
                .read(&translation.token, translation.offset(address), now)
                .map_err(|_| self.port.fault(FaultReason::NotMapped, address, false))?;
            rest = later;
            part.advance(count);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn write_by_parts(&mut self, address: Iova, bytes: &[u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let mut part = Part::new(self.port, address, bytes.len() as u64, true)?;
        let mut rest = bytes;
        while let Some(address) = part.address() {
            let (translation, count) = self.locate(Stream::Write, address, part.left)?;
            let (now, later) = rest.split_at(count.min(rest.len()));
            self.access
                .write(&translation.token, translation.offset(address), now)
                .map_err(|_| self.port.fault(FaultReason::NotMapped, address, true))?;
            rest = later;
            part.advance(count);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn copy_by_parts(
        &mut self,
        destination: Iova,
        source: Iova,
        length: u64,
    ) -> Result<(), TranslationFault> {
        let mut from_part = Part::new(self.port, source, length, false)?;
        let mut to_part = Part::new(self.port, destination, length, true)?;
        while let (Some(source), Some(destination)) = (from_part.address(), to_part.address()) {
            let (from, most) = self.locate(Stream::CopySource, source, from_part.left)?;
            // CAST: `usize` is at most 64 bits wide.
            let (to, count) = self.locate_more(Stream::CopyDestination, destination, most as u64)?;
            let to = (&to.token, to.offset(destination));
            self.access
                .copy(to, (&from.token, from.offset(source)), count)
                .map_err(|_| self.port.fault(FaultReason::NotMapped, source, false))?;
            from_part.advance(count);
            to_part.advance(count);
        }
        Ok(())
    }

    /// The translation of `address` and how many of `left` bytes may be accessed there at
    /// once. Renews the burst first when it has become long.
    fn locate(
        &mut self,
        stream: Stream,
        address: Iova,
        left: u64,
    ) -> Result<(Translation, usize), TranslationFault> {
        let wanted = left.min(BURST_BYTES);
        if self.budget < wanted + ACCESS_COST {
            self.renew_at(address, stream.writes())?;
        }
        let found = self.locate_more(stream, address, wanted)?;
        // CAST: `usize` is at most 64 bits wide.
        self.budget = self.budget.saturating_sub(found.1 as u64 + ACCESS_COST);
        Ok(found)
    }

    /// As [`locate`](Self::locate), without renewal: translations found before stay valid.
    fn locate_more(
        &mut self,
        stream: Stream,
        address: Iova,
        wanted: u64,
    ) -> Result<(Translation, usize), TranslationFault> {
        let translation = match self.iotlb.find(self.access.epoch(), stream, address) {
            Some(translation) => translation,
            None => self.walk(stream, address)?,
        };
        match usize::try_from(wanted.min(translation.bytes_from(address))) {
            Ok(count) if count > 0 => Ok((translation, count)),
            _ => Err(self.port.fault(FaultReason::NotMapped, address, stream.writes())),
        }
    }

    #[cold]
    #[inline(never)]
    fn locate_word(
        &mut self,
        stream: Stream,
        address: Iova,
        width: usize,
    ) -> Result<Translation, TranslationFault> {
        if !address.is_aligned_to(ByteLength::from_usize(width)) {
            return Err(self.port.fault(FaultReason::Misaligned, address, stream.writes()));
        }
        Ok(self.locate(stream, address, ACCESS_COST)?.0)
    }

    fn walk(&mut self, stream: Stream, address: Iova) -> Result<Translation, TranslationFault> {
        let entry = self
            .port
            .domain
            .walk(&self.access, address)
            .map_err(|reason| self.port.fault(reason, address, stream.writes()))?;
        self.iotlb.insert(stream, address, entry);
        if stream.permits(entry.permissions) {
            return Ok(entry.translation);
        }
        let reason = if stream.writes() { FaultReason::NotWritable } else { FaultReason::NotReadable };
        Err(self.port.fault(reason, address, stream.writes()))
    }

    fn renew_at(&mut self, address: Iova, write: bool) -> Result<(), TranslationFault> {
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

impl fmt::Debug for Burst<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Burst")
            .field("requester", &self.port.requester)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// What is left of an access.
struct Part {
    next: u64,
    left: u64,
    done: u64,
}

impl Part {
    fn new(port: &Port, address: Iova, length: u64, write: bool) -> Result<Self, TranslationFault> {
        let next = address.as_u64();
        if next.checked_add(length.saturating_sub(1)).is_none() {
            return Err(port.fault(FaultReason::Overflow, address, write));
        }
        Ok(Self { next, left: length, done: 0 })
    }

    /// The next address, or nothing when all is done.
    fn address(&self) -> Option<Iova> {
        (self.left > 0).then_some(Iova::new(self.next))
    }

    fn advance(&mut self, count: usize) {
        // CAST: `usize` is at most 64 bits wide.
        let count = count as u64;
        // The end may be that of the address space; then nothing is left.
        self.next = self.next.wrapping_add(count);
        self.left = self.left.saturating_sub(count);
        self.done = self.done.wrapping_add(count);
    }

    /// How far a pattern of eight bytes has come.
    fn phase(&self) -> usize {
        // CAST: below 8.
        (self.done % 8) as usize
    }
}

/// What an access costs beside its bytes.
const ACCESS_COST: u64 = 64;

/// What a burst may spend: one access of the full length.
const BUDGET: u64 = BURST_BYTES + ACCESS_COST;

/// How many bytes of a pattern are made at once; a multiple of 8.
const FILL_BLOCK: usize = 1024;
