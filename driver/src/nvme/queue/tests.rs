use core::sync::atomic::Ordering;

use vdk_descriptors::nvme::StatusField;
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{Bar, BarInfo, BarKind, BarPermissions, Liveness, MappedArea};
use vdk_hal::memory::{Pages, SharedMemory};

use super::*;

const STRIDE: ByteLength = ByteLength::new(4);
const NUMBER: u16 = 1;

/// A controller's side of one queue, played by hand.
struct Far {
    submission: Slots<SubmissionEntry>,
    completion: Slots<CompletionEntry>,
    registers: SharedMemory,
    /// Where the next completion goes, and its phase.
    slot: usize,
    phase: bool,
    /// Commands that were fetched.
    head: u16,
}

fn pair(submission: usize, completion: usize) -> (CommandQueue<u32>, Far) {
    let memory = SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Base).unwrap();
    let registers = SharedMemory::allocate(ByteLength::new(0x2000), Pages::Base).unwrap();
    let index = BarIndex::new(0).unwrap();
    let info = BarInfo {
        index,
        kind: BarKind::Memory64,
        prefetchable: false,
        size: ByteLength::new(0x2000),
        address: 0,
    };
    let area = MappedArea { offset: 0, memory: registers.clone(), kick: None };
    let bar = Bar::new(info, BarPermissions::READ_WRITE, vec![area], None, Liveness::new());
    let entries = |first: usize| memory.slots(first, completion).unwrap();
    let queue = CommandQueue::new(
        NUMBER,
        memory.slots(0, submission).unwrap(),
        entries(1 << 20),
        bells(&bar, NUMBER, STRIDE, None).unwrap(),
    );
    let far = Far {
        submission: memory.slots(0, submission).unwrap(),
        completion: entries(1 << 20),
        registers,
        slot: 0,
        phase: true,
        head: 0,
    };
    (queue.unwrap(), far)
}

impl Far {
    fn tail(&self) -> u16 {
        u16::try_from(self.registers.load::<u32>(0x1008, Ordering::Relaxed).unwrap()).unwrap()
    }

    fn acknowledged(&self) -> u32 {
        self.registers.load::<u32>(0x100c, Ordering::Relaxed).unwrap()
    }

    /// Fetches the commands up to the doorbell.
    fn fetch(&mut self) -> Vec<u16> {
        let tail = self.tail();
        assert!(usize::from(tail) < self.submission.count(), "the doorbell is in the queue");
        let mut fetched = Vec::new();
        while self.head != tail {
            fetched.push(self.submission.read(usize::from(self.head)).command_id);
            self.head = if usize::from(self.head) + 1 == self.submission.count() { 0 } else { self.head + 1 };
        }
        fetched
    }

    fn post(&mut self, entry: CompletionEntry) {
        let next = if self.slot + 1 == self.completion.count() { 0 } else { self.slot + 1 };
        assert_ne!(next, self.acknowledged() as usize, "a controller never posts to a full queue");
        self.post_unchecked(entry);
    }

    fn post_unchecked(&mut self, mut entry: CompletionEntry) {
        entry.status.set_phase(self.phase);
        self.completion.write(self.slot, &entry);
        self.slot += 1;
        if self.slot == self.completion.count() {
            (self.slot, self.phase) = (0, !self.phase);
        }
    }

    fn entry(&self, command_id: u16) -> CompletionEntry {
        CompletionEntry {
            submission_head: self.head,
            submission_queue: NUMBER,
            command_id,
            ..CompletionEntry::default()
        }
    }

    fn complete(&mut self, command_id: u16) {
        self.post(self.entry(command_id));
    }
}

fn submit(queue: &mut CommandQueue<u32>, owner: u32) -> Result<Cookie, u32> {
    queue.submit(owner, |_, _| Ok::<_, ()>(())).map_err(|(owner, _)| owner)
}

fn drain(queue: &mut CommandQueue<u32>) -> (Vec<u32>, Option<CompletionFault>) {
    let mut owners = Vec::new();
    let polled = queue.poll(u32::MAX, |_, _, owner| owners.push(owner)).unwrap();
    assert_eq!(owners.len(), polled.count as usize);
    (owners, polled.fault)
}

#[test]
fn a_queue_wraps_at_its_own_depth_for_many_rounds() {
    for (submission, completion) in [(2, 2), (2, 64), (3, 3), (5, 7), (128, 128), (128, 256)] {
        let (mut queue, mut far) = pair(submission, completion);
        let depth = u32::try_from(submission - 1).unwrap();
        assert_eq!(queue.depth(), depth);
        let mut expected = 0u32;
        for round in 0..10 * (depth + 1) {
            let count = 1 + round % depth;
            for _ in 0..count {
                submit(&mut queue, expected).unwrap();
                expected += 1;
            }
            if count == depth {
                assert_eq!(submit(&mut queue, 7), Err(7), "the queue is full");
            }
            queue.commit().unwrap();
            for command_id in far.fetch() {
                far.complete(command_id);
            }
            let (owners, fault) = drain(&mut queue);
            assert_eq!(fault, None);
            let first = expected - count;
            assert_eq!(owners, (first..expected).collect::<Vec<_>>());
            assert_eq!((queue.in_flight(), queue.free()), (0, depth));
        }
    }
}

#[test]
fn commands_end_in_any_order_each_once() {
    let (mut queue, mut far) = pair(9, 32);
    for owner in 0..8 {
        submit(&mut queue, owner).unwrap();
    }
    queue.commit().unwrap();
    let mut commands = far.fetch();
    commands.reverse();
    far.complete(commands[0]);
    assert_eq!(drain(&mut queue), (vec![7], None));
    // All slots of the submission queue are free again, but only one identifier.
    submit(&mut queue, 8).unwrap();
    assert_eq!(submit(&mut queue, 9), Err(9));
    queue.commit().unwrap();
    commands.extend(far.fetch());
    for command_id in &commands[1..] {
        far.complete(*command_id);
    }
    assert_eq!(drain(&mut queue), (vec![6, 5, 4, 3, 2, 1, 0, 8], None));
}

#[test]
fn one_doorbell_is_rung_for_a_batch_and_none_for_nothing() {
    let (mut queue, far) = pair(64, 128);
    queue.commit().unwrap();
    assert_eq!(queue.doorbells(), (0, 0, 0));
    for owner in 0..40 {
        submit(&mut queue, owner).unwrap();
    }
    assert_eq!(far.tail(), 0);
    queue.commit().unwrap();
    queue.commit().unwrap();
    assert_eq!((far.tail(), queue.doorbells()), (40, (1, 0, 0)));
}

#[test]
fn the_completion_doorbell_is_rung_before_the_queue_is_full_and_when_asked() {
    // 63 commands and 128 completions: 64 may go untold.
    let (mut queue, mut far) = pair(64, 128);
    for round in 1..=100u64 {
        submit(&mut queue, 0).unwrap();
        queue.commit().unwrap();
        for command_id in far.fetch() {
            far.complete(command_id);
        }
        drain(&mut queue);
        assert_eq!(queue.doorbells().1, round / 64);
    }
    assert_eq!(far.acknowledged(), 64);
    queue.acknowledge().unwrap();
    queue.acknowledge().unwrap();
    assert_eq!((far.acknowledged(), queue.doorbells().1), (100, 2));
}

#[test]
fn completions_that_make_no_sense_complete_nobody() {
    type Change = fn(&Far, u16) -> CompletionEntry;
    let changes: [(&str, Change); 5] = [
        ("another queue", |far, id| CompletionEntry { submission_queue: 2, ..far.entry(id) }),
        ("an identifier out of range", |far, _| far.entry(0x0007)),
        ("an identifier that is not in flight", |far, id| far.entry(id ^ 0x0002)),
        ("a head outside the queue", |far, id| CompletionEntry { submission_head: 5, ..far.entry(id) }),
        ("a head past the tail", |far, id| CompletionEntry { submission_head: 3, ..far.entry(id) }),
    ];
    for (what, change) in changes {
        let (mut queue, mut far) = pair(5, 16);
        submit(&mut queue, 10).unwrap();
        submit(&mut queue, 11).unwrap();
        queue.commit().unwrap();
        let commands = far.fetch();
        far.complete(commands[0]);
        assert_eq!(drain(&mut queue), (vec![10], None), "{what}");
        let entry = change(&far, commands[1]);
        far.post(entry);
        let (owners, fault) = drain(&mut queue);
        assert!(owners.is_empty() && fault.is_some(), "{what}: {fault:?}");
        assert_eq!(queue.in_flight(), 1, "{what}");
        let mut ended = Vec::new();
        queue.reset(|_, owner| ended.push(owner));
        assert_eq!(ended, [11], "{what}");
    }
}

#[test]
fn a_completion_that_comes_twice_or_late_completes_nobody() {
    let (mut queue, mut far) = pair(5, 16);
    submit(&mut queue, 10).unwrap();
    queue.commit().unwrap();
    let command_id = far.fetch()[0];
    far.complete(command_id);
    far.complete(command_id);
    let (owners, fault) = drain(&mut queue);
    assert_eq!(owners, [10]);
    assert!(matches!(fault, Some(CompletionFault::Command { .. })), "{fault:?}");
    // The next command in the same slot has another identifier.
    submit(&mut queue, 11).unwrap();
    queue.commit().unwrap();
    let next = far.fetch()[0];
    assert_ne!(next, command_id);
    far.complete(command_id);
    let (owners, fault) = drain(&mut queue);
    assert!(owners.is_empty() && fault.is_some());
}

#[test]
fn a_head_that_is_older_than_the_known_one_is_taken_and_frees_nothing() {
    let (mut queue, mut far) = pair(5, 16);
    for owner in 0..3 {
        submit(&mut queue, owner).unwrap();
    }
    queue.commit().unwrap();
    let commands = far.fetch();
    far.complete(commands[2]);
    far.post(CompletionEntry { submission_head: 1, ..far.entry(commands[0]) });
    far.post(CompletionEntry { submission_head: 2, ..far.entry(commands[1]) });
    assert_eq!(drain(&mut queue), (vec![2, 0, 1], None));
    assert_eq!(queue.free(), 4);
}

#[test]
fn a_head_before_its_own_command_is_refused() {
    let (mut queue, mut far) = pair(5, 16);
    for owner in 0..3 {
        submit(&mut queue, owner).unwrap();
    }
    queue.commit().unwrap();
    let commands = far.fetch();
    far.post(CompletionEntry { submission_head: 1, ..far.entry(commands[1]) });
    let (owners, fault) = drain(&mut queue);
    assert_eq!((owners, fault), (vec![], Some(CompletionFault::Head { head: 1 })));
}

#[test]
fn a_phase_that_flaps_is_found_and_nothing_is_taken_for_new() {
    let (mut queue, mut far) = pair(5, 8);
    for round in 0..20 {
        submit(&mut queue, round).unwrap();
        queue.commit().unwrap();
        let command_id = far.fetch()[0];
        // The same entry appears with the other phase first, as from the round before.
        let mut stale = far.entry(command_id);
        stale.status.set_phase(!far.phase);
        far.completion.write(far.slot, &stale);
        assert_eq!(drain(&mut queue), (vec![], None));
        far.complete(command_id);
        assert_eq!(drain(&mut queue), (vec![round], None));
    }
    // All phases turn at once: old completions look new.
    submit(&mut queue, 99).unwrap();
    queue.commit().unwrap();
    for slot in 0..8 {
        let mut entry = far.completion.read(slot);
        entry.status.set_phase(!entry.status.phase());
        far.completion.write(slot, &entry);
    }
    let (owners, fault) = drain(&mut queue);
    assert!(owners.is_empty() && fault.is_some());
}

#[test]
fn a_failed_build_gives_the_owner_back_and_takes_no_slot() {
    let (mut queue, far) = pair(2, 4);
    for _ in 0..3 {
        assert_eq!(queue.submit(5, |_, _| Err("no")), Err((5, Some("no"))));
    }
    queue.commit().unwrap();
    assert_eq!((far.tail(), queue.free(), queue.in_flight()), (0, 1, 0));
    assert!(submit(&mut queue, 6).is_ok());
}

#[test]
fn a_reset_gives_back_every_owner_once_and_begins_anew() {
    let (mut queue, mut far) = pair(5, 8);
    for round in 0..50u32 {
        for owner in 0..1 + round % 4 {
            submit(&mut queue, owner).unwrap();
        }
        queue.commit().unwrap();
        let commands = far.fetch();
        // Some complete, and one completion was posted and not looked at.
        if round % 2 == 0 {
            far.complete(commands[0]);
        }
        let mut ended = Vec::new();
        queue.reset(|_, owner| ended.push(owner));
        ended.sort_unstable();
        assert_eq!(ended, (0..1 + round % 4).collect::<Vec<_>>());
        assert_eq!(drain(&mut queue), (vec![], None), "what was posted before is gone");
        far.registers.store(0x1008, 0u32, Ordering::Relaxed).unwrap();
        far.registers.store(0x100c, 0u32, Ordering::Relaxed).unwrap();
        (far.head, far.slot, far.phase) = (0, 0, true);
    }
}

#[test]
fn the_deepest_queue_has_an_identifier_for_each_command_but_0xffff() {
    let submission = SharedMemory::allocate(ByteLength::new(4 << 20), Pages::Base).unwrap();
    let (_, far) = pair(2, 2);
    drop(far);
    let registers = SharedMemory::allocate(ByteLength::new(0x2000), Pages::Base).unwrap();
    let doorbell = |offset| {
        let word = registers.slice(offset, 4).unwrap();
        vdk_hal::mmio::Doorbell::<u32>::mapped(word, None).unwrap()
    };
    let bells = (Bell::of(doorbell(0x1008)), Bell::of(doorbell(0x100c)));
    let completion = SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Base).unwrap();
    let table = submission.slots(0, 65_536).unwrap();
    let mut queue = CommandQueue::new(1, table, completion.slots(0, 65_536).unwrap(), bells).unwrap();
    assert_eq!(queue.depth(), 65_535);
    let mut seen = vec![false; 65_536];
    for owner in 0..65_535u32 {
        let mut command_id = 0;
        let submitted = queue.submit(owner, |_, entry| {
            command_id = entry.command_id;
            Ok::<_, ()>(())
        });
        assert!(submitted.is_ok());
        assert!(!core::mem::replace(&mut seen[usize::from(command_id)], true));
    }
    assert!(!seen[0xffff]);
    assert_eq!(submit(&mut queue, 0), Err(0));
    queue.commit().unwrap();
    assert_eq!(registers.load::<u32>(0x1008, Ordering::Relaxed), Ok(65_535));
}

#[test]
fn commands_grow_old_and_are_found() {
    let (mut queue, mut far) = pair(9, 32);
    let old = submit(&mut queue, 0).unwrap();
    queue.commit().unwrap();
    let first = far.fetch()[0];
    for _ in 0..9 {
        assert_eq!(queue.overdue(8), (vec![], 0));
        queue.advance();
    }
    submit(&mut queue, 1).unwrap();
    assert_eq!(queue.overdue(8), (vec![(old, first)], 0));
    queue.mark_aborted(old);
    assert_eq!(queue.overdue(8), (vec![], 0));
    for _ in 0..8 {
        queue.advance();
    }
    assert_eq!(queue.overdue(8).1, 1);
    assert_eq!(queue.command_id(old), Some(first));
    far.complete(first);
    drain(&mut queue);
    assert_eq!((queue.command_id(old), queue.overdue(8).1), (None, 0));
}

#[test]
fn a_status_reaches_whoever_polls() {
    let (mut queue, mut far) = pair(3, 8);
    submit(&mut queue, 0).unwrap();
    queue.commit().unwrap();
    let command_id = far.fetch()[0];
    let mut status = StatusField::default();
    status.set_code(0x80);
    far.post(CompletionEntry { status, result: 0x1234, ..far.entry(command_id) });
    let mut seen = Vec::new();
    queue.poll(8, |_, entry, owner| seen.push((owner, entry.status.code(), entry.result))).unwrap();
    assert_eq!(seen, [(0, 0x80, 0x1234)]);
}
