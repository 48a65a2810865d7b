//! Where the data of a command lies: the segments that PRP entries or an SGL describe.

use vdk_descriptors::nvme::{Status, SubmissionEntry};
use vdk_hal::address::Iova;
use vdk_iommu::soft::Burst;

/// One contiguous piece of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) length: u64,
    /// Bytes that are thrown away: a bit bucket.
    pub(super) discard: bool,
}

/// The data of one command. The room for it is allocated once.
#[derive(Debug)]
pub(super) struct Transfer {
    segments: Vec<Segment>,
    /// A part of a PRP list or SGL segment.
    pub(super) list: Box<[u8; LIST_BYTES]>,
    /// The longest transfer, from MDTS.
    pub(super) most: u64,
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToHost,
    FromHost,
}

impl Transfer {
    pub(super) fn new(most: u64) -> Self {
        Self { segments: Vec::with_capacity(MOST_SEGMENTS), list: Box::new([0; LIST_BYTES]), most }
    }

    /// Takes the data pointer of a command apart: `length` bytes. Nothing is moved yet.
    #[inline]
    pub(super) fn describe(
        &mut self,
        command: &SubmissionEntry,
        length: u64,
        way: Way,
        page: u64,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        self.segments.clear();
        if length > self.most {
            return Err(Status::INVALID_FIELD);
        }
        match command.flags.transfer() {
            0 => self.describe_pages(command.data, length, page, burst),
            1 => self.describe_list(command.sgl(), length, way, burst),
            // Metadata by an SGL, and the reserved value.
            _ => Err(Status::INVALID_FIELD),
        }
    }

    #[inline]
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Adds a segment; one that goes on where the last ends becomes part of it.
    #[inline]
    pub(super) fn push(&mut self, segment: Segment) -> Result<(), Status> {
        if segment.length == 0 {
            return Ok(());
        }
        if segment.address.checked_add(segment.length - 1).is_none() {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        if let Some(last) = self.segments.last_mut()
            && last.address.wrapping_add(last.length) == segment.address
            && !last.discard
            && !segment.discard
            && segment.address != 0
        {
            last.length += segment.length;
            return Ok(());
        }
        if self.segments.len() == MOST_SEGMENTS {
            return Err(Status::INVALID_SGL_COUNT);
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Sends `bytes` to the segments that were described.
    pub(super) fn send(&self, bytes: &[u8], burst: &mut Burst<'_>) -> Result<(), Status> {
        let mut rest = bytes;
        for segment in &self.segments {
            let count = usize::try_from(segment.length).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at(count);
            if !segment.discard {
                burst.write(Iova::new(segment.address), part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Fetches `bytes` from the segments that were described.
    pub(super) fn fetch(&self, bytes: &mut [u8], burst: &mut Burst<'_>) -> Result<(), Status> {
        let mut rest = bytes;
        for segment in &self.segments {
            let count = usize::try_from(segment.length).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at_mut(count);
            burst.read(Iova::new(segment.address), part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            rest = after;
        }
        Ok(())
    }
}

/// How much of a list is read at once: a page.
pub(super) const LIST_BYTES: usize = 4096;
/// The most segments of one command; a longer list is refused.
const MOST_SEGMENTS: usize = 1024;
