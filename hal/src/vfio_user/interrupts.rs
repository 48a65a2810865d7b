//! Interrupts of a function behind a socket.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::connection::{Connection, RequestError};
use super::message::{Command, InterruptIndex, InterruptInfo, InterruptSet, argument_size};
use crate::bar::LivenessState;
use crate::interrupt::{EventFd, InterruptError, InterruptKind, Interrupts};

/// The interrupts of one session. The server is told of each change; what is enabled is
/// known here.
#[derive(Debug)]
pub(super) struct VfioUserInterrupts {
    connection: Arc<Connection>,
    /// What the server says of INTx, MSI and MSI-X, in this order.
    infos: [InterruptInfo; 3],
    enabled: Mutex<Option<(InterruptKind, u16)>>,
}

impl VfioUserInterrupts {
    pub(super) fn new(connection: Arc<Connection>, infos: [InterruptInfo; 3]) -> Self {
        Self { connection, infos, enabled: Mutex::default() }
    }

    fn info(&self, kind: InterruptKind) -> &InterruptInfo {
        match kind {
            InterruptKind::Intx => &self.infos[0],
            InterruptKind::Msi => &self.infos[1],
            InterruptKind::Msix => &self.infos[2],
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(InterruptKind, u16)>> {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_open(&self) -> Result<(), InterruptError> {
        match self.connection.liveness.state() {
            LivenessState::Live | LivenessState::Asleep => Ok(()),
            LivenessState::Closed => Err(InterruptError::NotOpen),
            LivenessState::Gone => Err(InterruptError::Gone),
        }
    }

    fn check_vector(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        let count = self.vector_count(kind);
        if vector >= count { Err(InterruptError::NoSuchVector { kind, vector, count }) } else { Ok(()) }
    }

    /// Sends the event files of vectors from `start`: as many in a message as the server
    /// takes, and never some with and some without one.
    fn assign(
        &self,
        kind: InterruptKind,
        start: u16,
        events: &[Option<EventFd>],
    ) -> Result<(), InterruptError> {
        let most = self.connection.peer().max_message_fds.clamp(1, super::capabilities::MAX_MESSAGE_FDS);
        let most = usize::try_from(most).unwrap_or(1);
        let mut first = u32::from(start);
        for run in events.chunk_by(|left, right| left.is_some() == right.is_some()) {
            for part in run.chunks(most) {
                let files: Vec<BorrowedFd<'_>> = part.iter().flatten().map(AsFd::as_fd).collect();
                let count = u32::try_from(part.len()).unwrap_or(u32::MAX);
                let flags = InterruptSet::DATA_EVENT_FILE | InterruptSet::ACTION_TRIGGER;
                self.send(kind, flags, first, count, &files)?;
                first = first.saturating_add(count);
            }
        }
        Ok(())
    }

    fn send(
        &self,
        kind: InterruptKind,
        flags: u32,
        start: u32,
        count: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), InterruptError> {
        set(&self.connection, index(kind), flags, start, count, files)
            .map_err(|error| of_request(kind, &error))
    }

    /// A command about one vector of the kind that is enabled.
    fn act(&self, kind: InterruptKind, vector: u16, action: u32) -> Result<(), InterruptError> {
        self.check_open()?;
        let enabled = self.lock();
        if enabled.is_none_or(|(enabled, _)| enabled != kind) {
            return Err(InterruptError::NotEnabled { kind });
        }
        self.check_vector(kind, vector)?;
        self.send(kind, InterruptSet::DATA_NONE | action, u32::from(vector), 1, &[])
    }

    fn set_masked(&self, kind: InterruptKind, vector: u16, action: u32) -> Result<(), InterruptError> {
        self.check_open()?;
        if self.lock().is_none_or(|(enabled, _)| enabled != kind) {
            return Err(InterruptError::NotEnabled { kind });
        }
        if self.info(kind).flags & InterruptInfo::MASKABLE == 0 {
            return Err(InterruptError::NotMaskable { kind });
        }
        self.act(kind, vector, action)
    }
}

impl Interrupts for VfioUserInterrupts {
    fn vector_count(&self, kind: InterruptKind) -> u16 {
        u16::try_from(self.info(kind).count).unwrap_or(u16::MAX)
    }

    fn enabled(&self) -> Option<InterruptKind> {
        self.lock().map(|(kind, _)| kind)
    }

    fn can_attach_later(&self, kind: InterruptKind) -> bool {
        let info = self.info(kind);
        kind == InterruptKind::Msix && info.count > 0 && info.flags & InterruptInfo::NO_RESIZE == 0
    }

    fn enable(&self, kind: InterruptKind, events: &[Option<EventFd>]) -> Result<(), InterruptError> {
        self.check_open()?;
        let count = self.vector_count(kind);
        if count == 0 {
            return Err(InterruptError::NotSupported { kind });
        }
        let mut enabled = self.lock();
        if let Some((enabled, _)) = *enabled {
            return Err(InterruptError::AlreadyEnabled { kind, enabled });
        }
        let wanted = u16::try_from(events.len()).unwrap_or(u16::MAX);
        if wanted > count {
            return Err(InterruptError::NoSuchVector { kind, vector: wanted - 1, count });
        }
        if kind == InterruptKind::Msi && !wanted.is_power_of_two() {
            return Err(InterruptError::NotPowerOfTwo { count: wanted });
        }
        // The server hears of the kind by the first vector.
        let events = if events.is_empty() { &[None] } else { events };
        if let Err(error) = self.assign(kind, 0, events) {
            // Some may be set up already.
            let _ = self.send(kind, DISABLE, 0, 0, &[]);
            return Err(error);
        }
        *enabled = Some((kind, wanted));
        Ok(())
    }

    fn attach(&self, kind: InterruptKind, vector: u16, event: &EventFd) -> Result<(), InterruptError> {
        self.check_open()?;
        let mut state = self.lock();
        let Some((_, enabled)) = state.filter(|(enabled, _)| *enabled == kind) else {
            return Err(InterruptError::NotEnabled { kind });
        };
        self.check_vector(kind, vector)?;
        if vector >= enabled && !self.can_attach_later(kind) {
            return Err(InterruptError::CannotGrow { kind, vector, enabled });
        }
        self.assign(kind, vector, &[Some(event.clone())])?;
        *state = Some((kind, enabled.max(vector + 1)));
        Ok(())
    }

    fn detach(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.check_vector(kind, vector)?;
        let state = self.lock();
        let attached = state.is_some_and(|(enabled, count)| enabled == kind && vector < count);
        // With the session or the function everything was detached.
        if !attached || self.check_open().is_err() {
            return Ok(());
        }
        self.assign(kind, vector, &[None])
    }

    fn disable_all(&self, kind: InterruptKind) -> Result<(), InterruptError> {
        let mut state = self.lock();
        if state.is_none_or(|(enabled, _)| enabled != kind) {
            return Ok(());
        }
        if self.check_open().is_ok() {
            match self.send(kind, DISABLE, 0, 0, &[]) {
                Ok(()) | Err(InterruptError::Gone | InterruptError::NotOpen) => {}
                Err(error) => return Err(error),
            }
        }
        *state = None;
        Ok(())
    }

    fn mask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.set_masked(kind, vector, InterruptSet::ACTION_MASK)
    }

    fn unmask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.set_masked(kind, vector, InterruptSet::ACTION_UNMASK)
    }

    fn self_test(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.act(kind, vector, InterruptSet::ACTION_TRIGGER)
    }
}

/// Sets interrupts up at the server.
pub(super) fn set(
    connection: &Connection,
    index: InterruptIndex,
    flags: u32,
    start: u32,
    count: u32,
    files: &[BorrowedFd<'_>],
) -> Result<(), RequestError> {
    let argument_size = argument_size::<InterruptSet>();
    let request = InterruptSet { argument_size, flags, index: index.number(), start, count };
    connection.call(Command::DEVICE_SET_IRQS, &[request.as_bytes()], files).map(drop)
}

fn index(kind: InterruptKind) -> InterruptIndex {
    match kind {
        InterruptKind::Intx => InterruptIndex::Intx,
        InterruptKind::Msi => InterruptIndex::Msi,
        InterruptKind::Msix => InterruptIndex::Msix,
    }
}

fn of_request(kind: InterruptKind, error: &RequestError) -> InterruptError {
    match error {
        RequestError::Gone | RequestError::Refused { error: Errno::NODEV, .. } => InterruptError::Gone,
        other => InterruptError::System { kind, error: other.kind() },
    }
}

/// Disables a kind, without firing any vector.
const DISABLE: u32 = InterruptSet::DATA_NONE | InterruptSet::ACTION_TRIGGER;
