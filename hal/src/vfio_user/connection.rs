//! Commands to a server and their replies; and what the server asks in turn.
//!
//! One thread receives. Whoever sends a command waits for the reply that it names, so that
//! several threads may have commands under way, and the server may read and write memory of
//! the client meanwhile.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::capabilities::Capabilities;
use super::memory::MappedMemory;
use super::message::{Command, DmaAccess, Header, Version};
use super::transport::{Channel, Message, TransportError};
use crate::bar::{Liveness, LivenessState};
use crate::event::{DeviceEvent, DeviceEvents};
use crate::interrupt::EventFd;

/// A connection to a server, for as long as anybody holds a part of the function.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Channel,
    timeout: Duration,
    peer: OnceLock<Capabilities>,
    waiting: Mutex<Waiting>,
    answered: Condvar,
    closing: AtomicBool,
    /// Whether handles of the function still work.
    pub(super) liveness: Arc<Liveness>,
    /// What the function told out of band.
    pub(super) events: DeviceEvents,
    /// Signalled by the server when the function reports an error.
    pub(super) error: EventFd,
    /// Signalled by the server when the function is wanted back.
    pub(super) request: EventFd,
    /// What the server may reach.
    pub(super) memory: MappedMemory,
}

/// The commands that wait for their reply.
#[derive(Debug, Default)]
struct Waiting {
    last_id: u16,
    commands: HashMap<u16, Option<Message>>,
    /// Nothing is received any more.
    ended: bool,
}

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum RequestError {
    /// The server said no, with an `errno`.
    #[error("the server refused {command}: {error}")]
    Refused {
        /// What was asked.
        command: Command,
        /// The reason.
        error: Errno,
    },
    /// The server is gone.
    #[error("the server is gone")]
    Gone,
    /// The server does not answer.
    #[error("the server did not answer {command} in time")]
    TimedOut {
        /// What was asked.
        command: Command,
    },
    /// The answer makes no sense.
    #[error("the server answered {command} with nonsense: {what}")]
    Malformed {
        /// What was asked.
        command: Command,
        /// What is wrong.
        what: &'static str,
    },
    /// The command could not be sent.
    #[error(transparent)]
    Transport(TransportError),
}

impl RequestError {
    /// As a kind of input and output error.
    pub(super) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Refused { error, .. } => io::Error::from(*error).kind(),
            Self::Gone => io::ErrorKind::NotConnected,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::Malformed { .. } => io::ErrorKind::InvalidData,
            Self::Transport(TransportError::System(kind)) => *kind,
            Self::Transport(_) => io::ErrorKind::Other,
        }
    }
}

/// The receiving thread.
#[derive(Debug)]
pub(super) struct Receiver(JoinHandle<()>);

impl Connection {
    /// Begins to receive, and negotiates.
    pub(super) fn begin(
        stream: UnixStream,
        timeout: Duration,
    ) -> Result<(Arc<Self>, Receiver), RequestError> {
        let system = |error: io::Error| RequestError::Transport(TransportError::System(error.kind()));
        let connection = Arc::new(Self {
            channel: Channel::new(stream.into()).map_err(system)?,
            timeout,
            peer: OnceLock::new(),
            waiting: Mutex::default(),
            answered: Condvar::new(),
            closing: AtomicBool::new(false),
            liveness: Liveness::new(),
            events: DeviceEvents::new().map_err(system)?,
            error: EventFd::new().map_err(system)?,
            request: EventFd::new().map_err(system)?,
            memory: MappedMemory::default(),
        });
        let receiving = Arc::clone(&connection);
        let thread = std::thread::Builder::new()
            .name("vfio-user client".to_owned())
            .spawn(move || receiving.receive_all())
            .map_err(system)?;
        let receiver = Receiver(thread);
        match connection.negotiate() {
            Ok(peer) => {
                // Nobody else sets it.
                let _ = connection.peer.set(peer);
                Ok((connection, receiver))
            }
            Err(error) => {
                // There is no device that it could let go of.
                // ORDERING: Relaxed; see `end`.
                connection.closing.store(true, Ordering::Relaxed);
                connection.stop(receiver);
                Err(error)
            }
        }
    }

    /// What the server takes.
    pub(super) fn peer(&self) -> Capabilities {
        self.peer.get().copied().unwrap_or_default()
    }

    /// Sends a command and waits for the reply; one end for both.
    pub(super) fn call(
        &self,
        command: Command,
        parts: &[&[u8]],
        files: &[BorrowedFd<'_>],
    ) -> Result<Message, RequestError> {
        let id = {
            let mut waiting = self.lock();
            if waiting.ended {
                return Err(RequestError::Gone);
            }
            let id = waiting.next_id();
            waiting.commands.insert(id, None);
            id
        };
        let end = Instant::now() + self.timeout;
        let header = Header { id, command: command.0, ..Header::default() };
        if let Err(error) = self.channel.send_by(end, header, parts, files) {
            self.lock().commands.remove(&id);
            return Err(of_transport(error));
        }
        let mut waiting = self.lock();
        let reply = loop {
            if let Some(reply) = waiting.commands.get_mut(&id).and_then(Option::take) {
                break Ok(reply);
            }
            if waiting.ended {
                break Err(RequestError::Gone);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(RequestError::TimedOut { command });
            }
            let woken = self.answered.wait_timeout(waiting, left);
            waiting = woken.map_or_else(|poisoned| poisoned.into_inner().0, |(waiting, _)| waiting);
        };
        waiting.commands.remove(&id);
        drop(waiting);
        self.check(command, reply?)
    }

    /// Sends a command that needs no reply, as writes on a bus have none.
    pub(super) fn post(&self, command: Command, parts: &[&[u8]]) -> Result<(), RequestError> {
        let id = {
            let mut waiting = self.lock();
            if waiting.ended {
                return Err(RequestError::Gone);
            }
            waiting.next_id()
        };
        let header = Header { id, command: command.0, flags: Header::NO_REPLY, ..Header::default() };
        self.channel.send_by(Instant::now() + self.timeout, header, parts, &[]).map_err(of_transport)
    }

    /// Sends a command whose reply begins with a structure.
    pub(super) fn ask<T: FromBytes>(
        &self,
        command: Command,
        parts: &[&[u8]],
    ) -> Result<(T, Message), RequestError> {
        let reply = self.call(command, parts, &[])?;
        let Some((value, _)) = reply.parse::<T>() else {
            return Err(RequestError::Malformed { command, what: "it is too short" });
        };
        Ok((value, reply))
    }

    /// Says farewell, waits until the server has let go, and ends the receiving thread.
    pub(super) fn end(&self, receiver: Receiver) {
        // ORDERING: Relaxed; the end of the socket comes after it, by a system call.
        self.closing.store(true, Ordering::Relaxed);
        self.channel.finish_sending();
        let end = Instant::now() + FAREWELL_TIME;
        let mut waiting = self.lock();
        while !waiting.ended {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                log::warn!("the vfio-user server does not let go of the device");
                break;
            }
            let woken = self.answered.wait_timeout(waiting, left);
            waiting = woken.map_or_else(|poisoned| poisoned.into_inner().0, |(waiting, _)| waiting);
        }
        drop(waiting);
        self.stop(receiver);
    }

    /// Ends the socket and the receiving thread.
    fn stop(&self, receiver: Receiver) {
        self.channel.shut_down();
        if receiver.0.join().is_err() {
            log::error!("the receiving thread of a vfio-user client has panicked");
        }
    }

    /// The function is gone: every handle says so, and the driver is told.
    pub(super) fn lose(&self) {
        if self.liveness.state() == LivenessState::Live {
            self.liveness.remove();
            self.events.raise(DeviceEvent::Removed);
        }
    }

    fn negotiate(&self) -> Result<Capabilities, RequestError> {
        let command = Command::VERSION;
        let text = Capabilities::OURS.to_text();
        let (version, reply) = self.ask::<Version>(command, &[Version::OURS.as_bytes(), &text])?;
        if version.major != Version::OURS.major || version.minor > Version::OURS.minor {
            return Err(RequestError::Malformed { command, what: "the version was not proposed" });
        }
        let text = reply.payload.get(size_of::<Version>()..).unwrap_or_default();
        Capabilities::parse(text)
            .map_err(|_| RequestError::Malformed { command, what: "the capabilities make no sense" })
    }

    fn check(&self, command: Command, reply: Message) -> Result<Message, RequestError> {
        if reply.header.command != command.0 {
            return Err(RequestError::Malformed { command, what: "it answers another command" });
        }
        if reply.header.flags & Header::ERROR == 0 {
            return Ok(reply);
        }
        let raw = i32::try_from(reply.header.error).ok().filter(|raw| (1..4096).contains(raw));
        let error = raw.map_or(Errno::IO, Errno::from_raw_os_error);
        if error == Errno::NODEV && command != Command::VERSION {
            self.lose();
        }
        Err(RequestError::Refused { command, error })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The receiving thread.
    fn receive_all(&self) {
        let reason = loop {
            if let Err(error) = self.wait_for_something() {
                break error;
            }
            match self.channel.receive(Duration::from_millis(1)) {
                Ok(message) if message.header.is_reply() => self.pass_on(message),
                Ok(message) => self.answer(&message),
                Err(TransportError::TimedOut) => {}
                Err(error) => break error,
            }
        };
        // ORDERING: Relaxed; see `end`.
        if !self.closing.load(Ordering::Relaxed) {
            // Before that whoever begins is told why.
            let level = if self.peer.get().is_some() { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "the vfio-user server is lost: {reason}");
            self.lose();
        }
        let mut waiting = self.lock();
        waiting.ended = true;
        drop(waiting);
        self.answered.notify_all();
    }

    /// Waits for a message; passes the events of the function on.
    fn wait_for_something(&self) -> Result<(), TransportError> {
        loop {
            let files = [self.channel.as_fd(), self.error.as_fd(), self.request.as_fd()];
            let mut files = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
            match poll(&mut files, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(TransportError::System(io::Error::from(error).kind())),
            }
            let [message, error, request] = files.map(|file| !file.revents().is_empty());
            if error && self.error.take() > 0 {
                self.events.raise(DeviceEvent::Error);
            }
            if request && self.request.take() > 0 {
                self.events.raise(DeviceEvent::ReleaseRequested);
            }
            if message {
                return Ok(());
            }
        }
    }

    fn pass_on(&self, message: Message) {
        let id = message.header.id;
        let mut waiting = self.lock();
        match waiting.commands.get_mut(&id) {
            Some(place) => *place = Some(message),
            // It came too late, or to a command that wanted none.
            None => log::trace!("a reply to {:#x} that nobody waits for", id),
        }
        drop(waiting);
        self.answered.notify_all();
    }

    /// Answers a command of the server.
    fn answer(&self, message: &Message) {
        let (header, command) = (message.header, Command(message.header.command));
        let answer = match (command, message.parse::<DmaAccess>()) {
            (Command::DMA_READ, Some((access, _))) => self.memory.read(&access).map(|bytes| (access, bytes)),
            (Command::DMA_WRITE, Some((access, bytes))) => {
                self.memory.write(&access, bytes).map(|()| (access, Vec::new()))
            }
            (Command::DMA_READ | Command::DMA_WRITE, None) => Err(Errno::INVAL),
            _ => Err(Errno::OPNOTSUPP),
        };
        if !header.wants_reply() {
            return;
        }
        let reply =
            Header { id: header.id, command: header.command, flags: Header::REPLY, ..Header::default() };
        let sent = match answer {
            Ok((access, bytes)) => self.channel.send(reply, &[access.as_bytes(), &bytes], &[]),
            Err(error) => {
                log::debug!("{command} of the vfio-user server was refused: {error}");
                let error = error.raw_os_error().unsigned_abs();
                let reply = Header { flags: Header::REPLY | Header::ERROR, error, ..reply };
                self.channel.send(reply, &[], &[])
            }
        };
        if let Err(error) = sent {
            log::warn!("the vfio-user server takes no answer: {error}");
        }
    }
}

impl Waiting {
    /// A number that no command under way has.
    fn next_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            // As many commands as numbers are never under way: each has a thread that waits.
            if !self.commands.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }
}

fn of_transport(error: TransportError) -> RequestError {
    match error {
        TransportError::Closed => RequestError::Gone,
        other => RequestError::Transport(other),
    }
}

/// How long a server may take to let go of the device.
const FAREWELL_TIME: Duration = Duration::from_secs(10);
