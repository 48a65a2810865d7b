use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;
use crate::memory::Pages;
use crate::vfio::kernel::Call;
use crate::vfio::mock::MockFile;

/// A type 1 container that keeps its mappings as the kernel does.
#[derive(Default)]
struct FakeKernel {
    mappings: Mutex<BTreeMap<u64, u64>>,
    /// Unmapping says that it worked and does nothing.
    deaf: AtomicBool,
    /// What mapping fails with, as a raw number.
    fault: AtomicU32,
}

const LIMIT: usize = 4;

impl FakeKernel {
    fn open(self: &Arc<Self>) -> (Arc<MockFile>, Backing) {
        let kernel = Arc::clone(self);
        let file = MockFile::new(move |call, message, _| match call {
            Call::ApiVersion | Call::SetIommu => Ok(0),
            Call::CheckExtension => Ok(1),
            // Without capabilities: [0x10000, 2^39 - 1].
            Call::IommuInfo => Ok(0),
            Call::MapDma => kernel.map(message.double_word(16).unwrap(), message.double_word(24).unwrap()),
            Call::UnmapDma => {
                let (start, size) = (message.double_word(8).unwrap(), message.double_word(16).unwrap());
                let mut mappings = kernel.mappings.lock().unwrap();
                let whole = mappings.get(&start) == Some(&size) && !kernel.deaf.load(Ordering::Relaxed);
                if whole {
                    mappings.remove(&start);
                }
                message.put64(16, if whole { size } else { 0 });
                Ok(0)
            }
            _ => Err(Errno::NOTTY),
        });
        let container = Container::over(file.clone()).unwrap();
        (file, Backing::Type1(Arc::new(container)))
    }

    fn map(&self, start: u64, size: u64) -> Result<u32, Errno> {
        let fault = self.fault.load(Ordering::Relaxed);
        if fault != 0 {
            return Err(Errno::from_raw_os_error(fault.try_into().unwrap()));
        }
        let mut mappings = self.mappings.lock().unwrap();
        if mappings.iter().any(|(other, length)| *other < start + size && start < other + length) {
            return Err(Errno::EXIST);
        }
        if mappings.len() == LIMIT {
            return Err(Errno::NOSPC);
        }
        mappings.insert(start, size);
        Ok(0)
    }

    fn count(&self) -> usize {
        self.mappings.lock().unwrap().len()
    }
}

/// An address space that one function sees.
fn attached() -> (Arc<FakeKernel>, Arc<MockFile>, Arc<Space>) {
    let kernel = Arc::new(FakeKernel::default());
    let (file, backing) = kernel.open();
    let space = Arc::new(Space::default());
    space.backing_by(KernelInterface::Type1, |_| Ok(backing)).map(|_| ()).unwrap();
    space.attached().unwrap();
    file.take();
    (kernel, file, space)
}

fn memory(pages: u64) -> SharedMemory {
    SharedMemory::allocate(ByteLength::new(pages << 12), Pages::Base).unwrap()
}

fn range(start: u64, pages: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), ByteLength::new(pages << 12)).unwrap()
}

const RW: Permissions = Permissions::ReadWrite;

#[test]
fn nothing_is_mapped_before_a_function_is_attached_and_no_call_is_made() {
    let space = Space::default();
    assert_eq!(space.geometry().ranges, []);
    let error = space.map(Iova::new(0x10000), &memory(1), RW).unwrap_err();
    assert!(matches!(error, MapError::NotAttached { .. }), "{error}");
    assert!(matches!(space.unmap(range(0x10000, 1)), Err(UnmapError::NotMapped { .. })));
    assert!(space.name().starts_with("VFIO address space"));
}

#[test]
fn an_unmap_that_ends_nothing_is_an_error_and_the_memory_stays() {
    let (kernel, _, space) = attached();
    let kept = memory(2);
    space.map(Iova::new(0x20000), &kept, RW).unwrap();
    kernel.deaf.store(true, Ordering::Relaxed);
    let error = space.unmap(range(0x20000, 2)).unwrap_err();
    assert_eq!(error, UnmapError::Incomplete { range: range(0x20000, 2), returned: ByteLength::ZERO });
    let kept = kept.try_into_pinned().expect_err("the mapping still holds the memory");
    // New memory at the old address is refused, and not taken for mapped.
    let error = space.map(Iova::new(0x20000), &memory(2), RW).unwrap_err();
    assert_eq!(error, MapError::AlreadyMapped { range: range(0x20000, 2), existing: range(0x20000, 2) });
    kernel.deaf.store(false, Ordering::Relaxed);
    assert_eq!(space.unmap(range(0x20000, 2)), Ok(ByteLength::new(0x2000)));
    kept.try_into_pinned().expect("nobody holds it any more");
}

#[test]
fn something_in_the_way_that_is_not_ours_is_an_error_too() {
    let (kernel, _, space) = attached();
    kernel.mappings.lock().unwrap().insert(0x30000, 0x1000);
    let error = space.map(Iova::new(0x30000), &memory(1), RW).unwrap_err();
    assert!(matches!(error, MapError::AlreadyMapped { .. }), "{error}");
}

#[test]
fn what_the_iommu_cannot_take_never_reaches_the_kernel() {
    let (_, file, space) = attached();
    let one = memory(1);
    for (start, expected) in [
        (0, "outside"),
        (0xf000, "outside"),
        (1 << 39, "outside"),
        (0x10800, "whole pages"),
        (u64::MAX - 0xfff, "outside"),
        (u64::MAX - 0x7ff, "whole pages"),
    ] {
        let error = space.map(Iova::new(start), &one, RW).unwrap_err().to_string();
        assert!(error.contains(expected), "{start:#x}: {error}");
    }
    let part = one.slice(0, 100).unwrap();
    assert!(matches!(space.map(Iova::new(0x10000), &part, RW), Err(MapError::Misaligned { .. })));
    assert_eq!(file.calls(), []);
    assert!(space.map(Iova::new((1 << 39) - 0x1000), &one, RW).is_ok(), "the last page is usable");
}

#[test]
fn only_whole_mappings_end() {
    let (_, file, space) = attached();
    space.map(Iova::new(0x40000), &memory(8), RW).unwrap();
    file.take();
    for part in [range(0x42000, 2), range(0x40000, 7), range(0x40000, 9), range(0x3f000, 2)] {
        let error = space.unmap(part).unwrap_err();
        assert_eq!(error, UnmapError::NotExact { range: part, existing: range(0x40000, 8) });
    }
    assert!(matches!(space.unmap(range(0x48000, 1)), Err(UnmapError::NotMapped { .. })));
    assert_eq!(file.calls(), [], "the kernel was not asked");
    space.unmap(range(0x40000, 8)).unwrap();
}

#[test]
fn errors_of_the_kernel_say_what_they_mean() {
    let (kernel, _, space) = attached();
    for start in 1..=4u64 {
        space.map(Iova::new(start << 20), &memory(1), RW).unwrap();
    }
    assert_eq!(space.map(Iova::new(9 << 20), &memory(1), RW), Err(MapError::TooManyMappings { limit: 4 }));
    kernel.fault.store(12, Ordering::Relaxed);
    let error = space.map(Iova::new(9 << 20), &memory(1), RW).unwrap_err();
    assert!(matches!(error, MapError::LockedMemory { .. } | MapError::System { .. }), "{error}");
    kernel.fault.store(14, Ordering::Relaxed);
    assert!(matches!(space.map(Iova::new(9 << 20), &memory(1), RW), Err(MapError::System { .. })));
    assert_eq!(kernel.count(), 4);
}

#[test]
fn mappings_end_with_the_last_function_and_their_owners_are_told_so() {
    let (kernel, file, space) = attached();
    space.attached().unwrap();
    let kept = memory(1);
    space.map(Iova::new(0x50000), &kept, RW).unwrap();
    space.leaving();
    assert_eq!(kernel.count(), 1, "another function still sees it");
    space.leaving();
    assert_eq!((kernel.count(), space.geometry().ranges), (0, vec![]));
    kept.try_into_pinned().expect("nobody holds it any more");
    file.take();
    assert_eq!(space.unmap(range(0x50000, 1)), Ok(ByteLength::SIZE_4K), "it has ended");
    assert!(matches!(space.unmap(range(0x50000, 1)), Err(UnmapError::NotMapped { .. })));
    assert_eq!(file.calls(), []);

    // The next function finds an empty address space.
    space.map(Iova::new(0x50000), &memory(1), RW).unwrap_err();
    space.attached().unwrap();
    space.map(Iova::new(0x50000), &memory(1), RW).unwrap();
    assert_eq!(kernel.count(), 1);
}

#[test]
fn memory_that_the_kernel_does_not_let_go_is_leaked_not_freed() {
    let (kernel, _, space) = attached();
    let kept = memory(1);
    space.map(Iova::new(0x60000), &kept, RW).unwrap();
    kernel.deaf.store(true, Ordering::Relaxed);
    space.leaving();
    drop(space);
    kept.try_into_pinned().expect_err("it is held for ever");
}

#[test]
fn an_address_space_has_one_interface_for_all_its_functions() {
    let (_, _, space) = attached();
    let refused = space.backing(KernelInterface::Iommufd).map(|_| ()).unwrap_err().text();
    assert!(refused.contains("one of type1, and iommufd is asked for"), "{refused}");
    assert_eq!(space.interface(), Some(KernelInterface::Type1));
    assert!(space.name().starts_with("type1 container"));
}

#[test]
fn mapping_and_unmapping_a_thousand_times_leaves_nothing() {
    let (kernel, file, space) = attached();
    let memory = memory(4);
    for _ in 0..1000 {
        space.map(Iova::new(0x70000), &memory, Permissions::Write).unwrap();
        space.unmap(range(0x70000, 4)).unwrap();
    }
    assert_eq!((kernel.count(), file.calls().len()), (0, 2000));
    memory.try_into_pinned().expect("nobody holds it");
}
