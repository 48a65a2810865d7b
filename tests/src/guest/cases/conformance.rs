//! The conformance suite, whatever the device.

use anyhow::Result;

use crate::conformance::{CHECKS, Target};
use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] =
    &[Case { name: "conformance", shows: "the device does what every function must", run: conformance }];

fn conformance(guest: &Guest) -> Result<()> {
    let target = Target::new(guest.node()?);
    for (name, check) in CHECKS {
        guest.part(name, check(&target));
    }
    Ok(())
}
