//! Carries out a row of the oracle between two adapters.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vdk_descriptors::roce::{PathMtu, Psn, QKey};
use vdk_firmware_stubs::roce::{
    Operation, QueueSizes, Remote, Rights, ScatterGatherEntry, Service, Side, State, Status,
};

use super::adapter::{Adapter, Connection, Done, Pair, Region, Send};
use super::rows::{Key, Outcome, Party, Row, Settings, Step, Verb};

/// The first PSNs: of the requester, and of the responder.
pub(super) const PSNS: (Psn, Psn) = (Psn::new(0x20_0000), Psn::new(0x10_0000));
/// How long the regions are, in bytes.
const REGION: u32 = 64 << 10;
/// The key of the queue, with datagrams.
pub(super) const Q_KEY: u32 = 0x1111_1111;
/// Where the memory of receives begins in them.
const RECEIVES: u32 = 4096;
/// How long what must come is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How many completions are looked for beyond those that are expected.
const MORE: usize = 16;
/// How long what must not come is waited for.
const QUIET: Duration = Duration::from_millis(60);

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How many sends were refused.
    pub refused: usize,
    /// How the requester's sends ended.
    pub requester: Vec<Option<Status>>,
    /// How its receives ended.
    pub requester_receives: Vec<Option<Status>>,
    /// How the responder's receives ended.
    pub responder_receives: Vec<Option<Status>>,
    /// The states of both, the requester's first.
    pub states: (State, State),
    /// Syndromes that are no plain acknowledgement; filled in by whoever saw the wire.
    pub wire: Vec<u8>,
}

impl Seen {
    /// Whether it is what was expected.
    #[must_use]
    pub fn is(&self, outcome: &Outcome) -> bool {
        self.refused == outcome.refused
            && self.wire == outcome.wire
            && self.requester == outcome.requester
            && self.requester_receives == outcome.requester_receives
            && self.responder_receives == outcome.responder_receives
            && self.states == outcome.states
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} refused, wire {:02x?}, requester {:?}, its receives {:?}, responder's receives {:?}, states {:?}",
            self.refused,
            self.wire,
            self.requester,
            self.requester_receives,
            self.responder_receives,
            self.states
        )
    }
}

/// One side of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// Its queue pair.
    pub pair: Pair,
    /// Its memory.
    pub region: Region,
}

impl End {
    /// Makes a queue pair and a region.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    pub(super) fn new(
        adapter: &mut dyn Adapter,
        service: Service,
        length: u32,
        rights: Rights,
    ) -> Result<Self> {
        Self::sized(
            adapter,
            service,
            QueueSizes { sends: 16, receives: 16, entries: 2, inline: 64 },
            length,
            rights,
        )
    }

    /// The same, with queues of these sizes.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    pub(super) fn sized(
        adapter: &mut dyn Adapter,
        service: Service,
        sizes: QueueSizes,
        length: u32,
        rights: Rights,
    ) -> Result<Self> {
        Ok(Self { pair: adapter.create(service, sizes)?, region: adapter.register(length, rights)? })
    }

    /// Ends both.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    pub(super) fn end(self, adapter: &mut dyn Adapter) -> Result<()> {
        adapter.destroy(self.pair)?;
        adapter.deregister(&self.region)
    }

    /// A piece of the region.
    #[must_use]
    pub(super) fn entry(&self, offset: u32, length: u32, key: Key) -> ScatterGatherEntry {
        let address = self.region.address + u64::from(offset);
        ScatterGatherEntry { address, length, key: spoil(self.region.local_key, key) }
    }

    /// The region for the other side.
    #[must_use]
    pub(super) fn remote(&self, offset: u32, key: Key) -> Remote {
        Remote { address: self.region.address + u64::from(offset), key: spoil(self.region.remote_key, key) }
    }
}

fn spoil(right: u32, key: Key) -> u32 {
    match key {
        Key::Good => right,
        Key::Bad => right ^ 0x100,
    }
}

/// How two queue pairs are connected in the rows; the end that it is for comes first.
#[must_use]
pub(super) fn connection(
    settings: &Settings,
    access: Rights,
    (peer_adapter, peer): (&dyn Adapter, &End),
    (send_psn, receive_psn): (Psn, Psn),
) -> Connection {
    Connection {
        service: settings.service,
        peer: peer_adapter.station(),
        destination: peer.pair.number,
        mtu: PathMtu::Mtu1024,
        send_psn,
        receive_psn,
        access,
        q_key: QKey(Q_KEY),
        timeout: settings.timeout,
        retries: 2,
        rnr_retries: settings.rnr_retries,
        rnr_timer: settings.rnr_timer,
        initiator_depth: settings.initiator_depth,
        responder_depth: settings.responder_depth,
    }
}

/// Carries out `row`. What went over the wire is not in the answer.
///
/// # Errors
///
/// An adapter refuses what is no part of the fault, or does not answer.
pub fn carry_out(
    row: &Row,
    requester: &mut dyn Adapter,
    responder: &mut dyn Adapter,
    expected: &Outcome,
) -> Result<Seen> {
    let settings = &row.settings;
    let asking = End::new(requester, settings.service, REGION, Rights::ALL)?;
    let answering = End::new(responder, settings.service, REGION, settings.region)?;
    let (own, other) = PSNS;
    let to_responder = connection(settings, Rights::ALL, (responder, &answering), (own, other));
    let to_requester = connection(settings, settings.access, (requester, &asking), (other, own));
    responder.connect(answering.pair, &to_requester).context("the responder")?;
    requester.connect(asking.pair, &to_responder).context("the requester")?;

    let mut refused = 0;
    for (id, step) in (1..).zip(row.steps) {
        match *step {
            Step::Receive(party, length, key) => {
                let (adapter, end): (&mut dyn Adapter, &End) = match party {
                    Party::Requester => (requester, &asking),
                    Party::Responder => (responder, &answering),
                };
                let taken = adapter.receive(end.pair, id, &[end.entry(RECEIVES, length, key)])?;
                anyhow::ensure!(taken, "a receive was refused");
            }
            Step::ReceiveNothing => {
                anyhow::ensure!(responder.receive(answering.pair, id, &[])?, "a receive was refused");
            }
            Step::Send(verb, length, local, offset, key) => {
                let remote = answering.remote(offset, key);
                let operation = match verb {
                    Verb::Send => Operation::Send,
                    Verb::Write => Operation::Write(remote),
                    Verb::WriteImmediate => Operation::WriteWithImmediate(remote, 0x1234_5678),
                    Verb::Read => Operation::Read(remote),
                    Verb::CompareSwap => Operation::CompareSwap { remote, compare: 1, swap: 7 },
                    Verb::FetchAdd => Operation::FetchAdd { remote, add: 1 },
                };
                let entries = [asking.entry(0, length, local)];
                let q_key = QKey(spoil(Q_KEY, key));
                let datagram = settings.service == Service::Datagram;
                let to = datagram.then(|| (responder.station(), answering.pair.number, q_key));
                let send = Send { id, operation, entries: &entries, to };
                refused += usize::from(!requester.send(asking.pair, &send)?);
            }
            Step::Fail(Party::Requester) => requester.fail(asking.pair)?,
            Step::Fail(Party::Responder) => responder.fail(answering.pair)?,
        }
    }

    let (send, receive) = (Side::Send, Side::Receive);
    let mut sends = requester.poll(asking.pair, send, expected.requester.len(), PATIENCE)?;
    let mut receives =
        responder.poll(answering.pair, receive, expected.responder_receives.len(), PATIENCE)?;
    let mut own_receives =
        requester.poll(asking.pair, receive, expected.requester_receives.len(), PATIENCE)?;
    // What must not come would come now.
    thread::sleep(QUIET);
    sends.extend(requester.poll(asking.pair, send, MORE, Duration::ZERO)?);
    receives.extend(responder.poll(answering.pair, receive, MORE, Duration::ZERO)?);
    own_receives.extend(requester.poll(asking.pair, receive, MORE, Duration::ZERO)?);
    let statuses = |done: Vec<Done>| done.into_iter().map(|done| done.status).collect();
    let seen = Seen {
        refused,
        requester: statuses(sends),
        requester_receives: statuses(own_receives),
        responder_receives: statuses(receives),
        states: (
            settled(requester, asking.pair, expected.states.0)?,
            settled(responder, answering.pair, expected.states.1)?,
        ),
        wire: Vec::new(),
    };
    asking.end(requester)?;
    answering.end(responder)?;
    Ok(seen)
}

/// The state of a queue pair, which may need a moment to become the expected one.
pub(super) fn settled(adapter: &mut dyn Adapter, pair: Pair, expected: State) -> Result<State> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = adapter.state(pair)?;
        if state == expected || Instant::now() > deadline {
            return Ok(state);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// How the work of a queue ended: what is expected, and what comes beyond it.
pub(super) fn statuses(
    adapter: &mut dyn Adapter,
    pair: Pair,
    side: Side,
    expected: usize,
) -> Result<Vec<Option<Status>>> {
    let mut done = adapter.poll(pair, side, expected, PATIENCE)?;
    done.extend(adapter.poll(pair, side, MORE, QUIET)?);
    Ok(done.into_iter().map(|done| done.status).collect())
}
