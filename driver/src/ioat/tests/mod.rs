//! The channel against a fake that misbehaves as no emulated device would.

mod fake;

use core::time::Duration;
use std::sync::Arc;

use vdk_descriptors::ioat::{ChannelErrors, ChannelState};
use vdk_descriptors::sg::{CopySegment, SgEntry, SgLimits, SgList};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::bar::BarError;
use vdk_hal::function::PciFunction;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::reset::ResetKind;
use vdk_iommu::{Bidirectional, DmaRegion};

use super::*;
use fake::{FakeIoat, Faults};

const SHORT: Duration = Duration::from_millis(30);

struct Bench {
    fake: Arc<FakeIoat>,
    ioat: Ioat,
    memory: DmaRegion<Bidirectional>,
}

fn bench() -> Bench {
    bench_with(Some(InterruptKind::Msix))
}

fn bench_with(interrupt: Option<InterruptKind>) -> Bench {
    let fake = FakeIoat::new();
    fake.set_interrupt_kind(interrupt);
    let ioat = Ioat::start(fake.open()).unwrap();
    let shared = SharedMemory::allocate(ByteLength::new(64 << 10), Pages::Base).unwrap();
    let memory = ioat.domain().map::<Bidirectional>(shared).unwrap();
    Bench { fake, ioat, memory }
}

impl Bench {
    fn channel(&self, depth: u32) -> Channel<u32> {
        // A table no longer than the depth demands, so that it wraps.
        let options = ChannelOptions { depth, slots: Some(0), ..ChannelOptions::default() };
        self.ioat.channel(0, options).unwrap()
    }

    fn segment(&self, source: u64, destination: u64, length: u32) -> CopySegment {
        let at = |offset| Iova::new(self.memory.iova().as_u64() + offset);
        CopySegment { source: at(source), destination: at(destination), length }
    }

    fn copy(&self, channel: &mut Channel<u32>, owner: u32) {
        channel.copy(&[self.segment(0, 0x8000, 64)], owner).unwrap();
    }
}

type Ends = Vec<(u32, Result<(), OperationError>)>;

fn polled(channel: &mut Channel<u32>) -> (Ends, Option<ChannelError>) {
    let mut ends = Vec::new();
    let error = channel.poll(usize::MAX, |end| ends.push((end.owner, end.result))).err();
    (ends, error)
}

fn recovered(channel: &mut Channel<u32>) -> Ends {
    let mut ends = Vec::new();
    channel.recover(|end| ends.push((end.owner, end.result))).unwrap();
    ends
}

#[test]
fn copies_and_fills_move_bytes_and_give_owners_back_in_order() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.memory.memory().write(0, b"abcdefgh").unwrap();
    let first = channel.copy(&[bench.segment(0, 0x8000, 5), bench.segment(5, 0x8005, 3)], 1).unwrap();
    let entry = SgEntry { iova: bench.segment(0, 0x9000, 1).destination, length: ByteLength::new(11) };
    channel.fill(0x0807_0605_0403_0201, &[entry], 2).unwrap();
    assert_eq!(polled(&mut channel), (vec![], None), "nothing was committed");
    channel.commit().unwrap();
    assert!(!channel.has_ended(first));
    assert_eq!(polled(&mut channel), (vec![(1, Ok(())), (2, Ok(()))], None));
    assert!(channel.has_ended(first));
    let mut bytes = [0; 12];
    bench.memory.memory().read(0x8000, &mut bytes[..8]).unwrap();
    assert_eq!(&bytes[..8], b"abcdefgh");
    bench.memory.memory().read(0x9000, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 0]);
    let statistics = channel.statistics();
    assert_eq!((statistics.doorbells, statistics.descriptors, statistics.bytes), (2, 4, 19));
    assert_eq!((statistics.operations, statistics.failed), (2, 0));
}

#[test]
fn many_copies_with_an_owner_each_stop_at_what_is_not_valid() {
    let bench = bench();
    let mut channel = bench.channel(7);
    let cap = u32::try_from(bench.ioat.facts().transfer_cap.as_u64()).unwrap();
    let lengths = [8, cap + 8, 0, 8];
    let mut copies = lengths.into_iter().map(|length| bench.segment(0, 0x20_0000, length)).zip(0..);
    let rejected = channel.copy_each(&mut copies).unwrap_err();
    assert_eq!((rejected.owner, rejected.reason), (2, RejectReason::ZeroLength { index: 0 }));
    assert_eq!(channel.copy_each(&mut copies).unwrap(), 1);
    // One takes two descriptors, since it is above the cap.
    assert_eq!((channel.outstanding(), channel.free()), (3, 3));
    let more = (10..).map(|owner| (bench.segment(0, 0x20_0000, 8), owner));
    assert_eq!(channel.copy_each(&mut more.take(9)).unwrap(), 3);
    assert_eq!(channel.free(), 0);
    channel.recover(|_| ()).unwrap();
}

#[test]
fn a_budget_limits_how_many_come_back_at_once() {
    let bench = bench();
    let mut channel = bench.channel(7);
    for owner in 0..5 {
        bench.copy(&mut channel, owner);
    }
    channel.commit().unwrap();
    let mut owners = Vec::new();
    assert_eq!(channel.poll(2, |end| owners.push(end.owner)), Ok(2));
    channel.wait(CompletionMode::Poll, Duration::ZERO).unwrap();
    assert_eq!(channel.poll(0, |end| owners.push(end.owner)), Ok(0));
    assert_eq!(channel.poll(9, |end| owners.push(end.owner)), Ok(3));
    assert_eq!(owners, [0, 1, 2, 3, 4]);
    assert_eq!(channel.free(), 7);
}

#[test]
fn a_senseless_completion_word_takes_the_channel_out_of_service() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.copy(&mut channel, 1);
    channel.commit().unwrap();
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    bench.copy(&mut channel, 2);
    channel.commit().unwrap();
    bench.fake.write_completion(0x1234_5640);
    let bad =
        ChannelError::BadCompletion { channel: 0, word: 0x1234_5640, fault: CompletionFault::OutsideRing };
    assert_eq!(polled(&mut channel), (vec![], Some(bad.clone())));
    let rejected = channel.copy(&[bench.segment(0, 0x8000, 64)], 3).unwrap_err();
    assert_eq!((rejected.owner, rejected.reason), (3, RejectReason::Channel(bad.clone())));
    assert_eq!(channel.wait(CompletionMode::Poll, SHORT), Err(WaitError::Channel(bad)));
    bench.fake.set_faults(Faults::default());
    // The first had completed, as CHANSTS knows.
    assert_eq!(recovered(&mut channel), [(1, Ok(())), (2, Err(OperationError::Aborted))]);
    bench.copy(&mut channel, 4);
    channel.commit().unwrap();
    assert_eq!(polled(&mut channel), (vec![(4, Ok(()))], None));
}

#[test]
fn a_word_for_what_was_not_handed_over_is_a_fault() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.fake.write_completion(bench.fake.chain() + 3 * 64);
    let (ends, error) = polled(&mut channel);
    assert_eq!(ends, []);
    assert!(
        matches!(error, Some(ChannelError::BadCompletion { fault: CompletionFault::NotIssued, .. })),
        "{error:?}"
    );
}

#[test]
fn late_and_repeated_words_are_counted_and_harmless() {
    let bench = bench();
    let mut channel = bench.channel(7);
    for owner in 0..3 {
        bench.copy(&mut channel, owner);
        channel.commit().unwrap();
        assert_eq!(polled(&mut channel).0.len(), 1);
    }
    let chain = bench.fake.chain();
    bench.fake.write_completion(chain + 64);
    assert_eq!(polled(&mut channel), (vec![], None));
    bench.fake.write_completion(chain + 3 * 64);
    assert_eq!(polled(&mut channel), (vec![], None));
    assert_eq!(channel.statistics().stale_words, 1);
    bench.copy(&mut channel, 9);
    channel.commit().unwrap();
    assert_eq!(polled(&mut channel), (vec![(9, Ok(()))], None));
}

#[test]
fn a_halt_names_the_error_and_ends_each_operation_once() {
    let bench = bench();
    let mut channel = bench.channel(15);
    let errors = ChannelErrors::WRITE_DATA | ChannelErrors::DMA_DATA_INTEGRITY;
    // The descriptor that starts the chain is number 0.
    bench.fake.set_faults(Faults { halt_at: Some((4, errors)), ..Faults::default() });
    for owner in 0..5 {
        bench.copy(&mut channel, owner);
    }
    channel.commit().unwrap();
    let (ends, error) = polled(&mut channel);
    assert_eq!(ends, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
    let error = error.unwrap();
    assert_eq!(error, ChannelError::Halted { channel: 0, errors });
    assert_eq!(error.to_string(), "channel 0 halted: dma data integrity, write data; it needs a reset");
    bench.fake.set_faults(Faults::default());
    let mut ends = Vec::new();
    let recovery = channel.recover(|end| ends.push((end.owner, end.result))).unwrap();
    assert_eq!(recovery, Recovery { completed: 0, failed: 2, errors });
    assert_eq!(ends, [(3, Err(OperationError::Hardware { errors })), (4, Err(OperationError::Aborted))]);
    let statistics = channel.statistics();
    assert_eq!((statistics.operations, statistics.failed, statistics.bytes), (5, 2, 3 * 64));
    bench.copy(&mut channel, 7);
    channel.commit().unwrap();
    assert_eq!(polled(&mut channel), (vec![(7, Ok(()))], None));
}

#[test]
fn a_lost_completion_is_a_time_out_and_the_register_tells_what_was_done() {
    let bench = bench();
    for mode in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut channel = bench.channel(7);
        bench.fake.set_faults(Faults { silent: true, ..Faults::default() });
        bench.copy(&mut channel, 1);
        let error = channel.wait(mode, SHORT).unwrap_err();
        assert!(matches!(error, WaitError::TimedOut(_)), "{error}");
        assert_eq!(channel.failure(), None, "a time-out alone is no failure");
        bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
        bench.copy(&mut channel, 2);
        channel.commit().unwrap();
        bench.fake.set_faults(Faults::default());
        assert_eq!(recovered(&mut channel), [(1, Ok(())), (2, Err(OperationError::Aborted))]);
        assert_eq!(channel.statistics().recoveries, 1);
    }
}

#[test]
fn a_late_word_of_the_chain_before_a_reset_goes_where_nobody_looks() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    bench.copy(&mut channel, 1);
    channel.commit().unwrap();
    let before = channel.cell;
    bench.fake.set_faults(Faults::default());
    assert_eq!(recovered(&mut channel), [(1, Err(OperationError::Aborted))]);
    assert_ne!(channel.cell, before);
    let memory = channel.region.as_ref().unwrap().memory().clone();
    let word = bench.fake.chain() + 64;
    memory.store(before * channel::CELL_BYTES, word, core::sync::atomic::Ordering::Release).unwrap();
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    bench.copy(&mut channel, 2);
    channel.commit().unwrap();
    assert_eq!(polled(&mut channel), (vec![], None));
    bench.fake.step();
    assert_eq!(polled(&mut channel), (vec![(2, Ok(()))], None));
}

#[test]
fn waiting_notices_a_channel_that_cannot_say_that_it_halted() {
    let bench = bench();
    let mut channel = bench.channel(7);
    let errors = ChannelErrors::READ_DATA;
    for mode in [CompletionMode::Poll, CompletionMode::Interrupt] {
        bench.fake.set_faults(Faults { silent: true, halt_at: Some((1, errors)), ..Faults::default() });
        bench.copy(&mut channel, 1);
        let error = channel.wait(mode, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error, WaitError::Channel(ChannelError::Halted { channel: 0, errors }));
        bench.fake.set_faults(Faults::default());
        assert_eq!(recovered(&mut channel), [(1, Err(OperationError::Hardware { errors }))]);
    }
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    bench.copy(&mut channel, 2);
    channel.commit().unwrap();
    bench.fake.set_state(ChannelState::Suspended);
    let error = channel.wait(CompletionMode::Poll, Duration::from_secs(60)).unwrap_err();
    let state = ChannelState::Suspended;
    assert_eq!(error, WaitError::Channel(ChannelError::UnexpectedState { channel: 0, state }));
}

#[test]
fn an_interrupt_of_any_kind_ends_a_sleep_again_and_again() {
    for kind in [InterruptKind::Msix, InterruptKind::Msi, InterruptKind::Intx] {
        let bench = bench_with(Some(kind));
        let mut channel = bench.channel(7);
        bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
        for round in 0..5 {
            bench.copy(&mut channel, round);
            channel.commit().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(10));
                    bench.fake.step();
                });
                channel.wait(CompletionMode::Interrupt, Duration::from_secs(60)).unwrap();
            });
            assert_eq!(polled(&mut channel), (vec![(round, Ok(()))], None), "{kind}");
        }
        // A nap that is over before the interrupt comes finds the word all the same.
        let interrupts = channel.statistics().interrupts;
        assert!((1..=6).contains(&interrupts), "{kind}: {interrupts}");
    }
}

#[test]
fn only_the_first_channel_listens_to_a_vector_that_all_share() {
    let fake = FakeIoat::new();
    fake.set_interrupt_kind(Some(InterruptKind::Msi));
    fake.set_identity_registers(0x32, 2, 20);
    let ioat = Ioat::start(fake.open()).unwrap();
    assert!(ioat.device.event(0).is_some() && ioat.device.event(1).is_none());
    let first = ioat.channel::<u32>(0, ChannelOptions::default()).unwrap();
    assert!(first.has_interrupt());
}

#[test]
fn a_channel_without_interrupt_looks_instead_unless_it_is_to_sleep() {
    let fake = FakeIoat::new();
    fake.set_interrupt_kind(None);
    let ioat = Ioat::start(fake.open()).unwrap();
    let mut channel = ioat.channel::<u32>(0, ChannelOptions::default()).unwrap();
    assert!(!channel.has_interrupt());
    let refused = Err(WaitError::NoInterrupt { channel: 0 });
    assert_eq!(channel.wait(CompletionMode::Interrupt, SHORT), refused);
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    let memory: DmaRegion<Bidirectional> = ioat.domain().map(memory).unwrap();
    let at = |offset| memory.segment(offset, 8).unwrap().iova;
    for (mode, paused) in
        [(CompletionMode::Adaptive, false), (CompletionMode::Poll, false), (CompletionMode::Adaptive, true)]
    {
        fake.set_faults(Faults { paused, ..Faults::default() });
        channel.copy(&[CopySegment { source: at(0), destination: at(64), length: 8 }], 1).unwrap();
        let waited = channel.wait(mode, SHORT);
        assert_eq!(matches!(waited, Err(WaitError::TimedOut(_))), paused, "{mode:?}: {waited:?}");
        assert_eq!(channel.poll(9, |_| ()).unwrap(), usize::from(!paused));
    }
}

#[test]
fn a_device_that_is_gone_ends_everything_and_stays_gone() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    bench.copy(&mut channel, 1);
    bench.copy(&mut channel, 2);
    channel.commit().unwrap();
    bench.fake.remove();
    let gone = ChannelError::Gone { channel: 0 };
    let error = channel.wait(CompletionMode::Adaptive, Duration::from_secs(60)).unwrap_err();
    assert_eq!(error, WaitError::Channel(gone.clone()));
    let mut ends = Vec::new();
    assert_eq!(channel.recover(|end| ends.push((end.owner, end.result))), Err(gone.clone()));
    let error = Err(OperationError::Gone);
    assert_eq!(ends, [(1, error), (2, error)]);
    assert_eq!(channel.statistics().bytes, 0);
    assert_eq!(channel.recover(|_| panic!("ended twice")), Err(gone.clone()));
    assert_eq!(channel.statistics().bytes, 0);
    let rejected = channel.copy(&[bench.segment(0, 0, 8)], 3).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Channel(gone));
    assert_eq!(channel.close().unwrap(), []);
}

#[test]
fn registers_that_read_all_ones_mean_gone_and_bus_mastering_goes_off() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.fake.set_faults(Faults { paused: true, all_ones: true, ..Faults::default() });
    bench.copy(&mut channel, 1);
    let error = channel.wait(CompletionMode::Poll, Duration::from_secs(60)).unwrap_err();
    assert_eq!(error, WaitError::Channel(ChannelError::Gone { channel: 0 }));
    let mut ends = Vec::new();
    channel.recover(|end| ends.push((end.owner, end.result))).unwrap_err();
    assert_eq!(ends, [(1, Err(OperationError::Gone))]);
    assert!(!bench.fake.is_bus_master());
}

#[test]
fn a_channel_that_does_not_reset_keeps_its_owners_until_bus_mastering_is_off() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.fake.set_faults(Faults { paused: true, reset_sticks: true, ..Faults::default() });
    bench.copy(&mut channel, 1);
    channel.commit().unwrap();
    let error = channel.recover(|_| panic!("given back while the engine runs")).unwrap_err();
    assert!(matches!(error, ChannelError::NotStopped { .. }), "{error}");
    assert_eq!(channel.outstanding(), 1);
    assert!(bench.fake.is_bus_master());
    let ends = channel.close().unwrap();
    assert_eq!(ends.len(), 1);
    assert_eq!((ends[0].owner, ends[0].result), (1, Err(OperationError::Aborted)));
    assert!(!bench.fake.is_bus_master());
}

#[test]
fn what_cannot_be_stopped_by_any_means_keeps_its_memory_for_ever() {
    let bench = bench();
    let owner = Arc::new(());
    let mut channel =
        bench.ioat.channel::<Arc<()>>(0, ChannelOptions { depth: 7, ..ChannelOptions::default() }).unwrap();
    let mappings = bench.ioat.domain().statistics().mappings;
    channel.copy(&[bench.segment(0, 0x8000, 8)], Arc::clone(&owner)).unwrap();
    let faults = Faults { paused: true, reset_sticks: true, bus_master_sticks: true, ..Faults::default() };
    bench.fake.set_faults(faults);
    assert!(matches!(
        channel.close(),
        Err(StopError::Session(crate::kit::SessionError::BusMasterStuck { .. }))
    ));
    assert_eq!(Arc::strong_count(&owner), 2, "the owner was not dropped");
    assert_eq!(bench.ioat.domain().statistics().mappings, mappings, "the ring is still mapped");
    let again = bench.ioat.channel::<u32>(0, ChannelOptions::default());
    assert!(matches!(again, Err(OpenChannelError::Busy { channel: 0 })));
    bench.fake.set_faults(Faults::default());
}

#[test]
fn dropping_a_channel_stops_it_first_and_drops_each_owner_once() {
    let bench = bench();
    let owner = Arc::new(());
    let mappings = bench.ioat.domain().statistics().mappings;
    let mut channel = bench.ioat.channel::<Arc<()>>(0, ChannelOptions::default()).unwrap();
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    for _ in 0..3 {
        channel.copy(&[bench.segment(0, 0x8000, 8)], Arc::clone(&owner)).unwrap();
    }
    channel.commit().unwrap();
    drop(channel);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(bench.ioat.domain().statistics().mappings, mappings);
    assert_eq!(bench.fake.iommu.fault_count(), 0);
    bench.fake.set_faults(Faults::default());
    bench.channel(1);
}

#[test]
fn a_channel_is_opened_once_at_a_time_and_within_limits() {
    let bench = bench();
    let options = ChannelOptions::default();
    for depth in [0, 65537] {
        let refused = bench.ioat.channel::<u32>(0, ChannelOptions { depth, ..options });
        assert!(matches!(refused, Err(OpenChannelError::Depth { .. })), "{depth}");
    }
    let first = bench.channel(65536);
    assert_eq!(first.capacity(), 65535);
    assert!(matches!(bench.ioat.channel::<u32>(0, options), Err(OpenChannelError::Busy { channel: 0 })));
    let none = bench.ioat.channel::<u32>(1, options);
    assert!(matches!(none, Err(OpenChannelError::NoSuchChannel { channel: 1, count: 1 })));
    drop(first);
    assert_eq!(bench.channel(1).capacity(), 1);
}

#[test]
fn an_engine_that_does_not_start_is_an_error_with_its_reason() {
    let bench = bench();
    let options = ChannelOptions { depth: 7, ..ChannelOptions::default() };
    let errors = ChannelErrors::CHAIN_ADDRESS;
    bench.fake.set_faults(Faults { halt_at: Some((0, errors)), ..Faults::default() });
    let error = bench.ioat.channel::<u32>(0, options).unwrap_err();
    assert!(
        matches!(error, OpenChannelError::Start(ChannelError::Halted { errors: found, .. }) if found == errors),
        "{error}"
    );
    bench.fake.set_faults(Faults::default());
    bench.channel(7);
}

#[test]
fn what_is_no_engine_of_version_3_is_refused() {
    let start = |version, channels, xfercap| {
        let fake = FakeIoat::new();
        fake.set_identity_registers(version, channels, xfercap);
        let error = Ioat::start(fake.open()).unwrap_err();
        assert!(!fake.is_bus_master());
        error
    };
    assert!(matches!(start(0x20, 1, 20), StartError::Version { version } if version.0 == 0x20));
    assert!(matches!(start(0x32, 0x20, 20), StartError::NoChannels));
    assert!(matches!(start(0x32, 1, 11), StartError::TransferCap { log2: 11 }));
    assert!(matches!(start(0x32, 1, 0xe0), StartError::TransferCap { log2: 0 }));
    let fake = FakeIoat::new();
    fake.set_faults(Faults { all_ones: true, ..Faults::default() });
    let error = Ioat::start(fake.open()).unwrap_err();
    assert!(matches!(error, StartError::Register(BarError::DeviceGone { .. })), "{error}");
    let fake = FakeIoat::new();
    fake.set_faults(Faults { reset_sticks: true, suspend_sticks: true, ..Faults::default() });
    let error = Ioat::start(fake.open()).unwrap_err();
    assert!(matches!(error, StartError::Reset { channel: 0, .. }), "{error}");
}

#[test]
fn stopping_the_device_ends_what_its_channels_had() {
    let bench = bench();
    let mut channel = bench.channel(7);
    bench.fake.set_faults(Faults { paused: true, ..Faults::default() });
    bench.copy(&mut channel, 1);
    channel.commit().unwrap();
    bench.ioat.stop().unwrap();
    bench.ioat.stop().unwrap();
    assert!(!bench.fake.is_bus_master());
    let error = channel.wait(CompletionMode::Poll, Duration::from_secs(60)).unwrap_err();
    assert_eq!(error, WaitError::Channel(ChannelError::Gone { channel: 0 }));
    let ends = channel.close().unwrap();
    assert_eq!((ends.len(), ends[0].result), (1, Err(OperationError::Gone)));
}

#[test]
fn a_streamed_copy_ends_in_time_also_when_the_device_has_news() {
    let bench = bench();
    let mut channel = bench.channel(7);
    while channel.free() > 0 {
        bench.copy(&mut channel, 0);
    }
    channel.commit().unwrap();
    let list = |at| {
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        list.push(bench.segment(0, at, 8).destination, ByteLength::new(8)).unwrap();
        list
    };
    // All has completed, so that there is news; but no time is left to look at it.
    let streamed =
        channel.copy_sg_streamed(&list(0), &list(0x8000), 1, CompletionMode::Poll, Duration::ZERO, |_| {
            panic!("looked after the time was over")
        });
    let Err(StreamError::Interrupted { error, .. }) = streamed else { panic!("{streamed:?}") };
    assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
    assert_eq!(recovered(&mut channel).last(), Some(&(1, Err(OperationError::Aborted))));
}

#[test]
fn a_stop_that_failed_is_no_success_the_second_time() {
    let bench = bench();
    bench.fake.set_faults(Faults { bus_master_sticks: true, ..Faults::default() });
    for _ in 0..2 {
        let error = bench.ioat.stop().unwrap_err();
        assert!(matches!(error, StopError::Session(_)), "{error}");
        assert!(bench.fake.is_bus_master());
    }
    bench.fake.set_faults(Faults::default());
    bench.fake.set_bus_master(false).unwrap();
    bench.ioat.stop().unwrap();
}

#[test]
fn a_stop_in_the_middle_of_a_reset_keeps_the_device_off_the_bus() {
    let bench = bench();
    bench.fake.set_faults(Faults { resets: true, ..Faults::default() });
    assert_eq!(bench.ioat.reset().unwrap(), ResetKind::FunctionLevel);
    assert!(bench.fake.is_bus_master());
    let device = Arc::clone(&bench.ioat.device);
    bench.fake.on_command(move || device.stop().unwrap());
    assert!(matches!(bench.ioat.reset(), Err(ResetDeviceError::Stopped)));
    assert!(!bench.fake.is_bus_master());
}

#[test]
fn wrong_addresses_halt_the_engine_and_reach_nothing() {
    let bench = bench();
    let mut channel = bench.channel(7);
    let mut segment = bench.segment(0, 0x8000, 64);
    segment.source = Iova::new(0x40_0000_0000);
    channel.copy(&[segment], 1).unwrap();
    bench.copy(&mut channel, 2);
    channel.commit().unwrap();
    let (ends, error) = polled(&mut channel);
    assert_eq!(ends, []);
    assert!(matches!(error, Some(ChannelError::Halted { .. })), "{error:?}");
    assert_eq!(bench.fake.iommu.fault_count(), 1);
    let ends = recovered(&mut channel);
    let errors = ChannelErrors::READ_DATA;
    assert_eq!(ends, [(1, Err(OperationError::Hardware { errors })), (2, Err(OperationError::Aborted))]);
}
