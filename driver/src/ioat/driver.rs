//! The driver as the kit sees it.

use vdk_hal::poll::Deadline;

use super::Ioat;
use crate::kit::{Context, Driver, PciMatch, Personality, Session, StartError, StopReason};

impl Driver for Ioat {
    /// The devices of [`DEVICE_IDS`](vdk_descriptors::ioat::DEVICE_IDS), each register value
    /// with the device id first.
    const PERSONALITIES: &'static [Personality] = &[Personality::new(
        "ioat",
        PciMatch::new().primary(
            "0x0b008086 0x0c508086&0xfffcffff 0x0e208086&0xfff8ffff 0x0e2e8086&0xfffeffff 0x20218086 \
             0x2f208086&0xfff8ffff 0x2f2e8086&0xfffeffff 0x34298086 0x342a8086&0xfffeffff 0x342c8086 \
             0x34308086&0xfffcffff 0x37108086&0xfff8ffff 0x37188086&0xfffeffff 0x3c208086&0xfff8ffff \
             0x3c2e8086&0xfffeffff 0x6f208086&0xfff8ffff 0x6f2e8086&0xfffeffff 0x6f508086&0xfffcffff",
        ),
    )];

    fn start(_context: &Context<Self>, session: Session) -> Result<Self, StartError> {
        Self::start(session).map_err(StartError::other)
    }

    fn stop(&mut self, reason: StopReason, _deadline: Deadline) {
        // Every wait in here is bounded by the limits of the device itself.
        if let Err(error) = Self::stop(self) {
            log::error!("not stopped ({reason}): {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use vdk_descriptors::ioat::{DEVICE_IDS, VENDOR_ID};
    use vdk_hal::function::PciIdentity;

    use super::*;

    #[test]
    fn exactly_the_listed_devices_match() {
        let listed = |device| DEVICE_IDS.iter().any(|id| id.device == device);
        for device in 0..=u16::MAX {
            let identity = PciIdentity { vendor: VENDOR_ID, device, ..PciIdentity::default() };
            let matched = Ioat::PERSONALITIES.iter().any(|personality| personality.rank(&identity).is_ok());
            assert_eq!(matched, listed(device), "{device:04x}");
        }
        let other = PciIdentity { vendor: 0x1234, device: 0x2021, ..PciIdentity::default() };
        assert!(Ioat::PERSONALITIES[0].rank(&other).is_err());
    }
}
