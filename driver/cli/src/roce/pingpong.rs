//! `vdk roce pingpong`: messages to and fro.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use vdk_driver::descriptors::roce::Gid;
use vdk_firmware_stubs::roce::{
    ADDRESS_AREA, Completion, Operation, Payload, QueueSizes, ReceiveRequest, Remote, SendRequest,
};

use super::arguments::{LinkArguments, PingpongArguments, Transport};
use super::connection::{Connection, Peer};
use super::exchange::Exchange;
use super::messages::PingpongAddress;
use super::patience::steps;
use super::port::Port;
use crate::signal::StopRequest;

/// What a pingpong came to.
#[derive(Debug, Serialize)]
struct Report {
    bytes: u64,
    iterations: u32,
    seconds: f64,
    microseconds_per_iteration: f64,
    megabits_per_second: f64,
    checked: bool,
}

/// What is in each byte of a message, as the tools have it.
const FILLING: u8 = 0x7b;
/// A page begins with its number modulo one, which is zero.
const PAGE: usize = 4096;

/// Runs the command.
pub(super) fn run(arguments: &PingpongArguments, json: bool) -> Result<()> {
    let LinkArguments { mtu, patience, .. } = arguments.link;
    let patience = Duration::from_secs(patience);
    let service = arguments.service.service();
    let datagram = arguments.service == Transport::Ud;
    let size = arguments.size.unwrap_or(if datagram { 1024.min(mtu.bytes()) } else { 4096 });
    ensure!(
        !datagram || size <= mtu.bytes(),
        "a datagram carries at most the path MTU, {mtu} bytes: lower --size or raise --mtu"
    );
    let mut port = Port::open(&arguments.link, StopRequest::listen()?)?;
    let sizes = QueueSizes { sends: 1, receives: arguments.rx_depth, entries: 1, inline: 0 };
    let offset = if datagram { ADDRESS_AREA } else { 0 };
    let length = usize::try_from(offset + size)?;
    let mut connection = Connection::new(&mut port, service, sizes, length, mtu)?;
    connection.timeout = arguments.link.timeout;
    connection.initialise(&mut port)?;
    let mut game = Game {
        size,
        offset,
        iterations: arguments.iterations,
        sent: 0,
        received: 0,
        waiting: 0,
        checked: arguments.check,
    };
    game.post_receives(&mut port, &connection, arguments.rx_depth)?;
    port.watch(connection.number, steps(arguments.iterations, size, mtu));

    let own = PingpongAddress {
        number: connection.number,
        psn: connection.psn,
        gid: Gid::from_address(port.own().address),
    };
    let mut exchange = Exchange::open(&arguments.link, &mut port)?;
    let what = "the address of its queue pair (52 bytes, as ibv_rc_pingpong sends)";
    if exchange.is_client() {
        exchange.send(&mut port, &own.bytes())?;
        let theirs = exchange.receive(&mut port, PingpongAddress::LENGTH, what)?;
        exchange.send(&mut port, PingpongAddress::DONE)?;
        let peer = peer(&PingpongAddress::parse(&theirs)?);
        connection.connect(&mut port, &peer, mtu, patience)?;
    } else {
        let theirs = exchange.receive(&mut port, PingpongAddress::LENGTH, what)?;
        let peer = peer(&PingpongAddress::parse(&theirs)?);
        connection.connect(&mut port, &peer, mtu, patience)?;
        exchange.send(&mut port, &own.bytes())?;
        exchange.receive(&mut port, PingpongAddress::DONE.len(), "the word that it is done")?;
    }
    game.fill(&mut port, &connection);
    let begun = Instant::now();
    game.waiting = Game::RECEIVE;
    if exchange.is_client() {
        game.post_send(&mut port, &connection)?;
    }
    while !game.is_over() {
        let what = format!("message {} of {}", game.received + 1, game.iterations);
        let (sends, receives) = (connection.sends, connection.receives);
        let done = port.until(patience, &what, |endpoint| {
            Ok(endpoint
                .poll(sends)
                .map(|done| (true, done))
                .or_else(|| endpoint.poll(receives).map(|done| (false, done))))
        })?;
        game.take(&mut port, &connection, done)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    port.linger(patience)?;
    let bytes = 2 * u64::from(size) * u64::from(game.iterations);
    report(&mut port, &game, bytes, seconds, json)
}

fn peer(address: &PingpongAddress) -> Peer {
    let PingpongAddress { number, psn, gid } = *address;
    Peer { number, psn, gid, depth: 1, remote: Remote::default() }
}

struct Game {
    size: u32,
    offset: u32,
    iterations: u32,
    sent: u32,
    received: u32,
    /// What must complete before the next message is sent.
    waiting: u8,
    checked: bool,
}

impl Game {
    const RECEIVE: u8 = 1;
    const SEND: u8 = 2;

    fn is_over(&self) -> bool {
        self.sent == self.iterations && self.received == self.iterations
    }

    /// Posts `count` receives.
    fn post_receives(&self, port: &mut Port, connection: &Connection, count: u32) -> Result<()> {
        let entries = [connection.entry(0, self.offset + self.size)];
        for _ in 0..count {
            port.endpoint.post_receive(connection.number, &ReceiveRequest { id: 1, entries: &entries })?;
        }
        Ok(())
    }

    fn post_send(&mut self, port: &mut Port, connection: &Connection) -> Result<()> {
        let entries = [connection.entry(u64::from(self.offset), self.size)];
        let mut request = SendRequest::new(2, Operation::Send, Payload::Entries(&entries));
        request.destination = connection.destination.as_ref();
        port.endpoint.post_send(connection.number, &request)?;
        self.waiting |= Self::SEND;
        Ok(())
    }

    fn fill(&self, port: &mut Port, connection: &Connection) {
        let offset = self.offset as usize;
        let message = port
            .endpoint
            .memory_mut()
            .bytes_mut(connection.region.key)
            .and_then(|bytes| bytes.get_mut(offset..));
        let Some(message) = message else { return };
        message.fill(FILLING);
        for page in message.iter_mut().step_by(PAGE).filter(|_| self.checked) {
            *page = 0;
        }
    }

    /// Takes the completion of a send or a receive, and sends the next message when both came.
    fn take(&mut self, port: &mut Port, connection: &Connection, done: (bool, Completion)) -> Result<()> {
        let (is_send, completion) = done;
        if let Completion::Error(failure) = completion {
            let (side, count) = if is_send { ("send", self.sent) } else { ("receive", self.received) };
            bail!("{side} {} of {} failed: {}", count + 1, self.iterations, connection.cause(port, &failure));
        }
        if is_send {
            self.sent += 1;
            self.waiting &= !Self::SEND;
        } else {
            self.received += 1;
            self.waiting &= !Self::RECEIVE;
            if self.checked {
                self.check(port, connection, &completion)?;
            }
            self.post_receives(port, connection, 1)?;
        }
        if self.waiting == 0 && self.sent < self.iterations {
            self.waiting = Self::RECEIVE;
            self.post_send(port, connection)?;
        }
        Ok(())
    }

    fn check(&self, port: &Port, connection: &Connection, completion: &Completion) -> Result<()> {
        if let Completion::Success(success) = completion
            && success.length != self.size
        {
            bail!("message {} has {} bytes, not {}", self.received, success.length, self.size);
        }
        let bytes = port.endpoint.memory().bytes(connection.region.key).unwrap_or_default();
        let message = bytes.get(self.offset as usize..).unwrap_or_default();
        // A page begins with zero when the other end checks too.
        let wrong = message
            .iter()
            .enumerate()
            .find(|(place, byte)| **byte != FILLING && !(**byte == 0 && place.is_multiple_of(PAGE)));
        match wrong {
            Some((place, byte)) => bail!(
                "message {} is damaged: byte {place:#x} is {byte:#04x}, not {FILLING:#04x}",
                self.received
            ),
            None => Ok(()),
        }
    }
}

fn report(port: &mut Port, game: &Game, bytes: u64, seconds: f64, json: bool) -> Result<()> {
    let iterations = f64::from(game.iterations);
    // CAST: a count of bytes in a rate needs no more than 53 bits.
    let megabits = bytes as f64 * 8.0 / seconds / 1e6;
    let report = Report {
        bytes,
        iterations: game.iterations,
        seconds,
        microseconds_per_iteration: seconds * 1e6 / iterations,
        megabits_per_second: megabits,
        checked: game.checked,
    };
    let text = format!(
        "{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec\n\
         {} iters in {seconds:.2} seconds = {:.2} usec/iter\n{}",
        report.iterations,
        report.microseconds_per_iteration,
        if game.checked { "every message was checked\n" } else { "" },
    );
    port.print(Some(&report), &text, json)
}
