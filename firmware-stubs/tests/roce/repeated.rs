//! Requests that come again, and how many may wait for their answer.

use vdk_descriptors::roce::{Opcode, PathMtu};
use vdk_firmware_stubs::roce::{Attributes, Operation, Rights, State, Status};

use crate::lab::{End, Lab, Settings, statuses};

fn frames(lab: &mut Lab, from: End) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| lab.next_frame(from)).collect()
}

#[test]
fn a_repeated_read_is_not_answered_when_the_right_to_read_was_taken() {
    for (access, answers) in [(Rights::ALL, 1), (Rights::ALL.without(Rights::REMOTE_READ), 0)] {
        let mut lab = Lab::new(Settings::default());
        let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
        lab.client.post(1, Operation::Read(remote), &[entry]);
        let request = lab.next_frame(End::Client).unwrap();
        lab.deliver(End::Server, &request);
        assert_eq!(frames(&mut lab, End::Server).len(), 1);
        let attributes = Attributes { access: Some(access), ..Attributes::NONE };
        let number = lab.server.number;
        lab.server.endpoint.modify(number, State::ReadyToSend, &attributes).unwrap();
        lab.deliver(End::Server, &request);
        assert_eq!(frames(&mut lab, End::Server).len(), answers);
        assert_eq!(lab.server.state(), State::ReadyToSend);
    }
}

#[test]
fn an_acknowledgement_that_waits_passes_no_repeated_answer() {
    // The READ and the WRITE have come, and nothing of the answers was sent, when the READ comes
    // again: whole, or from the middle on.
    let operations: [fn(&Lab) -> Operation; 2] = [
        |lab| Operation::Read(lab.server.remote(0)),
        |lab| Operation::FetchAdd { remote: lab.server.remote(0), add: 1 },
    ];
    for operation in operations {
        let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, ..Settings::default() });
        let length = if matches!(operation(&lab), Operation::Read(_)) { 600 } else { 8 };
        let (entry, remote) = (lab.client.entry(0, length), lab.server.remote(4096));
        lab.client.post(1, operation(&lab), &[entry]);
        lab.client.post(2, Operation::Write(remote), &[entry]);
        let requests = frames(&mut lab, End::Client);
        for request in requests.iter().chain(&requests[..1]) {
            lab.deliver(End::Server, request);
        }
        let _ = frames(&mut lab, End::Server);
        let sent = lab.frames(End::Server);
        assert!(sent.is_sorted_by_key(|(_, psn)| *psn), "{sent:?}");
        let acks = sent.iter().filter(|(opcode, _)| *opcode == Opcode::RC_ACKNOWLEDGE).count();
        assert_eq!(acks, 1);
        assert_eq!(sent.len(), if length == 8 { 2 } else { 4 }, "each answer once: {sent:?}");
    }
}

#[test]
fn more_requests_than_the_depth_allows_are_invalid() {
    let settings = Settings { initiator_depth: 3, responder_depth: 2, ..Settings::default() };
    let mut lab = Lab::new(settings);
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    for id in 0..3 {
        lab.client.post(id, Operation::Read(remote), &[entry]);
    }
    for request in frames(&mut lab, End::Client) {
        lab.deliver(End::Server, &request);
    }
    lab.settle();
    assert_eq!(lab.refusals(End::Server), [0x61]);
    let expected = [(0, None), (1, None), (2, Some(Status::RemoteInvalidRequest))];
    assert_eq!(statuses(&lab.client.sends_done()), expected);
}

#[test]
fn a_repeated_answer_that_waits_takes_no_place_of_the_depth() {
    let settings = Settings { initiator_depth: 1, responder_depth: 1, ..Settings::default() };
    let mut lab = Lab::new(settings);
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    lab.client.post(1, Operation::Read(remote), &[entry]);
    lab.client.post(2, Operation::Read(remote), &[entry]);
    let request = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &request);
    let answer = lab.next_frame(End::Server).unwrap();
    // It comes again before its answer has arrived; the next one follows the answer.
    lab.deliver(End::Server, &request);
    lab.deliver(End::Client, &answer);
    let next = lab.next_frame(End::Client).unwrap();
    lab.deliver(End::Server, &next);
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None)]);
    assert!(lab.refusals(End::Server).is_empty());
}

#[test]
fn too_many_retries_name_the_depth_of_reads() {
    assert!(Status::RetryExceeded.to_string().contains("max_dest_rd_atomic"));
}
