//! Memory registered before a device is attached.

use core::marker::PhantomData;

use vdk_hal::dma::UnmapError;
use vdk_hal::memory::SharedMemory;

use crate::direction::Direction;
use crate::domain::{DomainError, Mapping};
use crate::region::DmaRegion;

/// Memory that is mapped as soon as a device is attached; see
/// [`Domain::register`](crate::Domain::register). It has no address until then, and this
/// type has none to give: [`into_region`](Self::into_region) makes the region once there
/// is one.
///
/// Dropping it ends the registration, as for a region.
#[must_use = "dropping a registration ends it"]
#[derive(Debug)]
pub struct PendingRegion<D: Direction> {
    mapping: Mapping,
    memory: SharedMemory,
    _direction: PhantomData<fn() -> D>,
}

impl<D: Direction> PendingRegion<D> {
    pub(crate) fn new(mapping: Mapping, memory: SharedMemory) -> Self {
        Self { mapping, memory, _direction: PhantomData }
    }

    /// Whether the memory is mapped now.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.mapping.mapped_range().is_some()
    }

    /// The region, once the memory is mapped.
    ///
    /// # Errors
    ///
    /// The registration itself with [`DomainError::NotAttached`] when it still waits.
    pub fn into_region(self) -> Result<DmaRegion<D>, (DomainError, Self)> {
        match self.mapping.mapped_range() {
            Some(range) => Ok(DmaRegion::new(self.mapping, range, self.memory)),
            None => {
                let domain = self.mapping.domain_name().to_owned();
                Err((DomainError::NotAttached { domain }, self))
            }
        }
    }

    /// Ends the registration and gives the memory back.
    ///
    /// # Errors
    ///
    /// The registration itself, still mapped, with the reason.
    pub fn cancel(mut self) -> Result<SharedMemory, (UnmapError, Self)> {
        match self.mapping.end() {
            Ok(()) => Ok(self.memory),
            Err(error) => Err((error, self)),
        }
    }
}
