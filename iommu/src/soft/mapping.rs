//! What is mapped in one address space: the mappings and the page table that finds them.

use std::sync::Arc;

use vdk_hal::address::{Iova, IovaRange};
use vdk_hal::dma::{Permissions, UnmapError};
use vdk_hal::memory::access::Registration;

use super::fault::FaultReason;
use super::page_table::{MappingIndex, PageTable};
use super::remote::{Absent, Remote, RemoteMemory};

/// The mappings of an address space.
///
/// # Invariants
///
/// The leaves of the page table name exactly the slots that hold a mapping, each for the
/// whole range of that mapping. Ranges do not overlap.
#[derive(Debug)]
pub(super) struct Mappings {
    table: PageTable,
    slots: Vec<Option<Mapping>>,
    free: Vec<MappingIndex>,
}

/// One mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) range: IovaRange,
    pub(super) permissions: Permissions,
    state: State,
}

/// What is behind a mapping.
#[derive(Debug)]
pub(super) enum Backing {
    /// Memory of this process.
    Here(Registration),
    /// Memory of others, which no translation is given for.
    Remote(Arc<dyn RemoteMemory>),
}

#[derive(Debug)]
enum State {
    /// Devices may be given translations.
    Live(Backing),
    /// Somebody waits for the devices to leave; the range is not free yet.
    Ending,
    /// The devices did not leave in time. No translations are given out, but the range and
    /// the memory stay taken until an unmap succeeds.
    Abandoned(Backing),
}

impl Mapping {
    /// What a device may be given a translation for.
    #[inline]
    pub(super) fn registration(&self) -> Result<&Registration, Absent> {
        match &self.state {
            State::Live(Backing::Here(registration)) => Ok(registration),
            State::Live(Backing::Remote(memory)) => Err(Absent::Remote(Remote {
                range: self.range,
                permissions: self.permissions,
                memory: Arc::clone(memory),
            })),
            State::Ending | State::Abandoned(_) => Err(Absent::Fault(FaultReason::NotMapped)),
        }
    }
}

/// An unmap that is under way; see [`Mappings::begin_unmap`].
#[derive(Debug)]
pub(super) struct Unmapping {
    index: MappingIndex,
    range: IovaRange,
}

impl Mappings {
    pub(super) fn new(highest: Iova, page_sizes: u64) -> Self {
        Self { table: PageTable::new(highest, page_sizes), slots: Vec::new(), free: Vec::new() }
    }

    /// How many ranges are taken.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The mapping at `address`.
    #[inline]
    pub(super) fn at(&self, address: Iova) -> Option<&Mapping> {
        self.slot(self.table.lookup(address)?)
    }

    /// The mapping with the lowest address in `range`.
    pub(super) fn first_in(&self, range: IovaRange) -> Option<&Mapping> {
        self.slot(self.table.first_in(range)?)
    }

    /// Enters a mapping at a range that is free, whole pages and within the table.
    pub(super) fn insert(&mut self, range: IovaRange, permissions: Permissions, backing: Backing) {
        let mapping = Some(Mapping { range, permissions, state: State::Live(backing) });
        let free = self.free.pop().and_then(|index| Some((index, self.slots.get_mut(index)?)));
        let index = match free {
            Some((index, slot)) => {
                *slot = mapping;
                index
            }
            None => {
                self.slots.push(mapping);
                self.slots.len() - 1
            }
        };
        self.table.insert(range, index);
    }

    /// Takes what is behind it out of the mapping at exactly `range`. From now on no
    /// translation is given out for it, and the range is still taken.
    /// [`end_unmap`](Self::end_unmap) or [`abandon_unmap`](Self::abandon_unmap) must follow.
    pub(super) fn begin_unmap(&mut self, range: IovaRange) -> Result<(Unmapping, Backing), UnmapError> {
        let not_mapped = UnmapError::NotMapped { range };
        let Some(index) = self.table.first_in(range) else { return Err(not_mapped) };
        let Some(Some(mapping)) = self.slots.get_mut(index) else { return Err(not_mapped) };
        if mapping.range != range {
            return Err(UnmapError::NotExact { range, existing: mapping.range });
        }
        match core::mem::replace(&mut mapping.state, State::Ending) {
            State::Live(backing) | State::Abandoned(backing) => Ok((Unmapping { index, range }, backing)),
            State::Ending => Err(not_mapped),
        }
    }

    /// Frees the range.
    pub(super) fn end_unmap(&mut self, unmapping: Unmapping) {
        self.table.remove(unmapping.range);
        if let Some(slot) = self.slots.get_mut(unmapping.index) {
            *slot = None;
            self.free.push(unmapping.index);
        }
    }

    /// Keeps range and memory taken, without translations, so that the unmap can be tried
    /// again.
    pub(super) fn abandon_unmap(&mut self, unmapping: Unmapping, backing: Backing) {
        if let Some(Some(mapping)) = self.slots.get_mut(unmapping.index) {
            mapping.state = State::Abandoned(backing);
        }
    }

    #[inline]
    fn slot(&self, index: MappingIndex) -> Option<&Mapping> {
        self.slots.get(index)?.as_ref()
    }
}
