//! A queue pair attacked by a script of bytes.
//!
//! The script decides on everything: what the queue pair is made with, what is posted, when
//! the clock moves, and which frames come. The frames are well formed and nearly right, with
//! a good invariant CRC and a PSN near the one that is due, so that they get far.

mod frames;
mod ward;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use vdk_descriptors::roce::{
    AckTimeout, Bth, EthernetAddress, Extension, Frame, PathMtu, Psn, QKey, Qpn, RnrTimer,
};
use vdk_firmware_stubs::roce::time::Time;
use vdk_firmware_stubs::roce::{
    Attributes, Destination, Operation, Path, Payload, QueuePair, QueuePairOptions, QueueSizes,
    ReceiveRequest, Rights, ScatterGatherEntry, SendRequest, Service, Side, State, Station,
};

use frames::Near;
use ward::{Posted, Ward};

/// Which half of the queue pair most of the frames are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Requests.
    Responder,
    /// Answers.
    Requester,
}

/// Bytes, one after the other, and zeros behind the last.
pub(crate) struct Script<'a>(&'a [u8]);

impl Script<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `end`, which is at most 256.
    pub(crate) fn below(&mut self, end: u16) -> u64 {
        u64::from(u16::from(self.byte()) % end)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }

    pub(crate) fn half(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }
}

/// What the queue pair is made with.
#[derive(Clone, Copy)]
struct Plan {
    service: Service,
    mtu: PathMtu,
    access: Rights,
    receive_psn: Psn,
    send_psn: Psn,
    depths: [u8; 2],
    timeout: AckTimeout,
    retries: [u8; 2],
}

/// The attack.
struct Attack<'a> {
    script: Script<'a>,
    aim: Aim,
    plan: Plan,
    pair: QueuePair,
    ward: Ward,
    now: Time,
    buffer: Vec<u8>,
    /// PSNs of the last requests that were sent.
    sent: [Psn; 4],
    next: u64,
}

const NUMBER: u32 = 0x11;
const PEER: u32 = 0x22;
const Q_KEY: QKey = QKey(0x1111_1111);
const SIZES: QueueSizes = QueueSizes { sends: 8, receives: 4, entries: 3, inline: 16 };
/// More frames than any single frame can make a queue pair send: answers to READs of the whole
/// region, as many as are remembered twice and some, and all sends.
const MOST_FRAMES: u32 = 2000;

fn station(host: u8) -> Station {
    Station {
        ethernet: EthernetAddress([2, 0, 0, 0, 0, host]),
        address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
    }
}

fn own_path() -> Path {
    Path::new(station(1), station(2), 0xc123).expect("both are IPv4")
}

/// Plays a script. Panics when the queue pair does what it must not.
pub fn attack(script: &[u8], aim: Aim) {
    let mut script = Script(script);
    let reliable = Service::ReliableConnected;
    let psns = [0, 0xff_fffe, 0x7f_fffe, 0x80_0001, 0x12_3456];
    let plan = Plan {
        service: script.pick(&[reliable, reliable, Service::UnreliableConnected, Service::Datagram]),
        mtu: script.pick(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu1024]),
        access: script.pick(&[
            Rights::ALL,
            Rights::ALL,
            Rights::REMOTE_READ,
            Rights::REMOTE_WRITE,
            Rights::NONE,
        ]),
        receive_psn: Psn::new(script.pick(&psns)),
        send_psn: Psn::new(script.pick(&psns)),
        depths: [script.pick(&[4, 1, 0]), script.pick(&[4, 1, 0])],
        timeout: AckTimeout::new(script.pick(&[8, 1, 0])).expect("five bits"),
        retries: [script.pick(&[7, 0, 2]), script.pick(&[7, 0, 2])],
    };
    let options = QueuePairOptions {
        service: plan.service,
        domain: ward::DOMAIN,
        sizes: SIZES,
        window: script.pick(&[128, 1, 3]),
        port_mtu: plan.mtu,
    };
    let once = Rights::ALL.with(Rights::REMOTE_INVALIDATE);
    let open = script.pick(&[Rights::ALL, once, Rights::REMOTE_READ, Rights::REMOTE_WRITE]);
    let number = Qpn::new(NUMBER).expect("24 bits");
    let mut attack = Attack {
        script,
        aim,
        plan,
        pair: QueuePair::new(number, &options),
        ward: Ward::new(open, plan.access),
        now: Time::ZERO,
        buffer: vec![0; 5000],
        sent: [plan.send_psn; 4],
        next: 0,
    };
    attack.connect();
    while !attack.script.0.is_empty() {
        attack.step();
    }
    attack.end();
}

impl Attack<'_> {
    /// Brings the queue pair from Reset to RTS.
    fn connect(&mut self) {
        let Plan { service, mtu, access, receive_psn, send_psn, depths, timeout, retries } = self.plan;
        let connected = service != Service::Datagram;
        let reliable = service == Service::ReliableConnected;
        let init = Attributes {
            partition_index: Some(0),
            port: Some(1),
            access: connected.then_some(access),
            q_key: (!connected).then_some(Q_KEY),
            ..Attributes::NONE
        };
        let ready = Attributes {
            path: connected.then(own_path),
            path_mtu: connected.then_some(mtu),
            destination: connected.then_some(Qpn::new(PEER).expect("24 bits")),
            receive_psn: connected.then_some(receive_psn),
            responder_depth: reliable.then_some(depths[0]),
            rnr_timer: reliable.then(RnrTimer::default),
            ..Attributes::NONE
        };
        let send = Attributes {
            send_psn: Some(send_psn),
            timeout: reliable.then_some(timeout),
            retries: reliable.then_some(retries[0]),
            rnr_retries: reliable.then_some(retries[1]),
            initiator_depth: reliable.then_some(depths[1]),
            ..Attributes::NONE
        };
        self.sent = [send_psn; 4];
        for (to, attributes) in
            [(State::Init, init), (State::ReadyToReceive, ready), (State::ReadyToSend, send)]
        {
            self.pair.modify(to, &attributes, &mut self.ward).expect("the steps to RTS are allowed");
        }
    }

    fn step(&mut self) {
        match self.script.below(16) {
            0 => self.post_receive(),
            1 | 2 => self.post_send(),
            3 | 4 => {
                let count = self.script.below(8);
                self.transmit(u32::try_from(count).unwrap_or(0));
            }
            5 => self.transmit(MOST_FRAMES),
            6 => self.tick(),
            7 => self.modify(),
            8 => self.ward.trouble(&mut self.script),
            _ => self.frame(),
        }
        self.check();
    }

    /// Whatever call was made, it did bounded work and ended what it had to.
    fn check(&mut self) {
        self.ward.check_call();
        let state = self.pair.state();
        if matches!(state, State::Error | State::SendQueueError) {
            // Those without a signal may have ended well before, and said nothing.
            assert!(self.ward.sends.iter().all(|posted| !posted.signaled), "all sends are flushed");
            self.ward.sends.clear();
        }
        if state == State::Error {
            assert!(self.ward.receives.is_empty(), "all receives are flushed");
        }
    }

    /// Pieces of memory, most of them good.
    fn entries(&mut self) -> Vec<ScatterGatherEntry> {
        let count = self.script.below(4);
        (0..count).map(|_| self.ward.entry(&mut self.script)).collect()
    }

    fn post_receive(&mut self) {
        let entries = self.entries();
        let id = self.next;
        self.next += 1;
        let posted = Posted { id, entries: entries.clone(), signaled: true, answered: false };
        self.ward.receives.push_back(posted);
        let request = ReceiveRequest { id, entries: &entries };
        if self.pair.post_receive(&request, &mut self.ward).is_err() {
            let refused = self.ward.receives.pop_back().expect("it was there");
            assert_eq!(refused.id, id, "what is refused is not completed");
        }
    }

    fn post_send(&mut self) {
        let id = self.next;
        self.next += 1;
        let remote = frames::remote(&mut self.script, &self.ward);
        let value = self.script.half();
        let operation = match self.script.below(8) {
            0 => Operation::Send,
            1 => Operation::SendWithImmediate(value),
            2 => Operation::SendWithInvalidate(value),
            3 => Operation::Write(remote),
            4 => Operation::WriteWithImmediate(remote, value),
            5 => Operation::Read(remote),
            6 => Operation::CompareSwap { remote, compare: u64::from(value), swap: 1 },
            _ => Operation::FetchAdd { remote, add: u64::from(value) },
        };
        let atomic = matches!(operation, Operation::CompareSwap { .. } | Operation::FetchAdd { .. });
        let entries = if atomic { vec![self.ward.word(&mut self.script)] } else { self.entries() };
        let flags = self.script.byte();
        let destination =
            Destination { path: own_path(), queue_pair: Qpn::new(PEER).expect("24 bits"), q_key: Q_KEY };
        let inline = [7; 16];
        let payload = if flags & 1 == 0 { Payload::Entries(&entries) } else { Payload::Inline(&inline) };
        let mut request = SendRequest::new(id, operation, payload);
        request.signaled = flags & 2 == 0;
        request.fence = flags & 12 == 12;
        request.destination = (self.plan.service == Service::Datagram).then_some(&destination);
        let posted = Posted {
            id,
            entries: entries.clone(),
            signaled: request.signaled,
            answered: atomic || matches!(operation, Operation::Read(_)),
        };
        self.ward.sends.push_back(posted);
        if self.pair.post_send(&request, &mut self.ward).is_err() {
            let refused = self.ward.sends.pop_back().expect("it was there");
            assert_eq!(refused.id, id, "what is refused is not completed");
        }
    }

    /// Lets at most `most` frames out; fails when they do not end.
    fn transmit(&mut self, most: u32) {
        for _ in 0..most {
            let Some(length) = self.pair.transmit(self.now, &mut self.ward, &mut self.buffer) else { return };
            self.ward.check_call();
            let frame = Frame::parse(&self.buffer[..length]).expect("frames of the core are good");
            assert!(
                frame.payload.len() <= usize::try_from(self.plan.mtu.bytes()).unwrap_or(0),
                "the path MTU"
            );
            assert_eq!(frame.headers.bth.destination.value(), PEER, "frames go to the peer");
            if frame.headers.bth.opcode.is_request() {
                self.sent.rotate_right(1);
                self.sent[0] = frame.headers.bth.psn;
            }
        }
        assert!(most < MOST_FRAMES, "frames without end");
    }

    fn tick(&mut self) {
        self.now = match (self.pair.deadline(), self.script.byte()) {
            (Some(deadline), way) if way < 200 => deadline.max(self.now),
            (_, way) => self.now.after(Duration::from_micros(u64::from(way))),
        };
        self.expire();
    }

    fn expire(&mut self) {
        self.pair.tick(self.now, &mut self.ward);
        let later = self.pair.deadline().is_none_or(|deadline| deadline > self.now);
        assert!(later, "a timer that expired is due again at once");
        self.ward.check_call();
    }

    fn modify(&mut self) {
        let to = self.script.pick(&[
            State::ReadyToSend,
            State::SendQueueDrain,
            State::Error,
            State::Reset,
            State::Init,
            State::ReadyToReceive,
        ]);
        let done = self.pair.modify(to, &Attributes::NONE, &mut self.ward);
        if to == State::Reset && done.is_ok() {
            // Reset forgets what is posted, without completions.
            self.ward.forget();
            self.connect();
        }
    }

    fn frame(&mut self) {
        let near = Near { expected: self.pair.expected_psn(), sent: self.sent };
        let Attack { script, aim, plan, ward, .. } = self;
        let (mut bth, extension, length): (Bth, Extension, usize) =
            frames::hostile(script, *aim, plan.service, plan.mtu, near, ward);
        bth.destination = self.pair.number();
        let payload = [0x99; 4200];
        let headers = frames::headers(&mut self.script, bth, extension);
        let frame = Frame { headers, payload: &payload[..length] };
        let mut bytes = vec![0; headers.frame_length(length)];
        frame.build(&mut bytes).expect("the extension is that of the opcode");
        let frame = Frame::parse(&bytes).expect("what was built is good");
        self.pair.receive(self.now, &frame, &bytes, &mut self.ward);
    }

    /// The peer falls silent. Then every send of a reliable connection ends, and what is left
    /// is given back.
    fn end(mut self) {
        self.ward.calm();
        let mut rounds = 0;
        let state = self.pair.state();
        let answers = self.plan.service == Service::ReliableConnected;
        loop {
            self.transmit(MOST_FRAMES);
            let Some(deadline) = self.pair.deadline() else { break };
            self.now = deadline.max(self.now);
            self.expire();
            self.check();
            rounds += 1;
            assert!(rounds < 200, "a silent peer is waited for without end");
        }
        let timed = !answers || self.plan.timeout.duration().is_some();
        if state == State::ReadyToSend && timed {
            let left = self.ward.sends.iter().filter(|posted| posted.signaled).count();
            assert_eq!(left, 0, "sends to a silent peer end");
        }
        let left = self.pair.destroy();
        self.ward.finish(&left, [Side::Send, Side::Receive]);
    }
}
