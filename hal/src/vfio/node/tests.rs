use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::vfio::KernelInterface;

/// A folder like sysfs with one function, removed at the end.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, class: &str) -> Self {
        let root = std::env::temp_dir().join(format!("vdk-node-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let folder = root.join("devices/0000:01:00.0");
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("vendor", "0x1234\n"), ("device", "0x11e8\n"), ("class", class)] {
            fs::write(folder.join(file), text).unwrap();
        }
        Self(root)
    }

    fn bind(&self, driver: &str) {
        fs::create_dir_all(self.0.join("drivers").join(driver)).unwrap();
        symlink(self.0.join("drivers").join(driver), self.0.join("devices/0000:01:00.0/driver")).unwrap();
    }

    fn error(&self, address: &str) -> OpenError {
        let options = VfioOptions { interface: KernelInterface::Type1, ..VfioOptions::default() };
        let node = VfioNode::new(address.parse().unwrap(), options).with_sysfs(self.0.join("devices"));
        node.open_function().map(|_| ()).unwrap_err()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_function_that_cannot_be_opened_says_what_to_do_first() {
    let machine = Machine::new("ordinary", "0x00ff00\n");
    assert!(matches!(machine.error("0000:01:00.1"), OpenError::NotFound { .. }));
    let text = machine.error("0000:01:00.0").to_string();
    assert!(text.contains("no IOMMU group") && text.contains("intel_iommu=on"), "{text}");

    let group = machine.0.join("groups/7");
    fs::create_dir_all(group.join("devices/0000:01:00.0")).unwrap();
    symlink(&group, machine.0.join("devices/0000:01:00.0/iommu_group")).unwrap();
    assert!(machine.error("0000:01:00.0").to_string().contains("driver_override"));
    machine.bind("nvme");
    let text = machine.error("0000:01:00.0").to_string();
    assert!(text.contains("bound to driver nvme") && text.contains("drivers/nvme/unbind"), "{text}");

    fs::write(group.join("name"), "vfio-noiommu\n").unwrap();
    let text = machine.error("0000:01:00.0").to_string();
    assert!(text.contains("group 7 has no IOMMU"), "refused whatever the driver: {text}");
}

#[test]
fn a_bridge_is_refused_and_a_node_knows_what_it_is_without_opening() {
    let machine = Machine::new("bridge", "0x060400\n");
    assert!(machine.error("0000:01:00.0").to_string().contains("it is a bridge"));
    let node = VfioNode::new("0000:01:00.0".parse().unwrap(), VfioOptions::default())
        .with_sysfs(machine.0.join("devices"));
    assert_eq!(node.identity().unwrap().to_string(), "1234:11e8");
    assert_eq!((node.name(), node.address().bus()), ("0000:01:00.0", 1));
    let absent = VfioNode::new("0000:02:00.0".parse().unwrap(), VfioOptions::default())
        .with_sysfs(machine.0.join("devices"));
    assert_eq!(absent.identity(), Err(ConfigError::DeviceGone));
}
