//! Who has a function: processes, users, drivers, the host.

use std::time::Duration;

use super::nvme::{NVME, NVME_DRIVE};
use super::{IOMMUFD, TYPE1};
use crate::qemu::scene::{Kernel, Scene};

/// Both, and an edu behind a port, `0000:01:00.0`.
const VFIO: &[&str] = &[
    "-device",
    "edu,addr=05.0",
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe",
    "-device",
    "nvme,serial=vdk0,drive=disk,addr=06.0",
    "-device",
    "pcie-root-port,id=rp1,chassis=1,slot=1,addr=04.0",
    "-device",
    "edu,id=edu0,bus=rp1",
];

const VFIO_CASES: &str = r#"
for function in 0000:00:05.0 0000:00:06.0 0000:01:00.0; do
    check "$function is bound to vfio-pci" give $function vfio-pci
done
cases vfio-open vfio-regions vfio-busy vfio-kill vfio-unbind vfio-power vfio-share vfio-leave vfio-user vfio-map \
    --device 0000:00:05.0 --interface "$interface" --set other=0000:00:06.0 --set mebibytes=128
cases vfio-open vfio-regions vfio-power vfio-leave --device 0000:00:06.0 --interface "$interface"
cases conformance vfio-unplug --device 0000:01:00.0 --interface "$interface" --set id=edu0
"#;

/// An edu, with room for 1 GiB of mappings on each kind of page.
const ROOMY: &[&str] = &["-m", "3G", "-device", "edu,addr=05.0"];

const MAP_CASES: &str = r#"
check "edu is bound to vfio-pci" give 0000:00:05.0 vfio-pci
for interface in type1 iommufd; do
    cases vfio-map --device 0000:00:05.0 --interface $interface --set mebibytes=1024
done
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

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "vfio-type1",
        shows: "two processes, a plain user, unbinding, unplugging, sharing; by the group",
        append: "interface=type1 hugepages=72",
        machine: VFIO,
        drives: NVME_DRIVE,
        script: VFIO_CASES,
        takes: Duration::from_secs(25),
        ..Scene::EMPTY
    },
    Scene {
        name: "vfio-iommufd",
        shows: "two processes, a plain user, unbinding, unplugging, sharing; by iommufd",
        append: "interface=iommufd hugepages=72",
        machine: VFIO,
        drives: NVME_DRIVE,
        script: VFIO_CASES,
        takes: Duration::from_secs(25),
        ..Scene::EMPTY
    },
    Scene {
        name: "bind-iommufd",
        shows: "vdk bind takes a disk from the kernel's nvme and gives it back",
        append: IOMMUFD,
        machine: NVME,
        drives: NVME_DRIVE,
        script: BIND_CASES,
        takes: Duration::from_secs(10),
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
        takes: Duration::from_secs(10),
        ..Scene::EMPTY
    },
    Scene {
        name: "bench-map",
        shows: "1 GiB is mapped and unmapped on both kinds of page and by both interfaces, measured",
        append: "hugepages=520",
        machine: ROOMY,
        script: MAP_CASES,
        bench: true,
        ..Scene::EMPTY
    },
];
