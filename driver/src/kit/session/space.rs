//! Which address space a session's function is in.

use super::{Session, SessionError};
use crate::iommu::Domain;

impl Session {
    /// Checks that what is mapped in `domain` is mapped for the function: else the device
    /// would meet faults, or what others have mapped at the same addresses.
    ///
    /// # Errors
    ///
    /// [`SessionError::OtherAddressSpace`], [`SessionError::NotOpen`].
    pub fn check_domain(&self, domain: &Domain) -> Result<(), SessionError> {
        let own = self.dma()?;
        if domain.is_over(&own) {
            return Ok(());
        }
        let (function, given) = (self.name().to_owned(), domain.name().to_owned());
        Err(SessionError::OtherAddressSpace { function, own: own.name(), given })
    }
}
