//! The admin queue: one command at a time, each with a deadline.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use vdk_descriptors::nvme::{
    ADMIN_QUEUE, AbortDword, AbortResult, AdminOpcode, AsyncEvent, CompletionEntry, NvmeRegisters,
    SubmissionEntry,
};
use vdk_descriptors::sg::SgEntry;
use vdk_hal::address::ByteLength;
use vdk_hal::bar::BarError;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::mmio::RegisterBlock;
use vdk_hal::poll::{Deadline, Pace, SystemClock, TimedOut, poll_until};
use vdk_iommu::{Bidirectional, DmaRegion, Domain};

use super::device::read_status;
use super::error::{AdminError, StartError};
use super::queue::{CommandQueue, CompletionFault, Describer, ListShape, ShadowPages, bells};

/// The depth of the admin queue in commands.
const DEPTH: usize = 31;
/// The data of one admin command: the largest log that is asked for at once.
pub(super) const DATA_LENGTH: usize = 64 << 10;
/// How many looks at the queue lie between two at CSTS.
const LOOKS_BETWEEN_STATUS: u32 = 512;
/// How many events are kept for whoever asks. The controller sends no second one of a kind
/// before the log page of the first was read.
const MAX_EVENTS: usize = 64;
/// How many aborts that nobody waits for are in flight at most, so that they leave room for
/// other commands. The controller may take fewer.
const MAX_ABORTS: u32 = 8;

/// The admin queue and the memory for data.
#[derive(Debug)]
pub(super) struct Admin {
    queue: CommandQueue<Purpose>,
    describer: Describer,
    events: VecDeque<AsyncEvent>,
    /// Event requests to send again.
    requests_owed: u32,
    /// Aborts in flight that nobody waits for.
    aborts: u32,
    /// How many there may be.
    abort_limit: u32,
    sequence: u64,
    limit: Duration,
    /// A command was given up: its data may still be written. Nothing is sent until a reset.
    out_of_service: bool,
    registers: RegisterBlock<NvmeRegisters>,
    stride: ByteLength,
    memory: Arc<AdminMemory>,
}

/// What the controller reaches while it runs.
#[derive(Debug)]
struct AdminMemory {
    data: DmaRegion<Bidirectional>,
    /// The queues and the lists.
    queues: DmaRegion<Bidirectional>,
}

/// What a command in flight is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// Somebody waits for it; later ones have higher numbers.
    Command(u64),
    /// It completes when something happens.
    Event,
    /// It aborts a command of an I/O queue, and nobody waits for it.
    Abort { queue: u16, command_id: u16 },
}

/// Where the admin queues lie and how many entries they have.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdminPlace {
    pub(super) submission: u64,
    pub(super) completion: u64,
    pub(super) submission_entries: u16,
    pub(super) completion_entries: u16,
}

impl Admin {
    /// Allocates and maps the queues. The controller does not know of them yet.
    pub(super) fn new(
        registers: RegisterBlock<NvmeRegisters>,
        domain: &Domain,
        shape: ListShape,
        stride: ByteLength,
        limit: Duration,
    ) -> Result<Self, StartError> {
        // CAST: a page of a controller is at most 128 MiB.
        let page = usize::try_from(shape.page.as_u64()).unwrap_or(usize::MAX);
        let entries = DEPTH + 1;
        let length = 2 * page + DEPTH * shape.pages_per_command() * page;
        let memory = SharedMemory::allocate(ByteLength::from_usize(length), Pages::Base)?;
        let region = domain.map_aligned::<Bidirectional>(memory, shape.page)?;
        let memory = SharedMemory::allocate(ByteLength::from_usize(DATA_LENGTH), Pages::Base)?;
        let data = domain.map_aligned::<Bidirectional>(memory, shape.page)?;
        let describer = Describer::new(shape, &region, 2 * page, DEPTH)?;
        let bells = bells(registers.bar(), ADMIN_QUEUE, stride, None)?;
        let (submission, completion) = (region.slots(0, entries)?, region.slots(page, 2 * entries)?);
        let queue = CommandQueue::new(ADMIN_QUEUE, submission, completion, bells);
        // PANIC: the depth is a constant that fits the identifiers.
        let queue = queue.expect("the admin queue has a depth that can be");
        Ok(Self {
            queue,
            describer,
            events: VecDeque::with_capacity(MAX_EVENTS),
            requests_owed: 0,
            aborts: 0,
            abort_limit: 1,
            sequence: 0,
            limit,
            out_of_service: false,
            registers,
            stride,
            memory: Arc::new(AdminMemory { data, queues: region }),
        })
    }

    /// What AQA, ASQ and ACQ are written with.
    pub(super) fn place(&self, page: ByteLength) -> AdminPlace {
        let submission = self.memory.queues.iova().as_u64();
        let (submission_entries, completion_entries) = (DEPTH + 1, 2 * (DEPTH + 1));
        AdminPlace {
            submission,
            completion: submission + page.as_u64(),
            // PANIC: constants.
            submission_entries: u16::try_from(submission_entries).expect("a small constant"),
            completion_entries: u16::try_from(completion_entries).expect("a small constant"),
        }
    }

    /// The controller looks at shadow doorbells from now on.
    pub(super) fn attach_shadow(&mut self, pages: &ShadowPages) {
        self.queue.attach_shadow(Some(pages), self.stride);
    }

    /// Empties the queue; the controller must have stopped.
    pub(super) fn reset(&mut self) {
        self.queue.attach_shadow(None, self.stride);
        self.queue.reset(|_, _| ());
        self.requests_owed = 0;
        self.aborts = 0;
        self.out_of_service = false;
    }

    /// Takes note of how many aborts the controller takes at once.
    pub(super) fn limit_aborts(&mut self, limit: u32) {
        self.abort_limit = limit.clamp(1, MAX_ABORTS);
    }

    /// Copies data of the last command out.
    ///
    /// # Panics
    ///
    /// When it is more than [`DATA_LENGTH`].
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        // PANIC: the callers ask for no more than the length that they gave to `execute`.
        self.memory.data.read(offset, bytes).expect("inside the data of admin commands");
    }

    /// Nothing is sent any more.
    pub(super) fn shut(&mut self) {
        self.out_of_service = true;
    }

    /// Leaves the memory to the controller for ever.
    pub(super) fn leak(&self) {
        core::mem::forget(Arc::clone(&self.memory));
    }

    /// Sends a command with `length` bytes of data in memory, and waits for its
    /// completion.
    pub(super) fn execute(
        &mut self,
        opcode: AdminOpcode,
        entry: SubmissionEntry,
        length: usize,
    ) -> Result<CompletionEntry, AdminError> {
        let limit = DATA_LENGTH;
        if length > limit {
            return Err(AdminError::TooLong { command: opcode, length, limit });
        }
        let iova = self.memory.data.iova();
        let memory = (length > 0).then_some(SgEntry { iova, length: ByteLength::from_usize(length) });
        self.execute_with(opcode, entry, memory)
    }

    /// Sends a command whose data pointer is filled in, and waits for its completion.
    pub(super) fn execute_described(
        &mut self,
        opcode: AdminOpcode,
        entry: SubmissionEntry,
    ) -> Result<CompletionEntry, AdminError> {
        self.execute_with(opcode, entry, None)
    }

    fn execute_with(
        &mut self,
        opcode: AdminOpcode,
        entry: SubmissionEntry,
        memory: Option<SgEntry>,
    ) -> Result<CompletionEntry, AdminError> {
        self.sequence += 1;
        let purpose = Purpose::Command(self.sequence);
        self.send(opcode, entry, memory, purpose)?;
        let (clock, wanted) = (SystemClock::new(), self.sequence);
        let deadline = Deadline::after(&clock, self.limit);
        let mut looks = 0u32;
        let completed = poll_until(&clock, deadline, Pace::FAST, "its completion", || {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_BETWEEN_STATUS) {
                // A device that is gone completes nothing.
                read_status(&self.registers)?;
            }
            self.collect(wanted)
        });
        let completed = completed.map_err(|error| error.of(opcode));
        let completion = match completed {
            Ok(completion) => completion,
            Err(error) => {
                self.out_of_service = true;
                return Err(error);
            }
        };
        if let Err(error) = self.repay() {
            log::warn!("no more asynchronous events: {error}");
        }
        let status = completion.status.status();
        if status.is_success() {
            return Ok(completion);
        }
        let do_not_retry = completion.status.do_not_retry();
        Err(AdminError::Status { command: opcode, status, do_not_retry })
    }

    /// Lets the controller tell of `count` events at once.
    pub(super) fn request_events(&mut self, count: u32) -> Result<(), AdminError> {
        self.requests_owed += count;
        self.repay()
    }

    /// Takes what has come in, without waiting, and returns the oldest event.
    pub(super) fn next_event(&mut self) -> Result<Option<AsyncEvent>, AdminError> {
        self.take_in(AdminOpcode::ASYNC_EVENT_REQUEST)?;
        Ok(self.events.pop_front())
    }

    /// Sends an abort that nobody waits for: what comes of it is logged when its completion
    /// is taken, and the command ends with its own. `false` when the controller takes no more
    /// aborts now.
    pub(super) fn post_abort(&mut self, queue: u16, command_id: u16) -> Result<bool, AdminError> {
        self.take_in(AdminOpcode::ABORT)?;
        if self.aborts >= self.abort_limit {
            return Ok(false);
        }
        let purpose = Purpose::Abort { queue, command_id };
        self.send(AdminOpcode::ABORT, abort_entry(queue, command_id), None, purpose)?;
        self.aborts += 1;
        Ok(true)
    }

    /// Takes what has come in, without waiting.
    fn take_in(&mut self, command: AdminOpcode) -> Result<(), AdminError> {
        if self.out_of_service {
            return Ok(());
        }
        if let Err(error) = self.collect(u64::MAX) {
            self.out_of_service = true;
            return Err(error.of(command));
        }
        self.repay()
    }

    fn send(
        &mut self,
        opcode: AdminOpcode,
        entry: SubmissionEntry,
        memory: Option<SgEntry>,
        purpose: Purpose,
    ) -> Result<(), AdminError> {
        if self.out_of_service {
            return Err(AdminError::OutOfService { command: opcode });
        }
        let describer = &self.describer;
        let submitted = self.queue.submit(purpose, |slot, place| {
            let command_id = place.command_id;
            *place = entry;
            place.opcode = opcode.0;
            place.command_id = command_id;
            memory.map_or(Ok(()), |memory| describer.describe(slot, &[memory], place))
        });
        if let Err((_, reason)) = submitted {
            // Commands that were given up fill the queue, or the data is not described, which
            // the size of its region excludes.
            log::debug!("{opcode} was not submitted: {reason:?}");
            self.out_of_service = true;
            return Err(AdminError::OutOfService { command: opcode });
        }
        self.queue.commit().map_err(|error| {
            self.out_of_service = true;
            AdminError::Register { command: opcode, error }
        })
    }

    /// Takes completions until that of the command `wanted` is among them.
    fn collect(&mut self, wanted: u64) -> Result<Option<CompletionEntry>, CollectError> {
        let (mut found, events) = (None, &mut self.events);
        let (mut owed, mut aborts) = (0, 0);
        let polled = self.queue.poll(64, |_, entry, purpose| match purpose {
            Purpose::Command(sequence) if sequence == wanted => found = Some(*entry),
            Purpose::Command(sequence) => log::debug!("admin command {sequence} came late"),
            Purpose::Event if entry.status.status().is_success() => {
                if events.len() == MAX_EVENTS {
                    events.pop_front();
                }
                events.push_back(AsyncEvent(entry.result));
                owed += 1;
            }
            Purpose::Abort { queue, command_id } => {
                aborts += 1;
                let aborted = entry.status.status().is_success() && !AbortResult(entry.result).not_aborted();
                let what = if aborted { "was aborted" } else { "is overdue, and the abort found nothing" };
                log::warn!("queue {queue}: command {command_id:#06x} {what}");
            }
            // Asking again would fail again, without end.
            Purpose::Event => log::debug!("an event request ended with {}", entry.status.status()),
        })?;
        self.requests_owed += owed;
        self.aborts = self.aborts.saturating_sub(aborts);
        match polled.fault {
            Some(fault) => Err(CollectError::Fault(fault)),
            None => Ok(found),
        }
    }

    /// Sends the event requests that are owed.
    fn repay(&mut self) -> Result<(), AdminError> {
        while self.requests_owed > 0 {
            self.send(AdminOpcode::ASYNC_EVENT_REQUEST, SubmissionEntry::default(), None, Purpose::Event)?;
            self.requests_owed -= 1;
        }
        Ok(())
    }
}

/// The command that aborts another of a queue.
pub(super) fn abort_entry(queue: u16, command_id: u16) -> SubmissionEntry {
    let mut dword = AbortDword::default();
    dword.set_submission_queue(queue);
    dword.set_command_id(command_id);
    SubmissionEntry { dword10: dword.0, ..SubmissionEntry::default() }
}

/// Why a completion was not taken.
#[derive(Debug)]
enum CollectError {
    Fault(CompletionFault),
    Register(BarError),
    TimedOut(TimedOut),
}

impl CollectError {
    fn of(self, command: AdminOpcode) -> AdminError {
        match self {
            Self::Fault(fault) => AdminError::BadCompletion { command, fault },
            Self::Register(error) => AdminError::Register { command, error },
            Self::TimedOut(error) => AdminError::TimedOut { command, error },
        }
    }
}

impl From<BarError> for CollectError {
    fn from(error: BarError) -> Self {
        Self::Register(error)
    }
}

impl From<TimedOut> for CollectError {
    fn from(error: TimedOut) -> Self {
        Self::TimedOut(error)
    }
}
