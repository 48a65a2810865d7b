//! What a client is told of the device: its regions, and which parts can be mapped.

use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::Bar;
use vdk_hal::config::ConfigSpace;
use vdk_hal::function::PciFunction;
use vdk_hal::memory::{SharedMemory, page_size};
use vdk_hal::vfio_user::message::{RegionDescription, SparseArea, SparseMap, argument_size, region};
use zerocopy::IntoBytes;

use super::reply::{Answer, Refusal, Reply};

/// The regions of a function, as long as it is open.
#[derive(Debug)]
pub(super) struct Description {
    bars: Vec<Option<Region>>,
    config_size: u16,
}

/// A BAR.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) bar: Bar,
    export: Option<Export>,
}

/// The areas of a BAR that a client may map.
#[derive(Debug)]
struct Export {
    memory: SharedMemory,
    /// Where the BAR would begin in the file.
    offset: u64,
    areas: Vec<SparseArea>,
}

impl Description {
    /// Looks at a function. With `mapped_doorbells` whole pages of memory in BARs are shown.
    pub(super) fn of(function: &dyn PciFunction, mapped_doorbells: bool) -> Self {
        let bars = BarIndex::all().map(|index| {
            function.bar_info(index)?;
            let bar = match function.bar(index) {
                Ok(bar) => bar,
                Err(error) => {
                    log::warn!("{}: {error}", function.name());
                    return None;
                }
            };
            let export = mapped_doorbells.then(|| Export::of(&bar, page_size())).flatten();
            Some(Region { bar, export })
        });
        Self { bars: bars.collect(), config_size: ConfigSpace::size(function.config()) }
    }

    /// Whether a client can write to BARs without anybody being told.
    pub(super) fn exports_doorbells(&self) -> bool {
        self.bars.iter().flatten().any(|region| region.export.is_some())
    }

    /// The size of configuration space.
    pub(super) fn config_size(&self) -> u16 {
        self.config_size
    }

    /// The BAR that is a region.
    pub(super) fn bar(&self, index: u32) -> Option<&Bar> {
        self.region(index).map(|region| &region.bar)
    }

    /// Answers what a region is. One that is not there has no size.
    pub(super) fn region_info(&self, request: &RegionDescription) -> Answer {
        if request.index >= region::COUNT {
            return Err(Refusal::invalid(format!("there is no region {}", request.index)));
        }
        let fixed = size_of::<RegionDescription>();
        let room = usize::try_from(request.argument_size).unwrap_or(usize::MAX);
        if room < fixed {
            return Err(Refusal::invalid(format!("a reply of {room:#x} bytes has no room for a region")));
        }
        let readable = RegionDescription::READ | RegionDescription::WRITE;
        let mut description = RegionDescription {
            argument_size: argument_size::<RegionDescription>(),
            index: request.index,
            ..Default::default()
        };
        if request.index == region::CONFIG {
            description.flags = readable;
            description.size = u64::from(self.config_size);
        }
        let Some(region) = self.region(request.index) else { return Ok(Reply::of(&description)) };
        description.flags = readable;
        description.size = region.bar.info().size.as_u64();
        let Some(export) = &region.export else { return Ok(Reply::of(&description)) };
        let sparse = export.sparse();
        description.flags |= RegionDescription::MAP | RegionDescription::CAPABILITIES;
        // CAST: a few areas.
        description.argument_size = u32::try_from(fixed + sparse.len()).unwrap_or(u32::MAX);
        description.capability_offset = argument_size::<RegionDescription>();
        description.offset = export.offset;
        let reply = Reply { memory: Some(export.memory.clone()), ..Reply::of(&description) };
        // Who left too little room is told how much it takes, and asks again.
        Ok(if fixed + sparse.len() <= room { reply.followed_by(&sparse) } else { reply })
    }

    fn region(&self, index: u32) -> Option<&Region> {
        self.bars.get(usize::try_from(index).ok()?)?.as_ref()
    }
}

impl Export {
    /// The mapped areas of a BAR that are whole pages of one file, at places in the file that
    /// are as far from each other as in the BAR.
    fn of(bar: &Bar, page: ByteLength) -> Option<Self> {
        let mut export: Option<Self> = None;
        for area in bar.mapped_areas() {
            let length = area.memory.length();
            if !length.is_aligned_to(page) || !ByteLength::new(area.offset).is_aligned_to(page) {
                continue;
            }
            let Some((_, position)) = area.memory.file() else { continue };
            let Some(offset) = position.checked_sub(area.offset) else {
                log::warn!("{}: the area at {:#x} lies too low in its file", bar.info().index, area.offset);
                continue;
            };
            let sparse = SparseArea { offset: area.offset, size: length.as_u64() };
            match &mut export {
                None => export = Some(Self { memory: area.memory.clone(), offset, areas: vec![sparse] }),
                Some(first) if first.memory.same_region(&area.memory) && first.offset == offset => {
                    first.areas.push(sparse);
                }
                Some(_) => log::warn!("{}: {:#x} is in another file", bar.info().index, area.offset),
            }
        }
        export
    }

    fn sparse(&self) -> Vec<u8> {
        let header = SparseMap {
            id: SparseMap::ID,
            version: SparseMap::VERSION,
            next: 0,
            // CAST: as many as a BAR has areas.
            count: u32::try_from(self.areas.len()).unwrap_or(u32::MAX),
            reserved: 0,
        };
        [header.as_bytes(), self.areas.as_bytes()].concat()
    }
}
