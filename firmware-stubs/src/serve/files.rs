//! The files of a client's memory, mapped once each.
//!
//! A guest with an IOMMU maps single pages of one large file, thousands of times a second.
//! The file is mapped as a whole when it is first seen, and each mapping of a page is a part
//! of that.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::io::Errno;
use vdk_hal::address::ByteLength;
use vdk_hal::bar::Liveness;
use vdk_hal::memory::{MemoryError, SharedMemory};

use super::reply::Refusal;

/// The files that were seen last.
#[derive(Debug)]
pub(super) struct ClientFiles {
    /// Marked when a file was cut short under an access.
    liveness: Arc<Liveness>,
    seen: VecDeque<Seen>,
    /// Everything that is mapped, those that were forgotten and are still in use included.
    windows: Arc<()>,
}

/// A file that is mapped as a whole.
#[derive(Debug)]
struct Seen {
    device: u64,
    inode: u64,
    window: Window,
}

/// A mapped file, or a part of one. Parts of the memory keep it mapped; the window is kept
/// with them so that it is counted.
#[derive(Clone, Debug)]
pub(super) struct Window {
    memory: SharedMemory,
    _count: Arc<()>,
}

impl ClientFiles {
    pub(super) fn new() -> Self {
        Self { liveness: Liveness::new(), seen: VecDeque::new(), windows: Arc::default() }
    }

    /// The part of `length` bytes from `offset` of a file that a client sent.
    pub(super) fn memory(
        &mut self,
        file: OwnedFd,
        offset: u64,
        length: u64,
    ) -> Result<(SharedMemory, Window), Refusal> {
        // A file of FUSE or of a network could keep whoever looks at it or touches its memory
        // waiting for as long as the client likes. Only memory has seals, and only the kernel
        // answers for them.
        if rustix::fs::fcntl_get_seals(&file).is_err() {
            return Err(Refusal::invalid(
                "the file is not one of memory: only those of memfd_create, tmpfs and hugetlbfs are",
            ));
        }
        let file = File::from(file);
        let metadata = file
            .metadata()
            .map_err(|error| Refusal::invalid(format!("the file cannot be examined: {error}")))?;
        if !metadata.is_file() {
            return Err(Refusal::invalid("the file is not one of memory"));
        }
        let size = metadata.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            let reason = format!("{length:#x} bytes at {offset:#x} are outside the file of {size:#x} bytes");
            return Err(Refusal::invalid(reason));
        }
        let (device, inode) = (metadata.dev(), metadata.ino());
        let known = self.seen.iter().position(|seen| seen.device == device && seen.inode == inode);
        if let Some(seen) = known.and_then(|position| self.seen.get(position)) {
            let window = seen.window.clone();
            // It may have grown.
            if let Ok(memory) = part(&window.memory, offset, length) {
                return Ok((memory, window));
            }
        }
        if let Some(position) = known {
            self.seen.remove(position);
        }
        if size > LARGEST_WINDOW {
            let window = self.map(&file, offset, length)?;
            return Ok((window.memory.clone(), window));
        }
        let window = self.map(&file, 0, size)?;
        let memory = part(&window.memory, offset, length)?;
        if self.seen.len() >= MOST_SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back(Seen { device, inode, window: window.clone() });
        Ok((memory, window))
    }

    fn map(&self, file: &File, offset: u64, length: u64) -> Result<Window, Refusal> {
        if Arc::strong_count(&self.windows) > MOST_WINDOWS {
            return Err(Refusal::new(Errno::NOSPC, format!("more than {MOST_WINDOWS} files are mapped")));
        }
        let memory = SharedMemory::map_guarded(file, offset, ByteLength::new(length), &self.liveness);
        match memory {
            Ok(memory) => Ok(Window { memory, _count: Arc::clone(&self.windows) }),
            Err(MemoryError::MapFile { error, .. }) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                Err(Refusal::new(errno, format!("the file cannot be mapped: {error}")))
            }
            Err(error) => Err(Refusal::invalid(error.to_string())),
        }
    }
}

fn part(memory: &SharedMemory, offset: u64, length: u64) -> Result<SharedMemory, Refusal> {
    let (offset, length) = (ByteLength::new(offset).to_usize(), ByteLength::new(length).to_usize());
    let part = offset.zip(length).and_then(|(offset, length)| memory.slice(offset, length).ok());
    part.ok_or_else(|| Refusal::invalid("the part is outside the file"))
}

/// The largest file that is mapped as a whole: 16 TiB of address space.
const LARGEST_WINDOW: u64 = 16 << 40;
/// How many files are remembered.
const MOST_SEEN: usize = 64;
/// How many mappings of files there may be; the system has a limit for all of a process.
const MOST_WINDOWS: usize = 4096;
