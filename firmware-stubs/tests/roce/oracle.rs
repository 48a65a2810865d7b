//! Thirty-two faults, each with what goes over the wire, what completes on each side, and the
//! states afterwards. The numbers are those of the same matrix run between two Linux hosts
//! with `rdma_rxe` 6.1; where rxe departs from the standard, the row says how.

use vdk_firmware_stubs::roce::{
    Attributes, Operation, PostError, Remote, Rights, ScatterGatherEntry, SendRequest, Service, State, Status,
};

use crate::lab::{End, Lab, Settings, statuses};

/// What rxe does instead.
#[derive(Clone, Copy, Debug, Default)]
struct Departure {
    /// Syndromes on the wire.
    refusals: Option<&'static [u8]>,
    /// Status of the request.
    requester: Option<Status>,
    /// Status of the receive.
    responder: Option<Status>,
    /// What cannot be said in the columns.
    remark: &'static str,
}

struct Row {
    number: u8,
    name: &'static str,
    settings: fn() -> Settings,
    act: fn(&mut Lab),
    refusals: &'static [u8],
    client: &'static [Option<Status>],
    client_receives: &'static [Option<Status>],
    server_receives: &'static [Option<Status>],
    states: (State, State),
    rxe: Option<Departure>,
}

const DONE: Option<Status> = None;
const FLUSHED: Option<Status> = Some(Status::Flushed);
const FINE: (State, State) = (State::ReadyToSend, State::ReadyToSend);
const BOTH_FAILED: (State, State) = (State::Error, State::Error);
const CLIENT_FAILED: (State, State) = (State::Error, State::ReadyToSend);

const GOOD: Row = Row {
    number: 0,
    name: "",
    settings: Settings::default,
    act: |_| {},
    refusals: &[],
    client: &[DONE],
    client_receives: &[],
    server_receives: &[],
    states: FINE,
    rxe: None,
};

fn bad(remote: Remote) -> Remote {
    Remote { key: remote.key ^ 0x100, ..remote }
}

fn bad_entry(entry: ScatterGatherEntry) -> ScatterGatherEntry {
    ScatterGatherEntry { key: entry.key ^ 0x100, ..entry }
}

fn write(lab: &mut Lab, length: u32, remote: Remote) {
    let entry = lab.client.entry(0, length);
    lab.client.post(1, Operation::Write(remote), &[entry]);
}

fn read(lab: &mut Lab, length: u32, remote: Remote) {
    let entry = lab.client.entry(0, length);
    lab.client.post(1, Operation::Read(remote), &[entry]);
}

fn send(lab: &mut Lab, length: u32) {
    let entry = lab.client.entry(0, length);
    lab.client.post(1, Operation::Send, &[entry]);
}

fn add(lab: &mut Lab, remote: Remote) {
    let entry = lab.client.entry(0, 8);
    lab.client.post(1, Operation::FetchAdd { remote, add: 1 }, &[entry]);
}

fn receive(lab: &mut Lab, length: u32) {
    let entry = lab.server.entry(4096, length);
    lab.server.post_receive(50, &[entry]);
}

fn unreliable() -> Settings {
    Settings { service: Service::UnreliableConnected, ..Settings::default() }
}

fn rows() -> Vec<Row> {
    vec![
        Row { number: 1, name: "WRITE, good", act: |lab| write(lab, 100, lab.server.remote(0)), ..GOOD },
        Row {
            number: 2,
            name: "WRITE, bad rkey",
            act: |lab| write(lab, 100, bad(lab.server.remote(0))),
            refusals: &[0x62],
            client: &[Some(Status::RemoteAccess)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 3,
            name: "WRITE past the end of the region",
            act: |lab| write(lab, 100, lab.server.remote((64 << 10) - 50)),
            refusals: &[0x62],
            client: &[Some(Status::RemoteAccess)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 4,
            name: "region lacks REMOTE_WRITE",
            settings: || Settings { server_region: Rights::LOCAL_WRITE, ..Settings::default() },
            act: |lab| write(lab, 100, lab.server.remote(0)),
            refusals: &[0x62],
            client: &[Some(Status::RemoteAccess)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 5,
            name: "queue pair lacks REMOTE_WRITE",
            settings: || Settings { server_access: Rights::NONE, ..Settings::default() },
            act: |lab| write(lab, 100, lab.server.remote(0)),
            refusals: &[0x61],
            client: &[Some(Status::RemoteInvalidRequest)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 6,
            name: "queue pair lacks REMOTE_READ",
            settings: || Settings { server_access: Rights::REMOTE_WRITE, ..Settings::default() },
            act: |lab| read(lab, 100, lab.server.remote(0)),
            refusals: &[0x61],
            client: &[Some(Status::RemoteInvalidRequest)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 7,
            name: "READ, bad rkey",
            act: |lab| read(lab, 100, bad(lab.server.remote(0))),
            refusals: &[0x62],
            client: &[Some(Status::RemoteAccess)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 8,
            name: "READ, bad local key",
            act: |lab| {
                let entry = bad_entry(lab.client.entry(0, 100));
                let remote = lab.server.remote(0);
                lab.client.post(1, Operation::Read(remote), &[entry]);
            },
            client: &[Some(Status::LocalProtection)],
            states: CLIENT_FAILED,
            ..GOOD
        },
        Row {
            number: 9,
            name: "SEND, bad local key",
            act: |lab| {
                receive(lab, 4096);
                let entry = bad_entry(lab.client.entry(0, 100));
                lab.client.post(1, Operation::Send, &[entry]);
            },
            client: &[Some(Status::LocalProtection)],
            states: CLIENT_FAILED,
            rxe: Some(Departure { requester: Some(Status::LocalQueuePairOperation), ..Departure::default() }),
            ..GOOD
        },
        Row {
            number: 10,
            name: "SEND longer than the receive",
            act: |lab| {
                receive(lab, 64);
                send(lab, 100);
            },
            refusals: &[0x61],
            client: &[Some(Status::RemoteInvalidRequest)],
            server_receives: &[Some(Status::LocalLength)],
            states: BOTH_FAILED,
            rxe: Some(Departure {
                refusals: Some(&[0x63]),
                requester: Some(Status::RemoteOperation),
                responder: Some(Status::LocalQueuePairOperation),
                ..Departure::default()
            }),
            ..GOOD
        },
        Row {
            number: 11,
            name: "SEND, key of the receive invalid",
            act: |lab| {
                let entry = bad_entry(lab.server.entry(0, 4096));
                lab.server.post_receive(50, &[entry]);
                send(lab, 100);
            },
            refusals: &[0x63],
            client: &[Some(Status::RemoteOperation)],
            server_receives: &[Some(Status::LocalProtection)],
            states: BOTH_FAILED,
            rxe: Some(Departure { responder: Some(Status::LocalQueuePairOperation), ..Departure::default() }),
            ..GOOD
        },
        Row {
            number: 12,
            name: "SEND, no receive, no retry",
            settings: || Settings { rnr_retries: 0, ..Settings::default() },
            act: |lab| send(lab, 100),
            refusals: &[0x2c],
            client: &[Some(Status::ReceiverNotReadyExceeded)],
            states: CLIENT_FAILED,
            ..GOOD
        },
        Row {
            number: 13,
            name: "SEND, no receive, three retries",
            settings: || Settings { rnr_retries: 3, rnr_timer: 16, ..Settings::default() },
            act: |lab| send(lab, 100),
            refusals: &[0x30; 4],
            client: &[Some(Status::ReceiverNotReadyExceeded)],
            states: CLIENT_FAILED,
            ..GOOD
        },
        Row {
            number: 14,
            name: "WRITE with immediate, no receive",
            settings: || Settings { rnr_retries: 0, ..Settings::default() },
            act: |lab| {
                let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
                lab.client.post(1, Operation::WriteWithImmediate(remote, 1), &[entry]);
            },
            refusals: &[0x2c],
            client: &[Some(Status::ReceiverNotReadyExceeded)],
            states: CLIENT_FAILED,
            ..GOOD
        },
        Row {
            number: 15,
            name: "WRITE with immediate, empty receive",
            act: |lab| {
                lab.server.post_receive(50, &[]);
                let (entry, remote) = (lab.client.entry(0, 100), lab.server.remote(0));
                lab.client.post(1, Operation::WriteWithImmediate(remote, 1), &[entry]);
            },
            server_receives: &[DONE],
            ..GOOD
        },
        Row {
            number: 16,
            name: "compare and swap, good",
            act: |lab| {
                let (entry, remote) = (lab.client.entry(0, 8), lab.server.remote(0));
                lab.client.post(1, Operation::CompareSwap { remote, compare: 1, swap: 7 }, &[entry]);
            },
            ..GOOD
        },
        Row {
            number: 17,
            name: "fetch and add, misaligned",
            act: |lab| {
                let entries = [lab.client.entry(0, 8)];
                let remote = lab.server.remote(4);
                let operation = Operation::FetchAdd { remote, add: 1 };
                refuse(lab, operation, &entries, PostError::Misaligned { address: remote.address });
            },
            client: &[],
            ..GOOD
        },
        Row {
            number: 18,
            name: "fetch and add, bad rkey",
            act: |lab| add(lab, bad(lab.server.remote(0))),
            refusals: &[0x62],
            client: &[Some(Status::RemoteAccess)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 19,
            name: "queue pair lacks REMOTE_ATOMIC",
            settings: || Settings {
                server_access: Rights::REMOTE_WRITE.with(Rights::REMOTE_READ),
                ..Settings::default()
            },
            act: |lab| add(lab, lab.server.remote(0)),
            refusals: &[0x61],
            client: &[Some(Status::RemoteInvalidRequest)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 20,
            name: "READ, responder depth 0",
            settings: || Settings { responder_depth: 0, ..Settings::default() },
            act: |lab| read(lab, 100, lab.server.remote(0)),
            refusals: &[0x61],
            client: &[Some(Status::RemoteInvalidRequest)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 21,
            name: "READ, initiator depth 0",
            settings: || Settings { initiator_depth: 0, ..Settings::default() },
            act: |lab| {
                let entries = [lab.client.entry(0, 100)];
                let operation = Operation::Read(lab.server.remote(0));
                refuse(lab, operation, &entries, PostError::NoReadDepth);
            },
            client: &[],
            rxe: Some(Departure { remark: "takes the post, and it never completes", ..Departure::default() }),
            ..GOOD
        },
        Row {
            number: 22,
            name: "error, then what was queued",
            act: |lab| {
                receive(lab, 640);
                receive(lab, 640);
                let entry = lab.client.entry(4096, 640);
                lab.client.post_receive(50, &[entry]);
                write(lab, 100, bad(lab.server.remote(0)));
                write(lab, 100, lab.server.remote(0));
                send(lab, 10);
            },
            refusals: &[0x62],
            client: &[Some(Status::RemoteAccess), FLUSHED, FLUSHED],
            client_receives: &[FLUSHED],
            server_receives: &[FLUSHED, FLUSHED],
            states: BOTH_FAILED,
            rxe: Some(Departure {
                remark: "never flushes a receive posted about when the state changes",
                ..Departure::default()
            }),
            ..GOOD
        },
        Row {
            number: 23,
            name: "the change to Error flushes",
            act: |lab| {
                let entry = lab.client.entry(4096, 640);
                lab.client.post_receive(50, &[entry]);
                let number = lab.client.number;
                lab.client.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
                send(lab, 10);
            },
            client: &[FLUSHED],
            client_receives: &[FLUSHED],
            states: CLIENT_FAILED,
            ..GOOD
        },
        Row {
            number: 24,
            name: "WRITE of nothing, bad rkey",
            act: |lab| write(lab, 0, bad(lab.server.remote(0))),
            ..GOOD
        },
        Row {
            number: 25,
            name: "SEND of nothing",
            act: |lab| {
                receive(lab, 64);
                send(lab, 0);
            },
            server_receives: &[DONE],
            ..GOOD
        },
        Row {
            number: 26,
            name: "WRITE of exactly two packets",
            act: |lab| write(lab, 2048, lab.server.remote(0)),
            ..GOOD
        },
        Row {
            number: 27,
            name: "READ of three packets",
            act: |lab| read(lab, 3000, lab.server.remote(0)),
            ..GOOD
        },
        Row {
            number: 28,
            name: "responder in Error",
            settings: || Settings { timeout: 12, ..Settings::default() },
            act: |lab| {
                let number = lab.server.number;
                lab.server.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
                write(lab, 100, lab.server.remote(0));
            },
            client: &[Some(Status::RetryExceeded)],
            states: BOTH_FAILED,
            ..GOOD
        },
        Row {
            number: 29,
            name: "UC SEND longer than the receive",
            settings: unreliable,
            act: |lab| {
                receive(lab, 64);
                send(lab, 100);
            },
            server_receives: &[Some(Status::LocalLength)],
            states: (State::ReadyToSend, State::Error),
            rxe: Some(Departure { responder: Some(Status::LocalQueuePairOperation), ..Departure::default() }),
            ..GOOD
        },
        Row {
            number: 30,
            name: "UC WRITE, bad rkey",
            settings: unreliable,
            act: |lab| write(lab, 100, bad(lab.server.remote(0))),
            ..GOOD
        },
        Row {
            number: 31,
            name: "UC SEND, no receive",
            settings: unreliable,
            act: |lab| send(lab, 100),
            ..GOOD
        },
        Row {
            number: 32,
            name: "UC SEND, bad local key",
            settings: unreliable,
            act: |lab| {
                receive(lab, 640);
                let entry = bad_entry(lab.client.entry(0, 100));
                lab.client.post(1, Operation::Send, &[entry]);
            },
            client: &[Some(Status::LocalProtection)],
            states: (State::SendQueueError, State::ReadyToSend),
            rxe: Some(Departure {
                requester: Some(Status::LocalQueuePairOperation),
                remark: "goes to Error instead of SQE",
                ..Departure::default()
            }),
            ..GOOD
        },
    ]
}

/// Posts a request that must be refused.
fn refuse(lab: &mut Lab, operation: Operation, entries: &[ScatterGatherEntry], why: PostError) {
    use vdk_firmware_stubs::roce::{EndpointError, Payload};
    let request = SendRequest::new(1, operation, Payload::Entries(entries));
    let answer = lab.client.endpoint.post_send(lab.client.number, &request);
    assert_eq!(answer, Err(EndpointError::Post(why)));
}

#[test]
fn each_fault_of_the_oracle_does_what_the_standard_says() {
    let rows = rows();
    let numbers: Vec<u8> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=32).collect::<Vec<u8>>());
    for row in rows {
        let Row { number, name, .. } = row;
        let mut lab = Lab::new((row.settings)());
        (row.act)(&mut lab);
        lab.settle();
        let row_name = format!("{number:02} {name}");
        assert_eq!(lab.refusals(End::Server), row.refusals, "{row_name}: on the wire");
        let status = |done: Vec<(u64, Option<Status>)>| -> Vec<Option<Status>> {
            done.into_iter().map(|(_, status)| status).collect()
        };
        assert_eq!(status(statuses(&lab.client.sends_done())), row.client, "{row_name}: requester");
        assert_eq!(
            status(statuses(&lab.client.receives_done())),
            row.client_receives,
            "{row_name}: its receives"
        );
        assert_eq!(
            status(statuses(&lab.server.receives_done())),
            row.server_receives,
            "{row_name}: responder"
        );
        assert_eq!((lab.client.state(), lab.server.state()), row.states, "{row_name}: states");
        if let Some(rxe) = row.rxe {
            let differs = rxe.refusals.is_some_and(|refusals| refusals != row.refusals)
                || rxe.requester.is_some_and(|status| row.client != [Some(status)])
                || rxe.responder.is_some_and(|status| row.server_receives != [Some(status)])
                || !rxe.remark.is_empty();
            assert!(differs, "{row_name}: what rxe does is no departure");
        }
    }
}

#[test]
fn a_request_without_answer_is_sent_three_times_with_two_retries() {
    let mut lab = Lab::new(Settings { timeout: 12, retries: 2, ..Settings::default() });
    let number = lab.server.number;
    lab.server.endpoint.modify(number, State::Error, &Attributes::NONE).unwrap();
    let remote = lab.server.remote(0);
    write(&mut lab, 100, remote);
    lab.settle();
    assert_eq!(lab.frames(End::Client).len(), 3);
    assert!(lab.frames(End::Server).is_empty());
    // Three times 16.8 ms; Linux took 58.6 ms for the same.
    assert_eq!(lab.now.nanos(), 3 * (4096 << 12));
}

#[test]
fn each_cause_of_a_failed_send_has_a_status_of_its_own() {
    let mut seen: Vec<Status> = rows().iter().flat_map(|row| row.client).copied().flatten().collect();
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
