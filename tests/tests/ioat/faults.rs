//! What the engine does wrong, and what the driver makes of it.

use std::collections::BTreeSet;

use vdk_descriptors::ioat::ChannelErrors;
use vdk_descriptors::sg::{CopySegment, SgLimits, SgList};
use vdk_driver::ioat::{
    ChannelError, Completion, CompletionMode, OpenChannelError, OperationError, RejectReason, StreamError,
    WaitError,
};
use vdk_firmware_stubs::{FaultPlan, StubOptions};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::reset::ResetKind;
use vdk_iommu::soft::FaultReason;
use vdk_iommu::{Bidirectional, DmaRegion, FromDevice, ToDevice};

use crate::harness::*;

#[test]
fn a_dropped_completion_is_found_out_at_the_deadline() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    for mode in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
        node.set_fault_plan(&plan("drop-completion@1"));
        channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 7).unwrap();
        let error = channel.wait(mode, SHORT).unwrap_err();
        assert!(matches!(error, WaitError::TimedOut(_)), "{error}");
        // The data was moved, and CHANSTS knows.
        assert_eq!(recover(&mut channel), [(7, Ok(()))]);
        assert_usable(&mut channel, &memory, 1);
    }
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn delayed_and_doubled_completions_end_nothing_twice() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    node.set_fault_plan(&plan(
        "duplicate-completion@2, delay-completion@5:3ms, duplicate-completion@9, duplicate-completion@30%",
    ));
    for owner in 0..300 {
        channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], owner).unwrap();
        let ends = drain(&mut channel, CompletionMode::Adaptive);
        assert_eq!(ends.iter().map(|end| (end.owner, end.result)).collect::<Vec<_>>(), [(owner, Ok(()))]);
    }
    assert_eq!(channel.failure(), None);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn a_corrupt_completion_takes_the_channel_out_of_service_until_it_is_recovered() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    for round in 0..20 {
        node.set_fault_plan(&plan("corrupt-completion@3"));
        for owner in 0..3 {
            channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], owner).unwrap();
        }
        channel.commit().unwrap();
        let mut ends = Vec::new();
        // A wrong address in the ring can look late; then only the deadline tells.
        let failed = loop {
            match channel.wait(CompletionMode::Poll, SHORT) {
                Ok(()) => {}
                Err(error) => break error,
            }
            if let Err(error) = channel.poll(9, |end| ends.push((end.owner, end.result))) {
                break error.into();
            }
        };
        assert!(
            matches!(failed, WaitError::Channel(ChannelError::BadCompletion { .. }) | WaitError::TimedOut(_)),
            "{failed}"
        );
        if matches!(failed, WaitError::Channel(_)) {
            let rejected = channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 9).unwrap_err();
            assert!(matches!(rejected.reason, RejectReason::Channel(ChannelError::BadCompletion { .. })));
        }
        ends.extend(recover(&mut channel));
        assert_eq!(ends, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        assert_usable(&mut channel, &memory, round);
    }
}

#[test]
fn every_error_of_the_engine_is_named_and_recovered_from() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    for (errors, name) in ChannelErrors::NAMES {
        node.set_fault_plan(&plan(&format!("halt@3:{:#x}", errors.0)));
        for owner in 0..5 {
            channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], owner).unwrap();
        }
        channel.commit().unwrap();
        let mut ends = Vec::new();
        let failure = loop {
            match channel.poll(9, |end| ends.push((end.owner, end.result))) {
                Ok(_) => {}
                Err(failure) => break failure,
            }
            if let Err(WaitError::Channel(failure)) = channel.wait(CompletionMode::Interrupt, LONG) {
                break failure;
            }
        };
        assert_eq!(failure, ChannelError::Halted { channel: 0, errors: *errors });
        assert!(failure.to_string().contains(name), "{failure}");
        ends.extend(recover(&mut channel));
        let hardware = Err(OperationError::Hardware { errors: *errors });
        let aborted = Err(OperationError::Aborted);
        assert_eq!(ends, [(0, Ok(())), (1, Ok(())), (2, hardware), (3, aborted), (4, aborted)]);
        assert_usable(&mut channel, &memory, u64::from(errors.0));
    }
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn a_device_that_vanishes_in_the_middle_ends_everything_as_gone() {
    for fault in ["vanish@5", "all-ones@5"] {
        let node = stub(StubOptions::default());
        let ioat = start(&node);
        let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
        let mut channel = ioat.channel::<u32>(0, options(63)).unwrap();
        node.set_fault_plan(&plan(fault));
        for owner in 0..50 {
            channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], owner).unwrap();
        }
        let mut ends = Vec::new();
        let failure = loop {
            if let Err(WaitError::Channel(failure)) = channel.wait(CompletionMode::Adaptive, LONG) {
                break failure;
            }
            if let Err(failure) = channel.poll(99, |end| ends.push((end.owner, end.result))) {
                break failure;
            }
        };
        let gone = ChannelError::Gone { channel: 0 };
        assert_eq!(failure, gone, "{fault}");
        assert_eq!(channel.recover(|end| ends.push((end.owner, end.result))), Err(gone.clone()));
        assert_eq!(ends.iter().map(|(owner, _)| *owner).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
        let first = ends.iter().position(|(_, result)| *result == Err(OperationError::Gone)).unwrap();
        assert!(ends[..first].iter().all(|(_, result)| result.is_ok()), "{ends:?}");
        assert!(ends[first..].iter().all(|(_, result)| *result == Err(OperationError::Gone)), "{ends:?}");
        let rejected = channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 0).unwrap_err();
        assert_eq!(rejected.reason, RejectReason::Channel(gone));
        assert_eq!(channel.close().unwrap(), []);
    }
}

#[test]
fn an_engine_that_obeys_nothing_is_silenced_and_a_new_start_brings_it_back() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    node.set_fault_plan(&plan("stop@2"));
    for owner in 0..3 {
        channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], owner).unwrap();
    }
    assert!(matches!(channel.wait(CompletionMode::Poll, SHORT), Ok(()) | Err(WaitError::TimedOut(_))));
    let error = channel.recover(|_| panic!("given back while the engine may run")).unwrap_err();
    assert!(matches!(error, ChannelError::NotStopped { channel: 0, .. }), "{error}");
    assert_eq!(channel.outstanding(), 3);
    let ends = channel.close().unwrap();
    let aborted = Err(OperationError::Aborted);
    assert_eq!(
        ends.iter().map(|end| (end.owner, end.result)).collect::<Vec<_>>(),
        [(0, Ok(())), (1, aborted), (2, aborted)]
    );
    node.set_fault_plan(&FaultPlan::default());
    let stuck = ioat.channel::<u32>(0, options(15)).unwrap_err();
    assert!(matches!(stuck, OpenChannelError::Start(_)), "{stuck}");
    assert_eq!(ioat.reset().unwrap(), ResetKind::FunctionLevel);
    assert_usable(&mut ioat.channel(0, options(15)).unwrap(), &memory, 6);
    // The same by a new start.
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    node.set_fault_plan(&plan("stop@1"));
    channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 0).unwrap();
    assert!(matches!(channel.wait(CompletionMode::Poll, SHORT), Err(WaitError::TimedOut(_))));
    assert_eq!(channel.close().unwrap().len(), 1);
    drop((ioat, memory));
    node.set_fault_plan(&FaultPlan::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    assert_usable(&mut ioat.channel(0, options(15)).unwrap(), &memory, 5);
}

#[test]
fn random_faults_lose_nothing_and_end_nothing_twice() {
    let node = stub(StubOptions { seed: 11, ..StubOptions::default() });
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 20);
    let mut channel = ioat.channel::<u32>(0, options(31)).unwrap();
    let mut numbers = Numbers(5);
    let mut ended = BTreeSet::new();
    let mut posted = 0u32;
    let mut recoveries = 0;
    for round in 0..60 {
        node.set_fault_plan(&plan(
            "drop-completion@0.5%, duplicate-completion@1%, corrupt-completion@0.5%, halt@0.5%:0x100, \
             delay-completion@0.5%:100us",
        ));
        let batch = 1 + numbers.below(31);
        let first = posted;
        for slot in 0..batch {
            let value = (u64::from(posted) << 8 | 1).to_le_bytes();
            memory.write(slot * 8, &value).unwrap();
            memory.write(65_536 + slot * 8, &[0; 8]).unwrap();
            channel.copy(&[segment((&memory, slot * 8), (&memory, 65_536 + slot * 8), 8)], posted).unwrap();
            posted += 1;
        }
        let mut check = |end: Completion<u32>| {
            assert!(end.owner >= first && ended.insert(end.owner), "{end:?} in round {round}");
            if end.result.is_ok() {
                let mut bytes = [0; 8];
                let slot = usize::try_from(end.owner - first).unwrap();
                memory.read(65_536 + slot * 8, &mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), u64::from(end.owner) << 8 | 1);
            }
        };
        while channel.outstanding() > 0 {
            let waited = channel.wait(CompletionMode::Adaptive, SHORT);
            let polled = waited.and_then(|()| Ok(channel.poll(99, &mut check)?));
            if polled.is_err() {
                recoveries += 1;
                node.set_fault_plan(&FaultPlan::default());
                channel.recover(&mut check).unwrap();
            }
        }
        assert_eq!(ended.len(), usize::try_from(posted).unwrap());
    }
    assert!(recoveries > 0, "the seed brings no fault");
    assert_eq!(channel.statistics().recoveries, recoveries);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn unmapped_memory_and_the_wrong_direction_are_stopped_by_the_iommu() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let read_only: DmaRegion<ToDevice> = region(&ioat, 1 << 12);
    let write_only: DmaRegion<FromDevice> = region(&ioat, 1 << 12);
    read_only.write(0, b"stays as it is").unwrap();
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    let nowhere =
        CopySegment { source: Iova::new(0x6666_0000_0000), ..segment((&memory, 0), (&memory, 4096), 64) };
    let cases = [
        (nowhere, FaultReason::NotMapped),
        (segment((&memory, 0), (&read_only, 0), 64), FaultReason::NotWritable),
        (segment((&write_only, 0), (&memory, 0), 64), FaultReason::NotReadable),
    ];
    for (wrong, reason) in cases {
        node.iommu().clear_faults();
        channel.copy(&[wrong], 1).unwrap();
        channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 2).unwrap();
        let error = loop {
            if let Err(WaitError::Channel(error)) = channel.wait(CompletionMode::Interrupt, LONG) {
                break error;
            }
            if let Err(error) = channel.poll(9, |end| panic!("{end:?}")) {
                break error;
            }
        };
        let ChannelError::Halted { errors, .. } = error else { panic!("{error}") };
        assert!(!errors.is_empty());
        let hardware = Err(OperationError::Hardware { errors });
        assert_eq!(recover(&mut channel), [(1, hardware), (2, Err(OperationError::Aborted))]);
        let faults = node.iommu().faults();
        assert_eq!(faults.iter().map(|fault| fault.reason).collect::<Vec<_>>(), [reason]);
        assert_usable(&mut channel, &memory, 3);
    }
    let mut bytes = [0; 14];
    read_only.unmap().unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"stays as it is");
}

#[test]
fn a_streamed_copy_that_is_cut_off_gives_its_owner_back_once_with_an_error() {
    let node = stub(StubOptions::default());
    let ioat = start(&node);
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 20);
    let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
    let mut lists = [SgLimits::NONE; 2].map(|limits| SgList::new(&limits).unwrap());
    for index in 0..1000 {
        let at = |offset: usize| memory.segment(offset + index * 16, 8).unwrap().iova;
        lists[0].push(at(0), ByteLength::new(8)).unwrap();
        lists[1].push(at(500_000), ByteLength::new(8)).unwrap();
    }
    for (fault, within) in [("halt@300:0x200", LONG), ("stop@300", SHORT), ("drop-completion@300", SHORT)] {
        let mut channel_ends = Vec::new();
        node.set_fault_plan(&plan(fault));
        let streamed =
            channel.copy_sg_streamed(&lists[0], &lists[1], 1, CompletionMode::Adaptive, within, |end| {
                channel_ends.push(end.owner)
            });
        if fault.starts_with("drop") && streamed.is_ok() {
            // A later completion word made up for the lost one.
            assert_eq!(drain(&mut channel, CompletionMode::Adaptive).len(), 1);
            continue;
        }
        let Err(StreamError::Interrupted { .. }) = streamed else { panic!("{fault}: {streamed:?}") };
        assert_eq!(channel_ends, [0u32; 0]);
        if fault.starts_with("stop") {
            let ends = channel.close().unwrap();
            assert_eq!(ends.iter().map(|end| end.owner).collect::<Vec<_>>(), [1]);
            assert!(ends[0].result.is_err());
            return;
        }
        let ends = recover(&mut channel);
        assert_eq!(ends.iter().map(|(owner, _)| *owner).collect::<Vec<_>>(), [1]);
        let error = ends[0].1.unwrap_err();
        assert!(
            matches!(error, OperationError::Hardware { errors } if errors.0 == 0x200),
            "{fault}: {error}"
        );
    }
}
