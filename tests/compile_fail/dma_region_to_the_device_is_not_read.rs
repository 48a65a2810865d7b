//! Memory that only the device reads: what the CPU would read there is its own.
use vdk_iommu::{DmaRegion, ToDevice};

fn read(region: &DmaRegion<ToDevice>) {
    let _ = region.read(0, &mut [0; 4]);
}

fn main() {
    let _ = read;
}
