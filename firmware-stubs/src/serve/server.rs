//! The socket, and who is served.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;
use vdk_hal::function::PciNode;
use vdk_hal::interrupt::EventFd;
use vdk_hal::vfio_user::transport::Channel;

use super::negotiation;
use super::session::Session;
use crate::shell::StubNode;
use crate::unix_socket::{SocketError, SocketFile};

/// How a device is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Whether pages of doorbells are offered to be mapped. Where not, every access is a
    /// message.
    pub mapped_doorbells: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { mapped_doorbells: true }
    }
}

/// Why a device is not served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is no socket for it.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused.
    #[error("cannot {what} {path}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: String,
        /// What the system said.
        error: io::ErrorKind,
    },
}

/// A device on a socket. Dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    node: Arc<StubNode>,
    socket: SocketFile,
    listener: UnixListener,
    options: ServerOptions,
    stop: EventFd,
    clients: AtomicU64,
    refusing: Arc<AtomicUsize>,
    current: Mutex<Option<Current>>,
}

/// The client that is served.
#[derive(Debug)]
struct Current {
    channel: Weak<Channel>,
    /// The device is free again.
    released: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Makes the socket. One that a server left behind is replaced.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn bind(node: Arc<StubNode>, path: &Path, options: ServerOptions) -> Result<Self, ServeError> {
        let system = |what| {
            let path = path.display().to_string();
            move |error: io::Error| ServeError::System { what, path, error: error.kind() }
        };
        let (listener, socket) = SocketFile::bind(path, |path| UnixListener::bind(path))?;
        listener.set_nonblocking(true).map_err(system("listen on"))?;
        let stop = EventFd::new().map_err(system("make an event file for"))?;
        Ok(Self {
            node,
            socket,
            listener,
            options,
            stop,
            clients: AtomicU64::new(0),
            refusing: Arc::default(),
            current: Mutex::default(),
        })
    }

    /// Where the socket is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// How many clients have been served, the present one included.
    #[must_use]
    pub fn clients(&self) -> u64 {
        // ORDERING: Relaxed; a count for people.
        self.clients.load(Ordering::Relaxed)
    }

    /// What ends [`run`](Self::run).
    #[must_use]
    pub fn stop_handle(&self) -> StopServer {
        StopServer(self.stop.clone())
    }

    /// Serves one client after the other until it is told to stop. The session of a client
    /// runs on a thread of its own, beside that of the device.
    ///
    /// # Errors
    ///
    /// [`ServeError::System`] when the socket is of no use any more.
    pub fn run(&self) -> Result<(), ServeError> {
        let result = loop {
            match wait(&[self.listener.as_fd(), self.stop.as_fd()], None) {
                Ok(ready) if ready[1] => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(self.failed("wait on")(error.into())),
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if is_passing(&error) => {}
                // Too many open files: they may be closed again soon.
                Err(error) => {
                    log::warn!("cannot take a client on {}: {error}", self.path().display());
                    let _ = wait(&[self.stop.as_fd()], Some(ACCEPT_PAUSE));
                }
            }
        };
        if let Some(current) = self.take_current() {
            if let Some(channel) = current.channel.upgrade() {
                channel.shut_down();
            }
            end(current);
        }
        result
    }

    /// Serves on a thread until the result is dropped.
    ///
    /// # Errors
    ///
    /// [`ServeError::System`] when there is no thread.
    pub fn spawn(self) -> Result<RunningServer, ServeError> {
        let server = Arc::new(self);
        let running = Arc::clone(&server);
        let spawned = std::thread::Builder::new().name("vfio-user server".to_owned()).spawn(move || {
            if let Err(error) = running.run() {
                log::error!("{error}");
            }
        });
        match spawned {
            Ok(thread) => Ok(RunningServer { server, thread: Some(thread) }),
            Err(error) => Err(server.failed("start a thread for")(error)),
        }
    }

    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> ServeError {
        let path = self.path().display().to_string();
        move |error| ServeError::System { what, path: path.clone(), error: error.kind() }
    }

    fn take_current(&self) -> Option<Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Serves a client, or tells it that the device is busy.
    fn admit(&self, stream: UnixStream) {
        let channel = match Channel::new(stream.into()) {
            Ok(channel) => Arc::new(channel),
            Err(error) => return log::warn!("cannot talk to a client: {error}"),
        };
        if let Some(current) = self.take_current() {
            if !current.is_over(&self.stop) {
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
                return self.refuse(channel);
            }
            end(current);
        }
        let released = Arc::new(AtomicBool::new(false));
        let weak = Arc::downgrade(&channel);
        let (node, stop, options) = (Arc::clone(&self.node), self.stop.clone(), self.options);
        let mark = Arc::clone(&released);
        let spawned = std::thread::Builder::new().name("vfio-user session".to_owned()).spawn(move || {
            Session::serve(&channel, &node, options, &stop);
            // ORDERING: Release pairs with the Acquire load in `is_over`. It comes before the
            // socket is closed, so that a client that saw its end finds the device free.
            mark.store(true, Ordering::Release);
            drop(channel);
        });
        match spawned {
            Ok(thread) => {
                // ORDERING: Relaxed; a count for people.
                self.clients.fetch_add(1, Ordering::Relaxed);
                let current = Current { channel: weak, released, thread };
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
            }
            Err(error) => log::error!("no thread for a client: {error}"),
        }
    }

    fn refuse(&self, channel: Arc<Channel>) {
        log::info!("{}: a client was told that the device is busy", self.node.name());
        // ORDERING: Relaxed; only the number matters.
        if self.refusing.fetch_add(1, Ordering::Relaxed) >= MOST_REFUSED {
            self.refusing.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let refusing = Arc::clone(&self.refusing);
        let spawned = std::thread::Builder::new().name("vfio-user refusal".to_owned()).spawn(move || {
            negotiation::refuse(&channel, Errno::BUSY);
            // ORDERING: Relaxed; as above.
            refusing.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            // ORDERING: Relaxed; as above.
            self.refusing.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Current {
    /// Whether the device is free again. A client that is gone is waited for: its session
    /// ends soon.
    fn is_over(&self, stop: &EventFd) -> bool {
        // ORDERING: Acquire pairs with the Release store at the end of the session.
        let released = || self.released.load(Ordering::Acquire) || self.thread.is_finished();
        let gone = || {
            let Some(channel) = self.channel.upgrade() else { return true };
            let mut files = [PollFd::new(&*channel, PollFlags::RDHUP | PollFlags::HUP)];
            let now = Timespec::default();
            matches!(poll(&mut files, Some(&now)), Ok(ready) if ready > 0)
        };
        if released() || !gone() {
            return released();
        }
        let end = Instant::now() + END_TIME;
        while !released() && Instant::now() < end {
            if wait(&[stop.as_fd()], Some(Duration::from_millis(1))).is_ok_and(|ready| ready[0]) {
                break;
            }
        }
        released()
    }
}

fn end(current: Current) {
    if current.thread.join().is_err() {
        log::error!("the session of a client has panicked");
    }
}

/// Ends [`Server::run`], also before it was begun. Clones end the same server.
#[derive(Clone, Debug)]
pub struct StopServer(EventFd);

impl StopServer {
    /// Ends it. The session of the present client ends as if the client had gone away.
    pub fn stop(&self) {
        self.0.signal(1);
    }
}

/// A server on a thread of its own. Dropping it ends it and removes the socket.
#[derive(Debug)]
pub struct RunningServer {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl RunningServer {
    /// The server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.server.stop_handle().stop();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the server has panicked");
        }
    }
}

/// Waits until one of `files` is readable or has ended; says which are. Nothing is when the
/// time is over or a signal came.
pub(super) fn wait<const N: usize>(
    files: &[BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> Result<[bool; N], Errno> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut files = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
    match poll(&mut files, limit.as_ref()) {
        Ok(_) => Ok(files.map(|file| !file.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error),
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// How long the end of a session may take when its client is gone.
const END_TIME: Duration = Duration::from_secs(10);

/// How long nobody is taken after that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many clients are told at the same time that the device is busy; others are hung up on.
const MOST_REFUSED: usize = 8;
