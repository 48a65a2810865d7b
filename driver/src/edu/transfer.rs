//! Transfers between memory and the device's buffer.

use core::time::Duration;

use vdk_descriptors::edu::{DMA_BUFFER, DMA_BUFFER_LENGTH, DmaCommand, EduRegisters, INTERRUPT_DMA};
use vdk_hal::address::{ByteLength, IovaRange};
use vdk_hal::poll::{Deadline, Pace};
use vdk_iommu::{CpuReads, CpuWrites, DmaRegion, DmaSegment};

use super::device::{Completion, Edu};
use super::error::EduError;

/// The longest transfer: all of the buffer but its last byte.
pub const LONGEST_TRANSFER: ByteLength = ByteLength::new(DMA_BUFFER_LENGTH.as_u64() - 1);

/// Which way bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferDirection {
    /// From memory to the device's buffer.
    ToBuffer,
    /// From the device's buffer to memory.
    FromBuffer,
}

impl Edu {
    /// Moves `length` bytes from `offset` of `region` to `buffer_offset` of the buffer.
    ///
    /// # Errors
    ///
    /// As [`transfer`](Self::transfer), and [`EduError::OutOfBounds`].
    pub fn copy_to_buffer<D: CpuWrites>(
        &mut self,
        region: &DmaRegion<D>,
        offset: usize,
        length: usize,
        buffer_offset: u64,
        completion: Completion,
        within: Duration,
    ) -> Result<(), EduError> {
        let segment = region.segment(offset, length)?;
        self.transfer(TransferDirection::ToBuffer, segment, buffer_offset, completion, within)
    }

    /// Moves `length` bytes from `buffer_offset` of the buffer to `offset` of `region`.
    ///
    /// # Errors
    ///
    /// As [`transfer`](Self::transfer), and [`EduError::OutOfBounds`].
    pub fn copy_from_buffer<D: CpuReads>(
        &mut self,
        region: &DmaRegion<D>,
        offset: usize,
        length: usize,
        buffer_offset: u64,
        completion: Completion,
        within: Duration,
    ) -> Result<(), EduError> {
        let segment = region.segment(offset, length)?;
        self.transfer(TransferDirection::FromBuffer, segment, buffer_offset, completion, within)
    }

    /// Moves bytes between `memory`, as the device sees it, and the buffer. After a
    /// time-out the transfer may still happen, and until it has, the next is refused.
    ///
    /// # Errors
    ///
    /// - [`EduError::OutsideBuffer`], [`EduError::BeyondWidth`]: nothing was done;
    /// - [`EduError::Busy`] while a transfer runs that was not waited for;
    /// - [`EduError::TimedOut`], [`EduError::InterruptLost`], [`EduError::NoInterrupt`],
    ///   [`EduError::Register`].
    pub fn transfer(
        &mut self,
        direction: TransferDirection,
        memory: DmaSegment,
        buffer_offset: u64,
        completion: Completion,
        within: Duration,
    ) -> Result<(), EduError> {
        let end = buffer_offset.checked_add(memory.length.as_u64());
        let outside = EduError::OutsideBuffer {
            offset: buffer_offset,
            length: memory.length,
            buffer: DMA_BUFFER_LENGTH.as_u64(),
        };
        if end.is_none_or(|end| end > LONGEST_TRANSFER.as_u64()) {
            return Err(outside);
        }
        let Some(range) = IovaRange::new(memory.iova, memory.length) else { return Err(outside) };
        let width = self.domain().width();
        if !width.covers(range) {
            return Err(EduError::BeyondWidth { range, width });
        }
        if self.transfer_runs()? {
            return Err(EduError::Busy { what: "a transfer" });
        }
        let deadline = Deadline::after(&self.clock, within);
        let buffer = DMA_BUFFER.as_u64() + buffer_offset;
        let (source, destination) = match direction {
            TransferDirection::ToBuffer => (memory.iova.as_u64(), buffer),
            TransferDirection::FromBuffer => (buffer, memory.iova.as_u64()),
        };
        let mut command = DmaCommand::default();
        command.set_start(true);
        command.set_to_memory(direction == TransferDirection::FromBuffer);
        command.set_raise_when_done(completion == Completion::Interrupt);
        self.prepare_interrupt(completion, INTERRUPT_DMA)?;
        self.registers.write(EduRegisters::DMA_SOURCE, source)?;
        self.registers.write(EduRegisters::DMA_DESTINATION, destination)?;
        self.registers.write(EduRegisters::DMA_COUNT, memory.length.as_u64())?;
        // The register write that starts the device is ordered after the stores to memory.
        let _ordered = vdk_hal::barrier::doorbell();
        self.registers.write(EduRegisters::DMA_COMMAND, command.0)?;
        let ready = |device: &mut Self| device.transfer_runs().map(|runs| !runs);
        self.await_end(completion, INTERRUPT_DMA, deadline, Pace::SLOW, "the transfer", ready)?;
        // What the device wrote is read after the register that said so.
        vdk_hal::barrier::dma_rmb();
        Ok(())
    }
}
