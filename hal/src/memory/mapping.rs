//! One owned range of this process's address space.

// UNSAFETY: owns raw memory; every other module of `memory` reaches it through this one.
#![expect(unsafe_code, reason = "owner of raw memory")]

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::Advice;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileSlice};

use super::MemoryError;
use super::fault;
use super::fault_table::FaultEntry;
use super::guarded::GuardedMmap;
use crate::address::{ByteLength, HostAddress};
use crate::bar::Liveness;

/// Which pages back a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pages {
    /// The base page size of the system, in a memory file that another process can map.
    Base,
    /// Base pages that the kernel may promote to 2 MiB, private to this process and not
    /// inherited by `fork`.
    Transparent,
    /// 2 MiB pages from the hugetlb reserve, in a memory file.
    Huge2M,
    /// 1 GiB pages from the hugetlb reserve, in a memory file.
    Huge1G,
}

impl Pages {
    /// The page size that allocations are rounded to.
    #[must_use]
    pub fn size(self) -> ByteLength {
        match self {
            Self::Base => page_size(),
            Self::Transparent | Self::Huge2M => ByteLength::SIZE_2M,
            Self::Huge1G => ByteLength::SIZE_1G,
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => write!(f, "base"),
            Self::Transparent => write!(f, "transparent 2 MiB"),
            Self::Huge2M => write!(f, "2 MiB"),
            Self::Huge1G => write!(f, "1 GiB"),
        }
    }
}

/// The base page size of the running system.
#[must_use]
pub fn page_size() -> ByteLength {
    static SIZE: OnceLock<usize> = OnceLock::new();
    ByteLength::from_usize(*SIZE.get_or_init(rustix::param::page_size))
}

/// An owned range of memory.
///
/// # Invariants
///
/// `address .. address + length` is valid for reads and writes for as long as the value
/// lives, and nothing outside this crate's `memory` module holds a pointer into it.
pub(super) struct Mapping {
    address: NonNull<u8>,
    length: usize,
    pages: Pages,
    /// Before the storage, since the range may be somebody else's at once after that.
    _guard: Option<FaultEntry>,
    storage: Storage,
    /// Set once somebody else may reach the pages through their file.
    exported: AtomicBool,
}

enum Storage {
    /// Pages made here. Their file, if they have one, has not left this module unless
    /// `exported` says so.
    Own(MmapRegion),
    /// A part of a file that came from elsewhere; private pages unless it is `shared`.
    File { region: MmapRegion, shared: bool },
    /// A device or a file that may go away.
    Guarded { mmap: GuardedMmap },
    /// Taken over from a caller. The fields are dropped in this order.
    Vector { _fork: ForkExclusion, vector: Vec<u8> },
    /// Borrowed from a caller who promised that it outlives the mapping.
    Foreign { _fork: Option<ForkExclusion> },
}

// SAFETY:
// 1. The mapping owns its memory (or was promised it), so it may be dropped on any thread.
// 2. It has no thread affinity: `mmap` regions and vectors belong to the process.
unsafe impl Send for Mapping {}

// SAFETY: `&Mapping` gives out only the address and length; every access goes through
// `PinnedMemory` (exclusive) or `SharedMemory` (raw copies of bytes, fenced for the compiler, and atomics).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates zeroed memory on `pages`, rounded up to whole pages.
    pub(super) fn allocate(length: ByteLength, pages: Pages) -> Result<Self, MemoryError> {
        let page = pages.size();
        if length.is_zero() {
            return Err(MemoryError::Empty);
        }
        let too_long = || MemoryError::TooLong { length, page };
        let rounded = length.checked_align_up(page).ok_or_else(too_long)?;
        let bytes = rounded.to_usize().filter(|n| isize::try_from(*n).is_ok()).ok_or_else(too_long)?;
        let failed = |error: io::Error| MemoryError::Allocate {
            length: rounded,
            pages,
            hint: allocation_hint(pages, rounded),
            error,
        };
        let region = match pages {
            Pages::Transparent => transparent_region(bytes).map_err(failed)?,
            Pages::Base => file_region(bytes, MemfdFlags::CLOEXEC).map_err(failed)?,
            Pages::Huge2M => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                file_region(bytes, flags).map_err(failed)?
            }
            Pages::Huge1G => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB;
                file_region(bytes, flags).map_err(failed)?
            }
        };
        let mut mapping = Self::from_region(region, bytes, pages).ok_or_else(too_long)?;
        mapping.guard_huge_pages().map_err(failed)?;
        Ok(mapping)
    }

    /// Maps `length` bytes of `file` from `offset`: shared when it is `writable`, else
    /// private, so that the memory can be written all the same and the file is not.
    pub(super) fn map_file(
        file: &File,
        offset: u64,
        length: ByteLength,
        writable: bool,
    ) -> Result<Self, MemoryError> {
        let failed = |error| MemoryError::MapFile { offset, length, error };
        if length.is_zero() {
            return Err(MemoryError::Empty);
        }
        let page = page_size();
        let end = offset.checked_add(length.as_u64());
        let (Some(end), true) = (end, ByteLength::new(offset).is_aligned_to(page)) else {
            return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        // A page past the end of the file would raise SIGBUS on access.
        let last_page = ByteLength::new(file.metadata().map_err(failed)?.len());
        if last_page.checked_align_up(page).is_none_or(|limit| end > limit.as_u64()) {
            return Err(failed(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        let bytes = length.to_usize().ok_or(MemoryError::TooLong { length, page })?;
        let sharing = if writable { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let region = MmapRegionBuilder::new(bytes)
            .with_file_offset(FileOffset::new(file.try_clone().map_err(failed)?, offset))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(sharing | libc::MAP_NORESERVE)
            .build()
            .map_err(|error| failed(io::Error::other(error)))?;
        let address = NonNull::new(region.as_ptr()).ok_or_else(|| failed(io::ErrorKind::Other.into()))?;
        exclude_from_fork(address, bytes);
        Ok(Self::new(address, bytes, Pages::Base, Storage::File { region, shared: writable }))
    }

    /// Maps `length` bytes of `file`, shared, from `offset`, so that an access after they
    /// went away marks `liveness` and meets ones.
    pub(super) fn map_guarded(
        file: &File,
        offset: u64,
        length: ByteLength,
        liveness: &Arc<Liveness>,
    ) -> Result<Self, MemoryError> {
        let failed = |error| MemoryError::MapFile { offset, length, error };
        let page = page_size();
        if length.is_zero() {
            return Err(MemoryError::Empty);
        }
        if !ByteLength::new(offset).is_aligned_to(page) {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let bytes = length.to_usize().ok_or(MemoryError::TooLong { length, page })?;
        let mmap = GuardedMmap::new(file, offset, bytes, Arc::clone(liveness)).map_err(failed)?;
        let address = mmap.address();
        exclude_from_fork(address, mmap.length());
        Ok(Self::new(address, bytes, Pages::Base, Storage::Guarded { mmap }))
    }

    fn new(address: NonNull<u8>, length: usize, pages: Pages, storage: Storage) -> Self {
        Self { address, length, pages, _guard: None, storage, exported: AtomicBool::new(false) }
    }

    /// Who is handed the file can punch a hole, and the reserved huge pages may be somebody
    /// else's when the next access asks for one: it then meets ones instead of SIGBUS.
    fn guard_huge_pages(&mut self) -> io::Result<()> {
        if !matches!(self.pages, Pages::Huge2M | Pages::Huge1G) || cfg!(miri) {
            return Ok(());
        }
        fault::prepare()?;
        let page = self.pages.size().to_usize().ok_or(io::ErrorKind::Unsupported)?;
        let start = self.address.as_ptr().expose_provenance();
        // INVARIANT: the range is unmapped with the storage, after the entry.
        self._guard = Some(fault::guard(start, start + self.length, page, Liveness::new()));
        Ok(())
    }

    /// Takes a vector whose memory is whole pages; gives it back when it is not.
    pub(super) fn from_vec(mut vector: Vec<u8>) -> Result<Self, (MemoryError, Vec<u8>)> {
        let length = vector.len();
        let address = vector.as_mut_ptr();
        if let Err(error) = require_whole_pages(address, length) {
            return Err((error, vector));
        }
        let Some(address) = NonNull::new(address) else {
            return Err((MemoryError::Empty, vector));
        };
        let fork = ForkExclusion::new(address, length);
        Ok(Self::new(address, length, Pages::Base, Storage::Vector { _fork: fork, vector }))
    }

    /// Describes memory that somebody else owns.
    ///
    /// # Safety
    ///
    /// `address .. address + length` is valid for reads and writes until the value is
    /// dropped, and until then nobody holds a Rust reference into it. With `whole_pages`
    /// it is whole pages, which a child process can do without.
    pub(super) unsafe fn from_raw_parts(address: NonNull<u8>, length: usize, whole_pages: bool) -> Self {
        let fork = whole_pages.then(|| ForkExclusion::new(address, length));
        Self::new(address, length, Pages::Base, Storage::Foreign { _fork: fork })
    }

    fn from_region(region: MmapRegion, length: usize, pages: Pages) -> Option<Self> {
        let skip = match pages {
            Pages::Transparent => region.as_ptr().align_offset(pages.size().to_usize()?),
            // A system call gives whole pages; the allocator under Miri does not.
            Pages::Base if cfg!(miri) => region.as_ptr().align_offset(pages.size().to_usize()?),
            Pages::Base | Pages::Huge2M | Pages::Huge1G => 0,
        };
        if skip.checked_add(length).is_none_or(|end| end > region.size()) {
            return None;
        }
        // SAFETY: `skip + length <= region.size()`, checked above.
        let address = NonNull::new(unsafe { region.as_ptr().add(skip) })?;
        exclude_from_fork(address, length);
        Some(Self::new(address, length, pages, Storage::Own(region)))
    }

    /// Keeps a child process from inheriting the pages.
    pub(super) fn exclude_from_fork(&self) {
        exclude_from_fork(self.address, self.length);
    }

    pub(super) fn as_non_null(&self) -> NonNull<u8> {
        self.address
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    pub(super) fn host_address(&self) -> HostAddress {
        // CAST: a pointer is at most 64 bits wide on every supported target.
        HostAddress::new(self.address.as_ptr() as usize as u64)
    }

    /// The memory file behind the mapping and the offset of the mapping in it. Whoever has
    /// it can reach the pages, so that they are never exclusive again.
    pub(super) fn file(&self) -> Option<(&File, u64)> {
        let region = match &self.storage {
            Storage::Own(region) | Storage::File { region, shared: true } => region,
            // Who maps the file of private pages gets others.
            Storage::File { shared: false, .. } => return None,
            Storage::Guarded { .. } | Storage::Vector { .. } | Storage::Foreign { .. } => return None,
        };
        let file = region.file_offset().map(|f| (f.file(), f.start()))?;
        // ORDERING: Relaxed; who takes the mapping over has synchronised with every holder
        // of a reference, this one included, by the reference count.
        self.exported.store(true, Ordering::Relaxed);
        Some(file)
    }

    /// Whether nobody can reach the pages but through this value.
    pub(super) fn is_private(&self) -> bool {
        match &self.storage {
            // ORDERING: Relaxed; see `file`.
            Storage::Own(_) => !self.exported.load(Ordering::Relaxed),
            Storage::Vector { .. } => true,
            Storage::File { .. } | Storage::Guarded { .. } | Storage::Foreign { .. } => false,
        }
    }

    /// The vector that the mapping was made of.
    pub(super) fn into_vec(self) -> Result<Vec<u8>, Self> {
        match self {
            Self { storage: Storage::Vector { vector, .. }, .. } => Ok(vector),
            other => Err(other),
        }
    }

    /// Touches every page so that no later access faults.
    pub(super) fn populate(&self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; populating writes no byte of it.
        let result = unsafe {
            rustix::mm::madvise(self.address.as_ptr().cast(), self.length, Advice::LinuxPopulateWrite)
        };
        result.map_err(io::Error::from)
    }

    /// Lets go of a device's memory, which then answers ones. Other memory is not revoked.
    pub(super) fn revoke(&self) -> io::Result<()> {
        match &self.storage {
            Storage::Guarded { mmap } => mmap.revoke(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Maps a device's memory anew. Other memory is not.
    pub(super) fn restore(&self, file: &File, offset: u64) -> io::Result<()> {
        match &self.storage {
            Storage::Guarded { mmap } => mmap.replace(file, offset),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// A volatile view of `length` bytes from `offset`.
    ///
    /// # Panics
    ///
    /// When the range is not inside the mapping; callers have checked it.
    pub(super) fn volatile_slice(&self, offset: usize, length: usize) -> VolatileSlice<'_> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: `offset <= self.length`, checked above, so the result is in bounds or one past.
        let start = unsafe { self.address.as_ptr().add(offset) };
        // SAFETY:
        // 1. The range is inside the mapping, checked above, and valid by the type invariant.
        // 2. The lifetime is bound to `&self`.
        unsafe { VolatileSlice::new(start, length) }
    }
}

/// The rule for a caller's own buffer: whole pages, so that nothing else is exposed.
pub(super) fn require_whole_pages(address: *const u8, length: usize) -> Result<(), MemoryError> {
    let page = page_size();
    if length == 0 {
        return Err(MemoryError::Empty);
    }
    // CAST: a pointer is at most 64 bits wide on every supported target.
    let start = HostAddress::new(address as usize as u64);
    let size = ByteLength::from_usize(length);
    if ByteLength::new(start.as_u64()).is_aligned_to(page) && size.is_aligned_to(page) {
        Ok(())
    } else {
        Err(MemoryError::Unaligned { address: start, length: size, page })
    }
}

/// Keeps a child process from inheriting the pages: a copy on write after a fork would
/// leave the device with the page that this process no longer sees.
fn exclude_from_fork(address: NonNull<u8>, length: usize) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: the range is mapped and whole pages; the advice changes only what a child
    // inherits.
    let result = unsafe { rustix::mm::madvise(address.as_ptr().cast(), length, Advice::LinuxDontFork) };
    if let Err(error) = result {
        log::warn!("madvise(DONTFORK) failed, a fork could move pages away from the device: {error}");
    }
}

/// A caller's pages, not inherited by child processes until this is dropped.
struct ForkExclusion {
    address: NonNull<u8>,
    length: usize,
}

impl ForkExclusion {
    fn new(address: NonNull<u8>, length: usize) -> Self {
        exclude_from_fork(address, length);
        Self { address, length }
    }
}

impl Drop for ForkExclusion {
    fn drop(&mut self) {
        if cfg!(miri) {
            return;
        }
        let address = self.address.as_ptr().cast();
        // SAFETY: as in `exclude_from_fork`; the pages are still the caller's.
        if let Err(error) = unsafe { rustix::mm::madvise(address, self.length, Advice::LinuxDoFork) } {
            log::warn!("madvise(DOFORK) failed, child processes will miss these pages: {error}");
        }
    }
}

fn transparent_region(bytes: usize) -> io::Result<MmapRegion> {
    // 2 MiB more than asked for, so that the part that is used begins on a 2 MiB boundary:
    // the kernel promotes only aligned ranges.
    let huge = Pages::Transparent.size().to_usize();
    let bytes = huge.and_then(|huge| bytes.checked_add(huge)).ok_or(io::ErrorKind::OutOfMemory)?;
    let region = anonymous_region(bytes)?;
    if cfg!(miri) {
        return Ok(region);
    }
    // SAFETY: the range is the mapping just made; the advice changes no byte.
    let result = unsafe { rustix::mm::madvise(region.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    if let Err(error) = result {
        log::debug!("madvise(HUGEPAGE) refused: {error}");
    }
    Ok(region)
}

fn anonymous_region(bytes: usize) -> io::Result<MmapRegion> {
    MmapRegionBuilder::new(bytes)
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
        .build()
        .map_err(io::Error::other)
}

fn file_region(bytes: usize, flags: MemfdFlags) -> io::Result<MmapRegion> {
    if cfg!(miri) {
        // Miri has no memory files: a page more, so that what is used can begin on one.
        let page = page_size().to_usize().ok_or(io::ErrorKind::Unsupported)?;
        return anonymous_region(bytes.checked_add(page).ok_or(io::ErrorKind::OutOfMemory)?);
    }
    let file = File::from(rustix::fs::memfd_create("vdk", flags | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(ByteLength::from_usize(bytes).as_u64())?;
    // Another process that is handed the file cannot cut it under an access. It can punch a
    // hole, since the seal against that forbids writing as well: the bytes are zero then, and
    // huge pages may not be there again; see `guard_huge_pages`.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    MmapRegionBuilder::new(bytes)
        .with_file_offset(FileOffset::new(file, 0))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_SHARED)
        .build()
        .map_err(io::Error::other)
}

fn allocation_hint(pages: Pages, length: ByteLength) -> String {
    let (kib, size) = match pages {
        Pages::Huge2M => (2048, 1u64 << 21),
        Pages::Huge1G => (1_048_576, 1 << 30),
        Pages::Base | Pages::Transparent => return String::new(),
    };
    let count = length.as_u64().div_ceil(size);
    let file = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
    format!("; as root, to reserve {count} more: echo $(($(cat {file}) + {count})) > {file}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::{PinnedMemory, SharedMemory, lend};

    /// The flags of the mapping that `address` lies in, from `/proc/self/smaps`.
    fn flags_of(address: HostAddress) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bound = |text: &str| u64::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = bounds.map(|(start, end)| (bound(start), bound(end))) {
                inside = (start..end).contains(&address.as_u64());
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_owned();
            }
        }
        String::new()
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs madvise")]
    fn pages_that_a_device_may_reach_are_not_inherited() {
        let excluded = |address| flags_of(address).split_ascii_whitespace().any(|flag| flag == "dc");
        for pages in [Pages::Base, Pages::Transparent] {
            let mut memory = PinnedMemory::allocate(ByteLength::SIZE_2M, pages).unwrap();
            assert!(excluded(memory.host_address()));
            lend(&mut memory, |lent| assert!(excluded(lent.host_address()))).unwrap();
            assert!(!excluded(memory.host_address()), "a caller's pages are as before");
            assert!(excluded(memory.share().host_address()));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memory files")]
    fn pages_that_somebody_else_may_reach_never_become_a_slice() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let memory = memory.try_into_pinned().expect("nobody was shown them").share();
        let (file, offset) = memory.file().unwrap();
        let again = SharedMemory::map_file(file, offset, ByteLength::SIZE_4K, true).unwrap();
        let memory = memory.try_into_pinned().expect_err("their file was handed out");
        memory.write(0, b"both").unwrap();
        assert_eq!(again.read_value::<[u8; 4]>(0), Ok(*b"both"));
        assert!(again.try_into_pinned().is_err(), "a file from elsewhere");
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memory files")]
    fn a_file_that_is_mapped_to_be_read_is_never_written() {
        let file = File::from(rustix::fs::memfd_create("file", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(b"content", 0).unwrap();
        let memory = SharedMemory::map_file(&file, 0, ByteLength::new(7), false).unwrap();
        memory.write(0, b"changed").unwrap();
        let mut bytes = [0; 7];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, memory.read_value::<[u8; 7]>(0)), (b"content", Ok(*b"changed")));
        assert!(memory.file().is_none(), "who maps the file does not see these pages");
        assert!(SharedMemory::map_file(&file, 0, ByteLength::new(4097), false).is_err());
        assert!(SharedMemory::map_file(&file, 1, ByteLength::new(1), false).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memory files")]
    fn a_hole_in_huge_pages_of_ours_kills_nobody() {
        use rustix::fs::{FallocateFlags, fallocate};
        let Ok(memory) = SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Huge2M) else {
            println!("skipped: needs reserved huge pages; echo 2 > /proc/sys/vm/nr_hugepages");
            return;
        };
        memory.write_value(0, &7u64).unwrap();
        let (file, _) = memory.file().unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, hole, 0, 1 << 21).unwrap();
        // Others take what is left.
        let others: Vec<_> = (0..1024)
            .map_while(|_| SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Huge2M).ok())
            .collect();
        let now = memory.read_value::<u64>(0).unwrap();
        assert!([0, u64::MAX].contains(&now), "{now:#x} with {} others", others.len());
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memory files")]
    fn memory_files_of_ours_cannot_be_cut_under_an_access() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let (file, _) = memory.file().unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        assert_eq!(memory.read_value::<u64>(0), Ok(0));
    }
}
