//! Which kernel interface a function is opened through, and why.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::options::KernelInterface;
use super::{iommufd, refusal::Refusal};
use crate::sysfs::SysfsFunction;

/// The interface that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenInterface {
    /// The interface, never [`KernelInterface::Auto`].
    pub interface: KernelInterface,
    /// Why, as a person reads it.
    pub reason: String,
}

/// What decides.
pub(super) struct Circumstances<'a> {
    pub(super) asked: KernelInterface,
    /// That of the address space, if it has one already.
    pub(super) space: Option<KernelInterface>,
    pub(super) has_token: bool,
    /// Why iommufd cannot be used, or the node that it would be used through.
    pub(super) iommufd: &'a dyn Fn() -> Result<PathBuf, String>,
}

/// Takes what was asked for; with "auto", what the address space has, and else iommufd where
/// kernel and rights allow it.
pub(super) fn choose(circumstances: &Circumstances<'_>) -> ChosenInterface {
    let chosen = |interface, reason: String| ChosenInterface { interface, reason };
    match (circumstances.asked, circumstances.space) {
        (KernelInterface::Auto, Some(interface)) => {
            chosen(interface, format!("its address space is one of {interface}"))
        }
        (KernelInterface::Auto, None) if circumstances.has_token => chosen(
            KernelInterface::Type1,
            "a VF token is given, which many kernels take in the group interface only".to_owned(),
        ),
        (KernelInterface::Auto, None) => match (circumstances.iommufd)() {
            Ok(node) => chosen(
                KernelInterface::Iommufd,
                format!("{} and {} can be opened", iommufd::NODE, node.display()),
            ),
            Err(why) => chosen(KernelInterface::Type1, why),
        },
        (interface, _) => chosen(interface, "it was asked for".to_owned()),
    }
}

/// The node of the function's own that iommufd works with, if this process may use both.
pub(super) fn iommufd_node(function: &SysfsFunction) -> Result<PathBuf, String> {
    usable(Path::new(iommufd::NODE))?;
    let node =
        device_node(function).map_err(|_| "the kernel gives the function no node of its own".to_owned())?;
    usable(&node)?;
    Ok(node)
}

/// The function's own node.
pub(super) fn device_node(function: &SysfsFunction) -> Result<PathBuf, Refusal> {
    let node = function.vfio_device().map(|name| Path::new("/dev/vfio/devices").join(name));
    node.ok_or_else(|| {
        Refusal::new(
            "the kernel gives it no device node for iommufd",
            "use a kernel with CONFIG_VFIO_DEVICE_CDEV, or the interface type1",
        )
    })
}

fn usable(path: &Path) -> Result<(), String> {
    let shown = path.display();
    access(path, Access::READ_OK | Access::WRITE_OK).map_err(|error| match error {
        Errno::NOENT => format!("there is no {shown}"),
        Errno::ACCESS | Errno::PERM => format!("this user may not open {shown}"),
        other => format!("{shown} cannot be used: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        asked: KernelInterface,
        space: Option<KernelInterface>,
        token: bool,
        there: bool,
    ) -> (KernelInterface, String) {
        let iommufd = || {
            if there {
                Ok("/dev/vfio/devices/vfio0".into())
            } else {
                Err("there is no /dev/iommu".to_owned())
            }
        };
        let chosen = choose(&Circumstances { asked, space, has_token: token, iommufd: &iommufd });
        (chosen.interface, chosen.reason)
    }

    #[test]
    fn auto_takes_iommufd_where_it_can_and_says_why_it_cannot() {
        use KernelInterface::{Auto, Iommufd, Type1};
        let (interface, reason) = chosen(Auto, None, false, true);
        assert_eq!(
            (interface, reason.as_str()),
            (Iommufd, "/dev/iommu and /dev/vfio/devices/vfio0 can be opened")
        );
        assert_eq!(chosen(Auto, None, false, false), (Type1, "there is no /dev/iommu".to_owned()));
        assert_eq!(chosen(Auto, Some(Type1), false, true).0, Type1);
        assert_eq!(chosen(Auto, None, true, true).0, Type1);
        assert_eq!(chosen(Iommufd, Some(Type1), true, false).0, Iommufd, "what is asked for is taken");
        assert_eq!(chosen(Type1, None, false, true).0, Type1);
        assert!(usable(Path::new("/dev/null")).is_ok() && usable(Path::new("/nowhere")).is_err());
    }
}
