//! Accesses that the last translations do not serve: other translations are looked for,
//! accesses are divided where a mapping ends or a burst gets too long, and faults are made.

use vdk_hal::address::{ByteLength, Iova};

use super::burst::{ACCESS_COST, BURST_BYTES, Burst};
use super::bus_master::Port;
use super::fault::{FaultReason, TranslationFault};
use super::iotlb::{Stream, Translation};

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
            let (from, most) = self.locate(Stream::CopySource, source, from_part.left)?;
            // CAST: `usize` is at most 64 bits wide. No renewal: `from` must stay valid.
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
            let (translation, count) = self.locate(Stream::Write, address, part.left)?;
            self.access
                .fill(&translation.token, translation.offset(address), count, pattern)
                .map_err(|_| self.port.fault(FaultReason::NotMapped, address, true))?;
            part.advance(count);
            // The next part may begin in the middle of the pattern.
            pattern = pattern.rotate_right(8 * u32::try_from(count % 8).unwrap_or(0));
        }
        Ok(())
    }

    /// The translation of `address` and how many of `left` bytes may be accessed there at
    /// once. Renews the burst first when it has become long.
    pub(super) fn locate(
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
    pub(super) fn locate_word(
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
