//! The device files through which functions are opened, and whether this user may.

use std::path::{Path, PathBuf};

use super::kernel::Presence;
use super::{Finding, count};
use crate::machine::Machine;
use crate::sysfs::SysfsFunction;

impl Machine {
    /// The shared nodes, and those of the functions that are with `vfio-pci`.
    pub(super) fn nodes(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        found.extend(self.shared_node(
            "/dev/vfio/vfio",
            self.presence("vfio"),
            "chmod 0666 /dev/vfio/vfio: it is the way to an empty container and gives no device away",
        ));
        found.extend(self.shared_node(
            "/dev/iommu",
            self.presence("iommufd"),
            &format!(
                "chown {USER} /dev/iommu, or for good: {}",
                rule("KERNEL==\"iommu\", SUBSYSTEM==\"misc\"", "misc")
            ),
        ));
        let is_group = |name: &&String| name.trim_start_matches("noiommu-").parse::<u32>().is_ok();
        let groups = self.names("/dev/vfio");
        let mut nodes: Vec<String> =
            groups.iter().filter(is_group).map(|name| format!("/dev/vfio/{name}")).collect();
        let devices = self.names("/dev/vfio/devices");
        nodes.extend(devices.iter().map(|name| format!("/dev/vfio/devices/{name}")));
        if nodes.is_empty() {
            found.push(
                Finding::ok("device nodes", "none: no function is with vfio-pci yet")
                    .with_fix("vdk list shows the functions, vdk bind BDF gives one to vfio-pci"),
            );
            return found;
        }
        let closed: Vec<String> =
            nodes.iter().filter(|node| !(self.may_use)(&self.path(node))).cloned().collect();
        found.push(if closed.is_empty() {
            Finding::ok(
                "device nodes",
                format!("{}, and this user may open each", count(nodes.len(), "node")),
            )
        } else {
            Finding::warning(
                "device nodes",
                format!("this user may not open {}", closed.join(", ")),
                open_node(&closed.join(" ")),
            )
        });
        found
    }

    /// A node that all functions need; nothing to say where its module is not active.
    fn shared_node(&self, node: &str, module: Presence, fix: &str) -> Option<Finding> {
        let path = self.path(node);
        if !path.exists() {
            return module.is_active().then(|| {
                Finding::warning(
                    node,
                    "not there, though the kernel has its module: it is not visible here, or was left out",
                    format!("in a container, pass it on with --device {node}"),
                )
            });
        }
        Some(if (self.may_use)(&path) {
            Finding::ok(node, "there, and this user may open it")
        } else {
            Finding::problem(node, "there, but this user may not open it", fix)
        })
    }

    /// The nodes of one function.
    pub(super) fn function_nodes(&self, function: &SysfsFunction) -> Vec<Finding> {
        let mut found = Vec::new();
        // Either interface of the kernel is enough: the first node is that of the group.
        let nodes = self.device_nodes(function);
        let with = |shared: &str, node: Option<&PathBuf>| {
            node.is_some_and(|node| (self.may_use)(node)) && (self.may_use)(&self.path(shared))
        };
        let enough = with("/dev/vfio/vfio", nodes.first()) || with("/dev/iommu", nodes.get(1));
        let denied = if enough { Finding::warning } else { Finding::problem };
        for path in nodes {
            let node = path.display().to_string();
            if !path.exists() {
                found.push(Finding::warning(
                    node.clone(),
                    "not there, though the function is with vfio-pci: udev is late, or it is not visible here",
                    format!("in a container, pass it on with --device {node}"),
                ));
                continue;
            }
            let holders = self.holders(&path);
            found.push(if !(self.may_use)(&path) {
                denied(node.clone(), "this user may not open it".to_owned(), open_node(&node))
            } else if holders.is_empty() {
                Finding::ok(node, "this user may open it, and no process that can be seen has it open")
            } else {
                Finding::problem(
                    node,
                    format!("open in {}", holders.join(", ")),
                    "end it: one process drives it",
                )
            });
        }
        found
    }
}

/// Whether this user may read and write a file.
pub(in crate::machine) fn may_use(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok()
}

fn open_node(nodes: &str) -> String {
    format!("chown {USER} {nodes}, or for good: {}", rule("SUBSYSTEM==\"vfio|vfio-dev\"", "vfio"))
}

fn rule(matching: &str, subsystem: &str) -> String {
    format!(
        "echo '{matching}, OWNER=\"{USER}\"' > /etc/udev/rules.d/70-vdk.rules && udevadm control --reload && \
         udevadm trigger --subsystem-match={subsystem}"
    )
}

/// In the place of the name of the user, whom root does not know.
const USER: &str = "USER";
