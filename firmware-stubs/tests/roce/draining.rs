//! What can be changed while the send queue is drained, and what is kept then.

use vdk_descriptors::roce::{Opcode, PathMtu};
use vdk_firmware_stubs::roce::{Attributes, EndpointError, Operation, State, Status, TransitionError};

use crate::lab::{End, Lab, Node, Settings, statuses};

fn drain(node: &mut Node, attributes: &Attributes) {
    node.endpoint.modify(node.number, State::SendQueueDrain, &Attributes::NONE).unwrap();
    node.endpoint.modify(node.number, State::SendQueueDrain, attributes).unwrap();
    node.endpoint.modify(node.number, State::ReadyToSend, &Attributes::NONE).unwrap();
}

#[test]
fn retry_counts_that_change_are_counted_from_then_on() {
    let mut lab = Lab::new(Settings { retries: 7, timeout: 8, ..Settings::default() });
    drain(&mut lab.client, &Attributes { retries: Some(1), ..Attributes::NONE });
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    lab.client.post(1, Operation::Write(remote), &[entry]);
    lab.run(|_, _| false);
    assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::RetryExceeded))]);
    assert_eq!(lab.frames(End::Client).len(), 2);
}

#[test]
fn seven_rnr_retries_that_become_three_are_not_for_ever_any_more() {
    let mut lab = Lab::new(Settings { rnr_retries: 7, ..Settings::default() });
    drain(&mut lab.client, &Attributes { rnr_retries: Some(3), ..Attributes::NONE });
    lab.client.post(1, Operation::Send, &[]);
    for _ in 0..8 {
        lab.carry(|_, _| true);
        let _ = lab.next_deadline();
    }
    assert_eq!(statuses(&lab.client.sends_done()), [(1, Some(Status::ReceiverNotReadyExceeded))]);
    assert_eq!(lab.refusals(End::Server).len(), 4);
}

#[test]
fn the_initiator_depth_stays_above_zero_while_a_read_is_posted() {
    let mut lab = Lab::new(Settings::default());
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    let number = lab.client.number;
    lab.client.endpoint.modify(number, State::SendQueueDrain, &Attributes::NONE).unwrap();
    lab.client.post(1, Operation::Write(remote), &[entry]);
    lab.client.post(2, Operation::Read(remote), &[entry]);
    let none = Attributes { initiator_depth: Some(0), ..Attributes::NONE };
    let refused = Err(EndpointError::Transition(TransitionError::ReadsPosted));
    assert_eq!(lab.client.endpoint.modify(number, State::SendQueueDrain, &none), refused);
    lab.client.endpoint.modify(number, State::ReadyToSend, &Attributes::NONE).unwrap();
    lab.settle();
    assert_eq!(statuses(&lab.client.sends_done()), [(1, None), (2, None)]);
    drain(&mut lab.client, &none);
    assert_eq!(lab.client.state(), State::ReadyToSend, "nothing is posted that needs it");
}

#[test]
fn a_change_of_the_responder_depth_forgets_no_answer() {
    for depth in [2, 3, 8] {
        let mut lab = Lab::new(Settings { mtu: PathMtu::Mtu256, ..Settings::default() });
        let number = lab.client.entry(8, 8);
        for id in 0..4 {
            let remote = lab.server.remote(8 * id);
            lab.client.post(id, Operation::FetchAdd { remote, add: 1 }, &[number]);
        }
        let requests: Vec<Vec<u8>> = std::iter::from_fn(|| lab.next_frame(End::Client)).collect();
        for request in &requests {
            lab.deliver(End::Server, request);
        }
        // One answer was sent, and is lost; three wait.
        assert!(lab.next_frame(End::Server).is_some());
        drain(&mut lab.server, &Attributes { responder_depth: Some(depth), ..Attributes::NONE });
        lab.log.clear();
        let answers: Vec<Vec<u8>> = std::iter::from_fn(|| lab.next_frame(End::Server)).collect();
        assert_eq!(answers.len(), 3, "depth {depth}: what waits is sent");
        assert!(lab.log.iter().all(|sent| sent.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE));
        // Of the four the newest are still known, as many as the smaller depth has.
        lab.log.clear();
        for request in &requests {
            lab.deliver(End::Server, request);
        }
        while lab.next_frame(End::Server).is_some() {}
        let first = lab.psns[0].value();
        let kept = u32::from(depth).min(4);
        let expected: Vec<_> =
            (4 - kept..4).map(|place| (Opcode::RC_ATOMIC_ACKNOWLEDGE, first + place)).collect();
        assert_eq!(lab.frames(End::Server), expected, "depth {depth}");
    }
}
