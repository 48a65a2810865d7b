//! Physical region pages: data as a list of memory pages.

use vdk_descriptors::nvme::Status;
use vdk_hal::address::Iova;
use vdk_iommu::soft::Burst;

use super::transfer::{LIST_BYTES, Segment, Transfer};

impl Transfer {
    /// Entry 1 may have an offset of whole dwords. What does not fit its page lies in the
    /// page that entry 2 names or, if that is not enough, in those of a list.
    #[inline]
    pub(super) fn describe_pages(
        &mut self,
        entries: [u64; 2],
        length: u64,
        page: u64,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let [first, second] = entries;
        if !first.is_multiple_of(4) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        let inside = length.min(page - first % page);
        self.push(Segment { address: first, length: inside, discard: false })?;
        match length - inside {
            0 => Ok(()),
            rest if rest <= page => self.push_page(second, rest, page),
            rest => self.describe_page_list(second, rest, page, burst),
        }
    }

    /// The last entry of a list page is the address of the next list when more pages follow
    /// than it has entries.
    fn describe_page_list(
        &mut self,
        list: u64,
        length: u64,
        page: u64,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        if !list.is_multiple_of(8) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        let mut next = list;
        let mut rest = length;
        while rest > 0 {
            let room = (page - next % page) / 8;
            let wanted = rest.div_ceil(page);
            let (entries, chained) = if wanted > room { (room - 1, true) } else { (wanted, false) };
            rest = self.push_entries(next, entries, rest, page, burst)?;
            if chained {
                next = self.read_entry(next + 8 * entries, burst)?;
                if !next.is_multiple_of(page) {
                    return Err(Status::INVALID_PRP_OFFSET);
                }
            }
        }
        Ok(())
    }

    /// Adds the pages of `count` entries and returns how many bytes are left.
    fn push_entries(
        &mut self,
        mut address: u64,
        mut count: u64,
        mut rest: u64,
        page: u64,
        burst: &mut Burst<'_>,
    ) -> Result<u64, Status> {
        while count > 0 {
            let now = count.min(LIST_BYTES as u64 / 8);
            let bytes = usize::try_from(8 * now).unwrap_or(LIST_BYTES).min(LIST_BYTES);
            burst
                .read(Iova::new(address), &mut self.list[..bytes])
                .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            for index in 0..bytes / 8 {
                let mut entry = [0; 8];
                entry.copy_from_slice(&self.list[8 * index..8 * index + 8]);
                let part = rest.min(page);
                self.push_page(u64::from_le_bytes(entry), part, page)?;
                rest -= part;
            }
            address = address.wrapping_add(8 * now);
            count -= now;
        }
        Ok(rest)
    }

    fn read_entry(&mut self, address: u64, burst: &mut Burst<'_>) -> Result<u64, Status> {
        let mut entry = [0; 8];
        burst.read(Iova::new(address), &mut entry).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        Ok(u64::from_le_bytes(entry))
    }

    #[inline]
    fn push_page(&mut self, address: u64, length: u64, page: u64) -> Result<(), Status> {
        if !address.is_multiple_of(page) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        self.push(Segment { address, length, discard: false })
    }
}
