//! A region for one direction is not one for the other.
use vdk_iommu::{DmaRegion, FromDevice, ToDevice};

fn source(region: &DmaRegion<ToDevice>) -> u64 {
    region.iova().as_u64()
}

fn wrong(region: &DmaRegion<FromDevice>) -> u64 {
    source(region)
}

fn main() {
    let _ = wrong;
}
