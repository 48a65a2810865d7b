//! The address space of DMA.

use anyhow::{Context, Result, ensure};
use vdk_hal::address::{ByteLength, Iova, IovaRange};
use vdk_hal::dma::{DmaMapper, MapError, Permissions, UnmapError};
use vdk_hal::memory::{Pages, SharedMemory};

use super::{Target, ensure_equal, ensure_error};

pub(super) fn geometry(target: &Target) -> Result<()> {
    let function = target.open()?;
    let geometry = function.dma().geometry();
    ensure!(!geometry.ranges.is_empty(), "there is no usable range");
    ensure!(geometry.page_sizes != 0, "there is no page size");
    for pair in geometry.ranges.windows(2) {
        let next = pair[0].last().checked_add(ByteLength::new(1)).context("a range after the end")?;
        ensure!(next < pair[1].start(), "{} touches or overlaps {}", pair[0], pair[1]);
    }
    Ok(())
}

pub(super) fn life_of_a_mapping(target: &Target) -> Result<()> {
    let function = target.open()?;
    let dma = function.dma();
    let (range, memory) = place(&*dma, 2)?;
    for permissions in [Permissions::Read, Permissions::Write, Permissions::ReadWrite] {
        dma.map(range.start(), &memory, permissions)?;
        ensure_equal("unmapped size", dma.unmap(range)?, range.length())?;
        ensure_error!(dma.unmap(range), UnmapError::NotMapped { .. });
    }
    // The memory is free again: nobody else holds it. What another process has had the file
    // of stays shared for good, and can be mapped again.
    ensure!(memory.has_no_other_holder(), "an ended mapping holds its memory");
    if dma.prefers_files() {
        dma.map(range.start(), &memory, Permissions::Read)?;
        return ensure_equal("unmapped size", dma.unmap(range)?, range.length());
    }
    let pinned = memory.try_into_pinned().map_err(|_| anyhow::anyhow!("the memory stays shared"))?;
    ensure_equal("size of the memory", pinned.length(), range.length())
}

pub(super) fn refusals(target: &Target) -> Result<()> {
    let function = target.open()?;
    let dma = function.dma();
    let page = dma.geometry().smallest_page();
    let (range, memory) = place(&*dma, 2)?;
    let (_, other) = place(&*dma, 1)?;
    let second = range.start().checked_add(page).context("the second page")?;
    dma.map(range.start(), &memory, Permissions::Read)?;

    for start in [range.start(), second] {
        ensure_error!(dma.map(start, &other, Permissions::Read), MapError::AlreadyMapped { .. });
    }
    ensure_error!(dma.map(range.start(), &memory, Permissions::Read), MapError::AlreadyMapped { .. });
    let odd = range.start().checked_add(ByteLength::new(1)).context("an odd address")?;
    ensure_error!(dma.map(odd, &other, Permissions::Read), MapError::Misaligned { .. });
    let last = dma.geometry().ranges.last().copied().context("a range")?;
    if let Some(outside) = last.last().checked_add(ByteLength::new(1)) {
        ensure_error!(dma.map(outside, &other, Permissions::Read), MapError::OutOfRange { .. });
    }

    let half = IovaRange::new(range.start(), page).context("half of the mapping")?;
    ensure_error!(dma.unmap(half), UnmapError::NotExact { .. });
    let beyond = IovaRange::new(range.start(), ByteLength::new(page.as_u64() * 3)).context("too much")?;
    ensure_error!(dma.unmap(beyond), UnmapError::NotExact { .. });
    // All that changed nothing.
    ensure_equal("unmapped size", dma.unmap(range)?, range.length())
}

/// A place for `pages` pages near the middle of the first large range, and memory for it.
fn place(dma: &dyn DmaMapper, pages: u64) -> Result<(IovaRange, SharedMemory)> {
    let geometry = dma.geometry();
    let page = geometry.smallest_page();
    let length = ByteLength::new(page.as_u64() * pages);
    let range = geometry
        .ranges
        .iter()
        .find(|range| range.length().as_u64() > page.as_u64() * 1024)
        .context("a range with room")?;
    let start = (range.start().as_u64() + page.as_u64() * 512).next_multiple_of(page.as_u64());
    let place = IovaRange::new(Iova::new(start), length).context("a place in it")?;
    Ok((place, SharedMemory::allocate(length, Pages::Base)?))
}
