//! A mapping whose pages can go away under an access.

// UNSAFETY: maps and unmaps a range of the address space.
#![expect(unsafe_code, reason = "maps and unmaps a range")]

use core::ptr::{self, NonNull};
use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::fstatfs;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::fault::{self, guard};
use super::fault_table::FaultEntry;
use super::page_size;
use crate::address::ByteLength;
use crate::bar::Liveness;

/// A shared mapping of a file or device, guarded against SIGBUS. It need not be as long as
/// the file says: what is not there answers all ones.
///
/// The fields are dropped in their order: the range leaves the table of guarded ranges
/// before it is unmapped, since it may be somebody else's at once after that.
pub(super) struct GuardedMmap {
    _entry: FaultEntry,
    pages: MappedPages,
}

impl GuardedMmap {
    /// Maps `length` bytes from `offset`, rounded up to whole pages of the file: the kernel
    /// maps a BAR smaller than a page only where nothing else is in the page.
    pub(super) fn new(file: &File, offset: u64, length: usize, liveness: Arc<Liveness>) -> io::Result<Self> {
        let page = page_size_of(file)?;
        let rounded = ByteLength::from_usize(length).checked_align_up(page);
        let length = rounded.and_then(ByteLength::to_usize).ok_or(io::ErrorKind::InvalidInput)?;
        // Before the mapping exists, so that there is no access that it could miss.
        fault::prepare()?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, file, offset) }?;
        let address = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let pages = MappedPages { address, length };
        let start = address.as_ptr().expose_provenance();
        let page = page.to_usize().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { _entry: guard(start, start + length, page, liveness), pages })
    }

    /// Lets go of the file for good: from now on every access meets ones, as after a removal.
    ///
    /// A file without a byte takes the place of the old one in one step. An access before
    /// it reaches the device, one after it faults and is mended.
    pub(super) fn revoke(&self) -> io::Result<()> {
        self.replace(fault::empty_file().ok_or(io::ErrorKind::NotFound)?, 0)
    }

    /// Maps `file` from `offset` anew, in one step, in the place of what is there.
    pub(super) fn replace(&self, file: &File, offset: u64) -> io::Result<()> {
        let MappedPages { address, length } = self.pages;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY:
        // 1. The range is that of our own mapping, which is kept until the drop.
        // 2. It is guarded, so that accesses to pages without a file behind them are mended.
        // 3. No Rust reference into it exists, as into all shared memory.
        unsafe { mmap(address.as_ptr().cast(), length, access, flags, file, offset) }?;
        Ok(())
    }

    /// The size of the range, whole pages of the file.
    pub(super) fn length(&self) -> usize {
        self.pages.length
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.pages.address
    }
}

/// The size of the pages that a file is mapped in: huge ones cannot be split.
fn page_size_of(file: &File) -> io::Result<ByteLength> {
    let system = fstatfs(file)?;
    if u64::try_from(system.f_type) != Ok(HUGETLBFS_MAGIC) {
        return Ok(page_size());
    }
    let huge = u64::try_from(system.f_bsize).ok().filter(|size| size.is_power_of_two());
    Ok(ByteLength::new(huge.ok_or(io::ErrorKind::InvalidData)?).max(page_size()))
}

/// The file system of huge pages, in Linux's `include/uapi/linux/magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Whole pages, unmapped when dropped.
struct MappedPages {
    address: NonNull<u8>,
    length: usize,
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and its owner gives out no pointer that
        // lives longer.
        if let Err(error) = unsafe { munmap(self.address.as_ptr().cast(), self.length) } {
            log::error!("cannot unmap {:#x} bytes at {:p}: {error}", self.length, self.address);
        }
    }
}
