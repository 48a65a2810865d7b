//! Accesses: what they span, where they fault, and who may make them.

use super::*;

#[test]
fn an_access_spans_mappings_that_touch() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let (first, second, third) = (memory(1), memory(2), memory(1));
    domain.map(iova(0x1_0000), &first, Permissions::ReadWrite).unwrap();
    domain.map(iova(0x1_1000), &second, Permissions::ReadWrite).unwrap();
    domain.map(iova(0x1_3000), &third, Permissions::ReadWrite).unwrap();
    let text: Vec<u8> = (0..0x3800u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    device.write(iova(0x1_0400), &text).unwrap();
    let mut bytes = vec![0; text.len()];
    device.read(iova(0x1_0400), &mut bytes).unwrap();
    assert_eq!(bytes, text);
    let mut part = vec![0; 0x2000];
    second.read(0, &mut part).unwrap();
    assert_eq!(part, text[0xc00..0x2c00]);
    // The words of a pattern run on where the memory behind them changes.
    device.fill(iova(0x1_0ffd), 8, 0x0807_0605_0403_0201).unwrap();
    assert_eq!(first.read_value::<[u8; 3]>(0xffd).unwrap(), [1, 2, 3]);
    assert_eq!(second.read_value::<[u8; 5]>(0).unwrap(), [4, 5, 6, 7, 8]);
    assert_eq!(domain.iommu().fault_count(), 0);
}

#[test]
fn a_fault_in_the_middle_names_the_first_address_and_moves_what_is_before() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let (source, destination) = (memory(2), memory(1));
    source.fill(0, 0x2000, 7).unwrap();
    domain.map(iova(0x1_0000), &source, Permissions::Read).unwrap();
    domain.map(iova(0x2_0000), &destination, Permissions::Write).unwrap();
    let result = device.copy(iova(0x2_0800), iova(0x1_0010), 0x1000);
    assert_eq!(result, Err(fault(FaultReason::NotMapped, 0x2_1000, true)));
    assert_eq!(destination.read_value::<[u8; 2]>(0x7ff).unwrap(), [0, 7]);
    assert_eq!(destination.read_value::<u8>(0xfff).unwrap(), 7);
    // Both ends fault at the same byte: the source comes first.
    let result = device.copy(iova(0x2_0f00), iova(0x1_1f00), 0x200);
    assert_eq!(result, Err(fault(FaultReason::NotMapped, 0x1_2000, false)));
    let result = device.write(iova(0x1_0000), &[1]);
    assert_eq!(result, Err(fault(FaultReason::NotWritable, 0x1_0000, true)));
    assert_eq!(source.read_value::<u8>(0).unwrap(), 7);
}

#[test]
fn an_access_of_no_bytes_succeeds_anywhere() {
    let (domain, gate, mut device) = machine(SoftIommuOptions::default());
    for address in [0, 0x1000, u64::MAX] {
        let mut burst = device.burst().unwrap();
        assert_eq!(burst.read(iova(address), &mut []), Ok(()));
        assert_eq!(burst.copy(iova(address), iova(address), 0), Ok(()));
        assert_eq!(burst.fill(iova(address), 0, 1), Ok(()));
        drop(burst);
        assert_eq!(device.write(iova(address), &[]), Ok(()));
    }
    gate.close().unwrap();
    assert_eq!(device.copy(iova(0), iova(0), 0), Ok(()));
    assert_eq!(domain.iommu().fault_count(), 0);
}

#[test]
fn the_top_of_the_address_space_is_usable_and_not_passed() {
    let (domain, _, mut device) = machine(whole_space());
    let (top, bottom) = (memory(2), memory(1));
    let start = u64::MAX - (2 * PAGE - 1);
    domain.map(iova(start), &top, Permissions::ReadWrite).unwrap();
    domain.map(iova(0), &bottom, Permissions::ReadWrite).unwrap();
    device.fill(iova(start), 2 * PAGE, 0x0101_0101_0101_0101).unwrap();
    device.store_u64(iova(u64::MAX - 7), 5).unwrap();
    device.copy(iova(start), iova(u64::MAX - 7), 8).unwrap();
    assert_eq!(top.read_value::<u64>(0).unwrap(), 5);
    assert_eq!(device.translate(iova(u64::MAX), true), Ok(range(start, 2 * PAGE)));
    // One byte further would be address 0, which is mapped.
    let mut bytes = [9; 8];
    let last = u64::MAX - 6;
    assert_eq!(device.read(iova(last), &mut bytes), Err(fault(FaultReason::Overflow, last, false)));
    assert_eq!(bytes, [9; 8]);
    assert_eq!(device.copy(iova(0), iova(last), 8), Err(fault(FaultReason::Overflow, last, false)));
    assert_eq!(device.copy(iova(last), iova(0), 8), Err(fault(FaultReason::Overflow, last, true)));
    assert_eq!(device.fill(iova(1), u64::MAX, 0), Err(fault(FaultReason::NotMapped, PAGE, true)));
    assert_eq!(device.fill(iova(2), u64::MAX, 0), Err(fault(FaultReason::Overflow, 2, true)));
    assert_eq!(device.copy(iova(2), iova(start), u64::MAX).unwrap_err().reason, FaultReason::Overflow);
    assert_eq!(domain.unmap(range(start, 2 * PAGE)).unwrap(), ByteLength::new(2 * PAGE));
}

#[test]
fn translation_ends_exactly_where_a_mapping_ends() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    domain.map(iova(0x3000), &memory(2), Permissions::Read).unwrap();
    for address in [0x3000, 0x4abc, 0x4fff] {
        assert_eq!(device.translate(iova(address), false), Ok(range(0x3000, 2 * PAGE)));
    }
    for address in [0x2fff, 0x5000, 0, u64::MAX] {
        let refused = fault(FaultReason::NotMapped, address, false);
        assert_eq!(device.translate(iova(address), false), Err(refused));
    }
    let read_only = fault(FaultReason::NotWritable, 0x4fff, true);
    assert_eq!(device.translate(iova(0x4fff), true), Err(read_only));
}

#[test]
fn a_gigabyte_is_mapped_with_every_set_of_page_sizes() {
    let host = SharedMemory::allocate(ByteLength::SIZE_1G, Pages::Base).unwrap();
    for page_sizes in [1 << 12, 1 << 12 | 1 << 21, 1 << 12 | 1 << 21 | 1 << 30] {
        let (domain, _, mut device) = machine(SoftIommuOptions { page_sizes, ..Default::default() });
        let start = 5 << 30;
        domain.map(iova(start), &host, Permissions::ReadWrite).unwrap();
        for offset in [0, (1 << 21) - 8, 1 << 21, (1 << 30) - 8] {
            let at = usize::try_from(offset).unwrap();
            host.write_value(at, &(page_sizes ^ offset)).unwrap();
            assert_eq!(device.load_u64(iova(start + offset)), Ok(page_sizes ^ offset));
        }
        let past = start + (1 << 30);
        assert_eq!(device.load_u64(iova(past)), Err(fault(FaultReason::NotMapped, past, false)));
        domain.unmap(range(start, 1 << 30)).unwrap();
        assert_eq!(device.load_u64(iova(start)), Err(fault(FaultReason::NotMapped, start, false)));
    }
    assert!(host.try_into_pinned().is_ok());
}

#[test]
fn functions_of_a_domain_share_translations_and_others_have_their_own() {
    let iommu = SoftIommu::new(SoftIommuOptions::default());
    let (shared, own) = (iommu.domain(), iommu.domain());
    let gate = BusMasterGate::new();
    gate.open();
    let ids = [0x0110, 0x0111, 0x0218].map(RequesterId::new);
    let mut first = shared.bus_master(ids[0], Arc::clone(&gate));
    let mut second = shared.bus_master(ids[1], Arc::clone(&gate));
    let mut stranger = own.bus_master(ids[2], gate);
    let (host, other) = (memory(1), memory(1));
    shared.map(iova(0x7000), &host, Permissions::ReadWrite).unwrap();
    first.store_u64(iova(0x7000), 1).unwrap();
    assert_eq!(second.load_u64(iova(0x7000)), Ok(1));
    let refused = stranger.load_u64(iova(0x7000)).unwrap_err();
    assert_eq!((refused.requester, refused.reason), (ids[2], FaultReason::NotMapped));
    own.map(iova(0x7000), &other, Permissions::ReadWrite).unwrap();
    assert_eq!(stranger.load_u64(iova(0x7000)), Ok(0));
    shared.unmap(range(0x7000, PAGE)).unwrap();
    let refused = second.load_u64(iova(0x7000)).unwrap_err();
    assert_eq!((refused.requester, refused.reason), (ids[1], FaultReason::NotMapped));
    assert_eq!(stranger.load_u64(iova(0x7000)), Ok(0));
    // One log for all.
    assert_eq!(iommu.faults().iter().map(|fault| fault.requester).collect::<Vec<_>>(), [ids[2], ids[1]]);
    iommu.clear_faults();
    assert_eq!(iommu.fault_count(), 0);
}

#[test]
fn many_mappings_are_all_reached_whatever_the_iotlb_holds() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let hosts: Vec<SharedMemory> = (0..600u64)
        .map(|number| {
            let host = memory(1);
            host.write_value(8, &number).unwrap();
            // At a distance that maps many to one entry of a small table.
            domain.map(iova((1 + number) << 20), &host, Permissions::ReadWrite).unwrap();
            host
        })
        .collect();
    let mut burst = device.burst().unwrap();
    for round in 0..3u64 {
        for (number, host) in (0..600u64).zip(&hosts) {
            let address = iova(((1 + number) << 20) + 8);
            assert_eq!(burst.load_u64(address), Ok(number));
            burst.prefetch(address);
            burst.copy(iova(address.as_u64() + 8 + 8 * round), address, 8).unwrap();
            assert_eq!(host.read_value::<u64>(16 + 8 * usize::try_from(round).unwrap()).unwrap(), number);
        }
    }
    burst.prefetch(iova(0));
    drop(burst);
    assert_eq!(domain.iommu().fault_count(), 0);
}
