//! The requests of a capture of Linux's rxe, played into a fresh responder, give the answers
//! that rxe gave.

use std::collections::BTreeMap;

use vdk_descriptors::roce::{
    Bth, Extension, Frame, Msn, Network, Opcode, Operation, PathMtu, Psn, Qpn, RnrTimer, Syndrome,
};
use vdk_firmware_stubs::roce::{
    Atomic, Attributes, Completion, Event, Host, Memory, MemoryError, Path, ProtectionDomain, QueuePair,
    QueuePairOptions, QueueSizes, Reach, ReceiveRequest, Rights, ScatterGatherEntry, Service, Side, State,
    Station, Status, Time,
};

#[expect(unreachable_pub, reason = "other crates have it too")]
#[path = "../../../tests/data/roce/frames.rs"]
mod pcap;

use pcap::frames;

const VERBS: &[u8] = include_bytes!("../../../tests/data/roce/verbs-ipv4.pcap");

/// The memory of the host that was recorded: one region of which the key was 0x206.
struct Recorded {
    bytes: Vec<u8>,
    completions: Vec<(Side, Completion)>,
}

const KEY: u32 = 0x206;
const ADDRESS: u64 = 0x10e2_6000;
const LENGTH: usize = 0x4000;

impl Recorded {
    fn place(&self, reach: &Reach) -> Result<std::ops::Range<usize>, MemoryError> {
        let Reach { key, address, length, .. } = *reach;
        if key != KEY {
            return Err(MemoryError::Key { key });
        }
        let start = address.checked_sub(ADDRESS).and_then(|start| usize::try_from(start).ok());
        let range = start.map(|start| start..start + length as usize);
        range.filter(|range| range.end <= LENGTH).ok_or(MemoryError::Bounds { key, address, length })
    }
}

impl Memory for Recorded {
    fn check(&self, reach: &Reach) -> Result<(), MemoryError> {
        self.place(reach).map(|_| ())
    }

    fn read(&mut self, reach: &Reach, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let place = self.place(reach)?;
        bytes.copy_from_slice(&self.bytes[place]);
        Ok(())
    }

    fn write(&mut self, reach: &Reach, bytes: &[u8]) -> Result<(), MemoryError> {
        let place = self.place(reach)?;
        self.bytes[place].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, reach: &Reach, operation: Atomic) -> Result<u64, MemoryError> {
        let place = self.place(reach)?;
        // Both hosts of the capture were little-endian.
        let original = u64::from_le_bytes(self.bytes[place.clone()].try_into().unwrap());
        self.bytes[place].copy_from_slice(&operation.apply(original).to_le_bytes());
        Ok(original)
    }

    fn invalidate(&mut self, _: ProtectionDomain, key: u32) -> Result<(), MemoryError> {
        Err(MemoryError::Key { key })
    }
}

impl Host for Recorded {
    fn complete(&mut self, side: Side, completion: Completion) {
        self.completions.push((side, completion));
    }

    fn event(&mut self, _: Event) {}
}

/// What an answer says, whatever carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    opcode: Opcode,
    destination: Qpn,
    psn: Psn,
    solicited: bool,
    ack_request: bool,
    extension: Extension,
    payload: Vec<u8>,
}

impl Answer {
    fn of(frame: &Frame<'_>) -> Self {
        let Bth { opcode, destination, psn, solicited_event: solicited, ack_request, .. } = frame.headers.bth;
        let (extension, payload) = (frame.headers.extension, frame.payload.to_vec());
        Self { opcode, destination, psn, solicited, ack_request, extension, payload }
    }

    fn syndrome(&self) -> Option<u8> {
        self.extension.acknowledge().map(|aeth| aeth.syndrome.to_byte())
    }
}

/// A conversation of one queue pair: requests, answers.
type Conversation = (Vec<&'static [u8]>, Vec<Answer>);

fn conversations() -> BTreeMap<u32, Conversation> {
    let mut all: BTreeMap<u32, Conversation> = BTreeMap::new();
    for bytes in frames(VERBS) {
        let Ok(frame) = Frame::parse(bytes) else { continue };
        let entry = all.entry(frame.headers.bth.destination.value()).or_default();
        if frame.headers.bth.opcode.is_request() {
            entry.0.push(bytes);
        } else {
            entry.1.push(Answer::of(&frame));
        }
    }
    all
}

/// What the memory had before, as far as READs and atomic operations told.
fn memory_before(all: &BTreeMap<u32, Conversation>) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    let (requests, answers) = &all[&0x11];
    for request in requests {
        let frame = Frame::parse(request).unwrap();
        let psn = frame.headers.bth.psn;
        match frame.headers.extension {
            Extension::Remote(reth) if frame.headers.bth.opcode.operation() == Operation::ReadRequest => {
                for answer in answers {
                    let distance = answer.psn.distance_from(psn);
                    if distance < PathMtu::Mtu256.packets(reth.length) {
                        let start =
                            usize::try_from(reth.address - ADDRESS).unwrap() + distance as usize * 256;
                        bytes[start..start + answer.payload.len()].copy_from_slice(&answer.payload);
                    }
                }
            }
            Extension::Atomic(atomic) if frame.headers.bth.opcode.operation() == Operation::FetchAdd => {
                let answer = answers.iter().find(|answer| answer.psn == psn).unwrap();
                let Extension::AtomicAcknowledge(_, original) = answer.extension else { panic!() };
                let start = usize::try_from(atomic.address - ADDRESS).unwrap();
                bytes[start..start + 8].copy_from_slice(&original.0.to_le_bytes());
            }
            _ => {}
        }
    }
    bytes
}

/// What rxe answered and the standard does not.
fn standard(number: u32, answers: &[Answer]) -> Vec<Answer> {
    let mut expected = answers.to_vec();
    match number {
        // After an RNR NAK rxe reports the packets behind it as a gap.
        0x14 => expected.retain(|answer| answer.syndrome() != Some(0x60)),
        // A SEND that is too long for its receive is an operational error to rxe, and an invalid
        // request to the standard.
        0x18 => {
            for answer in &mut expected {
                if let Extension::Acknowledge(aeth) = &mut answer.extension {
                    assert_eq!(aeth.syndrome.to_byte(), 0x63);
                    aeth.syndrome = Syndrome::from_byte(0x61);
                }
            }
        }
        _ => {}
    }
    expected
}

#[test]
fn requests_that_linux_recorded_give_the_answers_that_it_gave() {
    let all = conversations();
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), (0x11..=0x18).collect::<Vec<_>>());
    let mut host = Recorded { bytes: memory_before(&all), completions: Vec::new() };
    for (number, (requests, answers)) in &all {
        let mtu = match number {
            0x11 => PathMtu::Mtu256,
            0x13 => PathMtu::Mtu4096,
            _ => PathMtu::Mtu1024,
        };
        let mut pair = responder(*number, mtu, requests[0], &mut host);
        let receives = match number {
            0x11..=0x13 => vec![0x1000; 4],
            0x18 => vec![64],
            _ => Vec::new(),
        };
        let entry = |length| ScatterGatherEntry { address: ADDRESS + 0x2000, length, key: KEY };
        for (id, length) in (0..).zip(receives) {
            pair.post_receive(&ReceiveRequest { id, entries: &[entry(length)] }, &mut host).unwrap();
        }
        let mut given = Vec::new();
        for (place, request) in requests.iter().enumerate() {
            if *number == 0x14 && place + 2 == requests.len() {
                // The late receiver.
                let entries = [entry(0x1000)];
                pair.post_receive(&ReceiveRequest { id: 9, entries: &entries }, &mut host).unwrap();
            }
            let frame = Frame::parse(request).unwrap();
            pair.receive(Time::ZERO, &frame, request, &mut host);
            let mut buffer = [0; 5000];
            while let Some(length) = pair.transmit(Time::ZERO, &mut host, &mut buffer) {
                given.push(Answer::of(&Frame::parse(&buffer[..length]).unwrap()));
            }
        }
        let expected = standard(*number, answers);
        assert_eq!(given.len(), expected.len(), "queue pair {number:#x}");
        for (given, expected) in given.iter().zip(&expected) {
            assert_eq!(given, expected, "queue pair {number:#x}");
        }
        assert_eq!(pair.state() == State::Error, *number > 0x14, "queue pair {number:#x}");
    }
    let statuses: Vec<Option<Status>> = host.completions.iter().map(|(_, done)| done.status()).collect();
    let failed: Vec<Status> = statuses.iter().copied().flatten().collect();
    assert_eq!(failed, [Status::LocalLength]);
    assert_eq!(statuses.len(), 3 * 4 + 1 + 1);
}

fn responder(number: u32, mtu: PathMtu, first: &[u8], host: &mut Recorded) -> QueuePair {
    let frame = Frame::parse(first).unwrap();
    let Network::Ipv4(ip, udp) = frame.headers.network else { panic!("the capture is IPv4") };
    let client = Station { ethernet: frame.headers.ethernet.source, address: ip.source.into() };
    let server = Station { ethernet: frame.headers.ethernet.destination, address: ip.destination.into() };
    let number = Qpn::new(number).unwrap();
    let options = QueuePairOptions {
        service: Service::ReliableConnected,
        sizes: QueueSizes::default(),
        ..QueuePairOptions::default()
    };
    let mut pair = QueuePair::new(number, &options);
    let init =
        Attributes { partition_index: Some(0), port: Some(1), access: Some(Rights::ALL), ..Attributes::NONE };
    pair.modify(State::Init, &init, host).unwrap();
    let ready = Attributes {
        path: Path::new(server, client, udp.source_port),
        path_mtu: Some(mtu),
        destination: Some(number),
        receive_psn: Some(frame.headers.bth.psn),
        responder_depth: Some(16),
        rnr_timer: RnrTimer::new(12),
        ..Attributes::NONE
    };
    pair.modify(State::ReadyToReceive, &ready, host).unwrap();
    pair
}

#[test]
fn a_duplicate_of_a_recorded_request_is_answered_and_changes_nothing() {
    let all = conversations();
    let mut host = Recorded { bytes: memory_before(&all), completions: Vec::new() };
    let (requests, _) = &all[&0x12];
    let mut pair = responder(0x12, PathMtu::Mtu1024, requests[0], &mut host);
    let entry = ScatterGatherEntry { address: ADDRESS + 0x2000, length: 0x1000, key: KEY };
    for id in 0..4 {
        pair.post_receive(&ReceiveRequest { id, entries: &[entry] }, &mut host).unwrap();
    }
    let play = |pair: &mut QueuePair, host: &mut Recorded| {
        let mut given = Vec::new();
        for request in requests {
            pair.receive(Time::ZERO, &Frame::parse(request).unwrap(), request, host);
            let mut buffer = [0; 5000];
            while let Some(length) = pair.transmit(Time::ZERO, host, &mut buffer) {
                given.push(Answer::of(&Frame::parse(&buffer[..length]).unwrap()));
            }
        }
        given
    };
    let first = play(&mut pair, &mut host);
    let (bytes, completions) = (host.bytes.clone(), host.completions.len());
    let second = play(&mut pair, &mut host);
    assert_eq!((host.bytes, host.completions.len()), (bytes, completions));
    // The atomic operations and READs are answered as before; the rest is acknowledged with
    // the last packet that may be.
    let data = |answers: &[Answer]| -> Vec<Answer> {
        answers.iter().filter(|answer| answer.opcode != Opcode::RC_ACKNOWLEDGE).cloned().collect()
    };
    assert_eq!(data(&first), data(&second));
    let last = second.iter().rfind(|answer| answer.opcode == Opcode::RC_ACKNOWLEDGE).unwrap();
    assert_eq!(last.psn.value(), 0xff_fffc);
    assert_eq!(last.extension.acknowledge().unwrap().msn, Msn::new(10));
}
