//! One piece of memory that a pool cuts into buffers, with one mapping.

use std::sync::Arc;

use vdk_hal::address::ByteLength;
use vdk_hal::memory::{MemoryError, Pages, SharedMemory};

use super::PoolError;
use crate::direction::Bidirectional;
use crate::domain::Domain;
use crate::region::DmaRegion;
use crate::translation::PoolTranslation;

/// A slab. It lives until the pool and its last buffer are gone; then its addresses are
/// taken out of the translation and its mapping ends.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) region: DmaRegion<Bidirectional>,
    translation: Arc<PoolTranslation>,
}

impl Slab {
    pub(super) fn new(
        domain: &Domain,
        memory: SharedMemory,
        translation: Arc<PoolTranslation>,
    ) -> Result<Self, PoolError> {
        let host = memory.host_address();
        let region = domain.map(memory)?;
        translation.insert(host, region.range());
        Ok(Self { region, translation })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let memory = self.region.memory();
        self.translation.remove(memory.host_address(), memory.length());
    }
}

/// Memory for a slab, and why it is not on the best pages.
#[derive(Debug)]
pub(super) struct SlabMemory {
    pub(super) memory: SharedMemory,
    /// The first kind that was tried and refused, with the reason.
    pub(super) downgrade: Option<(Pages, String)>,
}

impl SlabMemory {
    /// Allocates `length` bytes, touched, on the largest pages at most `best` that divide
    /// the length and can be had; with `files` only memory that has a file.
    pub(super) fn allocate(length: ByteLength, best: Pages, files: bool) -> Result<Self, MemoryError> {
        let mut downgrade = None;
        for pages in [Pages::Huge1G, Pages::Huge2M, Pages::Transparent] {
            let fits = length.is_aligned_to(pages.size()) && !(files && pages == Pages::Transparent);
            if pages > best || !fits {
                continue;
            }
            match populated(length, pages) {
                Ok(memory) => return Ok(Self { memory, downgrade }),
                Err(reason) => downgrade = downgrade.or(Some((pages, reason))),
            }
        }
        let memory = SharedMemory::allocate(length, Pages::Base)?;
        touch(&memory);
        Ok(Self { memory, downgrade })
    }
}

fn populated(length: ByteLength, pages: Pages) -> Result<SharedMemory, String> {
    let memory = SharedMemory::allocate(length, pages).map_err(|error| error.to_string())?;
    match memory.populate() {
        Err(error) if error.kind() != std::io::ErrorKind::InvalidInput => Err(error.to_string()),
        // Kernels before 5.14 cannot populate; the pages come with the first access.
        Ok(()) | Err(_) => Ok(memory),
    }
}

fn touch(memory: &SharedMemory) {
    if let Err(error) = memory.populate() {
        log::debug!("pages of a slab come with the first access: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_on_the_best_pages_that_divide_it() {
        let small = SlabMemory::allocate(ByteLength::new(64 << 10), Pages::Huge1G, false).unwrap();
        assert_eq!((small.memory.pages(), small.downgrade.is_none()), (Pages::Base, true));
        let large = SlabMemory::allocate(ByteLength::SIZE_2M, Pages::Huge1G, false).unwrap();
        match large.memory.pages() {
            Pages::Huge2M => assert!(large.downgrade.is_none()),
            Pages::Transparent => assert_eq!(large.downgrade.unwrap().0, Pages::Huge2M),
            other => panic!("{other}"),
        }
        let chosen = SlabMemory::allocate(ByteLength::SIZE_2M, Pages::Base, false).unwrap();
        assert_eq!((chosen.memory.pages(), chosen.downgrade.is_none()), (Pages::Base, true));
        let shown = SlabMemory::allocate(ByteLength::SIZE_2M, Pages::Transparent, true).unwrap();
        assert!(shown.memory.pages() == Pages::Base && shown.memory.file().is_some());
    }
}
