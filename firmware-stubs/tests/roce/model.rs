//! Random schedules against a plain reference.
//!
//! Both ends post at random, over a wire that loses, doubles, delays and damages frames, with a clock
//! that jumps. The reference is memory on which each request is carried out once, in order,
//! when it is posted. In the end all bytes must be where the reference has them, and each
//! request must have completed once and in order. On the way a queue pair may fail, be reset
//! and connected again, or meet a local key that allows nothing. A failure names its seed; with
//! `ROCE_SEED` set, only that schedule runs.

use std::collections::VecDeque;

use vdk_descriptors::roce::{PathMtu, Psn};
use vdk_firmware_stubs::roce::{
    Attributes, Completion, Operation, Path, Payload, QueueSizes, Remote, Rights, ScatterGatherEntry,
    SendRequest, State, Status, Time,
};

use crate::lab::{End, Lab, Settings, connect};
use crate::random::{Random, damage};

const CHUNK: u64 = 2048;
/// More than requests can be posted, so that a chunk rests until its request is done.
const CHUNKS: u64 = 32;
const READS: u64 = CHUNK * CHUNKS;
const RECEIVES: u64 = 2 * READS;
/// Written and never read by the other side.
const WRITTEN: u64 = 3 * READS;
/// Written and read by the other side, with a fence after each read.
const SHARED: u64 = WRITTEN + 4 * CHUNK;
const NUMBERS: u64 = SHARED + 2 * CHUNK;
const REGION: u64 = NUMBERS + 64;
const LONGEST: u64 = 1300;

/// A posted send and what must come of it.
struct Posted {
    id: u64,
    /// Where the answer is, and what it must be.
    answer: Option<(usize, Vec<u8>)>,
    /// Whether its local key allows nothing.
    bad: bool,
}

/// What happens on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nothing.
    None,
    /// Both ends go to Error.
    Error,
    /// Both ends go to Reset and are connected again.
    Reset,
    /// One end posts a request with a bad local key.
    BadKey,
}

struct Half {
    end: End,
    next: u64,
    left: u64,
    posted: VecDeque<Posted>,
    reads_since_fence: bool,
    /// What the memory of the other side must be.
    reference: Vec<u8>,
    /// Messages that receives of the other side must bring: bytes and immediate value.
    messages: VecDeque<(Vec<u8>, Option<u32>)>,
    receives: VecDeque<u64>,
    next_receive: u64,
    last_receive: u64,
    failed: bool,
}

/// More receives than the other side needs for its sends.
const RECEIVED: u64 = 60;

struct Flying {
    due: Time,
    to: End,
    bytes: Vec<u8>,
}

struct Schedule {
    seed: u64,
    random: Random,
    settings: Settings,
    lab: Lab,
    halves: [Half; 2],
    flying: Vec<Flying>,
    loss: u64,
    doubling: u64,
    damage: u64,
    delay: u64,
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let around = |random: &mut Random| {
            let center: u32 = random.pick(&[0, 1 << 23, 0x12_3456]);
            Psn::new(center.wrapping_sub(u32::try_from(random.below(60)).unwrap()))
        };
        let depth = u8::try_from(1 + random.below(4)).unwrap();
        let settings = Settings {
            mtu: random.pick(&[PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024]),
            client_psn: around(&mut random),
            server_psn: around(&mut random),
            timeout: 6,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: random.pick(&[1, 5, 12]),
            initiator_depth: depth,
            responder_depth: depth,
            region: index(REGION),
            window: random.pick(&[1, 2, 5, 16, 128]),
            sizes: QueueSizes { sends: 16, receives: 8, entries: 3, inline: 32 },
            ..Settings::default()
        };
        let lab = Lab::new(settings);
        let half = |end| Half {
            end,
            next: 0,
            left: 40,
            posted: VecDeque::new(),
            reads_since_fence: false,
            reference: vec![0; index(REGION)],
            messages: VecDeque::new(),
            receives: VecDeque::new(),
            next_receive: 1000,
            last_receive: 1000 + RECEIVED,
            failed: false,
        };
        let halves = [half(End::Client), half(End::Server)];
        let (loss, doubling) = (random.pick(&[0, 1, 5]), random.pick(&[0, 3, 20]));
        let damage = random.pick(&[0, 0, 2]);
        let delay = random.pick(&[1, 2000, 50_000, 400_000]);
        Self { seed, random, settings, lab, halves, flying: Vec::new(), loss, doubling, damage, delay }
    }

    fn post(&mut self, side: usize) {
        let random = &mut self.random;
        let half = &mut self.halves[side];
        if half.left == 0 || half.failed {
            return;
        }
        let id = half.next;
        let chunk = id % CHUNKS * CHUNK;
        let length = random.pick(&[0, 1, 7, 255, 256, 257, 512, 1024, 1025, random.clone().below(LONGEST)]);
        let mut bytes = vec![0; index(length)];
        random.fill(&mut bytes);
        let peer = match half.end {
            End::Client => &self.lab.server,
            End::Server => &self.lab.client,
        };
        let (base, key) = (peer.region.address, peer.region.key);
        let at = |offset: u64| Remote { address: base + offset, key };
        let number = NUMBERS + 8 * random.below(8);
        let shared = SHARED + random.below(2 * CHUNK - LONGEST);
        let written = WRITTEN + random.below(4 * CHUNK - LONGEST);
        let immediate = u32::try_from(random.below(1 << 32)).unwrap();
        let mut answer = None;
        let mut changes: Option<(u64, Vec<u8>)> = None;
        let mut message = None;
        let mut fence = random.percent(5);
        let operation = match random.below(9) {
            0 => {
                message = Some((bytes.clone(), None));
                Operation::Send
            }
            1 => {
                message = Some((bytes.clone(), Some(immediate)));
                Operation::SendWithImmediate(immediate)
            }
            2 | 3 => {
                changes = Some((written, bytes.clone()));
                Operation::Write(at(written))
            }
            4 => {
                changes = Some((written, bytes.clone()));
                // The length of the WRITE, and none of its bytes.
                message = Some((bytes.clone(), Some(immediate)));
                Operation::WriteWithImmediate(at(written), immediate)
            }
            5 => {
                fence |= half.reads_since_fence;
                changes = Some((shared, bytes.clone()));
                Operation::Write(at(shared))
            }
            6 => {
                let now = half.reference[index(shared)..index(shared + length)].to_vec();
                answer = Some((index(READS + chunk), now));
                Operation::Read(at(shared))
            }
            7 => {
                let place = index(number)..index(number) + 8;
                let original = u64::from_ne_bytes(half.reference[place].try_into().unwrap());
                let compare = if random.percent(50) { original } else { original ^ 1 };
                let swap = random.next();
                let after = if compare == original { swap } else { original };
                answer = Some((index(READS + chunk), original.to_ne_bytes().to_vec()));
                changes = Some((number, after.to_ne_bytes().to_vec()));
                Operation::CompareSwap { remote: at(number), compare, swap }
            }
            _ => {
                let place = index(number)..index(number) + 8;
                let original = u64::from_ne_bytes(half.reference[place].try_into().unwrap());
                let add = random.next();
                answer = Some((index(READS + chunk), original.to_ne_bytes().to_vec()));
                changes = Some((number, original.wrapping_add(add).to_ne_bytes().to_vec()));
                Operation::FetchAdd { remote: at(number), add }
            }
        };
        let inline = bytes.len() <= 32 && answer.is_none() && random.percent(50);
        let cut = random.below(length + 1);
        let end = half.end;
        let node = self.lab.node(end);
        node.bytes()[index(chunk)..index(chunk) + bytes.len()].copy_from_slice(&bytes);
        let part =
            |node: &crate::lab::Node, offset, length| node.entry(offset, u32::try_from(length).unwrap());
        let entries = match operation {
            Operation::Read(_) => {
                vec![part(node, READS + chunk, cut), part(node, READS + chunk + cut, length - cut)]
            }
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => vec![part(node, READS + chunk, 8)],
            _ => vec![part(node, chunk, cut), part(node, chunk + cut, length - cut)],
        };
        let payload = if inline { Payload::Inline(&bytes) } else { Payload::Entries(&entries) };
        let mut request = SendRequest::new(id, operation, payload);
        request.fence = fence;
        if node.endpoint.post_send(node.number, &request).is_err() {
            return; // The queue is full.
        }
        half.next += 1;
        half.left -= 1;
        if fence {
            half.reads_since_fence = false;
        }
        half.reads_since_fence |= matches!(operation, Operation::Read(_));
        if let Some((offset, bytes)) = changes {
            half.reference[index(offset)..index(offset) + bytes.len()].copy_from_slice(&bytes);
        }
        half.messages.extend(message);
        half.posted.push_back(Posted { id, answer, bad: false });
    }

    fn post_receive(&mut self, side: usize) {
        let half = &mut self.halves[side];
        // A full queue would refuse, and all sends of the other side need no more.
        if half.receives.len() == 8 || half.next_receive == half.last_receive {
            return;
        }
        let id = half.next_receive;
        half.next_receive += 1;
        half.receives.push_back(id);
        let offset = RECEIVES + id % CHUNKS * CHUNK;
        let node = self.lab.node(half.end);
        let entries = [node.entry(offset, 100), node.entry(offset + 100, 1900)];
        node.post_receive(id, &entries);
    }

    fn check_sends(&mut self, side: usize) {
        let seed = self.seed;
        let half = &mut self.halves[side];
        let node = self.lab.node(half.end);
        for done in node.sends_done() {
            let posted = half.posted.pop_front().unwrap_or_else(|| panic!("seed {seed}: twice: {done:?}"));
            assert_eq!(done.id(), posted.id, "seed {seed}: in order");
            match done {
                Completion::Success(_) => {
                    assert!(!half.failed && !posted.bad, "seed {seed}: success after an error");
                    if let Some((offset, expected)) = posted.answer {
                        let found = &node.bytes()[offset..offset + expected.len()];
                        assert_eq!(found, expected, "seed {seed}: the answer of {}", posted.id);
                    }
                }
                Completion::Error(failure) => {
                    let expected = match (half.failed, posted.bad) {
                        (true, _) => Some(Status::Flushed),
                        (false, true) => Some(Status::LocalProtection),
                        (false, false) => None,
                    };
                    let fits = expected.is_none_or(|expected| expected == failure.status);
                    assert!(fits, "seed {seed}: {failure:?}");
                    half.failed = true;
                }
            }
        }
    }

    fn check_receives(&mut self, side: usize) {
        let seed = self.seed;
        let (mine, peer) = if side == 0 {
            let (a, b) = self.halves.split_at_mut(1);
            (&mut a[0], &mut b[0])
        } else {
            let (a, b) = self.halves.split_at_mut(1);
            (&mut b[0], &mut a[0])
        };
        let node = self.lab.node(mine.end);
        for done in node.receives_done() {
            let id = mine.receives.pop_front().unwrap_or_else(|| panic!("seed {seed}: twice: {done:?}"));
            assert_eq!(done.id(), id, "seed {seed}: receives in order");
            let Completion::Success(success) = done else { continue };
            let (bytes, immediate) = peer.messages.pop_front().expect("a message for each receive");
            assert_eq!(success.immediate, immediate, "seed {seed}");
            assert_eq!(success.length as usize, bytes.len(), "seed {seed}");
            if success.opcode == vdk_firmware_stubs::roce::CompletionOpcode::Receive {
                let offset = index(RECEIVES + id % CHUNKS * CHUNK);
                assert_eq!(node.bytes()[offset..offset + bytes.len()], bytes, "seed {seed}: message");
            }
        }
    }

    fn transmit(&mut self, side: usize) {
        let end = self.halves[side].end;
        for _ in 0..self.random.below(8) {
            let Some(bytes) = self.lab.next_frame(end) else { return };
            let copies = 1 + u64::from(self.random.percent(self.doubling));
            for _ in 0..copies {
                if self.random.percent(self.loss) {
                    continue;
                }
                let mut bytes = bytes.clone();
                if self.random.percent(self.damage) {
                    damage(&mut self.random, &mut bytes);
                }
                let due = Time::from_nanos(self.lab.now.nanos() + self.random.below(self.delay));
                self.flying.push(Flying { due, to: end.other(), bytes });
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(first) = (0..self.flying.len()).min_by_key(|place| (self.flying[*place].due, *place)) {
            if self.flying[first].due > self.lab.now {
                return;
            }
            let Flying { to, bytes, .. } = self.flying.remove(first);
            self.lab.deliver(to, &bytes);
        }
    }

    fn advance(&mut self) {
        let next = self.flying.iter().map(|flying| flying.due);
        let deadlines = [self.lab.client.endpoint.deadline(), self.lab.server.endpoint.deadline()];
        let next = next.chain(deadlines.into_iter().flatten()).min();
        let jump = self.random.below(3000);
        let now = self.lab.now.nanos();
        let to = match next {
            Some(next) if self.random.percent(70) => next.nanos().max(now),
            _ => now + jump,
        };
        self.lab.now = Time::from_nanos(to);
        let now = self.lab.now;
        self.lab.client.endpoint.tick(now);
        self.lab.server.endpoint.tick(now);
    }

    fn is_done(&self) -> bool {
        self.halves.iter().all(|half| half.left == 0 && half.posted.is_empty())
    }

    /// Posts a request whose local memory may not be used, and nothing after it.
    fn post_bad(&mut self, side: usize) -> bool {
        let half = &mut self.halves[side];
        let peer = match half.end {
            End::Client => &self.lab.server,
            End::Server => &self.lab.client,
        };
        let remote = Remote { address: peer.region.address + WRITTEN, key: peer.region.key };
        let atomic = Remote { address: peer.region.address + REGION - 64, ..remote };
        let operation = self.random.pick(&[
            Operation::Send,
            Operation::Write(remote),
            Operation::WriteWithImmediate(remote, 1),
            Operation::Read(remote),
            Operation::FetchAdd { remote: atomic, add: 0 },
        ]);
        let length = match operation {
            Operation::FetchAdd { .. } => 8,
            _ => self.random.pick(&[1, 256, 1200]),
        };
        let node = self.lab.node(half.end);
        let good = node.entry(0, length);
        // A key of nothing, or the right key for bytes that are not the region's.
        let bad = match self.random.below(2) {
            0 => ScatterGatherEntry { key: good.key ^ 0x100, ..good },
            _ => node.entry(REGION - u64::from(length) + 1, length),
        };
        let id = half.next;
        let request = SendRequest::new(id, operation, Payload::Entries(std::slice::from_ref(&bad)));
        if node.endpoint.post_send(node.number, &request).is_err() {
            return false; // The queue is full.
        }
        half.next += 1;
        half.left = 0;
        half.posted.push_back(Posted { id, answer: None, bad: true });
        true
    }

    /// Resets both ends and connects them again, while old frames still fly.
    fn reset(&mut self) {
        let seed = self.seed;
        let psns = self.lab.psns.map(|psn| psn.after(1 << 22));
        let ends = [(psns[0], psns[1]), (psns[1], psns[0])];
        let peers = [&self.lab.server, &self.lab.client].map(|peer| (peer.station, peer.number));
        for (side, ((station, number), psns)) in peers.into_iter().zip(ends).enumerate() {
            let half = &mut self.halves[side];
            let node = self.lab.node(half.end);
            node.endpoint.modify(node.number, State::Reset, &Attributes::NONE).unwrap();
            let path = Path::new(node.station, station, 0xc123).unwrap();
            connect(node, &self.settings, Rights::ALL, psns, path, number);
            let silent = node.sends_done().is_empty() && node.receives_done().is_empty();
            assert!(silent, "seed {seed}: what is posted ends in Reset without completions");
            half.posted.clear();
            half.receives.clear();
            half.messages.clear();
            half.reads_since_fence = false;
            half.left = 40;
            half.last_receive = half.next_receive + RECEIVED;
            // What was on its way may have been done or not.
            let peer = self.lab.node(half.end.other()).bytes().to_vec();
            half.reference = peer;
        }
    }

    /// Runs until everything completed.
    fn run(mut self, mut turn: Turn) {
        let seed = self.seed;
        let mut countdown = 20 + self.random.below(200);
        for round in 0.. {
            assert!(round < 100_000, "seed {seed}: it does not end");
            for side in 0..2 {
                for _ in 0..self.random.below(3) {
                    self.post(side);
                }
                if self.random.percent(40) {
                    self.post_receive(side);
                }
                self.transmit(side);
            }
            self.advance();
            self.deliver();
            for side in 0..2 {
                self.check_receives(side);
                self.check_sends(side);
            }
            countdown = countdown.saturating_sub(1);
            match turn {
                Turn::Error if countdown == 0 => return self.end_in_error(),
                Turn::Reset if countdown == 0 => {
                    self.reset();
                    turn = Turn::None;
                }
                Turn::BadKey if countdown == 0 => {
                    let side = usize::from(self.random.percent(50));
                    if self.post_bad(side) {
                        return self.end_in_failure(side);
                    }
                }
                _ => {}
            }
            if self.is_done() && self.lab.log.is_empty() {
                break;
            }
            if self.is_done() {
                // Everything completed; what still flies must change nothing.
                self.lab.log.clear();
            }
        }
        for side in 0..2 {
            let half = &self.halves[side];
            assert!(!half.failed, "seed {seed}: {:?} failed", half.end);
            assert!(half.messages.is_empty(), "seed {seed}: messages without a receive");
            let reference = half.reference[index(WRITTEN)..].to_vec();
            let peer = self.lab.node(half.end.other());
            let found = peer.bytes()[index(WRITTEN)..].to_vec();
            assert!(found == reference, "seed {seed}: the bytes at {:?}'s peer", self.halves[side].end);
        }
    }

    /// Runs on until the end with the bad request has failed, and all that it posted ended.
    /// What it posted before is done at the other side, and nothing else.
    fn end_in_failure(mut self, side: usize) {
        let seed = self.seed;
        let end = self.halves[side].end;
        self.halves[1 - side].left = 0;
        for round in 0.. {
            assert!(round < 100_000, "seed {seed}: it does not end");
            // The other side goes on to receive what comes before.
            self.post_receive(1 - side);
            self.transmit(0);
            self.transmit(1);
            self.advance();
            self.deliver();
            for side in 0..2 {
                self.check_receives(side);
                self.check_sends(side);
            }
            if self.halves.iter().all(|half| half.posted.is_empty()) {
                break;
            }
        }
        let half = &self.halves[side];
        assert!(half.failed && half.receives.is_empty(), "seed {seed}: {end:?} did not fail");
        assert!(half.messages.is_empty(), "seed {seed}: messages without a receive");
        assert_eq!(self.lab.node(end).state(), State::Error, "seed {seed}");
        let reference = self.halves[side].reference[index(WRITTEN)..].to_vec();
        let found = self.lab.node(end.other()).bytes()[index(WRITTEN)..].to_vec();
        assert!(found == reference, "seed {seed}: the bytes at the peer of {end:?}");
    }

    /// Everything posted is flushed once, and destroying gives nothing back.
    fn end_in_error(mut self) {
        let seed = self.seed;
        for side in 0..2 {
            let end = self.halves[side].end;
            let node = self.lab.node(end);
            node.endpoint.modify(node.number, State::Error, &Attributes::NONE).unwrap();
        }
        for side in 0..2 {
            self.check_receives(side);
            self.check_sends(side);
            let half = &mut self.halves[side];
            assert!(half.posted.is_empty() && half.receives.is_empty(), "seed {seed}: not all flushed");
            let node = self.lab.node(half.end);
            let request = SendRequest::new(1, Operation::Send, Payload::Inline(&[]));
            node.endpoint.post_send(node.number, &request).unwrap();
            assert_eq!(node.sends_done()[0].status(), Some(Status::Flushed), "seed {seed}");
            assert_eq!(node.endpoint.destroy(node.number), Ok(Vec::new()), "seed {seed}");
        }
    }
}

pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let only = std::env::var("ROCE_SEED").ok().map(|seed| seed.parse().expect("ROCE_SEED is a number"));
    only.map_or(0..count, |seed| seed..seed + 1)
}

#[test]
fn thousands_of_bad_schedules_end_as_the_reference_does() {
    for seed in seeds(2000) {
        Schedule::new(seed).run(Turn::None);
    }
}

#[test]
fn a_queue_pair_that_fails_anywhere_completes_everything_once() {
    for seed in seeds(1000) {
        Schedule::new(seed).run(Turn::Error);
    }
}

#[test]
fn a_queue_pair_that_is_reset_anywhere_begins_anew() {
    for seed in seeds(1000) {
        Schedule::new(seed).run(Turn::Reset);
    }
}

#[test]
fn a_bad_local_key_fails_its_request_in_its_turn_and_flushes_the_rest() {
    for seed in seeds(1000) {
        Schedule::new(seed).run(Turn::BadKey);
    }
}

#[test]
fn the_schedules_pass_both_places_where_psns_can_be_mistaken() {
    // Close below 2^24, where they wrap, and 2^23, where a sign would change.
    let starts: Vec<u32> = (0..200).flat_map(|seed| Schedule::new(seed).lab.psns.map(Psn::value)).collect();
    for edge in [1_u32 << 24, 1 << 23] {
        let near = starts.iter().filter(|start| (1..60).contains(&edge.wrapping_sub(**start)));
        assert!(near.count() > 50, "{edge:#x}");
    }
}
