//! A mapper that keeps what is mapped, refuses what the contract forbids, and fails on
//! request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::{DmaGeometry, DmaMapper, MapError, Permissions, UnmapError};
use vdk_hal::memory::SharedMemory;

type UnmapAnswer = Result<ByteLength, UnmapError>;

/// What an answer depends on: the number of the call, from 0, and its range.
type MapFault = Box<dyn FnMut(u64, IovaRange) -> Option<MapError> + Send>;
type UnmapFault = Box<dyn FnMut(u64, IovaRange) -> Option<UnmapAnswer> + Send>;

/// The mapper.
pub(crate) struct ScriptedMapper {
    state: Mutex<State>,
}

/// What it keeps. Fields are for the tests to read and change.
pub(crate) struct State {
    pub(crate) geometry: DmaGeometry,
    pub(crate) attached: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) mappings: BTreeMap<u64, (IovaRange, SharedMemory, Permissions)>,
    pub(crate) map_calls: u64,
    pub(crate) unmap_calls: u64,
    pub(crate) map_fault: MapFault,
    pub(crate) unmap_fault: UnmapFault,
}

impl ScriptedMapper {
    /// An attached mapper that accepts `ranges` in pages of `page`.
    pub(crate) fn new(ranges: &[(u64, u64)], page: u64) -> Arc<Self> {
        let range = |(start, last): &(u64, u64)| IovaRange::from_bounds(Iova::new(*start), Iova::new(*last));
        let ranges = ranges.iter().map(|ends| range(ends).unwrap()).collect();
        let state = State {
            geometry: DmaGeometry { ranges, page_sizes: page, mappings_available: None },
            attached: true,
            limit: None,
            mappings: BTreeMap::new(),
            map_calls: 0,
            unmap_calls: 0,
            map_fault: Box::new(|_, _| None),
            unmap_fault: Box::new(|_, _| None),
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// A mapper for nearly all addresses in pages of 4 KiB.
    pub(crate) fn large() -> Arc<Self> {
        Self::new(&[(0, u64::MAX)], 4096)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// How many mappings there are, and how many calls made and ended them.
    pub(crate) fn counts(&self) -> (usize, u64, u64) {
        let state = self.state();
        (state.mappings.len(), state.map_calls, state.unmap_calls)
    }

    pub(crate) fn ranges(&self) -> Vec<IovaRange> {
        self.state().mappings.values().map(|(range, _, _)| *range).collect()
    }

    /// The last function leaves, and the kernel ends every mapping.
    pub(crate) fn detach(&self) {
        let mut state = self.state();
        state.attached = false;
        state.mappings.clear();
    }

    pub(crate) fn attach(&self) {
        self.state().attached = true;
    }

    pub(crate) fn fail_maps(&self, fault: impl FnMut(u64, IovaRange) -> Option<MapError> + Send + 'static) {
        self.state().map_fault = Box::new(fault);
    }

    pub(crate) fn fail_unmaps(
        &self,
        fault: impl FnMut(u64, IovaRange) -> Option<UnmapAnswer> + Send + 'static,
    ) {
        self.state().unmap_fault = Box::new(fault);
    }
}

impl State {
    fn refusal(&self, range: IovaRange, memory: &SharedMemory) -> Option<MapError> {
        if !self.attached {
            return Some(MapError::NotAttached { mapper: "scripted".into(), range });
        }
        let page = self.geometry.smallest_page();
        let host = memory.host_address().as_u64();
        let (iova, length) = (range.start(), range.length());
        if !iova.is_aligned_to(page) || !length.is_aligned_to(page) || !host.is_multiple_of(page.as_u64()) {
            return Some(MapError::Misaligned { iova, host, length, page });
        }
        if !self.geometry.ranges.iter().any(|usable| usable.contains_range(range)) {
            return Some(MapError::OutOfRange { range, usable: String::new() });
        }
        if let Some((existing, _, _)) = self.mappings.values().find(|(other, _, _)| other.overlaps(range)) {
            return Some(MapError::AlreadyMapped { range, existing: *existing });
        }
        let limit = self.limit.filter(|limit| self.mappings.len() >= usize::try_from(*limit).unwrap());
        limit.map(|limit| MapError::TooManyMappings { limit })
    }
}

impl DmaMapper for ScriptedMapper {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn geometry(&self) -> DmaGeometry {
        let state = self.state();
        let mut geometry = state.geometry.clone();
        if !state.attached {
            geometry.ranges.clear();
        }
        let used = u32::try_from(state.mappings.len()).unwrap();
        geometry.mappings_available = state.limit.map(|limit| limit - used);
        geometry
    }

    fn map(&self, iova: Iova, memory: &SharedMemory, permissions: Permissions) -> Result<(), MapError> {
        let range = IovaRange::new(iova, memory.length()).unwrap();
        let mut state = self.state();
        let call = state.map_calls;
        state.map_calls += 1;
        if let Some(error) = (state.map_fault)(call, range).or_else(|| state.refusal(range, memory)) {
            return Err(error);
        }
        state.mappings.insert(iova.as_u64(), (range, memory.clone(), permissions));
        Ok(())
    }

    fn unmap(&self, range: IovaRange) -> Result<ByteLength, UnmapError> {
        let mut state = self.state();
        let call = state.unmap_calls;
        state.unmap_calls += 1;
        if let Some(answer) = (state.unmap_fault)(call, range) {
            return answer;
        }
        match state.mappings.get(&range.start().as_u64()) {
            Some((existing, _, _)) if *existing == range => {
                state.mappings.remove(&range.start().as_u64());
                Ok(range.length())
            }
            Some((existing, _, _)) => Err(UnmapError::NotExact { range, existing: *existing }),
            None => Err(UnmapError::NotMapped { range }),
        }
    }
}
