//! The data pointer of a command: page pointers, or an SGL where those cannot do it.

use vdk_descriptors::nvme::{DatasetRange, SglDescriptor, SubmissionEntry};
use vdk_descriptors::prp::{PrpError, PrpFormat, PrpListPage};
use vdk_descriptors::sg::SgEntry;
use vdk_descriptors::sgl::{SglFormat, SglSegment};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::memory::{OutOfBounds, Slots};
use vdk_iommu::{Bidirectional, DmaRegion};

use super::super::command::RejectReason;

/// Describes the memory of commands. Each command of a queue has pages of its own for lists,
/// by the number of its slot, so that no command can run into the list of another.
#[derive(Debug)]
pub(in super::super) struct Describer {
    prp: PrpFormat,
    sgl: Option<SglFormat>,
    page: u64,
    lists: Vec<PrpListPage>,
    segments: Vec<SglSegment>,
    ranges: Vec<(Iova, Slots<DatasetRange>)>,
    pages_per_command: usize,
}

/// How many list pages each command has, and of what size.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ListShape {
    /// The page of the controller, CC.MPS.
    pub(in super::super) page: ByteLength,
    /// The longest transfer of one command.
    pub(in super::super) max_transfer: ByteLength,
    /// What the controller says of SGLs; `None` for none.
    pub(in super::super) sgl: Option<SglFormat>,
}

impl ListShape {
    /// How many pages each command needs: one at least, for ranges and segments.
    pub(in super::super) fn pages_per_command(&self) -> usize {
        let pages = PrpFormat::new(self.page, Some(self.max_transfer))
            .map_or(1, |format| format.list_pages(self.max_transfer));
        usize::try_from(pages).unwrap_or(usize::MAX).max(1)
    }
}

impl Describer {
    /// Lists for `commands` commands in `region` from `offset` on, a multiple of the page.
    pub(in super::super) fn new(
        shape: ListShape,
        region: &DmaRegion<Bidirectional>,
        offset: usize,
        commands: usize,
    ) -> Result<Self, OutOfBounds> {
        let too_small =
            OutOfBounds { offset: 0, length: shape.page.as_u64(), limit: 0, alignment: shape.page.as_u64() };
        let page = usize::try_from(shape.page.as_u64()).map_err(|_| too_small)?;
        let prp = PrpFormat::new(shape.page, Some(shape.max_transfer)).ok_or(too_small)?;
        let pages_per_command = shape.pages_per_command();
        let (mut lists, mut segments, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
        for command in 0..commands {
            let first = offset + command * pages_per_command * page;
            let all = region.segment(first, pages_per_command * page)?;
            for number in 0..pages_per_command {
                let part = first + number * page;
                lists.push(PrpListPage::new(region.segment(part, page)?.iova, region.slots(part, page / 8)?));
            }
            let descriptors = pages_per_command * page / size_of::<SglDescriptor>();
            segments.push(SglSegment::new(all.iova, region.slots(first, descriptors)?));
            ranges.push((all.iova, region.slots(first, page / size_of::<DatasetRange>())?));
        }
        Ok(Self {
            prp,
            sgl: shape.sgl,
            page: shape.page.as_u64(),
            lists,
            segments,
            ranges,
            pages_per_command,
        })
    }

    /// Fills in the data pointer of the command in `slot`.
    #[inline]
    pub(in super::super) fn describe(
        &self,
        slot: usize,
        memory: &[SgEntry],
        entry: &mut SubmissionEntry,
    ) -> Result<(), RejectReason> {
        if let [only] = memory {
            let (first, length) = (only.iova.as_u64(), only.length.as_u64());
            let offset = first & (self.page - 1);
            // At most two pages, whose pointers need no list: nearly all commands.
            if first & 3 == 0 && length.wrapping_sub(1) < 2 * self.page - offset {
                let is_one = offset + length <= self.page;
                let Some(second) = (first - offset).checked_add(self.page).or(is_one.then_some(0)) else {
                    return self.describe_list(slot, memory, entry);
                };
                entry.data = [first, if is_one { 0 } else { second }];
                return Ok(());
            }
        }
        self.describe_list(slot, memory, entry)
    }

    #[inline(never)]
    fn describe_list(
        &self,
        slot: usize,
        memory: &[SgEntry],
        entry: &mut SubmissionEntry,
    ) -> Result<(), RejectReason> {
        // PANIC: a slot is below the number of commands that there are lists for.
        let lists = &self.lists[slot * self.pages_per_command..(slot + 1) * self.pages_per_command];
        let error = match self.prp.build(memory, lists) {
            Ok(prp) => {
                entry.data = [prp.first, prp.second];
                return Ok(());
            }
            Err(error) => error,
        };
        let by_sgl = matches!(error, PrpError::NotPrpable { .. } | PrpError::Unaligned { .. });
        match &self.sgl {
            Some(format) if by_sgl => {
                // PANIC: as above.
                entry.set_sgl(format.build(memory, &self.segments[slot])?);
                Ok(())
            }
            _ => Err(error.into()),
        }
    }

    /// Writes ranges to the memory of the command in `slot`, and makes its data pointer
    /// point there.
    pub(in super::super) fn describe_ranges(
        &self,
        slot: usize,
        ranges: &[DatasetRange],
        entry: &mut SubmissionEntry,
    ) -> Result<(), RejectReason> {
        // PANIC: as in `describe_list`.
        let (iova, slots) = &self.ranges[slot];
        if ranges.is_empty() || ranges.len() > slots.count().min(256) {
            return Err(RejectReason::Ranges { count: ranges.len() });
        }
        for (index, range) in ranges.iter().enumerate() {
            slots.write(index, range);
        }
        entry.data = [iova.as_u64(), 0];
        Ok(())
    }
}
