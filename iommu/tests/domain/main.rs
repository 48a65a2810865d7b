//! Domains and regions over a mapper that fails on request.

mod attach;
mod device;
mod faults;
mod limits;
mod mapper;
mod model;
mod pool;
mod regions;

use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{AddressWidth, Domain};

use mapper::ScriptedMapper;

/// Zeroed memory of `pages` base pages.
fn memory(pages: u64) -> SharedMemory {
    SharedMemory::allocate(ByteLength::new(pages << 12), Pages::Base).unwrap()
}

fn domain(mapper: &Arc<ScriptedMapper>) -> Domain {
    Domain::new(Arc::<ScriptedMapper>::clone(mapper), AddressWidth::FULL).unwrap()
}

fn range(start: u64, length: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), ByteLength::new(length)).unwrap()
}
