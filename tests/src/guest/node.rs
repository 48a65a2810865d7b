//! The device that cases run on.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::function::PciNode;
use vdk_hal::vfio::{KernelInterface, VfioNode, VfioOptions};

/// The interface of the kernel that a device is reached through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// The group and its container.
    Type1,
    /// The device file and iommufd.
    Iommufd,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type1 => "type1",
            Self::Iommufd => "iommufd",
        })
    }
}

impl FromStr for Interface {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "type1" => Ok(Self::Type1),
            "iommufd" => Ok(Self::Iommufd),
            _ => bail!("there is no interface {text:?}: choose type1 or iommufd"),
        }
    }
}

impl Interface {
    /// As the options of a node have it.
    #[must_use]
    pub fn kernel(self) -> KernelInterface {
        match self {
            Self::Type1 => KernelInterface::Type1,
            Self::Iommufd => KernelInterface::Iommufd,
        }
    }
}

/// The device with a name: `stub:NAME`, or a PCI address.
///
/// # Errors
///
/// When the name says nothing, or the device cannot be made.
pub fn node(device: &str, interface: Interface) -> Result<Arc<dyn PciNode>> {
    if let Some(name) = device.strip_prefix("stub:") {
        let kind: StubKind = name.parse()?;
        let node =
            StubNode::new(kind, StubOptions::default()).with_context(|| format!("cannot make {device}"))?;
        return Ok(node);
    }
    let address = device.parse().with_context(|| format!("unknown device {device:?}: write stub:NAME"))?;
    let options = VfioOptions { interface: interface.kernel(), ..VfioOptions::default() };
    Ok(Arc::new(VfioNode::new(address, options)))
}
