//! vdk's nvme driver on QEMU's nvme.

use std::time::Duration;

use super::{IOMMUFD, TYPE1};
use crate::qemu::scene::{Drive, Kernel, Scene};

/// QEMU's nvme with one namespace, which is `0000:00:06.0` in the guest.
pub(super) const NVME: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe",
    "-device",
    "nvme,serial=vdk0,drive=disk,addr=06.0",
];

/// The same with blocks of 4096 bytes and with 4 queues.
const NVME_4K: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe",
    "-device",
    "nvme,serial=vdk0,id=controller,max_ioqpairs=4,addr=06.0",
    "-device",
    "nvme-ns,drive=disk,bus=controller,logical_block_size=4096,physical_block_size=4096",
];

/// The same as it is measured.
const NVME_BENCH: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe,aio=threads",
    "-device",
    "nvme,serial=vdk0,id=controller,addr=06.0",
    "-device",
    "nvme-ns,drive=disk,bus=controller,logical_block_size=4096,physical_block_size=4096",
];

/// The same with 512-byte blocks and a drive that serves one command a second.
const NVME_SLOW: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe,throttling.iops-total=1",
    "-device",
    "nvme,serial=vdk0,drive=disk,addr=06.0",
];

/// The same behind a port that it can be taken from; it is `0000:01:00.0` in the guest.
const NVME_PORT: &[&str] = &[
    "-drive",
    "if=none,id=disk,file={folder}/nvme.img,format=raw,cache=unsafe",
    "-device",
    "pcie-root-port,id=rp1,chassis=1,slot=1,addr=04.0",
    "-device",
    "nvme,id=nvme0,serial=vdk0,drive=disk,bus=rp1",
];

pub(super) const NVME_DRIVE: &[Drive] = &[Drive { file: "nvme.img", bytes: 32 << 20 }];

const NVME_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:00:06.0 vfio-pci
cases conformance nvme nvme-life --device 0000:00:06.0 --interface "$interface" \
    --set serial=vdk0 --set bytes=33554432 --set block="$block" --set queues="$queues"
# Only Debian's kernel puts functions to sleep.
[ ! -e /sys/bus/pci/devices/0000:00:06.0/power/runtime_status ] ||
    cases vfio-wake --device 0000:00:06.0 --interface "$interface"

holds() { # process; whether it has a VFIO device open
    ls -l "/proc/$1/fd" | grep -q 'vfio-device\|vfio/devices'
}
gives_back() {
    vdk nvme bench 0000:00:06.0 --seconds 600 --interface "$interface" >/tmp/bench 2>&1 &
    bench=$!
    await 300 holds $bench || { cat /tmp/bench; return 1; }
    echo 0000:00:06.0 >/sys/bus/pci/drivers/vfio-pci/unbind
    if wait $bench; then cat /tmp/bench; echo "the benchmark went on"; return 1; fi
    grep -q "the system asked for the device back" /tmp/bench || { cat /tmp/bench; return 1; }
    [ ! -e /sys/bus/pci/devices/0000:00:06.0/driver ]
}
check "a benchmark ends, and says why, when the system asks for the device" gives_back
"#;

const NVME_SLOW_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:00:06.0 vfio-pci
cases nvme-slow --device 0000:00:06.0 --interface "$interface"
"#;

const NVME_UNPLUG_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:01:00.0 vfio-pci
cases nvme-unplug --device 0000:01:00.0 --interface "$interface" --set unplug=nvme0
check "the function is gone" await 600 test ! -e /sys/bus/pci/devices/0000:01:00.0
"#;

/// Up to version 7.2 QEMU's nvme crashes now and then when it is reset or taken away in the
/// middle of I/O, so such scenes need a recent one.
const RESET_UNDER_LOAD: bool = true;

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "nvme-type1",
        shows: "QEMU's nvme by the group and its container",
        append: "interface=type1 block=512 queues=64",
        machine: NVME,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_CASES,
        takes: Duration::from_secs(30),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-iommufd",
        shows: "QEMU's nvme by the device file and iommufd",
        append: "interface=iommufd block=512 queues=64",
        machine: NVME,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_CASES,
        takes: Duration::from_secs(30),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-4k",
        shows: "QEMU's nvme with blocks of 4096 bytes and with 4 queues, by iommufd",
        append: "interface=iommufd block=4096 queues=4",
        machine: NVME_4K,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_CASES,
        takes: Duration::from_secs(30),
        ..Scene::EMPTY
    },
    Scene {
        name: "stock-nvme",
        shows: "QEMU's nvme under Debian's own 6.1 kernel",
        kernel: Kernel::Stock,
        append: "interface=type1 block=512 queues=64",
        machine: NVME,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_CASES,
        takes: Duration::from_secs(30),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-slow",
        shows: "commands that QEMU's nvme does not end in time are given up",
        append: TYPE1,
        machine: NVME_SLOW,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_SLOW_CASES,
        takes: Duration::from_secs(5),
        ..Scene::EMPTY
    },
    Scene {
        name: "unplug-type1",
        shows: "QEMU's nvme is taken away under load, by the group and its container",
        append: TYPE1,
        machine: NVME_PORT,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_UNPLUG_CASES,
        takes: Duration::from_secs(5),
        ..Scene::EMPTY
    },
    Scene {
        name: "unplug-iommufd",
        shows: "QEMU's nvme is taken away under load, by the device file and iommufd",
        append: IOMMUFD,
        machine: NVME_PORT,
        drives: NVME_DRIVE,
        recent: RESET_UNDER_LOAD,
        script: NVME_UNPLUG_CASES,
        takes: Duration::from_secs(5),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-linux",
        shows: "Linux's nvme driver reads what vdk writes, and the other way round",
        machine: NVME,
        drives: NVME_DRIVE,
        script: include_str!("../../../qemu/scenes/nvme-linux.sh"),
        ..Scene::EMPTY
    },
    Scene {
        name: "bench-nvme",
        shows: "vdk nvme bench beside Linux's driver with fio, measured",
        append: "interface=type1 seconds=4 nvme.poll_queues=1",
        machine: NVME_BENCH,
        drives: &[Drive { file: "nvme.img", bytes: 256 << 20 }],
        programs: &["fio", "--", "/usr/bin/fio"],
        script: include_str!("../../../qemu/scenes/bench-nvme.sh"),
        bench: true,
        ..Scene::EMPTY
    },
];
