//! Accesses that the last translations do not serve: other translations are looked for,
//! accesses are divided where a mapping ends or a burst gets too long, and faults are made.

use core::sync::atomic::Ordering;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::mmio::RegisterValue;

use super::burst::{ACCESS_COST, BURST_BYTES, Burst};
use super::bus_master::Port;
use super::fault::{FaultReason, TranslationFault};
use super::iotlb::{Stream, Translation};
use super::remote::{Absent, REMOTE_BYTES, Remote};

/// What is behind an address: memory of this process and how many bytes of it, or of others.
enum Located {
    Here(Translation, usize),
    Remote(Remote, usize),
}

impl Burst<'_> {
    /// Makes the translation of `address` the last one of `stream`, if there is one that
    /// permits what the stream does. It reports no fault.
    #[inline(always)]
    fn recall(&mut self, stream: Stream, address: Iova) -> bool {
        if self.iotlb.find(self.access.epoch(), stream, address).is_some() {
            return true;
        }
        let Ok(entry) = self.port.domain.walk(&self.access, address) else { return false };
        self.iotlb.insert(stream, address, entry);
        stream.permits(entry.permissions)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn read_anew(&mut self, address: Iova, bytes: &mut [u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let length = bytes.len() as u64;
        if self.budget >= length.saturating_add(ACCESS_COST)
            && self.recall(Stream::Read, address)
            && self.read_by_last(address, bytes)
        {
            return Ok(());
        }
        self.read_by_parts(address, bytes)
    }

    fn read_by_parts(&mut self, address: Iova, bytes: &mut [u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let mut part = Part::new(self.port, address, bytes.len() as u64, false)?;
        let mut rest = bytes;
        while let Some(address) = part.address() {
            let located = self.locate(Stream::Read, address, part.left)?;
            let count = located.count();
            let (now, later) = rest.split_at_mut(count.min(rest.len()));
            match located {
                Located::Here(translation, _) => self
                    .access
                    .read(&translation.token, translation.offset(address), now)
                    .map_err(|_| self.port.fault(FaultReason::NotMapped, address, false))?,
                Located::Remote(remote, _) => self.read_remote(&remote, address, now)?,
            }
            rest = later;
            part.advance(count);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    pub(super) fn write_anew(&mut self, address: Iova, bytes: &[u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let length = bytes.len() as u64;
        if self.budget >= length.saturating_add(ACCESS_COST)
            && self.recall(Stream::Write, address)
            && self.write_by_last(address, bytes)
        {
            return Ok(());
        }
        self.write_by_parts(address, bytes)
    }

    fn write_by_parts(&mut self, address: Iova, bytes: &[u8]) -> Result<(), TranslationFault> {
        // CAST: `usize` is at most 64 bits wide.
        let mut part = Part::new(self.port, address, bytes.len() as u64, true)?;
        let mut rest = bytes;
        while let Some(address) = part.address() {
            let located = self.locate(Stream::Write, address, part.left)?;
            let count = located.count();
            let (now, later) = rest.split_at(count.min(rest.len()));
            match located {
                Located::Here(translation, _) => self
                    .access
                    .write(&translation.token, translation.offset(address), now)
                    .map_err(|_| self.port.fault(FaultReason::NotMapped, address, true))?,
                Located::Remote(remote, _) => self.write_remote(&remote, address, now)?,
            }
            rest = later;
            part.advance(count);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    pub(super) fn copy_anew(
        &mut self,
        destination: Iova,
        source: Iova,
        length: u64,
    ) -> Result<(), TranslationFault> {
        if self.budget >= length.saturating_add(ACCESS_COST)
            && self.recall(Stream::CopySource, source)
            && self.recall(Stream::CopyDestination, destination)
            && self.copy_by_last(destination, source, length)
        {
            return Ok(());
        }
        self.copy_by_parts(destination, source, length)
    }

    fn copy_by_parts(
        &mut self,
        destination: Iova,
        source: Iova,
        length: u64,
    ) -> Result<(), TranslationFault> {
        let mut from_part = Part::new(self.port, source, length, false)?;
        let mut to_part = Part::new(self.port, destination, length, true)?;
        while let (Some(source), Some(destination)) = (from_part.address(), to_part.address()) {
            let from = self.locate(Stream::CopySource, source, from_part.left)?;
            // CAST: `usize` is at most 64 bits wide. No renewal: `from` must stay valid.
            let to = self.locate_more(Stream::CopyDestination, destination, from.count() as u64)?;
            let count = to.count();
            match (from, to) {
                (Located::Here(from, _), Located::Here(to, _)) => {
                    let to = (&to.token, to.offset(destination));
                    self.access
                        .copy(to, (&from.token, from.offset(source)), count)
                        .map_err(|_| self.port.fault(FaultReason::NotMapped, source, false))?;
                }
                _ => self.copy_remote(destination, source, count)?,
            }
            from_part.advance(count);
            to_part.advance(count);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    pub(super) fn fill_anew(
        &mut self,
        address: Iova,
        length: u64,
        pattern: u64,
    ) -> Result<(), TranslationFault> {
        if self.budget >= length.saturating_add(ACCESS_COST)
            && self.recall(Stream::Write, address)
            && self.fill_by_last(address, length, pattern)
        {
            return Ok(());
        }
        self.fill_by_parts(address, length, pattern)
    }

    fn fill_by_parts(&mut self, address: Iova, length: u64, pattern: u64) -> Result<(), TranslationFault> {
        let mut part = Part::new(self.port, address, length, true)?;
        let mut pattern = pattern;
        while let Some(address) = part.address() {
            let located = self.locate(Stream::Write, address, part.left)?;
            let count = located.count();
            match located {
                Located::Here(translation, _) => self
                    .access
                    .fill(&translation.token, translation.offset(address), count, pattern)
                    .map_err(|_| self.port.fault(FaultReason::NotMapped, address, true))?,
                Located::Remote(remote, _) => self.fill_remote(&remote, address, count, pattern)?,
            }
            part.advance(count);
            // The next part may begin in the middle of the pattern.
            pattern = pattern.rotate_right(8 * u32::try_from(count % 8).unwrap_or(0));
        }
        Ok(())
    }

    /// What is behind `address` and how many of `left` bytes may be accessed there at once.
    /// Renews the burst first when it has become long.
    fn locate(&mut self, stream: Stream, address: Iova, left: u64) -> Result<Located, TranslationFault> {
        let wanted = left.min(BURST_BYTES);
        self.renew_for(stream, address, wanted)?;
        let found = self.locate_more(stream, address, wanted)?;
        // CAST: `usize` is at most 64 bits wide.
        self.budget = self.budget.saturating_sub(found.count() as u64 + ACCESS_COST);
        Ok(found)
    }

    /// As [`locate`](Self::locate), without renewal: translations found before stay valid.
    fn locate_more(
        &mut self,
        stream: Stream,
        address: Iova,
        wanted: u64,
    ) -> Result<Located, TranslationFault> {
        let translation = match self.iotlb.find(self.access.epoch(), stream, address) {
            Some(translation) => translation,
            None => match self.walk(stream, address)? {
                Walked::Here(translation) => translation,
                Walked::Remote(remote) => {
                    let count = remote.count(address, wanted.min(REMOTE_BYTES));
                    return Ok(Located::Remote(remote, count));
                }
            },
        };
        match usize::try_from(wanted.min(translation.bytes_from(address))) {
            Ok(count) if count > 0 => Ok(Located::Here(translation, count)),
            _ => Err(self.port.fault(FaultReason::NotMapped, address, stream.writes())),
        }
    }

    /// The mapping that `address` is in.
    pub(super) fn locate_range(
        &mut self,
        stream: Stream,
        address: Iova,
    ) -> Result<IovaRange, TranslationFault> {
        match self.locate(stream, address, 1)? {
            Located::Here(translation, _) => {
                let length = ByteLength::from_usize(translation.token.length());
                IovaRange::new(translation.start, length)
                    .ok_or_else(|| self.port.fault(FaultReason::Overflow, address, stream.writes()))
            }
            Located::Remote(remote, _) => Ok(remote.range),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn load_anew<T: RegisterValue>(
        &mut self,
        address: Iova,
        ordering: Ordering,
    ) -> Result<T, TranslationFault> {
        match self.locate_word(Stream::Read, address, T::WIDTH.bytes())? {
            Located::Here(translation, _) => self
                .access
                .load(&translation.token, translation.offset(address), ordering)
                .map_err(|_| self.port.fault(FaultReason::Misaligned, address, false)),
            Located::Remote(remote, _) => {
                // One message carries the whole word.
                let mut bytes = [0; 8];
                let word = bytes.get_mut(..T::WIDTH.bytes()).unwrap_or_default();
                self.read_remote(&remote, address, word)?;
                Ok(T::from_u64(u64::from_le_bytes(bytes)))
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn store_anew<T: RegisterValue>(
        &mut self,
        address: Iova,
        value: T,
        ordering: Ordering,
    ) -> Result<(), TranslationFault> {
        match self.locate_word(Stream::Write, address, T::WIDTH.bytes())? {
            Located::Here(translation, _) => self
                .access
                .store(&translation.token, translation.offset(address), value, ordering)
                .map_err(|_| self.port.fault(FaultReason::Misaligned, address, true)),
            Located::Remote(remote, _) => {
                let bytes = value.to_u64().to_le_bytes();
                self.write_remote(&remote, address, bytes.get(..T::WIDTH.bytes()).unwrap_or_default())
            }
        }
    }

    fn locate_word(
        &mut self,
        stream: Stream,
        address: Iova,
        width: usize,
    ) -> Result<Located, TranslationFault> {
        if !address.is_aligned_to(ByteLength::from_usize(width)) {
            return Err(self.port.fault(FaultReason::Misaligned, address, stream.writes()));
        }
        self.locate(stream, address, ACCESS_COST)
    }

    fn walk(&mut self, stream: Stream, address: Iova) -> Result<Walked, TranslationFault> {
        let (found, permissions) = match self.port.domain.walk(&self.access, address) {
            Ok(entry) => {
                self.iotlb.insert(stream, address, entry);
                (Walked::Here(entry.translation), entry.permissions)
            }
            Err(Absent::Remote(remote)) => {
                let permissions = remote.permissions;
                (Walked::Remote(remote), permissions)
            }
            Err(Absent::Fault(reason)) => return Err(self.port.fault(reason, address, stream.writes())),
        };
        if stream.permits(permissions) {
            return Ok(found);
        }
        let reason = if stream.writes() { FaultReason::NotWritable } else { FaultReason::NotReadable };
        Err(self.port.fault(reason, address, stream.writes()))
    }
}

/// What the page table says.
enum Walked {
    Here(Translation),
    Remote(Remote),
}

impl Located {
    fn count(&self) -> usize {
        match self {
            Self::Here(_, count) | Self::Remote(_, count) => *count,
        }
    }
}

/// What is left of an access.
struct Part {
    next: u64,
    left: u64,
}

impl Part {
    fn new(port: &Port, address: Iova, length: u64, write: bool) -> Result<Self, TranslationFault> {
        let next = address.as_u64();
        if next.checked_add(length.saturating_sub(1)).is_none() {
            return Err(port.fault(FaultReason::Overflow, address, write));
        }
        Ok(Self { next, left: length })
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
    }
}
