//! Random schedules of retries against a plain reference: every retry count, every RNR retry
//! count, and what is left when they are used up.
//!
//! One packet is on its way at a time. Each attempt at it is lost or damaged, or its answer is; or
//! there is no receive; or it is done. The reference counts what is left, and says how the
//! request ends. A failure names its seed; with `ROCE_SEED` set, only that schedule runs.

use vdk_firmware_stubs::roce::{Operation, State, Status};

use crate::lab::{End, Lab, Settings, statuses};
use crate::model::seeds;
use crate::random::{Random, damage};

const REQUESTS: u64 = 12;

/// What becomes of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// The request does not arrive.
    RequestLost,
    /// It does, and its answer does not.
    AnswerLost,
    /// There is no receive for it.
    NotReady,
    Done,
}

/// What is left.
#[derive(Clone, Copy)]
struct Reference {
    counts: (u8, u8),
    left: (u8, u8),
}

impl Reference {
    /// How the request ends with this attempt, if it does.
    fn end(&mut self, attempt: Attempt) -> Option<Option<Status>> {
        let (retries, rnr_retries) = &mut self.left;
        let (left, status) = match attempt {
            Attempt::Done => {
                self.left = self.counts;
                return Some(None);
            }
            Attempt::NotReady if *rnr_retries == 7 => return None,
            Attempt::NotReady => (rnr_retries, Status::ReceiverNotReadyExceeded),
            Attempt::RequestLost | Attempt::AnswerLost => (retries, Status::RetryExceeded),
        };
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => return Some(Some(status)),
        }
        None
    }
}

/// Runs one schedule, and says how its last request ended.
fn run(seed: u64) -> Option<Status> {
    let mut random = Random::new(seed);
    let counts = (u8::try_from(seed % 8).unwrap(), u8::try_from(seed / 8 % 8).unwrap());
    let mut reference = Reference { counts, left: counts };
    // Between a wire that is fine and one that seldom carries anything.
    let (loss, lateness) = (random.pick(&[0, 5, 30, 70]), random.pick(&[0, 5, 40, 80]));
    let settings = Settings { retries: counts.0, rnr_retries: counts.1, timeout: 6, ..Settings::default() };
    let mut lab = Lab::new(settings);
    let (mut added, mut written) = (0_u64, 0_u8);
    let carry = |lab: &mut Lab, random: &mut Random, to: End, bytes: &[u8], arrives: bool| {
        let mut bytes = bytes.to_vec();
        if !arrives {
            if random.percent(50) {
                return;
            }
            damage(random, &mut bytes);
        }
        lab.deliver(to, &bytes);
    };
    for id in 0..REQUESTS {
        let (remote, entry) = (lab.server.remote(8), lab.client.entry(64, 8));
        let operation = random.pick(&[
            Operation::Send,
            Operation::WriteWithImmediate(lab.server.remote(16), 1),
            Operation::Write(lab.server.remote(16)),
            Operation::Read(lab.server.remote(16)),
            Operation::FetchAdd { remote, add: 3 },
        ]);
        let receives = matches!(operation, Operation::Send | Operation::WriteWithImmediate(..));
        let writes = matches!(operation, Operation::Write(_) | Operation::WriteWithImmediate(..));
        let adds = matches!(operation, Operation::FetchAdd { .. });
        lab.client.bytes()[64..72].fill(u8::try_from(id).unwrap() + 1);
        lab.client.post(id, operation, &[entry]);
        // Whether the other side has carried it out, so that what comes again is a duplicate.
        let mut executed = false;
        let end = loop {
            let request = lab.next_frame(End::Client).unwrap_or_else(|| panic!("seed {seed}: {id} waits"));
            assert_eq!(lab.next_frame(End::Client), None, "seed {seed}: one packet at a time");
            let attempt = if random.percent(loss) {
                random.pick(&[Attempt::RequestLost, Attempt::AnswerLost])
            } else if receives && !executed && random.percent(lateness) {
                Attempt::NotReady
            } else {
                Attempt::Done
            };
            let executes = !executed && matches!(attempt, Attempt::AnswerLost | Attempt::Done);
            if executes {
                executed = true;
                added += 3 * u64::from(adds);
                written = if writes { u8::try_from(id).unwrap() + 1 } else { written };
                if receives {
                    let place = lab.server.entry(1024, 64);
                    lab.server.post_receive(id, &[place]);
                }
            }
            carry(&mut lab, &mut random, End::Server, &request, attempt != Attempt::RequestLost);
            if let Some(answer) = lab.next_frame(End::Server) {
                assert_ne!(attempt, Attempt::RequestLost, "seed {seed}: an answer to nothing");
                carry(&mut lab, &mut random, End::Client, &answer, attempt != Attempt::AnswerLost);
            }
            let expected_receive = if receives && executes { vec![(id, None)] } else { Vec::new() };
            assert_eq!(statuses(&lab.server.receives_done()), expected_receive, "seed {seed}: {id}");
            let end = reference.end(attempt);
            if attempt != Attempt::Done && (attempt != Attempt::NotReady || end.is_none()) {
                assert_eq!(lab.client.state(), State::ReadyToSend, "seed {seed}: {id} before its time");
                assert!(lab.next_deadline(), "seed {seed}: {id} waits for nothing");
            }
            if let Some(end) = end {
                break end;
            }
            assert_eq!(statuses(&lab.client.sends_done()), [], "seed {seed}: {id} is not at its end");
        };
        assert_eq!(statuses(&lab.client.sends_done()), [(id, end)], "seed {seed}: {counts:?}");
        assert_eq!(lab.server.bytes()[8..16], added.to_ne_bytes(), "seed {seed}: {id} executed once");
        assert_eq!(lab.server.bytes()[16..24], [written; 8], "seed {seed}: {id}");
        if end.is_some() {
            assert_eq!(lab.client.state(), State::Error, "seed {seed}");
            assert_eq!(lab.server.state(), State::ReadyToSend, "seed {seed}: the other side knows nothing");
            lab.client.post(id + 1, operation, &[entry]);
            assert_eq!(statuses(&lab.client.sends_done()), [(id + 1, Some(Status::Flushed))], "seed {seed}");
            assert_eq!(lab.next_frame(End::Client), None, "seed {seed}");
            return end;
        }
    }
    None
}

#[test]
fn each_retry_count_ends_a_request_when_it_is_used_up_and_not_before() {
    let mut ends = [[0_u32; 3]; 8];
    for seed in seeds(4096) {
        let (count, kind) = match run(seed) {
            None => (seed % 8, 0),
            Some(Status::RetryExceeded) => (seed % 8, 1),
            Some(Status::ReceiverNotReadyExceeded) => (seed / 8 % 8, 2),
            Some(other) => panic!("seed {seed}: {other:?}"),
        };
        ends[usize::try_from(count).unwrap()][kind] += 1;
    }
    if std::env::var("ROCE_SEED").is_err() {
        for (count, [done, exceeded, not_ready]) in ends.into_iter().enumerate() {
            assert!(done > 0 && exceeded > 0, "{count} retries: {done} done, {exceeded} exceeded");
            assert_eq!(not_ready > 0, count != 7, "{count} RNR retries: {not_ready} exceeded");
        }
    }
}
