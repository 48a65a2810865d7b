//! A frame in each datagram: QEMU's `socket,udp=` and `dgram` back-ends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use super::super::time::Time;
use super::{MAX_FRAME, Wire, WireError, check_length, wait_for};
use crate::unix_socket::{SocketFile, check_path};

/// How many datagrams that cannot be taken are looked at before the caller has its turn.
const LOST_AT_ONCE: usize = 64;
/// How long a frame waits for room at the other end before it is lost, and how often that is
/// looked at.
const LONGEST_HOLD: Duration = Duration::from_millis(100);
const HELD_NAP: Duration = Duration::from_micros(200);

/// A wire of datagrams.
#[derive(Debug)]
pub struct DatagramWire {
    socket: Socket,
    name: String,
    lost: u64,
    /// The frame for which the other end had no room, when there is one.
    held: Vec<u8>,
    /// Since when.
    held_since: Option<Time>,
}

#[derive(Debug)]
enum Socket {
    /// Bound and connected, so that the kernel keeps datagrams of others away.
    Udp(UdpSocket),
    /// Its file is removed at the end.
    Unix { socket: UnixDatagram, peer: UnixAddress, _own: SocketFile },
}

impl DatagramWire {
    /// Takes the UDP address `local` and speaks to `remote`, which need not be there yet.
    ///
    /// # Errors
    ///
    /// `local` is taken or not an address of this machine.
    pub fn udp(local: SocketAddr, remote: SocketAddr) -> Result<Self, WireError> {
        let name = format!("udp:{local},{remote}");
        let open = || {
            let socket = UdpSocket::bind(local)?;
            socket.set_nonblocking(true)?;
            socket.connect(remote)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| system("open", &name, source))?;
        Ok(Self::of(Socket::Udp(socket), name))
    }

    /// Makes the unix socket `local` and speaks to the one at `remote`, which need not be there
    /// yet. A socket that a process left behind at `local` is replaced.
    ///
    /// # Errors
    ///
    /// Another process or another kind of file is at `local`, or it cannot be made.
    pub fn unix(local: &Path, remote: &Path) -> Result<Self, WireError> {
        let name = format!("unix-dgram:{},{}", local.display(), remote.display());
        check_path(remote)?;
        let peer = UnixAddress::from_pathname(remote)
            .map_err(|source| system("speak to the other end of", &name, source))?;
        let (socket, own) = SocketFile::bind(local, |local| {
            let socket = UnixDatagram::bind(local)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?;
        Ok(Self::of(Socket::Unix { socket, peer, _own: own }, name))
    }

    fn of(socket: Socket, name: String) -> Self {
        Self { socket, name, lost: 0, held: Vec::with_capacity(MAX_FRAME), held_since: None }
    }

    /// Sends a frame; false when there is no room for it now.
    fn try_send(&mut self, frame: &[u8]) -> Result<bool, WireError> {
        let sent = match &self.socket {
            Socket::Udp(socket) => socket.send(frame),
            Socket::Unix { socket, peer, .. } => socket.send_to_addr(frame, peer),
        };
        match sent {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // Nobody there yet: Ethernet would lose the frame too.
            Err(error) if is_loss(&error) => {
                self.lost += 1;
                Ok(true)
            }
            Err(error) => Err(system("send to", &self.name, error)),
        }
    }

    /// Sends what is held, when there is room for it or it waited for too long. Linux keeps ten
    /// frames for a unix socket, which is not much.
    fn send_held(&mut self, now: Time) -> Result<(), WireError> {
        let Some(since) = self.held_since else { return Ok(()) };
        let held = core::mem::take(&mut self.held);
        let sent = self.try_send(&held);
        self.held = held;
        if now.since(since) >= LONGEST_HOLD && matches!(sent, Ok(false)) {
            self.lost += 1;
            self.held_since = None;
        } else if sent? {
            self.held_since = None;
        }
        Ok(())
    }
}

impl Wire for DatagramWire {
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError> {
        check_length(frame)?;
        self.send_held(now)?;
        if self.held_since.is_some() {
            // Whoever asked first would not have sent it.
            self.lost += 1;
        } else if !self.try_send(frame)? {
            self.held.clear();
            self.held.extend_from_slice(frame);
            self.held_since = Some(now);
        }
        Ok(())
    }

    /// Not while a frame waits for room at the other end.
    fn is_ready(&self) -> bool {
        self.held_since.is_none()
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        self.send_held(now)?;
        // Who sends what cannot be taken, without end, shall not keep the caller here.
        for _ in 0..LOST_AT_ONCE {
            // Told the whole length, one knows whether the datagram fitted.
            let received = match &self.socket {
                Socket::Udp(socket) => recv(socket, &mut *buffer, RecvFlags::TRUNC),
                Socket::Unix { socket, .. } => recv(socket, &mut *buffer, RecvFlags::TRUNC),
            };
            match received.map_err(io::Error::from) {
                Ok((copied, length)) if copied < length => self.lost += 1,
                Ok((_, length)) => return Ok(Some(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The other end was not there when the last frame was sent.
                Err(error) if is_loss(&error) => {}
                Err(error) => return Err(system("receive from", &self.name, error)),
            }
        }
        Ok(None)
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        let socket = match &self.socket {
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Unix { socket, .. } => socket.as_fd(),
        };
        // The socket does not tell when the other end has room again.
        let timeout = match self.held_since {
            Some(_) => Some(timeout.map_or(HELD_NAP, |timeout| timeout.min(HELD_NAP))),
            None => timeout,
        };
        wait_for(socket, false, wake, timeout).map_err(|errno| system("wait for", &self.name, errno.into()))
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

fn is_loss(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, Interrupted, NotFound, WouldBlock};
    // ENOBUFS has no kind of its own.
    let no_buffers = error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error());
    no_buffers
        || matches!(error.kind(), WouldBlock | ConnectionRefused | ConnectionReset | NotFound | Interrupted)
}

fn system(operation: &'static str, name: &str, source: io::Error) -> WireError {
    WireError::System { operation, name: name.to_owned(), source }
}
