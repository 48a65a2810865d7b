//! A queue pair with its memory, brought to the state in which it sends.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::iter;
use std::time::Duration;

use anyhow::{Context, Result};
use vdk_driver::descriptors::roce::{AckTimeout, Gid, PathMtu, Psn, QKey, Qpn, RnrTimer};
use vdk_firmware_stubs::roce::{
    Attributes, Completion, CompletionQueueId, Destination, Failure, MOST_DEPTH, Path, QueuePairOptions,
    QueueSizes, Registration, Remote, Rights, ScatterGatherEntry, Service, State, Status,
};

use super::port::Port;

/// A queue pair of this end.
pub(super) struct Connection {
    pub(super) number: Qpn,
    pub(super) psn: Psn,
    pub(super) sends: CompletionQueueId,
    pub(super) receives: CompletionQueueId,
    pub(super) region: Registration,
    service: Service,
    /// After how long something is sent again.
    pub(super) timeout: AckTimeout,
    /// Where datagrams go.
    pub(super) destination: Option<Destination>,
}

/// The other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) number: Qpn,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
    /// How many READs and atomic operations it takes.
    pub(super) depth: u8,
    pub(super) remote: Remote,
}

/// The key of the queue that the tools use for datagrams.
const Q_KEY: QKey = QKey(0x1111_1111);
/// How many READs and atomic operations this end takes.
pub(super) const DEPTH: u8 = 16;

impl Connection {
    /// Makes a queue pair and a region of `bytes` bytes.
    pub(super) fn new(
        port: &mut Port,
        service: Service,
        sizes: QueueSizes,
        bytes: usize,
        mtu: PathMtu,
    ) -> Result<Self> {
        let endpoint = &mut port.endpoint;
        let domain = endpoint.protection_domain();
        let mut queue =
            |capacity| endpoint.completion_queue(capacity).context("cannot create a completion queue");
        let (sends, receives) = (queue(sizes.sends)?, queue(sizes.receives)?);
        let region = endpoint
            .memory_mut()
            .register(domain, Rights::ALL, vec![0; bytes])
            .context("cannot register the memory of the test")?;
        let options =
            QueuePairOptions { service, domain, sizes, port_mtu: mtu, ..QueuePairOptions::default() };
        let number = endpoint.create(&options, sends, receives).context("cannot create a queue pair")?;
        let [a, b, c, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
        let psn = Psn::from_be_bytes([a, b, c]);
        Ok(Self {
            number,
            psn,
            sends,
            receives,
            region,
            service,
            timeout: AckTimeout::default(),
            destination: None,
        })
    }

    /// Part of the region.
    pub(super) fn entry(&self, offset: u64, length: u32) -> ScatterGatherEntry {
        ScatterGatherEntry { address: self.region.address + offset, length, key: self.region.key }
    }

    /// Lets receives be posted.
    pub(super) fn initialise(&self, port: &mut Port) -> Result<()> {
        let datagram = self.service == Service::Datagram;
        let attributes = Attributes {
            partition_index: Some(0),
            port: Some(1),
            access: (!datagram).then_some(Rights::ALL),
            q_key: datagram.then_some(Q_KEY),
            ..Attributes::NONE
        };
        self.step(port, State::Init, &attributes)
    }

    /// Connects the queue pair to `peer`.
    pub(super) fn connect(
        &mut self,
        port: &mut Port,
        peer: &Peer,
        mtu: PathMtu,
        patience: Duration,
    ) -> Result<()> {
        let station = port.peer(peer.gid, patience)?;
        let source_port = Qpn::source_port(self.number, peer.number);
        let path = Path::new(port.own(), station, source_port).with_context(|| {
            format!(
                "this end is {} and the peer {}: give both the same --gid-index",
                port.own().address,
                station.address
            )
        })?;
        self.destination = Some(Destination { path, queue_pair: peer.number, q_key: Q_KEY });
        let connected = self.service != Service::Datagram;
        let reliable = self.service == Service::ReliableConnected;
        let attributes = Attributes {
            path: connected.then_some(path),
            path_mtu: connected.then_some(mtu),
            destination: connected.then_some(peer.number),
            receive_psn: connected.then_some(peer.psn),
            responder_depth: reliable.then_some(DEPTH),
            rnr_timer: reliable.then_some(RnrTimer::default()),
            ..Attributes::NONE
        };
        self.step(port, State::ReadyToReceive, &attributes)?;
        let attributes = Attributes {
            send_psn: Some(self.psn),
            timeout: reliable.then_some(self.timeout),
            retries: reliable.then_some(7),
            rnr_retries: reliable.then_some(7),
            initiator_depth: reliable.then_some(peer.depth.min(MOST_DEPTH)),
            ..Attributes::NONE
        };
        self.step(port, State::ReadyToSend, &attributes)
    }

    /// What a failure came from: one that was flushed ended because of another.
    pub(super) fn cause(&self, port: &mut Port, failure: &Failure) -> Status {
        let endpoint = &mut port.endpoint;
        let rest = iter::from_fn(|| endpoint.poll(self.sends).or_else(|| endpoint.poll(self.receives)));
        let failures = rest.filter_map(|completion| match completion {
            Completion::Error(failure) => Some(failure.status),
            Completion::Success(_) => None,
        });
        iter::once(failure.status)
            .chain(failures)
            .find(|status| *status != Status::Flushed)
            .unwrap_or(failure.status)
    }

    fn step(&self, port: &mut Port, to: State, attributes: &Attributes) -> Result<()> {
        port.endpoint.modify(self.number, to, attributes).context("cannot set up the queue pair")
    }
}
