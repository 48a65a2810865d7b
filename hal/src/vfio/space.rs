//! Address spaces: what is mapped, and who sees it.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::container::Container;
use super::iommufd::Ioas;
use super::memlock::{self, Accounting};
use super::options::KernelInterface;
use super::ranges::listed;
use super::refusal::Refusal;
use crate::address::{ByteLength, Iova, IovaRange};
use crate::dma::{DmaGeometry, DmaMapper, MapError, Permissions, UnmapError};
use crate::memory::{SharedMemory, page_size};

/// An address space that several functions see; clones are the same one.
///
/// Give it to the options of each node. The first function that is opened decides the
/// kernel interface, and the others must be openable through the same one. The mappings end
/// when the last of the functions is closed.
#[derive(Clone, Default)]
pub struct SharedAddressSpace {
    pub(super) inner: Arc<Space>,
}

impl SharedAddressSpace {
    /// An address space that no function sees yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One in which only addresses of `ranges` are used: a function that cannot reach all of
    /// them is then refused, instead of taking addresses away from the others. iommufd only;
    /// elsewhere it has no effect.
    #[must_use]
    pub fn with_allowed_ranges(ranges: Vec<IovaRange>) -> Self {
        let shared = Self::new();
        shared.inner.state().allowed = ranges;
        shared
    }

    /// What maps into it.
    #[must_use]
    pub fn mapper(&self) -> Arc<dyn DmaMapper> {
        Arc::clone(&self.inner) as Arc<dyn DmaMapper>
    }
}

impl fmt::Debug for SharedAddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedAddressSpace({})", self.inner.name())
    }
}

/// The kernel's side of an address space.
#[derive(Clone)]
pub(super) enum Backing {
    Type1(Arc<Container>),
    Iommufd(Arc<Ioas>),
}

impl Backing {
    pub(super) fn open(interface: KernelInterface) -> Result<Self, Refusal> {
        match interface {
            KernelInterface::Type1 => Ok(Self::Type1(Arc::new(Container::open()?))),
            KernelInterface::Iommufd | KernelInterface::Auto => Ok(Self::Iommufd(Arc::new(Ioas::open()?))),
        }
    }

    pub(super) fn interface(&self) -> KernelInterface {
        match self {
            Self::Type1(_) => KernelInterface::Type1,
            Self::Iommufd(_) => KernelInterface::Iommufd,
        }
    }

    fn geometry(&self) -> Result<DmaGeometry, Errno> {
        match self {
            Self::Type1(container) => container.geometry(),
            Self::Iommufd(ioas) => ioas.geometry(),
        }
    }

    fn map(&self, iova: Iova, memory: &SharedMemory, permissions: Permissions) -> Result<(), Errno> {
        match self {
            Self::Type1(container) => container.map(iova, memory, permissions),
            Self::Iommufd(ioas) => ioas.map(iova, memory, permissions),
        }
    }

    fn unmap(&self, range: IovaRange) -> Result<u64, Errno> {
        match self {
            Self::Type1(container) => container.unmap(range),
            Self::Iommufd(ioas) => ioas.unmap(range),
        }
    }

    fn accounting(&self) -> Accounting {
        match self {
            Self::Iommufd(ioas) if ioas.counts_by_process() != Some(true) => Accounting::User,
            Self::Type1(_) | Self::Iommufd(_) => Accounting::Process,
        }
    }
}

/// One address space.
pub(super) struct Space {
    number: u32,
    state: Mutex<State>,
}

struct State {
    backing: Option<Backing>,
    /// How many functions see it.
    functions: usize,
    /// As of the last attach or detach.
    geometry: DmaGeometry,
    allowed: Vec<IovaRange>,
    /// By first address.
    mappings: BTreeMap<u64, Held>,
}

/// A mapping and its memory.
struct Held {
    range: IovaRange,
    /// Empty once the kernel has ended the mapping by itself, with the last function.
    memory: Option<SharedMemory>,
}

impl Default for Space {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // ORDERING: Relaxed; only the number counts.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            number,
            state: Mutex::new(State {
                backing: None,
                functions: 0,
                geometry: nothing(),
                allowed: Vec::new(),
                mappings: BTreeMap::new(),
            }),
        }
    }
}

impl Space {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel's side, if there is one already.
    pub(super) fn interface(&self) -> Option<KernelInterface> {
        self.state().backing.as_ref().map(Backing::interface)
    }

    /// The kernel's side, made now if there is none.
    pub(super) fn backing(&self, interface: KernelInterface) -> Result<Backing, Refusal> {
        self.backing_by(interface, Backing::open)
    }

    /// One with a kernel's side that a test has made.
    #[cfg(test)]
    pub(super) fn over(backing: Backing) -> Arc<Self> {
        let space = Arc::new(Self::default());
        space.state().backing = Some(backing);
        space
    }

    fn backing_by(
        &self,
        interface: KernelInterface,
        open: impl FnOnce(KernelInterface) -> Result<Backing, Refusal>,
    ) -> Result<Backing, Refusal> {
        let mut state = self.state();
        if let Some(backing) = &state.backing {
            let ours = backing.interface();
            if ours != interface {
                return Err(Refusal::new(
                    format!("its address space is one of {ours}, and {interface} is asked for"),
                    "open all functions of an address space through the same interface",
                ));
            }
            return Ok(backing.clone());
        }
        let backing = open(interface)?;
        if let (Backing::Iommufd(ioas), false) = (&backing, state.allowed.is_empty()) {
            ioas.allow(&state.allowed).map_err(|error| Refusal::call("the allowed address ranges", error))?;
        }
        state.backing = Some(backing.clone());
        Ok(backing)
    }

    /// A function sees it now.
    pub(super) fn attached(&self) -> Result<(), Errno> {
        let mut state = self.state();
        let Some(backing) = &state.backing else { return Err(Errno::INVAL) };
        state.geometry = backing.geometry()?;
        state.functions += 1;
        Ok(())
    }

    /// A function is about to leave. With the last one every mapping ends, while the device
    /// is still there to be waited for.
    pub(super) fn leaving(&self) {
        let mut state = self.state();
        state.functions = state.functions.saturating_sub(1);
        if state.functions > 0 {
            return;
        }
        state.geometry = nothing();
        let Some(backing) = state.backing.clone() else { return };
        for held in state.mappings.values_mut() {
            let Some(memory) = held.memory.take() else { continue };
            match backing.unmap(held.range) {
                Ok(returned) if returned == held.range.length().as_u64() => {}
                answer => {
                    log::error!(
                        "{}: {} does not end ({answer:?}); its memory is leaked",
                        self.name(),
                        held.range
                    );
                    core::mem::forget(memory);
                }
            }
        }
    }

    /// After the last function has left, or one could not join: the ranges may be others.
    pub(super) fn refresh(&self) {
        let mut state = self.state();
        if state.functions > 0
            && let Some(Ok(geometry)) = state.backing.as_ref().map(Backing::geometry)
        {
            state.geometry = geometry;
        }
    }
}

impl DmaMapper for Space {
    fn name(&self) -> String {
        match self.interface() {
            Some(KernelInterface::Type1) => format!("type1 container {}", self.number),
            Some(_) => format!("iommufd address space {}", self.number),
            None => format!("VFIO address space {}", self.number),
        }
    }

    fn geometry(&self) -> DmaGeometry {
        let state = self.state();
        if state.functions == 0 {
            return nothing();
        }
        // The number of mappings left changes all the time.
        match state.backing.as_ref().map(Backing::geometry) {
            Some(Ok(geometry)) => geometry,
            Some(Err(_)) | None => state.geometry.clone(),
        }
    }

    fn map(&self, iova: Iova, memory: &SharedMemory, permissions: Permissions) -> Result<(), MapError> {
        let mapper = self.name();
        let mut state = self.state();
        let length = memory.length();
        let host = memory.host_address().as_u64();
        let page = state.geometry.smallest_page().max(page_size());
        let aligned = [iova.as_u64(), host, length.as_u64()].iter().all(|n| n.is_multiple_of(page.as_u64()));
        let misaligned = MapError::Misaligned { iova, host, length, page };
        let range = match IovaRange::new(iova, length) {
            Some(range) if aligned => range,
            _ => return Err(misaligned),
        };
        let Some(backing) = state.backing.clone().filter(|_| state.functions > 0) else {
            return Err(MapError::NotAttached { mapper, range });
        };
        if !state.geometry.ranges.iter().any(|usable| usable.contains_range(range)) {
            return Err(MapError::OutOfRange { range, usable: listed(&state.geometry.ranges) });
        }
        if let Some(existing) = state.overlapping(range) {
            return Err(MapError::AlreadyMapped { range, existing });
        }
        if let Err(error) = backing.map(iova, memory, permissions) {
            return Err(match error {
                // Not by us, so all that is known is that something is in the way.
                Errno::EXIST => MapError::AlreadyMapped { range, existing: range },
                Errno::NOMEM => memlock::explain(range, backing.accounting()),
                Errno::NOSPC => {
                    MapError::TooManyMappings { limit: u32::try_from(state.live()).unwrap_or(u32::MAX) }
                }
                other => MapError::System { range, error: std::io::Error::from(other).kind() },
            });
        }
        // What is left from before the last function left is forgotten.
        state.mappings.retain(|_, held| held.memory.is_some() || !held.range.overlaps(range));
        state.mappings.insert(iova.as_u64(), Held { range, memory: Some(memory.clone()) });
        Ok(())
    }

    fn unmap(&self, range: IovaRange) -> Result<ByteLength, UnmapError> {
        let mut state = self.state();
        match state.touching(range) {
            None => return Err(UnmapError::NotMapped { range }),
            Some(existing) if existing != range => return Err(UnmapError::NotExact { range, existing }),
            Some(_) => {}
        }
        let key = range.start().as_u64();
        let ended = state.mappings.get(&key).is_none_or(|held| held.memory.is_none());
        if !ended {
            let Some(backing) = state.backing.clone() else { return Err(UnmapError::NotMapped { range }) };
            let failed =
                |error: Errno| UnmapError::System { range, error: std::io::Error::from(error).kind() };
            let returned = ByteLength::new(backing.unmap(range).map_err(failed)?);
            // A size that is not the one asked for leaves the mapping, and with it the memory.
            if returned != range.length() {
                return Err(UnmapError::Incomplete { range, returned });
            }
        }
        state.mappings.remove(&key);
        Ok(range.length())
    }
}

impl State {
    fn live(&self) -> usize {
        self.mappings.values().filter(|held| held.memory.is_some()).count()
    }

    /// A mapping of the kernel that shares an address with `range`.
    fn overlapping(&self, range: IovaRange) -> Option<IovaRange> {
        self.below(range)
            .filter(|held| held.memory.is_some())
            .map(|held| held.range)
            .find(|held| held.overlaps(range))
    }

    /// A mapping that was made and not ended by its owner.
    fn touching(&self, range: IovaRange) -> Option<IovaRange> {
        self.below(range).map(|held| held.range).find(|held| held.overlaps(range))
    }

    /// The mappings from the last one that begins at or below the start of `range` on,
    /// backwards from its end. Mappings do not overlap, so the first two decide.
    fn below(&self, range: IovaRange) -> impl Iterator<Item = &Held> {
        self.mappings
            .range(..=range.last().as_u64())
            .rev()
            .map(|(_, held)| held)
            .take_while(move |held| held.range.last() >= range.start())
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let name = self.name();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(backing) = &state.backing else { return };
        for held in state.mappings.values_mut() {
            let Some(memory) = held.memory.take() else { continue };
            if backing.unmap(held.range).ok() != Some(held.range.length().as_u64()) {
                log::error!("{name}: {} does not end; its memory is leaked", held.range);
                core::mem::forget(memory);
            }
        }
    }
}

/// What an address space without functions accepts.
fn nothing() -> DmaGeometry {
    DmaGeometry { ranges: Vec::new(), page_sizes: page_size().as_u64(), mappings_available: None }
}

#[cfg(test)]
mod tests;
