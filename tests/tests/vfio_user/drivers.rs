//! The drivers on devices behind a socket.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use vdk_descriptors::sg::CopySegment;
use vdk_driver::edu::{Completion, Edu, TransferDirection};
use vdk_driver::ioat::{ChannelOptions, CompletionMode, Ioat};
use vdk_driver::kit::Session;
use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::address::ByteLength;
use vdk_hal::event::DeviceEvent;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, Direction, DmaRegion, Domain, FromDevice, ToDevice};

use crate::conformance::ALONE;
use crate::harness::{Served, serve};

/// Long enough for a machine that is busy with something else.
const LONG: Duration = Duration::from_secs(120);

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn region<D: Direction>(domain: &Domain, bytes: u64) -> DmaRegion<D> {
    domain.map(SharedMemory::allocate(ByteLength::new(bytes), Pages::Base).unwrap()).unwrap()
}

fn ioat(served: &Served) -> Ioat {
    Ioat::start(Session::open(&served.client, "test").unwrap()).unwrap()
}

#[test]
fn an_ioat_copies_in_every_mode_and_its_memory_comes_back() {
    const BYTES: usize = 4 << 20;
    let _alone = alone();
    for mode in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let served = serve(StubKind::Ioat, StubOptions::default());
        let ioat = ioat(&served);
        let source: DmaRegion<ToDevice> = region(ioat.domain(), BYTES as u64);
        let destination: DmaRegion<FromDevice> = region(ioat.domain(), BYTES as u64);
        let input: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
        source.write(0, &input).unwrap();
        let mut channel = ioat.channel::<usize>(0, ChannelOptions::default()).unwrap();
        let pieces: Vec<CopySegment> = (0..64)
            .map(|number| CopySegment {
                source: source.segment(number << 16, 1 << 16).unwrap().iova,
                destination: destination.segment((63 - number) << 16, 1 << 16).unwrap().iova,
                length: 1 << 16,
            })
            .collect();
        let mut ended = Vec::new();
        for (number, half) in pieces.chunks(32).enumerate() {
            channel.copy(half, number).unwrap();
            channel.commit().unwrap();
        }
        while channel.outstanding() > 0 {
            channel.wait(mode, LONG).unwrap();
            channel.poll(usize::MAX, |end| ended.push((end.owner, end.result.is_ok()))).unwrap();
        }
        assert_eq!(ended, [(0, true), (1, true)], "{mode:?}");
        let mut output = vec![0; BYTES];
        destination.read(0, &mut output).unwrap();
        let expected: Vec<u8> = input.rchunks(1 << 16).flatten().copied().collect();
        assert!(output == expected, "{mode:?}");
        assert_eq!(served.node.iommu().faults(), []);
        assert_eq!(served.node.driver_faults(), []);
        assert!(channel.close().unwrap().is_empty());
        let memory = source.unmap().map_err(|(error, _)| error).unwrap();
        assert!(memory.has_no_other_holder());
        assert!(memory.try_into_pinned().is_err(), "the server has had its file");
        drop(destination);
        ioat.stop().unwrap();
    }
}

#[test]
fn an_edu_computes_and_transfers_by_polling_and_by_interrupt() {
    let _alone = alone();
    let served = serve(StubKind::Edu, StubOptions::default());
    let mut edu = Edu::start(Session::open(&served.client, "test").unwrap()).unwrap();
    assert_eq!(edu.interrupt_kind(), Some(InterruptKind::Msi));
    edu.check_liveness().unwrap();
    let source: DmaRegion<ToDevice> = region(edu.domain(), 4096);
    let destination: DmaRegion<FromDevice> = region(edu.domain(), 4096);
    for (round, completion) in [Completion::Poll, Completion::Interrupt].into_iter().enumerate() {
        assert_eq!(edu.factorial(10, completion, LONG).unwrap(), 3_628_800);
        let text = format!("round {round} through the socket");
        source.write(0, text.as_bytes()).unwrap();
        let (from, to) =
            (source.segment(0, text.len()).unwrap(), destination.segment(64, text.len()).unwrap());
        edu.transfer(TransferDirection::ToBuffer, from, 0, completion, LONG).unwrap();
        edu.transfer(TransferDirection::FromBuffer, to, 0, completion, LONG).unwrap();
        let mut bytes = vec![0; text.len()];
        destination.read(64, &mut bytes).unwrap();
        assert_eq!(bytes, text.as_bytes());
    }
    assert_eq!(served.node.iommu().faults(), []);
}

#[test]
fn memory_without_a_file_is_mapped_and_comes_back_as_ones_own() {
    let _alone = alone();
    let served = serve(StubKind::Ioat, StubOptions::default());
    let function = served.client.open().unwrap();
    let domain = Domain::new(function.dma(), vdk_iommu::AddressWidth::new(64).unwrap()).unwrap();
    assert!(domain.prefers_files());
    let memory = SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Transparent).unwrap();
    let region: DmaRegion<ToDevice> = domain.map(memory).unwrap();
    let memory = region.unmap().map_err(|(error, _)| error).unwrap();
    assert!(memory.try_into_pinned().is_ok(), "nobody else was shown it");
}

#[test]
fn an_ioat_copies_memory_without_a_file_by_asking_for_it() {
    const BYTES: usize = 300_000;
    let _alone = alone();
    let served = serve(StubKind::Ioat, StubOptions::default());
    let ioat = ioat(&served);
    let own = || SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Transparent).unwrap();
    assert!(own().file().is_none());
    let source: DmaRegion<ToDevice> = ioat.domain().map(own()).unwrap();
    let middle: DmaRegion<Bidirectional> = region(ioat.domain(), 1 << 20);
    let destination: DmaRegion<FromDevice> = ioat.domain().map(own()).unwrap();
    let input: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    source.write(7, &input).unwrap();
    let mut channel = ioat.channel::<()>(0, ChannelOptions::default()).unwrap();
    // By messages into a file, from there by messages, and from the one to the other.
    let from = [
        (source.segment(7, BYTES).unwrap().iova, middle.segment(1, BYTES).unwrap().iova),
        (middle.segment(1, BYTES).unwrap().iova, destination.segment(3, BYTES).unwrap().iova),
        (source.segment(7, BYTES).unwrap().iova, destination.segment(1 << 20, BYTES).unwrap().iova),
    ];
    for (source, destination) in from {
        let length = u32::try_from(BYTES).unwrap();
        channel.copy(&[CopySegment { source, destination, length }], ()).unwrap();
        channel.commit().unwrap();
        while channel.outstanding() > 0 {
            channel.wait(CompletionMode::Adaptive, LONG).unwrap();
            channel.poll(usize::MAX, |end| assert!(end.result.is_ok())).unwrap();
        }
    }
    for offset in [3, 1 << 20] {
        let mut output = vec![0; BYTES];
        destination.read(offset, &mut output).unwrap();
        assert!(output == input, "{offset:#x}");
    }
    assert_eq!(served.node.iommu().faults(), []);
    drop(channel);
    ioat.stop().unwrap();
    let memory = source.unmap().map_err(|(error, _)| error).unwrap();
    assert!(memory.try_into_pinned().is_ok(), "nobody else was shown it");
}

#[test]
fn what_happens_to_the_device_reaches_the_driver() {
    let _alone = alone();
    let served = serve(StubKind::Ioat, StubOptions::default());
    let function = served.client.open().unwrap();
    served.node.report_error();
    assert!(function.events().event().wait(LONG).unwrap());
    assert_eq!(function.events().next(), Some(DeviceEvent::Error));
    served.node.request_release();
    assert!(function.events().event().wait(LONG).unwrap());
    assert_eq!(function.events().next(), Some(DeviceEvent::ReleaseRequested));
    served.node.remove();
    assert!(function.events().event().wait(LONG).unwrap());
    assert_eq!(function.events().next(), Some(DeviceEvent::Removed));
    assert!(function.config().read32(0).is_err());
    drop(function);
    assert!(matches!(served.client.open(), Err(vdk_hal::function::OpenError::Gone { .. })));
}
