//! Requests that no adapter sends, and how a responder takes them.
//!
//! The responder is connected to a queue pair that there is not: the test builds its frames
//! and reads the answers off the wire.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vdk_descriptors::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, Extension, ExtensionHeaders, Frame, Headers, Ieth,
    ImmDt, MAX_FRAME, Msn, Network, Opcode, PKey, QKey, Qpn, RemoteKey, Reth, Syndrome,
};
use vdk_firmware_stubs::roce::{Rights, Service, Side, State, Status};

use super::adapter::{Adapter, Pair, Region};
use super::ours::{Ours, Passed};
use super::rows::{Key, PLAIN, Settings};
use super::trial::{End, PATIENCE, PSNS, connection, settled, statuses};

/// A request. The path MTU is 1024.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its opcode.
    pub opcode: Opcode,
    /// How far its PSN is from the first one.
    pub psn: u32,
    /// How many bytes follow its headers.
    pub payload: u16,
    /// Where it acts, with READ, WRITE and atomic operations: the offset in the region, how
    /// many bytes, and the key.
    pub remote: (u32, u32, Key),
    /// Whether it asks for an acknowledgement.
    pub acknowledge: bool,
    /// What is wrong with it beside that.
    pub blemish: Blemish,
}

/// Damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blemish {
    /// None.
    None,
    /// The invariant CRC is wrong.
    Checksum,
    /// It is of another partition.
    Partition,
}

/// What the responder answered with, and how far the PSN of that is from the first one.
pub type Answer = (u8, u32);

/// What is seen in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The answers, in their order.
    pub answers: &'static [Answer],
    /// How receives ended.
    pub receives: &'static [Option<Status>],
    /// The state of the responder.
    pub state: State,
}

/// A fault of a requester.
#[derive(Clone, Copy, Debug)]
pub struct HostileRow {
    /// What is wrong.
    pub name: &'static str,
    /// The service of the responder.
    pub service: Service,
    /// The lengths of the receives that it has posted.
    pub receives: &'static [u32],
    /// What it is sent.
    pub packets: &'static [Packet],
    /// What the standard says.
    pub standard: Verdict,
    /// What rxe does, when that is something else.
    pub rxe: Option<Verdict>,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostileSeen {
    answers: Vec<Answer>,
    receives: Vec<Option<Status>>,
    state: State,
}

impl HostileSeen {
    /// Whether it is what was expected.
    #[must_use]
    pub fn is(&self, verdict: &Verdict) -> bool {
        self.answers == verdict.answers && self.receives == verdict.receives && self.state == verdict.state
    }
}

impl fmt::Display for HostileSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, receives, state } = self;
        write!(f, "answers {answers:02x?}, receives {receives:?}, state {state:?}")
    }
}

const NOTHING: Packet = Packet {
    opcode: Opcode::RC_SEND_ONLY,
    psn: 0,
    payload: 0,
    remote: (0, 0, Key::Good),
    acknowledge: true,
    blemish: Blemish::None,
};

const fn send(opcode: Opcode, psn: u32, payload: u16) -> Packet {
    Packet { opcode, psn, payload, ..NOTHING }
}

const fn remote(opcode: Opcode, psn: u32, payload: u16, offset: u32, length: u32) -> Packet {
    Packet { opcode, psn, payload, remote: (offset, length, Key::Good), ..NOTHING }
}

const ROW: HostileRow = HostileRow {
    name: "",
    service: Service::ReliableConnected,
    receives: &[4096, 4096],
    packets: &[],
    standard: INVALID,
    rxe: None,
};

/// The first packet is refused as invalid, and the receives are flushed.
const INVALID: Verdict = invalid(&[(0x61, 0)], &[FLUSHED, FLUSHED]);
/// The first packet leaves no trace.
const IGNORED: Verdict = Verdict { answers: &[], receives: &[], state: State::ReadyToSend };

const FLUSHED: Option<Status> = Some(Status::Flushed);
const DONE: Option<Status> = None;
/// Rxe has a status of its own for the receive of a message that it refuses; ours is flushed.
const BEGUN: &[Option<Status>] = &[Some(Status::RemoteInvalidRequest), FLUSHED];

const fn invalid(answers: &'static [Answer], receives: &'static [Option<Status>]) -> Verdict {
    Verdict { answers, receives, state: State::Error }
}

const fn fine(answers: &'static [Answer], receives: &'static [Option<Status>]) -> Verdict {
    Verdict { answers, receives, state: State::ReadyToSend }
}

/// Every hostile row.
pub const HOSTILE: &[HostileRow] = &[
    HostileRow {
        name: "a gap gives one NAK until it is filled",
        packets: &[
            send(Opcode::RC_SEND_ONLY, 1, 10),
            send(Opcode::RC_SEND_ONLY, 2, 10),
            send(Opcode::RC_SEND_ONLY, 0, 10),
            send(Opcode::RC_SEND_ONLY, 2, 10),
        ],
        standard: fine(&[(0x60, 0), (0x1f, 0), (0x60, 1)], &[DONE]),
        ..ROW
    },
    HostileRow {
        name: "a SEND that comes again is acknowledged and not done again",
        packets: &[send(Opcode::RC_SEND_ONLY, 0, 10), send(Opcode::RC_SEND_ONLY, 0, 10)],
        standard: fine(&[(0x1f, 0), (0x1f, 0)], &[DONE]),
        ..ROW
    },
    HostileRow {
        name: "SEND Middle without First",
        packets: &[send(Opcode::RC_SEND_MIDDLE, 0, 1024)],
        ..ROW
    },
    HostileRow { name: "SEND Last without First", packets: &[send(Opcode::RC_SEND_LAST, 0, 10)], ..ROW },
    HostileRow {
        name: "SEND First again in a SEND",
        packets: &[send(Opcode::RC_SEND_FIRST, 0, 1024), send(Opcode::RC_SEND_FIRST, 1, 1024)],
        standard: invalid(&[(0x1f, 0), (0x61, 1)], &[FLUSHED, FLUSHED]),
        rxe: Some(invalid(&[(0x1f, 0), (0x61, 1)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "WRITE Middle in a SEND",
        packets: &[send(Opcode::RC_SEND_FIRST, 0, 1024), send(Opcode::RC_WRITE_MIDDLE, 1, 1024)],
        standard: invalid(&[(0x1f, 0), (0x61, 1)], &[FLUSHED, FLUSHED]),
        rxe: Some(invalid(&[(0x1f, 0), (0x61, 1)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "READ in a SEND",
        packets: &[send(Opcode::RC_SEND_FIRST, 0, 1024), remote(Opcode::RC_READ_REQUEST, 1, 0, 0, 100)],
        standard: invalid(&[(0x1f, 0), (0x61, 1)], &[FLUSHED, FLUSHED]),
        rxe: Some(invalid(&[(0x1f, 0), (0x61, 1)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "First shorter than the path MTU",
        packets: &[send(Opcode::RC_SEND_FIRST, 0, 1020)],
        rxe: Some(invalid(&[(0x61, 0)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "Middle longer than the path MTU",
        packets: &[send(Opcode::RC_SEND_FIRST, 0, 1024), send(Opcode::RC_SEND_MIDDLE, 1, 1028)],
        standard: invalid(&[(0x1f, 0), (0x61, 1)], &[FLUSHED, FLUSHED]),
        rxe: Some(invalid(&[(0x1f, 0), (0x61, 1)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "Last of no bytes",
        packets: &[send(Opcode::RC_SEND_FIRST, 0, 1024), send(Opcode::RC_SEND_LAST, 1, 0)],
        standard: invalid(&[(0x1f, 0), (0x61, 1)], &[FLUSHED, FLUSHED]),
        rxe: Some(invalid(&[(0x1f, 0), (0x61, 1)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "Only longer than the path MTU",
        packets: &[send(Opcode::RC_SEND_ONLY, 0, 1028)],
        rxe: Some(invalid(&[(0x61, 0)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "WRITE of more bytes than it says",
        packets: &[remote(Opcode::RC_WRITE_ONLY, 0, 200, 0, 100)],
        ..ROW
    },
    HostileRow {
        name: "WRITE of fewer bytes than it says",
        packets: &[remote(Opcode::RC_WRITE_ONLY, 0, 100, 0, 200)],
        ..ROW
    },
    HostileRow {
        name: "WRITE whose Last is too short",
        packets: &[remote(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 2048), send(Opcode::RC_WRITE_LAST, 1, 1000)],
        standard: invalid(&[(0x1f, 0), (0x61, 1)], &[FLUSHED, FLUSHED]),
        ..ROW
    },
    HostileRow {
        name: "WRITE of more than 2^31 bytes",
        packets: &[remote(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 0x8000_0001)],
        ..ROW
    },
    HostileRow {
        name: "READ of more than 2^31 bytes",
        packets: &[remote(Opcode::RC_READ_REQUEST, 0, 0, 0, 0x8000_0001)],
        ..ROW
    },
    HostileRow {
        name: "atomic operation at an odd address",
        packets: &[remote(Opcode::RC_FETCH_ADD, 0, 0, 4, 0)],
        ..ROW
    },
    HostileRow {
        name: "atomic operation behind the region",
        packets: &[remote(Opcode::RC_FETCH_ADD, 0, 0, 64 << 10, 0)],
        standard: invalid(&[(0x62, 0)], &[FLUSHED, FLUSHED]),
        ..ROW
    },
    HostileRow {
        name: "READ across the end of the region",
        packets: &[remote(Opcode::RC_READ_REQUEST, 0, 0, (64 << 10) - 8, 16)],
        standard: invalid(&[(0x62, 0)], &[FLUSHED, FLUSHED]),
        ..ROW
    },
    HostileRow {
        name: "SEND that invalidates a key that there is not",
        packets: &[Packet { remote: (0, 0, Key::Bad), ..send(Opcode::RC_SEND_ONLY_INVALIDATE, 0, 10) }],
        // It has its data.
        standard: invalid(&[(0x62, 0)], BEGUN),
        // The message is acknowledged, and then the queue pair fails.
        rxe: Some(invalid(&[(0x1f, 0)], BEGUN)),
        ..ROW
    },
    HostileRow {
        name: "a packet of another service is no request",
        packets: &[send(Opcode::UC_SEND_ONLY, 0, 10)],
        standard: IGNORED,
        ..ROW
    },
    HostileRow {
        name: "a damaged packet vanishes",
        packets: &[
            Packet { blemish: Blemish::Checksum, ..send(Opcode::RC_SEND_ONLY, 0, 10) },
            send(Opcode::RC_SEND_ONLY, 0, 12),
        ],
        standard: fine(&[(0x1f, 0)], &[DONE]),
        ..ROW
    },
    HostileRow {
        name: "a packet of another partition vanishes",
        packets: &[
            Packet { blemish: Blemish::Partition, ..send(Opcode::RC_SEND_ONLY, 0, 10) },
            send(Opcode::RC_SEND_ONLY, 0, 12),
        ],
        standard: fine(&[(0x1f, 0)], &[DONE]),
        ..ROW
    },
    HostileRow {
        name: "READ that comes again with more bytes vanishes",
        packets: &[
            remote(Opcode::RC_READ_REQUEST, 0, 0, 0, 100),
            remote(Opcode::RC_READ_REQUEST, 0, 0, 0, 200),
        ],
        standard: fine(&[(0x1f, 0)], &[]),
        ..ROW
    },
    HostileRow {
        name: "atomic operation that comes again has the old answer",
        packets: &[remote(Opcode::RC_FETCH_ADD, 0, 0, 0, 0), remote(Opcode::RC_FETCH_ADD, 0, 0, 0, 0)],
        standard: fine(&[(0x1f, 0), (0x1f, 0)], &[]),
        ..ROW
    },
    HostileRow {
        name: "UC Middle without First vanishes, and the next message arrives",
        service: Service::UnreliableConnected,
        packets: &[
            send(Opcode::UC_SEND_MIDDLE, 0, 1024),
            send(Opcode::UC_SEND_LAST, 1, 10),
            send(Opcode::UC_SEND_ONLY, 2, 10),
        ],
        standard: fine(&[], &[DONE]),
        ..ROW
    },
    HostileRow {
        name: "UC message with a gap vanishes, and the next one arrives",
        service: Service::UnreliableConnected,
        packets: &[
            send(Opcode::UC_SEND_FIRST, 0, 1024),
            send(Opcode::UC_SEND_LAST, 2, 10),
            send(Opcode::UC_SEND_ONLY, 3, 10),
        ],
        standard: fine(&[], &[DONE]),
        // The packet that ends the gap is lost too.
        rxe: Some(IGNORED),
        ..ROW
    },
];

/// The queue pair that the responder believes to speak to.
const NOBODY: Qpn = Qpn::from_low_bits(0x0f_f001);
/// How long to wait after the last answer.
const QUIET: Duration = Duration::from_millis(80);

/// Sends what `row` says through `wire` to a fresh queue pair of `responder`. What is expected is
/// waited for, and what comes beyond it is seen.
///
/// # Errors
///
/// An adapter refuses what is no part of the fault, or does not answer.
pub fn attack(
    row: &HostileRow,
    wire: &mut Ours,
    responder: &mut dyn Adapter,
    expected: &Verdict,
) -> Result<HostileSeen> {
    let answering = End::new(responder, row.service, 64 << 10, Rights::ALL)?;
    let nobody = End {
        pair: Pair { handle: usize::MAX, number: NOBODY },
        region: Region { handle: usize::MAX, address: 0, local_key: 0, remote_key: 0 },
    };
    let settings = Settings { service: row.service, ..PLAIN };
    let (first, other) = PSNS;
    let to = connection(&settings, Rights::ALL, (wire, &nobody), (other, first));
    responder.connect(answering.pair, &to)?;
    for (id, length) in (1..).zip(row.receives) {
        let taken = responder.receive(answering.pair, id, &[answering.entry(4096, *length, Key::Good)])?;
        ensure!(taken, "a receive was refused");
    }
    wire.passed();
    let mut answers = Vec::new();
    for packet in row.packets {
        // One at a time, so that no answer stands for two packets.
        let frame = build(packet, wire, responder, &answering)?;
        wire.inject([frame]);
        settle(wire, &mut answers);
    }
    let deadline = Instant::now() + PATIENCE;
    while answers.len() < expected.answers.len() && Instant::now() < deadline {
        settle(wire, &mut answers);
    }
    let receives = statuses(responder, answering.pair, Side::Receive, expected.receives.len())?;
    let state = settled(responder, answering.pair, expected.state)?;
    answering.end(responder)?;
    Ok(HostileSeen { answers, receives, state })
}

/// Adds the answers that come until nothing passes any more.
fn settle(wire: &mut Ours, answers: &mut Vec<Answer>) {
    let mut quiet = Instant::now();
    while quiet.elapsed() < QUIET {
        thread::sleep(Duration::from_millis(5));
        let more = wire.passed();
        if !more.is_empty() {
            quiet = Instant::now();
        }
        answers.extend(more.iter().filter_map(answer));
    }
}

/// The syndrome and the PSN of an answer to nobody.
fn answer(passed: &Passed) -> Option<Answer> {
    let frame = Frame::parse(&passed.bytes).ok().filter(|_| !passed.sent)?;
    let bth = &frame.headers.bth;
    let aeth = frame.headers.extension.acknowledge().filter(|_| bth.destination == NOBODY)?;
    Some((aeth.syndrome.to_byte(), bth.psn.distance_from(PSNS.0)))
}

fn build(packet: &Packet, wire: &Ours, responder: &dyn Adapter, answering: &End) -> Result<Vec<u8>> {
    let (from, to) = (wire.station(), responder.station());
    let network = Network::new(from.address, to.address, 0xc123).context("two kinds of addresses")?;
    let mut bth = Bth::new(packet.opcode, answering.pair.number, PSNS.0.after(packet.psn));
    bth.ack_request = packet.acknowledge;
    if packet.blemish == Blemish::Partition {
        bth.partition = PKey(0x8001);
    }
    let (offset, length, key) = packet.remote;
    let target = answering.remote(offset, key);
    let (address, key) = (target.address, RemoteKey(target.key));
    let extension = Extension::of(
        packet.opcode.extension(),
        &ExtensionHeaders {
            immediate: ImmDt(0),
            invalidate: Ieth(key),
            remote: Reth { address, key, length },
            acknowledge: Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) },
            original: AtomicAckEth(0),
            atomic: AtomicEth { address, key, swap_or_add: 1, compare: 0 },
            datagram: Deth { key: QKey(0), source: NOBODY },
        },
    );
    let headers = Headers { ethernet: Ethernet::new(from.ethernet, to.ethernet), network, bth, extension };
    let mut buffer = vec![0; MAX_FRAME];
    let unsealed =
        headers.build(&mut buffer, usize::from(packet.payload)).context("the frame cannot be built")?;
    let length = unsealed.seal();
    buffer.truncate(length);
    if packet.blemish == Blemish::Checksum
        && let Some(last) = buffer.last_mut()
    {
        *last ^= 1;
    }
    Ok(buffer)
}
