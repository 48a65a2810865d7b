use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::address::ByteLength;
use crate::memory::Pages;
use crate::vfio::mock::MockFile;
use crate::vfio::ranges::listed;

/// Answers of an address space number 7 with these ranges, as many as there is room for.
fn with_ranges(ranges: Vec<(u64, u64)>) -> Arc<MockFile> {
    MockFile::new(move |call, message, attached| match call {
        Call::IoasAlloc => {
            message.put(offset_of!(abi::iommu_ioas_alloc, out_ioas_id), 7);
            Ok(0)
        }
        Call::IoasIovaRanges => {
            let at = offset_of!(abi::iommu_ioas_iova_ranges, num_iovas);
            let room = message.word(at).unwrap();
            message.put(at, u32::try_from(ranges.len()).unwrap());
            message.put64(offset_of!(abi::iommu_ioas_iova_ranges, out_iova_alignment), 4096);
            let Attached::List { bytes, .. } = attached else { return Err(Errno::FAULT) };
            for ((start, last), place) in ranges.iter().zip(bytes.chunks_exact_mut(16)) {
                place[..8].copy_from_slice(&start.to_ne_bytes());
                place[8..].copy_from_slice(&last.to_ne_bytes());
            }
            if ranges.len() > usize::try_from(room).unwrap() { Err(Errno::MSGSIZE) } else { Ok(0) }
        }
        _ => Err(Errno::NOTTY),
    })
}

#[test]
fn ranges_are_read_with_their_last_address_however_many_there_are() {
    let few = Ioas::over(with_ranges(vec![(0xfef0_0000, u64::MAX), (0, 0xfedf_ffff)])).unwrap();
    let geometry = few.geometry().unwrap();
    assert_eq!(few.id(), 7);
    assert_eq!(listed(&geometry.ranges), "[0x0, 0xfedfffff] [0xfef00000, 0xffffffffffffffff]");
    assert_eq!(geometry.smallest_page(), page_size().max(ByteLength::SIZE_4K));

    let many: Vec<(u64, u64)> = (0..100).map(|n| (n << 20, (n << 20) + 0xfffff - 0x1000)).collect();
    let file = with_ranges(many);
    let geometry = Ioas::over(file.clone()).unwrap().geometry().unwrap();
    assert_eq!(geometry.ranges.len(), 100);
    assert_eq!(file.calls(), [Call::IoasAlloc, Call::IoasIovaRanges, Call::IoasIovaRanges]);
}

#[test]
fn a_kernel_that_always_has_more_ranges_is_given_up() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let file = MockFile::new(move |call, message, _| {
        if call == Call::IoasAlloc {
            return Ok(0);
        }
        count.fetch_add(1, Ordering::Relaxed);
        let at = offset_of!(abi::iommu_ioas_iova_ranges, num_iovas);
        let room = message.word(at).unwrap();
        message.put(at, room + 1);
        Err(Errno::MSGSIZE)
    });
    assert_eq!(Ioas::over(file).unwrap().geometry(), Err(Errno::MSGSIZE));
    assert!(asked.load(Ordering::Relaxed) < 10);
}

#[test]
fn messages_say_what_is_meant() {
    let file = MockFile::new(|call, message, _| {
        match call {
            Call::IoasAlloc => message.put(8, 3),
            Call::IoasUnmap => message.put64(offset_of!(abi::iommu_ioas_unmap, length), 0x1000),
            Call::IommuOption => message.put64(offset_of!(abi::iommu_option, val64), 0),
            _ => {}
        }
        Ok(0)
    });
    let ioas = Ioas::over(file.clone()).unwrap();
    let memory = SharedMemory::allocate(ByteLength::new(8192), Pages::Base).unwrap();
    file.take();
    ioas.map(Iova::new(0x5000), &memory, Permissions::Write).unwrap();
    let asked = file.take().remove(0).bytes;
    let words: Vec<u32> = asked.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
    // Size, fixed address and writable, address space.
    assert_eq!(words[..3], [40, 3, 3]);
    assert_eq!((words[6], words[8]), (8192, 0x5000));

    let range = IovaRange::new(Iova::new(0x5000), ByteLength::new(8192)).unwrap();
    assert_eq!(ioas.unmap(range), Ok(0x1000), "what the kernel said, not what was asked");
    assert_eq!(ioas.counts_by_process(), Some(false));
    ioas.allow(&[range]).unwrap();
    assert_eq!(file.calls(), [Call::IoasUnmap, Call::IommuOption, Call::IoasAllowIovas]);
}
