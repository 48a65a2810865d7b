//! Scatter-gather lists: data as a list of ranges.

use vdk_descriptors::nvme::{SglDescriptor, SglIdentifier, Status};
use vdk_hal::address::Iova;
use vdk_iommu::soft::Burst;
use zerocopy::IntoBytes;

use super::transfer::{LIST_BYTES, Segment, Transfer, Way};

/// What an SGL has described so far.
struct Progress {
    /// Bytes that are still to be described.
    rest: u64,
    /// Descriptors that may still follow, so that a list without end ends.
    budget: u32,
}

impl Transfer {
    pub(super) fn describe_list(
        &mut self,
        first: SglDescriptor,
        length: u64,
        way: Way,
        burst: &mut Burst<'_>,
    ) -> Result<(), Status> {
        let mut progress = Progress { rest: length, budget: MOST_DESCRIPTORS };
        check(first)?;
        if is_segment(first) {
            let mut segment = first;
            while let Some(next) = self.describe_segment(segment, way, &mut progress, burst)? {
                segment = next;
            }
        } else {
            self.push_descriptor(first, way, &mut progress)?;
        }
        if progress.rest == 0 { Ok(()) } else { Err(Status::INVALID_SGL_DATA_LENGTH) }
    }

    /// Takes one segment apart and returns the descriptor of the next, if there is one.
    fn describe_segment(
        &mut self,
        segment: SglDescriptor,
        way: Way,
        progress: &mut Progress,
        burst: &mut Burst<'_>,
    ) -> Result<Option<SglDescriptor>, Status> {
        let is_last = segment.identifier == SglIdentifier::LAST_SEGMENT;
        let entry = size_of::<SglDescriptor>();
        let length = usize::try_from(segment.length).unwrap_or(usize::MAX);
        if length == 0 || !length.is_multiple_of(entry) {
            return Err(Status::INVALID_SGL_SEGMENT);
        }
        if !segment.address.is_multiple_of(8) {
            return Err(Status::INVALID_SGL_OFFSET);
        }
        let mut done = 0;
        while done < length {
            let bytes = (length - done).min(LIST_BYTES);
            // CAST: `usize` is at most 64 bits wide.
            let address = segment.address.wrapping_add(done as u64);
            burst
                .read(Iova::new(address), &mut self.list[..bytes])
                .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            for at in (0..bytes).step_by(entry) {
                let mut descriptor = SglDescriptor::default();
                descriptor.as_mut_bytes().copy_from_slice(&self.list[at..at + entry]);
                check(descriptor)?;
                progress.budget = progress.budget.checked_sub(1).ok_or(Status::INVALID_SGL_COUNT)?;
                let at_end = done + at + entry == length;
                match (is_segment(descriptor), at_end && !is_last) {
                    (true, true) => return Ok(Some(descriptor)),
                    (false, false) => self.push_descriptor(descriptor, way, progress)?,
                    // A segment inside a segment, or none at the end of one that is not last.
                    _ => return Err(Status::INVALID_SGL_SEGMENT),
                }
            }
            done += bytes;
        }
        Ok(None)
    }

    fn push_descriptor(
        &mut self,
        descriptor: SglDescriptor,
        way: Way,
        progress: &mut Progress,
    ) -> Result<(), Status> {
        let discard = descriptor.identifier == SglIdentifier::BIT_BUCKET;
        if discard && way == Way::FromHost {
            // It describes no source.
            return Ok(());
        }
        let length = u64::from(descriptor.length);
        // Longer than the data is not said to be supported.
        progress.rest = progress.rest.checked_sub(length).ok_or(Status::INVALID_SGL_DATA_LENGTH)?;
        let address = if discard { 0 } else { descriptor.address };
        self.push(Segment { address, length, discard })
    }
}

fn is_segment(descriptor: SglDescriptor) -> bool {
    matches!(descriptor.identifier, SglIdentifier::SEGMENT | SglIdentifier::LAST_SEGMENT)
}

/// Only addresses, no offsets, and what is reserved is zero.
fn check(descriptor: SglDescriptor) -> Result<(), Status> {
    let known = [
        SglIdentifier::DATA_BLOCK,
        SglIdentifier::BIT_BUCKET,
        SglIdentifier::SEGMENT,
        SglIdentifier::LAST_SEGMENT,
    ];
    if !known.contains(&descriptor.identifier) {
        Err(Status::INVALID_SGL_TYPE)
    } else if descriptor.reserved != [0; 3] {
        Err(Status::INVALID_FIELD)
    } else {
        Ok(())
    }
}

/// The most descriptors of one command, empty ones and segments included.
const MOST_DESCRIPTORS: u32 = 2048;
