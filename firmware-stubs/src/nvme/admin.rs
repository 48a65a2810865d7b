//! Commands of the admin queue, and what they leave behind.

use vdk_descriptors::nvme::{
    ADMIN_QUEUE, ALL_NAMESPACES, AbortDword, AbortResult, AdminOpcode, CompletionQueueFlags, FormatDword,
    QueueDword, Status, StatusField, SubmissionEntry, SubmissionQueueFlags,
};
use vdk_hal::interrupt::InterruptKind;
use vdk_iommu::soft::Burst;

use super::bus::Nvme;
use super::engine::Answer;
use super::events::Events;
use super::features::{Features, KeepAlive};
use super::identify::FORMATS;
use super::logs::{Counts, ErrorLog};
use super::namespace::Extent;
use super::queue::{CompletionQueue, SubmissionQueue};
use super::transfer::Way;
use crate::shell::Surroundings;

/// What admin commands leave behind.
#[derive(Debug)]
pub(super) struct Admin {
    pub(super) serial_number: u64,
    pub(super) max_transfer_log2: u8,
    pairs: u16,
    /// How many pairs of I/O queues the host was granted.
    pub(super) granted: u16,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) errors: ErrorLog,
    pub(super) counts: Counts,
    pub(super) keep_alive: KeepAlive,
}

impl Admin {
    pub(super) fn new(pairs: u16, serial_number: u64, max_transfer_log2: u8) -> Self {
        Self {
            serial_number,
            max_transfer_log2,
            pairs,
            granted: pairs,
            features: Features::new(pairs + 1),
            events: Events::new(),
            errors: ErrorLog::new(),
            counts: Counts::default(),
            keep_alive: KeepAlive::default(),
        }
    }

    /// A reset of the controller: logs stay, settings do not.
    pub(super) fn reset(&mut self) {
        self.granted = self.pairs;
        self.features.reset();
        self.events.reset();
        self.keep_alive = KeepAlive::default();
    }
}

impl Nvme {
    /// Executes a command of the admin queue.
    pub(super) fn admin_command(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<Answer, Status> {
        // On PCI Express admin commands use PRP entries only.
        if command.flags.fuse() != 0 || command.flags.transfer() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        match AdminOpcode(command.opcode) {
            AdminOpcode::DELETE_SUBMISSION_QUEUE => self.delete_submission_queue(command),
            AdminOpcode::CREATE_SUBMISSION_QUEUE => self.create_submission_queue(command),
            AdminOpcode::GET_LOG_PAGE => self.read_log_page(command, burst),
            AdminOpcode::DELETE_COMPLETION_QUEUE => self.delete_completion_queue(command, surroundings),
            AdminOpcode::CREATE_COMPLETION_QUEUE => self.create_completion_queue(command, surroundings),
            AdminOpcode::IDENTIFY => self.identify(command, burst),
            AdminOpcode::ABORT => Ok(self.abort(command, burst, surroundings)),
            AdminOpcode::SET_FEATURES => self.write_feature(command, burst),
            AdminOpcode::GET_FEATURES => self.read_feature(command, burst),
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                self.admin.events.request(command.command_id)?;
                Ok(Answer::Later)
            }
            AdminOpcode::KEEP_ALIVE => {
                self.admin.keep_alive.restart();
                Ok(Answer::Done(0))
            }
            AdminOpcode::FORMAT_NVM => self.format(command),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Sends `bytes` as the first of the `length` that the host has room for.
    pub(super) fn reply(
        &mut self,
        command: &SubmissionEntry,
        bytes: &[u8],
        length: u64,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let page = self.registers.page_length();
        self.transfer.describe(command, length, Way::ToHost, page, burst)?;
        self.transfer.send(bytes, burst)
    }

    fn create_completion_queue(
        &mut self,
        command: &SubmissionEntry,
        surroundings: &Surroundings<'_>,
    ) -> Result<Answer, Status> {
        let flags = CompletionQueueFlags(command.dword11);
        let (id, size) = self.check_queue(command, flags.contiguous(), flags.0 & 0xfffc)?;
        self.queues.is_free_completion(id)?;
        let vectors = match surroundings.interrupts().enabled() {
            Some(InterruptKind::Intx) => 1,
            _ => self.pairs + 1,
        };
        if flags.interrupts_enabled() && flags.vector() >= vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        let interrupt = flags.interrupts_enabled().then_some(flags.vector());
        self.queues.add_completion(CompletionQueue::new(id, command.data[0], size, interrupt))?;
        Ok(Answer::Done(0))
    }

    fn create_submission_queue(&mut self, command: &SubmissionEntry) -> Result<Answer, Status> {
        let flags = SubmissionQueueFlags(command.dword11);
        let completion = flags.completion_queue();
        if completion == ADMIN_QUEUE || self.queues.completion(completion).is_none() {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        }
        let (id, size) = self.check_queue(command, flags.contiguous(), flags.0 & 0xfff8)?;
        self.queues.is_free_submission(id)?;
        self.queues.add_submission(SubmissionQueue::new(id, command.data[0], size, completion))?;
        Ok(Answer::Done(0))
    }

    /// Number and size of a queue that is to be created.
    fn check_queue(
        &self,
        command: &SubmissionEntry,
        contiguous: bool,
        reserved: u32,
    ) -> Result<(u16, u32), Status> {
        let dword = QueueDword(command.dword10);
        let (id, size) = (dword.queue(), dword.size());
        if id == ADMIN_QUEUE || id > self.admin.granted {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if size == 0 || size > self.registers.capabilities.max_queue_entries() {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        if !command.data[0].is_multiple_of(self.registers.page_length()) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        if !contiguous || reserved != 0 || !self.registers.has_entry_sizes() {
            return Err(Status::INVALID_FIELD);
        }
        Ok((id, u32::from(size) + 1))
    }

    fn delete_submission_queue(&mut self, command: &SubmissionEntry) -> Result<Answer, Status> {
        let id = QueueDword(command.dword10).queue();
        if id != ADMIN_QUEUE {
            self.forget_late(id);
        }
        self.queues.remove_submission(id)?;
        self.doorbells.store(super::doorbell::DoorbellIndex::tail(id), 0);
        Ok(Answer::Done(0))
    }

    fn delete_completion_queue(
        &mut self,
        command: &SubmissionEntry,
        surroundings: &Surroundings<'_>,
    ) -> Result<Answer, Status> {
        let id = QueueDword(command.dword10).queue();
        self.queues.remove_completion(id)?;
        self.doorbells.store(super::doorbell::DoorbellIndex::head(id), 0);
        self.update_line(surroundings);
        Ok(Answer::Done(0))
    }

    /// Commands are executed as soon as they are fetched, so that only requests for events
    /// and completions that are late can be aborted.
    fn abort(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) -> Answer {
        let dword = AbortDword(command.dword10);
        let (queue, id) = (dword.submission_queue(), dword.command_id());
        let mut status = StatusField::default();
        status.set_status(Status::ABORT_REQUESTED);
        let late =
            self.trouble.late.iter().position(|late| late.queue == queue && late.entry.command_id == id);
        let mut result = AbortResult(0);
        if let Some(place) = late {
            let mut late = self.trouble.late.remove(place);
            late.entry.status = status;
            self.post_late(late, burst, surroundings);
        } else if queue == ADMIN_QUEUE
            && self.queues.completion(ADMIN_QUEUE).is_some_and(|queue| queue.outstanding() + 2 < queue.size)
            && self.admin.events.abort(id)
        {
            self.post(ADMIN_QUEUE, id, status, 0, burst, surroundings);
        } else {
            result.set_not_aborted(true);
        }
        Answer::Done(result.0)
    }

    /// All blocks become zeros, of the size that the format has.
    fn format(&mut self, command: &SubmissionEntry) -> Result<Answer, Status> {
        let dword = FormatDword(command.dword10);
        let format = FORMATS.get(usize::from(dword.lba_format())).ok_or(Status::INVALID_FORMAT)?;
        if dword.extended_lba() || dword.protection() != 0 || dword.protection_first() {
            return Err(Status::INVALID_FORMAT);
        }
        if dword.secure_erase() > 1 || dword.0 & 0xffff_f000 != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if command.namespace != ALL_NAMESPACES {
            Self::namespace(&mut self.namespaces, command)?;
        }
        for (place, namespace) in self.namespaces.iter().enumerate() {
            if [namespace.id, ALL_NAMESPACES].contains(&command.namespace) {
                self.job.add(place, Extent { start: 0, length: namespace.bytes() });
            }
        }
        self.job.block_exponent = Some(format.block_exponent);
        self.job.begin(ADMIN_QUEUE, command.command_id);
        Ok(Answer::Later)
    }
}

/// The admin commands that there are.
pub(super) const OPCODES: [AdminOpcode; 12] = [
    AdminOpcode::DELETE_SUBMISSION_QUEUE,
    AdminOpcode::CREATE_SUBMISSION_QUEUE,
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::DELETE_COMPLETION_QUEUE,
    AdminOpcode::CREATE_COMPLETION_QUEUE,
    AdminOpcode::IDENTIFY,
    AdminOpcode::ABORT,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::KEEP_ALIVE,
    AdminOpcode::FORMAT_NVM,
];
