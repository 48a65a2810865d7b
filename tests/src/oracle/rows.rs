//! The thirty-two faults, as data: what is done, and what must come of it.
//!
//! `firmware-stubs/tests/roce/oracle.rs` carries the same rows out with both ends ours and a clock
//! that is moved by hand. What the standard says stands in [`Row::standard`]. Where Linux's
//! rxe (of Linux 6.12) takes part and departs from it, [`Row::departures`] has what comes of it
//! instead.

use vdk_firmware_stubs::roce::{Rights, Service, State, Status};

/// One of the two queue pairs of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The one that asks.
    Requester,
    /// The other one.
    Responder,
}

/// Who is who.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Both are ours.
    OursToOurs,
    /// We ask, rxe answers.
    OursToRxe,
    /// Rxe asks, we answer.
    RxeToOurs,
}

/// Which key goes into a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The right one.
    Good,
    /// One that opens nothing.
    Bad,
}

/// What a send does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImmediate,
    /// RDMA READ.
    Read,
    /// Compare 1 and swap 7.
    CompareSwap,
    /// Add 1.
    FetchAdd,
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A receive of one piece is posted.
    Receive(Party, u32, Key),
    /// A receive without memory is posted by the responder.
    ReceiveNothing,
    /// The requester posts a send: what, how many bytes, its local key, the offset in the
    /// remote region and its key; with datagrams that is the Q_Key.
    Send(Verb, u32, Key, u32, Key),
    /// A queue pair is moved to Error.
    Fail(Party),
}

/// What differs from row to row.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The service of both queue pairs.
    pub service: Service,
    /// What the responder's region allows.
    pub region: Rights,
    /// What the responder's queue pair allows.
    pub access: Rights,
    /// The code of the time for an answer.
    pub timeout: u8,
    /// How often a missing receive is forgiven.
    pub rnr_retries: u8,
    /// The code of the time to wait for a receive.
    pub rnr_timer: u8,
    /// READs and atomic operations of the requester.
    pub initiator_depth: u8,
    /// The same, that the responder allows.
    pub responder_depth: u8,
}

/// What most rows have.
pub const PLAIN: Settings = Settings {
    service: Service::ReliableConnected,
    region: Rights::ALL,
    access: Rights::ALL,
    timeout: 14,
    rnr_retries: 1,
    rnr_timer: 12,
    initiator_depth: 4,
    responder_depth: 4,
};

const UNRELIABLE: Settings = Settings { service: Service::UnreliableConnected, ..PLAIN };

/// What is seen in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How many sends were refused when they were posted.
    pub refused: usize,
    /// Syndromes of the responder that are no plain acknowledgement.
    pub wire: &'static [u8],
    /// How the requester's sends ended.
    pub requester: &'static [Option<Status>],
    /// How its receives ended.
    pub requester_receives: &'static [Option<Status>],
    /// How the responder's receives ended.
    pub responder_receives: &'static [Option<Status>],
    /// The states of both queue pairs, the requester's first.
    pub states: (State, State),
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number.
    pub number: u8,
    /// What is wrong.
    pub name: &'static str,
    /// How the queue pairs are made.
    pub settings: Settings,
    /// What is done.
    pub steps: &'static [Step],
    /// What the standard says.
    pub standard: Outcome,
    /// What comes of it with rxe, where that is something else.
    pub departures: &'static [(Meeting, Outcome)],
}

impl Row {
    /// What must come of it.
    #[must_use]
    pub fn expected(&self, meeting: Meeting) -> &Outcome {
        let found = self.departures.iter().find(|(departing, _)| *departing == meeting);
        found.map_or(&self.standard, |(_, outcome)| outcome)
    }
}

use Key::{Bad, Good};
use Meeting::{OursToRxe, RxeToOurs};
use Party::{Requester, Responder};
use Status::{
    Flushed, LocalLength, LocalProtection, LocalQueuePairOperation, ReceiverNotReadyExceeded, RemoteAccess,
    RemoteInvalidRequest, RemoteOperation, RetryExceeded,
};
use Step::{Fail, Receive, ReceiveNothing, Send};

pub(super) const DONE: Option<Status> = None;
pub(super) const SENDING: State = State::ReadyToSend;
pub(super) const FAILED: State = State::Error;

/// Everything is done.
pub(super) const FINE: Outcome = Outcome {
    refused: 0,
    wire: &[],
    requester: &[DONE],
    requester_receives: &[],
    responder_receives: &[],
    states: (SENDING, SENDING),
};

/// The responder refuses and both fail.
const fn refused(wire: &'static [u8], requester: &'static [Option<Status>]) -> Outcome {
    Outcome { wire, requester, states: (FAILED, FAILED), ..FINE }
}

/// The responder has no right to offer.
const NO_ACCESS: Outcome = refused(&[0x62], &[Some(RemoteAccess)]);
/// The request is one that the responder does not take.
const INVALID: Outcome = refused(&[0x61], &[Some(RemoteInvalidRequest)]);
/// The requester has no right to its own memory.
pub(super) const OWN_KEY: Outcome =
    Outcome { requester: &[Some(LocalProtection)], states: (FAILED, SENDING), ..FINE };
/// Nothing is posted, and nothing happens.
pub(super) const NOT_TAKEN: Outcome = Outcome { refused: 1, requester: &[], ..FINE };

pub(super) const ROW: Row =
    Row { number: 0, name: "", settings: PLAIN, steps: &[], standard: FINE, departures: &[] };

/// All faults, in the order of their numbers.
pub const ROWS: &[Row] = &[
    Row { number: 1, name: "WRITE, good", steps: &[Send(Verb::Write, 100, Good, 0, Good)], ..ROW },
    Row {
        number: 2,
        name: "WRITE, bad rkey",
        steps: &[Send(Verb::Write, 100, Good, 0, Bad)],
        standard: NO_ACCESS,
        ..ROW
    },
    Row {
        number: 3,
        name: "WRITE past the end of the region",
        steps: &[Send(Verb::Write, 100, Good, (64 << 10) - 50, Good)],
        standard: NO_ACCESS,
        ..ROW
    },
    Row {
        number: 4,
        name: "region lacks REMOTE_WRITE",
        settings: Settings { region: Rights::LOCAL_WRITE, ..PLAIN },
        steps: &[Send(Verb::Write, 100, Good, 0, Good)],
        standard: NO_ACCESS,
        ..ROW
    },
    Row {
        number: 5,
        name: "queue pair lacks REMOTE_WRITE",
        settings: Settings { access: Rights::NONE, ..PLAIN },
        steps: &[Send(Verb::Write, 100, Good, 0, Good)],
        standard: INVALID,
        ..ROW
    },
    Row {
        number: 6,
        name: "queue pair lacks REMOTE_READ",
        settings: Settings { access: Rights::REMOTE_WRITE, ..PLAIN },
        steps: &[Send(Verb::Read, 100, Good, 0, Good)],
        standard: INVALID,
        ..ROW
    },
    Row {
        number: 7,
        name: "READ, bad rkey",
        steps: &[Send(Verb::Read, 100, Good, 0, Bad)],
        standard: NO_ACCESS,
        ..ROW
    },
    Row {
        number: 8,
        name: "READ, bad local key",
        steps: &[Send(Verb::Read, 100, Bad, 0, Good)],
        standard: OWN_KEY,
        ..ROW
    },
    Row {
        number: 9,
        name: "SEND, bad local key",
        steps: &[Receive(Responder, 4096, Good), Send(Verb::Send, 100, Bad, 0, Good)],
        standard: OWN_KEY,
        // Rxe 6.1 said LocalQueuePairOperation; since requester and completer are one task, the
        // failed request is flushed like those behind it.
        departures: &[(RxeToOurs, Outcome { requester: &[Some(Flushed)], ..OWN_KEY })],
        ..ROW
    },
    Row {
        number: 10,
        name: "SEND longer than the receive",
        steps: &[Receive(Responder, 64, Good), Send(Verb::Send, 100, Good, 0, Good)],
        standard: Outcome { responder_receives: &[Some(LocalLength)], ..INVALID },
        departures: &[(
            OursToRxe,
            Outcome {
                responder_receives: &[Some(LocalQueuePairOperation)],
                ..refused(&[0x63], &[Some(RemoteOperation)])
            },
        )],
        ..ROW
    },
    Row {
        number: 11,
        name: "SEND, key of the receive invalid",
        steps: &[Receive(Responder, 4096, Bad), Send(Verb::Send, 100, Good, 0, Good)],
        standard: Outcome {
            responder_receives: &[Some(LocalProtection)],
            ..refused(&[0x63], &[Some(RemoteOperation)])
        },
        departures: &[(
            OursToRxe,
            Outcome {
                responder_receives: &[Some(LocalQueuePairOperation)],
                ..refused(&[0x63], &[Some(RemoteOperation)])
            },
        )],
        ..ROW
    },
    Row {
        number: 12,
        name: "SEND, no receive, no retry",
        settings: Settings { rnr_retries: 0, ..PLAIN },
        steps: &[Send(Verb::Send, 100, Good, 0, Good)],
        standard: Outcome {
            wire: &[0x2c],
            requester: &[Some(ReceiverNotReadyExceeded)],
            states: (FAILED, SENDING),
            ..FINE
        },
        ..ROW
    },
    Row {
        number: 13,
        name: "SEND, no receive, three retries",
        settings: Settings { rnr_retries: 3, rnr_timer: 16, ..PLAIN },
        steps: &[Send(Verb::Send, 100, Good, 0, Good)],
        standard: Outcome {
            wire: &[0x30; 4],
            requester: &[Some(ReceiverNotReadyExceeded)],
            states: (FAILED, SENDING),
            ..FINE
        },
        ..ROW
    },
    Row {
        number: 14,
        name: "WRITE with immediate, no receive",
        settings: Settings { rnr_retries: 0, ..PLAIN },
        steps: &[Send(Verb::WriteImmediate, 100, Good, 0, Good)],
        standard: Outcome {
            wire: &[0x2c],
            requester: &[Some(ReceiverNotReadyExceeded)],
            states: (FAILED, SENDING),
            ..FINE
        },
        ..ROW
    },
    Row {
        number: 15,
        name: "WRITE with immediate, empty receive",
        steps: &[ReceiveNothing, Send(Verb::WriteImmediate, 100, Good, 0, Good)],
        standard: Outcome { responder_receives: &[DONE], ..FINE },
        ..ROW
    },
    Row {
        number: 16,
        name: "compare and swap, good",
        steps: &[Send(Verb::CompareSwap, 8, Good, 0, Good)],
        ..ROW
    },
    Row {
        number: 17,
        name: "fetch and add, misaligned",
        steps: &[Send(Verb::FetchAdd, 8, Good, 4, Good)],
        standard: NOT_TAKEN,
        ..ROW
    },
    Row {
        number: 18,
        name: "fetch and add, bad rkey",
        steps: &[Send(Verb::FetchAdd, 8, Good, 0, Bad)],
        standard: NO_ACCESS,
        ..ROW
    },
    Row {
        number: 19,
        name: "queue pair lacks REMOTE_ATOMIC",
        settings: Settings { access: Rights::REMOTE_WRITE.with(Rights::REMOTE_READ), ..PLAIN },
        steps: &[Send(Verb::FetchAdd, 8, Good, 0, Good)],
        standard: INVALID,
        ..ROW
    },
    Row {
        number: 20,
        name: "READ, responder depth 0",
        settings: Settings { responder_depth: 0, ..PLAIN },
        steps: &[Send(Verb::Read, 100, Good, 0, Good)],
        standard: INVALID,
        ..ROW
    },
    Row {
        number: 21,
        name: "READ, initiator depth 0",
        settings: Settings { initiator_depth: 0, ..PLAIN },
        steps: &[Send(Verb::Read, 100, Good, 0, Good)],
        standard: NOT_TAKEN,
        // It takes the post, and nothing ever comes of it.
        departures: &[(RxeToOurs, Outcome { refused: 0, ..NOT_TAKEN })],
    },
    Row {
        number: 22,
        name: "error, then what was queued",
        steps: &[
            Receive(Responder, 640, Good),
            Receive(Responder, 640, Good),
            Receive(Requester, 640, Good),
            Send(Verb::Write, 100, Good, 0, Bad),
            Send(Verb::Write, 100, Good, 0, Good),
            Send(Verb::Send, 10, Good, 0, Good),
        ],
        standard: Outcome {
            requester_receives: &[Some(Flushed)],
            responder_receives: &[Some(Flushed), Some(Flushed)],
            ..refused(&[0x62], &[Some(RemoteAccess), Some(Flushed), Some(Flushed)])
        },
        ..ROW
    },
    Row {
        number: 23,
        name: "the change to Error flushes",
        steps: &[Receive(Requester, 640, Good), Fail(Requester), Send(Verb::Send, 10, Good, 0, Good)],
        standard: Outcome {
            requester: &[Some(Flushed)],
            requester_receives: &[Some(Flushed)],
            states: (FAILED, SENDING),
            ..FINE
        },
        ..ROW
    },
    Row {
        number: 24,
        name: "WRITE of nothing, bad rkey",
        steps: &[Send(Verb::Write, 0, Good, 0, Bad)],
        ..ROW
    },
    Row {
        number: 25,
        name: "SEND of nothing",
        steps: &[Receive(Responder, 64, Good), Send(Verb::Send, 0, Good, 0, Good)],
        standard: Outcome { responder_receives: &[DONE], ..FINE },
        ..ROW
    },
    Row {
        number: 26,
        name: "WRITE of exactly two packets",
        steps: &[Send(Verb::Write, 2048, Good, 0, Good)],
        ..ROW
    },
    Row { number: 27, name: "READ of three packets", steps: &[Send(Verb::Read, 3000, Good, 0, Good)], ..ROW },
    Row {
        number: 28,
        name: "responder in Error",
        settings: Settings { timeout: 12, ..PLAIN },
        steps: &[Fail(Responder), Send(Verb::Write, 100, Good, 0, Good)],
        standard: refused(&[], &[Some(RetryExceeded)]),
        ..ROW
    },
    Row {
        number: 29,
        name: "UC SEND longer than the receive",
        settings: UNRELIABLE,
        steps: &[Receive(Responder, 64, Good), Send(Verb::Send, 100, Good, 0, Good)],
        standard: Outcome { responder_receives: &[Some(LocalLength)], states: (SENDING, FAILED), ..FINE },
        departures: &[(
            OursToRxe,
            Outcome {
                responder_receives: &[Some(LocalQueuePairOperation)],
                states: (SENDING, FAILED),
                ..FINE
            },
        )],
    },
    Row {
        number: 30,
        name: "UC WRITE, bad rkey",
        settings: UNRELIABLE,
        steps: &[Send(Verb::Write, 100, Good, 0, Bad)],
        ..ROW
    },
    Row {
        number: 31,
        name: "UC SEND, no receive",
        settings: UNRELIABLE,
        steps: &[Send(Verb::Send, 100, Good, 0, Good)],
        ..ROW
    },
    Row {
        number: 32,
        name: "UC SEND, bad local key",
        settings: UNRELIABLE,
        steps: &[Receive(Responder, 640, Good), Send(Verb::Send, 100, Bad, 0, Good)],
        standard: Outcome { states: (State::SendQueueError, SENDING), ..OWN_KEY },
        // As in row 9, and the state is Error.
        departures: &[(RxeToOurs, Outcome { requester: &[Some(Flushed)], ..OWN_KEY })],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_thirty_two_rows_and_each_departure_is_one() {
        let numbers: Vec<u8> = ROWS.iter().map(|row| row.number).collect();
        assert_eq!(numbers, (1..=32).collect::<Vec<u8>>());
        for row in ROWS {
            for (meeting, outcome) in row.departures {
                assert_ne!(*meeting, Meeting::OursToOurs, "{}", row.name);
                assert_ne!(*outcome, row.standard, "{}", row.name);
            }
        }
    }
}
