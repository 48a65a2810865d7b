//! What a region offers while it lives, and what is left when it ends.

use std::sync::Arc;

use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::dma::{MapError, Permissions};
use vdk_iommu::{
    AddressWidth, Bidirectional, DmaRegion, Domain, DomainError, FromDevice, Placement, ToDevice,
    UnavailableReason, locked_memory_needed,
};

use crate::mapper::ScriptedMapper;
use crate::{domain, memory, range};

#[test]
fn memory_is_mapped_with_the_rights_of_its_direction_and_unmapped_on_drop() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let to: DmaRegion<ToDevice> = domain.map(memory(1)).unwrap();
    let from: DmaRegion<FromDevice> = domain.map(memory(2)).unwrap();
    let both: DmaRegion<Bidirectional> = domain.map(memory(3)).unwrap();
    let rights = |region: u64| mapper.state().mappings[&region].2;
    assert_eq!(rights(to.iova().as_u64()), Permissions::Read);
    assert_eq!(rights(from.iova().as_u64()), Permissions::Write);
    assert_eq!(rights(both.iova().as_u64()), Permissions::ReadWrite);
    assert_eq!(mapper.ranges(), [to.range(), from.range(), both.range()]);
    drop((to, from));
    assert_eq!(mapper.counts(), (1, 3, 2));
    assert_eq!(domain.statistics().mapped_bytes, ByteLength::new(3 << 12));
    drop(both);
    assert_eq!(mapper.counts(), (0, 3, 3));
}

#[test]
fn unmapping_gives_back_exclusive_memory_with_what_the_device_wrote() {
    let mapper = ScriptedMapper::large();
    let region: DmaRegion<FromDevice> = domain(&mapper).map(memory(1)).unwrap();
    let device = mapper.state().mappings[&region.iova().as_u64()].1.clone();
    device.write(100, b"written by a device").unwrap();
    drop(device);
    let mut bytes = [0; 19];
    region.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written by a device");
    let pinned = region.unmap().unwrap().try_into_pinned().expect("nobody else has it");
    assert_eq!(&pinned[100..119], b"written by a device");
}

#[test]
fn a_segment_lies_inside_the_region_and_is_never_empty() {
    let mapper = ScriptedMapper::large();
    let region: DmaRegion<ToDevice> = domain(&mapper).map(memory(2)).unwrap();
    let base = region.iova().as_u64();
    let all = region.segment(0, 8192).unwrap();
    assert_eq!((all.iova, all.length), (region.iova(), ByteLength::new(8192)));
    assert_eq!(region.segment(8191, 1).unwrap().iova, Iova::new(base + 8191));
    for (offset, length) in [(0, 0), (8192, 1), (8191, 2), (0, 8193), (usize::MAX, 2), (1, usize::MAX)] {
        assert!(region.segment(offset, length).is_err(), "{offset} {length}");
    }
    assert!(region.write(8190, &[1; 3]).is_err());
    assert_eq!(region.volatile_slice(4096, 4096).unwrap().len(), 4096);
}

#[test]
fn memory_is_mapped_where_the_caller_wants_it_or_not_at_all() {
    let mapper = ScriptedMapper::new(&[(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)], 4096);
    let domain = domain(&mapper);
    let region: DmaRegion<ToDevice> = domain.map_at(Iova::new(0x10_0000), memory(4)).unwrap();
    assert_eq!(region.range(), range(0x10_0000, 0x4000));
    let refused = |iova: u64, pages| match domain.map_at::<ToDevice>(Iova::new(iova), memory(pages)) {
        Err(DomainError::Unavailable(unavailable)) => unavailable.reason,
        other => panic!("{iova:#x}: {other:?}"),
    };
    assert_eq!(refused(0x10_3000, 1), UnavailableReason::InUse);
    assert_eq!(refused(0xf_f000, 2), UnavailableReason::InUse);
    assert_eq!(refused(0, 1), UnavailableReason::Unusable);
    assert_eq!(refused(0xfedf_f000, 2), UnavailableReason::Unusable);
    assert_eq!(refused(1 << 39, 1), UnavailableReason::Unusable);
    assert_eq!(refused(0x20_0800, 1), UnavailableReason::Misaligned { page: ByteLength::SIZE_4K });
    assert!(matches!(
        domain.map_at::<ToDevice>(Iova::new(u64::MAX - 4095), memory(2)),
        Err(DomainError::PastEnd { .. })
    ));
    assert_eq!(mapper.counts(), (1, 1, 0), "the mapper saw none of them");
    drop(region);
    assert!(domain.map_at::<ToDevice>(Iova::new(0x10_3000), memory(1)).is_ok());
}

#[test]
fn devices_of_different_width_share_one_address_space() {
    for placement in [Placement::BottomUp, Placement::TopDown] {
        let mapper = ScriptedMapper::new(&[(0, u64::MAX)], 4096);
        let wide =
            Domain::with_placement(Arc::<ScriptedMapper>::clone(&mapper), AddressWidth::FULL, placement)
                .unwrap();
        let narrow = wide.with_width(AddressWidth::new(28).unwrap());
        let nic: DmaRegion<ToDevice> = wide.map(memory(1)).unwrap();
        let edu: DmaRegion<ToDevice> = narrow.map(memory(1)).unwrap();
        assert!(edu.range().last() <= Iova::new(0x0fff_ffff));
        assert_eq!(narrow.width().covers(nic.range()), placement == Placement::BottomUp);
        assert!(narrow.shares_address_space(&wide) && !edu.range().overlaps(nic.range()));
        let beyond = narrow.map_at::<ToDevice>(Iova::new(0x0fff_f000), memory(2)).unwrap_err();
        let limit = narrow.width().last();
        assert!(
            matches!(beyond, DomainError::Unavailable(e) if e.reason == UnavailableReason::BeyondLimit { limit })
        );
        let tiny = wide.with_width(AddressWidth::new(12).unwrap());
        assert!(matches!(tiny.map::<ToDevice>(memory(1)), Err(DomainError::OutOfIova(_))));
        assert_eq!(wide.statistics().mappings, 2);
    }
}

#[test]
fn memory_shared_by_two_devices_is_mapped_and_counted_once_in_one_address_space() {
    let mapper = ScriptedMapper::large();
    let (first, alone) = (domain(&mapper), domain(&ScriptedMapper::large()));
    let second = first.with_width(AddressWidth::new(32).unwrap());
    let region: DmaRegion<Bidirectional> = second.map(memory(4)).unwrap();
    assert!(first.width().covers(region.range()) && second.width().covers(region.range()));
    assert_eq!(mapper.counts().0, 1);
    let length = region.length();
    assert_eq!(locked_memory_needed([&first, &second], length), length);
    assert_eq!(locked_memory_needed([&first, &second, &alone], length), ByteLength::new(8 << 12));
}

#[test]
fn the_page_size_is_what_the_iommu_says() {
    let mapper = ScriptedMapper::new(&[(0x1_0000, 0xff_ffff)], (1 << 16) | (1 << 29));
    let domain = domain(&mapper);
    for pages in [1, 15, 17] {
        let error = domain.map::<ToDevice>(memory(pages)).unwrap_err();
        let DomainError::Map(MapError::Misaligned { page, length, .. }) = error else { panic!("{error}") };
        assert_eq!((page.as_u64(), length.as_u64()), (64 << 10, pages << 12));
    }
    assert_eq!(mapper.counts(), (0, 0, 0));
    let whole = memory(48);
    let start = usize::try_from(
        whole.host_address().as_u64().next_multiple_of(1 << 16) - whole.host_address().as_u64(),
    );
    let aligned = whole.slice(start.unwrap(), 1 << 16).unwrap();
    let region: DmaRegion<ToDevice> = domain.map(aligned).unwrap();
    assert!(region.iova().is_aligned_to(ByteLength::new(1 << 16)));
}

#[test]
fn large_regions_are_aligned_for_large_pages() {
    let mapper = ScriptedMapper::large();
    let domain = domain(&mapper);
    let small: DmaRegion<ToDevice> = domain.map(memory(1)).unwrap();
    let large: DmaRegion<ToDevice> = domain.map(memory(512)).unwrap();
    assert!(large.iova().is_aligned_to(ByteLength::SIZE_2M));
    let aligned: DmaRegion<ToDevice> = domain.map_aligned(memory(1), ByteLength::SIZE_1G).unwrap();
    assert!(aligned.iova().is_aligned_to(ByteLength::SIZE_1G));
    assert_eq!(mapper.ranges(), [small.range(), large.range(), aligned.range()]);
}

#[test]
fn regions_end_in_any_order_without_touching_the_others() {
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 3, 0, 4, 2]] {
        let mapper = ScriptedMapper::large();
        let domain = domain(&mapper);
        let mut regions: Vec<Option<DmaRegion<ToDevice>>> =
            (1..=5).map(|pages| Some(domain.map(memory(pages)).unwrap())).collect();
        for index in order {
            regions[index] = None;
            let left: Vec<_> = regions.iter().flatten().map(DmaRegion::range).collect();
            assert_eq!(mapper.ranges(), left);
        }
        assert_eq!(mapper.counts(), (0, 5, 5));
    }
}
