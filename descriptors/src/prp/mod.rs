//! Physical region pages: how NVMe is told of memory, page by page.
//!
//! A command has two pointers. The first points to the first byte. The second is unused
//! for one page of data, points to the second page for two, and to a **list** of page
//! pointers for more. A list fills pages of 8-byte entries; when more entries follow than
//! fit, the last one of a list page points to the next list page, **and only then**: a page
//! that is filled exactly ends with a data pointer. See NVMe Base 2.0 §4.1.1 "Physical
//! Region Page Entry and List".
//!
//! Only the first pointer may have an offset in its page. So a scatter-gather list can be
//! expressed when every entry but the first begins on a page and every entry but the last
//! ends on one; [`PrpFormat::build`] refuses any other.

use thiserror::Error;
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::memory::Slots;

use crate::sg::SgEntry;

/// What a controller expects of its page pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrpFormat {
    page: ByteLength,
    max_transfer: Option<ByteLength>,
}

/// A page for a list of pointers, visible to the device at `iova`.
///
/// Take as many for a command as its longest transfer needs:
/// [`PrpFormat::list_pages`].
#[derive(Debug)]
pub struct PrpListPage {
    iova: Iova,
    entries: Slots<u64>,
}

/// The two pointers of a command, and how much of the list pages they use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prp {
    /// The first pointer.
    pub first: u64,
    /// The second pointer, zero when it is not used.
    pub second: u64,
    /// How many list pages the device reads, from the first of those given.
    pub list_pages: usize,
}

/// Why memory cannot be described. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PrpError {
    /// There are no bytes, or an entry has none.
    #[error("entry {index} has no bytes")]
    Empty {
        /// The number of the entry; zero also for a list without entries.
        index: usize,
    },
    /// The first byte is not at a multiple of 4; copy the data to an aligned place.
    #[error("data at iova {iova} does not begin at a multiple of 4 bytes")]
    Unaligned {
        /// Where it begins.
        iova: Iova,
    },
    /// There is a hole inside a page; use SGLs, split the command or copy the data.
    #[error(
        "entry {index} at iova {iova} does not continue the page before it: pages have a hole between {end:#x} and it"
    )]
    NotPrpable {
        /// The number of the entry.
        index: usize,
        /// Where it begins.
        iova: Iova,
        /// Where the entry before it ends.
        end: u64,
    },
    /// An entry passes the end of the address space.
    #[error("entry {index} at iova {iova} passes the end of the address space")]
    PastEnd {
        /// The number of the entry.
        index: usize,
        /// Where it begins.
        iova: Iova,
    },
    /// More bytes than the controller moves in one command; split the command.
    #[error("a transfer of {length:#x} bytes is above the limit of {limit:#x}")]
    TooLong {
        /// The size of the data.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// More pages than the given list pages can name.
    #[error("a transfer of {pages:#x} pages needs {needed} list pages, there are {available}")]
    ListTooShort {
        /// How many pages the data has.
        pages: u64,
        /// How many list pages that needs.
        needed: u64,
        /// How many there are.
        available: usize,
    },
    /// A list page is not one: not aligned, or not as long as a page.
    #[error("list page {index} at iova {iova} is not an aligned page")]
    ListPage {
        /// The number of the list page.
        index: usize,
        /// Where it lies.
        iova: Iova,
    },
}

impl PrpListPage {
    /// The page that the device sees at `iova` and this process as `entries`.
    #[must_use]
    pub fn new(iova: Iova, entries: Slots<u64>) -> Self {
        Self { iova, entries }
    }

    /// Where the device sees the page.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.iova
    }
}

impl PrpFormat {
    /// Pages of `page` bytes, as the controller was configured (CC.MPS), and at most
    /// `max_transfer` bytes in a command (MDTS). `None` when the page is not a power of two
    /// of at least 4 KiB.
    #[must_use]
    pub fn new(page: ByteLength, max_transfer: Option<ByteLength>) -> Option<Self> {
        let is_page = page.as_u64().is_power_of_two() && page >= ByteLength::SIZE_4K;
        is_page.then_some(Self { page, max_transfer })
    }

    /// How many list pages a transfer of `length` bytes at any offset needs at most.
    #[must_use]
    pub fn list_pages(&self, length: ByteLength) -> u64 {
        // At the worst offset, the last of a page, one more page is touched.
        let pages = length.as_u64().div_ceil(self.page.as_u64()).saturating_add(1);
        self.list_pages_for(pages)
    }

    /// The pointers for the bytes of `entries`, in order. List pages are filled from the
    /// first of `list` on, as far as they are needed; the doorbell's fence orders them
    /// before the command.
    ///
    /// # Errors
    ///
    /// [`PrpError`]; nothing was written.
    pub fn build(&self, entries: &[SgEntry], list: &[PrpListPage]) -> Result<Prp, PrpError> {
        let pages = self.check(entries)?;
        let needed = self.list_pages_for(pages);
        let list = match usize::try_from(needed).ok().and_then(|needed| list.get(..needed)) {
            Some(list) => list,
            None => return Err(PrpError::ListTooShort { pages, needed, available: list.len() }),
        };
        for (index, page) in list.iter().enumerate() {
            if page.entries.count() as u64 != self.slots() || !page.iova.is_aligned_to(self.page) {
                return Err(PrpError::ListPage { index, iova: page.iova });
            }
        }
        let mut pointers = Pointers { entries, page: self.page.as_u64(), end: None, next: 0, rest: 0 };
        let first = pointers.next().ok_or(PrpError::Empty { index: 0 })?;
        let second = match list.first() {
            Some(page) => page.iova.as_u64(),
            None => pointers.next().unwrap_or(0),
        };
        for (index, page) in list.iter().enumerate() {
            for slot in 0..page.entries.count() {
                let is_last = slot + 1 == page.entries.count();
                // Only a page that does not hold all the rest ends with a link.
                let pointer = match list.get(index + 1) {
                    Some(next) if is_last => Some(next.iova.as_u64()),
                    _ => pointers.next(),
                };
                let Some(pointer) = pointer else { break };
                page.entries.write(slot, &pointer);
            }
        }
        Ok(Prp { first, second, list_pages: list.len() })
    }

    /// Checks that the entries can be expressed, and counts their pages.
    fn check(&self, entries: &[SgEntry]) -> Result<u64, PrpError> {
        let page = self.page.as_u64();
        let Some(first) = entries.first() else { return Err(PrpError::Empty { index: 0 }) };
        if !first.iova.is_aligned_to(ByteLength::new(4)) {
            return Err(PrpError::Unaligned { iova: first.iova });
        }
        let (mut pages, mut length) = (0u64, 0u64);
        let mut end: Option<u64> = None;
        for (index, entry) in entries.iter().enumerate() {
            let start = entry.iova.as_u64();
            let Some(below) = entry.length.as_u64().checked_sub(1) else {
                return Err(PrpError::Empty { index });
            };
            let last = start.checked_add(below).ok_or(PrpError::PastEnd { index, iova: entry.iova })?;
            if let Some(end) = end.filter(|end| *end != start)
                && (!end.is_multiple_of(page) || !start.is_multiple_of(page))
            {
                return Err(PrpError::NotPrpable { index, iova: entry.iova, end });
            }
            let continues = end == Some(start) && !start.is_multiple_of(page);
            // No overflow: a page has at least 4096 bytes, and `length` is checked.
            pages += last / page - start / page + u64::from(!continues);
            let limit = self.max_transfer.map_or(u64::MAX, ByteLength::as_u64);
            length = length.saturating_add(below).saturating_add(1);
            if length > limit || length == u64::MAX {
                return Err(PrpError::TooLong { length, limit });
            }
            // An entry that ends at 2^64 ends on a page.
            end = Some(last.wrapping_add(1));
        }
        Ok(pages)
    }

    /// How many list pages the pointers to so many pages need.
    fn list_pages_for(&self, pages: u64) -> u64 {
        match pages {
            0..=2 => 0,
            // The last list page holds one data pointer more than the others.
            _ => (pages - 2).div_ceil(self.slots() - 1),
        }
    }

    /// How many pointers a list page holds.
    fn slots(&self) -> u64 {
        self.page.as_u64() / 8
    }
}

/// The page pointers of entries that were checked.
struct Pointers<'a> {
    entries: &'a [SgEntry],
    page: u64,
    end: Option<u64>,
    next: u64,
    rest: u64,
}

impl Iterator for Pointers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while self.rest == 0 {
            let (entry, behind) = self.entries.split_first()?;
            self.entries = behind;
            let (start, length) = (entry.iova.as_u64(), entry.length.as_u64());
            let in_page = self.page - start % self.page;
            // The rest of a page that has its pointer already.
            let skipped =
                if self.end == Some(start) && in_page != self.page { in_page.min(length) } else { 0 };
            self.end = Some(start.wrapping_add(length));
            self.next = start.wrapping_add(skipped);
            self.rest = length - skipped;
        }
        let pointer = self.next;
        let step = (self.page - pointer % self.page).min(self.rest);
        self.next = pointer.wrapping_add(step);
        self.rest -= step;
        Some(pointer)
    }
}

#[cfg(test)]
mod tests;
