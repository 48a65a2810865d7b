//! The devices that a person can name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use vdk_driver::hal::address::Bdf;
use vdk_driver::hal::function::{PciFunction, PciNode};
use vdk_driver::hal::sysfs::{self, SysfsError, SysfsFunction};
use vdk_driver::hal::vfio::{KernelInterface, VfioNode, VfioOptions};
use vdk_driver::hal::vfio_user::VfioUserNode;
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};

/// What a DEV argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// An emulated device.
    Stub(StubKind),
    /// A PCI function of this machine.
    Pci(Bdf),
    /// A function that a server offers on a socket.
    VfioUser(PathBuf),
}

/// Reads a DEV argument.
pub(crate) fn select(text: &str) -> Result<Selected> {
    if let Some(name) = text.strip_prefix("stub:") {
        let known = || StubKind::ALL.iter().map(|kind| format!("stub:{kind}")).collect::<Vec<_>>().join(", ");
        return match name.parse() {
            Ok(kind) => Ok(Selected::Stub(kind)),
            Err(_) => bail!("there is no emulated device {text:?}: choose one of {}", known()),
        };
    }
    if let Some(path) = text.strip_prefix("vfio-user:") {
        if path.is_empty() {
            bail!("{text:?} names no socket: write vfio-user:PATH, as in vfio-user:/tmp/ioat.sock");
        }
        return Ok(Selected::VfioUser(PathBuf::from(path)));
    }
    match text.parse() {
        Ok(address) => Ok(Selected::Pci(address)),
        Err(error) => {
            bail!("unknown device {text:?}: write stub:NAME, vfio-user:PATH or a PCI address ({error})")
        }
    }
}

/// Refuses a DEV argument that names no device, whichever there are.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    select(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Makes an emulated device.
pub(crate) fn stub(kind: StubKind, options: StubOptions) -> Result<Arc<StubNode>> {
    StubNode::new(kind, options).with_context(|| format!("cannot make stub:{kind}"))
}

/// The device that a person named, not open. `interface` is that of the kernel, for a PCI
/// function.
pub(crate) fn node(text: &str, interface: KernelInterface) -> Result<Arc<dyn PciNode>> {
    match select(text)? {
        Selected::Stub(kind) => Ok(stub(kind, StubOptions::default())?),
        Selected::Pci(address) => Ok(pci(address, interface)),
        Selected::VfioUser(path) => Ok(Arc::new(VfioUserNode::new(path))),
    }
}

/// A PCI function of this machine, to be opened through kernel VFIO.
pub(crate) fn pci(address: Bdf, interface: KernelInterface) -> Arc<VfioNode> {
    Arc::new(VfioNode::new(address, VfioOptions { interface, ..VfioOptions::default() }))
}

/// Opens a function.
pub(crate) fn open(node: &dyn PciNode) -> Result<Arc<dyn PciFunction>> {
    Ok(node.open()?)
}

/// The PCI function of this machine at `address`.
pub(crate) fn find_pci(address: Bdf) -> Result<SysfsFunction> {
    let root = Path::new(sysfs::DEVICES);
    match SysfsFunction::read(root, address) {
        Ok(function) => Ok(function),
        Err(SysfsError::Read { error: std::io::ErrorKind::NotFound, .. }) => {
            bail!("there is no PCI function {address} on this machine: `vdk list` shows what there is")
        }
        Err(error) => Err(error.into()),
    }
}

/// Why vdk cannot open a function of this machine, and what to do about it; empty when it
/// can, unless somebody else has it.
pub(crate) fn refusal(function: &SysfsFunction) -> Vec<(String, String)> {
    let mut obstacles = function.obstacles();
    if obstacles.is_empty() {
        obstacles = function.node_obstacles(Path::new("/dev"));
    }
    obstacles.iter().map(|obstacle| (obstacle.reason(), obstacle.fix())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_stub_or_an_address() {
        assert_eq!(select("stub:ioat").unwrap(), Selected::Stub(StubKind::Ioat));
        assert_eq!(select("0000:01:00.0").unwrap(), Selected::Pci("0000:01:00.0".parse().unwrap()));
        let error = select("stub:none").unwrap_err().to_string();
        assert!(error.contains("stub:edu, stub:ioat"), "{error}");
        assert_eq!(select("vfio-user:/run/x").unwrap(), Selected::VfioUser("/run/x".into()));
        for bad in ["", "ioat", "vfio-user:", "1:2:3:4"] {
            assert!(select(bad).is_err(), "{bad}");
        }
    }
}
