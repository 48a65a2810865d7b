//! What the device reaches, and what it does not.

use std::os::fd::AsFd;

use vdk_firmware_stubs::StubKind;
use vdk_hal::vfio_user::message::{Command, DmaMap, DmaUnmap};
use vdk_iommu::soft::FaultReason;
use zerocopy::IntoBytes;

use crate::harness::*;

const READ: u32 = DmaMap::READ;
const WRITE: u32 = DmaMap::WRITE;

#[test]
fn bytes_go_through_mapped_memory_in_both_directions_and_zero_is_an_address() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let (source, destination) = (pages(1), pages(2));
    source.write(100, b"through the engine").unwrap();
    client.map(0, &source, READ).unwrap();
    client.map(0x10_0000, &destination, WRITE).unwrap();
    client.edu_transfer(100, 18, false);
    client.edu_transfer(0x10_0ff8, 18, true);
    assert_eq!(destination.read_value::<[u8; 18]>(0xff8), Ok(*b"through the engine"));
    assert_eq!(served.node.iommu().fault_count(), 0);
}

#[test]
fn an_access_outside_or_against_the_permissions_is_a_fault_and_changes_nothing() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let (readable, writable) = (pages(1), pages(1));
    readable.write(0, &[7; 4096]).unwrap();
    writable.write(0, &[8; 4096]).unwrap();
    client.map(0x1000, &readable, READ).unwrap();
    client.map(0x3000, &writable, WRITE).unwrap();
    let attempts = [
        (0x1000, true, FaultReason::NotWritable, 0x1000),
        (0x3000, false, FaultReason::NotReadable, 0x3000),
        (0x2000, true, FaultReason::NotMapped, 0x2000),
        (0x0, false, FaultReason::NotMapped, 0x0),
    ];
    for (address, to_memory, reason, at) in attempts {
        served.node.iommu().clear_faults();
        client.edu_transfer(address, 16, to_memory);
        let faults = served.node.iommu().faults();
        assert_eq!(faults.len(), 1, "{address:#x}");
        assert_eq!((faults[0].reason, faults[0].address.as_u64()), (reason, at));
    }
    assert_eq!(readable.read_value::<[u8; 16]>(0), Ok([7; 16]));
    assert_eq!(writable.read_value::<[u8; 16]>(0), Ok([8; 16]));

    client.unmap(0, 0x3000, 0x1000).unwrap();
    served.node.iommu().clear_faults();
    client.edu_transfer(0x3000, 16, true);
    assert_eq!(served.node.iommu().faults()[0].reason, FaultReason::NotMapped);
    assert_eq!(writable.read_value::<[u8; 16]>(0), Ok([8; 16]), "after the unmap nothing is written");
}

#[test]
fn without_bus_mastering_nothing_is_reached() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.write(7, 4, &[2, 0]).unwrap();
    let memory = pages(1);
    client.map(0x1000, &memory, READ | WRITE).unwrap();
    client.edu_transfer(0x1000, 16, true);
    assert!(served.node.driver_faults().iter().any(|fault| fault.kind.to_string().contains("bus master")));
    assert_eq!(memory.read_value::<[u8; 16]>(0), Ok([0; 16]));
}

#[test]
fn mappings_that_make_no_sense_are_refused_and_change_nothing() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    let memory = pages(2);
    let (file, _) = memory.file().unwrap();
    let good = DmaMap { argument_size: 32, flags: READ, offset: 0, address: 0x10_0000, size: 0x2000 };
    let refused = |request: DmaMap, error: u32| {
        assert_eq!(client.map_with(&request, &[file.as_fd()]), Err(error), "{request:?}");
    };
    refused(DmaMap { size: 0, ..good }, EINVAL);
    refused(DmaMap { size: 0x1800, ..good }, EINVAL);
    refused(DmaMap { size: u64::MAX, ..good }, EINVAL);
    refused(DmaMap { size: 1 << 63, ..good }, EINVAL);
    refused(DmaMap { address: 0x10_0800, ..good }, EINVAL);
    refused(DmaMap { address: u64::MAX - 0xfff, ..good }, EINVAL);
    refused(DmaMap { offset: 0x1000, ..good }, EINVAL);
    refused(DmaMap { offset: 0x800, ..good }, EINVAL);
    refused(DmaMap { offset: u64::MAX - 0xfff, ..good }, EINVAL);
    assert_eq!(client.map_with(&good, &[file.as_fd(), file.as_fd()]), Err(EINVAL));
    let null = std::fs::File::open("/dev/null").unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let (pipe, _other) = std::io::pipe().unwrap();
    for wrong in [null.as_fd(), folder.as_fd(), pipe.as_fd()] {
        assert_eq!(client.map_with(&good, &[wrong]), Err(EINVAL));
    }
    client.map_with(&good, &[file.as_fd()]).unwrap();
    refused(good, EEXIST);
    refused(DmaMap { address: 0x10_1000, size: 0x1000, ..good }, EEXIST);
    refused(DmaMap { address: 0xf_f000, ..good }, EEXIST);
    assert_eq!(client.unmap(0, 0x10_0000, 0x2000), Ok(0x2000));
}

#[test]
fn regions_are_unmapped_in_any_order_and_never_in_part() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    let memory = pages(1);
    let without_file = DmaMap { argument_size: 32, flags: READ, offset: 0, address: 0, size: 0x1000 };
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]] {
        for number in 0..5u64 {
            let address = 0x10_0000 + number * 0x1000;
            if number % 2 == 0 {
                client.map(address, &memory, READ).unwrap();
            } else {
                client.map_with(&DmaMap { address, ..without_file }, &[]).unwrap();
            }
        }
        for number in order {
            assert_eq!(client.unmap(0, 0x10_0000 + number * 0x1000, 0x1000), Ok(0x1000));
        }
        assert_eq!(client.unmap(0, 0x10_0000, 0x5000), Ok(0), "nothing is left");
    }
    client.map(0x20_0000, &pages(2), READ).unwrap();
    client.map(0x20_4000, &pages(1), READ).unwrap();
    for (address, size) in
        [(0x20_0000, 0x1000), (0x20_1000, 0x1000), (0x1f_f000, 0x2000), (0x20_1000, 0x8000)]
    {
        assert_eq!(client.unmap(0, address, size), Err(EINVAL), "{address:#x}+{size:#x}");
    }
    for (address, size) in [(0, 0), (0x20_0800, 0x1000), (u64::MAX - 0xfff, 0x2000)] {
        assert_eq!(client.unmap(0, address, size), Err(EINVAL));
    }
    assert_eq!(client.unmap(DmaUnmap::ALL, 0, 0x1000), Err(EINVAL));
    assert_eq!(client.unmap(DmaUnmap::DIRTY_BITMAP, 0x20_0000, 0x2000), Err(EOPNOTSUPP));
    assert_eq!(client.unmap(0, 0, 1 << 40), Ok(0x3000), "whole mappings in a larger range");
    client.map(0x20_0000, &pages(2), READ).unwrap();
    assert_eq!(client.unmap(DmaUnmap::ALL, 0, 0), Ok(0x2000));
}

#[test]
fn a_file_that_is_cut_short_costs_the_device_its_bytes_and_the_server_nothing() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let file = memory_file(&[5; 0x4000]);
    let request = DmaMap { argument_size: 32, flags: READ | WRITE, offset: 0, address: 0x8000, size: 0x4000 };
    client.map_with(&request, &[file.as_fd()]).unwrap();
    client.edu_transfer(0x8000, 8, false);
    file.set_len(0).unwrap();
    client.edu_transfer(0xa000, 8, false);
    client.edu_transfer(0xa008, 8, true);
    let memory = pages(1);
    client.map(0x1000, &memory, WRITE).unwrap();
    client.edu_transfer(0x1000, 8, true);
    assert_eq!(memory.read_value::<[u8; 8]>(0), Ok([0xff; 8]), "what is not there reads as ones");
    assert_eq!(client.unmap(0, 0x8000, 0x4000), Ok(0x4000));
}

#[test]
fn a_file_whose_pages_another_program_may_have_to_provide_is_refused() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    // A regular file of one page that can be mapped as little as one of FUSE should be.
    let file = std::fs::File::open("/sys/kernel/uevent_seqnum").unwrap();
    assert_eq!((file.metadata().unwrap().is_file(), file.metadata().unwrap().len()), (true, 4096));
    let request = DmaMap { argument_size: 32, flags: READ, offset: 0, address: 0x8000, size: 0x1000 };
    assert_eq!(client.map_with(&request, &[file.as_fd()]), Err(EINVAL));
}

#[test]
fn pages_of_one_file_come_and_go_by_the_thousand() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let memory = pages(64);
    let (file, start) = memory.file().unwrap();
    for round in 0..2000u64 {
        let page = round * 7 % 64;
        let (offset, address) = (start + page * 4096, 0x40_0000 + page * 4096);
        let request = DmaMap { argument_size: 32, flags: READ | WRITE, offset, address, size: 4096 };
        client.map_with(&request, &[file.as_fd()]).unwrap();
        if round % 100 == 0 {
            let place = usize::try_from(page * 4096).unwrap();
            memory.write(place, &round.to_le_bytes()).unwrap();
            client.edu_transfer(address, 8, false);
            client.edu_transfer(address + 8, 8, true);
            assert_eq!(memory.read_value::<u64>(place + 8), Ok(round));
        }
        client.unmap(0, address, 4096).unwrap();
    }
    assert_eq!(served.node.iommu().fault_count(), 0);
}

#[test]
fn a_request_to_unmap_has_to_be_whole() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    let request = DmaUnmap { argument_size: 24, flags: 0, address: 0x1000, size: 0x1000 };
    assert_eq!(client.call(Command::DMA_UNMAP, &[&request.as_bytes()[..23]]).err(), Some(EINVAL));
}
