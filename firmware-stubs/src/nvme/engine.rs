//! The engine: fetches commands, executes them, and posts completions.

use core::sync::atomic::Ordering;

use vdk_descriptors::nvme::{
    ADMIN_QUEUE, CompletionEntry, MAX_DATASET_RANGES, ShutdownStatus, Status, StatusField, SubmissionEntry,
};
use vdk_hal::address::Iova;
use vdk_iommu::soft::{Burst, BusMaster};
use zerocopy::IntoBytes;

use super::bus::Nvme;
use super::doorbell::DoorbellIndex;
use super::namespace::Extent;
use super::trouble::Struck;
use crate::shell::{Surroundings, Work};

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is done, with dword 0 of its completion.
    Done(u32),
    /// It is completed later.
    Later,
}

/// What a batch has done.
#[derive(Debug, Default)]
pub(super) struct Batch {
    commands: u32,
    pub(super) bytes: u64,
}

/// Erasing that takes long: it is done in slices.
#[derive(Debug)]
pub(super) struct Job {
    /// The command that waits for it, with its queue.
    waiting: Option<(u16, u16)>,
    /// What is to be erased, by number of the namespace.
    pieces: Vec<(usize, Extent)>,
    /// How many of them are done.
    done: usize,
    /// The block sizes that namespaces get afterwards, for a format.
    pub(super) block_exponent: Option<u8>,
}

impl Job {
    pub(super) fn new() -> Self {
        let pieces = Vec::with_capacity(MAX_DATASET_RANGES);
        Self { waiting: None, pieces, done: 0, block_exponent: None }
    }

    /// Forgets everything.
    pub(super) fn end(&mut self) {
        self.waiting = None;
        self.pieces.clear();
        self.done = 0;
        self.block_exponent = None;
    }

    /// Adds something to erase; there is room for what one command can name.
    pub(super) fn add(&mut self, namespace: usize, extent: Extent) {
        if self.pieces.len() < MAX_DATASET_RANGES {
            self.pieces.push((namespace, extent));
        }
    }

    /// The work was described; `command` waits for it.
    pub(super) fn begin(&mut self, queue: u16, command: u16) {
        self.waiting = Some((queue, command));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_none()
    }
}

impl Nvme {
    /// Does a bounded piece of work: up to [`BATCH_COMMANDS`] or [`BATCH_BYTES`].
    #[inline]
    pub(super) fn step(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        let waiting = !self.job.is_idle() || !self.trouble.late.is_empty();
        if waiting || self.admin.events.is_due() || self.admin.keep_alive.is_on() {
            let work = self.go_on(bus, surroundings);
            if work == Work::Busy || !self.job.is_idle() || !self.registers.is_running() {
                return work;
            }
            return work.and(self.execute_batch(bus, surroundings));
        }
        self.execute_batch(bus, surroundings)
    }

    /// Goes on with what was begun or is due.
    #[cold]
    fn go_on(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        let mut work = self.watch_host();
        let Ok(mut burst) = bus.burst() else { return work };
        work = work.and(self.release_late(&mut burst, surroundings));
        if self.deliver_event(&mut burst, surroundings) {
            work = Work::Busy;
        }
        if !self.job.is_idle() {
            self.erase(&mut burst, surroundings);
            work = Work::Busy;
        }
        self.signal(surroundings);
        work
    }

    /// The host is taken for dead when its keep-alive timer has expired.
    fn watch_host(&mut self) -> Work {
        match self.admin.keep_alive.check() {
            None => Work::Idle,
            Some(Ok(due)) => Work::IdleUntil(due),
            Some(Err(())) => {
                self.registers.status.set_fatal(true);
                Work::Busy
            }
        }
    }

    #[inline]
    fn execute_batch(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        let queues = self.queues.active();
        let mut first = None;
        for _ in 0..queues {
            let Some(id) = self.queues.take_turn() else { break };
            if self.has_command(id, surroundings) {
                first = Some(id);
                break;
            }
        }
        let Some(first) = first else {
            if self.line {
                self.serve_line(surroundings);
            }
            self.patrol(surroundings);
            return Work::Idle;
        };
        let Ok(mut burst) = bus.burst() else {
            self.fail(surroundings);
            return Work::Busy;
        };
        let mut batch = Batch::default();
        self.run_queue(first, &mut burst, &mut batch, surroundings);
        for _ in 1..queues {
            if batch.commands >= BATCH_COMMANDS || !self.goes_on(&batch) {
                break;
            }
            let Some(id) = self.queues.take_turn() else { break };
            if self.has_command(id, surroundings) {
                self.run_queue(id, &mut burst, &mut batch, surroundings);
            }
        }
        surroundings.count_descriptors(u64::from(batch.commands), batch.bytes);
        self.signal(surroundings);
        Work::Busy
    }

    /// Whether nothing has happened that ends a batch.
    #[inline]
    fn goes_on(&self, batch: &Batch) -> bool {
        batch.bytes < BATCH_BYTES
            && self.job.is_idle()
            && !self.registers.status.fatal()
            && !self.trouble.wedged
    }

    /// Whether a queue has a command, and room for its completion.
    #[inline]
    fn has_command(&mut self, id: u16, surroundings: &mut Surroundings<'_>) -> bool {
        let Some(queue) = self.queues.submission(id) else { return false };
        if queue.is_empty() {
            self.poll_tail(id, surroundings);
        } else {
            // What was announced comes first: the look at the doorbell would wait for its
            // cache line to come over.
            self.doorbells.prefetch(DoorbellIndex::tail(id));
        }
        let Some((queue, completion)) = self.queues.pair(id) else { return false };
        if queue.is_empty() {
            return false;
        }
        if completion.has_room() {
            return true;
        }
        let completion = completion.id;
        self.poll_head(completion, surroundings);
        self.queues.pair(id).is_some_and(|(_, completion)| completion.has_room())
    }

    /// Executes commands of one queue: as many as may be before the next one's turn.
    #[inline]
    fn run_queue(
        &mut self,
        id: u16,
        burst: &mut Burst<'_>,
        batch: &mut Batch,
        surroundings: &mut Surroundings<'_>,
    ) {
        for _ in 0..TURN_COMMANDS {
            if !self.goes_on(batch) || !self.has_command(id, surroundings) {
                return;
            }
            let Some(queue) = self.queues.submission(id) else { return };
            let mut command = SubmissionEntry::default();
            if burst.read(queue.next_entry(), command.as_mut_bytes()).is_err() {
                self.fail(surroundings);
                return;
            }
            queue.advance();
            burst.prefetch(queue.next_entry());
            batch.commands += 1;
            let mut struck = Struck::Execute;
            if surroundings.has_faults() {
                struck = self.strike(id, surroundings);
            }
            let answer = match struck {
                Struck::Stop => return,
                Struck::Fail(status) => Err(status),
                Struck::Execute if id == ADMIN_QUEUE => self.admin_command(&command, burst, surroundings),
                Struck::Execute => self.io_command(id, &command, burst, batch),
            };
            match answer {
                Ok(Answer::Done(result)) => {
                    self.post(id, command.command_id, StatusField::default(), result, burst, surroundings);
                }
                Ok(Answer::Later) => {}
                Err(status) => {
                    let field = self.refuse(id, &command, status, struck, surroundings);
                    self.post(id, command.command_id, field, 0, burst, surroundings);
                }
            }
        }
    }

    /// A command failed: writes it into the error log.
    #[cold]
    fn refuse(
        &mut self,
        queue: u16,
        command: &SubmissionEntry,
        status: Status,
        struck: Struck,
        surroundings: &mut Surroundings<'_>,
    ) -> StatusField {
        if status == Status::DATA_TRANSFER_ERROR {
            surroundings.request_failed();
        }
        let mut field = StatusField::default();
        field.set_status(status);
        field.set_more(true);
        field.set_do_not_retry(struck == Struck::Execute);
        self.admin.errors.add(queue, command, field);
        field
    }

    /// Posts the completion of a command.
    #[inline]
    pub(super) fn post(
        &mut self,
        id: u16,
        command_id: u16,
        status: StatusField,
        result: u32,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) {
        let Some(queue) = self.queues.submission(id) else { return };
        // CAST: a place in a queue of at most 65536 entries.
        let submission_head = u16::try_from(queue.head).unwrap_or(0);
        let entry = CompletionEntry {
            result,
            result_upper: 0,
            submission_head,
            submission_queue: id,
            command_id,
            status,
        };
        if self.trouble.armed.is_some() {
            self.post_struck(id, entry, burst, surroundings);
        } else {
            self.post_entry(id, entry, burst, surroundings);
        }
    }

    /// Writes an entry: the half with the phase last.
    #[inline]
    pub(super) fn post_entry(
        &mut self,
        id: u16,
        mut entry: CompletionEntry,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) {
        let Some((_, queue)) = self.queues.pair(id) else { return };
        entry.status.set_phase(queue.phase);
        let [low, high]: [u64; 2] = zerocopy::transmute!(entry);
        let place = queue.next_entry();
        // ORDERING: Relaxed; the second word is stored with Release, and its phase says that
        // both are there.
        let written = burst
            .store(place, low, Ordering::Relaxed)
            .and_then(|()| burst.store_u64(Iova::new(place.as_u64().wrapping_add(8)), high));
        if written.is_err() {
            self.fail(surroundings);
            return;
        }
        queue.advance();
        surroundings.count_completion();
    }

    /// A queue cannot be reached: nothing can be told by a completion any more.
    #[cold]
    fn fail(&mut self, surroundings: &mut Surroundings<'_>) {
        surroundings.request_failed();
        self.registers.status.set_fatal(true);
    }

    /// Erases the next slice.
    fn erase(&mut self, burst: &mut Burst<'_>, surroundings: &mut Surroundings<'_>) {
        let mut budget = SLICE;
        let mut result = Ok(());
        while let Some((place, rest)) = self.job.pieces.get_mut(self.job.done) {
            let Some(namespace) = self.namespaces.get_mut(*place) else { break };
            let count = rest.length.min(budget);
            result = namespace.zero(Extent { start: rest.start, length: count });
            rest.start += count;
            rest.length -= count;
            budget -= count;
            if rest.length == 0 {
                self.job.done += 1;
            }
            if result.is_err() {
                break;
            }
            if budget == 0 {
                return;
            }
        }
        let Some((queue, command)) = self.job.waiting else { return };
        if let Some(exponent) = self.job.block_exponent {
            for (place, _) in &self.job.pieces {
                if let Some(namespace) = self.namespaces.get_mut(*place) {
                    namespace.block_exponent = exponent;
                }
            }
        }
        self.job.end();
        let mut field = StatusField::default();
        if let Err(status) = result {
            field.set_status(status);
        }
        self.post(queue, command, field, 0, burst, surroundings);
    }

    /// A shutdown was asked for: what was begun ends, and everything becomes durable.
    #[cold]
    pub(super) fn shut_down(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        if !self.job.is_idle()
            && let Ok(mut burst) = bus.burst()
        {
            self.erase(&mut burst, surroundings);
            self.signal(surroundings);
            return Work::Busy;
        }
        for namespace in &self.namespaces {
            if namespace.flush().is_err() {
                log::error!("namespace {} was not flushed before the shutdown", namespace.id);
            }
        }
        self.registers.status.set_shutdown(ShutdownStatus::COMPLETE);
        Work::Busy
    }
}

/// The most commands of one batch, about.
const BATCH_COMMANDS: u32 = 64;
/// The most commands of one queue before another's turn.
const TURN_COMMANDS: u32 = 32;
/// About the most bytes of one batch.
const BATCH_BYTES: u64 = 256 << 10;
/// How much is erased at once.
const SLICE: u64 = 1 << 20;
