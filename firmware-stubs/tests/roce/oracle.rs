//! The thirty-two faults, each with what goes over the wire, what completes on each side, and the
//! states afterwards: two endpoints of ours, and a clock that is moved by hand.

use vdk_descriptors::roce::{PathMtu, Qpn};
use vdk_firmware_stubs::roce::{
    Attributes, EndpointError, Operation, Payload, PostError, Remote, ScatterGatherEntry, SendRequest, State,
    Status,
};

use crate::lab::{End, Lab, Settings, statuses};
use crate::rows::{Key, Meeting, Outcome, Party, ROWS, Row, Step, Verb};

/// Where receives have their memory.
const RECEIVES: u64 = 4096;

fn settings(row: &Row) -> Settings {
    let crate::rows::Settings {
        service,
        region,
        access,
        timeout,
        rnr_retries,
        rnr_timer,
        initiator_depth,
        responder_depth,
    } = row.settings;
    Settings {
        service,
        mtu: PathMtu::Mtu1024,
        server_region: region,
        server_access: access,
        timeout,
        retries: 2,
        rnr_retries,
        rnr_timer,
        initiator_depth,
        responder_depth,
        ..Settings::default()
    }
}

fn spoilt(key: u32, which: Key) -> u32 {
    match which {
        Key::Good => key,
        Key::Bad => key ^ 0x100,
    }
}

/// Carries out a row, and says why posts were refused.
fn carry_out(row: &Row, lab: &mut Lab) -> Vec<PostError> {
    let mut refused = Vec::new();
    for (id, step) in (1..).zip(row.steps) {
        match *step {
            Step::Receive(party, length, key) => {
                let node = match party {
                    Party::Requester => &mut lab.client,
                    Party::Responder => &mut lab.server,
                };
                let entry = node.entry(RECEIVES, length);
                node.post_receive(id, &[ScatterGatherEntry { key: spoilt(entry.key, key), ..entry }]);
            }
            Step::ReceiveNothing => lab.server.post_receive(id, &[]),
            Step::Send(verb, length, local, offset, key) => {
                let Remote { address, key: right } = lab.server.remote(u64::from(offset));
                let remote = Remote { address, key: spoilt(right, key) };
                let operation = match verb {
                    Verb::Send => Operation::Send,
                    Verb::Write => Operation::Write(remote),
                    Verb::WriteImmediate => Operation::WriteWithImmediate(remote, 0x1234_5678),
                    Verb::Read => Operation::Read(remote),
                    Verb::CompareSwap => Operation::CompareSwap { remote, compare: 1, swap: 7 },
                    Verb::FetchAdd => Operation::FetchAdd { remote, add: 1 },
                };
                let entry = lab.client.entry(0, length);
                let entries = [ScatterGatherEntry { key: spoilt(entry.key, local), ..entry }];
                let request = SendRequest::new(id, operation, Payload::Entries(&entries));
                match lab.client.endpoint.post_send(lab.client.number, &request) {
                    Ok(()) => {}
                    Err(EndpointError::Post(why)) => refused.push(why),
                    Err(error) => panic!("{}: {error}", row.name),
                }
            }
            Step::Fail(party) => {
                let node = match party {
                    Party::Requester => &mut lab.client,
                    Party::Responder => &mut lab.server,
                };
                let number: Qpn = node.number;
                node.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
            }
        }
    }
    lab.settle();
    refused
}

#[test]
fn each_fault_of_the_oracle_does_what_the_standard_says() {
    for row in ROWS {
        let name = format!("{:02} {}", row.number, row.name);
        let mut lab = Lab::new(settings(row));
        let refused = carry_out(row, &mut lab);
        let status = |done: &[_]| -> Vec<Option<Status>> {
            statuses(done).into_iter().map(|(_, status)| status).collect()
        };
        let Outcome { wire, requester, requester_receives, responder_receives, states, .. } =
            row.expected(Meeting::OursToOurs);
        assert_eq!(refused.len(), row.standard.refused, "{name}: refused {refused:?}");
        assert_eq!(lab.refusals(End::Server), *wire, "{name}: on the wire");
        assert_eq!(status(&lab.client.sends_done()), *requester, "{name}: requester");
        assert_eq!(status(&lab.client.receives_done()), *requester_receives, "{name}: its receives");
        assert_eq!(status(&lab.server.receives_done()), *responder_receives, "{name}: responder");
        assert_eq!((lab.client.state(), lab.server.state()), *states, "{name}: states");
    }
}

/// The row with this number, carried out.
fn lab_of(number: u8) -> (Lab, Vec<PostError>) {
    let row = ROWS.iter().find(|row| row.number == number).unwrap();
    let mut lab = Lab::new(settings(row));
    let refused = carry_out(row, &mut lab);
    (lab, refused)
}

#[test]
fn a_post_that_cannot_be_carried_out_is_refused_for_its_own_reason() {
    let (lab, refused) = lab_of(17);
    assert_eq!(refused, [PostError::Misaligned { address: lab.server.remote(4).address }]);
    assert_eq!(lab_of(21).1, [PostError::NoReadDepth]);
}

#[test]
fn a_request_without_answer_is_sent_three_times_with_two_retries() {
    let (lab, _) = lab_of(28);
    assert_eq!(lab.frames(End::Client).len(), 3);
    assert!(lab.frames(End::Server).is_empty());
    // Three times 16.8 ms; Linux took 58.6 ms for the same.
    assert_eq!(lab.now.nanos(), 3 * (4096 << 12));
}

#[test]
fn each_cause_of_a_failed_send_has_a_status_of_its_own() {
    let mut seen: Vec<Status> =
        ROWS.iter().flat_map(|row| row.standard.requester).copied().flatten().collect();
    seen.sort_by_key(|status| *status as u8);
    seen.dedup();
    let expected = [
        Status::LocalProtection,
        Status::Flushed,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::ReceiverNotReadyExceeded,
    ];
    assert_eq!(seen, expected);
    let texts: std::collections::BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), expected.len());
}
