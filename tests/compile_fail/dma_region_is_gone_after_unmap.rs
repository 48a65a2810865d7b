//! Unmapping gives the memory back and takes the region.
use vdk_iommu::{DmaRegion, ToDevice};

fn reuse(region: DmaRegion<ToDevice>) {
    let memory = region.unmap();
    let _ = (region.iova(), memory);
}

fn main() {
    let _ = reuse;
}
