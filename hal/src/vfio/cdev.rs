//! A function's own device node, bound to iommufd.

use core::mem::offset_of;
use std::path::Path;

use rustix::io::Errno;
use vfio_bindings::bindings::vfio as abi;

use super::group;
use super::holder;
use super::iommufd::Ioas;
use super::kernel::{Attached, Call, KernelFile, descriptor};
use super::message::Message;
use super::options::VfToken;
use super::refusal::Refusal;
use crate::sysfs::SysfsFunction;

/// Binds an open node to iommufd and attaches it to an address space. Until it is bound the
/// device answers nothing else.
pub(super) fn bind_and_attach(
    file: &dyn KernelFile,
    node: &Path,
    ioas: &Ioas,
    token: Option<VfToken>,
    function: &SysfsFunction,
) -> Result<(), Refusal> {
    bind(file, ioas, token).map_err(|error| match error {
        Errno::NODEV => Refusal::gone(),
        Errno::NOTTY | Errno::OPNOTSUPP => {
            Refusal::new("its driver cannot be used through iommufd", "use the interface type1")
        }
        Errno::BUSY | Errno::INVAL | Errno::PERM => taken(node, token, function, error),
        error => Refusal::call("the device bound to iommufd", error),
    })?;
    attach(file, ioas).map_err(|error| match error {
        Errno::ADDRINUSE | Errno::INVAL => Refusal::new(
            format!(
                "it does not fit the address space ({error}): an address in use or allowed is reserved for it"
            ),
            "give it an address space of its own",
        ),
        error => Refusal::call("the device in an address space of iommufd", error),
    })
}

fn bind(file: &dyn KernelFile, ioas: &Ioas, token: Option<VfToken>) -> Result<(), Errno> {
    type Bind = abi::vfio_device_bind_iommufd;
    let mut message = Message::new(size_of::<Bind>())
        .with_bytes(offset_of!(Bind, iommufd), &descriptor(ioas.file().file()));
    let Some(VfToken(mut token)) = token else {
        // Kernels before 6.17 know no token, and take the shorter message only.
        let mut short = Message::new(offset_of!(Bind, token_uuid_ptr))
            .with_bytes(offset_of!(Bind, iommufd), &descriptor(ioas.file().file()));
        return file.exchange(Call::BindIommufd, &mut short, Attached::Nothing).map(|_| ());
    };
    message.put(offset_of!(Bind, flags), abi::VFIO_DEVICE_BIND_FLAG_TOKEN);
    let at = offset_of!(Bind, token_uuid_ptr);
    file.exchange(Call::BindIommufd, &mut message, Attached::List { at, bytes: &mut token }).map(|_| ())
}

fn attach(file: &dyn KernelFile, ioas: &Ioas) -> Result<(), Errno> {
    type Attach = abi::vfio_device_attach_iommufd_pt;
    let mut message = Message::new(offset_of!(Attach, pasid)).with(offset_of!(Attach, pt_id), ioas.id());
    file.exchange(Call::AttachIommufd, &mut message, Attached::Nothing).map(|_| ())
}

/// Detaches the device: its DMA is blocked from then on.
pub(super) fn detach(file: &dyn KernelFile) -> Result<(), Errno> {
    let mut message = Message::new(offset_of!(abi::vfio_device_detach_iommufd_pt, pasid));
    file.exchange(Call::DetachIommufd, &mut message, Attached::Nothing).map(|_| ())
}

/// Why the kernel does not bind: somebody has the device or its group, the token is wrong,
/// or the group is shared with drivers of the kernel.
fn taken(node: &Path, token: Option<VfToken>, function: &SysfsFunction, error: Errno) -> Refusal {
    let number = function.iommu_group.as_ref().map(|group| group.number);
    let group_node = number.map(group::node);
    let holder = holder::other_than_us(node).or_else(|| group_node.as_deref().and_then(holder::of));
    match (holder, number) {
        (Some(holder), _) => Refusal::busy(holder),
        (None, _) if token.is_some() => Refusal::new(
            format!("the kernel does not take the VF token ({error})"),
            "ask the owner of its physical function for the token, or use the interface type1",
        ),
        // A plain user does not see who it is.
        (None, _) if error == Errno::INVAL => Refusal::busy(holder::unknown()),
        (None, Some(number)) => group::not_viable(number, function),
        (None, None) => Refusal::call("the device bound to iommufd", error),
    }
}

#[cfg(test)]
mod tests;
