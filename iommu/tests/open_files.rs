//! Mappings leave nothing open. Alone in its process, since it counts open files.

use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::soft::{SoftIommu, SoftIommuOptions};
use vdk_iommu::{AddressWidth, Bidirectional, DmaRegion, Domain};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_regions_leave_no_file_open_and_no_address_taken() {
    let aperture = IovaRange::from_bounds(Iova::new(0x1000), Iova::new(0x8fff)).unwrap();
    let options = SoftIommuOptions { ranges: vec![aperture], ..SoftIommuOptions::default() };
    let before = open_files();
    for _ in 0..1000 {
        let domain = Domain::new(SoftIommu::new(options.clone()).domain(), AddressWidth::FULL).unwrap();
        let memory = SharedMemory::allocate(ByteLength::new(8 << 12), Pages::Base).unwrap();
        let region: DmaRegion<Bidirectional> = domain.map(memory).unwrap();
        assert_eq!(region.range(), aperture);
    }
    assert_eq!(open_files(), before);
    let domain = Domain::new(SoftIommu::new(options).domain(), AddressWidth::FULL).unwrap();
    for _ in 0..1000 {
        let memory = SharedMemory::allocate(ByteLength::new(8 << 12), Pages::Base).unwrap();
        let region: DmaRegion<Bidirectional> = Domain::clone(&domain).map(memory).unwrap();
        drop(region);
    }
    assert_eq!((open_files(), domain.statistics().mappings), (before, 0));
    drop(Arc::new(domain));
}
