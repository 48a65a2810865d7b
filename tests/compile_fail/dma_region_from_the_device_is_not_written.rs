//! Memory that only the device writes.
use vdk_iommu::{DmaRegion, FromDevice};

fn write(region: &DmaRegion<FromDevice>) {
    let _ = region.write(0, &[0; 4]);
}

fn main() {
    let _ = write;
}
