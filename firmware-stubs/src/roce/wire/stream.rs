//! Frames in a stream of bytes, each behind its length in four bytes, the highest first:
//! QEMU's `socket,listen=`, `socket,connect=` and `stream` back-ends.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use super::super::time::Time;
use super::{MAX_FRAME, Wire, WireError, check_length, wait_for};
use crate::unix_socket::{SocketFile, check_path};

/// A wire in a stream.
///
/// A listening one takes the first peer that connects, without waiting for it; what is sent
/// before is lost.
#[derive(Debug)]
pub struct StreamWire {
    link: Link,
    name: String,
    incoming: Bytes,
    outgoing: Bytes,
    lost: u64,
    /// Removed at the end.
    _own: Option<SocketFile>,
}

#[derive(Debug)]
enum Link {
    TcpListener(TcpListener),
    UnixListener(UnixListener),
    Tcp(TcpStream),
    Unix(UnixStream),
    /// The other end hung up, or sent nonsense.
    Broken,
}

impl StreamWire {
    /// Connects to a TCP address within `timeout`.
    ///
    /// # Errors
    ///
    /// Nobody listens there.
    pub fn connect_tcp(remote: SocketAddr, timeout: Duration) -> Result<Self, WireError> {
        let name = format!("tcp:{remote}");
        let open = || {
            let stream = TcpStream::connect_timeout(&remote, timeout)?;
            prepare_tcp(&stream)?;
            Ok(stream)
        };
        let stream = open().map_err(|source| system("connect to", &name, source))?;
        Ok(Self::new(Link::Tcp(stream), name, None))
    }

    /// Listens at a TCP address.
    ///
    /// # Errors
    ///
    /// It is taken or not an address of this machine.
    pub fn listen_tcp(local: SocketAddr) -> Result<Self, WireError> {
        let name = format!("tcp-listen:{local}");
        let open = || {
            let listener = TcpListener::bind(local)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = open().map_err(|source| system("listen at", &name, source))?;
        Ok(Self::new(Link::TcpListener(listener), name, None))
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    ///
    /// Nobody listens there.
    pub fn connect_unix(path: &Path) -> Result<Self, WireError> {
        check_path(path)?;
        let name = format!("unix:{}", path.display());
        let open = || {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = open().map_err(|source| system("connect to", &name, source))?;
        Ok(Self::new(Link::Unix(stream), name, None))
    }

    /// Makes a unix socket and listens at it. One that a process left behind is replaced.
    ///
    /// # Errors
    ///
    /// Another process or another kind of file is there, or it cannot be made.
    pub fn listen_unix(path: &Path) -> Result<Self, WireError> {
        let name = format!("unix-listen:{}", path.display());
        let (listener, file) = SocketFile::bind(path, |path| {
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        Ok(Self::new(Link::UnixListener(listener), name, Some(file)))
    }

    /// Whether a peer is there.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self.link, Link::Tcp(_) | Link::Unix(_))
    }

    fn new(link: Link, name: String, own: Option<SocketFile>) -> Self {
        Self { link, name, incoming: Bytes::new(), outgoing: Bytes::new(), lost: 0, _own: own }
    }

    /// Takes a peer that waits.
    fn accept(&mut self) -> Result<(), WireError> {
        let accepted = match &self.link {
            Link::TcpListener(listener) => listener.accept().and_then(|(stream, _)| {
                prepare_tcp(&stream)?;
                Ok(Link::Tcp(stream))
            }),
            Link::UnixListener(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Link::Unix(stream))
            }),
            Link::Broken => return Err(WireError::Closed { name: self.name.clone() }),
            Link::Tcp(_) | Link::Unix(_) => return Ok(()),
        };
        match accepted {
            Ok(link) => self.link = link,
            Err(error) if is_later(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(system("accept at", &self.name, error)),
        }
        Ok(())
    }

    /// Writes what waits, as far as the system takes it.
    fn flush(&mut self) -> Result<(), WireError> {
        while !self.outgoing.held().is_empty() {
            let written = match &mut self.link {
                Link::Tcp(stream) => stream.write(self.outgoing.held()),
                Link::Unix(stream) => stream.write(self.outgoing.held()),
                _ => return Ok(()),
            };
            match written {
                Ok(length) => self.outgoing.consume(length),
                Err(error) if is_later(&error) => return Ok(()),
                Err(error) => return Err(self.broken("send to", error)),
            }
        }
        Ok(())
    }

    fn broken(&mut self, operation: &'static str, error: io::Error) -> WireError {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        self.link = Link::Broken;
        match error.kind() {
            BrokenPipe | ConnectionReset => WireError::Closed { name: self.name.clone() },
            _ => system(operation, &self.name, error),
        }
    }

    /// Whether a frame was read that nobody took yet.
    fn has_frame(&self) -> bool {
        self.incoming.held().split_first_chunk().is_some_and(|(prefix, rest)| {
            usize::try_from(u32::from_be_bytes(*prefix)).is_ok_and(|length| rest.len() >= length)
        })
    }

    /// Takes the first frame out of what was read.
    fn take(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        while let Some((prefix, rest)) = self.incoming.held().split_first_chunk() {
            let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
            if length > MAX_FRAME {
                // There is no way to find the next frame.
                self.link = Link::Broken;
                return Err(WireError::Format { name: self.name.clone(), length });
            }
            let Some(frame) = rest.get(..length) else { return Ok(None) };
            let place = buffer.get_mut(..length);
            let fits = place.is_some();
            if let Some(place) = place {
                place.copy_from_slice(frame);
            }
            self.incoming.consume(PREFIX + length);
            if fits {
                return Ok(Some(length));
            }
            self.lost += 1;
        }
        Ok(None)
    }
}

impl Wire for StreamWire {
    fn send(&mut self, _now: Time, frame: &[u8]) -> Result<(), WireError> {
        check_length(frame)?;
        self.accept()?;
        self.flush()?;
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes();
        if !self.is_connected() || !self.outgoing.append(&[&length, frame]) {
            self.lost += 1;
            return Ok(());
        }
        self.flush()
    }

    fn receive(&mut self, _now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        self.accept()?;
        self.flush()?;
        loop {
            if let Some(length) = self.take(buffer)? {
                return Ok(Some(length));
            }
            let room = self.incoming.room();
            let read = match &mut self.link {
                Link::Tcp(stream) => stream.read(room),
                Link::Unix(stream) => stream.read(room),
                _ => return Ok(None),
            };
            match read {
                Ok(0) => {
                    self.link = Link::Broken;
                    return Err(WireError::Closed { name: self.name.clone() });
                }
                Ok(length) => self.incoming.added(length),
                Err(error) if is_later(&error) => return Ok(None),
                Err(error) => return Err(self.broken("receive from", error)),
            }
        }
    }

    /// Without a peer too: frames to nobody are lost.
    fn is_ready(&self) -> bool {
        !self.is_connected() || self.outgoing.free() >= PREFIX + MAX_FRAME
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        if self.has_frame() {
            return Ok(());
        }
        let waiting = !self.outgoing.held().is_empty();
        let link = match &self.link {
            Link::TcpListener(listener) => listener.as_fd(),
            Link::UnixListener(listener) => listener.as_fd(),
            Link::Tcp(stream) => stream.as_fd(),
            Link::Unix(stream) => stream.as_fd(),
            // The caller will learn it from the next call.
            Link::Broken => return Ok(()),
        };
        wait_for(link, waiting, wake, timeout).map_err(|errno| system("wait for", &self.name, errno.into()))
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

/// Bytes on their way, in a buffer that never grows.
#[derive(Debug)]
struct Bytes {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Bytes {
    fn new() -> Self {
        Self { bytes: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0 }
    }

    fn held(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn consume(&mut self, length: usize) {
        self.start = (self.start + length).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The place behind the last byte; never empty while less than one frame is held.
    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < PREFIX + MAX_FRAME {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// How many bytes can be appended.
    fn free(&self) -> usize {
        self.bytes.len() - (self.end - self.start)
    }

    fn added(&mut self, length: usize) {
        self.end = (self.end + length).min(self.bytes.len());
    }

    /// Appends all parts, or nothing when there is no room.
    fn append(&mut self, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|part| part.len()).sum();
        if self.room().len() < length {
            return false;
        }
        for part in parts {
            if let Some(place) = self.room().get_mut(..part.len()) {
                place.copy_from_slice(part);
            }
            self.end += part.len();
        }
        true
    }
}

fn prepare_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn system(operation: &'static str, name: &str, source: io::Error) -> WireError {
    WireError::System { operation, name: name.to_owned(), source }
}

/// How many bytes the length before a frame has.
const PREFIX: usize = 4;
/// How much one direction holds: several frames, so that a call to the system moves many.
const CAPACITY: usize = 256 << 10;
