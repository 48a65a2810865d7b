//! Rings against a queue that cannot be wrong.

use std::collections::VecDeque;

use super::*;
use proptest::prelude::*;

const DEPTHS: [u32; 6] = [1, 2, 3, 4, 256, 65_536];

/// Runs a long random history and compares every observable with a queue of slots.
fn agrees_with_a_queue<K: IndexKind>(mut cursors: Cursors<K>, steps: u32) {
    let depth = cursors.depth();
    let usable = cursors.usable() as usize;
    let mut queue: VecDeque<u32> = VecDeque::new();
    let mut next = u32::truncate(cursors.produced() % u64::from(depth));
    let mut issued = 0usize;
    let mut seed = u64::from(depth) | 1 << 33;
    let mut random = move |below: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::truncate((seed >> 33) % u64::from(below))
    };
    for _ in 0..steps {
        let count = if random(8) == 0 { depth } else { random(depth.min(300) + 1) };
        match random(3) {
            0 => {
                let run = cursors.produce(count);
                assert_eq!(run.is_some(), queue.len() + count as usize <= usable);
                for slot in run.into_iter().flatten() {
                    assert_eq!(slot, next);
                    queue.push_back(slot);
                    next = if next + 1 == depth { 0 } else { next + 1 };
                }
            }
            1 => {
                assert_eq!(cursors.issue() as usize, queue.len() - issued);
                issued = queue.len();
            }
            _ => {
                let run = cursors.consume(count);
                assert_eq!(run.is_some(), count as usize <= issued);
                for slot in run.into_iter().flatten() {
                    assert_eq!(Some(slot), queue.pop_front());
                    issued -= 1;
                }
            }
        }
        assert_eq!(cursors.used() as usize, queue.len());
        assert_eq!(cursors.free() as usize, usable - queue.len());
        assert_eq!(cursors.outstanding() as usize, issued);
        assert_eq!(cursors.produced() - cursors.consumed(), queue.len() as u64);
    }
}

#[test]
fn free_running_rings_agree_with_a_queue_at_every_depth() {
    for depth in DEPTHS {
        let cursors = Cursors::<FreeRunning<u32>>::new(depth).unwrap();
        assert_eq!(cursors.usable(), depth);
        agrees_with_a_queue(cursors, 20_000);
        let near_wrap = Cursors::<FreeRunning<u16>>::new(depth).unwrap().starting_at(u64::from(u16::MAX) - 3);
        agrees_with_a_queue(near_wrap, 20_000);
    }
}

#[test]
fn wrapped_rings_agree_with_a_queue_at_every_depth() {
    assert!(Cursors::<Wrapped<u16>>::new(1).is_err());
    for depth in &DEPTHS[1..] {
        let cursors = Cursors::<Wrapped<u16>>::new(*depth).unwrap();
        assert_eq!(cursors.usable(), depth - 1);
        agrees_with_a_queue(cursors, 20_000);
    }
}

#[test]
fn a_ring_of_depth_1_holds_one_entry() {
    let mut cursors = Cursors::<FreeRunning<u16>>::new(1).unwrap();
    for total in 1..=70_000u64 {
        assert_eq!(cursors.produce(1).unwrap().slot(0), Some(0));
        assert_eq!(cursors.produce(1), None);
        cursors.issue();
        assert_eq!(cursors.producer_index(), u16::truncate(total));
        assert_eq!(cursors.accept_consumed(u16::truncate(total)).map(Run::count), Ok(1));
        assert_eq!(cursors.accept_consumed(u16::truncate(total)).map(Run::count), Ok(0));
    }
}

#[test]
fn seventy_thousand_entries_pass_through_16_bit_indices() {
    let mut cursors = Cursors::<FreeRunning<u16>>::new(256).unwrap();
    let mut head = 0;
    for chain in 0..70_000u64 {
        let run = cursors.produce(3).unwrap();
        assert_eq!(run.slot(0), Some(head), "the head of the chain is its first slot");
        assert_eq!(run.slot(3), None);
        head = (head + 3) % 256;
        cursors.issue();
        assert_eq!(cursors.accept_consumed(u16::truncate((chain + 1) * 3)).map(Run::count), Ok(3));
    }
    assert_eq!(cursors.produced(), 210_000);
}

#[test]
fn chains_up_to_the_whole_ring_wrap_at_its_end() {
    for depth in [1u32, 2, 3, 5, 8] {
        for chain in 1..=depth {
            let mut cursors = Cursors::<FreeRunning<u32>>::new(depth).unwrap();
            let mut expected = 0;
            for _ in 0..4 * depth {
                let slots: Vec<_> = cursors.produce(chain).unwrap().into_iter().collect();
                let want: Vec<_> = (0..chain).map(|n| (expected + n) % depth).collect();
                assert_eq!(slots, want, "chains of {chain} in a ring of {depth}");
                expected = (expected + chain) % depth;
                cursors.issue();
                assert_eq!(cursors.consume(chain).unwrap().count(), chain);
            }
        }
    }
}

#[test]
fn depths_that_cannot_be_told_apart_are_refused() {
    assert!(Cursors::<FreeRunning<u16>>::new(0).is_err());
    assert!(Cursors::<Wrapped<u16>>::new(0).is_err());
    assert_eq!(Cursors::<FreeRunning<u16>>::new(1 << 16).unwrap().usable(), u32::from(u16::MAX));
    assert!(Cursors::<FreeRunning<u16>>::with_usable(1 << 16, 1 << 16).is_err());
    assert_eq!(Cursors::<FreeRunning<u32>>::new(1 << 16).unwrap().usable(), 1 << 16);
    assert!(Cursors::<Wrapped<u8>>::new(257).is_err());
    assert_eq!(Cursors::<Wrapped<u8>>::new(256).unwrap().usable(), 255);
    assert!(Cursors::<Wrapped<u16>>::with_usable(4, 4).is_err());
    let error = Cursors::<FreeRunning<u32>>::with_usable(4, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a ring of 0x4 slots with 0x0 in use at once cannot be indexed: no slot would be usable"
    );
}

#[test]
fn indices_from_the_device_are_checked_and_change_nothing_when_wrong() {
    let mut cursors = Cursors::<Wrapped<u16>>::new(8).unwrap();
    assert_eq!(cursors.produce(5).unwrap().count(), 5);
    let far = |index, ahead, possible| Err(IndexError::TooFar { index, ahead, possible });
    assert_eq!(cursors.accept_consumed(1), far(1, 1, 0), "nothing was issued yet");
    cursors.issue();
    for index in [8, 255, u16::MAX] {
        let outside = IndexError::OutOfRange { index: u64::from(index), depth: 8 };
        assert_eq!(cursors.accept_consumed(index), Err(outside));
        assert_eq!(cursors.accept_produced(index), Err(outside));
    }
    assert_eq!(cursors.accept_consumed(6), far(6, 6, 5));
    assert_eq!(cursors.accept_consumed(2).map(Run::count), Ok(2));
    assert_eq!(cursors.accept_consumed(1), far(1, 7, 3), "going back is going too far");
    assert_eq!((cursors.outstanding(), cursors.consumer_slot()), (3, 2));
    assert_eq!(cursors.accept_consumed(5).map(Run::count), Ok(3));

    let mut cursors = Cursors::<FreeRunning<u16>>::new(8).unwrap();
    assert_eq!(cursors.accept_produced(9), far(9, 9, 8));
    assert_eq!(cursors.accept_produced(0xffff), far(0xffff, 0xffff, 8));
    assert_eq!(cursors.accept_produced(8).map(Run::count), Ok(8));
    assert_eq!(cursors.accept_produced(9), far(9, 1, 0));
    assert_eq!(cursors.consume(8).map(Run::count), Some(8));
    assert_eq!(cursors.accept_produced(9).map(Run::count), Ok(1));
}

#[test]
fn a_reset_begins_at_zero() {
    let mut cursors = Cursors::<FreeRunning<u16>>::new(4).unwrap();
    assert!(cursors.produce(3).is_some());
    cursors.issue();
    cursors.reset();
    assert_eq!((cursors.used(), cursors.producer_index(), cursors.consumer_slot()), (0, 0, 0));
    assert_eq!(cursors.produce(4).unwrap().slots().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

proptest! {
    #[test]
    fn any_index_is_accepted_or_changes_nothing(
        depth in 1u32..300,
        start in any::<u64>(),
        produce in 0u32..300,
        index in any::<u16>(),
    ) {
        let mut cursors = Cursors::<FreeRunning<u16>>::new(depth).unwrap().starting_at(start);
        let _ = cursors.produce(produce.min(depth));
        cursors.issue();
        let before = (cursors.outstanding(), cursors.consumed(), cursors.consumer_slot());
        match cursors.accept_consumed(index) {
            Ok(run) => {
                prop_assert_eq!(run.count(), before.0 - cursors.outstanding());
                prop_assert_eq!(cursors.consumer_index(), index);
                prop_assert!(run.into_iter().all(|slot| slot < depth));
            }
            Err(_) => {
                prop_assert_eq!(before, (cursors.outstanding(), cursors.consumed(), cursors.consumer_slot()));
            }
        }
    }
}
