//! Faults of datagrams, and of unreliable connections beyond those of the thirty-two.

use vdk_firmware_stubs::roce::{Rights, Service, State, Status};

use super::rows::Key::{Bad, Good};
use super::rows::Meeting::{OursToRxe, RxeToOurs};
use super::rows::Party::Responder;
use super::rows::Step::{Receive, Send};
use super::rows::{
    DONE, FAILED, FINE, NOT_TAKEN, OWN_KEY, Outcome, PLAIN, ROW, Row, SENDING, Settings, Verb,
};

const DATAGRAM: Settings = Settings { service: Service::Datagram, ..PLAIN };
const UNRELIABLE: Settings = Settings { service: Service::UnreliableConnected, ..PLAIN };

/// One receive gets the message.
const RECEIVED: Outcome = Outcome { responder_receives: &[DONE], ..FINE };
/// Rxe takes the post, and flushes it with the queue pair when it comes to it.
const FLUSHED: Outcome = Outcome { requester: &[Some(Status::Flushed)], states: (FAILED, SENDING), ..FINE };

/// All of them. Before the bytes of a datagram a receive has 40 bytes for its address.
pub const DATAGRAM_ROWS: &[Row] = &[
    Row {
        number: 33,
        name: "UD SEND, good",
        settings: DATAGRAM,
        steps: &[Receive(Responder, 140, Good), Send(Verb::Send, 100, Good, 0, Good)],
        standard: RECEIVED,
        ..ROW
    },
    Row {
        number: 34,
        name: "UD SEND, wrong Q_Key",
        settings: DATAGRAM,
        steps: &[Receive(Responder, 140, Good), Send(Verb::Send, 100, Good, 0, Bad)],
        ..ROW
    },
    Row {
        number: 35,
        name: "UD SEND, no receive",
        settings: DATAGRAM,
        steps: &[Send(Verb::Send, 100, Good, 0, Good)],
        ..ROW
    },
    Row {
        number: 36,
        name: "UD SEND longer than the receive",
        settings: DATAGRAM,
        steps: &[Receive(Responder, 139, Good), Send(Verb::Send, 100, Good, 0, Good)],
        standard: Outcome {
            responder_receives: &[Some(Status::LocalLength)],
            states: (SENDING, FAILED),
            ..FINE
        },
        // The datagram vanishes, and the receive waits for the next one.
        departures: &[(OursToRxe, FINE)],
    },
    Row {
        number: 37,
        name: "UD SEND longer than the path MTU",
        settings: DATAGRAM,
        steps: &[Receive(Responder, 8192, Good), Send(Verb::Send, 4097, Good, 0, Good)],
        standard: NOT_TAKEN,
        // It takes the post, sends nothing and says that it is done.
        departures: &[(RxeToOurs, FINE)],
    },
    Row {
        number: 38,
        name: "UD SEND, bad local key",
        settings: DATAGRAM,
        steps: &[Receive(Responder, 140, Good), Send(Verb::Send, 100, Bad, 0, Good)],
        standard: Outcome { states: (State::SendQueueError, SENDING), ..OWN_KEY },
        departures: &[(RxeToOurs, FLUSHED)],
    },
    Row {
        number: 39,
        name: "UD WRITE",
        settings: DATAGRAM,
        steps: &[Send(Verb::Write, 100, Good, 0, Good)],
        standard: NOT_TAKEN,
        departures: &[(RxeToOurs, FLUSHED)],
    },
    Row {
        number: 40,
        name: "UC READ",
        settings: UNRELIABLE,
        steps: &[Send(Verb::Read, 100, Good, 0, Good)],
        standard: NOT_TAKEN,
        departures: &[(RxeToOurs, FLUSHED)],
    },
    Row {
        number: 41,
        name: "UC SEND of three packets",
        settings: UNRELIABLE,
        steps: &[Receive(Responder, 4096, Good), Send(Verb::Send, 3000, Good, 0, Good)],
        standard: RECEIVED,
        ..ROW
    },
    Row {
        number: 42,
        name: "UC WRITE with immediate, no receive",
        settings: UNRELIABLE,
        steps: &[Send(Verb::WriteImmediate, 100, Good, 0, Good)],
        ..ROW
    },
    Row {
        number: 43,
        name: "UC queue pair lacks REMOTE_WRITE",
        settings: Settings { access: Rights::NONE, ..UNRELIABLE },
        steps: &[Send(Verb::Write, 100, Good, 0, Good)],
        ..ROW
    },
];
