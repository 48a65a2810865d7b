//! Why a function cannot be opened, and what to do about it.

use core::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::SysfsFunction;
use crate::address::Bdf;

/// Something that keeps a function from being opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It is a bridge, which belongs to the kernel.
    Bridge,
    /// No IOMMU confines it.
    NoIommuGroup,
    /// Its group has no IOMMU behind it.
    WithoutIommu {
        /// The number of the group.
        group: u32,
    },
    /// Another driver has it.
    BoundToDriver {
        /// The function.
        address: Bdf,
        /// The driver.
        driver: String,
    },
    /// No driver has it, `vfio-pci` included.
    NotBound {
        /// The function.
        address: Bdf,
    },
    /// Functions of the same group belong to other drivers.
    GroupShared {
        /// The number of the group.
        group: u32,
        /// Those functions and their drivers.
        others: Vec<(Bdf, String)>,
    },
    /// A device node that VFIO needs is not there.
    NodeMissing {
        /// The node.
        node: PathBuf,
    },
    /// This user may not open a device node that VFIO needs.
    NodeForbidden {
        /// The node.
        node: PathBuf,
    },
}

impl Obstacle {
    /// What is in the way.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Bridge => "it is a bridge".to_owned(),
            Self::NoIommuGroup => "it is in no IOMMU group".to_owned(),
            Self::WithoutIommu { group } => format!("its group {group} has no IOMMU"),
            Self::BoundToDriver { driver, .. } => format!("it is bound to driver {driver}"),
            Self::NotBound { .. } => "it is not bound to vfio-pci".to_owned(),
            Self::GroupShared { group, others } => {
                let others: Vec<_> =
                    others.iter().map(|(address, driver)| format!("{address} ({driver})")).collect();
                format!("its IOMMU group {group} also holds {}", others.join(", "))
            }
            Self::NodeMissing { node } => format!("there is no {}", node.display()),
            Self::NodeForbidden { node } => format!("this user may not open {}", node.display()),
        }
    }

    /// What removes it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Bridge => "choose a function behind it".to_owned(),
            Self::NoIommuGroup | Self::WithoutIommu { .. } => {
                "turn the IOMMU on in the firmware setup (VT-d or AMD-Vi) and boot Linux with \
                 intel_iommu=on; in a virtual machine, give it a virtual IOMMU"
                    .to_owned()
            }
            Self::BoundToDriver { address, driver } => {
                format!(
                    "vdk bind {address}; or by hand, when nothing uses it any more, echo {address} > \
                     /sys/bus/pci/drivers/{driver}/unbind && {}",
                    bind(*address)
                )
            }
            Self::NotBound { address } => format!("vdk bind {address}; or by hand: {}", bind(*address)),
            Self::GroupShared { others, .. } => {
                let fixes: Vec<_> = others
                    .iter()
                    .map(|(address, driver)| format!("echo {address} > /sys/bus/pci/drivers/{driver}/unbind"))
                    .collect();
                format!(
                    "the group has one owner; vdk bind --group does all at once, or by hand: {}",
                    fixes.join(" && ")
                )
            }
            Self::NodeMissing { node } if node.ends_with("vfio") => "modprobe vfio_iommu_type1".to_owned(),
            Self::NodeMissing { .. } => "modprobe vfio-pci, and see that udev runs".to_owned(),
            Self::NodeForbidden { node } => {
                format!(
                    "as root, chown USER {} (or set a udev rule for it), or run vdk as root",
                    node.display()
                )
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason(), self.fix())
    }
}

fn bind(address: Bdf) -> String {
    format!(
        "modprobe vfio-pci && echo vfio-pci > /sys/bus/pci/devices/{address}/driver_override && \
         echo {address} > /sys/bus/pci/drivers_probe"
    )
}

pub(super) fn obstacles(function: &SysfsFunction) -> Vec<Obstacle> {
    let address = function.address;
    let mut found = Vec::new();
    if function.identity.class >> 16 == BRIDGE_CLASS {
        // Nothing that could be bound or turned on would help.
        return vec![Obstacle::Bridge];
    }
    match &function.iommu_group {
        None => found.push(Obstacle::NoIommuGroup),
        Some(group) if group.without_iommu => found.push(Obstacle::WithoutIommu { group: group.number }),
        Some(_) => {}
    }
    match function.driver.as_deref() {
        Some(driver) if is_vfio(driver) => {}
        Some(driver) => found.push(Obstacle::BoundToDriver { address, driver: driver.to_owned() }),
        None => found.push(Obstacle::NotBound { address }),
    }
    if let Some(group) = &function.iommu_group {
        let others: Vec<_> = group
            .members
            .iter()
            .filter_map(|(member, driver)| Some((*member, driver.clone()?)))
            .filter(|(member, driver)| *member != address && !is_safe_in_group(driver))
            .collect();
        if !others.is_empty() {
            found.push(Obstacle::GroupShared { group: group.number, others });
        }
    }
    found
}

/// What keeps this process from the nodes below `dev` that lead to `function`. One of the two
/// interfaces is enough; what the group interface lacks is told, which every kernel has.
pub(super) fn node_obstacles(function: &SysfsFunction, dev: &Path) -> Vec<Obstacle> {
    let Some(group) = &function.iommu_group else { return Vec::new() };
    let own = function.vfio_device().map(|name| dev.join("vfio/devices").join(name));
    if own.is_some_and(|own| [dev.join("iommu"), own].into_iter().all(|node| node_obstacle(node).is_none())) {
        return Vec::new();
    }
    let nodes = [dev.join("vfio/vfio"), dev.join("vfio").join(group.number.to_string())];
    nodes.into_iter().filter_map(node_obstacle).collect()
}

fn node_obstacle(node: PathBuf) -> Option<Obstacle> {
    match access(&node, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => None,
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Some(Obstacle::NodeForbidden { node }),
        Err(_) => Some(Obstacle::NodeMissing { node }),
    }
}

/// Whether a driver hands its functions to user space. There are variants of `vfio-pci` for
/// some devices, such as `mlx5_vfio_pci`.
pub(crate) fn is_vfio(driver: &str) -> bool {
    driver.replace('_', "-").ends_with("vfio-pci")
}

/// The drivers beside which the kernel still hands a group to user space.
pub(crate) fn is_safe_in_group(driver: &str) -> bool {
    is_vfio(driver) || matches!(driver, "pci-stub" | "pcieport")
}

const BRIDGE_CLASS: u32 = 0x06;
