//! The edu driver on the emulated device.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vdk_descriptors::edu::{DMA_BUFFER_LENGTH, Identification};
use vdk_descriptors::sg::{CopySegment, SgEntry};
use vdk_driver::edu::{Completion, Edu, EduError, LONGEST_TRANSFER, TransferDirection};
use vdk_driver::ioat::{ChannelOptions, Ioat};
use vdk_driver::kit::{Registry, Session};
use vdk_driver::nvme::{Controller, ControllerOptions, QueueOptions};
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::bar::Bar;
use vdk_hal::function::PciNode;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::soft::{FaultReason, SoftIommu, SoftIommuOptions};
use vdk_iommu::{
    AddressWidth, Bidirectional, Direction, DmaRegion, DmaSegment, Domain, FromDevice, ToDevice,
};
use vdk_tests::tap::Tap;

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(100);
const BOTH: [Completion; 2] = [Completion::Poll, Completion::Interrupt];

fn stub(options: StubOptions) -> Arc<StubNode> {
    StubNode::new(StubKind::Edu, options).unwrap()
}

fn start(node: &Arc<StubNode>) -> Edu {
    let node: Arc<dyn PciNode> = node.clone();
    Edu::start(Session::open(&node, "test").unwrap()).unwrap()
}

fn region<D: Direction>(edu: &Edu) -> DmaRegion<D> {
    let memory = SharedMemory::allocate(ByteLength::new(1 << 16), Pages::Base).unwrap();
    edu.domain().map(memory).unwrap()
}

#[test]
fn the_device_is_identified_and_answers() {
    let node = stub(StubOptions::default());
    let edu = start(&node);
    assert_eq!(edu.identification(), Identification::VERSION_1_0);
    edu.check_liveness().unwrap();
    assert_eq!(edu.domain().width().bits(), 28);
    drop(edu);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn another_device_is_refused_and_left_off() {
    let node: Arc<dyn PciNode> = StubNode::new(StubKind::Ioat, StubOptions::default()).unwrap();
    let session = Session::open(&node, "test").unwrap();
    let error = Edu::start(session).unwrap_err();
    assert!(matches!(error, EduError::Identification { .. } | EduError::Register(_)), "{error}");
    Session::open(&node, "another").unwrap();
}

#[test]
fn factorials_are_computed_modulo_2_to_the_32() {
    let node = stub(StubOptions::default());
    let mut edu = start(&node);
    for completion in BOTH {
        let mut expected = 1u32;
        for n in 0..40 {
            expected = expected.wrapping_mul(n.max(1));
            assert_eq!(edu.factorial(n, completion, LONG).unwrap(), expected, "{n} {completion:?}");
        }
    }
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn interrupts_are_raised_waited_for_and_acknowledged() {
    let node = stub(StubOptions::default());
    let mut edu = start(&node);
    assert_eq!(edu.interrupt_kind(), Some(InterruptKind::Msi));
    assert!(matches!(edu.wait_interrupt(SHORT), Err(EduError::TimedOut(_))));
    for causes in [1, 0x100, 0xdead_0000, 0x7fff_ffff] {
        edu.raise_interrupt(causes).unwrap();
        assert_eq!(edu.wait_interrupt(LONG).unwrap(), causes);
    }
    edu.raise_interrupt(2).unwrap();
    edu.raise_interrupt(4).unwrap();
    let mut seen = 0;
    while seen != 6 {
        seen |= edu.wait_interrupt(LONG).unwrap();
    }
    assert!(matches!(edu.wait_interrupt(SHORT), Err(EduError::TimedOut(_))));
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn transfers_of_every_length_and_place_move_the_right_bytes() {
    let node = stub(StubOptions::default());
    let mut edu = start(&node);
    let input: DmaRegion<ToDevice> = region(&edu);
    let output: DmaRegion<FromDevice> = region(&edu);
    let bytes: Vec<u8> = (0..9000u32).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect();
    input.write(0, &bytes).unwrap();
    let longest = usize::try_from(LONGEST_TRANSFER.as_u64()).unwrap();
    assert_eq!(longest, 4095);
    for (index, (from, length, at)) in
        [(0, 1, 0), (1, 4095, 0), (4090, 13, 4082), (3, 2048, 2047), (4095, 1, 4094)].into_iter().enumerate()
    {
        let completion = BOTH[index % 2];
        edu.copy_to_buffer(&input, from, length, at, completion, LONG).unwrap();
        edu.copy_from_buffer(&output, 5, length, at, completion, LONG).unwrap();
        let mut moved = vec![0; length];
        output.read(5, &mut moved).unwrap();
        assert!(moved == bytes[from..from + length], "{length} bytes at {at:#x}");
    }
    assert_eq!(node.iommu().faults(), []);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn what_does_not_fit_buffer_or_width_is_refused_before_the_device_sees_it() {
    let node = stub(StubOptions::default());
    let mut edu = start(&node);
    let input: DmaRegion<ToDevice> = region(&edu);
    for (length, at) in [(4096, 0), (1, 4095), (4095, 1), (100, u64::MAX), (1, 1 << 40)] {
        let refused = edu.copy_to_buffer(&input, 0, length, at, Completion::Poll, LONG);
        assert!(matches!(refused, Err(EduError::OutsideBuffer { .. })), "{length} at {at:#x}");
    }
    assert!(matches!(
        edu.copy_to_buffer(&input, 65_530, 7, 0, Completion::Poll, LONG),
        Err(EduError::OutOfBounds(_))
    ));
    let wide = |iova, length| DmaSegment { iova: Iova::new(iova), length: ByteLength::new(length) };
    for memory in [wide(0x1000_0000, 1), wide(0x0fff_ffff, 2), wide(u64::MAX - 1, 4)] {
        let refused = edu.transfer(TransferDirection::FromBuffer, memory, 0, Completion::Poll, LONG);
        assert!(refused.is_err());
    }
    let empty = edu.transfer(TransferDirection::ToBuffer, wide(0x1000, 0), 0, Completion::Poll, LONG);
    let text = empty.unwrap_err().to_string();
    assert!(text.starts_with("0 bytes at offset 0x0 of the device's buffer is not possible"), "{text}");
    assert_eq!(node.statistics().descriptors, 0);
    assert_eq!(DMA_BUFFER_LENGTH.as_u64(), 4096);
    // Regions of the driver's own domain are always in reach.
    let regions: Vec<DmaRegion<ToDevice>> = (0..50).map(|_| region(&edu)).collect();
    assert!(regions.iter().all(|region| region.range().last() <= Iova::new(0x0fff_ffff)));
}

#[test]
fn unmapped_memory_is_stopped_by_the_iommu_and_the_device_goes_on() {
    let node = stub(StubOptions::default());
    let mut edu = start(&node);
    let input: DmaRegion<ToDevice> = region(&edu);
    let nowhere = DmaSegment { iova: Iova::new(0x0800_0000), length: ByteLength::new(64) };
    edu.transfer(TransferDirection::ToBuffer, nowhere, 0, Completion::Poll, LONG).unwrap();
    let read_only = input.segment(0, 64).unwrap();
    edu.transfer(TransferDirection::FromBuffer, read_only, 0, Completion::Interrupt, LONG).unwrap();
    let reasons: Vec<_> = node.iommu().faults().iter().map(|fault| fault.reason).collect();
    assert_eq!(reasons, [FaultReason::NotMapped, FaultReason::NotWritable]);
    edu.copy_to_buffer(&input, 0, 64, 0, Completion::Poll, LONG).unwrap();
    assert_eq!(node.iommu().fault_count(), 2);
}

#[test]
fn a_transfer_that_takes_too_long_is_a_time_out_and_the_device_stays_busy() {
    let transfer_time = Duration::from_secs(2);
    let node = stub(StubOptions { transfer_time, ..StubOptions::default() });
    let mut edu = start(&node);
    let input: DmaRegion<ToDevice> = region(&edu);
    for completion in BOTH {
        let error = edu.copy_to_buffer(&input, 0, 8, 0, completion, Duration::from_millis(1)).unwrap_err();
        assert!(matches!(error, EduError::TimedOut(_)), "{error}");
        let busy = edu.copy_to_buffer(&input, 0, 8, 0, completion, LONG).unwrap_err();
        assert_eq!(busy.to_string(), "the device is still busy with a transfer: wait, or stop it");
        let before = std::time::Instant::now();
        while matches!(
            edu.copy_to_buffer(&input, 0, 8, 0, completion, LONG),
            Err(EduError::Busy { what: "a transfer" })
        ) {
            assert!(before.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // Starting again waits for what was left running.
    let _ = edu.copy_to_buffer(&input, 0, 8, 0, Completion::Poll, Duration::from_millis(1));
    drop(edu);
    start(&node);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn lost_interrupts_and_lost_devices_are_told_apart() {
    let node = stub(StubOptions::default());
    let mut edu = start(&node);
    node.set_fault_plan(&"drop-completion@1".parse().unwrap());
    let input: DmaRegion<ToDevice> = region(&edu);
    let lost = edu.copy_to_buffer(&input, 0, 8, 0, Completion::Interrupt, SHORT).unwrap_err();
    assert!(matches!(lost, EduError::InterruptLost { .. } | EduError::TimedOut(_)), "{lost}");
    for fault in ["vanish@1", "all-ones@1"] {
        let node = stub(StubOptions::default());
        let mut edu = start(&node);
        let input: DmaRegion<ToDevice> = region(&edu);
        node.set_fault_plan(&fault.parse().unwrap());
        let gone = edu.copy_to_buffer(&input, 0, 8, 0, Completion::Interrupt, LONG).unwrap_err();
        assert!(gone.is_gone(), "{fault}: {gone}");
        let gone = edu.factorial(3, Completion::Poll, LONG).unwrap_err();
        assert!(gone.is_gone(), "{fault}: {gone}");
    }
    node.remove();
    assert!(edu.raise_interrupt(1).unwrap_err().is_gone());
    assert!(edu.wait_interrupt(LONG).unwrap_err().is_gone());
}

#[test]
fn a_hundred_starts_and_stops_leave_nothing_behind() {
    let node = stub(StubOptions::default());
    for cycle in 0..100u32 {
        let mut edu = start(&node);
        let input: DmaRegion<ToDevice> = region(&edu);
        edu.copy_to_buffer(&input, 0, 100, 0, BOTH[cycle as usize % 2], LONG).unwrap();
        assert_eq!(edu.factorial(5, BOTH[cycle as usize % 2], LONG).unwrap(), 120);
        // Left raised on purpose; the next start must not see it.
        edu.raise_interrupt(0x40).unwrap();
        edu.stop();
        edu.stop();
    }
    assert_eq!(node.driver_faults(), []);
    assert_eq!(node.iommu().faults(), []);
}

#[test]
fn the_kit_matches_starts_and_stops_the_driver() {
    let registry = Registry::new().unwrap();
    registry.register::<Edu>().unwrap();
    let node: Arc<dyn PciNode> = stub(StubOptions::default());
    let running = registry.start::<Edu>(&node).unwrap();
    assert_eq!(running.personality(), "edu");
    let result = running.with(|edu| edu.factorial(6, Completion::Interrupt, LONG).map_err(|e| e.to_string()));
    assert_eq!(result.unwrap(), Ok(720));
    assert!(running.stop().is_final());
    assert!(running.with(|_| ()).is_err());
}

#[test]
fn drivers_of_every_kind_work_in_one_address_space() {
    let iommu = SoftIommu::new(SoftIommuOptions::default());
    let space = iommu.domain();
    let domain = Domain::new(space.clone(), AddressWidth::FULL).unwrap();
    let session = |kind| {
        let options = StubOptions {
            iommu: Some(Arc::clone(&iommu)),
            domain: Some(Arc::clone(&space)),
            ..StubOptions::default()
        };
        let node: Arc<dyn PciNode> = StubNode::new(kind, options).unwrap();
        Session::open(&node, "test").unwrap()
    };
    let ioat = Ioat::start_in(session(StubKind::Ioat), &domain).unwrap();
    let nvme = Controller::start_in(session(StubKind::Nvme), &domain, ControllerOptions::default()).unwrap();
    let mut edu = Edu::start_in(session(StubKind::Edu), &domain).unwrap();
    assert_eq!((edu.domain().width().bits(), ioat.domain().width().bits()), (28, 64));
    // All three reach what was mapped for the one with the fewest address bits.
    let memory: DmaRegion<Bidirectional> = region(&edu);
    let mut channel = ioat.channel::<()>(0, ChannelOptions::default()).unwrap();
    let mut pair = nvme.queue_pair::<()>(QueueOptions::default()).unwrap();
    let namespace = nvme.namespace(1).unwrap();
    let at = |offset| memory.segment(offset, 512).unwrap();
    let entry = |offset| SgEntry { iova: at(offset).iova, length: at(offset).length };
    memory.write(0, &[0x5a; 512]).unwrap();
    channel.copy(&[CopySegment { source: at(0).iova, destination: at(4096).iova, length: 512 }], ()).unwrap();
    channel.wait(Default::default(), LONG).unwrap();
    assert_eq!(channel.poll(9, |end| end.result.unwrap()).unwrap(), 1);
    pair.write(&namespace, 0, &[entry(4096)], ()).unwrap();
    pair.wait(Default::default(), LONG).unwrap();
    assert_eq!(pair.poll(9, |end| assert_eq!(end.result, Ok(0))).unwrap(), 1);
    pair.read(&namespace, 0, &[entry(8192)], ()).unwrap();
    pair.wait(Default::default(), LONG).unwrap();
    assert_eq!(pair.poll(9, |end| assert_eq!(end.result, Ok(0))).unwrap(), 1);
    edu.copy_to_buffer(&memory, 8192, 512, 0, Completion::Poll, LONG).unwrap();
    edu.copy_from_buffer(&memory, 12288, 512, 0, Completion::Poll, LONG).unwrap();
    let mut found = [0; 512];
    memory.read(12288, &mut found).unwrap();
    assert_eq!(found, [0x5a; 512]);
    assert_eq!(iommu.faults(), []);
    // Each with an address space of its own over the same mapper would meet the others' mappings.
    assert!(
        Ioat::start(session(StubKind::Ioat)).unwrap().channel::<()>(0, ChannelOptions::default()).is_err()
    );
}

#[test]
fn a_driver_is_not_started_in_an_address_space_that_its_device_does_not_see() {
    let session = |kind| {
        let node: Arc<dyn PciNode> = StubNode::new(kind, StubOptions::default()).unwrap();
        Session::open(&node, "test").unwrap()
    };
    let elsewhere = SoftIommu::new(SoftIommuOptions::default()).domain();
    let domain = Domain::new(elsewhere, AddressWidth::FULL).unwrap();
    let says = |error: &dyn std::error::Error| {
        let text = error.to_string();
        assert!(text.contains("make the domain over `Session::dma`"), "{text}");
    };
    says(&Edu::start_in(session(StubKind::Edu), &domain).unwrap_err());
    says(&Ioat::start_in(session(StubKind::Ioat), &domain).unwrap_err());
    let options = ControllerOptions::default();
    says(&Controller::start_in(session(StubKind::Nvme), &domain, options).unwrap_err());
    let own = session(StubKind::Edu);
    let domain = Domain::new(own.dma().unwrap(), AddressWidth::FULL).unwrap();
    Edu::start_in(own, &domain).unwrap();
}

#[test]
fn an_interrupt_that_comes_just_after_a_sleep_is_not_lost() {
    const STATUS: u64 = 0x20;
    const INTERRUPT_RAISE: u64 = 0x60;
    let armed = Arc::new(AtomicBool::new(false));
    let raises = Arc::clone(&armed);
    let hook = move |bar: &Bar, offset: u64| {
        // ORDERING: Relaxed; one thread.
        if offset == STATUS && raises.swap(false, Ordering::Relaxed) {
            bar.write(INTERRUPT_RAISE, 0x10u32).unwrap();
            std::thread::sleep(SHORT);
        }
    };
    let node: Arc<dyn PciNode> = Tap::with_read_hook(stub(StubOptions::default()), Arc::new(hook));
    let mut edu = Edu::start(Session::open(&node, "test").unwrap()).unwrap();
    // ORDERING: Relaxed; one thread.
    armed.store(true, Ordering::Relaxed);
    // The status is read when a sleep was in vain.
    assert_eq!(edu.wait_interrupt(SHORT * 20).unwrap(), 0x10);
}
