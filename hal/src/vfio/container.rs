//! A container of type 1, version 2: an address space in the group interface.

use core::mem::offset_of;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use vfio_bindings::bindings::vfio as abi;

use super::chain::answer_capabilities;
use super::kernel::{Attached, Call, KernelFile, SystemFile, descriptor};
use super::message::{Message, double_word, word};
use super::ranges::usable_ranges;
use super::refusal::Refusal;
use crate::address::{Iova, IovaRange};
use crate::dma::{DmaGeometry, Permissions};
use crate::memory::{SharedMemory, page_size};

/// The node that containers are opened from.
pub(super) const NODE: &str = "/dev/vfio/vfio";

/// A container. It has an IOMMU from the first group that joins it to the last that leaves.
pub(super) struct Container {
    file: Arc<dyn KernelFile>,
    groups: Mutex<usize>,
}

impl Container {
    pub(super) fn open() -> Result<Self, Refusal> {
        let path = Path::new(NODE);
        let file = SystemFile::open(path).map_err(|error| Refusal::node(path, &error, "vfio_iommu_type1"))?;
        Self::over(Arc::new(file))
    }

    /// A container over a file that was opened, which is asked whether it is one.
    pub(super) fn over(file: Arc<dyn KernelFile>) -> Result<Self, Refusal> {
        let version =
            file.command(Call::ApiVersion, 0).map_err(|error| Refusal::call("VFIO's version", error))?;
        if version != abi::VFIO_API_VERSION {
            return Err(Refusal::new(
                format!("the kernel has version {version} of VFIO, not {}", abi::VFIO_API_VERSION),
                "use another kernel",
            ));
        }
        match file.command(Call::CheckExtension, abi::VFIO_TYPE1v2_IOMMU) {
            Ok(0) | Err(_) => Err(Refusal::new(
                "the kernel has no type 1 IOMMU driver for VFIO",
                "modprobe vfio_iommu_type1, and see that the IOMMU is on",
            )),
            Ok(_) => Ok(Self { file, groups: Mutex::new(0) }),
        }
    }

    /// Lets the group of a file in. The first one brings the IOMMU; when that fails the group
    /// is taken out again.
    pub(super) fn join(&self, group: &dyn KernelFile) -> Result<(), Errno> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        group.send(Call::GroupSetContainer, &descriptor(self.file.file()))?;
        if *groups == 0
            && let Err(error) = self.file.command(Call::SetIommu, abi::VFIO_TYPE1v2_IOMMU)
        {
            unset(group);
            return Err(error);
        }
        *groups += 1;
        Ok(())
    }

    /// Lets a group that has joined go. One that does not is let go by the kernel when its
    /// file is closed.
    pub(super) fn leave(&self, group: &dyn KernelFile) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        unset(group);
        *groups = groups.saturating_sub(1);
    }

    /// What the IOMMU accepts.
    pub(super) fn geometry(&self) -> Result<DmaGeometry, Errno> {
        let mut length = size_of::<abi::vfio_iommu_type1_info>();
        for _ in 0..ATTEMPTS {
            let mut message = Message::new(length);
            self.file.exchange(Call::IommuInfo, &mut message, Attached::Nothing)?;
            let needed = message.word(0).and_then(|needed| usize::try_from(needed).ok()).unwrap_or(length);
            if needed <= length {
                return Ok(parse_info(message.bytes()));
            }
            if needed > Message::LIMIT {
                break;
            }
            length = needed;
        }
        Err(Errno::MSGSIZE)
    }

    pub(super) fn map(
        &self,
        iova: Iova,
        memory: &SharedMemory,
        permissions: Permissions,
    ) -> Result<(), Errno> {
        let mut flags = 0;
        if permissions.allows_read() {
            flags |= abi::VFIO_DMA_MAP_FLAG_READ;
        }
        if permissions.allows_write() {
            flags |= abi::VFIO_DMA_MAP_FLAG_WRITE;
        }
        let mut message = Message::new(size_of::<abi::vfio_iommu_type1_dma_map>())
            .with(offset_of!(abi::vfio_iommu_type1_dma_map, flags), flags)
            .with64(offset_of!(abi::vfio_iommu_type1_dma_map, iova), iova.as_u64())
            .with64(offset_of!(abi::vfio_iommu_type1_dma_map, size), memory.length().as_u64());
        let at = offset_of!(abi::vfio_iommu_type1_dma_map, vaddr);
        self.file.exchange(Call::MapDma, &mut message, Attached::Memory { at, memory }).map(|_| ())
    }

    /// Returns how much the kernel says that it unmapped, which may be nothing.
    pub(super) fn unmap(&self, range: IovaRange) -> Result<u64, Errno> {
        let size = offset_of!(abi::vfio_iommu_type1_dma_unmap, size);
        let mut message = Message::new(size_of::<abi::vfio_iommu_type1_dma_unmap>())
            .with64(offset_of!(abi::vfio_iommu_type1_dma_unmap, iova), range.start().as_u64())
            .with64(size, range.length().as_u64());
        self.file.exchange(Call::UnmapDma, &mut message, Attached::Nothing)?;
        Ok(message.double_word(size).unwrap_or(0))
    }
}

fn unset(group: &dyn KernelFile) {
    if let Err(error) = group.command(Call::GroupUnsetContainer, 0) {
        log::warn!("a group does not leave its container: {error}");
    }
}

/// What the answer to "what does the IOMMU accept" says. What cannot be understood is
/// replaced by what every IOMMU of a PC has.
fn parse_info(answer: &[u8]) -> DmaGeometry {
    type Info = abi::vfio_iommu_type1_info;
    let flags = word(answer, offset_of!(Info, flags)).unwrap_or(0);
    let mut page_sizes = 0;
    if flags & abi::VFIO_IOMMU_INFO_PGSIZES != 0 {
        page_sizes = double_word(answer, offset_of!(Info, iova_pgsizes)).unwrap_or(0);
    }
    if page_sizes == 0 {
        page_sizes = page_size().as_u64();
    }
    let mut geometry =
        DmaGeometry { ranges: usable_ranges(&WITHOUT_CAPABILITY), page_sizes, mappings_available: None };
    if flags & abi::VFIO_IOMMU_INFO_CAPS == 0 {
        return geometry;
    }
    let first = word(answer, offset_of!(Info, cap_offset)).unwrap_or(0);
    let capabilities = match answer_capabilities(answer, size_of::<Info>(), first) {
        Ok(capabilities) => capabilities,
        Err(error) => {
            log::warn!("type1: {error}; taking the ranges of a small IOMMU");
            return geometry;
        }
    };
    for capability in capabilities {
        match u32::from(capability.id) {
            abi::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE if capability.version == 1 => {
                match parse_ranges(capability.bytes) {
                    Some(ranges) => geometry.ranges = usable_ranges(&ranges),
                    None => log::warn!("type1: the list of address ranges is cut off"),
                }
            }
            abi::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL if capability.version == 1 => {
                geometry.mappings_available =
                    word(capability.bytes, offset_of!(abi::vfio_iommu_type1_info_dma_avail, avail));
            }
            other => log::debug!("type1: capability {other} is not known, skipping it"),
        }
    }
    geometry
}

/// First and last address of each range; both belong to it.
fn parse_ranges(capability: &[u8]) -> Option<Vec<(u64, u64)>> {
    type Ranges = abi::vfio_iommu_type1_info_cap_iova_range;
    let count = usize::try_from(word(capability, offset_of!(Ranges, nr_iovas))?).ok()?;
    let bytes = capability.get(size_of::<Ranges>()..)?;
    let bytes = bytes.get(..count.checked_mul(size_of::<abi::vfio_iova_range>())?)?;
    bytes
        .chunks_exact(size_of::<abi::vfio_iova_range>())
        .map(|range| Some((double_word(range, 0)?, double_word(range, 8)?)))
        .collect()
}

/// What kernels before 5.4 do not say; an IOMMU of 39 bits takes it. Writes to what lies between
/// the two ranges are interrupts on x86.
const WITHOUT_CAPABILITY: [(u64, u64); 2] = [(0x10000, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];
/// How often the size of an answer may change under us.
const ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests;
