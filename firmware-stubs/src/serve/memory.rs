//! What a client has mapped.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::{DmaMapper, MapError, Permissions, UnmapError};
use vdk_hal::vfio_user::message::{DmaMap, DmaUnmap};
use vdk_iommu::soft::{RemoteMemory, SoftDomain};

use super::files::{ClientFiles, Window};
use super::reply::{Answer, Refusal, Reply};

/// The mappings of a client, in the software IOMMU and beside it.
///
/// # Invariants
///
/// `regions` are by their start and do not overlap. Those that are reached are mapped in
/// `domain`, and nothing else is.
#[derive(Debug)]
pub(super) struct ClientMemory {
    domain: Arc<SoftDomain>,
    /// The way to memory without a file.
    remote: Arc<dyn RemoteMemory>,
    regions: BTreeMap<Iova, Region>,
    files: ClientFiles,
    most: usize,
}

/// One mapping.
#[derive(Debug)]
struct Region {
    range: IovaRange,
    way: Way,
}

/// How the device reaches a mapping.
#[derive(Debug)]
enum Way {
    /// In the file.
    File { _window: Window },
    /// By messages.
    Messages,
    /// Not at all.
    Nowhere,
}

impl ClientMemory {
    pub(super) fn new(domain: Arc<SoftDomain>, remote: Arc<dyn RemoteMemory>, most: u32) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { domain, remote, regions: BTreeMap::new(), files: ClientFiles::new(), most }
    }

    /// Maps.
    pub(super) fn map(&mut self, request: &DmaMap, files: Vec<OwnedFd>) -> Answer {
        let range = range(request.address, request.size)?;
        if !request.offset.is_multiple_of(PAGE) {
            return Err(Refusal::invalid(format!("{:#x} is not the offset of a page", request.offset)));
        }
        if let Some(existing) = self.first_in(range) {
            return Err(Refusal::new(Errno::EXIST, format!("{range} overlaps the mapping at {existing}")));
        }
        if self.regions.len() >= self.most {
            return Err(Refusal::new(Errno::NOSPC, format!("there are {} mappings already", self.most)));
        }
        let permissions = match (request.flags & DmaMap::READ != 0, request.flags & DmaMap::WRITE != 0) {
            (true, true) => Some(Permissions::ReadWrite),
            (true, false) => Some(Permissions::Read),
            (false, true) => Some(Permissions::Write),
            (false, false) => None,
        };
        let mut files = files.into_iter();
        let way = match (files.next(), permissions) {
            (Some(_), _) if files.next().is_some() => {
                return Err(Refusal::invalid("more than one file came with a mapping"));
            }
            (Some(file), Some(permissions)) => {
                let (memory, window) = self.files.memory(file, request.offset, request.size)?;
                self.domain.map(range.start(), &memory, permissions).map_err(|error| of_map(&error))?;
                Way::File { _window: window }
            }
            (None, Some(permissions)) => {
                let remote = Arc::clone(&self.remote);
                self.domain.map_remote(range, permissions, remote).map_err(|error| of_map(&error))?;
                Way::Messages
            }
            // Nothing can be done with it, so it need not be reached.
            (Some(_), None) | (None, None) => Way::Nowhere,
        };
        // INVARIANT: nothing of the range is mapped, checked above.
        self.regions.insert(range.start(), Region { range, way });
        Ok(Reply::done())
    }

    /// Unmaps every mapping that the range has in whole, which may be none: QEMU ends whole
    /// address spaces like this, as it does with VFIO. The reply says how many bytes it were,
    /// and comes when no access of the device can follow.
    pub(super) fn unmap(&mut self, request: &DmaUnmap) -> Answer {
        if request.flags & DmaUnmap::DIRTY_BITMAP != 0 {
            return Err(Refusal::new(Errno::OPNOTSUPP, "written pages are not tracked"));
        }
        let found: Vec<IovaRange> = if request.flags & DmaUnmap::ALL != 0 {
            if request.address != 0 || request.size != 0 {
                return Err(Refusal::invalid("all is asked for, and a range"));
            }
            self.regions.values().map(|region| region.range).collect()
        } else {
            let range = range(request.address, request.size)?;
            let found = self.all_in(range);
            if let Some(partial) = found.iter().find(|existing| !range.contains_range(**existing)) {
                let reason = format!("{range} is a part of the mapping at {partial} only");
                return Err(Refusal::invalid(reason));
            }
            found
        };
        let mut ended = 0u64;
        for range in found {
            self.end(range)?;
            ended = ended.saturating_add(range.length().as_u64());
        }
        Ok(Reply::of(&DmaUnmap { size: ended, ..*request }))
    }

    /// Ends every mapping. What the device does not leave stays mapped, and with it its
    /// memory.
    pub(super) fn unmap_all(&mut self) {
        let ranges: Vec<IovaRange> = self.regions.values().map(|region| region.range).collect();
        for range in ranges {
            if let Err(refusal) = self.end(range) {
                log::error!("the memory of a client that is gone stays mapped: {}", refusal.reason);
            }
        }
    }

    fn end(&mut self, range: IovaRange) -> Result<(), Refusal> {
        let mapped = self.regions.get(&range.start()).map(|region| &region.way);
        if matches!(mapped, Some(Way::File { .. } | Way::Messages)) {
            self.domain.unmap(range).map_err(|error| of_unmap(&error))?;
        }
        self.regions.remove(&range.start());
        Ok(())
    }

    fn first_in(&self, range: IovaRange) -> Option<IovaRange> {
        let (_, last) = self.regions.range(..=range.last()).next_back()?;
        last.range.overlaps(range).then_some(last.range)
    }

    fn all_in(&self, range: IovaRange) -> Vec<IovaRange> {
        let before = self.regions.range(..range.start()).next_back();
        let inside = self.regions.range(range.start()..=range.last());
        let all = before.into_iter().chain(inside).map(|(_, region)| region.range);
        all.filter(|existing| existing.overlaps(range)).collect()
    }
}

fn range(address: u64, size: u64) -> Result<IovaRange, Refusal> {
    if !address.is_multiple_of(PAGE) || !size.is_multiple_of(PAGE) {
        return Err(Refusal::invalid(format!("{address:#x}+{size:#x} is not whole pages")));
    }
    IovaRange::new(Iova::new(address), ByteLength::new(size))
        .ok_or_else(|| Refusal::invalid(format!("{address:#x}+{size:#x} is empty or passes the end")))
}

fn of_map(error: &MapError) -> Refusal {
    let number = match error {
        MapError::AlreadyMapped { .. } => Errno::EXIST,
        MapError::TooManyMappings { .. } => Errno::NOSPC,
        _ => Errno::INVAL,
    };
    Refusal::new(number, error.to_string())
}

fn of_unmap(error: &UnmapError) -> Refusal {
    let number = match error {
        UnmapError::DeviceBusy { .. } => Errno::BUSY,
        UnmapError::NotMapped { .. } => Errno::NOENT,
        _ => Errno::INVAL,
    };
    Refusal::new(number, error.to_string())
}

/// The page of mappings, as the capabilities say.
const PAGE: u64 = 4096;
