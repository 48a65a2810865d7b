//! A physical function, a virtual one of it, and the secret that their owners share.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use vdk_hal::address::Bdf;
use vdk_hal::function::{OpenError, PciFunction};
use vdk_hal::reset::{ResetError, ResetKind};
use vdk_hal::sysfs;
use vdk_hal::vfio::{VfToken, VfioFunction, VfioNode, VfioOptions};

use super::vfio::{address, options};
use super::vfio_process::Other;
use super::vfio_reset::Used;
use crate::guest::{Case, Guest, Interface};

pub(super) const CASES: &[Case] = &[
    Case { name: "vfio-token", shows: "a virtual function is opened with its token only", run: token },
    Case {
        name: "vfio-virtual",
        shows: "virtual functions keep a bus from being reset",
        run: virtual_function,
    },
];

/// The token of the cases, as `role` of the other process knows it too.
pub(super) const TOKEN: VfToken = VfToken([0x5a; 16]);
const WRONG: VfToken = VfToken([0xa5; 16]);

/// The setting `vf`: the virtual function, made here if there is none yet.
fn made(guest: &Guest) -> Result<Bdf> {
    let function: Bdf = guest.setting("vf")?.parse()?;
    let folder = Path::new(sysfs::DEVICES);
    if !folder.join(function.to_string()).exists() {
        let count = folder.join(guest.device()).join("sriov_numvfs");
        std::fs::write(&count, "1").with_context(|| format!("write to {}", count.display()))?;
    }
    // The kernel gives it to the driver of the physical function.
    let driver = std::fs::read_link(folder.join(function.to_string()).join("driver"))?;
    ensure!(driver.ends_with("vfio-pci"), "{function} is bound to {}", driver.display());
    Ok(function)
}

/// A token is for the interface of groups; this kernel opens by iommufd without one.
fn needed(guest: &Guest) -> Option<VfToken> {
    (guest.interface() == Interface::Type1).then_some(TOKEN)
}

fn open(guest: &Guest, function: Bdf, vf_token: Option<VfToken>) -> Result<Arc<VfioFunction>, OpenError> {
    VfioNode::new(function, VfioOptions { vf_token, ..options(guest) }).open_function()
}

fn token(guest: &Guest) -> Result<()> {
    let physical = open(guest, address(guest)?, Some(TOKEN))?;
    let function = made(guest)?;
    for (token, said, fix) in [
        (None, "has set a VF token", "give the token"),
        (Some(WRONG), "not the one of its physical function", "ask that owner"),
    ] {
        match open(guest, function, token) {
            Err(OpenError::Refused { reason, fix: told, .. }) => {
                ensure!(reason.contains(said) && told.contains(fix), "{reason}: {told}");
            }
            other => bail!("{token:?}: {:?}", other.map(|_| ())),
        }
    }
    let opened = open(guest, function, Some(TOKEN))?;
    drop(physical);
    // While a virtual function is in use its physical function is for those who know.
    match open(guest, address(guest)?, None) {
        Err(OpenError::Refused { .. }) => {}
        other => bail!("opened without the token: {:?}", other.map(|_| ())),
    }
    drop(open(guest, address(guest)?, Some(TOKEN))?);
    drop(opened);
    Ok(())
}

fn virtual_function(guest: &Guest) -> Result<()> {
    let physical = address(guest)?;
    let function = made(guest)?;
    guest.part(
        "a virtual function that another process has is named, and nothing is reset",
        (|| {
            let used = Used::new(open(guest, physical, needed(guest))?)?;
            let other = Other::start_on(guest, &function.to_string(), "hold-virtual")?;
            match used.function.reset(ResetKind::Hot) {
                Err(error @ ResetError::NotOwner { .. }) => {
                    let text = error.to_string();
                    println!("told: {text}");
                    let named = format!("hits {function} (vdk-guest (process {})), which", other.id());
                    ensure!(text.contains(&named), "{text}");
                }
                answer => bail!("{answer:?}"),
            }
            used.require_untouched()?;
            used.restore()?;
            other.kill()
        })(),
    );
    guest.part(
        "one of this process keeps the kernel from it too, and is named",
        (|| {
            let used = Used::new(open(guest, physical, needed(guest))?)?;
            let opened = open(guest, function, needed(guest))?;
            match used.function.reset(ResetKind::Hot) {
                Err(error @ ResetError::NotOwner { .. }) => {
                    let text = error.to_string();
                    ensure!(
                        text.contains(&format!("hits {function} (")) && text.contains("sriov_numvfs"),
                        "{text}"
                    );
                }
                answer => bail!("{answer:?}"),
            }
            used.require_untouched()?;
            used.restore()?;
            drop(opened);
            Ok(())
        })(),
    );
    guest.part(
        "without virtual functions it works",
        (|| {
            let count = Path::new(sysfs::DEVICES).join(guest.device()).join("sriov_numvfs");
            std::fs::write(&count, "0").with_context(|| format!("write to {}", count.display()))?;
            let used = Used::new(open(guest, physical, None)?)?;
            used.function.reset(ResetKind::Hot)?;
            used.require_reset()
        })(),
    );
    Ok(())
}
