//! Two endpoints and a wire of two queues between them, with a clock that is moved by hand.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use vdk_descriptors::roce::{
    AckTimeout, EthernetAddress, Frame, Msn, Opcode, PathMtu, Psn, QKey, Qpn, RnrTimer, Syndrome,
};
use vdk_firmware_stubs::roce::{
    Attributes, Completion, CompletionQueueId, Destination, Endpoint, Operation, Path, Payload,
    ProtectionDomain, QueuePairOptions, QueueSizes, ReceiveRequest, Registration, Remote, Rights,
    ScatterGatherEntry, SendRequest, Service, State, Station, Status, Time,
};

/// One of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The one that asks in most tests.
    Client,
    /// The other one.
    Server,
}

impl End {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// What the tests change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) service: Service,
    pub(crate) mtu: PathMtu,
    pub(crate) client_psn: Psn,
    pub(crate) server_psn: Psn,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_depth: u8,
    pub(crate) server_access: Rights,
    pub(crate) server_region: Rights,
    pub(crate) region: usize,
    pub(crate) window: u32,
    pub(crate) sizes: QueueSizes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            service: Service::ReliableConnected,
            mtu: PathMtu::Mtu1024,
            client_psn: Psn::new(0x20_0000),
            server_psn: Psn::new(0x10_0000),
            timeout: 14,
            retries: 2,
            rnr_retries: 1,
            rnr_timer: 12,
            initiator_depth: 4,
            responder_depth: 4,
            server_access: Rights::ALL,
            server_region: Rights::ALL,
            region: 64 << 10,
            window: 128,
            sizes: QueueSizes { sends: 16, receives: 16, entries: 2, inline: 64 },
        }
    }
}

/// One endpoint with a queue pair and a region.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) domain: ProtectionDomain,
    pub(crate) send: CompletionQueueId,
    pub(crate) receive: CompletionQueueId,
    pub(crate) number: Qpn,
    pub(crate) region: Registration,
    pub(crate) station: Station,
}

/// A frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) from: End,
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) msn: Option<Msn>,
    pub(crate) length: usize,
    pub(crate) time: Time,
}

pub(crate) struct Lab {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) now: Time,
    pub(crate) psns: [Psn; 2],
    pub(crate) log: Vec<Sent>,
    /// Frames on their way, with the end that they go to.
    pub(crate) wire: VecDeque<(End, Vec<u8>)>,
}

pub(crate) const Q_KEY: QKey = QKey(0x1111_1111);

impl Node {
    fn new(host: u8, settings: &Settings, region: Rights) -> Self {
        let station = Station {
            ethernet: EthernetAddress([0x52, 0x54, 0, 0, 0, host]),
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
        };
        let mut endpoint = Endpoint::new(vec![station], 4);
        let domain = endpoint.protection_domain();
        let (send, receive) = [(); 2].map(|()| endpoint.completion_queue(64).unwrap()).into();
        let bytes = vec![0; settings.region];
        let region = endpoint.memory_mut().register(domain, region, bytes).unwrap();
        let options = QueuePairOptions {
            service: settings.service,
            domain,
            sizes: settings.sizes,
            window: settings.window,
            port_mtu: settings.mtu,
        };
        let number = endpoint.create(&options, send, receive).unwrap();
        Self { endpoint, domain, send, receive, number, region, station }
    }

    pub(crate) fn entry(&self, offset: u64, length: u32) -> ScatterGatherEntry {
        ScatterGatherEntry { address: self.region.address + offset, length, key: self.region.key }
    }

    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.region.address + offset, key: self.region.key }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.endpoint.memory_mut().bytes_mut(self.region.key).unwrap()
    }

    pub(crate) fn post(&mut self, id: u64, operation: Operation, entries: &[ScatterGatherEntry]) {
        let request = SendRequest::new(id, operation, Payload::Entries(entries));
        self.endpoint.post_send(self.number, &request).unwrap();
    }

    pub(crate) fn post_receive(&mut self, id: u64, entries: &[ScatterGatherEntry]) {
        self.endpoint.post_receive(self.number, &ReceiveRequest { id, entries }).unwrap();
    }

    pub(crate) fn sends_done(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.endpoint.poll(self.send)).collect()
    }

    pub(crate) fn receives_done(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.endpoint.poll(self.receive)).collect()
    }

    pub(crate) fn state(&self) -> State {
        self.endpoint.state(self.number).unwrap()
    }
}

/// Identifiers and statuses of completions.
pub(crate) fn statuses(completions: &[Completion]) -> Vec<(u64, Option<Status>)> {
    completions.iter().map(|completion| (completion.id(), completion.status())).collect()
}

impl Lab {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut client = Node::new(2, &settings, Rights::ALL);
        let mut server = Node::new(1, &settings, settings.server_region);
        let access = [Rights::ALL, settings.server_access];
        let psns = [settings.client_psn, settings.server_psn];
        let (numbers, stations) = ([client.number, server.number], [client.station, server.station]);
        for (index, node) in [&mut client, &mut server].into_iter().enumerate() {
            let peer = 1 - index;
            let path = Path::new(stations[index], stations[peer], 0xc123).unwrap();
            connect(node, &settings, access[index], (psns[index], psns[peer]), path, numbers[peer]);
        }
        Self { client, server, now: Time::ZERO, psns, log: Vec::new(), wire: VecDeque::new() }
    }

    pub(crate) fn node(&mut self, end: End) -> &mut Node {
        match end {
            End::Client => &mut self.client,
            End::Server => &mut self.server,
        }
    }

    /// The next frame of an end, noted in the log.
    pub(crate) fn next_frame(&mut self, from: End) -> Option<Vec<u8>> {
        let now = self.now;
        let mut buffer = [0; 5000];
        let length = self.node(from).endpoint.transmit(now, &mut buffer)?;
        let bytes = buffer[..length].to_vec();
        let frame = Frame::parse(&bytes).expect("frames of the core are good");
        let bth = &frame.headers.bth;
        let aeth = frame.headers.extension.acknowledge();
        self.log.push(Sent {
            from,
            opcode: bth.opcode,
            psn: bth.psn,
            syndrome: aeth.map(|aeth| aeth.syndrome),
            msn: aeth.map(|aeth| aeth.msn),
            length: frame.payload.len(),
            time: now,
        });
        Some(bytes)
    }

    pub(crate) fn deliver(&mut self, to: End, bytes: &[u8]) {
        let now = self.now;
        self.node(to).endpoint.receive(now, bytes);
    }

    /// Carries frames until none is left. `passes` says what becomes of each.
    pub(crate) fn carry(&mut self, mut passes: impl FnMut(End, &[u8]) -> bool) {
        for _ in 0..200_000 {
            let mut quiet = true;
            for end in [End::Client, End::Server] {
                if let Some(bytes) = self.next_frame(end) {
                    quiet = false;
                    if passes(end, &bytes) {
                        self.wire.push_back((end.other(), bytes));
                    }
                }
            }
            match self.wire.pop_front() {
                Some((to, bytes)) => self.deliver(to, &bytes),
                None if quiet => return,
                None => {}
            }
        }
        panic!("the two ends do not stop talking");
    }

    /// Moves the clock to the next deadline, if there is one.
    pub(crate) fn next_deadline(&mut self) -> bool {
        let deadlines = [self.client.endpoint.deadline(), self.server.endpoint.deadline()];
        let Some(deadline) = deadlines.into_iter().flatten().min() else { return false };
        self.now = self.now.max(deadline);
        let now = self.now;
        self.client.endpoint.tick(now);
        self.server.endpoint.tick(now);
        true
    }

    /// Carries all frames and lets all timers expire, until nothing happens any more.
    pub(crate) fn run(&mut self, mut passes: impl FnMut(End, &[u8]) -> bool) {
        for _ in 0..10_000 {
            self.carry(&mut passes);
            if !self.next_deadline() {
                return;
            }
        }
        panic!("the timers never rest");
    }

    pub(crate) fn settle(&mut self) {
        self.run(|_, _| true);
    }

    /// The same with a bad wire, and no timer may expire.
    pub(crate) fn settle_with(&mut self, passes: impl FnMut(End, &[u8]) -> bool) {
        self.carry(passes);
    }

    /// What an end answered with a syndrome, without plain acknowledgements.
    pub(crate) fn refusals(&self, from: End) -> Vec<u8> {
        let sent = self.log.iter().filter(|sent| sent.from == from);
        sent.filter_map(|sent| sent.syndrome).map(Syndrome::to_byte).filter(|byte| *byte != 0x1f).collect()
    }

    /// The opcodes of an end, with their PSNs.
    pub(crate) fn frames(&self, from: End) -> Vec<(Opcode, u32)> {
        self.log.iter().filter(|sent| sent.from == from).map(|sent| (sent.opcode, sent.psn.value())).collect()
    }

    /// Where a datagram of `from` goes.
    pub(crate) fn destination(&self, from: End) -> Destination {
        let (node, peer) = match from {
            End::Client => (&self.client, &self.server),
            End::Server => (&self.server, &self.client),
        };
        let path = Path::new(node.station, peer.station, 0xc000).unwrap();
        Destination { path, queue_pair: peer.number, q_key: Q_KEY }
    }
}

/// Brings the queue pair of a node to RTS.
pub(crate) fn connect(
    node: &mut Node,
    settings: &Settings,
    access: Rights,
    (own, peer): (Psn, Psn),
    path: Path,
    number: Qpn,
) {
    let connected = settings.service != Service::Datagram;
    let reliable = settings.service == Service::ReliableConnected;
    let init = Attributes {
        partition_index: Some(0),
        port: Some(1),
        access: connected.then_some(access),
        q_key: (!connected).then_some(Q_KEY),
        ..Attributes::NONE
    };
    let receive = Attributes {
        path: connected.then_some(path),
        path_mtu: connected.then_some(settings.mtu),
        destination: connected.then_some(number),
        receive_psn: connected.then_some(peer),
        responder_depth: reliable.then_some(settings.responder_depth),
        rnr_timer: reliable.then_some(RnrTimer::new(settings.rnr_timer).unwrap()),
        ..Attributes::NONE
    };
    let send = Attributes {
        send_psn: Some(own),
        timeout: reliable.then_some(AckTimeout::new(settings.timeout).unwrap()),
        retries: reliable.then_some(settings.retries),
        rnr_retries: reliable.then_some(settings.rnr_retries),
        initiator_depth: reliable.then_some(settings.initiator_depth),
        ..Attributes::NONE
    };
    let steps = [(State::Init, init), (State::ReadyToReceive, receive), (State::ReadyToSend, send)];
    for (state, attributes) in steps {
        node.endpoint.modify(node.number, state, &attributes).unwrap();
    }
}
