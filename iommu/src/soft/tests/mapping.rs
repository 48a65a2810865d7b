//! Mapping and unmapping as a driver sees it.

use super::*;
use vdk_hal::dma::{MapError, UnmapError};

#[test]
fn a_mapping_that_overlaps_another_is_refused() {
    let (domain, _, _) = machine(SoftIommuOptions::default());
    let host = memory(4);
    domain.map(iova(0x1_0000), &host, Permissions::ReadWrite).unwrap();
    for (start, pages) in [(0x1_0000, 4), (0xf000, 2), (0x1_3000, 1), (0x1_1000, 1), (0xe000, 8)] {
        let expected = MapError::AlreadyMapped {
            range: range(start, pages * PAGE),
            existing: range(0x1_0000, 4 * PAGE),
        };
        assert_eq!(domain.map(iova(start), &memory(pages), Permissions::Read), Err(expected));
    }
    // The same memory again is no exception.
    assert!(domain.map(iova(0x1_0000), &host, Permissions::ReadWrite).is_err());
    for start in [0xf000, 0x1_4000] {
        domain.map(iova(start), &memory(1), Permissions::Read).unwrap();
    }
    assert_eq!(domain.geometry().mappings_available, Some(65535 - 3));
}

#[test]
fn a_mapping_outside_the_ranges_or_not_in_whole_pages_is_refused() {
    let (domain, _, _) = machine(SoftIommuOptions::default());
    let outside =
        [(0, 1), (0xfedf_f000, 2), (0xfee0_0000, 1), (0xfeef_f000, 2), (1 << 48, 1), (u64::MAX - 4095, 2)];
    for (start, pages) in outside {
        let error = domain.map(iova(start), &memory(pages), Permissions::Read).unwrap_err();
        let MapError::OutOfRange { range, usable } = error else { panic!("{error}") };
        assert_eq!(range.start(), iova(start));
        assert_eq!(usable, "[0x1000, 0xfedfffff], [0xfef00000, 0xffffffffffff]");
    }
    let part = memory(2).slice(0x800, 0x1000).unwrap();
    let short = memory(1).slice(0, 0x800).unwrap();
    for (start, host) in [(0x1800, &memory(1)), (0x1000, &part), (0x1000, &short)] {
        let error = domain.map(iova(start), host, Permissions::Read).unwrap_err();
        assert!(matches!(error, MapError::Misaligned { page: ByteLength::SIZE_4K, .. }), "{error}");
    }
    assert_eq!(domain.geometry().mappings_available, Some(65535));
}

#[test]
fn the_smallest_page_is_what_the_options_say() {
    let (domain, _, mut device) = machine(SoftIommuOptions { page_sizes: 1 << 16, ..Default::default() });
    assert_eq!(domain.geometry().smallest_page(), ByteLength::new(1 << 16));
    let error = domain.map(iova(0x1_0000), &memory(1), Permissions::Read).unwrap_err();
    assert!(error.to_string().contains("in whole pages of 64 KiB"), "{error}");
    let large = memory(64);
    let skip = large.host_address().as_u64().wrapping_neg() % 0x1_0000;
    let host = large.slice(usize::try_from(skip).unwrap(), 0x2_0000).unwrap();
    domain.map(iova(0x1_0000), &host, Permissions::ReadWrite).unwrap();
    device.store_u64(iova(0x2_fff8), 3).unwrap();
    assert_eq!(host.read_value::<u64>(0x1_fff8).unwrap(), 3);
    assert_eq!(domain.unmap(range(0x1_0000, 0x2_0000)).unwrap(), ByteLength::new(0x2_0000));
}

#[test]
fn the_count_of_mappings_is_limited_and_comes_back() {
    let (domain, _, _) = machine(SoftIommuOptions { max_mappings: 4, ..Default::default() });
    let host = memory(1);
    for round in 0..3u64 {
        for index in 0..4 {
            domain.map(iova((1 + index + round) << 16), &host, Permissions::Read).unwrap();
        }
        assert_eq!(domain.geometry().mappings_available, Some(0));
        let error = domain.map(iova(0x1000), &host, Permissions::Read).unwrap_err();
        assert_eq!(error, MapError::TooManyMappings { limit: 4 });
        for index in 0..4 {
            domain.unmap(range((1 + index + round) << 16, PAGE)).unwrap();
        }
        assert_eq!(domain.geometry().mappings_available, Some(4));
    }
    assert!(host.try_into_pinned().is_ok());
}

#[test]
fn only_whole_mappings_are_unmapped() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let host = memory(8);
    domain.map(iova(0x1_0000), &host, Permissions::ReadWrite).unwrap();
    domain.map(iova(0x1_8000), &memory(1), Permissions::ReadWrite).unwrap();
    let existing = range(0x1_0000, 8 * PAGE);
    for (start, pages) in [(0x1_0000, 4), (0x1_2000, 2), (0x1_4000, 4), (0xf000, 9), (0x1_0000, 9)] {
        let range = range(start, pages * PAGE);
        assert_eq!(domain.unmap(range), Err(UnmapError::NotExact { range, existing }));
    }
    for (start, length) in [(0xf000, PAGE), (0x1_9000, PAGE), (0x1_9001, 1), (1 << 50, PAGE)] {
        let range = range(start, length);
        assert_eq!(domain.unmap(range), Err(UnmapError::NotMapped { range }));
    }
    device.store_u64(iova(0x1_7ff8), 1).unwrap();
    assert_eq!(domain.unmap(existing), Ok(ByteLength::new(8 * PAGE)));
    assert_eq!(domain.unmap(existing), Err(UnmapError::NotMapped { range: existing }));
    // The other half of a range that touched it is still there, and the memory is free.
    device.store_u64(iova(0x1_8000), 1).unwrap();
    assert!(host.try_into_pinned().is_ok());
}

#[test]
fn a_domain_that_ends_gives_its_memory_back() {
    let (domain, gate, device) = machine(SoftIommuOptions::default());
    let host = memory(1);
    domain.map(iova(0x1000), &host, Permissions::ReadWrite).unwrap();
    let host = host.try_into_pinned().unwrap_err();
    drop((domain, device));
    assert!(host.try_into_pinned().is_ok());
    // The gate outlived the domain it knew.
    assert_eq!(gate.close(), Ok(()));
}
