//! Memory of others: ranges that are reached by asking whoever has the memory.

use core::fmt;
use std::sync::Arc;

use thiserror::Error;
use vdk_hal::address::{Iova, IovaRange};
use vdk_hal::dma::Permissions;

use super::burst::{ACCESS_COST, Burst};
use super::fault::{FaultReason, TranslationFault};
use super::iotlb::Stream;

/// Memory that is not in this process, and whoever reaches it.
///
/// A device asks in the middle of a burst, so that an unmap in the domain waits for the
/// answer: each method must return well within the [`REVOKE_TIME`] that an unmap waits,
/// whatever the other side does. It must not need the thread that unmaps.
///
/// [`REVOKE_TIME`]: vdk_hal::memory::access::REVOKE_TIME
pub trait RemoteMemory: fmt::Debug + Send + Sync {
    /// Reads from `address` on. When it fails, `bytes` may have been written in part.
    ///
    /// # Errors
    ///
    /// [`NotAnswered`].
    fn read(&self, address: Iova, bytes: &mut [u8]) -> Result<(), NotAnswered>;

    /// Writes at `address` and on. When it succeeds the bytes are there.
    ///
    /// # Errors
    ///
    /// [`NotAnswered`]; some of the bytes may have been written.
    fn write(&self, address: Iova, bytes: &[u8]) -> Result<(), NotAnswered>;
}

/// The other side did not do what it was asked for, or did not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("whoever has the memory did not answer, or not rightly")]
pub struct NotAnswered;

/// What is found where no memory of this process is.
pub(super) enum Absent {
    /// Nothing.
    Fault(FaultReason),
    /// Memory of others.
    Remote(Remote),
}

/// A mapping of remote memory.
pub(super) struct Remote {
    pub(super) range: IovaRange,
    pub(super) permissions: Permissions,
    pub(super) memory: Arc<dyn RemoteMemory>,
}

impl Remote {
    /// How many of `left` bytes from `address` on it has.
    pub(super) fn count(&self, address: Iova, left: u64) -> usize {
        let further = self.range.last().as_u64().saturating_sub(address.as_u64());
        usize::try_from(left.min(further.saturating_add(1))).unwrap_or(usize::MAX)
    }
}

impl Burst<'_> {
    /// The other side is asked once and answers late: what was waited for in this burst is
    /// enough.
    fn end_soon(&mut self) {
        self.budget = 0;
    }

    pub(super) fn read_remote(
        &mut self,
        remote: &Remote,
        address: Iova,
        bytes: &mut [u8],
    ) -> Result<(), TranslationFault> {
        self.end_soon();
        let read = remote.memory.read(address, bytes);
        read.map_err(|NotAnswered| self.port.fault(FaultReason::NotAnswered, address, false))
    }

    pub(super) fn write_remote(
        &mut self,
        remote: &Remote,
        address: Iova,
        bytes: &[u8],
    ) -> Result<(), TranslationFault> {
        self.end_soon();
        let written = remote.memory.write(address, bytes);
        written.map_err(|NotAnswered| self.port.fault(FaultReason::NotAnswered, address, true))
    }

    /// Copies where one side or both are remote, through a buffer.
    pub(super) fn copy_remote(
        &mut self,
        destination: Iova,
        source: Iova,
        count: usize,
    ) -> Result<(), TranslationFault> {
        let mut buffer = vec![0; count];
        self.read(source, &mut buffer)?;
        self.write(destination, &buffer)
    }

    /// Fills the next bytes of remote memory with the bytes of `pattern`.
    pub(super) fn fill_remote(
        &mut self,
        remote: &Remote,
        address: Iova,
        count: usize,
        pattern: u64,
    ) -> Result<(), TranslationFault> {
        let bytes: Vec<u8> = pattern.to_le_bytes().into_iter().cycle().take(count).collect();
        self.write_remote(remote, address, &bytes)
    }

    /// Renews the burst when what is left of it is not enough for another access.
    pub(super) fn renew_for(
        &mut self,
        stream: Stream,
        address: Iova,
        wanted: u64,
    ) -> Result<(), TranslationFault> {
        if self.budget < wanted + ACCESS_COST { self.renew_at(address, stream.writes()) } else { Ok(()) }
    }
}

/// How many bytes of remote memory are moved at once.
pub(super) const REMOTE_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use vdk_hal::dma::{DmaMapper, MapError, UnmapError};

    use super::*;
    use crate::soft::tests::{PAGE, iova, machine, memory, range, whole_space};

    /// Pages that are kept elsewhere, and what was asked of them.
    #[derive(Debug)]
    struct Elsewhere {
        start: u64,
        bytes: Mutex<Vec<u8>>,
        /// From how many questions on there is no answer.
        patience: Mutex<u32>,
    }

    impl Elsewhere {
        fn new(start: u64, pages: u64) -> Arc<Self> {
            let bytes = vec![0; usize::try_from(pages * PAGE).unwrap()];
            Arc::new(Self { start, bytes: Mutex::new(bytes), patience: Mutex::new(u32::MAX) })
        }

        fn part(&self, address: Iova, length: usize) -> Result<core::ops::Range<usize>, NotAnswered> {
            let mut patience = self.patience.lock().unwrap();
            *patience = patience.checked_sub(1).ok_or(NotAnswered)?;
            let start = usize::try_from(address.as_u64() - self.start).unwrap();
            Ok(start..start + length)
        }
    }

    impl RemoteMemory for Elsewhere {
        fn read(&self, address: Iova, bytes: &mut [u8]) -> Result<(), NotAnswered> {
            let part = self.part(address, bytes.len())?;
            bytes.copy_from_slice(&self.bytes.lock().unwrap()[part]);
            Ok(())
        }

        fn write(&self, address: Iova, bytes: &[u8]) -> Result<(), NotAnswered> {
            let part = self.part(address, bytes.len())?;
            self.bytes.lock().unwrap()[part].copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn every_kind_of_access_reaches_remote_memory_and_goes_over_its_edges() {
        let (domain, _, mut device) = machine(whole_space());
        let (before, after) = (memory(1), memory(1));
        let remote = Elsewhere::new(0x2000, 2);
        domain.map(iova(0x1000), &before, Permissions::ReadWrite).unwrap();
        domain.map_remote(range(0x2000, 2 * PAGE), Permissions::ReadWrite, remote.clone()).unwrap();
        domain.map(iova(0x4000), &after, Permissions::ReadWrite).unwrap();
        let text: Vec<u8> = (0..=250).cycle().take(usize::try_from(3 * PAGE).unwrap()).collect();
        device.write(iova(0x1800), &text[..0x3000]).unwrap();
        let mut found = vec![0; 0x3000];
        device.read(iova(0x1800), &mut found).unwrap();
        assert_eq!(found, text);
        assert_eq!(remote.bytes.lock().unwrap()[..0x2000], text[0x800..0x2800]);
        assert_eq!(after.read_value::<u8>(0x7ff).unwrap(), text[0x2fff]);

        // From here to there, from there to here, and within.
        device.copy(iova(0x4000), iova(0x1ff0), 0x20).unwrap();
        device.copy(iova(0x2100), iova(0x4000), 0x20).unwrap();
        device.copy(iova(0x3ff8), iova(0x2100), 0x10).unwrap();
        assert_eq!(remote.bytes.lock().unwrap()[0x100..0x120], text[0x7f0..0x810]);
        assert_eq!(remote.bytes.lock().unwrap()[0x1ff8..], text[0x7f0..0x7f8]);
        assert_eq!(after.read_value::<[u8; 8]>(0).unwrap(), text[0x7f8..0x800]);

        device.fill(iova(0x1ffd), 11, 0x0807_0605_0403_0201).unwrap();
        assert_eq!(before.read_value::<[u8; 3]>(0xffd).unwrap(), [1, 2, 3]);
        assert_eq!(remote.bytes.lock().unwrap()[..8], [4, 5, 6, 7, 8, 1, 2, 3]);
        device.store_u64(iova(0x2008), 0x1122_3344_5566_7788).unwrap();
        assert_eq!(device.load_u64(iova(0x2008)).unwrap(), 0x1122_3344_5566_7788);
        assert_eq!(device.translate(iova(0x2008), true).unwrap(), range(0x2000, 2 * PAGE));
        assert_eq!(domain.iommu().fault_count(), 0);
    }

    #[test]
    fn permissions_hold_for_remote_memory_and_nobody_is_asked() {
        let (domain, gate, mut device) = machine(whole_space());
        let remote = Elsewhere::new(0x2000, 2);
        *remote.patience.lock().unwrap() = 1;
        domain.map_remote(range(0x2000, PAGE), Permissions::Read, remote.clone()).unwrap();
        domain.map_remote(range(0x3000, PAGE), Permissions::Write, remote.clone()).unwrap();
        assert_eq!(device.write(iova(0x2000), &[1]).unwrap_err().reason, FaultReason::NotWritable);
        assert_eq!(device.read(iova(0x3000), &mut [0]).unwrap_err().reason, FaultReason::NotReadable);
        assert_eq!(device.fill(iova(0x2000), 8, 0).unwrap_err().reason, FaultReason::NotWritable);
        assert_eq!(device.load_u64(iova(0x3000)).unwrap_err().reason, FaultReason::NotReadable);
        assert_eq!(device.store_u64(iova(0x3004), 0).unwrap_err().reason, FaultReason::Misaligned);
        gate.close().unwrap();
        assert_eq!(device.read(iova(0x2000), &mut [0]).unwrap_err().reason, FaultReason::BusMasterOff);
        gate.open();
        device.read(iova(0x2000), &mut [0]).unwrap();
        let fault = device.read(iova(0x2010), &mut [0]).unwrap_err();
        assert_eq!((fault.reason, fault.address.as_u64()), (FaultReason::NotAnswered, 0x2010));
        assert_eq!(domain.iommu().fault_count(), 7);
    }

    #[test]
    fn a_fault_in_the_middle_tells_where_the_answers_ended() {
        let (domain, _, mut device) = machine(whole_space());
        let remote = Elsewhere::new(0x2000, 32);
        domain.map(iova(0x100_0000), &memory(32), Permissions::ReadWrite).unwrap();
        domain.map_remote(range(0x2000, 32 * PAGE), Permissions::ReadWrite, remote.clone()).unwrap();
        *remote.patience.lock().unwrap() = 1;
        let fault = device.copy(iova(0x100_0000), iova(0x2000), 32 * PAGE).unwrap_err();
        assert_eq!((fault.reason, fault.write), (FaultReason::NotAnswered, false));
        assert_eq!(fault.address.as_u64(), 0x2000 + REMOTE_BYTES);
    }

    #[test]
    fn remote_ranges_are_taken_and_freed_as_others_are() {
        let (domain, _, mut device) = machine(whole_space());
        let remote = Elsewhere::new(0x2000, 2);
        let map = |start, length| domain.map_remote(range(start, length), Permissions::Read, remote.clone());
        map(0x2000, 2 * PAGE).unwrap();
        assert!(matches!(map(0x3000, PAGE), Err(MapError::AlreadyMapped { .. })));
        assert!(matches!(map(0x5800, PAGE), Err(MapError::Misaligned { .. })));
        let taken = domain.map(iova(0x3000), &memory(1), Permissions::Read);
        assert!(matches!(taken, Err(MapError::AlreadyMapped { .. })));
        assert!(matches!(domain.unmap(range(0x2000, PAGE)), Err(UnmapError::NotExact { .. })));
        device.read(iova(0x2000), &mut [0]).unwrap();
        assert_eq!(domain.unmap(range(0x2000, 2 * PAGE)).unwrap().as_u64(), 2 * PAGE);
        assert_eq!(device.read(iova(0x2000), &mut [0]).unwrap_err().reason, FaultReason::NotMapped);
        assert!(matches!(domain.unmap(range(0x2000, 2 * PAGE)), Err(UnmapError::NotMapped { .. })));
        domain.map(iova(0x3000), &memory(1), Permissions::Read).unwrap();
    }
}
