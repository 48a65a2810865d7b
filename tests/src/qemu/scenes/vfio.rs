//! Who has a function: processes, users, drivers, the host.

use std::time::Duration;

use super::nvme::{NVME, NVME_DRIVE};
use super::{IOMMUFD, TYPE1};
use crate::qemu::scene::{Drive, Kernel, Scene};

/// Both, and an edu behind a port, `0000:01:00.0`; an IOMMU of 39 address bits.
const VFIO: &[&str] = &[
    "-global",
    "intel-iommu.aw-bits=39",
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

/// Behind ports: an e1000e and an edu that are one device, an igb, and two nvme. The kernel
/// asks a port for its link only above 5 GT/s, and QEMU's says that it has none.
const VFIO_RESET: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe",
    "-drive",
    "if=none,id=other,file={folder}/other.img,format=raw,cache=unsafe",
    "-device",
    "pcie-root-port,id=rp1,chassis=1,slot=1,addr=10.0,x-speed=5",
    "-device",
    "e1000e,bus=rp1,addr=00.0,multifunction=on,romfile=",
    "-device",
    "edu,bus=rp1,addr=00.1",
    // A slot has the functions of one device only, and virtual functions look like others.
    "-device",
    "pcie-root-port,id=rp2,chassis=2,slot=2,addr=11.0,x-speed=5,hotplug=off",
    "-device",
    "igb,bus=rp2,romfile=",
    "-device",
    "pcie-root-port,id=rp3,chassis=3,slot=3,addr=12.0,x-speed=5",
    "-device",
    "nvme,serial=vdk0,drive=disk,bus=rp3",
    "-device",
    "pcie-root-port,id=rp4,chassis=4,slot=4,addr=13.0",
    "-device",
    "nvme,serial=vdk1,drive=other,bus=rp4",
];

const VFIO_RESET_DRIVES: &[Drive] =
    &[Drive { file: "nvme.img", bytes: 32 << 20 }, Drive { file: "other.img", bytes: 32 << 20 }];

const VFIO_CASES: &str = r#"
for function in 0000:00:05.0 0000:00:06.0 0000:01:00.0; do
    check "$function is bound to vfio-pci" give $function vfio-pci
done
cases vfio-open vfio-regions vfio-busy vfio-kill vfio-unbind vfio-power vfio-share vfio-drivers vfio-leave vfio-user \
    vfio-map --device 0000:00:05.0 --interface "$interface" --set other=0000:00:06.0 --set mebibytes=128
cases vfio-open vfio-regions vfio-power vfio-leave vfio-width --device 0000:00:06.0 --interface "$interface" \
    --set width=39
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
check "the kernel's driver has the disk" await 600 test -b /dev/nvme0n1
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
        name: "reset-type1",
        shows: "hot resets, errors of ports, virtual functions; by the group",
        append: "interface=type1 vfio_pci.enable_sriov=1",
        machine: VFIO_RESET,
        drives: VFIO_RESET_DRIVES,
        recent: true,
        script: include_str!("../../../qemu/scenes/vfio-reset.sh"),
        takes: Duration::from_secs(40),
        ..Scene::EMPTY
    },
    Scene {
        name: "reset-iommufd",
        shows: "hot resets, errors of ports, virtual functions; by iommufd",
        append: "interface=iommufd vfio_pci.enable_sriov=1",
        machine: VFIO_RESET,
        drives: VFIO_RESET_DRIVES,
        recent: true,
        script: include_str!("../../../qemu/scenes/vfio-reset.sh"),
        takes: Duration::from_secs(40),
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
