//! Commands of the NVM command set.

use vdk_descriptors::nvme::{
    ALL_NAMESPACES, DatasetAttributes, DatasetManagementDword, DatasetRange, MAX_DATASET_RANGES, NvmOpcode,
    ReadWriteDword, Status, SubmissionEntry,
};
use vdk_iommu::soft::Burst;
use zerocopy::IntoBytes;

use super::bus::Nvme;
use super::engine::{Answer, Batch};
use super::namespace::{Extent, Namespace};
use super::transfer::Way;

impl Nvme {
    /// Executes a command of an I/O queue.
    #[inline]
    pub(super) fn io_command(
        &mut self,
        queue: u16,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
        batch: &mut Batch,
    ) -> Result<Answer, Status> {
        if command.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        match NvmOpcode(command.opcode) {
            NvmOpcode::READ => self.read(command, burst, batch),
            NvmOpcode::WRITE => self.write(command, burst, batch),
            NvmOpcode::FLUSH => self.flush(command),
            NvmOpcode::WRITE_ZEROES => self.write_zeroes(queue, command),
            NvmOpcode::COMPARE => self.compare(command, burst, batch),
            NvmOpcode::DATASET_MANAGEMENT => self.manage_dataset(queue, command, burst),
            NvmOpcode::VERIFY => self.verify(command),
            NvmOpcode::WRITE_UNCORRECTABLE => self.write_uncorrectable(command),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    #[inline]
    fn read(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
        batch: &mut Batch,
    ) -> Result<Answer, Status> {
        let page = self.registers.page_length();
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        let extent = extent(namespace, command)?;
        namespace.check_readable(extent)?;
        self.transfer.describe(command, extent.length, Way::ToHost, page, burst)?;
        namespace.send(extent, self.transfer.segments(), burst)?;
        self.admin.counts.read(extent.length);
        batch.bytes += extent.length;
        Ok(Answer::Done(0))
    }

    #[inline]
    fn write(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
        batch: &mut Batch,
    ) -> Result<Answer, Status> {
        let page = self.registers.page_length();
        let durable = ReadWriteDword(command.dword12).force_unit_access();
        let cached = self.admin.features.write_cache();
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        let extent = extent(namespace, command)?;
        if ReadWriteDword(command.dword12).directive() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.transfer.describe(command, extent.length, Way::FromHost, page, burst)?;
        namespace.mark(extent, false);
        namespace.fetch(extent, self.transfer.segments(), burst)?;
        if durable || !cached {
            namespace.flush()?;
        }
        self.admin.counts.written(extent.length);
        batch.bytes += extent.length;
        Ok(Answer::Done(0))
    }

    fn flush(&mut self, command: &SubmissionEntry) -> Result<Answer, Status> {
        if command.namespace == ALL_NAMESPACES {
            self.namespaces.iter().try_for_each(Namespace::flush)?;
        } else {
            Self::namespace(&mut self.namespaces, command)?.flush()?;
        }
        Ok(Answer::Done(0))
    }

    fn compare(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
        batch: &mut Batch,
    ) -> Result<Answer, Status> {
        let page = self.registers.page_length();
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        let extent = extent(namespace, command)?;
        namespace.check_readable(extent)?;
        self.transfer.describe(command, extent.length, Way::FromHost, page, burst)?;
        namespace.compare(extent, self.transfer.segments(), burst)?;
        self.admin.counts.read(extent.length);
        batch.bytes += extent.length;
        Ok(Answer::Done(0))
    }

    fn verify(&mut self, command: &SubmissionEntry) -> Result<Answer, Status> {
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        namespace.check_readable(extent(namespace, command)?)?;
        Ok(Answer::Done(0))
    }

    fn write_uncorrectable(&mut self, command: &SubmissionEntry) -> Result<Answer, Status> {
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        let extent = extent(namespace, command)?;
        namespace.mark(extent, true);
        Ok(Answer::Done(0))
    }

    fn write_zeroes(&mut self, queue: u16, command: &SubmissionEntry) -> Result<Answer, Status> {
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        let extent = extent(namespace, command)?;
        let place = place(namespace);
        self.job.add(place, extent);
        self.job.begin(queue, command.command_id);
        Ok(Answer::Later)
    }

    /// Hints are taken; deallocated blocks read as zeros.
    fn manage_dataset(
        &mut self,
        queue: u16,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
    ) -> Result<Answer, Status> {
        let page = self.registers.page_length();
        let namespace = Self::namespace(&mut self.namespaces, command)?;
        let count = usize::from(DatasetManagementDword(command.dword10).ranges()) + 1;
        // CAST: at most 256 ranges of 16 bytes.
        let length = (count * size_of::<DatasetRange>()) as u64;
        self.transfer.describe(command, length, Way::FromHost, page, burst)?;
        let mut ranges = [DatasetRange::default(); MAX_DATASET_RANGES];
        // PANIC: `count` is at most 256.
        let ranges = &mut ranges[..count];
        self.transfer.fetch(ranges.as_mut_bytes(), burst)?;
        for range in ranges.iter() {
            namespace.extent(range.starting_lba, u64::from(range.blocks))?;
        }
        if !DatasetAttributes(command.dword11).deallocate() {
            return Ok(Answer::Done(0));
        }
        for range in ranges.iter() {
            let extent = namespace.extent(range.starting_lba, u64::from(range.blocks))?;
            self.job.add(place(namespace), extent);
        }
        self.job.begin(queue, command.command_id);
        Ok(Answer::Later)
    }
}

/// Where a namespace lies in the list of all.
fn place(namespace: &Namespace) -> usize {
    // CAST: `usize` has at least 32 bits; ids begin at one.
    namespace.id as usize - 1
}

/// The blocks that a command names.
#[inline]
fn extent(namespace: &Namespace, command: &SubmissionEntry) -> Result<Extent, Status> {
    let dword = ReadWriteDword(command.dword12);
    if dword.protection() != 0 {
        return Err(Status::INVALID_PROTECTION_INFORMATION);
    }
    namespace.extent(command.starting_lba(), u64::from(dword.blocks()) + 1)
}
