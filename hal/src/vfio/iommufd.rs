//! An address space of `/dev/iommu`.

use core::mem::offset_of;
use std::path::Path;
use std::sync::Arc;

use iommufd_bindings as abi;
use rustix::io::Errno;

use super::kernel::{Attached, Call, KernelFile, SystemFile};
use super::message::{Message, double_word};
use super::ranges::usable_ranges;
use super::refusal::Refusal;
use crate::address::{Iova, IovaRange};
use crate::dma::{DmaGeometry, Permissions};
use crate::memory::{SharedMemory, page_size};

/// The node of iommufd.
pub(super) const NODE: &str = "/dev/iommu";

/// An I/O address space (IOAS). It lives as long as the file does, with or without devices.
pub(super) struct Ioas {
    file: Arc<dyn KernelFile>,
    id: u32,
}

impl Ioas {
    pub(super) fn open() -> Result<Self, Refusal> {
        let path = Path::new(NODE);
        let file = SystemFile::open(path).map_err(|error| Refusal::node(path, &error, "iommufd"))?;
        Self::over(Arc::new(file))
    }

    /// A new address space of a file that was opened.
    pub(super) fn over(file: Arc<dyn KernelFile>) -> Result<Self, Refusal> {
        let mut message = Message::new(size_of::<abi::iommu_ioas_alloc>());
        file.exchange(Call::IoasAlloc, &mut message, Attached::Nothing)
            .map_err(|error| Refusal::call("an address space of iommufd", error))?;
        let id = message.word(offset_of!(abi::iommu_ioas_alloc, out_ioas_id)).unwrap_or(0);
        Ok(Self { file, id })
    }

    pub(super) fn file(&self) -> &dyn KernelFile {
        &*self.file
    }

    /// The number that devices are attached to.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Lets the kernel choose no addresses but these: a device that cannot reach them all
    /// is then not attached. An empty list allows everything again.
    pub(super) fn allow(&self, ranges: &[IovaRange]) -> Result<(), Errno> {
        let mut list: Vec<u8> = ranges
            .iter()
            .flat_map(|range| [range.start().as_u64(), range.last().as_u64()])
            .flat_map(u64::to_ne_bytes)
            .collect();
        let count = u32::try_from(ranges.len()).map_err(|_| Errno::MSGSIZE)?;
        let mut message = Message::new(size_of::<abi::iommu_ioas_allow_iovas>())
            .with(offset_of!(abi::iommu_ioas_allow_iovas, ioas_id), self.id)
            .with(offset_of!(abi::iommu_ioas_allow_iovas, num_iovas), count);
        let at = offset_of!(abi::iommu_ioas_allow_iovas, allowed_iovas);
        self.file.exchange(Call::IoasAllowIovas, &mut message, Attached::List { at, bytes: &mut list })?;
        Ok(())
    }

    /// What the IOMMU accepts with the devices that are attached now.
    pub(super) fn geometry(&self) -> Result<DmaGeometry, Errno> {
        type Ranges = abi::iommu_ioas_iova_ranges;
        let mut count = 32usize;
        for _ in 0..ATTEMPTS {
            let mut list = vec![0; count * RANGE];
            let room = u32::try_from(count).map_err(|_| Errno::MSGSIZE)?;
            let mut message = Message::new(size_of::<Ranges>())
                .with(offset_of!(Ranges, ioas_id), self.id)
                .with(offset_of!(Ranges, num_iovas), room);
            let at = offset_of!(Ranges, allowed_iovas);
            let attached = Attached::List { at, bytes: &mut list };
            let result = self.file.exchange(Call::IoasIovaRanges, &mut message, attached);
            let needed =
                message.word(offset_of!(Ranges, num_iovas)).and_then(|needed| usize::try_from(needed).ok());
            match (result, needed) {
                (Ok(_), Some(needed)) if needed <= count => {
                    let alignment = message.double_word(offset_of!(Ranges, out_iova_alignment));
                    return Ok(geometry_of(&list, needed, alignment.unwrap_or(0)));
                }
                (Ok(_) | Err(Errno::MSGSIZE), Some(needed)) if needed > count && needed <= MOST_RANGES => {
                    count = needed;
                }
                (Err(error), _) => return Err(error),
                (Ok(_), _) => break,
            }
        }
        Err(Errno::MSGSIZE)
    }

    pub(super) fn map(
        &self,
        iova: Iova,
        memory: &SharedMemory,
        permissions: Permissions,
    ) -> Result<(), Errno> {
        let mut flags = abi::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA;
        if permissions.allows_read() {
            flags |= abi::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE;
        }
        if permissions.allows_write() {
            flags |= abi::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE;
        }
        let mut message = Message::new(size_of::<abi::iommu_ioas_map>())
            .with(offset_of!(abi::iommu_ioas_map, flags), flags)
            .with(offset_of!(abi::iommu_ioas_map, ioas_id), self.id)
            .with64(offset_of!(abi::iommu_ioas_map, length), memory.length().as_u64())
            .with64(offset_of!(abi::iommu_ioas_map, iova), iova.as_u64());
        let at = offset_of!(abi::iommu_ioas_map, user_va);
        self.file.exchange(Call::IoasMap, &mut message, Attached::Memory { at, memory }).map(|_| ())
    }

    /// Returns how much the kernel says that it unmapped.
    pub(super) fn unmap(&self, range: IovaRange) -> Result<u64, Errno> {
        let length = offset_of!(abi::iommu_ioas_unmap, length);
        let mut message = Message::new(size_of::<abi::iommu_ioas_unmap>())
            .with(offset_of!(abi::iommu_ioas_unmap, ioas_id), self.id)
            .with64(offset_of!(abi::iommu_ioas_unmap, iova), range.start().as_u64())
            .with64(length, range.length().as_u64());
        self.file.exchange(Call::IoasUnmap, &mut message, Attached::Nothing)?;
        Ok(message.double_word(length).unwrap_or(0))
    }

    /// Whether locked memory is counted for each process, as type1 does, and not for all
    /// processes of the user together. `None` where the kernel does not say.
    pub(super) fn counts_by_process(&self) -> Option<bool> {
        let op = u16::try_from(abi::iommufd_option_ops_IOMMU_OPTION_OP_GET).ok()?;
        let mut message = Message::new(size_of::<abi::iommu_option>())
            .with(offset_of!(abi::iommu_option, option_id), abi::iommufd_option_IOMMU_OPTION_RLIMIT_MODE)
            .with_bytes(offset_of!(abi::iommu_option, op), &op.to_ne_bytes());
        self.file.exchange(Call::IommuOption, &mut message, Attached::Nothing).ok()?;
        message.double_word(offset_of!(abi::iommu_option, val64)).map(|value| value != 0)
    }
}

fn geometry_of(list: &[u8], count: usize, alignment: u64) -> DmaGeometry {
    let reported: Vec<(u64, u64)> = list
        .chunks_exact(RANGE)
        .take(count)
        .filter_map(|range| Some((double_word(range, 0)?, double_word(range, 8)?)))
        .collect();
    // The smallest page is all that is said; memory is pinned in pages of the host.
    let page =
        if alignment.is_power_of_two() { alignment.max(page_size().as_u64()) } else { page_size().as_u64() };
    DmaGeometry { ranges: usable_ranges(&reported), page_sizes: page, mappings_available: None }
}

const RANGE: usize = size_of::<abi::iommu_iova_range>();
/// More than any machine has reserved regions.
const MOST_RANGES: usize = 1 << 16;
/// How often the number of ranges may change under us.
const ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests;
