//! What a requester makes of answers that nobody should give.

use vdk_descriptors::roce::{
    Aeth, Bth, Ethernet, Extension, Frame, Headers, Msn, Network, Opcode, PathMtu, Psn, Syndrome,
};
use vdk_firmware_stubs::roce::{Operation, State, Status};

use crate::lab::{End, Lab, Settings, statuses};

fn settings() -> Settings {
    Settings { mtu: PathMtu::Mtu256, client_psn: Psn::new(20), ..Settings::default() }
}

/// An answer of the server with whatever content.
fn answer(lab: &Lab, opcode: Opcode, psn: u32, syndrome: u8, payload: &[u8]) -> Vec<u8> {
    let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(1) };
    let extension = match opcode {
        Opcode::RC_READ_RESPONSE_MIDDLE => Extension::None,
        Opcode::RC_ATOMIC_ACKNOWLEDGE => {
            Extension::AtomicAcknowledge(aeth, vdk_descriptors::roce::AtomicAckEth(5))
        }
        _ => Extension::Acknowledge(aeth),
    };
    let (from, to) = (lab.server.station, lab.client.station);
    let headers = Headers {
        ethernet: Ethernet::new(from.ethernet, to.ethernet),
        network: Network::new(from.address, to.address, 0xc000).unwrap(),
        bth: Bth::new(opcode, lab.client.number, Psn::new(psn)),
        extension,
    };
    let mut bytes = vec![0; headers.frame_length(payload.len())];
    Frame { headers, payload }.build(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_nak_without_a_meaning_ends_the_request_that_it_names() {
    for syndrome in 0x64..=0x7f {
        let mut lab = Lab::new(settings());
        let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
        for id in 1..=3 {
            lab.client.post(id, Operation::Write(remote), &[entry]);
        }
        while lab.next_frame(End::Client).is_some() {}
        let nak = answer(&lab, Opcode::RC_ACKNOWLEDGE, 21, syndrome, &[]);
        lab.deliver(End::Client, &nak);
        let expected = [(1, None), (2, Some(Status::RemoteOperation)), (3, Some(Status::Flushed))];
        assert_eq!(statuses(&lab.client.sends_done()), expected, "{syndrome:#04x}");
        assert_eq!(lab.client.state(), State::Error);
    }
}

#[test]
fn data_with_a_refusal_is_a_bad_response() {
    for (syndrome, good) in [(0x1f, true), (0x00, true), (0x60, false), (0x62, false), (0x2c, false)] {
        let mut lab = Lab::new(settings());
        let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
        let reads = [
            (Operation::Read(remote), Opcode::RC_READ_RESPONSE_ONLY, 8),
            (Operation::FetchAdd { remote, add: 1 }, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0),
        ];
        for (operation, opcode, length) in reads {
            let mut lab = Lab::new(settings());
            lab.client.post(1, operation, &[entry]);
            assert!(lab.next_frame(End::Client).is_some());
            let response = answer(&lab, opcode, 20, syndrome, &[7; 8][..length]);
            lab.deliver(End::Client, &response);
            let status = if good { None } else { Some(Status::BadResponse) };
            assert_eq!(statuses(&lab.client.sends_done()), [(1, status)], "{syndrome:#04x} {opcode:?}");
        }
        lab.settle();
    }
}

#[test]
fn the_packets_of_an_answer_have_their_places() {
    use Opcode as O;
    let (first, middle) = (O::RC_READ_RESPONSE_FIRST, O::RC_READ_RESPONSE_MIDDLE);
    let (last, only) = (O::RC_READ_RESPONSE_LAST, O::RC_READ_RESPONSE_ONLY);
    let answers: [(&[Opcode], bool); 9] = [
        (&[only], true),
        (&[last], false),
        (&[first, last], true),
        (&[middle, last], false),
        (&[first, only], false),
        (&[first, middle, last], true),
        (&[first, first, last], false),
        (&[middle, middle, last], false),
        (&[first, middle, only], false),
    ];
    for (opcodes, good) in answers {
        let mut lab = Lab::new(settings());
        let length = 256 * u32::try_from(opcodes.len()).unwrap();
        let (entry, remote) = (lab.client.entry(0, length), lab.server.remote(0));
        lab.client.post(1, Operation::Read(remote), &[entry]);
        assert!(lab.next_frame(End::Client).is_some());
        for (psn, opcode) in (20..).zip(opcodes) {
            let response = answer(&lab, *opcode, psn, 0x1f, &[7; 256]);
            lab.deliver(End::Client, &response);
        }
        let status = if good { None } else { Some(Status::BadResponse) };
        assert_eq!(statuses(&lab.client.sends_done()), [(1, status)], "{opcodes:?}");
    }
}

#[test]
fn an_answer_begins_anew_where_it_was_asked_for_again_and_may_still_go_on() {
    use Opcode as O;
    // The first packet came, the request for the rest was sent; then the old answer, or the new one.
    for opcodes in [
        [O::RC_READ_RESPONSE_MIDDLE, O::RC_READ_RESPONSE_LAST],
        [O::RC_READ_RESPONSE_FIRST, O::RC_READ_RESPONSE_LAST],
    ] {
        let mut lab = Lab::new(settings());
        let (entry, remote) = (lab.client.entry(0, 768), lab.server.remote(0));
        lab.client.post(1, Operation::Read(remote), &[entry]);
        assert!(lab.next_frame(End::Client).is_some());
        let begun = answer(&lab, O::RC_READ_RESPONSE_FIRST, 20, 0x1f, &[7; 256]);
        lab.deliver(End::Client, &begun);
        assert!(lab.next_deadline());
        assert!(lab.next_frame(End::Client).is_some());
        for (psn, opcode) in (21..).zip(opcodes) {
            let response = answer(&lab, opcode, psn, 0x1f, &[7; 256]);
            lab.deliver(End::Client, &response);
        }
        assert_eq!(statuses(&lab.client.sends_done()), [(1, None)], "{opcodes:?}");
    }
}

/// A READ and a WRITE, of which the WRITE is acknowledged over and over and the READ is not
/// answered: each time that says that the READ's answer was lost.
fn implied(retries: u8, answered: bool) -> (Lab, usize) {
    let mut lab = Lab::new(Settings { retries, timeout: 8, ..settings() });
    let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
    lab.client.post(1, Operation::Read(remote), &[entry]);
    lab.client.post(2, Operation::Write(remote), &[entry]);
    while lab.next_frame(End::Client).is_some() {}
    let acknowledgement = answer(&lab, Opcode::RC_ACKNOWLEDGE, 21, 0x1f, &[]);
    lab.deliver(End::Client, &acknowledgement);
    while lab.next_frame(End::Client).is_some() {}
    if answered {
        let data = answer(&lab, Opcode::RC_READ_RESPONSE_ONLY, 20, 0x1f, &[7; 8]);
        lab.deliver(End::Client, &data);
        lab.deliver(End::Client, &acknowledgement);
    } else {
        for _ in 0..20 {
            lab.deliver(End::Client, &acknowledgement);
            while lab.next_frame(End::Client).is_some() {}
            let _ = lab.next_deadline();
        }
    }
    let tries = lab.frames(End::Client).iter().filter(|(_, psn)| *psn == 20).count();
    (lab, tries)
}

#[test]
fn an_implied_nak_costs_no_retry_and_the_timer_bounds_it() {
    for retries in [0, 1, 3] {
        let (mut lab, tries) = implied(retries, false);
        let expected = [(1, Some(Status::RetryExceeded)), (2, Some(Status::Flushed))];
        assert_eq!(statuses(&lab.client.sends_done()), expected);
        let counters = lab.client.endpoint.counters(lab.client.number).unwrap();
        assert_eq!((counters.timeouts, counters.retries_exceeded), (u64::from(retries) + 1, 1));
        // Once for each wait, and at most once for what is implied in it.
        let waits = usize::from(retries) + 1;
        assert!((waits + 1..=2 * waits).contains(&tries), "{retries}: {tries}");
    }
}

#[test]
fn what_is_implied_is_asked_for_once() {
    let (mut lab, tries) = implied(0, true);
    assert_eq!((statuses(&lab.client.sends_done()), tries), (vec![(1, None), (2, None)], 2));
    assert_eq!(lab.client.state(), State::ReadyToSend);
}
