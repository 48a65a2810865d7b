//! The controller as the bus sees it: registers, doorbells, resets.

use std::sync::Arc;

use vdk_descriptors::nvme::{
    ADMIN_QUEUE, AsyncEventType, DOORBELLS, ErrorEvent, LogPage, NvmeRegisters, ShutdownStatus, Status,
    SubmissionEntry,
};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::MappedArea;
use vdk_hal::interrupt::InterruptKind;
use vdk_hal::memory::{MemoryError, Pages, SharedMemory};
use vdk_hal::mmio::{Kick, Width};
use vdk_iommu::soft::BusMaster;

use super::admin::Admin;
use super::capabilities;
use super::doorbell::{DoorbellIndex, Doorbells};
use super::engine::Job;
use super::namespace::Namespace;
use super::queue::{CompletionQueue, Queues, SubmissionQueue};
use super::registers::{Registers, State, find};
use super::transfer::Transfer;
use super::trouble::Trouble;
use crate::driver_fault::DriverFaultKind;
use crate::options::StubOptions;
use crate::shell::{DeviceModel, Surroundings, Work};

/// A controller.
pub(super) struct Nvme {
    pub(super) bar: BarIndex,
    mapped_doorbells: bool,
    pub(super) registers: Registers,
    pub(super) doorbells: Doorbells,
    pub(super) queues: Queues,
    /// How many pairs of I/O queues there can be.
    pub(super) pairs: u16,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) transfer: Transfer,
    pub(super) admin: Admin,
    pub(super) job: Job,
    pub(super) trouble: Trouble,
    /// The INTx line is asserted.
    pub(super) line: bool,
}

impl Nvme {
    pub(super) fn new(
        bar: BarIndex,
        options: &StubOptions,
        serial_number: u64,
        namespaces: Vec<Namespace>,
    ) -> Self {
        let pairs = options.queue_pairs;
        Self {
            bar,
            mapped_doorbells: options.mapped_doorbells,
            registers: Registers::new(capabilities(options)),
            doorbells: Doorbells::new(pairs + 1),
            queues: Queues::new(pairs + 1),
            pairs,
            namespaces,
            transfer: Transfer::new(1 << options.max_transfer_log2),
            admin: Admin::new(pairs, serial_number, options.max_transfer_log2),
            job: Job::new(),
            trouble: Trouble::new(),
            line: false,
        }
    }

    /// The namespace with an id.
    #[inline]
    pub(super) fn namespace<'a>(
        namespaces: &'a mut [Namespace],
        command: &SubmissionEntry,
    ) -> Result<&'a mut Namespace, Status> {
        let place = command.namespace.checked_sub(1).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| namespaces.get_mut(place)).ok_or(Status::INVALID_NAMESPACE)
    }

    /// CC.EN was set: the admin queues begin.
    pub(super) fn start(&mut self, surroundings: &mut Surroundings<'_>) {
        if let Err(what) = self.registers.check_enable() {
            self.note(NvmeRegisters::CC.offset(), DriverFaultKind::EnableRefused { what }, surroundings);
            self.registers.state = State::Ready;
            self.registers.status.set_fatal(true);
            return;
        }
        let Registers { admin, admin_submission, admin_completion, .. } = self.registers;
        let (submission, completion) =
            (u32::from(admin.submission_size()), u32::from(admin.completion_size()));
        self.queues.clear();
        self.doorbells.reset();
        let completion = CompletionQueue::new(ADMIN_QUEUE, admin_completion, completion + 1, Some(0));
        let submission = SubmissionQueue::new(ADMIN_QUEUE, admin_submission, submission + 1, ADMIN_QUEUE);
        // The table was just cleared.
        let added =
            self.queues.add_completion(completion).and_then(|()| self.queues.add_submission(submission));
        self.registers.state = State::Ready;
        self.registers.status.set_ready(added.is_ok());
    }

    /// CC.EN was cleared: queues, features and commands end.
    pub(super) fn controller_reset(&mut self, surroundings: &Surroundings<'_>) {
        self.forget();
        self.registers.controller_reset();
        self.update_line(surroundings);
    }

    /// Ends everything but the registers.
    fn forget(&mut self) {
        self.queues.clear();
        self.doorbells.reset();
        self.admin.reset();
        self.job.end();
        self.trouble.late.clear();
        self.trouble.armed = None;
    }

    /// Looks at the tail of a submission queue.
    #[inline]
    pub(super) fn poll_tail(&mut self, id: u16, surroundings: &mut Surroundings<'_>) {
        let index = DoorbellIndex::tail(id);
        let value = self.doorbells.load(index);
        if let Some(queue) = self.queues.submission(id)
            && queue.tail != value
        {
            self.rang(index, value, surroundings);
        }
    }

    /// Looks at the head of a completion queue.
    #[inline]
    pub(super) fn poll_head(&mut self, id: u16, surroundings: &mut Surroundings<'_>) {
        let index = DoorbellIndex::head(id);
        let value = self.doorbells.load(index);
        if let Some(queue) = self.queues.completion(id)
            && queue.head != value
        {
            self.rang(index, value, surroundings);
        }
    }

    /// A doorbell has a new value: it is followed, or taken back.
    #[inline(never)]
    fn rang(&mut self, index: DoorbellIndex, value: u32, surroundings: &mut Surroundings<'_>) {
        let id = index.queue();
        surroundings.count_doorbell();
        let decoding = surroundings.decoding();
        let (before, right) = if index.is_tail() {
            match self.queues.submission(id) {
                None => (0, None),
                Some(queue) => {
                    let before = queue.tail;
                    let right = value < queue.size;
                    if right && decoding {
                        queue.tail = value;
                    }
                    (before, Some(right))
                }
            }
        } else {
            match self.queues.completion(id) {
                None => (0, None),
                Some(queue) => (queue.head, Some(if decoding { queue.consume(value) } else { true })),
            }
        };
        let (what, event) = match right {
            _ if !decoding => {
                // It never arrived.
                self.note_doorbell(index, DriverFaultKind::DecodingOff, surroundings);
                self.doorbells.store(index, before);
                return;
            }
            Some(true) => {
                if index.is_tail() && !surroundings.bus_master() {
                    self.note_doorbell(index, DriverFaultKind::BusMasterOff, surroundings);
                }
                return;
            }
            Some(false) if index.is_tail() => ("there is no such entry", ErrorEvent::INVALID_DOORBELL_VALUE),
            Some(false) => ("so much was not posted", ErrorEvent::INVALID_DOORBELL_VALUE),
            None => ("there is no such queue", ErrorEvent::INVALID_DOORBELL_REGISTER),
        };
        self.note_doorbell(index, DriverFaultKind::QueueDoorbell { queue: id, value, what }, surroundings);
        self.doorbells.store(index, before);
        self.admin.events.raise(AsyncEventType::ERROR, event.0, LogPage::ERROR_INFORMATION);
    }

    /// Looks at one doorbell that nothing else looks at while there is no work: the heads,
    /// and those that nobody should have written.
    #[inline]
    pub(super) fn patrol(&mut self, surroundings: &mut Surroundings<'_>) {
        let index = self.doorbells.next_on_patrol();
        if !index.is_tail() {
            self.poll_head(index.queue(), surroundings);
        }
        self.check_doorbell(index, surroundings);
    }

    fn check_doorbell(&mut self, index: DoorbellIndex, surroundings: &mut Surroundings<'_>) {
        let id = index.queue();
        let exists = match index.is_tail() {
            true => self.queues.submission(id).is_some(),
            false => self.queues.completion(id).is_some(),
        };
        let value = self.doorbells.load(index);
        if !exists && value != 0 {
            self.rang(index, value, surroundings);
        }
    }

    /// Looks at all doorbells.
    pub(super) fn poll_all(&mut self, surroundings: &mut Surroundings<'_>) {
        for index in self.doorbells.all() {
            if index.is_tail() {
                self.poll_tail(index.queue(), surroundings);
            } else {
                self.poll_head(index.queue(), surroundings);
            }
            self.check_doorbell(index, surroundings);
        }
    }

    fn note_doorbell(&self, index: DoorbellIndex, kind: DriverFaultKind, surroundings: &Surroundings<'_>) {
        surroundings.driver_fault(self.bar, index.offset(), kind);
    }

    fn note(&self, register: usize, kind: DriverFaultKind, surroundings: &Surroundings<'_>) {
        // CAST: `usize` is at most 64 bits wide.
        surroundings.driver_fault(self.bar, register as u64, kind);
    }

    fn write_register(
        &mut self,
        offset: u64,
        width: Width,
        value: u64,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        let access = find(offset, width)?;
        // What was rung before comes before.
        self.poll_all(surroundings);
        if access.register == NvmeRegisters::CC.offset() {
            // CAST: a 32-bit register.
            #[expect(clippy::cast_possible_truncation, reason = "a 32-bit register")]
            let word = value as u32;
            return self.registers.write_configuration(word, self.queues.has_io());
        }
        let mask = [NvmeRegisters::INTMS.offset(), NvmeRegisters::INTMC.offset()].contains(&access.register);
        if mask && surroundings.interrupts().enabled() == Some(InterruptKind::Msix) {
            return Err(DriverFaultKind::InterruptMaskWithMsix);
        }
        self.registers.write(access, value)?;
        if mask {
            self.signal(surroundings);
            self.update_line(surroundings);
        }
        Ok(())
    }
}

impl DeviceModel for Nvme {
    fn open(&mut self, kick: &Arc<Kick>) -> Result<Vec<(BarIndex, MappedArea)>, MemoryError> {
        if !self.mapped_doorbells {
            return Ok(Vec::new());
        }
        // At the same place in its file as in the BAR, so that a client on a socket can map it.
        let (start, length) = (ByteLength::new(DOORBELLS), self.doorbells.length());
        let whole = ByteLength::new(start.as_u64() + length.as_u64());
        let whole = SharedMemory::allocate(whole, Pages::Base)?;
        let part = start.to_usize().zip(length.to_usize());
        let Some(memory) = part.and_then(|(start, length)| whole.slice(start, length).ok()) else {
            return Ok(Vec::new());
        };
        self.doorbells.map(memory.clone());
        let area = MappedArea { offset: DOORBELLS, memory, kick: Some(Arc::clone(kick)) };
        Ok(vec![(self.bar, area)])
    }

    fn read(
        &mut self,
        _bar: BarIndex,
        offset: u64,
        width: Width,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, DriverFaultKind> {
        if offset >= DOORBELLS {
            self.doorbells.find(offset, width)?;
            // A controller may answer anything.
            return Err(DriverFaultKind::WriteOnly);
        }
        self.poll_all(surroundings);
        self.registers.read(offset, width)
    }

    fn write(
        &mut self,
        _bar: BarIndex,
        offset: u64,
        width: Width,
        value: u64,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        if self.trouble.wedged {
            return Ok(());
        }
        if offset < DOORBELLS {
            return self.write_register(offset, width, value, surroundings);
        }
        let index = self.doorbells.find(offset, width)?;
        // CAST: the width is 32 bits.
        #[expect(clippy::cast_possible_truncation, reason = "a 32-bit register")]
        self.doorbells.store(index, value as u32);
        if index.is_tail() {
            self.poll_tail(index.queue(), surroundings);
        } else {
            self.poll_head(index.queue(), surroundings);
            self.update_line(surroundings);
        }
        self.check_doorbell(index, surroundings);
        Ok(())
    }

    fn reset(&mut self) {
        self.forget();
        self.registers = Registers::new(self.registers.capabilities);
        self.trouble.wedged = false;
        self.line = false;
    }

    fn poll_doorbells(&mut self, surroundings: &mut Surroundings<'_>) {
        self.poll_all(surroundings);
    }

    #[inline]
    fn work(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        if self.trouble.wedged {
            return Work::Idle;
        }
        if self.registers.is_running() {
            return self.step(bus, surroundings);
        }
        match self.registers.state {
            State::Starting => self.start(surroundings),
            State::Stopping => self.controller_reset(surroundings),
            State::Ready | State::Disabled => {
                if self.registers.status.shutdown() == ShutdownStatus::OCCURRING {
                    return self.shut_down(bus, surroundings);
                }
                self.patrol(surroundings);
                return Work::Idle;
            }
        }
        Work::Busy
    }
}
