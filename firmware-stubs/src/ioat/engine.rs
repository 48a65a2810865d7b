//! The engine of a channel: fetches descriptors and executes them.

use vdk_descriptors::ioat::{ChannelErrors, IoatDescriptor, Operation};
use vdk_hal::address::Iova;
use vdk_iommu::soft::{Burst, BusMaster, TranslationFault};
use zerocopy::IntoBytes;

use super::attention::Attention;
use super::channel::{Channel, State, Transfer};
use crate::fault::FaultAction;
use crate::shell::{Surroundings, Work};

/// What happened to the batch while one descriptor was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The descriptor is done.
    Done,
    /// There is more of it, or something else ends the batch.
    Pause,
}

/// One batch: what was done and not yet reported.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) descriptors: u16,
    pub(super) bytes: u64,
    /// The last descriptor that wants a completion word.
    pub(super) unreported: Option<u64>,
}

impl Channel {
    /// Does a bounded piece of work: up to [`BATCH_DESCRIPTORS`] or [`BATCH_BYTES`].
    #[inline]
    pub(super) fn step(
        &mut self,
        bus: &mut BusMaster,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) -> Work {
        if self.state != State::Running || self.executed == self.count {
            self.poll_doorbell(surroundings);
        } else {
            // What was announced comes first: the look at the doorbell would wait for its
            // cache line to come over.
            self.doorbell.prefetch();
        }
        if self.trouble.wedged {
            return Work::Idle;
        }
        if self.trouble.held.is_some() {
            return self.release_held(bus, attention, surroundings);
        }
        if self.state != State::Running {
            return Work::Idle;
        }
        if self.executed == self.count && self.current.is_none() {
            return Work::Idle;
        }
        self.execute_batch(bus, attention, surroundings);
        Work::Busy
    }

    fn execute_batch(
        &mut self,
        bus: &mut BusMaster,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) {
        let mut burst = match bus.burst() {
            Ok(burst) => burst,
            Err(_) => {
                surroundings.request_failed();
                let errors =
                    if self.fresh { ChannelErrors::CHAIN_ADDRESS } else { ChannelErrors::NEXT_ADDRESS };
                self.halt(errors, None, attention, surroundings);
                return;
            }
        };
        let mut batch = Batch::default();
        while batch.descriptors < BATCH_DESCRIPTORS && batch.bytes < BATCH_BYTES {
            if self.is_plain() && !surroundings.has_faults() {
                self.execute_plain(&burst, &mut batch);
            }
            if self.executed == self.count && self.current.is_none() {
                break;
            }
            match self.execute(&mut burst, &mut batch, attention, surroundings) {
                Ok(Progress::Done) => {}
                Ok(Progress::Pause) => break,
                Err(errors) => {
                    self.report(&mut batch, &mut burst, attention, surroundings);
                    self.halt(errors, Some(&mut burst), attention, surroundings);
                    break;
                }
            }
        }
        self.report(&mut batch, &mut burst, attention, surroundings);
        surroundings.count_descriptors(u64::from(batch.descriptors), batch.bytes);
    }

    /// Executes the next descriptor, or a slice of a long one.
    #[inline]
    fn execute(
        &mut self,
        burst: &mut Burst<'_>,
        batch: &mut Batch,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<Progress, ChannelErrors> {
        let mut transfer = match self.current {
            Some(transfer) => transfer,
            None => {
                if let Some(action) = surroundings.next_fault(self.number)
                    && self.strike(action)?
                {
                    return Ok(Progress::Pause);
                }
                self.fetch(burst, surroundings)?
            }
        };
        let moved = self.transfer(&mut transfer, burst, surroundings);
        match moved {
            Ok(bytes) => batch.bytes += bytes,
            Err(errors) if errors.0 & !self.error_mask == 0 => {
                // A masked error is noted and does not halt.
                self.errors |= errors;
                self.soft_error = true;
                transfer.done = u64::from(transfer.descriptor.size);
            }
            Err(errors) => {
                self.current = None;
                return Err(errors);
            }
        }
        if transfer.done < u64::from(transfer.descriptor.size) {
            self.current = Some(transfer);
            return Ok(Progress::Pause);
        }
        self.current = None;
        self.executed = self.executed.wrapping_add(1);
        self.completed = transfer.address;
        self.next = transfer.descriptor.next;
        batch.descriptors += 1;
        let control = transfer.descriptor.control;
        if control.completion_write() || control.interrupt_enable() {
            self.complete(control, batch, burst, attention, surroundings);
        }
        let pause = self.suspend_if_asked() || self.trouble.held.is_some() || self.state == State::Halted;
        Ok(if pause { Progress::Pause } else { Progress::Done })
    }

    /// What the fault plan does before a descriptor; true when the batch ends.
    #[cold]
    fn strike(&mut self, action: FaultAction) -> Result<bool, ChannelErrors> {
        match action {
            FaultAction::Halt(code) | FaultAction::Fail(code) => Err(ChannelErrors(code)),
            FaultAction::StopResponding => {
                self.trouble.wedged = true;
                Ok(true)
            }
            FaultAction::Vanish | FaultAction::AllOnes => Ok(true),
            FaultAction::DropCompletion
            | FaultAction::DelayCompletion(_)
            | FaultAction::DuplicateCompletion
            | FaultAction::CorruptCompletion => {
                self.trouble.armed = Some(action);
                Ok(false)
            }
        }
    }

    #[inline]
    fn fetch(
        &mut self,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<Transfer, ChannelErrors> {
        if self.append {
            self.append = false;
            let last = read_descriptor(burst, self.completed).map_err(|_| {
                surroundings.request_failed();
                ChannelErrors::NEXT_ADDRESS
            })?;
            self.next = last.next;
        }
        let address = self.next;
        let (unreachable, misaligned) = if self.fresh {
            (ChannelErrors::CHAIN_ADDRESS, ChannelErrors::CHAIN_ADDRESS)
        } else {
            (ChannelErrors::NEXT_ADDRESS, ChannelErrors::DESCRIPTOR)
        };
        if address & 0x3f != 0 {
            return Err(misaligned);
        }
        let descriptor = read_descriptor(burst, address).map_err(|_| {
            surroundings.request_failed();
            unreachable
        })?;
        self.fresh = false;
        Ok(Transfer { address, descriptor, done: 0 })
    }

    /// Moves a descriptor's bytes, or the next slice of them.
    #[inline]
    fn transfer(
        &self,
        transfer: &mut Transfer,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, ChannelErrors> {
        let IoatDescriptor { size, control, source, destination, .. } = transfer.descriptor;
        let size = u64::from(size);
        let done = transfer.done;
        if done == 0 {
            self.validate(&transfer.descriptor)?;
        }
        if control.null() {
            transfer.done = size;
            return Ok(0);
        }
        let count = (size - done).min(BATCH_BYTES);
        let result = if control.operation() == Operation::COPY {
            burst.copy(Iova::new(destination + done), Iova::new(source + done), count)
        } else {
            // A slice is a multiple of 8 bytes, so that the pattern goes on.
            burst.fill(Iova::new(destination + done), count, source)
        };
        match result {
            Ok(()) => {
                transfer.done = done + count;
                Ok(count)
            }
            Err(fault) => {
                surroundings.request_failed();
                Err(data_error(fault))
            }
        }
    }

    /// Whether the engine can do what a descriptor asks.
    #[inline]
    fn validate(&self, descriptor: &IoatDescriptor) -> Result<(), ChannelErrors> {
        let IoatDescriptor { size, control, source, destination, .. } = *descriptor;
        let allowed = match control.operation() {
            Operation::COPY => COPY_CONTROL,
            Operation::FILL => FILL_CONTROL,
            _ => 0,
        };
        if control.0 & !allowed != 0 {
            return Err(ChannelErrors::DESCRIPTOR_CONTROL);
        }
        if size == 0 || u64::from(size) > self.transfer_cap.as_u64() {
            return Err(ChannelErrors::DESCRIPTOR_LENGTH);
        }
        if control.null() {
            return Ok(());
        }
        let last = u64::from(size) - 1;
        if control.operation() == Operation::COPY && source.checked_add(last).is_none() {
            return Err(ChannelErrors::SOURCE_ADDRESS);
        }
        if destination.checked_add(last).is_none() {
            return Err(ChannelErrors::DESTINATION_ADDRESS);
        }
        Ok(())
    }
}

#[inline]
fn read_descriptor(burst: &mut Burst<'_>, address: u64) -> Result<IoatDescriptor, TranslationFault> {
    let mut descriptor = IoatDescriptor::default();
    burst.read(Iova::new(address), descriptor.as_mut_bytes())?;
    Ok(descriptor)
}

fn data_error(fault: TranslationFault) -> ChannelErrors {
    if fault.write { ChannelErrors::WRITE_DATA } else { ChannelErrors::READ_DATA }
}

/// The most descriptors of one batch.
pub(super) const BATCH_DESCRIPTORS: u16 = 64;
/// About the most bytes of one batch, and the longest slice of a descriptor.
pub(super) const BATCH_BYTES: u64 = 64 << 10;

/// The control bits that a copy may use: all but bundle, cache hints to a processor and the
/// reserved ones.
const COPY_CONTROL: u32 = 0x0000_04ff;
/// The control bits that a fill may use: without those about reading a source.
const FILL_CONTROL: u32 = 0x0100_04bd;
