//! The driver as the kit sees it.

use vdk_hal::poll::Deadline;

use super::{Controller, ControllerOptions};
use crate::kit::{Context, Driver, PciMatch, Personality, Session, StartError, StopReason};

impl Driver for Controller {
    /// Every controller with the class code of NVM Express.
    const PERSONALITIES: &'static [Personality] =
        &[Personality::new("nvme", PciMatch::new().class("0x01080200"))];

    fn start(_context: &Context<Self>, session: Session) -> Result<Self, StartError> {
        Self::start(session, ControllerOptions::default()).map_err(StartError::other)
    }

    fn stop(&mut self, reason: StopReason, _deadline: Deadline) {
        // Every wait in here is bounded by what the controller itself says.
        if let Err(error) = Self::stop(self) {
            log::error!("not stopped ({reason}): {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use vdk_descriptors::nvme::CLASS_CODE;
    use vdk_hal::function::PciIdentity;

    use super::*;

    #[test]
    fn the_personality_is_the_class_of_the_layout() {
        let mut identity = PciIdentity { class: CLASS_CODE, revision: 3, ..PciIdentity::default() };
        assert!(Controller::PERSONALITIES[0].rank(&identity).is_ok());
        identity.class = 0x01_0801;
        assert!(Controller::PERSONALITIES[0].rank(&identity).is_err());
    }
}
