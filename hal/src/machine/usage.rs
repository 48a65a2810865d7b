//! Who uses a function, so that it must not be taken away.

use core::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Machine, link_name, names, text};
use crate::address::Bdf;
use crate::sysfs::SysfsFunction;

/// Something for which the function is needed where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Usage {
    /// It is a bridge, a host bridge included: others are behind it.
    Bridge,
    /// It shows the console.
    BootDisplay,
    /// A file system on it is mounted.
    Mounted {
        /// The block device.
        device: String,
        /// Where.
        at: String,
    },
    /// Memory is swapped to it.
    Swap {
        /// The block device.
        device: String,
    },
    /// A block device is made of it, such as a logical volume or an array.
    PartOf {
        /// The block device.
        device: String,
        /// What is made of it.
        other: String,
    },
    /// A process has its block device open.
    Open {
        /// The block device.
        device: String,
        /// Name and number of the process.
        process: String,
    },
    /// The kernel says that the block device is taken, and it is not visible by whom.
    Taken {
        /// The block device.
        device: String,
    },
    /// Its network interface is up.
    InterfaceUp {
        /// The interface.
        interface: String,
    },
    /// Its network interface belongs to a bridge or a bond.
    InterfaceMember {
        /// The interface.
        interface: String,
        /// The bridge or bond.
        of: String,
    },
    /// A keyboard, mouse or the like is attached to it.
    Input {
        /// What it calls itself.
        name: String,
    },
    /// Virtual functions of it exist, which go with its driver.
    VirtualFunctions {
        /// The function itself.
        address: Bdf,
        /// How many.
        count: u32,
    },
}

impl Usage {
    /// The command that ends it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Bridge => "leave it to the kernel, and choose a function behind it".to_owned(),
            Self::BootDisplay => "let another display show the console".to_owned(),
            Self::Mounted { at, .. } => format!("umount {at}"),
            Self::Swap { device } => format!("swapoff /dev/{device}"),
            Self::PartOf { other, .. } if other.starts_with("md") => format!("mdadm --stop /dev/{other}"),
            Self::PartOf { other, .. } => {
                format!(
                    "take /dev/{other} down (`vgchange -an VG`, `cryptsetup close NAME` or `dmsetup remove`)"
                )
            }
            Self::Open { process, .. } => format!("end {process}"),
            Self::Taken { device } => {
                format!(
                    "unmount it where it is mounted, such as in a container (`grep {device} /proc/*/mountinfo`)"
                )
            }
            Self::InterfaceUp { interface } => format!("ip link set {interface} down"),
            Self::InterfaceMember { interface, .. } => format!("ip link set {interface} nomaster"),
            Self::Input { .. } => "attach it to another controller".to_owned(),
            Self::VirtualFunctions { address, .. } => {
                format!("echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs")
            }
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge => write!(f, "it is a bridge"),
            Self::BootDisplay => write!(f, "it is the display of the console"),
            Self::Mounted { device, at } => write!(f, "{device} is mounted at {at}"),
            Self::Swap { device } => write!(f, "{device} is swap space"),
            Self::PartOf { device, other } => write!(f, "{device} is part of {other}"),
            Self::Open { device, process } => write!(f, "{device} is open in {process}"),
            Self::Taken { device } => write!(f, "the kernel says that {device} is in use"),
            Self::InterfaceUp { interface } => write!(f, "network interface {interface} is up"),
            Self::InterfaceMember { interface, of } => {
                write!(f, "network interface {interface} belongs to {of}")
            }
            Self::Input { name } => write!(f, "input device {name:?} is attached to it"),
            Self::VirtualFunctions { count, .. } => write!(f, "{count} virtual functions of it exist"),
        }
    }
}

impl Machine {
    /// Who uses a function now. Nothing is held: it may be used a moment later.
    #[must_use]
    pub fn usage(&self, function: &SysfsFunction) -> Vec<Usage> {
        let address = function.address;
        if function.identity.class >> 16 == BRIDGE_CLASS {
            // Everything behind it would be listed as well.
            return vec![Usage::Bridge];
        }
        let mut found = Vec::new();
        let folder = function.folder();
        let shows_console = !self.class_members("graphics", address).is_empty();
        if shows_console || text(&folder.join("boot_vga")).as_deref() == Some("1") {
            found.push(Usage::BootDisplay);
        }
        // Backwards, so that a partition comes before its disk.
        for (device, path) in self.block_devices(address).into_iter().rev() {
            self.block_usage(&device, &path, &mut found);
        }
        for (interface, path) in self.class_members("net", address) {
            let flags = text(&path.join("flags"));
            let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
            if let Some(of) = link_name(&path.join("master")) {
                found.push(Usage::InterfaceMember { interface: interface.clone(), of });
            }
            if flags.is_some_and(|flags| flags & INTERFACE_UP != 0) {
                found.push(Usage::InterfaceUp { interface });
            }
        }
        for (name, path) in self.class_members("input", address) {
            // Each device is there again as its event files; the plugs of a sound card have
            // switches only.
            let has =
                |kind: &str| text(&path.join("capabilities").join(kind)).is_some_and(|bits| bits != "0");
            if name.starts_with("input") && (has("key") || has("rel")) {
                found.push(Usage::Input { name: text(&path.join("name")).unwrap_or(name) });
            }
        }
        let count = text(&folder.join("sriov_numvfs")).and_then(|count| count.parse().ok()).unwrap_or(0);
        if count > 0 {
            found.push(Usage::VirtualFunctions { address, count });
        }
        found
    }

    /// The block devices of a function, partitions included. A namespace that several
    /// controllers reach does not stand below any of them, but below their subsystem.
    fn block_devices(&self, address: Bdf) -> Vec<(String, PathBuf)> {
        let mut found = self.class_members("block", address);
        let controllers: Vec<String> =
            self.class_members("nvme", address).into_iter().map(|(name, _)| name).collect();
        for subsystem in self.names("/sys/class/nvme-subsystem") {
            let Ok(folder) = fs::canonicalize(self.path(&format!("/sys/class/nvme-subsystem/{subsystem}")))
            else {
                continue;
            };
            if !names(&folder).iter().any(|name| controllers.contains(name)) {
                continue;
            }
            for name in self.names("/sys/class/block") {
                let path = fs::canonicalize(self.path(&format!("/sys/class/block/{name}")));
                if let Ok(path) = path
                    && path.starts_with(&folder)
                {
                    found.push((name, path));
                }
            }
        }
        found.sort();
        found
    }

    fn block_usage(&self, device: &str, path: &Path, found: &mut Vec<Usage>) {
        let before = found.len();
        let name = || device.to_owned();
        for at in self.mounts_of(device, &text(&path.join("dev")).unwrap_or_default()) {
            found.push(Usage::Mounted { device: name(), at });
        }
        if self.is_swap(device) {
            found.push(Usage::Swap { device: name() });
        }
        for other in names(&path.join("holders")) {
            found.push(Usage::PartOf { device: name(), other });
        }
        let node = self.path(&format!("/dev/{device}"));
        for process in self.holders(&node) {
            found.push(Usage::Open { device: name(), process });
        }
        // Whoever holds a block device for itself has taken it so; a partition's disk is
        // taken with it, and needs no second line.
        if found.len() == before && is_taken(&node) && !partition_is_used(device, found) {
            found.push(Usage::Taken { device: name() });
        }
    }

    /// Where a block device is mounted, by its number or, for file systems with a number of
    /// their own, by its name.
    fn mounts_of(&self, device: &str, number: &str) -> Vec<String> {
        let mut places = Vec::new();
        for line in self.text("/proc/self/mountinfo").unwrap_or_default().lines() {
            let Some((mount, source)) = line.split_once(" - ") else { continue };
            let fields: Vec<&str> = mount.split(' ').collect();
            let source = source.split(' ').nth(1).unwrap_or_default();
            let (Some(found), Some(place)) = (fields.get(2), fields.get(4)) else { continue };
            if *found == number || self.is_node_of(source, device) {
                places.push(place.replace("\\040", " "));
            }
        }
        places.dedup();
        places
    }

    fn is_swap(&self, device: &str) -> bool {
        let swaps = self.text("/proc/swaps").unwrap_or_default();
        let mut nodes = swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
        nodes.any(|node| self.is_node_of(node, device))
    }

    /// Whether `node` is the device file of a block device, under this or another name.
    fn is_node_of(&self, node: &str, device: &str) -> bool {
        if !node.starts_with("/dev/") {
            return false;
        }
        let real = fs::canonicalize(self.path(node));
        node == format!("/dev/{device}")
            || real.is_ok_and(|real| real == self.path(&format!("/dev/{device}")))
    }
}

/// Whether the kernel refuses a block device to one who wants it for himself.
fn is_taken(node: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(node);
    opened.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
}

fn partition_is_used(disk: &str, found: &[Usage]) -> bool {
    found.iter().any(|usage| match usage {
        Usage::Mounted { device, .. }
        | Usage::Swap { device }
        | Usage::PartOf { device, .. }
        | Usage::Taken { device } => device.starts_with(disk) && device != disk,
        _ => false,
    })
}

const BRIDGE_CLASS: u32 = 0x06;
/// `IFF_UP` of Linux's `include/uapi/linux/if.h`.
const INTERFACE_UP: u32 = 1;

#[cfg(test)]
mod tests;
