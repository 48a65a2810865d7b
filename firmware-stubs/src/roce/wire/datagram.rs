//! A frame in each datagram: QEMU's `socket,udp=` and `dgram` back-ends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use super::super::time::Time;
use super::{Wire, WireError, check_length, wait_for};

/// How many datagrams that cannot be taken are looked at before the caller has its turn.
const LOST_AT_ONCE: usize = 64;

/// A wire of datagrams.
#[derive(Debug)]
pub struct DatagramWire {
    socket: Socket,
    name: String,
    lost: u64,
}

#[derive(Debug)]
enum Socket {
    /// Bound and connected, so that the kernel keeps datagrams of others away.
    Udp(UdpSocket),
    /// `own` is removed at the end.
    Unix { socket: UnixDatagram, peer: UnixAddress, own: PathBuf },
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
        Ok(Self { socket: Socket::Udp(socket), name, lost: 0 })
    }

    /// Makes the unix socket `local` and speaks to the one at `remote`, which need not be there
    /// yet.
    ///
    /// # Errors
    ///
    /// Another process uses `local`, or it cannot be made.
    pub fn unix(local: &Path, remote: &Path) -> Result<Self, WireError> {
        let name = format!("unix-dgram:{},{}", local.display(), remote.display());
        let open = || {
            let peer = UnixAddress::from_pathname(remote)?;
            let socket = match UnixDatagram::bind(local) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    // One that was left behind refuses whoever calls; one in use does not.
                    match UnixDatagram::unbound()?.connect(local) {
                        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                            std::fs::remove_file(local)?;
                            UnixDatagram::bind(local)?
                        }
                        _ => return Err(error),
                    }
                }
                other => other?,
            };
            socket.set_nonblocking(true)?;
            Ok((socket, peer))
        };
        let (socket, peer) = open().map_err(|source| system("open", &name, source))?;
        Ok(Self { socket: Socket::Unix { socket, peer, own: local.to_owned() }, name, lost: 0 })
    }
}

impl Wire for DatagramWire {
    fn send(&mut self, _now: Time, frame: &[u8]) -> Result<(), WireError> {
        check_length(frame)?;
        let sent = match &self.socket {
            Socket::Udp(socket) => socket.send(frame),
            Socket::Unix { socket, peer, .. } => socket.send_to_addr(frame, peer),
        };
        match sent {
            Ok(_) => Ok(()),
            // No room, or nobody there yet: Ethernet would lose the frame too.
            Err(error) if is_loss(&error) => {
                self.lost += 1;
                Ok(())
            }
            Err(error) => Err(system("send to", &self.name, error)),
        }
    }

    fn receive(&mut self, _now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
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
        wait_for(socket, false, wake, timeout).map_err(|errno| system("wait for", &self.name, errno.into()))
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for DatagramWire {
    fn drop(&mut self) {
        if let Socket::Unix { own, .. } = &self.socket {
            // When it is gone already, all the better.
            let _ = std::fs::remove_file(own);
        }
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
