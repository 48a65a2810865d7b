//! `vdk roce bw` and `vdk roce lat`: what perftest measures, with its exchange.

mod latency;
mod throughput;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use vdk_driver::descriptors::roce::{Gid, PathMtu};
use vdk_firmware_stubs::roce::{
    ADDRESS_AREA, Completion, Operation, Payload, QueueSizes, ReceiveRequest, Remote, SendRequest,
};

use super::arguments::{Measured, TestArguments, Transport};
use super::connection::{Connection, DEPTH, Peer};
use super::exchange::Exchange;
use super::messages::{PerftestKey, VERSION, check_version};
use super::patience::steps;
use super::port::Port;
use crate::signal::StopRequest;

/// Which of the two tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Throughput.
    Bw,
    /// Latency.
    Lat,
}

/// A connected test.
struct Bench {
    port: Port,
    exchange: Exchange,
    connection: Connection,
    key: PerftestKey,
    peer: Peer,
    operation: Measured,
    size: u32,
    iterations: u32,
    /// Where in a receive the message is.
    offset: u32,
    /// Where the second half of the region is, which the other end writes.
    half: u64,
    tx_depth: u32,
    patience: Duration,
}

/// What the tools have as the size of the buffer that a test goes through, and as that of a
/// cache line.
const CYCLE_BUFFER: u32 = 4096;
const CACHE_LINE: u32 = 64;
/// How many receives are kept posted.
const RX_DEPTH: u32 = 512;

/// Runs the command.
pub(super) fn run(arguments: &TestArguments, test: Test, json: bool) -> Result<()> {
    let operation = arguments.operation;
    let size = match (arguments.size, test) {
        _ if operation.is_atomic() => 8,
        (Some(size), _) => size,
        (None, Test::Bw) if arguments.service == Transport::Ud => arguments.link.mtu.bytes(),
        (None, Test::Bw) => 65536,
        (None, Test::Lat) => 2,
    };
    check(arguments, size)?;
    let mut bench = Bench::open(arguments, test, size)?;
    if test == Test::Bw && !operation.is_atomic() {
        bench.fill();
    }
    match test {
        Test::Bw => throughput::run(&mut bench, json)?,
        Test::Lat => latency::run(&mut bench, json)?,
    }
    match &arguments.memory {
        Some(path) => bench.save(path),
        None => Ok(()),
    }
}

fn check(arguments: &TestArguments, size: u32) -> Result<()> {
    let TestArguments { operation, service, .. } = *arguments;
    match service {
        Transport::Rc => {}
        Transport::Uc => ensure!(
            matches!(operation, Measured::Write | Measured::Send),
            "an unreliable connection has no READ and no atomic operation: use --service rc"
        ),
        Transport::Ud => {
            ensure!(operation == Measured::Send, "a datagram can only be sent: use --operation send");
            let most = arguments.link.mtu.bytes();
            ensure!(size <= most, "a datagram carries at most the path MTU, {most} bytes: lower --size");
        }
    }
    Ok(())
}

/// The same with the path MTU of both ends.
fn check_agreed(service: Transport, size: u32, mtu: PathMtu) -> Result<()> {
    let most = mtu.bytes();
    ensure!(
        service != Transport::Ud || size <= most,
        "the peer's path MTU is {most}, and a datagram carries no more: lower --size"
    );
    Ok(())
}

impl Bench {
    /// Meets the other end and connects to it.
    fn open(arguments: &TestArguments, test: Test, size: u32) -> Result<Self> {
        let link = &arguments.link;
        let operation = arguments.operation;
        let patience = Duration::from_secs(link.patience);
        let mut port = Port::open(link, StopRequest::listen()?)?;
        let mut exchange = Exchange::open(link, &mut port)?;
        let mtu = agree(&mut exchange, &mut port, link.mtu)?;
        check_agreed(arguments.service, size, mtu)?;
        let service = arguments.service.service();
        let tx_depth = if test == Test::Bw { arguments.tx_depth } else { 1 };
        let sizes = QueueSizes { sends: tx_depth, receives: RX_DEPTH, entries: 1, inline: 0 };
        let offset = if arguments.service == Transport::Ud { ADDRESS_AREA } else { 0 };
        let half = u64::from((size + ADDRESS_AREA).next_multiple_of(CYCLE_BUFFER));
        let mut connection = Connection::new(&mut port, service, sizes, usize::try_from(2 * half)?, mtu)?;
        connection.timeout = link.timeout;
        connection.initialise(&mut port)?;
        let iterations = arguments.iterations;
        port.watch(connection.number, steps(iterations, size, mtu));
        let key = PerftestKey {
            depth: if operation == Measured::Read || operation.is_atomic() { DEPTH } else { 1 },
            number: connection.number,
            psn: connection.psn,
            key: connection.region.key,
            address: connection.region.address + half,
            gid: Gid::from_address(port.own().address),
        };
        // The tools for latency say it twice, except that of SEND.
        let before = if test == Test::Lat && operation != Measured::Send { 2 } else { 1 };
        let mut theirs = swap_key(&mut exchange, &mut port, &key)?;
        for _ in 1..before {
            theirs = swap_key(&mut exchange, &mut port, &key)?;
        }
        let PerftestKey { depth, number, psn, gid, .. } = theirs;
        let remote = Remote { address: theirs.address, key: theirs.key };
        let peer = Peer { number, psn, gid, depth, remote };
        connection.connect(&mut port, &peer, mtu, patience)?;
        for _ in 0..2 {
            swap_key(&mut exchange, &mut port, &key)?;
        }
        let mut bench = Self {
            port,
            exchange,
            connection,
            key,
            peer,
            operation,
            size,
            iterations,
            offset,
            half,
            tx_depth,
            patience,
        };
        if operation == Measured::Send {
            for _ in 0..RX_DEPTH {
                bench.post_receive()?;
            }
            bench.handshake()?;
        }
        Ok(bench)
    }

    fn is_client(&self) -> bool {
        self.exchange.is_client()
    }

    /// Makes every word of the region another one, so that a byte in a wrong place shows.
    fn fill(&mut self) {
        let key = self.connection.region.key;
        let bytes = self.port.endpoint.memory_mut().bytes_mut(key).unwrap_or_default();
        let mut random = u64::from(self.connection.psn.value());
        for word in bytes.chunks_mut(8) {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let mixed = random ^ (random >> 29);
            for (byte, value) in word.iter_mut().zip(mixed.to_le_bytes()) {
                *byte = value;
            }
        }
    }

    /// Writes the region to a file.
    fn save(&self, path: &std::path::Path) -> Result<()> {
        let bytes = self.port.endpoint.memory().bytes(self.connection.region.key).unwrap_or_default();
        std::fs::write(path, bytes).with_context(|| format!("cannot write the memory to {}", path.display()))
    }

    /// Says the key once more, which both ends wait for.
    fn handshake(&mut self) -> Result<()> {
        swap_key(&mut self.exchange, &mut self.port, &self.key).map(|_| ())
    }

    /// Ends the test as the tools do.
    fn close(&mut self) -> Result<()> {
        self.handshake()?;
        self.exchange.send(&mut self.port, b"done\0")?;
        self.port.linger(self.patience)
    }

    fn post_receive(&mut self) -> Result<()> {
        let entries = [self.connection.entry(self.half, self.offset + self.size)];
        let request = ReceiveRequest { id: 0, entries: &entries };
        Ok(self.port.endpoint.post_receive(self.connection.number, &request)?)
    }

    /// Posts what is measured.
    fn post(&mut self, id: u64, signaled: bool) -> Result<()> {
        let remote = self.peer.remote;
        let operation = match self.operation {
            Measured::Write => Operation::Write(remote),
            Measured::Read => Operation::Read(remote),
            Measured::Send => Operation::Send,
            Measured::FetchAdd => Operation::FetchAdd { remote, add: 1 },
            Measured::CompareSwap => Operation::CompareSwap { remote, compare: 0, swap: 1 },
        };
        let entries = [self.connection.entry(0, self.size)];
        let mut request = SendRequest::new(id, operation, Payload::Entries(&entries));
        request.signaled = signaled;
        request.destination = self.connection.destination.as_ref();
        Ok(self.port.endpoint.post_send(self.connection.number, &request)?)
    }

    /// Waits for the next completion of a send, or of a receive.
    fn wait(&mut self, sends: bool, what: &str) -> Result<()> {
        let queue = if sends { self.connection.sends } else { self.connection.receives };
        let done = self.port.until(self.patience, what, |endpoint| Ok(endpoint.poll(queue)))?;
        match done {
            Completion::Success(_) => Ok(()),
            Completion::Error(failure) => {
                bail!("{what} failed: {}", self.connection.cause(&mut self.port, &failure))
            }
        }
    }
}

/// Agrees on the version, the sizes and the path MTU.
fn agree(exchange: &mut Exchange, port: &mut Port, own: PathMtu) -> Result<PathMtu> {
    let version = exchange.swap(port, VERSION, "the version of perftest")?;
    check_version(&version)?;
    exchange.swap(port, &CYCLE_BUFFER.to_be_bytes(), "the size of the buffer")?;
    exchange.swap(port, &CACHE_LINE.to_be_bytes(), "the size of a cache line")?;
    let theirs = exchange.swap(port, &[b'0' + own.code(), 0], "the path MTU")?;
    let code = theirs.first().map_or(0, |digit| digit.wrapping_sub(b'0'));
    let theirs = PathMtu::from_code(code).with_context(|| format!("the peer has path MTU {theirs:02x?}"))?;
    Ok(theirs.min(own))
}

fn swap_key(exchange: &mut Exchange, port: &mut Port, own: &PerftestKey) -> Result<PerftestKey> {
    let theirs =
        exchange.swap(port, &own.bytes(), "the key of its queue pair (108 bytes, as perftest sends)")?;
    debug_assert_eq!(theirs.len(), PerftestKey::LENGTH);
    PerftestKey::parse(&theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_fits_the_path_mtu_that_both_ends_have() {
        check_agreed(Transport::Ud, 1024, PathMtu::Mtu1024).unwrap();
        check_agreed(Transport::Rc, 65536, PathMtu::Mtu1024).unwrap();
        let error = check_agreed(Transport::Ud, 1025, PathMtu::Mtu1024).unwrap_err().to_string();
        assert_eq!(error, "the peer's path MTU is 1024, and a datagram carries no more: lower --size");
    }
}
