//! Random schedules of unreliable connections and datagrams against a plain reference.
//!
//! The wire loses, doubles, delays and damages packets, and receives come late. The reference is
//! the list of what was sent, and for each packet how often it arrived sound: what a receive gets
//! is one of the messages, whole and as it was sent, no more often than each of its packets
//! arrived; in their order when none overtook another, and all of them when nothing was lost. A
//! failure names its seed; with `ROCE_SEED` set, only that schedule runs.

use std::collections::VecDeque;

use vdk_descriptors::roce::{Frame, PathMtu, Psn};
use vdk_firmware_stubs::roce::{
    Completion, CompletionOpcode, Operation, Payload, QueueSizes, SendRequest, Service, State, Time,
};

use crate::lab::{End, Lab, Settings};
use crate::model::seeds;
use crate::random::{Random, damage};

const MESSAGES: usize = 24;
const CHUNK: u64 = 2048;
/// Where the receives of the server lie, behind a chunk for each message.
const RECEIVES: u64 = CHUNK * MESSAGES as u64;
const MOST_RECEIVES: usize = 8;
/// In front of a datagram.
const ADDRESS_AREA: usize = 40;

/// A message that was sent.
struct Message {
    bytes: Vec<u8>,
    immediate: Option<u32>,
    writes: bool,
    /// How often each of its packets arrived sound.
    arrived: Vec<u64>,
    /// How often a receive got it.
    received: u64,
}

struct Schedule {
    seed: u64,
    random: Random,
    service: Service,
    mtu: usize,
    lab: Lab,
    sent: Vec<Message>,
    completed: u64,
    /// When each packet is due, and where it goes.
    flying: VecDeque<(Time, Vec<u8>, bool)>,
    receives: VecDeque<u64>,
    next_receive: u64,
    /// The last message that a receive got.
    last: Option<usize>,
    faults: Faults,
}

/// How often of a hundred times, and how late.
#[derive(Clone, Copy)]
struct Faults {
    loss: u64,
    doubling: u64,
    damage: u64,
    delay: u64,
    /// How often a round posts a receive.
    receives: u64,
}

impl Faults {
    /// Whether packets arrive in the order in which they were sent, each once at most.
    fn keep_order(self) -> bool {
        self.doubling == 0 && self.delay == 1
    }

    fn lose_nothing(self) -> bool {
        self.keep_order() && self.loss == 0 && self.damage == 0 && self.receives == 100
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

impl Schedule {
    fn new(seed: u64, service: Service) -> Self {
        let mut random = Random::new(seed);
        let mtu = random.pick(&[PathMtu::Mtu256, PathMtu::Mtu512]);
        let start: u32 = random.pick(&[0, 1 << 23, 0x12_3456]);
        let settings = Settings {
            service,
            mtu,
            client_psn: Psn::new(start.wrapping_sub(u32::try_from(random.below(60)).unwrap())),
            region: index(RECEIVES + CHUNK * MOST_RECEIVES as u64),
            sizes: QueueSizes { sends: 4, receives: 8, entries: 2, inline: 0 },
            ..Settings::default()
        };
        let faults = Faults {
            loss: random.pick(&[0, 0, 3, 20]),
            doubling: random.pick(&[0, 0, 20]),
            damage: random.pick(&[0, 0, 3, 20]),
            delay: random.pick(&[1, 1, 3000, 50_000]),
            receives: random.pick(&[100, 100, 30]),
        };
        Self {
            seed,
            random,
            service,
            mtu: mtu.bytes() as usize,
            lab: Lab::new(settings),
            sent: Vec::new(),
            completed: 0,
            flying: VecDeque::new(),
            receives: VecDeque::new(),
            next_receive: 0,
            last: None,
            faults,
        }
    }

    fn post(&mut self) {
        let number = self.sent.len();
        if number == MESSAGES || number as u64 - self.completed == 4 {
            return;
        }
        let random = &mut self.random;
        let longest = if self.service == Service::Datagram { self.mtu as u64 } else { 1300 };
        let length = random.pick(&[0, 8, 255, 256, 257, 512, 1024, random.clone().below(1300)]).min(longest);
        let mut bytes = vec![0; index(length)];
        random.fill(&mut bytes);
        let id = number as u64;
        // Who has no immediate value says in its first bytes which one it is.
        let named = bytes.first_chunk_mut::<8>().map(|first| *first = id.to_le_bytes()).is_some();
        let immediate = (!named || random.percent(50)).then(|| u32::try_from(number).unwrap());
        let writes = self.service == Service::UnreliableConnected && random.percent(50);
        let remote = self.lab.server.remote(id * CHUNK);
        let operation = match (writes, immediate) {
            (false, None) => Operation::Send,
            (false, Some(value)) => Operation::SendWithImmediate(value),
            (true, None) => Operation::Write(remote),
            (true, Some(value)) => Operation::WriteWithImmediate(remote, value),
        };
        let place = index(id * CHUNK);
        self.lab.client.bytes()[place..place + bytes.len()].copy_from_slice(&bytes);
        let cut = random.below(length + 1);
        let part = |offset: u64, length: u64| {
            self.lab.client.entry(id * CHUNK + offset, u32::try_from(length).unwrap())
        };
        let entries = [part(0, cut), part(cut, length - cut)];
        let destination = self.lab.destination(End::Client);
        let mut request = SendRequest::new(id, operation, Payload::Entries(&entries));
        request.destination = Some(&destination);
        self.lab.client.endpoint.post_send(self.lab.client.number, &request).unwrap();
        let packets = bytes.len().div_ceil(self.mtu).max(1);
        self.sent.push(Message { bytes, immediate, writes, arrived: vec![0; packets], received: 0 });
    }

    fn post_receive(&mut self) {
        if self.receives.len() < MOST_RECEIVES {
            let id = self.next_receive;
            let offset = RECEIVES + id % MOST_RECEIVES as u64 * CHUNK;
            let entries = [self.lab.server.entry(offset, 100), self.lab.server.entry(offset + 100, 1948)];
            self.lab.server.post_receive(id, &entries);
            self.receives.push_back(id);
            self.next_receive += 1;
        }
    }

    fn transmit(&mut self) {
        for _ in 0..self.random.below(6) {
            let Some(bytes) = self.lab.next_frame(End::Client) else { return };
            let copies = 1 + u64::from(self.random.percent(self.faults.doubling));
            for _ in 0..copies {
                if self.random.percent(self.faults.loss) {
                    continue;
                }
                let mut copy = bytes.clone();
                let damaged = self.random.percent(self.faults.damage);
                if damaged {
                    damage(&mut self.random, &mut copy);
                }
                let due = self.lab.now.nanos() + self.random.below(self.faults.delay);
                self.flying.push_back((Time::from_nanos(due), copy, damaged));
            }
        }
    }

    /// How often the packet arrived sound.
    fn arrived(&mut self, bytes: &[u8]) -> &mut u64 {
        let psn = Frame::parse(bytes).unwrap().headers.bth.psn;
        let mut offset = psn.distance_from(self.lab.psns[0]) as usize;
        let message = self.sent.iter_mut().find(|message| {
            let packets = message.arrived.len();
            let inside = offset < packets;
            offset -= if inside { 0 } else { packets };
            inside
        });
        let count = message.and_then(|message| message.arrived.get_mut(offset));
        count.unwrap_or_else(|| panic!("seed {}: a packet of no message", self.seed))
    }

    fn deliver(&mut self) {
        while let Some(first) = (0..self.flying.len()).min_by_key(|place| (self.flying[*place].0, *place)) {
            if self.flying[first].0 > self.lab.now {
                return;
            }
            let (_, bytes, damaged) = self.flying.remove(first).unwrap();
            if !damaged {
                *self.arrived(&bytes) += 1;
            }
            self.lab.deliver(End::Server, &bytes);
            self.check_receives();
        }
    }

    fn check_sends(&mut self) {
        for done in self.lab.client.sends_done() {
            assert!(matches!(done, Completion::Success(_)), "seed {}: {done:?}", self.seed);
            assert_eq!(done.id(), self.completed, "seed {}: in order, each once", self.seed);
            self.completed += 1;
        }
    }

    fn check_receives(&mut self) {
        let seed = self.seed;
        for done in self.lab.server.receives_done() {
            let Completion::Success(success) = done else { panic!("seed {seed}: {done:?}") };
            assert_eq!(Some(success.id), self.receives.pop_front(), "seed {seed}: receives in order");
            let area = if self.service == Service::Datagram { ADDRESS_AREA } else { 0 };
            let place = index(RECEIVES + success.id % MOST_RECEIVES as u64 * CHUNK) + area;
            let length = success.length as usize;
            let memory = self.lab.server.bytes();
            let found = memory[place..place + length].to_vec();
            let number = match (success.immediate, found.first_chunk::<8>()) {
                (Some(immediate), _) => immediate as usize,
                (None, Some(first)) => index(u64::from_le_bytes(*first)),
                (None, None) => panic!("seed {seed}: a message that nobody sent"),
            };
            let message = &mut self.sent[number];
            let written = success.opcode == CompletionOpcode::ReceiveWrite;
            assert_eq!((success.immediate, written), (message.immediate, message.writes), "seed {seed}");
            assert_eq!(length, message.bytes.len(), "seed {seed}: message {number}");
            let start = index(number as u64 * CHUNK);
            let whole = if written { &memory[start..start + length] } else { &found[..] };
            assert!(whole == message.bytes, "seed {seed}: the bytes of message {number}");
            message.received += 1;
            let most = message.arrived.iter().min().copied().unwrap();
            assert!(message.received <= most, "seed {seed}: message {number} arrived {most} times");
            if self.faults.keep_order() {
                assert!(self.last.is_none_or(|last| last < number), "seed {seed}: {number} out of order");
            }
            self.last = Some(number);
        }
    }

    /// Runs to the end, and says how many messages were received, and how many that might have
    /// been were not.
    fn run(mut self) -> (u64, u64) {
        let seed = self.seed;
        if self.faults.receives == 100 {
            (0..MOST_RECEIVES).for_each(|_| self.post_receive());
        }
        while self.completed < MESSAGES as u64 || !self.flying.is_empty() {
            for _ in 0..self.random.below(3) {
                self.post();
            }
            self.transmit();
            self.check_sends();
            self.lab.now = Time::from_nanos(self.lab.now.nanos() + self.random.below(3000));
            self.deliver();
            while self.random.percent(self.faults.receives) && self.receives.len() < MOST_RECEIVES {
                self.post_receive();
            }
        }
        assert_eq!(self.lab.server.state(), State::ReadyToSend, "seed {seed}");
        assert_eq!(self.lab.next_frame(End::Server), None, "seed {seed}: nothing is answered");
        let (mut received, mut lost) = (0, 0);
        for (number, message) in self.sent.iter().enumerate() {
            let start = index(number as u64 * CHUNK);
            if message.writes {
                // A packet that arrived sound may have been written; nothing else was.
                let memory = &self.lab.server.bytes()[start..start + index(CHUNK)];
                let (inside, outside) = memory.split_at(message.bytes.len());
                for (place, packet) in inside.chunks(self.mtu).enumerate() {
                    let sent = &message.bytes[place * self.mtu..][..packet.len()];
                    let written = message.arrived[place] > 0 && packet == sent;
                    assert!(written || packet.iter().all(|byte| *byte == 0), "seed {seed}: {number}");
                }
                let whole = inside == message.bytes;
                assert!(whole || !self.faults.lose_nothing(), "seed {seed}: WRITE {number} is whole");
                assert!(outside.iter().all(|byte| *byte == 0), "seed {seed}: behind WRITE {number}");
            }
            let reported = !message.writes || message.immediate.is_some();
            if self.faults.lose_nothing() {
                assert_eq!(message.received, u64::from(reported), "seed {seed}: message {number}");
            }
            received += message.received;
            lost += u64::from(reported && message.received == 0);
        }
        (received, lost)
    }
}

#[test]
fn what_arrives_over_unreliable_services_is_whole_and_what_is_lost_is_lost() {
    for service in [Service::UnreliableConnected, Service::Datagram] {
        let (mut received, mut lost) = (0, 0);
        for seed in seeds(1500) {
            let (more, fewer) = Schedule::new(seed, service).run();
            (received, lost) = (received + more, lost + fewer);
        }
        assert!(received > 0 && lost > 0 || std::env::var("ROCE_SEED").is_ok(), "{received} {lost}");
    }
}
