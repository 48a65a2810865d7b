//! Both directions of the socket: commands of the client, and what the client is asked.
//!
//! The session takes commands. The device thread asks for memory and waits for the answer;
//! meanwhile whoever is at the socket receives for both, so that neither waits for the other:
//! the session may be waiting for the device when the answer comes.

use core::fmt;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use thiserror::Error;
use vdk_hal::address::Iova;
use vdk_hal::interrupt::EventFd;
use vdk_hal::memory::access::REVOKE_TIME;
use vdk_hal::vfio_user::message::{Command, DmaAccess, Header};
use vdk_hal::vfio_user::transport::{Channel, Message, TransportError};
use vdk_iommu::soft::{NotAnswered, RemoteMemory};
use zerocopy::IntoBytes;

use super::server::wait;

/// A connection that both sides ask questions on.
pub(super) struct Conversation {
    channel: Arc<Channel>,
    /// Who receives. Nothing else is locked for it.
    receiving: Mutex<()>,
    state: Mutex<State>,
    /// Signalled when the device thread has received something for the session.
    for_session: EventFd,
    /// Signalled when the session has received something for the device thread.
    for_device: EventFd,
    /// How many bytes the client takes in one transfer.
    most: usize,
    patience: Duration,
}

#[derive(Default)]
struct State {
    last_id: u16,
    /// The questions under way, and their answers.
    asked: HashMap<u16, Option<Message>>,
    /// Commands that came while somebody waited for an answer.
    commands: VecDeque<Message>,
    /// Whether anything was ever asked.
    has_asked: bool,
    /// Why nothing is received any more.
    over: Option<Over>,
}

/// Why nothing is received any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Over {
    /// The socket.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The client answers without having been asked.
    #[error("it sent a reply, and nothing was asked")]
    Unasked,
}

/// Who is at the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Session,
    Device,
}

/// What a look at the socket brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Something,
    Nothing,
    /// Somebody else is receiving.
    Taken,
}

impl Conversation {
    /// Over a connection on which the first message has been answered; the client takes
    /// `most` bytes in one transfer.
    pub(super) fn new(channel: Arc<Channel>, most: u32) -> std::io::Result<Arc<Self>> {
        Self::with_patience(channel, most, PATIENCE)
    }

    fn with_patience(channel: Arc<Channel>, most: u32, patience: Duration) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            channel,
            receiving: Mutex::default(),
            state: Mutex::default(),
            for_session: EventFd::new()?,
            for_device: EventFd::new()?,
            most: usize::try_from(most).unwrap_or(usize::MAX).clamp(1, MOST_BYTES),
            patience,
        }))
    }

    /// The connection, for replies.
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Readable when [`command`](Self::command) may have something.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.as_fd(), self.for_session.as_fd()]
    }

    /// The next command of the client, if there is one now. Answers are passed on.
    ///
    /// # Errors
    ///
    /// [`Over`].
    pub(super) fn command(&self) -> Result<Option<Message>, Over> {
        let _ = self.for_session.take();
        loop {
            let mut state = self.lock();
            if let Some(command) = state.commands.pop_front() {
                if !state.commands.is_empty() {
                    self.for_session.signal(1);
                }
                return Ok(Some(command));
            }
            if let Some(over) = state.over.clone() {
                return Err(over);
            }
            drop(state);
            match self.look(Side::Session, None) {
                Look::Something => {}
                Look::Nothing => return Ok(None),
                Look::Taken => {
                    self.pause(&self.for_session);
                    return Ok(None);
                }
            }
        }
    }

    /// Receives a message, if one has begun and nobody else receives. It must be here as a
    /// whole at `end`, where there is one.
    fn look(&self, side: Side, end: Option<Instant>) -> Look {
        let _receiving = match self.receiving.try_lock() {
            Ok(receiving) => receiving,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Look::Taken,
        };
        let received = match wait(&[self.channel.as_fd()], Some(Duration::ZERO)) {
            Ok([true]) => match end {
                Some(end) => self.channel.receive_by(end),
                None => self.channel.receive(Duration::ZERO),
            },
            Ok([false]) => return Look::Nothing,
            Err(error) => Err(TransportError::System(std::io::Error::from(error).kind())),
        };
        if received.as_ref().is_err_and(|error| *error == TransportError::TimedOut) {
            return Look::Nothing;
        }
        let mut state = self.lock();
        let reader = match received {
            Ok(message) if message.header.is_command() => {
                state.commands.push_back(message);
                Side::Session
            }
            Ok(message) => {
                let id = message.header.id;
                if let Some(place) = state.asked.get_mut(&id) {
                    *place = Some(message);
                } else if state.has_asked {
                    log::debug!("answer {id:#x} came too late, or to nothing");
                } else {
                    state.over = Some(Over::Unasked);
                }
                Side::Device
            }
            Err(error) => {
                state.over = Some(error.into());
                Side::Device
            }
        };
        let over = state.over.is_some();
        drop(state);
        if side == Side::Device && (reader == Side::Session || over) {
            self.for_session.signal(1);
        }
        if side == Side::Session && reader == Side::Device {
            self.for_device.signal(1);
        }
        Look::Something
    }

    /// Whoever receives signals when it has; the limit is for one that had just finished.
    fn pause(&self, event: &EventFd) {
        // Nothing depends on what ended the pause.
        let _ = wait(&[event.as_fd()], Some(PAUSE));
    }

    /// Asks the client and waits until `end` for the answer that belongs to the question.
    fn ask(&self, end: Instant, command: Command, parts: &[&[u8]]) -> Result<Message, NotAnswered> {
        let id = {
            let mut state = self.lock();
            if state.over.is_some() {
                return Err(NotAnswered);
            }
            state.has_asked = true;
            state.last_id = state.last_id.wrapping_add(1);
            let id = state.last_id;
            state.asked.insert(id, None);
            id
        };
        let header = Header { id, command: command.0, ..Header::default() };
        let answer = match self.channel.send_by(end, header, parts, &[]) {
            Ok(()) => self.wait_for(id, end),
            Err(TransportError::TimedOut) => {
                log::warn!("the client does not read a question about its memory");
                None
            }
            Err(error) => {
                self.lock().over.get_or_insert(error.into());
                self.for_session.signal(1);
                None
            }
        };
        self.lock().asked.remove(&id);
        let answer = answer.ok_or(NotAnswered)?;
        if answer.header.command != command.0 || answer.header.flags & Header::ERROR != 0 {
            log::debug!("{command} was answered with {:?}", answer.header);
            return Err(NotAnswered);
        }
        Ok(answer)
    }

    fn wait_for(&self, id: u16, end: Instant) -> Option<Message> {
        loop {
            let _ = self.for_device.take();
            {
                let mut state = self.lock();
                if let Some(answer) = state.asked.get_mut(&id).and_then(Option::take) {
                    return Some(answer);
                }
                if state.over.is_some() || state.commands.len() > MOST_COMMANDS {
                    return None;
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            let ready = wait(&[self.for_device.as_fd(), self.channel.as_fd()], Some(left)).ok()?;
            if ready == [false; 2] && left.is_zero() {
                log::warn!("the client does not answer a question about its memory");
                return None;
            }
            if ready[1] && !ready[0] && self.look(Side::Device, Some(end)) == Look::Taken {
                if left.is_zero() {
                    return None;
                }
                self.pause(&self.for_device);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteMemory for Conversation {
    fn read(&self, address: Iova, bytes: &mut [u8]) -> Result<(), NotAnswered> {
        let end = Instant::now() + self.patience;
        for (place, part) in bytes.chunks_mut(self.most).enumerate() {
            let access = access(address, place * self.most, part.len())?;
            let answer = self.ask(end, Command::DMA_READ, &[access.as_bytes()])?;
            let (told, found) = answer.parse::<DmaAccess>().ok_or(NotAnswered)?;
            if told != access || found.len() != part.len() {
                return Err(NotAnswered);
            }
            part.copy_from_slice(found);
        }
        Ok(())
    }

    fn write(&self, address: Iova, bytes: &[u8]) -> Result<(), NotAnswered> {
        let end = Instant::now() + self.patience;
        for (place, part) in bytes.chunks(self.most).enumerate() {
            let access = access(address, place * self.most, part.len())?;
            let answer = self.ask(end, Command::DMA_WRITE, &[access.as_bytes(), part])?;
            let (told, _) = answer.parse::<DmaAccess>().ok_or(NotAnswered)?;
            if told != access {
                return Err(NotAnswered);
            }
        }
        Ok(())
    }
}

fn access(start: Iova, offset: usize, length: usize) -> Result<DmaAccess, NotAnswered> {
    // CAST: `usize` is at most 64 bits wide.
    let address = start.as_u64().checked_add(offset as u64).ok_or(NotAnswered)?;
    // CAST: as above.
    Ok(DmaAccess { address, count: length as u64 })
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation").field("most", &self.most).finish_non_exhaustive()
    }
}

/// How long the client may take for one access of the device to its memory, over all
/// messages of it, those of others that are in the way included.
const PATIENCE: Duration = Duration::from_secs(1);
// An unmap waits for the device's burst, and so for this.
const _: () = assert!(PATIENCE.as_millis() * 2 <= REVOKE_TIME.as_millis());
/// How long a thread waits that found another one at the socket.
const PAUSE: Duration = Duration::from_millis(1);
/// How many bytes are moved by one message.
const MOST_BYTES: usize = 64 << 10;
/// How many commands are kept while an answer is waited for.
const MOST_COMMANDS: usize = 256;

#[cfg(test)]
mod tests;
