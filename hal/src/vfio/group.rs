//! IOMMU groups: the unit of ownership in the group interface.

use core::mem::offset_of;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use vfio_bindings::bindings::vfio as abi;

use super::container::Container;
use super::holder;
use super::kernel::{Attached, Call, KernelFile, SystemFile, descriptor};
use super::message::Message;
use super::node_file::open_node;
use super::options::VfToken;
use super::refusal::Refusal;
use super::space::Space;
use crate::sysfs::{Obstacle, SysfsFunction};

/// A group that this process has, in one container. Functions of the group share it.
pub(super) struct Group {
    number: u32,
    file: Arc<dyn KernelFile>,
    container: Arc<Container>,
    space: Weak<Space>,
}

impl Group {
    /// Opens the group of a function into a container, or finds that it is there already.
    pub(super) fn join(
        function: &SysfsFunction,
        number: u32,
        container: &Arc<Container>,
        space: &Arc<Space>,
    ) -> Result<Arc<Self>, Refusal> {
        Self::join_by(function, number, container, space, |path| Ok(Arc::new(open_node(path, "vfio-pci")?)))
    }

    fn join_by(
        function: &SysfsFunction,
        number: u32,
        container: &Arc<Container>,
        space: &Arc<Space>,
        open: impl FnOnce(&Path) -> Result<Arc<dyn KernelFile>, Refusal>,
    ) -> Result<Arc<Self>, Refusal> {
        let mut groups = groups();
        groups.retain(|_, group| group.strong_count() > 0);
        if let Some(group) = groups.get(&number).and_then(Weak::upgrade) {
            if group.space.ptr_eq(&Arc::downgrade(space)) {
                return Ok(group);
            }
            return Err(Refusal::new(
                format!("its IOMMU group {number} is in another address space of this process"),
                "give the functions of one group one shared address space",
            ));
        }
        let path = node(number);
        let file = open(&path)?;
        require_viable(&*file, number, function)?;
        container.join(&*file).map_err(|error| match error {
            Errno::BUSY => Refusal::busy(holder::of(&path).unwrap_or_else(holder::unknown)),
            Errno::PERM | Errno::NODEV | Errno::INVAL => no_isolation(number, error),
            error => Refusal::call("the group in a container", error),
        })?;
        let group =
            Arc::new(Self { number, file, container: Arc::clone(container), space: Arc::downgrade(space) });
        groups.insert(number, Arc::downgrade(&group));
        Ok(group)
    }

    /// The file of a function in the group.
    pub(super) fn device(&self, name: &str, token: Option<VfToken>) -> Result<SystemFile, Refusal> {
        let mut text = name.to_owned();
        if let Some(token) = token {
            text.push_str(&format!(" vf_token={token}"));
        }
        text.push('\0');
        let returned = self.file.send(Call::GroupDevice, text.as_bytes()).map_err(|error| match error {
            Errno::NODEV => Refusal::gone(),
            Errno::ACCESS | Errno::PERM | Errno::INVAL if token.is_some() => Refusal::new(
                "the VF token is not the one of its physical function's owner",
                "ask that owner for it",
            ),
            Errno::ACCESS | Errno::PERM => Refusal::new(
                "its physical function belongs to a driver in user space, which has set a VF token",
                "give the token with the options",
            ),
            Errno::BUSY => Refusal::busy(holder::of(&node(self.number)).unwrap_or_else(holder::unknown)),
            error => Refusal::call("the file of the device", error),
        })?;
        SystemFile::from_returned(returned).map_err(|error| Refusal::call("the file of the device", error))
    }

    /// The proof that the group is ours.
    pub(super) fn proof(&self) -> [u8; 4] {
        descriptor(self.file.file())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.container.leave(&*self.file);
    }
}

/// The group with a number, if this process has it.
pub(super) fn owned_group(number: u32) -> Option<Arc<Group>> {
    groups().get(&number).and_then(Weak::upgrade)
}

/// The numbers of the groups that this process has.
pub(super) fn owned_groups() -> Vec<u32> {
    groups().iter().filter(|(_, group)| group.strong_count() > 0).map(|(number, _)| *number).collect()
}

fn groups() -> MutexGuard<'static, BTreeMap<u32, Weak<Group>>> {
    static GROUPS: Mutex<BTreeMap<u32, Weak<Group>>> = Mutex::new(BTreeMap::new());
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn node(number: u32) -> PathBuf {
    Path::new("/dev/vfio").join(number.to_string())
}

fn require_viable(file: &dyn KernelFile, number: u32, function: &SysfsFunction) -> Result<(), Refusal> {
    let mut message = Message::new(size_of::<abi::vfio_group_status>());
    file.exchange(Call::GroupStatus, &mut message, Attached::Nothing)
        .map_err(|error| Refusal::call("the state of the group", error))?;
    let flags = message.word(offset_of!(abi::vfio_group_status, flags)).unwrap_or(0);
    if flags & abi::VFIO_GROUP_FLAGS_VIABLE == 0 {
        return Err(not_viable(number, function));
    }
    Ok(())
}

/// The group is not ours alone: who is in it, and what to do about each.
pub(super) fn not_viable(number: u32, function: &SysfsFunction) -> Refusal {
    let shared = function.obstacles().into_iter().find(|one| matches!(one, Obstacle::GroupShared { .. }));
    match shared {
        Some(shared) => Refusal::new(shared.reason(), shared.fix()),
        None => Refusal::new(
            format!(
                "its IOMMU group {number} is not viable: a function in it belongs to a driver of the kernel"
            ),
            format!("see /sys/kernel/iommu_groups/{number}/devices and unbind all but vfio-pci"),
        ),
    }
}

fn no_isolation(number: u32, error: Errno) -> Refusal {
    Refusal::new(
        format!("the kernel does not give its IOMMU group {number} to user space ({error})"),
        "see `dmesg`: without interrupt remapping the kernel wants vfio_iommu_type1.allow_unsafe_interrupts=1, \
         which lets the device forge interrupts",
    )
}

#[cfg(test)]
mod tests;
