//! The ring against a fake engine that only follows `next` and counts.

use std::collections::VecDeque;

use proptest::prelude::*;
use vdk_descriptors::ioat::{ChannelErrors, Operation};
use vdk_descriptors::sg::CopySegment;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};

use super::super::error::{OperationError, RejectReason};
use super::*;

const BASE: u64 = 0x7_0000_0000;
const CAP: u64 = 4096;

/// What an engine knows: where it stands and what it was told.
struct FakeEngine {
    table: Slots<IoatDescriptor>,
    next: u64,
    executed: u16,
    last: u64,
}

impl FakeEngine {
    fn new(ring: &Ring<u32>, table: Slots<IoatDescriptor>) -> Self {
        Self { table, next: ring.base, executed: 0, last: 0 }
    }

    /// Executes up to `limit` descriptors of those that `count` hands over; gives what it
    /// executed.
    fn run(&mut self, count: u16, limit: usize) -> Vec<IoatDescriptor> {
        let mut executed = Vec::new();
        while self.executed != count && executed.len() < limit {
            let slot = usize::try_from((self.next - BASE) / SLOT_BYTES).unwrap();
            let descriptor = self.table.read(slot);
            self.last = self.next;
            self.next = descriptor.next;
            self.executed = self.executed.wrapping_add(1);
            executed.push(descriptor);
        }
        executed
    }
}

fn ring(slots: usize, capacity: u32) -> (Ring<u32>, FakeEngine) {
    ring_with(slots, capacity, 4)
}

fn ring_with(slots: usize, capacity: u32, completion_interval: u32) -> (Ring<u32>, FakeEngine) {
    let bytes = ByteLength::from_usize(slots * 64);
    let memory = SharedMemory::allocate(bytes, Pages::Base).unwrap();
    let options =
        RingOptions { capacity, transfer_cap: CAP, completion_interval, interrupt: false, software: true };
    let ring = Ring::new(memory.slots(0, slots).unwrap(), Iova::new(BASE), options);
    let engine = FakeEngine::new(&ring, memory.slots(0, slots).unwrap());
    (ring, engine)
}

fn transfer(length: u32) -> Transfer {
    CopySegment { source: Iova::new(0x1000), destination: Iova::new(0x9000), length }.into()
}

fn post(ring: &mut Ring<u32>, count: usize, owner: u32) -> Result<Cookie, RejectReason> {
    ring.post::<false>((0..count).map(|_| transfer(8)), Some(owner)).map_err(|(given, reason)| {
        assert_eq!(given, Some(owner));
        reason
    })
}

/// Posts `count` operations of one descriptor each, with owners from `first` on.
fn post_each(ring: &mut Ring<u32>, count: usize, first: u32) -> usize {
    let segment = CopySegment { source: Iova::new(0x1000), destination: Iova::new(0x9000), length: 8 };
    let mut copies = (first..).take(count).map(|owner| (segment, owner));
    let (posted, long) = ring.post_each(&mut copies);
    assert!(long.is_none());
    // What did not fit was not taken.
    assert_eq!(copies.next().map(|(_, owner)| owner), (first..).take(count).nth(posted));
    posted
}

fn report(ring: &mut Ring<u32>, address: u64) -> Result<Progress, CompletionFault> {
    let progress = ring.progress(Iova::new(address))?;
    if let Progress::UpTo(index) = progress {
        ring.complete(index);
    }
    Ok(progress)
}

fn retired(ring: &mut Ring<u32>, budget: usize) -> Vec<u32> {
    let mut owners = Vec::new();
    let count = ring.retire(budget, &mut |completion| owners.push(completion.owner));
    assert_eq!(count, owners.len());
    owners
}

#[test]
fn rings_of_every_depth_wrap_many_times_without_losing_an_owner() {
    for (slots, capacity) in [(2, 1), (4, 2), (4, 3), (8, 7), (256, 255), (1 << 16, 65535)] {
        let (mut ring, mut engine) = ring(slots, capacity);
        let rounds = if capacity > 1000 { 5 } else { 50_000 / capacity };
        let mut expected = 0;
        let mut next = 0;
        for round in 0..rounds * 2 {
            while post(&mut ring, 1, next).is_ok() {
                next += 1;
            }
            assert_eq!(ring.free(), 0);
            let count = ring.issue().unwrap();
            // Sometimes all at once, sometimes in parts.
            let limit = if round % 3 == 0 { slots } else { slots / 2 + 1 };
            engine.run(count, limit);
            report(&mut ring, engine.last).unwrap();
            for owner in retired(&mut ring, usize::MAX) {
                assert_eq!(owner, expected);
                expected += 1;
            }
        }
        assert!(expected > 4 * capacity || slots > 1000, "{slots}: {expected}");
    }
}

#[test]
fn a_post_is_whole_or_nothing_and_says_why() {
    let (mut ring, _) = ring(8, 7);
    assert_eq!(post(&mut ring, 8, 1), Err(RejectReason::TooLong { needed: 8, capacity: 7 }));
    assert_eq!(post(&mut ring, 0, 1), Err(RejectReason::Empty));
    post(&mut ring, 5, 1).unwrap();
    assert_eq!(post(&mut ring, 3, 2), Err(RejectReason::Full { needed: 3, free: 2 }));
    assert_eq!((ring.free(), ring.outstanding(), ring.bytes()), (2, 1, 40));
    let bad = [transfer(8), transfer(0)];
    let (_, reason) = ring.post::<false>(bad.into_iter(), Some(2)).unwrap_err();
    assert_eq!(reason, RejectReason::ZeroLength { index: 1 });
    let over = CopySegment { source: Iova::new(u64::MAX - 5000), destination: Iova::new(0), length: 8000 };
    let (_, reason) = ring.post::<false>([over.into()].into_iter(), Some(2)).unwrap_err();
    assert_eq!(reason, RejectReason::AddressOverflow { index: 0 });
    // A fill has a pattern where a copy has a source.
    ring.post::<true>([over.into()].into_iter(), Some(2)).unwrap();
    assert_eq!(ring.issue(), Some(7));
}

#[test]
fn many_copies_are_posted_up_to_one_above_the_cap_or_the_end_of_the_ring() {
    for streaming in [false, true] {
        let (mut ring, mut engine) = ring_with(16, 7, 4);
        ring.streaming.always(streaming);
        let copy = |(length, owner)| {
            let source = Iova::new(0x1000 + u64::from(owner));
            (CopySegment { source, destination: Iova::new(0x9000), length }, owner)
        };
        let mut copies = [8, 4096, 4097, 8].into_iter().zip(0u32..).map(copy);
        let (posted, long) = ring.post_each(&mut copies);
        assert_eq!((posted, long.map(|(segment, owner)| (segment.length, owner))), (2, Some((4097, 2))));
        assert_eq!(copies.next().unwrap().1, 3, "what follows was not taken");
        assert_eq!((ring.outstanding(), ring.bytes()), (2, 4104));
        let mut more = [8; 9].into_iter().zip(10u32..).map(copy);
        assert_eq!(ring.post_each(&mut more).0, 5, "seven in flight");
        let count = ring.issue().unwrap();
        let seen = engine.run(count, 99);
        let marks: Vec<_> = seen.iter().map(|d| d.control.completion_write()).collect();
        assert_eq!(marks, [false, false, false, true, false, false, true], "each fourth and the last");
        let sources: Vec<_> = seen.iter().map(|d| d.source - 0x1000).collect();
        assert_eq!(sources, [0, 1, 10, 11, 12, 13, 14]);
        report(&mut ring, engine.last).unwrap();
        assert_eq!(retired(&mut ring, 99), [0, 1, 10, 11, 12, 13, 14]);
    }
}

#[test]
fn a_streamed_ring_stays_a_ring_when_its_table_wraps() {
    let (mut ring, mut engine) = ring_with(8, 7, 3);
    ring.streaming.always(true);
    for round in 0..100 {
        let count = 1 + round % 7;
        assert_eq!(post_each(&mut ring, count, 0), count);
        let rung = ring.issue().unwrap();
        let seen = engine.run(rung, 99);
        assert_eq!(seen.len(), count);
        assert!(seen.last().unwrap().control.completion_write());
        report(&mut ring, engine.last).unwrap();
        assert_eq!(retired(&mut ring, 99).len(), count);
    }
    // Without copies there is nothing to flush.
    assert_eq!(post_each(&mut ring, 0, 0), 0);
}

#[test]
fn a_transfer_above_the_cap_becomes_several_descriptors() {
    let (mut ring, mut engine) = ring(16, 15);
    let segment = CopySegment { source: Iova::new(0x1001), destination: Iova::new(0x20_0000), length: 8200 };
    ring.post::<false>([segment.into(), transfer(4096)].into_iter(), Some(1)).unwrap();
    ring.post::<true>([segment.into()].into_iter(), Some(2)).unwrap();
    let before = ring.descriptors();
    let count = ring.issue().unwrap();
    let added = ring.descriptors() - before;
    assert_eq!(added, 7);
    let seen: Vec<_> = engine
        .run(count, 99)
        .iter()
        .map(|d| (d.control.operation(), d.source, d.destination, d.size))
        .collect();
    let copy = Operation::COPY;
    assert_eq!(
        seen,
        [
            (copy, 0x1001, 0x20_0000, 4096),
            (copy, 0x2001, 0x20_1000, 4096),
            (copy, 0x3001, 0x20_2000, 8),
            (copy, 0x1000, 0x9000, 4096),
            (Operation::FILL, 0x1001, 0x20_0000, 4096),
            (Operation::FILL, 0x1001, 0x20_1000, 4096),
            (Operation::FILL, 0x1001, 0x20_2000, 8),
        ]
    );
}

#[test]
fn a_batch_ends_with_a_completion_word_and_long_ones_have_more() {
    let (mut ring, mut engine) = ring_with(64, 63, 8);
    let mut marks = |ring: &mut Ring<u32>, operations: usize| -> Vec<bool> {
        for _ in 0..operations {
            post(ring, 1, 0).unwrap();
        }
        let count = ring.issue().unwrap();
        engine.run(count, 99).iter().map(|d| d.control.completion_write()).collect()
    };
    assert_eq!(marks(&mut ring, 1), [true]);
    assert_eq!(marks(&mut ring, 3), [false, false, true]);
    let long = marks(&mut ring, 17);
    assert_eq!(long.iter().filter(|mark| **mark).count(), 3);
    assert!(long[7] && long[15] && long[16]);
}

#[test]
fn repeated_and_late_words_change_nothing_and_senseless_ones_are_faults() {
    let (mut ring, mut engine) = ring(8, 7);
    assert_eq!(report(&mut ring, 0), Ok(Progress::None));
    assert_eq!(report(&mut ring, BASE), Err(CompletionFault::NotIssued), "nothing was issued");
    for owner in 0..4 {
        post(&mut ring, 1, owner).unwrap();
    }
    assert_eq!(report(&mut ring, BASE), Err(CompletionFault::NotIssued), "posted, not issued");
    let count = ring.issue().unwrap();
    engine.run(count, 3);
    assert_eq!(report(&mut ring, BASE + 2 * 64), Ok(Progress::UpTo(3)));
    assert_eq!(report(&mut ring, BASE + 2 * 64), Ok(Progress::None));
    assert_eq!(report(&mut ring, BASE + 64), Ok(Progress::Stale));
    assert_eq!(report(&mut ring, BASE + 5 * 64), Err(CompletionFault::NotIssued));
    for outside in [BASE - 64, BASE + 8 * 64, BASE + 32, !0x3f, 64] {
        assert_eq!(report(&mut ring, outside), Err(CompletionFault::OutsideRing), "{outside:#x}");
    }
    assert_eq!(retired(&mut ring, 2), [0, 1]);
    assert_eq!((ring.free(), retired(&mut ring, 9)), (5, vec![2]));
    assert_eq!(retired(&mut ring, 9), [0u32; 0]);
    // Once every slot was used, an old address can only be late.
    engine.run(count, 9);
    report(&mut ring, engine.last).unwrap();
    for round in 0..3 {
        post(&mut ring, 5, round).unwrap();
        let count = ring.issue().unwrap();
        engine.run(count, 9);
        report(&mut ring, engine.last).unwrap();
        retired(&mut ring, 9);
    }
    assert_eq!(report(&mut ring, engine.next), Ok(Progress::Stale));
}

#[test]
fn a_forced_end_gives_every_owner_back_once_with_its_own_result() {
    let (mut ring, mut engine) = ring(16, 15);
    for owner in 0..5 {
        post(&mut ring, 2, owner).unwrap();
    }
    let count = ring.issue().unwrap();
    post(&mut ring, 1, 5).unwrap();
    // Two operations and the first half of the third.
    engine.run(count, 5);
    report(&mut ring, engine.last).unwrap();
    assert_eq!(retired(&mut ring, 1), [0]);
    ring.shut();
    assert_eq!(post(&mut ring, 1, 9), Err(RejectReason::Full { needed: 1, free: 0 }));
    let hardware = OperationError::Hardware { errors: ChannelErrors::READ_DATA };
    let mut ends = Vec::new();
    let finished =
        ring.finish(hardware, OperationError::Aborted, &mut |end| ends.push((end.owner, end.result)));
    let aborted = Err(OperationError::Aborted);
    assert_eq!(ends, [(1, Ok(())), (2, Err(hardware)), (3, aborted), (4, aborted), (5, aborted)]);
    assert_eq!((finished.completed, finished.failed, finished.bytes_undone), (1, 4, 6 * 8));
    let start = ring.restart();
    assert_eq!(start, Iova::new(BASE + 11 * 64));
    assert_eq!((ring.free(), ring.outstanding()), (15, 0));
    engine.next = start.as_u64();
    engine.executed = 0;
    post(&mut ring, 15, 7).unwrap();
    let before = ring.descriptors();
    let count = ring.issue().unwrap();
    let added = ring.descriptors() - before;
    assert_eq!((count, added), (15, 15), "DMACOUNT begins anew");
    engine.run(count, 99);
    report(&mut ring, engine.last).unwrap();
    assert_eq!(retired(&mut ring, 9), [7]);
}

#[test]
fn lengths_that_the_device_has_written_count_for_no_more_than_was_posted() {
    let (mut ring, engine) = ring(8, 7);
    for owner in 0..3 {
        post(&mut ring, 1, owner).unwrap();
    }
    for slot in 0..3 {
        let descriptor = IoatDescriptor { size: u32::MAX, ..engine.table.read(slot) };
        engine.table.write(slot, &descriptor);
    }
    ring.shut();
    let (first, rest) = (OperationError::Gone, OperationError::Gone);
    let finished = ring.finish(first, rest, &mut |_| ());
    assert_eq!((finished.failed, finished.bytes_undone, ring.bytes()), (3, 24, 0));
    assert_eq!(ring.finish(first, rest, &mut |_| ()), Finished::default());
    assert_eq!(ring.bytes(), 0);
}

#[test]
fn the_error_of_a_piece_is_that_of_its_operation() {
    let (mut ring, mut engine) = ring(16, 15);
    let segment = CopySegment { source: Iova::new(0), destination: Iova::new(0), length: 8 };
    let mut pieces = vec![segment; 12].into_iter().peekable();
    let mut owner = Some(1);
    post(&mut ring, 1, 0).unwrap();
    assert_eq!(ring.post_piece(&mut pieces, 4, &mut owner), 4);
    assert_eq!(ring.post_piece(&mut pieces, 4, &mut owner), 4);
    let count = ring.issue().unwrap();
    engine.run(count, 3);
    report(&mut ring, engine.last).unwrap();
    let cookie = ring.cut_off(owner.take().unwrap());
    let mut ends = Vec::new();
    let hardware = OperationError::Hardware { errors: ChannelErrors::WRITE_DATA };
    ring.finish(hardware, OperationError::Aborted, &mut |end| ends.push((end.cookie, end.owner, end.result)));
    assert_eq!(ends, [(Cookie(0), 0, Ok(())), (cookie, 1, Err(hardware))]);

    // All that was posted is done, but not all was posted.
    ring.restart();
    let mut owner = Some(2);
    assert_eq!(ring.post_piece(&mut pieces, 3, &mut owner), 3);
    engine.next = BASE + 9 * 64;
    engine.executed = 0;
    let count = ring.issue().unwrap();
    engine.run(count, 9);
    report(&mut ring, engine.last).unwrap();
    ring.cut_off(owner.take().unwrap());
    let mut ends = Vec::new();
    ring.finish(hardware, OperationError::Aborted, &mut |end| ends.push((end.owner, end.result)));
    assert_eq!(ends, [(2, Err(OperationError::Aborted))]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against a queue of (owner, descriptors): order, exactly once, room.
    #[test]
    fn behaves_like_a_queue(
        order in 1u32..7,
        spare in 0u32..3,
        interval in 1u32..20,
        streaming: bool,
        steps in prop::collection::vec((0u8..5, 0usize..9), 1..400),
    ) {
        let room = (1usize << order) - 1;
        let capacity = u32::try_from(room).unwrap();
        let (mut ring, mut engine) = ring_with(1 << (order + spare), capacity, interval);
        ring.streaming.always(streaming);
        let mut model = VecDeque::new();
        let (mut posted, mut issued, mut done, mut next) = (0usize, 0usize, 0usize, 0u32);
        let mut count = 0;
        for (step, amount) in steps {
            match step {
                0 => {
                    let taken: usize = model.iter().map(|(_, size)| *size).sum();
                    let fits = amount > 0 && amount + taken <= room;
                    prop_assert_eq!(post(&mut ring, amount, next).is_ok(), fits);
                    if fits {
                        model.push_back((next, amount));
                        posted += amount;
                        next += 1;
                    }
                }
                1 => {
                    let rung = ring.issue();
                    prop_assert_eq!(rung.is_some(), posted > issued);
                    if rung.is_some() {
                        let last = engine.table.read(ring.slot(ring.head - 1));
                        prop_assert!(last.control.completion_write());
                    }
                    count = rung.unwrap_or(count);
                    prop_assert_eq!(usize::from(count), posted % 65536);
                    issued = posted;
                }
                2 => {
                    let ran = engine.run(count, amount).len();
                    if ran > 0 {
                        report(&mut ring, engine.last).unwrap();
                        done += ran;
                    }
                }
                3 => {
                    let taken: usize = model.iter().map(|(_, size)| *size).sum();
                    let fitting = post_each(&mut ring, amount, next);
                    prop_assert_eq!(fitting, amount.min(room - taken));
                    for _ in 0..fitting {
                        model.push_back((next, 1));
                        next += 1;
                    }
                    posted += fitting;
                }
                _ => {
                    let mut expected = Vec::new();
                    while expected.len() < amount {
                        match model.front() {
                            Some((owner, size)) if *size <= done => {
                                done -= size;
                                expected.push(*owner);
                                model.pop_front();
                            }
                            _ => break,
                        }
                    }
                    prop_assert_eq!(retired(&mut ring, amount), expected);
                }
            }
        }
    }
}
