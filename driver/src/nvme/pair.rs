//! A queue pair: where commands go, and where they end.

use core::fmt;
use std::sync::Arc;

use vdk_descriptors::nvme::{
    AdminOpcode, CompletionEntry, CompletionQueueFlags, QueueDword, StatusField, SubmissionEntry,
    SubmissionQueueFlags,
};
use vdk_descriptors::ring::Cookie;
use vdk_hal::address::ByteLength;
use vdk_hal::bar::BarError;
use vdk_hal::interrupt::EventFd;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::poll::{Deadline, SystemClock};
use vdk_iommu::{Bidirectional, DmaRegion};

use super::QueueOptions;
use super::command::{CommandError, Completion, Statistics};
use super::device::Device;
use super::error::{AdminError, OpenQueueError, QueueError};
use super::queue::{CommandQueue, Describer, ListShape, bells};
use crate::wait::HEALTH_INTERVAL;

/// An I/O submission queue with its completion queue, with whatever rides along as `T`:
/// each owner is given back exactly once, by [`poll`](Self::poll),
/// [`recover`](Self::recover) or [`close`](Self::close).
///
/// A queue pair has one user, who submits, commits and polls; send it to another thread as a
/// whole. None of the three allocates, takes a lock or makes a system call.
///
/// Dropping it deletes the queues first, then drops the owners, then unmaps the memory.
pub struct QueuePair<T> {
    pub(super) queue: CommandQueue<T>,
    pub(super) describer: Describer,
    pub(super) failure: Option<QueueError>,
    pub(super) statistics: Statistics,
    pub(super) max_transfer: u64,
    pub(super) number: u16,
    vector: u16,
    pub(super) interrupt: Option<EventFd>,
    /// The reset of the controller since which the queues exist.
    pub(super) generation: u64,
    pub(super) clock: SystemClock,
    pub(super) options: QueueOptions,
    /// When the clock of the commands moved on last.
    pub(super) epoch_began: core::time::Duration,
    /// When the controller is looked after next. It outlives a wait: on a busy queue no wait
    /// is long.
    pub(super) health: Deadline,
    /// Counts the calls that came here without a look at the clock.
    pub(super) unclocked: u32,
    /// Overdue commands for which an abort is still to be sent.
    pub(super) late: Vec<(Cookie, u16)>,
    /// How many commands had ended when the queue had overdue ones, and completions as well.
    pub(super) lost_at: Option<u64>,
    /// The queues were deleted, or could not be.
    pub(super) closed: bool,
    /// What the controller has of the queues.
    pub(super) created: Created,
    completion_offset: usize,
    /// Behind what lies in it; `None` when the device has it for ever.
    pub(super) region: Option<DmaRegion<Bidirectional>>,
    /// Last, so that the function is closed when everything is unmapped.
    pub(super) device: Arc<Device>,
}

/// Which queues of a pair the controller has, or may have: it was asked for them and did not
/// refuse.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Created {
    pub(super) submission_queue: bool,
    pub(super) completion_queue: bool,
}

/// Whether a queue may exist after a command that was to create it. An answer that did not
/// come may be a yes.
fn may_exist(created: &Result<CompletionEntry, AdminError>) -> bool {
    match created {
        Ok(_) => true,
        // It was refused, or never asked for.
        Err(
            AdminError::Status { .. }
            | AdminError::Stopped { .. }
            | AdminError::OutOfService { .. }
            | AdminError::TooLong { .. }
            | AdminError::NotSupported { .. },
        ) => false,
        Err(AdminError::TimedOut { .. } | AdminError::BadCompletion { .. } | AdminError::Register { .. }) => {
            true
        }
    }
}

impl<T> QueuePair<T> {
    pub(super) fn open(device: &Arc<Device>, options: QueueOptions) -> Result<Self, OpenQueueError> {
        let facts = device.facts();
        let limit = facts.queue_entries.saturating_sub(1);
        if options.depth == 0 || options.depth > limit {
            let (depth, entries) = (options.depth, facts.queue_entries);
            return Err(OpenQueueError::Depth { depth, entries, limit });
        }
        let (granted, asked) = (facts.queues, facts.queues_asked);
        let number = device.take_queue().ok_or(OpenQueueError::NoQueueLeft { granted, asked })?;
        match Self::build(device, number, options) {
            Ok(mut pair) => match pair.create() {
                // Dropping it deletes what was created and frees the number.
                Err(error) => Err(error.into()),
                Ok(()) => Ok(pair),
            },
            Err(error) => {
                device.release_queue(number);
                Err(error)
            }
        }
    }

    fn build(device: &Arc<Device>, number: u16, options: QueueOptions) -> Result<Self, OpenQueueError> {
        let facts = device.facts();
        let shape =
            ListShape { page: device.page(), max_transfer: facts.max_transfer, sgl: facts.sgl_format() };
        // CAST: a depth of at most 65,535.
        let (depth, page) = (options.depth as usize, device.page_bytes());
        // Twice as many completions as commands, so that the controller need not be told of
        // each; as many at least.
        let most = usize::try_from(facts.queue_entries).unwrap_or(usize::MAX);
        let (submission, completion) = (depth + 1, (2 * (depth + 1)).max(64).min(most));
        let completion_offset = (submission * size_of::<SubmissionEntry>()).next_multiple_of(page);
        let lists_offset =
            completion_offset + (completion * size_of::<CompletionEntry>()).next_multiple_of(page);
        let length = lists_offset + depth * shape.pages_per_command() * page;
        let memory = SharedMemory::allocate(ByteLength::from_usize(length), Pages::Base)?;
        let region = device.domain().map_aligned::<Bidirectional>(memory, device.page())?;
        let describer = Describer::new(shape, &region, lists_offset, depth)?;
        let bar = device.registers().bar();
        let shadow = device.shadow_pages().filter(|_| facts.shadow_doorbells);
        let bells = bells(bar, number, device.capabilities().doorbell_stride(), shadow)?;
        let queue = CommandQueue::new(
            number,
            region.slots(0, submission)?,
            region.slots(completion_offset, completion)?,
            bells,
        );
        // PANIC: 1 to 65,535 commands have identifiers of 16 bits.
        let queue = queue.expect("the depth is within MQES");
        let clock = SystemClock::new();
        let event = options.interrupt.then(|| device.event(number)).flatten();
        let vector = event.as_ref().map_or(0, |(_, vector)| *vector);
        Ok(Self {
            queue,
            describer,
            failure: None,
            statistics: Statistics::default(),
            max_transfer: facts.max_transfer.as_u64(),
            number,
            vector,
            interrupt: event.map(|(event, _)| event),
            generation: device.generation(),
            clock,
            options,
            epoch_began: core::time::Duration::ZERO,
            health: Deadline::after(&clock, HEALTH_INTERVAL),
            unclocked: 0,
            late: Vec::new(),
            lost_at: None,
            device: Arc::clone(device),
            closed: false,
            created: Created::default(),
            completion_offset,
            region: Some(region),
        })
    }

    /// Has the controller create both queues.
    pub(super) fn create(&mut self) -> Result<(), AdminError> {
        let created = self.try_create();
        if created.is_err() {
            self.failure = Some(QueueError::Reset { queue: self.number });
        }
        created
    }

    fn try_create(&mut self) -> Result<(), AdminError> {
        let opcode = AdminOpcode::CREATE_COMPLETION_QUEUE;
        let region = self.region.as_ref().ok_or(AdminError::Stopped { command: opcode })?;
        let base = region.iova().as_u64();
        let mut flags = CompletionQueueFlags::default();
        flags.set_contiguous(true);
        flags.set_interrupts_enabled(self.interrupt.is_some());
        flags.set_vector(self.vector);
        let queue_dword = |entries: usize| {
            let mut dword = QueueDword::default();
            dword.set_queue(self.number);
            // At most 65,536 entries, by the check of the depth.
            dword.set_size(u16::try_from(entries - 1).unwrap_or(u16::MAX));
            dword.0
        };
        let entry = SubmissionEntry {
            data: [base + self.completion_offset as u64, 0],
            dword10: queue_dword(self.queue.completion_entries()),
            dword11: flags.0,
            ..SubmissionEntry::default()
        };
        // Whatever was there before is gone with the reset.
        self.created = Created::default();
        let created = self.device.execute(opcode, entry);
        self.created.completion_queue = may_exist(&created);
        created?;
        let mut flags = SubmissionQueueFlags::default();
        flags.set_contiguous(true);
        flags.set_completion_queue(self.number);
        let entry = SubmissionEntry {
            data: [base, 0],
            dword10: queue_dword(self.queue.submission_entries()),
            dword11: flags.0,
            ..SubmissionEntry::default()
        };
        let created = self.device.execute(AdminOpcode::CREATE_SUBMISSION_QUEUE, entry);
        self.created.submission_queue = may_exist(&created);
        created?;
        self.failure = None;
        self.epoch_began = vdk_hal::poll::Clock::now(&self.clock);
        Ok(())
    }

    /// The number of the queues.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// How many commands can be in flight.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.queue.depth()
    }

    /// How many more commands can be submitted now.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.queue.free()
    }

    /// How many commands have not been given back.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.queue.in_flight()
    }

    /// The longest transfer of one command.
    #[must_use]
    pub fn max_transfer(&self) -> ByteLength {
        ByteLength::new(self.max_transfer)
    }

    /// What is wrong with the queue pair; it takes nothing new until
    /// [`recover`](Self::recover) then.
    #[must_use]
    pub fn failure(&self) -> Option<&QueueError> {
        self.failure.as_ref()
    }

    /// Whether [`wait`](Self::wait) can sleep until an interrupt.
    #[must_use]
    pub fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    /// The event file that the interrupt signals, for an event loop.
    #[must_use]
    pub fn event(&self) -> Option<&EventFd> {
        self.interrupt.as_ref()
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let (submission_doorbells, completion_doorbells, doorbells_spared) = self.queue.doorbells();
        Statistics { submission_doorbells, completion_doorbells, doorbells_spared, ..self.statistics }
    }

    /// Hands everything submitted to the controller, with one doorbell.
    ///
    /// # Errors
    ///
    /// [`QueueError`]; the queue pair has failed then.
    #[inline]
    pub fn commit(&mut self) -> Result<(), QueueError> {
        if self.generation != self.device.generation() {
            return Err(self.fail(QueueError::Reset { queue: self.number }));
        }
        self.queue.commit().map_err(|error| self.fail_register(error))
    }

    /// Gives back the owners of what has ended, `budget` at most, and returns how many. Looks
    /// at memory only; the controller is not asked.
    ///
    /// # Errors
    ///
    /// [`QueueError`], after the owners that it could give back were given back. The queue
    /// pair has failed then, and what is outstanding ends in [`recover`](Self::recover).
    #[inline]
    pub fn poll(&mut self, budget: u32, mut ended: impl FnMut(Completion<T>)) -> Result<u32, QueueError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let mut failed = 0;
        let polled = self.queue.poll(budget, |cookie, entry, owner| {
            let result = result_of(entry);
            failed += u64::from(result.is_err());
            ended(Completion { cookie, result, owner });
        });
        self.statistics.failed += failed;
        match polled {
            Ok(polled) => {
                self.statistics.completions += u64::from(polled.count);
                match polled.fault {
                    None => Ok(polled.count),
                    Some(fault) => Err(self.fail(QueueError::BadCompletion { queue: self.number, fault })),
                }
            }
            Err(error) => Err(self.fail_register(error)),
        }
    }

    /// Marks the queue pair as failed: nothing is submitted until it is recovered.
    #[cold]
    pub(super) fn fail(&mut self, failure: QueueError) -> QueueError {
        self.failure.get_or_insert(failure).clone()
    }

    #[cold]
    pub(super) fn fail_register(&mut self, error: BarError) -> QueueError {
        let queue = self.number;
        self.fail(if error.is_gone() {
            QueueError::Gone { queue }
        } else {
            QueueError::Register { queue, error }
        })
    }
}

impl<T> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("options", &self.options)
            .field("outstanding", &self.outstanding())
            .field("failure", &self.failure)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

#[inline]
fn result_of(entry: &CompletionEntry) -> Result<u32, CommandError> {
    // All but the phase, and zero is success.
    if entry.status.0 >> 1 == 0 {
        return Ok(entry.result);
    }
    error_of(entry.status, entry.result)
}

#[cold]
fn error_of(field: StatusField, result: u32) -> Result<u32, CommandError> {
    let status = field.status();
    if status.is_success() {
        return Ok(result);
    }
    Err(CommandError::Status { status, do_not_retry: field.do_not_retry() })
}
