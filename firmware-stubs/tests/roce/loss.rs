//! A reliable connection on a bad wire: what is lost, comes twice, or comes late.

use vdk_descriptors::roce::{Extension, Frame, Opcode, PathMtu, Psn, Syndrome};
use vdk_firmware_stubs::roce::{Operation, Rights, State, Status};

use crate::lab::{End, Lab, Settings, statuses};

fn settings() -> Settings {
    Settings { mtu: PathMtu::Mtu256, client_psn: Psn::new(20), ..Settings::default() }
}

fn psn(bytes: &[u8]) -> u32 {
    Frame::parse(bytes).unwrap().headers.bth.psn.value()
}

fn fill(bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from(index % 241).unwrap();
    }
}

#[test]
fn a_gap_is_reported_once_and_only_what_is_missing_is_sent_again() {
    let mut lab = Lab::new(settings());
    fill(lab.client.bytes());
    let (entry, remote) = (lab.client.entry(0, 2560), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let mut dropped = false;
    lab.settle_with(|_, bytes| {
        let drop = !dropped && psn(bytes) == 23;
        dropped |= drop;
        !drop
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    assert_eq!(lab.refusals(End::Server), [0x60]);
    let nak = lab.log.iter().find(|sent| sent.syndrome.is_some_and(|s| s != Syndrome::ACK)).unwrap();
    assert_eq!(nak.psn.value(), 23, "the NAK names what is expected");
    assert_eq!(lab.now.nanos(), 0, "without waiting for a timer");
    let from = lab.client.bytes()[..2560].to_vec();
    assert_eq!(lab.server.bytes()[..2560], from[..]);
}

#[test]
fn a_lost_acknowledgement_is_repeated_for_the_duplicate() {
    let mut lab = Lab::new(settings());
    let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let mut lost = 0;
    lab.run(|end, _| {
        let lose = end == End::Server && lost < 1;
        lost += u32::from(lose);
        !lose
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    let acks: Vec<_> = lab.log.iter().filter(|sent| sent.from == End::Server).collect();
    assert_eq!(acks.len(), 2);
    assert_eq!((acks[0].psn, acks[0].msn), (acks[1].psn, acks[1].msn), "the same answer twice");
    let counters = lab.server.endpoint.counters(lab.server.number).unwrap();
    assert_eq!(counters.duplicates, 1);
}

#[test]
fn a_duplicate_leaves_the_position_in_a_message_as_it_is() {
    // A READ of PSN 20 to 22, then a WRITE from 23 on; 20 and 23 come again in the middle.
    let mut lab = Lab::new(settings());
    fill(lab.client.bytes());
    let (entry, remote) = (lab.client.entry(0, 700), lab.server.remote(0));
    let back = lab.client.entry(8192, 700);
    lab.client.post(1, Operation::Read(remote), &[back]);
    lab.client.post(2, Operation::Write(remote), &[entry]);
    let frames: Vec<Vec<u8>> = std::iter::from_fn(|| lab.next_frame(End::Client)).collect();
    assert_eq!(frames.iter().map(|bytes| psn(bytes)).collect::<Vec<_>>(), [20, 23, 24, 25]);
    for index in [0, 1, 0, 1, 2, 3] {
        lab.deliver(End::Server, &frames[index]);
    }
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None)]);
    assert_eq!(lab.refusals(End::Server), [0u8; 0]);
    assert_eq!(lab.server.state(), State::ReadyToSend);
    let from = lab.client.bytes()[..700].to_vec();
    assert_eq!(lab.server.bytes()[..700], from[..]);
}

#[test]
fn the_acknowledgement_of_a_duplicate_never_covers_a_read() {
    let mut lab = Lab::new(Settings { client_psn: Psn::new(30), ..settings() });
    let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
    let back = lab.client.entry(8192, 100);
    lab.client.post(1, Operation::Write(remote), &[entry]);
    lab.client.post(2, Operation::Read(remote), &[back]);
    let frames: Vec<Vec<u8>> = std::iter::from_fn(|| lab.next_frame(End::Client)).collect();
    for bytes in &frames {
        lab.deliver(End::Server, bytes);
    }
    while lab.next_frame(End::Server).is_some() {}
    lab.log.clear();
    lab.deliver(End::Server, &frames[0]);
    while lab.next_frame(End::Server).is_some() {}
    assert_eq!(lab.frames(End::Server), [(Opcode::RC_ACKNOWLEDGE, 30)]);
}

#[test]
fn a_coalesced_acknowledgement_never_passes_a_read_without_answer() {
    // WRITE 40, READ 41, WRITE 42; the answer to 41 is lost, so ACK 42 arrives alone.
    let mut lab = Lab::new(Settings { client_psn: Psn::new(40), ..settings() });
    fill(lab.server.bytes());
    let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(1024));
    let (back, source) = (lab.client.entry(8192, 200), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    lab.client.post(2, Operation::Read(source), &[back]);
    lab.client.post(3, Operation::Write(remote), &[entry]);
    let mut lost = false;
    lab.settle_with(|end, bytes| {
        let lose = end == End::Server && !lost && (psn(bytes) == 40 || psn(bytes) == 41);
        lost |= lose && psn(bytes) == 41;
        !lose
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None), (3, None)]);
    let from = lab.server.bytes()[..200].to_vec();
    assert_eq!(lab.client.bytes()[8192..8392], from[..]);
    assert_eq!(lab.now.nanos(), 0, "the acknowledgement beyond it says that the answer is lost");
}

#[test]
fn a_read_that_lost_a_packet_asks_only_for_the_rest() {
    for lost_psn in 20..30 {
        let mut lab = Lab::new(settings());
        fill(lab.server.bytes());
        let (back, source) = (lab.client.entry(8192, 2500), lab.server.remote(64));
        lab.client.post(1, Operation::Read(source), &[back]);
        let mut lost = false;
        let mut asked = Vec::new();
        lab.run(|end, bytes| {
            if end == End::Client {
                let reth = Frame::parse(bytes).unwrap().headers.extension.remote().unwrap();
                asked.push((psn(bytes), reth.address, reth.length));
            }
            let lose = end == End::Server && !lost && psn(bytes) == lost_psn;
            lost |= lose;
            !lose
        });
        assert_eq!(statuses(&lab.client.sends_done()), [(1, None)], "{lost_psn}");
        let skipped = 256 * (lost_psn - 20);
        let rest = (lost_psn, source.address + u64::from(skipped), 2500 - skipped);
        assert_eq!(asked, [(20, source.address, 2500), rest]);
        let from = lab.server.bytes()[64..2564].to_vec();
        assert_eq!(lab.client.bytes()[8192..10692], from[..]);
    }
}

#[test]
fn an_atomic_operation_is_never_carried_out_twice() {
    let mut lab = Lab::new(settings());
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    lab.client.post(1, Operation::FetchAdd { remote, add: 5 }, &[entry]);
    let mut lost = 0;
    lab.run(|end, _| {
        let lose = end == End::Server && lost < 2;
        lost += u32::from(lose);
        !lose
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    assert_eq!(lab.server.bytes()[..8], 5u64.to_ne_bytes());
    assert_eq!(lab.client.bytes()[..8], 0u64.to_ne_bytes(), "what it found the first time");
}

#[test]
fn an_atomic_operation_that_is_forgotten_is_not_answered() {
    let mut lab = Lab::new(Settings { responder_depth: 2, initiator_depth: 2, ..settings() });
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    for id in 0..4 {
        lab.client.post(id, Operation::FetchAdd { remote, add: 1 }, &[entry]);
    }
    let first = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &first);
    lab.settle();
    assert_eq!(lab.server.bytes()[..8], 4u64.to_ne_bytes());
    lab.log.clear();
    lab.deliver(End::Server, &first);
    lab.settle();
    assert!(lab.frames(End::Server).is_empty());
    assert_eq!(lab.server.bytes()[..8], 4u64.to_ne_bytes());
}

#[test]
fn retries_are_counted_anew_after_progress() {
    // With two retries each packet may be lost twice, however many packets there are.
    let mut lab = Lab::new(Settings { retries: 2, timeout: 8, ..settings() });
    let (entry, remote) = (lab.client.entry(0, 2560), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let mut tries = std::collections::HashMap::new();
    lab.run(|end, bytes| {
        if end == End::Server {
            return true;
        }
        let tried = tries.entry(psn(bytes)).or_insert(0);
        *tried += 1;
        *tried > 2
    });
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
}

#[test]
fn a_packet_that_never_arrives_exceeds_the_retries() {
    for retries in [0, 1, 6, 7] {
        let mut lab = Lab::new(Settings { retries, timeout: 8, ..settings() });
        let (entry, remote) = (lab.client.entry(0, 256), lab.server.remote(0));
        lab.client.post(1, Operation::Write(remote), &[entry]);
        lab.run(|end, _| end == End::Server);
        assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::RetryExceeded))]);
        let tries = lab.frames(End::Client).iter().filter(|(_, psn)| *psn == 20).count();
        assert_eq!(tries, usize::from(retries) + 1);
        assert_eq!(lab.server.state(), State::ReadyToSend);
    }
}

#[test]
fn a_late_receiver_is_waited_for_as_often_as_the_count_allows() {
    for (rnr_retries, late, arrives) in
        [(0, 1, false), (1, 1, true), (1, 2, false), (6, 6, true), (6, 7, false), (7, 40, true)]
    {
        let mut lab = Lab::new(Settings { rnr_retries, ..settings() });
        let entry = lab.client.entry(0, 600);
        lab.client.post(1, Operation::Send, &[entry]);
        let mut refused = 0;
        for _ in 0..200 {
            lab.carry(|_, _| true);
            refused = lab.refusals(End::Server).len();
            if refused == late {
                let place = lab.server.entry(0, 4096);
                lab.server.post_receive(9, &[place]);
            }
            if !lab.next_deadline() {
                break;
            }
        }
        let expected = if arrives { None } else { Some(Status::ReceiverNotReadyExceeded) };
        assert_eq!(statuses(&lab.client.sends_done()), [(1, expected)], "{rnr_retries} {late}");
        assert_eq!(refused, late);
        assert!(lab.refusals(End::Server).iter().all(|syndrome| *syndrome == 0x2c));
    }
}

#[test]
fn behind_a_missing_receive_nothing_is_reported_and_nothing_is_done() {
    let mut lab = Lab::new(settings());
    let (entry, remote) = (lab.client.entry(0, 600), lab.server.remote(0));
    fill(lab.client.bytes());
    lab.client.post(1, Operation::Send, &[entry]);
    lab.client.post(2, Operation::Write(remote), &[entry]);
    lab.carry(|_, _| true);
    assert_eq!(lab.refusals(End::Server), [0x2c]);
    assert!(lab.server.bytes().iter().all(|byte| *byte == 0));
    let place = lab.server.entry(4096, 4096);
    lab.server.post_receive(9, &[place]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None)]);
    assert_eq!(statuses(&lab.server.receives_done()), [(9, None)]);
}

#[test]
fn a_missing_receive_gives_each_kind_of_request_one_completion() {
    let remote = |lab: &Lab| lab.server.remote(0);
    let operations: [fn(vdk_firmware_stubs::roce::Remote, u32) -> Operation; 4] = [
        |_, _| Operation::Send,
        |_, _| Operation::SendWithImmediate(1),
        |_, key| Operation::SendWithInvalidate(key),
        |remote, _| Operation::WriteWithImmediate(remote, 1),
    ];
    for length in [0, 100, 600] {
        for operation in operations {
            let server_region = Rights::ALL.with(Rights::REMOTE_INVALIDATE);
            let mut lab = Lab::new(Settings { rnr_retries: 7, server_region, ..settings() });
            let operation = operation(remote(&lab), lab.server.region.key);
            let entry = lab.client.entry(0, length);
            lab.client.post(1, operation, &[entry]);
            for _ in 0..3 {
                lab.carry(|_, _| true);
                assert!(lab.client.sends_done().is_empty());
                assert!(lab.next_deadline());
            }
            let place = lab.server.entry(4096, 4096);
            lab.server.post_receive(9, &[place]);
            lab.settle();
            assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
            assert_eq!(statuses(&lab.server.receives_done()), [(9, None)]);
        }
    }
}

#[test]
fn packets_that_overtake_each_other_arrive_all_the_same() {
    let mut lab = Lab::new(settings());
    fill(lab.client.bytes());
    let (entry, remote) = (lab.client.entry(0, 5000), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let mut frames: Vec<Vec<u8>> = std::iter::from_fn(|| lab.next_frame(End::Client)).collect();
    frames.reverse();
    for bytes in &frames {
        lab.deliver(End::Server, bytes);
    }
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    let naks = lab.refusals(End::Server);
    assert!(naks.len() <= 2 && naks.iter().all(|nak| *nak == 0x60), "{naks:?}");
    let from = lab.client.bytes()[..5000].to_vec();
    assert_eq!(lab.server.bytes()[..5000], from[..]);
}

#[test]
fn a_nak_that_comes_twice_moves_the_sender_back_once() {
    let mut lab = Lab::new(settings());
    let (entry, remote) = (lab.client.entry(0, 2560), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let frames: Vec<Vec<u8>> = std::iter::from_fn(|| lab.next_frame(End::Client)).collect();
    lab.deliver(End::Server, &frames[0]);
    lab.deliver(End::Server, &frames[2]);
    let nak = std::iter::from_fn(|| lab.next_frame(End::Server)).last().unwrap();
    for _ in 0..3 {
        lab.deliver(End::Client, &nak);
    }
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
    assert_eq!(counters.sent_again, 9, "packets 21 to 29, once");
}

#[test]
fn a_key_that_dies_during_a_read_ends_it_with_a_remote_access_error() {
    let mut lab = Lab::new(settings());
    let (back, source) = (lab.client.entry(8192, 2500), lab.server.remote(0));
    lab.client.post(1, Operation::Read(source), &[back]);
    let request = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &request);
    let first = lab.next_frame(End::Server).unwrap();
    lab.deliver(End::Client, &first);
    let key = lab.server.region.key;
    lab.server.endpoint.memory_mut().deregister(key).unwrap();
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::RemoteAccess))]);
    assert_eq!(lab.refusals(End::Server), [0x62]);
    assert_eq!((lab.client.state(), lab.server.state()), (State::Error, State::Error));
}

#[test]
fn what_was_lost_before_a_bad_request_is_sent_again_and_completes_first() {
    let mut lab = Lab::new(settings());
    let (entry, remote) = (lab.client.entry(0, 600), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let mut bad = lab.client.entry(0, 100);
    bad.key ^= 0x100;
    lab.client.post(2, Operation::Send, &[bad]);
    lab.client.post(3, Operation::Write(remote), &[entry]);
    let mut count = 0;
    lab.run(|_, _| {
        count += 1;
        count > 3
    });
    let expected = [(1, None), (2, Some(Status::LocalProtection)), (3, Some(Status::Flushed))];
    assert_eq!(statuses(&lab.client.sends_done()), expected);
    assert_eq!((lab.client.state(), lab.server.state()), (State::Error, State::ReadyToSend));
}

#[test]
fn what_cannot_be_sent_again_and_had_arrived_is_done_and_holds_up_nobody() {
    let mut lab = Lab::new(settings());
    let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[]);
    lab.client.post(2, Operation::Write(remote), &[entry]);
    for _ in 0..2 {
        let request = lab.next_frame(End::Client).unwrap();
        lab.deliver(End::Server, &request);
    }
    let late = std::iter::from_fn(|| lab.next_frame(End::Server)).last().unwrap();
    // The timer expires, and the memory of the second is gone when its turn comes.
    let key = lab.client.region.key;
    lab.client.endpoint.memory_mut().deregister(key).unwrap();
    assert!(lab.next_deadline());
    assert!(lab.next_frame(End::Client).is_some());
    assert!(lab.next_frame(End::Client).is_none());
    lab.client.post(3, Operation::Write(remote), &[]);
    lab.deliver(End::Client, &late);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None), (3, None)]);
    assert_eq!((lab.client.state(), lab.server.state()), (State::ReadyToSend, State::ReadyToSend));
}

/// The answer `like` with the syndrome of a sequence NAK.
fn gap_at(like: &[u8]) -> Vec<u8> {
    let mut gap = Frame::parse(like).unwrap();
    let Extension::Acknowledge(aeth) = &mut gap.headers.extension else { panic!("{gap:?}") };
    aeth.syndrome = Syndrome::from_byte(0x60);
    let mut bytes = [0; 200];
    let length = gap.build(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

#[test]
fn a_sequence_nak_while_the_receiver_is_not_ready_costs_no_retry() {
    let mut lab = Lab::new(Settings { retries: 0, rnr_retries: 1, ..settings() });
    let entry = lab.client.entry(0, 8);
    lab.client.post(1, Operation::Send, &[entry]);
    let request = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &request);
    let not_ready = lab.next_frame(End::Server).unwrap();
    lab.deliver(End::Client, &not_ready);
    // What was on its way behind the request is out of sequence for the receiver.
    lab.deliver(End::Client, &gap_at(&not_ready));
    assert_eq!(lab.client.state(), State::ReadyToSend);
    let entry = lab.server.entry(0, 8);
    lab.server.post_receive(2, &[entry]);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    assert_eq!(statuses(&lab.server.receives_done()), [(2, None)]);
    let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
    assert_eq!((counters.sequence_naks_received, counters.sent_again), (1, 1));
}

#[test]
fn a_sequence_nak_from_before_a_wait_costs_no_retry_after_it() {
    // Between the end of the wait and what is sent again, and behind that.
    for sent_again in [0, 1, 2] {
        let mut lab = Lab::new(Settings { retries: 0, rnr_retries: 1, ..settings() });
        let entry = lab.client.entry(0, 500);
        lab.client.post(1, Operation::Send, &[entry]);
        let request = lab.next_frame(End::Client).unwrap();
        assert!(lab.next_frame(End::Client).is_some());
        lab.deliver(End::Server, &request);
        let not_ready = lab.next_frame(End::Server).unwrap();
        lab.deliver(End::Client, &not_ready);
        assert!(lab.next_deadline(), "the wait ends");
        for _ in 0..sent_again {
            assert!(lab.next_frame(End::Client).is_some());
        }
        for _ in 0..3 {
            lab.deliver(End::Client, &gap_at(&not_ready));
        }
        assert_eq!(lab.client.state(), State::ReadyToSend, "{sent_again}");
        let place = lab.server.entry(0, 500);
        lab.server.post_receive(2, &[place]);
        lab.settle();
        assert_eq!(statuses(&lab.client.sends_done()), [(1, None)], "{sent_again}");
        // What was sent behind the wait is sent once more, and not three times.
        let tries = lab.frames(End::Client).len();
        assert_eq!(tries, 2 + sent_again + 2, "{sent_again}");
    }
}

#[test]
fn a_sequence_nak_from_before_a_timeout_costs_no_second_retry() {
    let mut lab = Lab::new(Settings { retries: 1, timeout: 8, ..settings() });
    let (entry, remote) = (lab.client.entry(0, 500), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    let lost = lab.next_frame(End::Client).unwrap();
    let second = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &second);
    let gap = lab.next_frame(End::Server).unwrap();
    assert!(lab.next_deadline(), "the answer is overdue");
    assert_eq!(lab.next_frame(End::Client), Some(lost));
    for _ in 0..2 {
        lab.deliver(End::Client, &gap);
    }
    assert_eq!(lab.client.state(), State::ReadyToSend);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None)]);
    let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
    assert_eq!((counters.timeouts, counters.sequence_naks_received), (1, 2));
}

#[test]
fn a_sequence_nak_without_a_wait_costs_a_retry_and_a_peer_that_repeats_it_gains_nothing() {
    for retries in [0, 1, 3] {
        let mut lab = Lab::new(Settings { retries, timeout: 8, ..settings() });
        let (entry, remote) = (lab.client.entry(0, 500), lab.server.remote(0));
        lab.client.post(1, Operation::Write(remote), &[entry]);
        assert!(lab.next_frame(End::Client).is_some());
        let second = lab.next_frame(End::Client).unwrap();
        lab.deliver(End::Server, &second);
        let gap = lab.next_frame(End::Server).unwrap();
        let mut rounds = 0;
        while lab.client.state() == State::ReadyToSend {
            rounds += 1;
            assert!(rounds < 100, "each packet is sent for ever");
            for _ in 0..5 {
                lab.deliver(End::Client, &gap);
                while lab.next_frame(End::Client).is_some() {}
            }
            let _ = lab.next_deadline();
        }
        assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::RetryExceeded))]);
        let tries = lab.frames(End::Client).iter().filter(|(_, psn)| *psn == 20).count();
        // Each retry is for a NAK or for the timer, and behind the timer one NAK is free.
        let most = 1 + 2 * usize::from(retries);
        assert!(tries <= most && (retries == 0 || tries > 1), "{retries}: {tries}");
        let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
        assert_eq!(counters.timeouts, u64::from(retries), "{retries}");
    }
}
