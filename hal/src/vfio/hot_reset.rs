//! Hot reset: a reset of the bus, which hits every function behind the bridge.
//!
//! The kernel wants proof that all of them belong to the caller. In the group interface
//! that is the file of each group; through iommufd the kernel knows itself, and says so.

use core::mem::offset_of;
use std::path::Path;

use rustix::io::Errno;
use vfio_bindings::bindings::vfio as abi;

use super::device::{Device, Unreached};
use super::group;
use super::holder;
use super::kernel::Call;
use super::message::{Message, half_word, word};
use crate::address::Bdf;
use crate::sysfs::{SysfsFunction, is_vfio};

/// The functions that a hot reset would hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HotResetInfo {
    pub(super) affected: Vec<Affected>,
    /// The kernel has checked that all are the caller's; device interface only.
    pub(super) owned: Option<bool>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affected {
    pub(super) address: Bdf,
    pub(super) owner: Owner,
}

/// How the kernel tells who owns a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Whoever has this group.
    Group(u32),
    /// The caller, or nobody who would be hurt.
    Caller,
    /// Somebody else.
    Other,
}

impl HotResetInfo {
    /// Asks. `None` when there is no such reset here.
    pub(super) fn read(device: &Device) -> Result<Option<Self>, Unreached> {
        let mut room = 8;
        for _ in 0..ATTEMPTS {
            let mut message = Message::new(HEADER + room * ENTRY);
            match device.reach(|file| {
                match file.exchange(Call::HotResetInfo, &mut message, super::kernel::Attached::Nothing) {
                    Ok(_) => Ok(Answer::Complete),
                    Err(Errno::NOSPC) => Ok(Answer::TooLong),
                    // No slot and no bus that can be reset, or a kernel without it.
                    Err(Errno::NODEV | Errno::NOTTY | Errno::INVAL) => Ok(Answer::Absent),
                    Err(error) => Err(error),
                }
            })? {
                Answer::Complete => return Ok(parse(message.bytes())),
                Answer::Absent => return Ok(None),
                Answer::TooLong => {
                    let count = message.word(offset_of!(abi::vfio_pci_hot_reset_info, count)).unwrap_or(0);
                    room = usize::try_from(count).unwrap_or(usize::MAX).clamp(room + 1, MOST_AFFECTED);
                }
            }
        }
        Ok(None)
    }

    /// The functions that keep the kernel from resetting, each with who has it: what belongs
    /// to others, what `vfio-pci` does not have, in a group of the caller or not, and virtual
    /// functions. `groups` are the caller's, `own` is the function that asks, `root` the list of functions.
    pub(super) fn outsiders(&self, own: Bdf, groups: &[u32], root: &Path) -> Vec<String> {
        let mut outsiders: Vec<String> = self
            .affected
            .iter()
            .filter(|affected| affected.address != own)
            .filter_map(|affected| {
                let function = SysfsFunction::read(root, affected.address).ok();
                // A function that has gone meanwhile is not hit.
                let foreign = match affected.owner {
                    Owner::Group(group) => !groups.contains(&group),
                    Owner::Caller => false,
                    Owner::Other => true,
                };
                let bound = function.as_ref().is_none_or(has_vfio_driver);
                // The kernel keeps each virtual function in a set of its own.
                let virtual_one = function.as_ref().is_some_and(is_virtual);
                (foreign || !bound || virtual_one).then(|| described(affected.address, function.as_ref()))
            })
            .collect();
        if self.owned == Some(false) && outsiders.is_empty() {
            // The kernel does not say which, only that not all are ours.
            let others = self.affected.iter().map(|one| one.address).filter(|one| *one != own);
            outsiders.extend(others.map(|other| other.to_string()));
        }
        outsiders
    }

    /// The groups that have to be shown.
    pub(super) fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self
            .affected
            .iter()
            .filter_map(|affected| match affected.owner {
                Owner::Group(group) => Some(group),
                Owner::Caller | Owner::Other => None,
            })
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

enum Answer {
    Complete,
    TooLong,
    Absent,
}

/// What an answer says; `None` when it cannot be.
fn parse(answer: &[u8]) -> Option<HotResetInfo> {
    let flags = word(answer, offset_of!(abi::vfio_pci_hot_reset_info, flags))?;
    let count = word(answer, offset_of!(abi::vfio_pci_hot_reset_info, count))?;
    let entries = answer.get(HEADER..)?;
    let entries = entries.get(..usize::try_from(count).ok()?.checked_mul(ENTRY)?)?;
    let by_device = flags & abi::VFIO_PCI_HOT_RESET_FLAG_DEV_ID != 0;
    let affected = entries.chunks_exact(ENTRY).map(|entry| {
        let id = word(entry, 0)?;
        let segment = half_word(entry, offset_of!(abi::vfio_pci_dependent_device, segment))?;
        let bus = *entry.get(offset_of!(abi::vfio_pci_dependent_device, bus))?;
        let function = *entry.get(offset_of!(abi::vfio_pci_dependent_device, devfn))?;
        let owner = match id {
            group if !by_device => Owner::Group(group),
            NOT_OWNED => Owner::Other,
            // Its own number, or zero for one of the caller's without a number.
            _ => Owner::Caller,
        };
        Some(Affected { address: Bdf::new(segment.into(), bus, function >> 3, function & 7)?, owner })
    });
    let owned = by_device.then_some(flags & abi::VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED != 0);
    Some(HotResetInfo { affected: affected.collect::<Option<_>>()?, owned })
}

/// The call itself. The files of the groups are the proof; through iommufd there are none.
pub(super) fn hot_reset(device: &Device, group_files: &[[u8; 4]]) -> Result<(), Unreached> {
    let header = offset_of!(abi::vfio_pci_hot_reset, group_fds);
    let count = u32::try_from(group_files.len()).map_err(|_| Unreached::Failed(Errno::INVAL))?;
    let mut message =
        Message::new(header + group_files.len() * 4).with(offset_of!(abi::vfio_pci_hot_reset, count), count);
    for (place, file) in group_files.iter().enumerate() {
        message.put_bytes(header + place * 4, file);
    }
    device.exchange(Call::HotReset, &mut message).map(|_| ())
}

fn has_vfio_driver(function: &SysfsFunction) -> bool {
    function.driver.as_deref().is_some_and(is_vfio)
}

fn is_virtual(function: &SysfsFunction) -> bool {
    function.folder().join("physfn").exists()
}

/// A function and who has it, as far as this user can see.
fn described(address: Bdf, function: Option<&SysfsFunction>) -> String {
    let Some(function) = function else { return address.to_string() };
    let driver = match function.driver.as_deref() {
        Some(driver) if is_vfio(driver) => {
            let group = function.iommu_group.as_ref().map(|group| group::node(group.number));
            let own = function.vfio_device().map(|name| Path::new("/dev/vfio/devices").join(name));
            let holder = group.into_iter().chain(own).find_map(|node| holder::other_than_us(&node));
            let unheld = if is_virtual(function) { "a virtual function" } else { "not opened" };
            holder.unwrap_or_else(|| unheld.to_owned())
        }
        Some(driver) => format!("bound to {driver}"),
        None => "bound to no driver".to_owned(),
    };
    format!("{address} ({driver})")
}

const HEADER: usize = offset_of!(abi::vfio_pci_hot_reset_info, devices);
const ENTRY: usize = size_of::<abi::vfio_pci_dependent_device>();
/// `VFIO_PCI_DEVID_NOT_OWNED`, which is -1.
const NOT_OWNED: u32 = u32::MAX;
/// A bus has 256 functions, and a bridge may have buses below it.
const MOST_AFFECTED: usize = 1 << 16;
/// How often functions may appear under us.
const ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests;
