//! What a test can have an RDMA adapter do, whoever made it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use vdk_descriptors::roce::{PathMtu, Psn, QKey, Qpn};
use vdk_firmware_stubs::random::SplitMix64;
use vdk_firmware_stubs::roce::{
    Operation, QueueSizes, Rights, ScatterGatherEntry, Service, Side, State, Station, Status,
};

/// An adapter with one port.
pub trait Adapter {
    /// The address of its port.
    fn station(&self) -> Station;

    /// Registers zeros.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    fn register(&mut self, length: u32, rights: Rights) -> Result<Region>;

    /// Writes the bytes of a generator to a part of a region.
    ///
    /// # Errors
    ///
    /// There is no such part, or the adapter does not answer.
    fn fill(&mut self, region: &Region, offset: u32, length: u32, seed: u64) -> Result<()>;

    /// A hash of a part of a region.
    ///
    /// # Errors
    ///
    /// There is no such part, or the adapter does not answer.
    fn hash(&mut self, region: &Region, offset: u32, length: u32) -> Result<u64>;

    /// Makes a queue pair in the state Reset.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    fn create(&mut self, service: Service, sizes: QueueSizes) -> Result<Pair>;

    /// Brings a queue pair to RTS.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    fn connect(&mut self, pair: Pair, connection: &Connection) -> Result<()>;

    /// Posts a send; says whether it was taken.
    ///
    /// # Errors
    ///
    /// The adapter does not answer.
    fn send(&mut self, pair: Pair, request: &Send<'_>) -> Result<bool>;

    /// Posts a receive; says whether it was taken.
    ///
    /// # Errors
    ///
    /// The adapter does not answer.
    fn receive(&mut self, pair: Pair, id: u64, entries: &[ScatterGatherEntry]) -> Result<bool>;

    /// Polls for `count` completions, and waits for them at most for `patience`.
    ///
    /// # Errors
    ///
    /// The adapter does not answer.
    fn poll(&mut self, pair: Pair, side: Side, count: usize, patience: Duration) -> Result<Vec<Done>>;

    /// Moves a queue pair to the state Error.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    fn fail(&mut self, pair: Pair) -> Result<()>;

    /// The state of a queue pair.
    ///
    /// # Errors
    ///
    /// The adapter does not answer.
    fn state(&mut self, pair: Pair) -> Result<State>;

    /// Ends a queue pair.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    fn destroy(&mut self, pair: Pair) -> Result<()>;

    /// Ends a region.
    ///
    /// # Errors
    ///
    /// The adapter refuses, or does not answer.
    fn deregister(&mut self, region: &Region) -> Result<()>;
}

/// A registered region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// How the adapter calls it.
    pub handle: usize,
    /// The address of its first byte.
    pub address: u64,
    /// The key for the own side.
    pub local_key: u32,
    /// The key for the other side.
    pub remote_key: u32,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// How the adapter calls it.
    pub handle: usize,
    /// Its number on the wire.
    pub number: Qpn,
}

/// What a queue pair is connected with.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The service of the queue pair.
    pub service: Service,
    /// The port of the other side.
    pub peer: Station,
    /// The queue pair of the other side.
    pub destination: Qpn,
    /// How many bytes a packet carries.
    pub mtu: PathMtu,
    /// The first PSN of this side.
    pub send_psn: Psn,
    /// The first PSN of the other side.
    pub receive_psn: Psn,
    /// What the other side may do.
    pub access: Rights,
    /// The key of the queue, of a datagram service.
    pub q_key: QKey,
    /// The code of the time for an answer.
    pub timeout: u8,
    /// How often packets are sent again.
    pub retries: u8,
    /// How often the other side may have no receive.
    pub rnr_retries: u8,
    /// The code of the time for which the other side shall wait for a receive.
    pub rnr_timer: u8,
    /// READs and atomic operations of this side.
    pub initiator_depth: u8,
    /// READs and atomic operations of the other side.
    pub responder_depth: u8,
}

/// A send to post; it is signaled.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// What the completion gives back.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// The local memory.
    pub entries: &'a [ScatterGatherEntry],
    /// Where to, for a datagram: port, queue pair and its Q_Key.
    pub to: Option<(Station, Qpn, QKey)>,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What the post gave.
    pub id: u64,
    /// The error, when it is one.
    pub status: Option<Status>,
    /// How many bytes a receive got, of a success.
    pub length: u32,
    /// The immediate value that came along.
    pub immediate: Option<u32>,
}

/// The bytes that [`Adapter::fill`] writes: of SplitMix64, least significant first.
pub(super) fn fill(bytes: &mut [u8], seed: u64) {
    let mut random = SplitMix64::new(seed);
    for chunk in bytes.chunks_mut(8) {
        for (byte, from) in chunk.iter_mut().zip(random.next().to_le_bytes()) {
            *byte = from;
        }
    }
}

/// What [`Adapter::hash`] gives: FNV-1a of 64 bits.
#[must_use]
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// `::ffff:a.b.c.d` for IPv4, as 32 hexadecimal digits.
#[must_use]
pub(super) fn gid_digits(address: IpAddr) -> String {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}
