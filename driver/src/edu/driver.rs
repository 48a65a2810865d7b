//! The driver as the kit sees it.

use vdk_hal::poll::Deadline;

use super::Edu;
use crate::kit::{Context, Driver, PciMatch, Personality, Session, StartError, StopReason};

impl Driver for Edu {
    const PERSONALITIES: &'static [Personality] =
        &[Personality::new("edu", PciMatch::new().primary("0x11e81234"))];

    fn start(_context: &Context<Self>, session: Session) -> Result<Self, StartError> {
        Self::start(session).map_err(StartError::other)
    }

    fn stop(&mut self, reason: StopReason, _deadline: Deadline) {
        log::debug!("stopping: {reason}");
        Self::stop(self);
    }
}

#[cfg(test)]
mod tests {
    use vdk_descriptors::edu::{DEVICE_ID, VENDOR_ID};
    use vdk_hal::function::PciIdentity;

    use super::*;

    #[test]
    fn the_personality_has_the_ids_of_the_layout() {
        let mut identity = PciIdentity { vendor: VENDOR_ID, device: DEVICE_ID, ..PciIdentity::default() };
        assert!(Edu::PERSONALITIES[0].rank(&identity).is_ok());
        identity.device += 1;
        assert!(Edu::PERSONALITIES[0].rank(&identity).is_err());
    }
}
