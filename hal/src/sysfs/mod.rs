//! The PCI functions of this machine, as Linux shows them in sysfs.
//!
//! Everything here only reads. Files of a function may be missing, cut by privilege or
//! vanish with the function while they are read: what is optional is then `None`, what is
//! not makes an error that names the file, and one bad function does not hide the others.

mod config_file;
mod obstacle;

pub use config_file::SysfsConfig;
pub use obstacle::Obstacle;
pub(crate) use obstacle::{is_safe_in_group, is_vfio};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::address::{BarIndex, Bdf, ByteLength};
use crate::bar::{BarInfo, BarKind, BarLayout, RomInfo};
use crate::config::ConfigError;
use crate::function::{OpenError, PciFunction, PciIdentity, PciNode};
use crate::vfio::{VfioNode, VfioOptions};

/// Where Linux lists its PCI functions.
pub const DEVICES: &str = "/sys/bus/pci/devices";

/// What was found below a sysfs root.
#[derive(Clone, Debug, Default)]
pub struct SysfsListing {
    /// The functions, by address.
    pub functions: Vec<SysfsFunction>,
    /// The entries that could not be read, and why.
    pub faults: Vec<SysfsError>,
}

/// A PCI function of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsFunction {
    root: PathBuf,
    name: String,
    /// Where it sits.
    pub address: Bdf,
    /// What it is.
    pub identity: PciIdentity,
    /// The driver that is bound to it.
    pub driver: Option<String>,
    /// The group that the IOMMU isolates together.
    pub iommu_group: Option<IommuGroup>,
    /// The memory that is near to it, where there is more than one kind.
    pub numa_node: Option<u32>,
    /// Whether a driver has enabled it.
    pub enabled: Option<bool>,
    /// The power state in the kernel's words: `D0`, `D3hot`, `unknown`.
    pub power_state: Option<String>,
    /// What its BARs and ROM decode.
    pub bars: BarLayout,
}

/// The functions that an IOMMU cannot tell apart: they are given to one owner together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuGroup {
    /// Its number, as in `/dev/vfio/NUMBER`.
    pub number: u32,
    /// It is a group without an IOMMU, which protects nothing.
    pub without_iommu: bool,
    /// Every function in it and the driver bound to each, by address.
    pub members: Vec<(Bdf, Option<String>)>,
}

/// Why sysfs could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SysfsError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::ErrorKind,
    },
    /// A file does not hold what it should.
    #[error("{path} holds {text:?} instead of {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The beginning of what it holds.
        text: String,
        /// What it should hold.
        expected: &'static str,
    },
}

impl SysfsListing {
    /// Reads every function below `root`, usually [`DEVICES`]. A machine without PCI has an
    /// empty listing.
    ///
    /// # Errors
    ///
    /// [`SysfsError::Read`] when the root itself cannot be read.
    pub fn read(root: &Path) -> Result<Self, SysfsError> {
        let entries = match fs::read_dir(root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(root, &error)),
        };
        let mut listing = Self::default();
        for entry in entries {
            let result = entry
                .map_err(|error| unreadable(root, &error))
                .and_then(|entry| address_of(root, &entry.file_name()))
                .and_then(|address| SysfsFunction::read(root, address));
            match result {
                Ok(function) => listing.functions.push(function),
                Err(fault) => listing.faults.push(fault),
            }
        }
        listing.functions.sort_by_key(|function| function.address);
        Ok(listing)
    }
}

impl SysfsFunction {
    /// Reads the function at `address` below `root`.
    ///
    /// # Errors
    ///
    /// [`SysfsError`] when there is none, or when it does not say what it is.
    pub fn read(root: &Path, address: Bdf) -> Result<Self, SysfsError> {
        let name = address.to_string();
        let folder = root.join(&name);
        let id = |file: &str| -> Result<u16, SysfsError> {
            let path = folder.join(file);
            let value = hex(&path)?;
            u16::try_from(value).map_err(|_| malformed(&path, &format!("{value:#x}"), "a 16-bit number"))
        };
        let identity = PciIdentity {
            vendor: id("vendor")?,
            device: id("device")?,
            revision: optional(hex(&folder.join("revision")))
                .and_then(|revision| u8::try_from(revision).ok())
                .unwrap_or_default(),
            class: hex(&folder.join("class"))? & 0xff_ffff,
            subsystem_vendor: optional(id("subsystem_vendor")).unwrap_or_default(),
            subsystem: optional(id("subsystem_device")).unwrap_or_default(),
        };
        let resources = folder.join("resource");
        Ok(Self {
            address,
            identity,
            driver: driver_of(root, address),
            iommu_group: optional(group_of(root, address)).flatten(),
            numa_node: optional(number(&folder.join("numa_node"))).and_then(|node| u32::try_from(node).ok()),
            enabled: optional(number(&folder.join("enable"))).map(|count| count > 0),
            power_state: optional(text(&folder.join("power_state"))),
            bars: optional(text(&resources).and_then(|text| parse_resources(&resources, &text)))
                .unwrap_or_default(),
            name,
            root: root.to_owned(),
        })
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// Its configuration space, read-only.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DeviceGone`] when it has gone, [`ConfigError::System`].
    pub fn config(&self) -> Result<SysfsConfig, ConfigError> {
        SysfsConfig::open(&self.folder().join("config"))
    }

    /// What keeps the function from being opened, with the way to remove each obstacle; the
    /// one to remove first comes first. Rights on device nodes are not looked at.
    #[must_use]
    pub fn obstacles(&self) -> Vec<Obstacle> {
        obstacle::obstacles(self)
    }

    /// What keeps this process from the device nodes below `dev`, usually `/dev`, that lead
    /// to a function without other [obstacles](Self::obstacles).
    #[must_use]
    pub fn node_obstacles(&self, dev: &Path) -> Vec<Obstacle> {
        obstacle::node_obstacles(self, dev)
    }
}

impl SysfsFunction {
    /// The name of its own VFIO device, as in `/dev/vfio/devices/NAME`, where a driver of
    /// VFIO has it.
    #[must_use]
    pub fn vfio_device(&self) -> Option<String> {
        let mut entries = fs::read_dir(self.folder().join("vfio-dev")).ok()?;
        entries.find_map(|entry| entry.ok()?.file_name().into_string().ok())
    }
}

impl PciNode for SysfsFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Bdf {
        self.address
    }

    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        Ok(self.identity)
    }

    /// Opens it through kernel VFIO, as [`VfioNode`] does with its default options, or
    /// refuses with every obstacle and its fix.
    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        let obstacles = self.obstacles();
        if obstacles.is_empty() {
            return VfioNode::new(self.address, VfioOptions::default()).with_sysfs(&self.root).open();
        }
        let all = |part: fn(&Obstacle) -> String| obstacles.iter().map(part).collect::<Vec<_>>().join("; ");
        Err(OpenError::Refused {
            function: self.name.clone(),
            reason: all(Obstacle::reason),
            fix: all(Obstacle::fix),
        })
    }
}

fn address_of(root: &Path, name: &std::ffi::OsStr) -> Result<Bdf, SysfsError> {
    let name = name.to_string_lossy();
    name.parse().map_err(|_| malformed(root, &name, "a PCI address"))
}

fn driver_of(root: &Path, address: Bdf) -> Option<String> {
    link_name(&root.join(address.to_string()).join("driver"))
}

/// The last part of what a link points to; `None` when there is no link.
fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn group_of(root: &Path, address: Bdf) -> Result<Option<IommuGroup>, SysfsError> {
    let link = root.join(address.to_string()).join("iommu_group");
    let Some(name) = link_name(&link) else { return Ok(None) };
    let number = name.parse().map_err(|_| malformed(&link, &name, "the number of a group"))?;
    let folder = link.join("devices");
    let entries = fs::read_dir(&folder).map_err(|error| unreadable(&folder, &error))?;
    let mut members = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(&folder, &error))?;
        let member = address_of(&folder, &entry.file_name())?;
        members.push((member, driver_of(root, member)));
    }
    members.sort();
    let without_iommu = text(&link.join("name")).is_ok_and(|name| name == "vfio-noiommu");
    Ok(Some(IommuGroup { number, without_iommu, members }))
}

/// What the `resource` file says: six BARs, then the ROM; each line has the first address,
/// the last one and the flags of `include/linux/ioport.h`. An upper half is a line of zeros.
fn parse_resources(path: &Path, text: &str) -> Result<BarLayout, SysfsError> {
    let mut layout = BarLayout::default();
    let mut after_64_bit = false;
    for (line, index) in text.lines().zip(0..=ROM_LINE) {
        let wrong = |expected| malformed(path, line, expected);
        let mut fields = line.split_ascii_whitespace().map(parse_hex);
        let (Some(Some(start)), Some(Some(last)), Some(Some(flags)), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(wrong("three hexadecimal numbers"));
        };
        if flags & (RESOURCE_IO | RESOURCE_MEMORY) == 0 {
            after_64_bit = false;
            continue;
        }
        let size = last.checked_sub(start).and_then(|distance| distance.checked_add(1));
        let Some(size) = size.map(ByteLength::new) else { return Err(wrong("a range of addresses")) };
        let address = if flags & RESOURCE_UNSET == 0 { start } else { 0 };
        let Some(index) = BarIndex::new(index) else {
            layout.set_rom(RomInfo { size, address, enabled: flags & RESOURCE_ROM_ENABLE != 0 });
            continue;
        };
        let kind = match flags {
            _ if flags & RESOURCE_IO != 0 => BarKind::Io,
            _ if flags & RESOURCE_MEMORY_64 != 0 => BarKind::Memory64,
            _ => BarKind::Memory32,
        };
        if after_64_bit || (kind == BarKind::Memory64 && index.as_usize() + 1 == BarIndex::COUNT) {
            return Err(wrong("room for the upper half of a 64-bit BAR"));
        }
        after_64_bit = kind == BarKind::Memory64;
        layout.set(BarInfo { index, kind, prefetchable: flags & RESOURCE_PREFETCH != 0, size, address });
    }
    Ok(layout)
}

fn text(path: &Path) -> Result<String, SysfsError> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    let text = String::from_utf8(bytes);
    text.map(|text| text.trim_end().to_owned())
        .map_err(|error| malformed(path, &String::from_utf8_lossy(error.as_bytes()), "text"))
}

fn hex(path: &Path) -> Result<u32, SysfsError> {
    let text = text(path)?;
    let value = parse_hex(&text).and_then(|value| u32::try_from(value).ok());
    value.ok_or_else(|| malformed(path, &text, "a hexadecimal number"))
}

fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` takes a sign, which is not a digit.
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

fn number(path: &Path) -> Result<i64, SysfsError> {
    let text = text(path)?;
    text.parse().map_err(|_| malformed(path, &text, "a number"))
}

/// A file that a function need not have. One that is there and wrong is worth a warning.
fn optional<T>(result: Result<T, SysfsError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(SysfsError::Read { error: io::ErrorKind::NotFound, .. }) => None,
        Err(error) => {
            log::warn!("{error}");
            None
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> SysfsError {
    SysfsError::Read { path: path.to_owned(), error: error.kind() }
}

fn malformed(path: &Path, text: &str, expected: &'static str) -> SysfsError {
    SysfsError::Malformed { path: path.to_owned(), text: text.chars().take(80).collect(), expected }
}

/// The line of the ROM; the windows of bridges and virtual functions follow it.
const ROM_LINE: u8 = 6;
const RESOURCE_ROM_ENABLE: u64 = 0x1;
const RESOURCE_IO: u64 = 0x100;
const RESOURCE_MEMORY: u64 = 0x200;
const RESOURCE_PREFETCH: u64 = 0x2000;
const RESOURCE_MEMORY_64: u64 = 0x10_0000;
const RESOURCE_UNSET: u64 = 0x2000_0000;

#[cfg(test)]
mod tests;
