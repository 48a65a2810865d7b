//! Every scene.

use super::scene::{Drive, Kernel, Scene};

/// QEMU's edu, which is `0000:00:05.0` in the guest.
const EDU: &[&str] = &["-device", "edu,addr=05.0"];

/// QEMU's nvme with one namespace, which is `0000:00:06.0` in the guest.
const NVME: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe",
    "-device",
    "nvme,serial=vdk0,drive=disk,addr=06.0",
];

const NVME_DRIVE: &[Drive] = &[Drive { file: "nvme.img", bytes: 64 << 20 }];

/// The interface of the kernel; words of this form become the environment of the guest's init.
const TYPE1: &str = "interface=type1";
const IOMMUFD: &str = "interface=iommufd";

const EDU_CASES: &str = r#"
check "edu is bound to vfio-pci" give 0000:00:05.0 vfio-pci
cases conformance edu edu-unmapped edu-lifecycle --device 0000:00:05.0 --interface "$interface"
"#;

const NVME_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:00:06.0 vfio-pci
cases conformance --device 0000:00:06.0 --interface "$interface"
"#;

const BIND_CASES: &str = r#"
cases bind --device 0000:00:06.0 --interface "$interface"
"#;

const BIND_MOUNTED_CASES: &str = r#"
check "the kernel's driver has the disk" await 300 test -b /dev/nvme0n1
check "a file system is on it" mkdosfs /dev/nvme0n1
mkdir -p /mnt
check "it is mounted" mount -t vfat /dev/nvme0n1 /mnt
cases bind-mounted --device 0000:00:06.0 --interface "$interface"
check "it is unmounted" umount /mnt
cases bind --device 0000:00:06.0 --interface "$interface"
"#;

/// Every scene, in the order in which they are run.
pub const SCENES: &[Scene] = &[
    Scene {
        name: "edu-type1",
        shows: "QEMU's edu by the group and its container",
        append: TYPE1,
        machine: EDU,
        script: EDU_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "edu-iommufd",
        shows: "QEMU's edu by the device file and iommufd",
        append: IOMMUFD,
        machine: EDU,
        script: EDU_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-type1",
        shows: "QEMU's nvme by the group and its container",
        append: TYPE1,
        machine: NVME,
        drives: NVME_DRIVE,
        script: NVME_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-iommufd",
        shows: "QEMU's nvme by the device file and iommufd",
        append: IOMMUFD,
        machine: NVME,
        drives: NVME_DRIVE,
        script: NVME_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "stock-edu",
        shows: "QEMU's edu under Debian's own 6.1 kernel",
        kernel: Kernel::Stock,
        append: TYPE1,
        machine: EDU,
        script: EDU_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "stock-nvme",
        shows: "QEMU's nvme under Debian's own 6.1 kernel",
        kernel: Kernel::Stock,
        append: TYPE1,
        machine: NVME,
        drives: NVME_DRIVE,
        script: NVME_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "bind-iommufd",
        shows: "vdk bind takes a disk from the kernel's nvme and gives it back",
        append: IOMMUFD,
        machine: NVME,
        drives: NVME_DRIVE,
        script: BIND_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "bind-stock",
        shows: "vdk bind on Debian's own 6.1 kernel, where it refuses a mounted disk first",
        kernel: Kernel::Stock,
        append: TYPE1,
        machine: NVME,
        drives: NVME_DRIVE,
        script: BIND_MOUNTED_CASES,
        ..Scene::EMPTY
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scenes_have_names_of_their_own_and_say_what_they_show() {
        let names: BTreeSet<&str> = SCENES.iter().map(|scene| scene.name).collect();
        assert_eq!(names.len(), SCENES.len());
        for scene in SCENES {
            assert!(
                !scene.name.is_empty() && !scene.shows.is_empty() && !scene.script.is_empty(),
                "{}",
                scene.name
            );
            let given = |file: &str| scene.machine.iter().any(|argument| argument.contains(file));
            assert!(scene.drives.iter().all(|drive| given(drive.file)), "{}", scene.name);
            assert!(scene.stubs.iter().all(|stub| given(&stub.socket())), "{}", scene.name);
        }
    }
}
