//! A software IOMMU for emulated devices.
//!
//! # Parts
//!
//! - [`SoftIommu`] has the properties that all its address spaces share, and the log of
//!   faults.
//! - [`SoftDomain`] is one address space: page table and mappings. It implements
//!   [`DmaMapper`](vdk_hal::dma::DmaMapper), so a driver maps through it as through the
//!   kernel. Functions may share a domain or have one each.
//! - [`BusMaster`] is the way of one device thread into a domain: every access is
//!   translated and checked, and can fault. It keeps its own IOTLB.
//! - [`Burst`] is a run of accesses of a [`BusMaster`]; the fast path.
//! - [`BusMasterGate`] is the bus-master enable bit of a function.
//! - [`RemoteMemory`] is what is mapped where the memory is not in this process: the device
//!   reaches it by asking.
//! - [`BusMasterBytes`] and [`IommuView`] offer both to device models that are written
//!   against the traits of `vm-memory`.
//!
//! # What ends an access
//!
//! A device uses translated addresses only in a burst. An unmap takes the translation out
//! of the page table, makes every cached translation of the domain stale and waits for the
//! bursts that began before; only then it returns. Closing a gate does the same for the
//! domains of the function. Bursts renew themselves after [`BURST_BYTES`], so that neither
//! waits long.

mod burst;
mod bus_master;
mod bytes;
mod domain;
mod fault;
mod gate;
mod iotlb;
mod mapping;
mod page_table;
mod parts;
mod remote;
mod view;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova, IovaRange};

pub use burst::{BURST_BYTES, Burst, LastUsed};
pub use bus_master::BusMaster;
pub use bytes::{BusMasterBytes, BusMasterBytesError};
pub use domain::SoftDomain;
pub use fault::{FAULT_LOG_LENGTH, FaultReason, TranslationFault};
pub use gate::BusMasterGate;
pub use remote::{NotAnswered, RemoteMemory};
pub use view::{HeldIotlb, IommuView};

use fault::FaultLog;

/// What the address spaces of a software IOMMU accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftIommuOptions {
    /// The usable ranges, in any order. Ranges that touch or overlap count as one.
    pub ranges: Vec<IovaRange>,
    /// The page sizes as a bitmap, as in [`DmaGeometry`](vdk_hal::dma::DmaGeometry): the
    /// smallest is what mappings must be whole multiples of. Sizes below 4 KiB are ignored;
    /// when nothing is left the default is used.
    pub page_sizes: u64,
    /// How many mappings one address space takes.
    pub max_mappings: u32,
}

impl Default for SoftIommuOptions {
    /// As an x86 IOMMU of 48 bits reports itself: no page zero, a hole for the interrupt
    /// window, pages of 4 KiB, 2 MiB and 1 GiB; and the mapping limit of VFIO type1.
    fn default() -> Self {
        let ranges = [(0x1000, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)];
        Self {
            ranges: ranges
                .into_iter()
                .filter_map(|(start, last)| IovaRange::from_bounds(Iova::new(start), Iova::new(last)))
                .collect(),
            page_sizes: DEFAULT_PAGE_SIZES,
            max_mappings: 65535,
        }
    }
}

/// A software IOMMU: the properties and the fault log that its [`SoftDomain`]s share.
pub struct SoftIommu {
    ranges: Vec<IovaRange>,
    page_sizes: u64,
    max_mappings: u32,
    faults: FaultLog,
    domains: AtomicU64,
}

impl SoftIommu {
    /// An IOMMU without address spaces.
    #[must_use]
    pub fn new(options: SoftIommuOptions) -> Arc<Self> {
        let page_sizes = match options.page_sizes & !(ByteLength::SIZE_4K.as_u64() - 1) {
            0 => DEFAULT_PAGE_SIZES,
            sizes => sizes,
        };
        Arc::new(Self {
            ranges: joined(options.ranges),
            page_sizes,
            max_mappings: options.max_mappings,
            faults: FaultLog::default(),
            domains: AtomicU64::new(0),
        })
    }

    /// A new, empty address space.
    #[must_use]
    pub fn domain(self: &Arc<Self>) -> Arc<SoftDomain> {
        // ORDERING: Relaxed; only the number matters.
        SoftDomain::new(Arc::clone(self), self.domains.fetch_add(1, Ordering::Relaxed))
    }

    /// The latest faults, oldest first, at most [`FAULT_LOG_LENGTH`].
    #[must_use]
    pub fn faults(&self) -> Vec<TranslationFault> {
        self.faults.latest()
    }

    /// How many faults there were since the start or the last [`clear_faults`](Self::clear_faults).
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.count()
    }

    /// Forgets all faults.
    pub fn clear_faults(&self) {
        self.faults.clear();
    }
}

impl fmt::Debug for SoftIommu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftIommu")
            .field("ranges", &self.ranges)
            .field("page_sizes", &format_args!("{:#x}", self.page_sizes))
            .field("max_mappings", &self.max_mappings)
            .field("faults", &self.fault_count())
            .finish_non_exhaustive()
    }
}

/// The ranges ascending, those that touch or overlap made one.
fn joined(mut ranges: Vec<IovaRange>) -> Vec<IovaRange> {
    ranges.sort_unstable();
    let mut result: Vec<IovaRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match result.last_mut() {
            Some(last) if range.start().as_u64() <= last.last().as_u64().saturating_add(1) => {
                let end = last.last().max(range.last());
                *last = IovaRange::from_bounds(last.start(), end).unwrap_or(range);
            }
            _ => result.push(range),
        }
    }
    result
}

const DEFAULT_PAGE_SIZES: u64 =
    ByteLength::SIZE_4K.as_u64() | ByteLength::SIZE_2M.as_u64() | ByteLength::SIZE_1G.as_u64();

#[cfg(test)]
mod tests;
