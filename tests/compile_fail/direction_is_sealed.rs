//! The directions are the three that an IOMMU knows.
use vdk_hal::dma::Permissions;
use vdk_iommu::Direction;

struct Sideways;

impl Direction for Sideways {
    const PERMISSIONS: Permissions = Permissions::ReadWrite;
}

fn main() {}
