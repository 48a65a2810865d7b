//! Names of vendors, devices and classes, from the PCI ID repository.

use pci_ids::{Class, Device, FromId, Subclass, Vendor};
use vdk_driver::hal::function::PciIdentity;

/// The name of the vendor.
pub(crate) fn vendor(identity: &PciIdentity) -> Option<&'static str> {
    Vendor::from_id(identity.vendor).map(Vendor::name)
}

/// The name of the device.
pub(crate) fn device(identity: &PciIdentity) -> Option<&'static str> {
    // QEMU's educational device and our emulated controller are not in the repository.
    match (identity.vendor, identity.device) {
        (0x1234, 0x11e8) => return Some("QEMU educational device"),
        (0x1234, 0x4e56) => return Some("vdk emulated NVMe controller"),
        _ => {}
    }
    Device::from_vid_pid(identity.vendor, identity.device).map(Device::name)
}

/// Vendor and device in one text, as far as they are known.
pub(crate) fn function(identity: &PciIdentity) -> String {
    match (vendor(identity), device(identity)) {
        (Some(vendor), Some(device)) => format!("{vendor} {device}"),
        (Some(vendor), None) => format!("{vendor} device {:04x}", identity.device),
        (None, Some(device)) => device.to_owned(),
        (None, None) => format!("unknown {identity}"),
    }
}

/// The name of the class, or that of the base class where the subclass has none.
pub(crate) fn class(identity: &PciIdentity) -> String {
    // CAST: eight bits each.
    let (base, sub) = ((identity.class >> 16 & 0xff) as u8, (identity.class >> 8 & 0xff) as u8);
    let subclass = Subclass::from_cid_sid(base, sub).map(Subclass::name);
    match subclass.or_else(|| Class::from_id(base).map(Class::name)) {
        Some(name) => name.to_owned(),
        None => format!("class {:06x}", identity.class),
    }
}
