//! What a server may reach, and how it is told.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::capabilities::MAX_TRANSFER;
use super::connection::{Connection, RequestError};
use super::message::{Command, DmaAccess, DmaMap, DmaUnmap, argument_size};
use crate::address::{ByteLength, Iova, IovaRange};
use crate::bar::LivenessState;
use crate::dma::{DmaGeometry, DmaMapper, MapError, Permissions, UnmapError};
use crate::memory::SharedMemory;

/// What is mapped.
///
/// # Invariants
///
/// Entries are by their start and do not overlap.
#[derive(Debug, Default)]
pub(super) struct MappedMemory {
    entries: RwLock<BTreeMap<Iova, Mapped>>,
    /// One change at a time. It is held while the server is told, `entries` is not: the
    /// server may reach memory meanwhile.
    changes: Mutex<()>,
}

#[derive(Debug)]
struct Mapped {
    range: IovaRange,
    memory: SharedMemory,
    permissions: Permissions,
}

impl MappedMemory {
    /// The server reads memory of this process.
    pub(super) fn read(&self, access: &DmaAccess) -> Result<Vec<u8>, Errno> {
        self.reach(access, Permissions::allows_read, |memory, offset, length| {
            let mut bytes = vec![0; length];
            memory.read(offset, &mut bytes).map_err(|_| Errno::FAULT)?;
            Ok(bytes)
        })
    }

    /// The server writes memory of this process.
    pub(super) fn write(&self, access: &DmaAccess, bytes: &[u8]) -> Result<(), Errno> {
        self.reach(access, Permissions::allows_write, |memory, offset, length| {
            let bytes = bytes.get(..length).ok_or(Errno::INVAL)?;
            memory.write(offset, bytes).map_err(|_| Errno::FAULT)
        })
    }

    fn reach<R>(
        &self,
        access: &DmaAccess,
        allows: impl Fn(Permissions) -> bool,
        act: impl FnOnce(&SharedMemory, usize, usize) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let (address, length) = (Iova::new(access.address), ByteLength::new(access.count));
        if access.count > u64::from(MAX_TRANSFER) {
            return Err(Errno::INVAL);
        }
        let range = IovaRange::new(address, length).ok_or(Errno::INVAL)?;
        // Held while the memory is reached, so that an unmap waits for it.
        let entries = self.read_entries();
        let (_, mapped) = entries.range(..=address).next_back().ok_or(Errno::FAULT)?;
        if !mapped.range.contains_range(range) {
            return Err(Errno::FAULT);
        }
        if !allows(mapped.permissions) {
            return Err(Errno::ACCESS);
        }
        let offset = address.checked_offset_from(mapped.range.start()).and_then(ByteLength::to_usize);
        let (offset, length) = offset.zip(length.to_usize()).ok_or(Errno::FAULT)?;
        act(&mapped.memory, offset, length)
    }

    fn first_in(&self, range: IovaRange) -> Option<IovaRange> {
        let entries = self.read_entries();
        let (_, last) = entries.range(..=range.last()).next_back()?;
        last.range.overlaps(range).then_some(last.range)
    }

    fn count(&self) -> usize {
        self.read_entries().len()
    }

    fn read_entries(&self) -> RwLockReadGuard<'_, BTreeMap<Iova, Mapped>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_entries(&self) -> RwLockWriteGuard<'_, BTreeMap<Iova, Mapped>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address space of a function behind a socket.
///
/// Memory with a file is shown to the server with it, and is shared for good from then on:
/// whoever has had the file may keep it. Other memory is reached by messages, as far as the
/// server sends them, and is this process's own again when it is unmapped.
#[derive(Debug)]
pub(super) struct VfioUserMapper {
    connection: Arc<Connection>,
    name: String,
}

impl VfioUserMapper {
    pub(super) fn new(connection: Arc<Connection>, name: String) -> Arc<Self> {
        Arc::new(Self { connection, name })
    }

    fn page(&self) -> ByteLength {
        ByteLength::new(1 << self.connection.peer().page_sizes.trailing_zeros().min(63))
    }

    fn usable(&self) -> Option<IovaRange> {
        // The protocol has no holes. The first page is left out, since address 0 means
        // "none" to many devices, and the last, so that every mapping has an end.
        let page = self.page().as_u64();
        IovaRange::from_bounds(Iova::new(page), Iova::new(u64::MAX - page))
    }

    fn map_error(&self, range: IovaRange, error: &RequestError) -> MapError {
        match error {
            RequestError::Refused { error: Errno::EXIST, .. } => {
                MapError::AlreadyMapped { range, existing: range }
            }
            RequestError::Refused { error: Errno::NOSPC, .. } => {
                let limit = self.connection.peer().max_mappings;
                MapError::TooManyMappings { limit }
            }
            other => MapError::System { range, error: other.kind() },
        }
    }
}

impl DmaMapper for VfioUserMapper {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> DmaGeometry {
        let peer = self.connection.peer();
        let taken = u32::try_from(self.connection.memory.count()).unwrap_or(u32::MAX);
        DmaGeometry {
            ranges: self.usable().into_iter().collect(),
            page_sizes: peer.page_sizes,
            mappings_available: Some(peer.max_mappings.saturating_sub(taken)),
        }
    }

    fn prefers_files(&self) -> bool {
        true
    }

    fn map(&self, iova: Iova, memory: &SharedMemory, permissions: Permissions) -> Result<(), MapError> {
        let (length, page, host) = (memory.length(), self.page(), memory.host_address().as_u64());
        let aligned = [iova.as_u64(), length.as_u64(), host];
        let aligned = aligned.iter().all(|number| ByteLength::new(*number).is_aligned_to(page));
        let usable = self.usable();
        let range = match IovaRange::new(iova, length) {
            Some(range) if aligned => range,
            _ => return Err(MapError::Misaligned { iova, host, length, page }),
        };
        if !usable.is_some_and(|usable| usable.contains_range(range)) {
            let usable = usable.map_or_else(|| "nothing".to_owned(), |usable| usable.to_string());
            return Err(MapError::OutOfRange { range, usable });
        }
        let table = &self.connection.memory;
        let _alone = table.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = table.first_in(range) {
            return Err(MapError::AlreadyMapped { range, existing });
        }
        let file = memory.file();
        let flags = [(permissions.allows_read(), DmaMap::READ), (permissions.allows_write(), DmaMap::WRITE)];
        let request = DmaMap {
            argument_size: argument_size::<DmaMap>(),
            flags: flags.iter().filter(|(allowed, _)| *allowed).fold(0, |all, (_, flag)| all | flag),
            offset: file.map_or(0, |(_, offset)| offset),
            address: iova.as_u64(),
            size: length.as_u64(),
        };
        // Before the server hears of it, since it may reach the memory before it answers.
        // INVARIANT: nothing overlaps, checked above with changes locked out.
        table.write_entries().insert(iova, Mapped { range, memory: memory.clone(), permissions });
        let files: Vec<BorrowedFd<'_>> = file.iter().map(|(file, _)| file.as_fd()).collect();
        match self.connection.call(Command::DMA_MAP, &[request.as_bytes()], &files) {
            Ok(_) => Ok(()),
            Err(error) => {
                table.write_entries().remove(&iova);
                Err(self.map_error(range, &error))
            }
        }
    }

    /// Ends a mapping. When the connection has ended, so has every mapping: the server lets
    /// go then, and what a broken one keeps is memory that stays shared for good.
    fn unmap(&self, range: IovaRange) -> Result<ByteLength, UnmapError> {
        let table = &self.connection.memory;
        let _alone = table.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match table.first_in(range) {
            None => return Err(UnmapError::NotMapped { range }),
            Some(existing) if existing != range => return Err(UnmapError::NotExact { range, existing }),
            Some(_) => {}
        }
        let request = DmaUnmap {
            argument_size: argument_size::<DmaUnmap>(),
            flags: 0,
            address: range.start().as_u64(),
            size: range.length().as_u64(),
        };
        if self.connection.liveness.state() == LivenessState::Live {
            match self.connection.ask::<DmaUnmap>(Command::DMA_UNMAP, &[request.as_bytes()]) {
                Ok((reply, _)) if reply.size == request.size => {}
                Ok((reply, _)) => {
                    return Err(UnmapError::Incomplete { range, returned: ByteLength::new(reply.size) });
                }
                // With the connection every mapping has ended.
                Err(RequestError::Gone) => {}
                Err(error) => return Err(UnmapError::System { range, error: error.kind() }),
            }
        }
        table.write_entries().remove(&range.start());
        Ok(range.length())
    }
}
