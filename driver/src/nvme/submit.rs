//! Commands of the NVM command set, checked before they go into the queue.

use vdk_descriptors::nvme::{
    DatasetAttributes, DatasetManagementDword, DatasetRange, NvmOpcode, ReadWriteDword, SubmissionEntry,
};
use vdk_descriptors::ring::Cookie;
use vdk_descriptors::sg::SgEntry;
use vdk_hal::address::ByteLength;

use super::command::{RejectReason, Rejected};
use super::namespace::Namespace;
use super::pair::QueuePair;
use super::queue::Describer;

/// What kind of data a command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl<T> QueuePair<T> {
    /// Reads the blocks from `lba` on into `memory`, as many as fit it exactly. `owner` keeps
    /// the memory mapped for writing by the device until it comes back.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    #[inline]
    pub fn read(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        memory: &[SgEntry],
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        self.transfer(Access::Read, namespace, lba, memory, false, owner)
    }

    /// Writes `memory` to the blocks from `lba` on.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    #[inline]
    pub fn write(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        memory: &[SgEntry],
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        self.transfer(Access::Write, namespace, lba, memory, false, owner)
    }

    /// As [`write`](Self::write), and the data is durable when the command has ended.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn write_durable(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        memory: &[SgEntry],
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        self.transfer(Access::Write, namespace, lba, memory, true, owner)
    }

    /// Makes everything written to the namespace before durable: what was completed, not
    /// what is still in flight.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn flush(&mut self, namespace: &Namespace, owner: T) -> Result<Cookie, Rejected<T>> {
        let entry = entry_of(NvmOpcode::FLUSH, namespace);
        self.submit(owner, |_, _, place| {
            fill(place, entry);
            Ok(())
        })
    }

    /// Sets `blocks` blocks from `lba` on to zero, without data. Where `deallocate` is set
    /// the controller may deallocate them, if they read as zero then.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn write_zeroes(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        blocks: u32,
        deallocate: bool,
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        if !self.device.facts().commands.write_zeroes() {
            let reason = RejectReason::NotSupported { command: NvmOpcode::WRITE_ZEROES };
            return Err(Rejected { owner, reason });
        }
        let checked = check_range(namespace, lba, u64::from(blocks)).and_then(|()| check_writable(namespace));
        let checked = checked.and_then(|()| {
            u16::try_from(blocks - 1).map_err(|_| RejectReason::TooLong {
                length: u64::from(blocks) << namespace.block_exponent(),
                limit: 0x1_0000 << namespace.block_exponent(),
                because: "a command names 65,536 blocks",
            })
        });
        let count = match checked {
            Ok(count) => count,
            Err(reason) => return Err(Rejected { owner, reason }),
        };
        let mut entry = entry_of(NvmOpcode::WRITE_ZEROES, namespace);
        entry.set_starting_lba(lba);
        let mut dword = ReadWriteDword::default();
        dword.set_blocks(count);
        dword.set_deallocate(deallocate);
        entry.dword12 = dword.0;
        self.submit(owner, |_, _, place| {
            fill(place, entry);
            Ok(())
        })
    }

    /// Tells the controller that the blocks of `ranges`, 1 to 256, are no longer needed. What
    /// they read as afterwards is its affair.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn deallocate(
        &mut self,
        namespace: &Namespace,
        ranges: &[DatasetRange],
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        if !self.device.facts().commands.dataset_management() {
            let reason = RejectReason::NotSupported { command: NvmOpcode::DATASET_MANAGEMENT };
            return Err(Rejected { owner, reason });
        }
        let inside =
            |range: &DatasetRange| check_range(namespace, range.starting_lba, u64::from(range.blocks));
        let checked = ranges.iter().try_for_each(inside).and_then(|()| check_writable(namespace));
        if let Err(reason) = checked {
            return Err(Rejected { owner, reason });
        }
        let mut entry = entry_of(NvmOpcode::DATASET_MANAGEMENT, namespace);
        let mut dword = DatasetManagementDword::default();
        // A wrong count is refused where the ranges are written.
        dword.set_ranges(u8::try_from(ranges.len().saturating_sub(1)).unwrap_or(u8::MAX));
        let mut attributes = DatasetAttributes::default();
        attributes.set_deallocate(true);
        (entry.dword10, entry.dword11) = (dword.0, attributes.0);
        self.submit(owner, |describer, slot, place| {
            fill(place, entry);
            describer.describe_ranges(slot, ranges, place)
        })
    }

    /// Submits any command of the NVM command set as it is, but for its identifier and, when
    /// there is `memory`, its data pointer. Nothing of it is checked but the memory: the
    /// IOMMU still keeps the controller out of what is not mapped.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn command(
        &mut self,
        entry: SubmissionEntry,
        memory: &[SgEntry],
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        self.submit(owner, |describer, slot, place| {
            fill(place, entry);
            if memory.is_empty() { Ok(()) } else { describer.describe(slot, memory, place) }
        })
    }

    #[inline]
    fn transfer(
        &mut self,
        access: Access,
        namespace: &Namespace,
        lba: u64,
        memory: &[SgEntry],
        durable: bool,
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        let blocks = match self.check_transfer(access, namespace, lba, memory) {
            Ok(blocks) => blocks,
            Err(reason) => return Err(Rejected { owner, reason }),
        };
        let opcode = match access {
            Access::Read => NvmOpcode::READ,
            Access::Write => NvmOpcode::WRITE,
        };
        let dword12 = u32::from(blocks) | u32::from(durable) << 30;
        self.submit(owner, |describer, slot, place| {
            place.opcode = opcode.0;
            place.namespace = namespace.id();
            place.set_starting_lba(lba);
            place.dword12 = dword12;
            describer.describe(slot, memory, place)
        })
    }

    /// Checks all that can be known before; returns the number of blocks, less one.
    #[inline]
    fn check_transfer(
        &self,
        access: Access,
        namespace: &Namespace,
        lba: u64,
        memory: &[SgEntry],
    ) -> Result<u16, RejectReason> {
        let length = memory.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.length.as_u64()));
        let blocks = length >> namespace.block_exponent();
        if length > self.max_transfer {
            return Err(self.too_long(length));
        }
        if blocks << namespace.block_exponent() != length || blocks == 0 {
            return Err(RejectReason::PartialBlock { length, block: namespace.block_length().as_u64() });
        }
        check_range(namespace, lba, blocks)?;
        if access == Access::Write {
            check_writable(namespace)?;
        }
        u16::try_from(blocks - 1).map_err(|_| RejectReason::TooLong {
            length,
            limit: 0x1_0000 << namespace.block_exponent(),
            because: "a command names 65,536 blocks",
        })
    }

    #[cold]
    fn too_long(&self, length: u64) -> RejectReason {
        let mdts = self.device.facts().max_data_transfer.map(ByteLength::as_u64);
        let because =
            if mdts == Some(self.max_transfer) { "MDTS" } else { "ControllerOptions::max_transfer" };
        RejectReason::TooLong { length, limit: self.max_transfer, because }
    }

    #[inline]
    fn submit(
        &mut self,
        owner: T,
        build: impl FnOnce(&Describer, usize, &mut SubmissionEntry) -> Result<(), RejectReason>,
    ) -> Result<Cookie, Rejected<T>> {
        if let Some(failure) = &self.failure {
            return Err(Rejected { owner, reason: failure.clone().into() });
        }
        let describer = &self.describer;
        match self.queue.submit(owner, |slot, place| build(describer, slot, place)) {
            Ok(cookie) => {
                self.statistics.commands += 1;
                Ok(cookie)
            }
            Err((owner, None)) => {
                Err(Rejected { owner, reason: RejectReason::Full { depth: self.queue.depth() } })
            }
            Err((owner, Some(reason))) => Err(Rejected { owner, reason }),
        }
    }
}

fn entry_of(opcode: NvmOpcode, namespace: &Namespace) -> SubmissionEntry {
    SubmissionEntry { opcode: opcode.0, namespace: namespace.id(), ..SubmissionEntry::default() }
}

/// Fills in all of a command but its identifier.
fn fill(place: &mut SubmissionEntry, entry: SubmissionEntry) {
    let command_id = place.command_id;
    *place = entry;
    place.command_id = command_id;
}

#[inline]
fn check_range(namespace: &Namespace, lba: u64, blocks: u64) -> Result<(), RejectReason> {
    let size = namespace.blocks();
    if blocks != 0 && lba < size && blocks <= size - lba {
        return Ok(());
    }
    Err(out_of_range(namespace, lba, blocks))
}

#[cold]
fn out_of_range(namespace: &Namespace, lba: u64, blocks: u64) -> RejectReason {
    let (size, block) = (namespace.blocks(), namespace.block_length().as_u64());
    match (size, blocks) {
        (0, _) => RejectReason::NoBlocks { namespace: namespace.id() },
        (_, 0) => RejectReason::PartialBlock { length: 0, block },
        _ => RejectReason::Range { namespace: namespace.id(), lba, blocks, size },
    }
}

#[inline]
fn check_writable(namespace: &Namespace) -> Result<(), RejectReason> {
    if namespace.is_read_only() { Err(RejectReason::ReadOnly { namespace: namespace.id() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_descriptors::nvme::IdentifyNamespace;
    use zerocopy::FromZeros;

    fn namespace(blocks: u64, read_only: bool) -> Namespace {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.size = blocks;
        identify.lba_formats[0].block_exponent = 9;
        identify.attributes = u8::from(read_only);
        Namespace::new(1, &identify).unwrap()
    }

    #[test]
    fn ranges_are_inside_the_namespace_or_refused_with_the_fix() {
        let hundred = namespace(100, false);
        for (lba, blocks) in [(0, 1), (0, 100), (99, 1)] {
            assert_eq!(check_range(&hundred, lba, blocks), Ok(()));
        }
        for (lba, blocks) in [(0, 101), (99, 2), (100, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let refused = check_range(&hundred, lba, blocks);
            assert!(matches!(refused, Err(RejectReason::Range { size: 100, .. })), "{lba} {blocks}");
        }
        assert!(matches!(check_range(&hundred, 0, 0), Err(RejectReason::PartialBlock { length: 0, .. })));
        let error = check_range(&namespace(0, false), 0, 1).unwrap_err();
        assert_eq!(error, RejectReason::NoBlocks { namespace: 1 });
        assert!(error.to_string().contains("create or format it first"), "{error}");
    }

    #[test]
    fn a_write_protected_namespace_is_only_read() {
        assert_eq!(check_writable(&namespace(1, false)), Ok(()));
        assert_eq!(check_writable(&namespace(1, true)), Err(RejectReason::ReadOnly { namespace: 1 }));
    }
}
