//! Starts, stops, channels side by side, and the kit.

use core::time::Duration;
use std::sync::Arc;

use anyhow::Context as _;
use proptest::prelude::*;
use vdk_driver::ioat::{
    Channel, ChannelError, CompletionMode, Ioat, OperationError, ResetDeviceError, WaitError,
};
use vdk_driver::kit::{Registry, Session};
use vdk_firmware_stubs::StubOptions;
use vdk_hal::function::PciNode;
use vdk_hal::reset::ResetKind;
use vdk_iommu::{Bidirectional, DmaRegion};
use vdk_tests::tap::{Resets, Tap};

use crate::harness::*;

#[test]
fn a_hundred_starts_and_stops_leave_nothing_behind() {
    let node = stub(StubOptions::default());
    let mut numbers = Numbers(3);
    for cycle in 0..100u32 {
        let ioat = start(&node);
        let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
        let depth = 1 + u32::try_from(numbers.below(300)).unwrap();
        let mut channel = ioat.channel::<u32>(u8::try_from(cycle % 2).unwrap(), options(depth)).unwrap();
        let operations = numbers.below(depth as usize + 1);
        for owner in 0..operations {
            let owner = u32::try_from(owner).unwrap();
            channel.copy(&[segment((&memory, 0), (&memory, 4096), 100)], owner).unwrap();
        }
        // Sometimes finished, sometimes stopped in the middle.
        if cycle % 3 == 0 {
            channel.commit().unwrap();
            let ends = channel.close().unwrap();
            assert_eq!(ends.len(), operations);
        } else {
            assert_eq!(drain(&mut channel, CompletionMode::Adaptive).len(), operations);
            drop(channel);
        }
        assert_eq!(ioat.domain().statistics().mappings, 1, "the buffer is left");
        ioat.stop().unwrap();
        drop(memory);
        assert_eq!(ioat.domain().statistics().mappings, 0);
    }
    assert_eq!(node.iommu().faults(), []);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn channels_of_one_device_work_at_the_same_time() {
    let node = stub(StubOptions { channels: 4, ..StubOptions::default() });
    let ioat = start(&node);
    let memory: Arc<DmaRegion<Bidirectional>> = Arc::new(region(&ioat, 1 << 20));
    assert_eq!(ioat.facts().channels, 4);
    std::thread::scope(|scope| {
        for number in 0..4u8 {
            let mut channel = ioat.channel::<usize>(number, options(31)).unwrap();
            let memory = Arc::clone(&memory);
            scope.spawn(move || {
                let base = usize::from(number) << 18;
                let mut ended = 0;
                for round in 0..100 {
                    let value = [number + 1; 64].map(|byte| byte.wrapping_mul(round));
                    memory.write(base, &value).unwrap();
                    for slot in 0..16usize {
                        let to = base + 4096 + slot * 64;
                        channel.copy(&[segment((&memory, base), (&memory, to), 64)], slot).unwrap();
                    }
                    let mode =
                        if number % 2 == 0 { CompletionMode::Adaptive } else { CompletionMode::Interrupt };
                    ended += drain(&mut channel, mode).len();
                    let mut bytes = [0; 64];
                    memory.read(base + 4096 + 15 * 64, &mut bytes).unwrap();
                    assert_eq!(bytes, value);
                }
                assert_eq!(ended, 1600);
            });
        }
    });
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn doorbells_and_vectors_of_every_kind_serve() {
    for mapped_doorbells in [true, false] {
        let node = stub(StubOptions { mapped_doorbells, spin: Duration::ZERO, ..StubOptions::default() });
        let ioat = start(&node);
        let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
        let mut channel = ioat.channel::<u32>(0, options(15)).unwrap();
        for value in 0..50 {
            assert_usable(&mut channel, &memory, value);
        }
    }
}

#[test]
fn the_kit_matches_starts_and_stops_the_driver() {
    let registry = Registry::new().unwrap();
    registry.register::<Ioat>().unwrap();
    let node = stub(StubOptions::default());
    let offered: Arc<dyn PciNode> = node.clone();
    let running = registry.start::<Ioat>(&offered).unwrap();
    assert_eq!(running.personality(), "ioat");
    let channel = running.with(|ioat| ioat.channel::<u32>(0, options(15)).map_err(|error| error.to_string()));
    let mut channel = channel.unwrap().unwrap();
    let memory: DmaRegion<Bidirectional> = running.with(|ioat| region(ioat, 1 << 16)).unwrap();
    assert_usable(&mut channel, &memory, 6);
    channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 1).unwrap();
    let state = running.stop();
    assert!(state.is_final(), "{state}");
    let mut ends = Vec::new();
    assert!(channel.recover(|end| ends.push((end.owner, end.result))).is_err());
    assert_eq!(ends, [(1, Err(OperationError::Gone))]);
    assert_eq!(node.driver_faults(), []);
}

#[test]
fn bus_mastering_that_goes_off_stops_the_engine_and_not_the_driver() -> anyhow::Result<()> {
    let node = stub(StubOptions::default());
    let tap = Tap::new(node.clone(), Resets::AsTheyAre);
    let opened: Arc<dyn PciNode> = tap.clone();
    let ioat = Ioat::start(Session::open(&opened, "test")?)?;
    let function = tap.function().context("the driver opened it")?;
    let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
    let mut channel = ioat.channel::<u32>(0, options(15))?;
    function.set_bus_master(false)?;
    channel.copy(&[segment((&memory, 0), (&memory, 4096), 64)], 1)?;
    // It cannot write a completion word; it may or may not halt.
    let error = loop {
        match channel.wait(CompletionMode::Poll, SHORT) {
            Ok(()) => drop(channel.poll(9, |end| panic!("{end:?}"))),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, WaitError::TimedOut(_) | WaitError::Channel(ChannelError::Halted { .. })),
        "{error}"
    );
    let mut ends = Vec::new();
    let error = channel.recover(|end| ends.push((end.owner, end.result))).unwrap_err();
    assert!(
        matches!(error, ChannelError::TimedOut { .. } | ChannelError::Halted { .. }),
        "it cannot start again: {error}"
    );
    assert_eq!(ends.len(), 1);
    assert!(ends[0].1.is_err());
    function.set_bus_master(true)?;
    assert_eq!(recover(&mut channel), []);
    assert_usable(&mut channel, &memory, 4);
    Ok(())
}

#[test]
fn a_reset_that_fails_leaves_the_engine_on_the_bus() {
    // A hot reset would hit its neighbours, so it is as good as none.
    for (kinds, asked) in [
        (vec![], vec![]),
        (vec![ResetKind::Hot], vec![]),
        (vec![ResetKind::FunctionLevel], vec![ResetKind::FunctionLevel]),
    ] {
        let tap = Tap::new(stub(StubOptions::default()), Resets::Fail(kinds.clone()));
        let opened: Arc<dyn PciNode> = tap.clone();
        let ioat = Ioat::start(Session::open(&opened, "test").unwrap()).unwrap();
        let error = ioat.reset().unwrap_err();
        assert_eq!(matches!(error, ResetDeviceError::NoKind), asked.is_empty(), "{kinds:?}: {error}");
        assert_eq!(tap.asked(), asked, "{kinds:?}");
        let memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
        let mut channel = ioat.channel(0, options(15)).unwrap();
        assert_usable(&mut channel, &memory, 8);
    }
}

/// What a step of the storm does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open(u8, u32),
    Post(u8, u8),
    Commit(u8),
    Poll(u8),
    Recover(u8),
    Close(u8),
    Drop(u8),
    Reset,
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let channel = 0..2u8;
    prop_oneof![
        3 => (channel.clone(), 1..40u32).prop_map(|(channel, depth)| Step::Open(channel, depth)),
        6 => (channel.clone(), 1..5u8).prop_map(|(channel, segments)| Step::Post(channel, segments)),
        4 => channel.clone().prop_map(Step::Commit),
        4 => channel.clone().prop_map(Step::Poll),
        2 => channel.clone().prop_map(Step::Recover),
        1 => channel.clone().prop_map(Step::Close),
        1 => channel.prop_map(Step::Drop),
        2 => Just(Step::Reset),
        1 => Just(Step::Restart),
    ]
}

/// Owners count themselves, so that each end shows.
type Owner = Arc<()>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn resets_are_legal_in_every_state(steps in prop::collection::vec(any_step(), 1..60)) {
        let node = stub(StubOptions::default());
        let mut ioat = start(&node);
        let mut memory: DmaRegion<Bidirectional> = region(&ioat, 1 << 16);
        let mut channels: [Option<Channel<Owner>>; 2] = [None, None];
        let owner: Owner = Arc::new(());
        for step in steps {
            match step {
                Step::Open(number, depth) => {
                    let opened = ioat.channel(number, options(depth));
                    let place = &mut channels[usize::from(number)];
                    prop_assert_eq!(opened.is_ok(), place.is_none(), "{:?}", opened);
                    if let Ok(channel) = opened {
                        *place = Some(channel);
                    }
                }
                Step::Reset => {
                    let open = channels.iter().flatten().count();
                    match ioat.reset() {
                        Ok(kind) => prop_assert_eq!((open, kind), (0, ResetKind::FunctionLevel)),
                        Err(error) => {
                            let expected = u32::try_from(open).unwrap();
                            prop_assert!(
                                matches!(error, ResetDeviceError::ChannelsOpen { count } if count == expected),
                                "{}", error
                            );
                        }
                    }
                }
                Step::Restart => {
                    ioat.stop().unwrap();
                    channels = [None, None];
                    drop((ioat, memory));
                    ioat = start(&node);
                    memory = region(&ioat, 1 << 16);
                }
                Step::Post(number, _) | Step::Commit(number) | Step::Poll(number) | Step::Recover(number)
                | Step::Close(number) | Step::Drop(number) => {
                    let place = &mut channels[usize::from(number)];
                    let Some(channel) = place else { continue };
                    match step {
                        Step::Post(_, count) => {
                            let segments = vec![segment((&memory, 0), (&memory, 4096), 32); usize::from(count)];
                            let fits = usize::from(count) <= channel.free();
                            prop_assert_eq!(channel.copy(&segments, Arc::clone(&owner)).is_ok(), fits);
                        }
                        Step::Commit(_) => channel.commit().unwrap(),
                        Step::Poll(_) => drop(channel.poll(usize::MAX, drop).unwrap()),
                        Step::Recover(_) => drop(channel.recover(drop).unwrap()),
                        Step::Close(_) => drop(place.take().unwrap().close().unwrap()),
                        _ => drop(place.take()),
                    }
                }
            }
            let outstanding: usize = channels.iter().flatten().map(Channel::outstanding).sum();
            prop_assert_eq!(Arc::strong_count(&owner), outstanding + 1, "after {:?}", step);
        }
        drop(channels);
        prop_assert_eq!(Arc::strong_count(&owner), 1);
        prop_assert_eq!(node.driver_faults(), []);
        prop_assert_eq!(node.iommu().faults(), []);
    }
}
