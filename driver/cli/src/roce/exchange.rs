//! The TCP connection on which the two ends exchange addresses.
//!
//! While one waits for the other the wire must go on: a peer asks for our Ethernet address
//! before it answers. So the socket never blocks.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::arguments::LinkArguments;
use super::port::Port;

/// The connection to the other end.
pub(super) struct Exchange {
    stream: TcpStream,
    client: bool,
    patience: Duration,
}

/// How long the wire may sleep while TCP is waited for.
const NAP: Duration = Duration::from_millis(2);
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
        let mut begun = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => bail!("the peer closed the TCP connection"),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if is_passing(&error) => {
                    self.rest(port, &mut begun, "a sign that it takes messages")?
                }
                Err(error) => return Err(error).context("cannot send to the peer"),
            }
        }
        Ok(())
    }

    /// Waits for a message of `length` bytes; `what` says which one.
    pub(super) fn receive(&mut self, port: &mut Port, length: usize, what: &str) -> Result<Vec<u8>> {
        let mut begun = Instant::now();
        let mut bytes = vec![0; length];
        let mut have = 0;
        while have < length {
            match self.stream.read(bytes.get_mut(have..).unwrap_or_default()) {
                Ok(0) => bail!(
                    "the peer closed the TCP connection when {what} was due ({have} of {length} bytes came): \
                     look for its error message, and whether both ends run the same test"
                ),
                Ok(count) => have += count,
                Err(error) if is_passing(&error) => self.rest(port, &mut begun, what)?,
                Err(error) => return Err(error).with_context(|| format!("cannot receive {what}")),
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

    /// Waits a little. A wire that moves says that the peer is alive, and its time begins anew.
    fn rest(&self, port: &mut Port, begun: &mut Instant, what: &str) -> Result<()> {
        if nap(port)? {
            *begun = Instant::now();
        } else if begun.elapsed() > self.patience {
            bail!("waited {} s for the peer: {what} did not come", self.patience.as_secs());
        }
        Ok(())
    }
}

/// Polls the wire, or sleeps when it is quiet. Tells whether something moved.
fn nap(port: &mut Port) -> Result<bool> {
    let moved = port.poll()?;
    if !moved {
        port.wait(NAP)?;
    }
    Ok(moved)
}

fn connect(host: &str, number: u16, patience: Duration, port: &mut Port) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        let addresses =
            (host, number).to_socket_addrs().with_context(|| format!("cannot find host {host:?}"))?;
        let mut last = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        if begun.elapsed() > patience {
            let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
            bail!(
                "no server at {host} port {number} within {} s ({why}): start the server first, or are both ends clients?",
                patience.as_secs()
            );
        }
        let tried = Instant::now();
        while tried.elapsed() < TRY_AGAIN {
            nap(port)?;
        }
    }
}

fn accept(number: u16, patience: Duration, port: &mut Port) -> Result<TcpStream> {
    let listener = TcpListener::bind(("0.0.0.0", number)).with_context(|| {
        format!("cannot listen on TCP port {number}: is it taken? choose another with --port")
    })?;
    listener.set_nonblocking(true).context("cannot set up the TCP port")?;
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error).context("cannot accept a client"),
        }
        if begun.elapsed() > patience {
            bail!(
                "no client came to TCP port {number} within {} s: are both ends servers? \
                 give one of them the host of the other",
                patience.as_secs()
            );
        }
        nap(port)?;
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
