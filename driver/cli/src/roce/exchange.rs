//! The TCP connection on which the two ends exchange addresses.
//!
//! While one waits for the other the wire must go on: a peer asks for our Ethernet address
//! before it answers. So the socket never blocks.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::arguments::LinkArguments;
use super::patience::Patience;
use super::port::Port;

/// The connection to the other end.
pub(super) struct Exchange {
    stream: TcpStream,
    client: bool,
    patience: Duration,
}

/// How long the wire may sleep while TCP is waited for.
const NAP: Duration = Duration::from_millis(2);
/// How long one try to connect may take.
const LONGEST_TRY: Duration = Duration::from_secs(2);
/// How often a client tries to connect to a server that is not there yet.
const TRY_AGAIN: Duration = Duration::from_millis(200);

impl Exchange {
    /// Connects to the server, or waits for the client.
    pub(super) fn open(link: &LinkArguments, port: &mut Port) -> Result<Self> {
        let patience = Duration::from_secs(link.patience);
        let stream = match &link.host {
            Some(host) => connect(host, link.port, patience, port)?,
            None => accept(link.port, patience, port)?,
        };
        stream.set_nonblocking(true).context("cannot set up the TCP connection")?;
        stream.set_nodelay(true).context("cannot set up the TCP connection")?;
        Ok(Self { stream, client: link.host.is_some(), patience })
    }

    /// Whether this end is the client.
    pub(super) fn is_client(&self) -> bool {
        self.client
    }

    /// Sends a message.
    pub(super) fn send(&mut self, port: &mut Port, mut bytes: &[u8]) -> Result<()> {
        let mut patience = Patience::new(self.patience, Instant::now());
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => bail!("the peer closed the TCP connection"),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if is_passing(&error) => {
                    port.rest(&mut patience, NAP)?;
                    let now = Instant::now();
                    if patience.is_over(now) {
                        bail!(
                            "{} for the peer to take {} bytes over TCP: does it still run? \
                             --patience makes the wait longer",
                            patience.waited(now),
                            bytes.len()
                        );
                    }
                }
                Err(error) => return Err(error).context("cannot send to the peer"),
            }
        }
        Ok(())
    }

    /// Waits for a message of `length` bytes; `what` says which one. All of it must come in
    /// time; a test that goes on meanwhile makes the time longer, single bytes do not.
    pub(super) fn receive(&mut self, port: &mut Port, length: usize, what: &str) -> Result<Vec<u8>> {
        let mut patience = Patience::new(self.patience, Instant::now());
        let mut bytes = vec![0; length];
        let mut have = 0;
        while have < length {
            match self.stream.read(bytes.get_mut(have..).unwrap_or_default()) {
                Ok(0) => bail!(
                    "the peer closed the TCP connection when {what} was due ({have} of {length} bytes came): \
                     look for its error message, and whether both ends run the same test"
                ),
                Ok(count) => have += count,
                Err(error) if is_passing(&error) => port.rest(&mut patience, NAP)?,
                Err(error) => return Err(error).with_context(|| format!("cannot receive {what}")),
            }
            let now = Instant::now();
            if have < length && patience.is_over(now) {
                bail!(
                    "{} for the peer: {what} did not come ({have} of {length} bytes did): does it still run, \
                     and is it the same test? --patience makes the wait longer",
                    patience.waited(now)
                );
            }
        }
        Ok(bytes)
    }

    /// Exchanges a message of the same length both ways; the client speaks first.
    pub(super) fn swap(&mut self, port: &mut Port, bytes: &[u8], what: &str) -> Result<Vec<u8>> {
        if self.client {
            self.send(port, bytes)?;
            self.receive(port, bytes.len(), what)
        } else {
            let answer = self.receive(port, bytes.len(), what)?;
            self.send(port, bytes)?;
            Ok(answer)
        }
    }
}

fn connect(host: &str, number: u16, patience: Duration, port: &mut Port) -> Result<TcpStream> {
    let mut patience = Patience::new(patience, Instant::now());
    loop {
        let begun = Instant::now();
        let most = patience.left(begun).clamp(NAP, LONGEST_TRY);
        let (sender, receiver) = mpsc::channel();
        let address = (host.to_owned(), number);
        // On a thread of its own, since neither the name nor the connection waits for the wire. It
        // ends soon after `most`, and nobody listens to it any more when this end gave up.
        thread::spawn(move || sender.send(try_connect(&address, most)));
        let why = loop {
            match receiver.try_recv() {
                Ok(Ok(Ok(stream))) => return Ok(stream),
                Ok(Ok(Err(why))) => break why,
                Ok(Err(error)) => return Err(error).with_context(|| format!("cannot find host {host:?}")),
                // A name may be looked up for as long as the system likes.
                Err(mpsc::TryRecvError::Empty) if patience.is_over(Instant::now()) => {
                    break "neither its address nor an answer came".to_owned();
                }
                Err(mpsc::TryRecvError::Empty) => port.rest(&mut patience, NAP)?,
                Err(mpsc::TryRecvError::Disconnected) => break "the system has no threads left".to_owned(),
            }
        };
        let now = Instant::now();
        if patience.is_over(now) {
            bail!(
                "{}, and there is no server at {host} port {number} ({why}): start the server first, or are \
                 both ends clients? --patience makes the wait longer",
                patience.waited(now)
            );
        }
        while begun.elapsed() < TRY_AGAIN {
            port.rest(&mut patience, NAP)?;
        }
    }
}

/// Tries each address of a host, for `most` each: a connection, or why there is none.
fn try_connect(address: &(String, u16), most: Duration) -> std::io::Result<Result<TcpStream, String>> {
    let mut last = "it has no address".to_owned();
    for address in (address.0.as_str(), address.1).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, most) {
            Ok(stream) => return Ok(Ok(stream)),
            Err(error) => last = error.to_string(),
        }
    }
    Ok(Err(last))
}

fn accept(number: u16, patience: Duration, port: &mut Port) -> Result<TcpStream> {
    // IPv6 takes clients of IPv4 too, where the system has it.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, number))
        .or_else(|error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)),
        })
        .with_context(|| {
            format!("cannot listen on TCP port {number}: is it taken? choose another with --port")
        })?;
    listener.set_nonblocking(true).context("cannot set up the TCP port")?;
    let mut patience = Patience::new(patience, Instant::now());
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error).context("cannot accept a client"),
        }
        let now = Instant::now();
        if patience.is_over(now) {
            bail!(
                "{}, and no client came to TCP port {number}: are both ends servers? give one of them the \
                 host of the other. --patience makes the wait longer",
                patience.waited(now)
            );
        }
        port.rest(&mut patience, NAP)?;
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
