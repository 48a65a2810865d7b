//! Our endpoint at the end of a wire, kept going by a thread.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vdk_descriptors::roce::{
    AckTimeout, Frame, MAX_FRAME, NakCode, PathMtu, Qpn, RnrTimer, Syndrome, Unverified,
};
use vdk_firmware_stubs::roce::wire::faults::FaultEntry;
use vdk_firmware_stubs::roce::wire::{FaultyWire, Port, Wire};
use vdk_firmware_stubs::roce::{
    Attributes, Completion, CompletionQueueId, Counters, Destination, Endpoint, EndpointError, Path, Payload,
    ProtectionDomain, QueuePairOptions, QueueSizes, ReceiveRequest, Rights, ScatterGatherEntry, SendRequest,
    Service, Side, State, Station, Time,
};

use super::adapter::{self, Adapter, Connection, Done, Pair, Region, Send};

/// The wire of an endpoint: anything, with faults.
pub type EndpointWire = FaultyWire<Box<dyn Wire>>;

/// Our endpoint, and the thread that carries its frames.
#[derive(Debug)]
pub struct Ours {
    shared: Arc<Mutex<Shared>>,
    wake: UnixStream,
    thread: Option<JoinHandle<Result<EndpointWire>>>,
    station: Station,
    domain: ProtectionDomain,
    pairs: Vec<(Qpn, CompletionQueueId, CompletionQueueId)>,
    regions: Vec<u32>,
    /// The injected frames that are damaged.
    struck: Vec<Struck>,
}

/// A RoCE frame that went over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Whether we sent it.
    pub sent: bool,
    /// All its bytes.
    pub bytes: Vec<u8>,
}

impl Passed {
    /// The syndrome of an acknowledgement or of a response.
    #[must_use]
    pub fn syndrome(&self) -> Option<Syndrome> {
        let frame = Frame::parse(&self.bytes).ok()?;
        frame.headers.extension.acknowledge().map(|aeth| aeth.syndrome)
    }
}

/// A frame that was damaged on purpose: what is in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Struck {
    /// The name of its opcode.
    pub opcode: String,
    /// Whom it was for.
    pub queue_pair: u32,
    /// Its number in the transport.
    pub psn: u32,
}

impl From<&FaultEntry> for Struck {
    fn from(entry: &FaultEntry) -> Self {
        let FaultEntry { opcode, destination, psn, .. } = entry;
        Self { opcode: opcode.name().to_owned(), queue_pair: destination.value(), psn: psn.value() }
    }
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    /// Frames of the test's own making that are to be sent.
    outgoing: Vec<Vec<u8>>,
    passed: Vec<Passed>,
    /// NAKs of a gap that came in.
    sequence_naks: u64,
    ended: bool,
}

/// How many frames are kept; more come only where nobody looks at them.
const MOST_PASSED: usize = 4096;
/// How many frames go one way before the other way has its turn.
const TURN: usize = 64;
/// How long the thread sleeps at most.
const SLEEP: Duration = Duration::from_millis(50);

impl Ours {
    /// Starts an endpoint at `station` on a wire.
    ///
    /// # Errors
    ///
    /// The system has no sockets or threads left.
    pub fn start(wire: EndpointWire, station: Station) -> Result<Self> {
        let mut endpoint = Endpoint::new(vec![station], 1024);
        let domain = endpoint.protection_domain();
        let shared =
            Shared { endpoint, outgoing: Vec::new(), passed: Vec::new(), sequence_naks: 0, ended: false };
        let shared = Arc::new(Mutex::new(shared));
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let carrier = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("endpoint".to_owned())
            .spawn(move || carry(&carrier, wire, station, woken))?;
        Ok(Self {
            shared,
            wake,
            thread: Some(thread),
            station,
            domain,
            pairs: Vec::new(),
            regions: Vec::new(),
            struck: Vec::new(),
        })
    }

    /// Ends the thread and gives the wire back.
    ///
    /// # Errors
    ///
    /// Why the wire broke.
    pub fn stop(mut self) -> Result<EndpointWire> {
        self.act(|shared| shared.ended = true);
        let thread = self.thread.take().context("it was stopped before")?;
        thread.join().map_err(|_| anyhow::anyhow!("the thread of the endpoint panicked"))?
    }

    /// The frames that passed since the last call.
    pub fn passed(&mut self) -> Vec<Passed> {
        std::mem::take(&mut self.lock().passed)
    }

    /// Sends frames of the test's own making.
    pub fn inject(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let frames: Vec<Vec<u8>> = frames.into_iter().collect();
        let damaged = frames.iter().filter_map(|bytes| Unverified::parse(bytes).ok());
        self.struck.extend(damaged.filter(|unverified| !unverified.is_intact()).map(|unverified| {
            let bth = &unverified.frame().headers.bth;
            Struck {
                opcode: bth.opcode.name().to_owned(),
                queue_pair: bth.destination.value(),
                psn: bth.psn.value(),
            }
        }));
        self.act(|shared| shared.outgoing.extend(frames));
    }

    /// The injected frames that are damaged.
    #[must_use]
    pub fn struck(&self) -> &[Struck] {
        &self.struck
    }

    /// How many NAKs of a gap came in since the start.
    #[must_use]
    pub fn sequence_naks(&self) -> u64 {
        self.lock().sequence_naks
    }

    /// What a queue pair counted.
    ///
    /// # Errors
    ///
    /// There is no such queue pair.
    pub fn counters(&self, pair: Pair) -> Result<Counters> {
        self.lock().endpoint.counters(pair.number).copied().context("there is no such queue pair")
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the endpoint, and wakes the thread.
    fn act<T>(&mut self, act: impl FnOnce(&mut Shared) -> T) -> T {
        let answer = act(&mut self.lock());
        // When there is no room, it is awake already.
        let _ = self.wake.write(&[0]);
        answer
    }

    fn pair(&self, pair: Pair) -> Result<(Qpn, CompletionQueueId, CompletionQueueId)> {
        self.pairs.get(pair.handle).copied().context("there is no such queue pair")
    }

    fn path(&self, peer: Station, number: Qpn, destination: Qpn) -> Result<Path> {
        let port = Qpn::source_port(number, destination);
        Path::new(self.station, peer, port).context("the two addresses are not of one kind")
    }

    fn part<T>(
        &mut self,
        region: &Region,
        (offset, length): (u32, u32),
        act: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let key = region.local_key;
        self.act(|shared| {
            let bytes = shared.endpoint.memory_mut().bytes_mut(key).context("there is no such region")?;
            let (offset, length) = (usize::try_from(offset)?, usize::try_from(length)?);
            let part = bytes.get_mut(offset..).and_then(|bytes| bytes.get_mut(..length));
            Ok(act(part.context("the region is not that long")?))
        })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.act(|shared| shared.ended = true);
            // What it said matters to nobody any more.
            let _ = thread.join();
        }
    }
}

/// What the thread does until it is told to end.
fn carry(
    shared: &Mutex<Shared>,
    wire: EndpointWire,
    station: Station,
    mut woken: UnixStream,
) -> Result<EndpointWire> {
    let addresses: [IpAddr; 1] = [station.address];
    let mut port = Port::new(wire, station.ethernet, &addresses);
    let start = Instant::now();
    let now = || Time::ZERO.after(start.elapsed());
    let mut buffer = vec![0; MAX_FRAME.max(vdk_firmware_stubs::roce::wire::MAX_FRAME)];
    loop {
        let (deadline, more) = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if shared.ended {
                return Ok(port.into_wire());
            }
            for frame in std::mem::take(&mut shared.outgoing) {
                let Shared { passed, sequence_naks, .. } = &mut *shared;
                note(passed, sequence_naks, true, &frame);
                port.send(now(), &frame)?;
            }
            // A turn is bounded, so that who waits for the endpoint gets it.
            let Shared { endpoint, passed, sequence_naks, .. } = &mut *shared;
            let moved = port.carry(endpoint, now, &mut buffer, TURN, |sent, bytes| {
                note(passed, sequence_naks, sent, bytes);
            })?;
            let deadlines = [shared.endpoint.deadline(), port.deadline()];
            (deadlines.into_iter().flatten().min(), moved >= TURN)
        };
        if more {
            continue;
        }
        let sleep = deadline.map_or(SLEEP, |deadline| deadline.since(now()).min(SLEEP));
        port.wait(Some(woken.as_fd()), Some(sleep))?;
        let mut bytes = [0; 64];
        while woken.read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }
}

/// Keeps a RoCE frame, and counts the NAKs of a gap that came in.
fn note(passed: &mut Vec<Passed>, sequence_naks: &mut u64, sent: bool, bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else { return };
    let syndrome = frame.headers.extension.acknowledge().map(|aeth| aeth.syndrome);
    if !sent && syndrome == Some(Syndrome::nak(NakCode::PsnSequenceError)) {
        *sequence_naks += 1;
    }
    if passed.len() < MOST_PASSED {
        passed.push(Passed { sent, bytes: bytes.to_vec() });
    }
}

impl Adapter for Ours {
    fn station(&self) -> Station {
        self.station
    }

    fn register(&mut self, length: u32, rights: Rights) -> Result<Region> {
        let (domain, bytes) = (self.domain, vec![0; usize::try_from(length)?]);
        let region = self.act(|shared| shared.endpoint.memory_mut().register(domain, rights, bytes))?;
        self.regions.push(region.key);
        let handle = self.regions.len() - 1;
        Ok(Region { handle, address: region.address, local_key: region.key, remote_key: region.key })
    }

    fn fill(&mut self, region: &Region, offset: u32, length: u32, seed: u64) -> Result<()> {
        self.part(region, (offset, length), |bytes| adapter::fill(bytes, seed))
    }

    fn hash(&mut self, region: &Region, offset: u32, length: u32) -> Result<u64> {
        self.part(region, (offset, length), |bytes| adapter::hash(bytes))
    }

    fn create(&mut self, service: Service, sizes: QueueSizes) -> Result<Pair> {
        let options = QueuePairOptions {
            service,
            domain: self.domain,
            sizes,
            port_mtu: PathMtu::Mtu4096,
            // A slow guest shall not drown in what is sent again.
            window: 32,
        };
        let made = self.act(|shared| {
            let (send, receive) =
                (shared.endpoint.completion_queue(64)?, shared.endpoint.completion_queue(64)?);
            shared.endpoint.create(&options, send, receive).map(|number| (number, send, receive))
        })?;
        self.pairs.push(made);
        Ok(Pair { handle: self.pairs.len() - 1, number: made.0 })
    }

    fn connect(&mut self, pair: Pair, connection: &Connection) -> Result<()> {
        let (number, ..) = self.pair(pair)?;
        let connected = connection.service != Service::Datagram;
        let reliable = connection.service == Service::ReliableConnected;
        let path = self.path(connection.peer, number, connection.destination)?;
        let init = Attributes {
            partition_index: Some(0),
            port: Some(1),
            access: connected.then_some(connection.access),
            q_key: (!connected).then_some(connection.q_key),
            ..Attributes::NONE
        };
        let receive = Attributes {
            path: connected.then_some(path),
            path_mtu: connected.then_some(connection.mtu),
            destination: connected.then_some(connection.destination),
            receive_psn: connected.then_some(connection.receive_psn),
            responder_depth: reliable.then_some(connection.responder_depth),
            rnr_timer: reliable.then_some(RnrTimer::from_low_bits(connection.rnr_timer)),
            ..Attributes::NONE
        };
        let send = Attributes {
            send_psn: Some(connection.send_psn),
            timeout: reliable.then_some(AckTimeout::from_low_bits(connection.timeout)),
            retries: reliable.then_some(connection.retries),
            rnr_retries: reliable.then_some(connection.rnr_retries),
            initiator_depth: reliable.then_some(connection.initiator_depth),
            ..Attributes::NONE
        };
        let steps = [(State::Init, init), (State::ReadyToReceive, receive), (State::ReadyToSend, send)];
        for (state, attributes) in steps {
            self.act(|shared| shared.endpoint.modify(number, state, &attributes))?;
        }
        Ok(())
    }

    fn send(&mut self, pair: Pair, request: &Send<'_>) -> Result<bool> {
        let (number, ..) = self.pair(pair)?;
        let destination = match request.to {
            Some((station, queue_pair, q_key)) => {
                Some(Destination { path: self.path(station, number, queue_pair)?, queue_pair, q_key })
            }
            None => None,
        };
        let mut post = SendRequest::new(request.id, request.operation, Payload::Entries(request.entries));
        post.destination = destination.as_ref();
        taken(self.act(|shared| shared.endpoint.post_send(number, &post)))
    }

    fn receive(&mut self, pair: Pair, id: u64, entries: &[ScatterGatherEntry]) -> Result<bool> {
        let (number, ..) = self.pair(pair)?;
        taken(self.act(|shared| shared.endpoint.post_receive(number, &ReceiveRequest { id, entries })))
    }

    fn poll(&mut self, pair: Pair, side: Side, count: usize, patience: Duration) -> Result<Vec<Done>> {
        let (_, send, receive) = self.pair(pair)?;
        let queue = match side {
            Side::Send => send,
            Side::Receive => receive,
        };
        let deadline = Instant::now() + patience;
        let mut found = Vec::new();
        loop {
            while found.len() < count
                && let Some(completion) = self.lock().endpoint.poll(queue)
            {
                found.push(done(&completion));
            }
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            if found.len() >= count || ended || Instant::now() >= deadline {
                return Ok(found);
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn fail(&mut self, pair: Pair) -> Result<()> {
        let (number, ..) = self.pair(pair)?;
        Ok(self.act(|shared| shared.endpoint.modify(number, State::Error, &Attributes::NONE))?)
    }

    fn state(&mut self, pair: Pair) -> Result<State> {
        self.lock().endpoint.state(pair.number).context("there is no such queue pair")
    }

    fn destroy(&mut self, pair: Pair) -> Result<()> {
        Ok(self.act(|shared| shared.endpoint.destroy(pair.number)).map(|_| ())?)
    }

    fn deregister(&mut self, region: &Region) -> Result<()> {
        let key = region.local_key;
        let bytes = self.act(|shared| shared.endpoint.memory_mut().deregister(key));
        bytes.map(|_| ()).context("there is no such region")
    }
}

fn taken(answer: Result<(), EndpointError>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(EndpointError::Post(_)) => Ok(false),
        Err(error) => bail!(error),
    }
}

fn done(completion: &Completion) -> Done {
    match completion {
        Completion::Success(success) => {
            Done { id: success.id, status: None, length: success.length, immediate: success.immediate }
        }
        Completion::Error(failure) => {
            Done { id: failure.id, status: Some(failure.status), length: 0, immediate: None }
        }
    }
}
