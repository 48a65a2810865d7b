//! Every scene.

use std::time::Duration;

use super::roce;
use super::scene::{Drive, Kernel, Scene, Stub};

/// QEMU's edu, which is `0000:00:05.0` in the guest.
const EDU: &[&str] = &["-device", "edu,addr=05.0"];

/// QEMU's nvme with one namespace, which is `0000:00:06.0` in the guest.
const NVME: &[&str] = &[
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

/// Both, with room for 1 GiB of mappings, and an edu behind a port, `0000:01:00.0`.
const VFIO: &[&str] = &[
    "-m",
    "3G",
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

const NVME_DRIVE: &[Drive] = &[Drive { file: "nvme.img", bytes: 32 << 20 }];

/// The device that `vdk serve ioat` emulates, which is `0000:00:07.0` in the guest.
const IOAT_STUB: &[&str] = &[
    "-device",
    r#"{"driver":"vfio-user-pci","addr":"07.0","socket":{"type":"unix","path":"{folder}/ioat.sock"}}"#,
];

/// The device that `vdk serve edu` emulates, which is `0000:00:05.0` in the guest.
const EDU_STUB: &[&str] = &[
    "-device",
    r#"{"driver":"vfio-user-pci","addr":"05.0","socket":{"type":"unix","path":"{folder}/edu.sock"}}"#,
];

/// The device that `vdk serve nvme` emulates, which is `0000:00:08.0` in the guest; its blocks
/// are in a file of the host.
const NVME_STUB: &[&str] = &[
    "-device",
    r#"{"driver":"vfio-user-pci","addr":"08.0","socket":{"type":"unix","path":"{folder}/nvme.sock"}}"#,
];

const NVME_STUB_DRIVE: &[Drive] = &[Drive { file: "stub.img", bytes: 64 << 20 }];

/// The interface of the kernel; words of this form become the environment of the guest's init.
const TYPE1: &str = "interface=type1";
const IOMMUFD: &str = "interface=iommufd";

const EDU_CASES: &str = r#"
check "edu is bound to vfio-pci" give 0000:00:05.0 vfio-pci
cases conformance edu edu-unmapped edu-lifecycle --device 0000:00:05.0 --interface "$interface"
"#;

const NVME_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:00:06.0 vfio-pci
cases conformance nvme nvme-life --device 0000:00:06.0 --interface "$interface" \
    --set serial=vdk0 --set bytes=33554432 --set block="$block" --set queues="$queues"
"#;

const VFIO_CASES: &str = r#"
for function in 0000:00:05.0 0000:00:06.0 0000:01:00.0; do
    check "$function is bound to vfio-pci" give $function vfio-pci
done
cases vfio-open vfio-regions vfio-busy vfio-kill vfio-unbind vfio-power vfio-share vfio-leave vfio-user vfio-map \
    --device 0000:00:05.0 --interface "$interface" --set other=0000:00:06.0 --set mebibytes=1024
cases vfio-open vfio-regions vfio-power vfio-leave --device 0000:00:06.0 --interface "$interface"
cases conformance vfio-unplug --device 0000:01:00.0 --interface "$interface" --set id=edu0
"#;

const NVME_SLOW_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:00:06.0 vfio-pci
cases nvme-slow --device 0000:00:06.0 --interface "$interface"
"#;

const NVME_UNPLUG_CASES: &str = r#"
check "nvme is bound to vfio-pci" give 0000:01:00.0 vfio-pci
cases nvme-unplug --device 0000:01:00.0 --interface "$interface" --set unplug=nvme0
check "the function is gone" await 100 test ! -e /sys/bus/pci/devices/0000:01:00.0
"#;

const IOAT_CASES: &str = r#"
check "ioat is bound to vfio-pci" give 0000:00:07.0 vfio-pci
cases conformance ioat ioat-unmapped --device 0000:00:07.0 --interface "$interface"
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

/// Commands are counted over all queues, those of the probe included.
const NVME_FAULTS: &str = "drop-completion@120, fail@250:0x281, halt@400:1, delay-completion@600:100ms";

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
        name: "vfio-type1",
        shows: "two processes, a plain user, unbinding, unplugging, sharing; by the group",
        append: "interface=type1 hugepages=520",
        machine: VFIO,
        drives: NVME_DRIVE,
        script: VFIO_CASES,
        limit: Duration::from_secs(420),
        ..Scene::EMPTY
    },
    Scene {
        name: "vfio-iommufd",
        shows: "two processes, a plain user, unbinding, unplugging, sharing; by iommufd",
        append: "interface=iommufd hugepages=520",
        machine: VFIO,
        drives: NVME_DRIVE,
        script: VFIO_CASES,
        limit: Duration::from_secs(420),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-type1",
        shows: "QEMU's nvme by the group and its container",
        append: "interface=type1 block=512 queues=64",
        machine: NVME,
        drives: NVME_DRIVE,
        script: NVME_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-iommufd",
        shows: "QEMU's nvme by the device file and iommufd",
        append: "interface=iommufd block=512 queues=64",
        machine: NVME,
        drives: NVME_DRIVE,
        script: NVME_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-4k",
        shows: "QEMU's nvme with blocks of 4096 bytes and with 4 queues, by iommufd",
        append: "interface=iommufd block=4096 queues=4",
        machine: NVME_4K,
        drives: NVME_DRIVE,
        // QEMU 7.2 crashes when such a controller is reset in the middle of I/O.
        recent: true,
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
        append: "interface=type1 block=512 queues=64",
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
    Scene {
        name: "ioat-type1",
        shows: "our ioat stub by vfio-user, by the group and its container",
        append: TYPE1,
        machine: IOAT_STUB,
        stubs: &[Stub { kind: "ioat", arguments: &[] }],
        script: IOAT_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "ioat-iommufd",
        shows: "our ioat stub by vfio-user, by the device file and iommufd",
        append: IOMMUFD,
        machine: IOAT_STUB,
        stubs: &[Stub { kind: "ioat", arguments: &[] }],
        script: IOAT_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "edu-stub-type1",
        shows: "our edu stub by vfio-user, by the group and its container",
        append: TYPE1,
        machine: EDU_STUB,
        stubs: &[Stub { kind: "edu", arguments: &[] }],
        script: EDU_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "ioatdma",
        shows: "Linux's ioatdma and dmatest judge our ioat stub",
        machine: IOAT_STUB,
        stubs: &[Stub { kind: "ioat", arguments: &[] }],
        script: include_str!("../../qemu/scenes/ioatdma.sh"),
        limit: Duration::from_secs(600),
        ..Scene::EMPTY
    },
    Scene {
        name: "ioatdma-faults",
        shows: "Linux's ioatdma recovers when our ioat stub halts",
        machine: IOAT_STUB,
        stubs: &[Stub { kind: "ioat", arguments: &["--fault", "halt@100:0x1, drop-completion@200"] }],
        script: include_str!("../../qemu/scenes/ioatdma-faults.sh"),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-slow",
        shows: "commands that QEMU's nvme does not end in time are given up",
        append: TYPE1,
        machine: NVME_SLOW,
        drives: NVME_DRIVE,
        script: NVME_SLOW_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "unplug-type1",
        shows: "QEMU's nvme is taken away under load, by the group and its container",
        append: TYPE1,
        machine: NVME_PORT,
        drives: NVME_DRIVE,
        script: NVME_UNPLUG_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "unplug-iommufd",
        shows: "QEMU's nvme is taken away under load, by the device file and iommufd",
        append: IOMMUFD,
        machine: NVME_PORT,
        drives: NVME_DRIVE,
        script: NVME_UNPLUG_CASES,
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-linux",
        shows: "Linux's nvme driver reads what vdk writes, and the other way round",
        machine: NVME,
        drives: NVME_DRIVE,
        script: include_str!("../../qemu/scenes/nvme-linux.sh"),
        ..Scene::EMPTY
    },
    Scene {
        name: "bench-nvme",
        shows: "vdk nvme bench beside Linux's driver with fio, measured",
        append: "interface=type1 seconds=4 nvme.poll_queues=1",
        machine: NVME_BENCH,
        drives: &[Drive { file: "nvme.img", bytes: 256 << 20 }],
        programs: &["fio", "--", "/usr/bin/fio"],
        script: include_str!("../../qemu/scenes/bench-nvme.sh"),
        bench: true,
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-stub",
        shows: "Linux's nvme judges our nvme stub",
        machine: NVME_STUB,
        drives: NVME_STUB_DRIVE,
        stubs: &[Stub { kind: "nvme", arguments: &["--disk", "{folder}/stub.img"] }],
        programs: &["fio", "--", "/usr/bin/fio"],
        script: include_str!("../../qemu/scenes/nvme-stub.sh"),
        limit: Duration::from_secs(300),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-stub-faults",
        shows: "Linux's nvme recovers when our nvme stub loses completions, fails and halts",
        append: "nvme_core.io_timeout=3 nvme_core.admin_timeout=3",
        machine: NVME_STUB,
        drives: NVME_STUB_DRIVE,
        stubs: &[Stub { kind: "nvme", arguments: &["--disk", "{folder}/stub.img", "--fault", NVME_FAULTS] }],
        script: include_str!("../../qemu/scenes/nvme-stub-faults.sh"),
        limit: Duration::from_secs(300),
        ..Scene::EMPTY
    },
    roce::PINGPONG,
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
            let given = |file: &str| {
                let stubs = scene.stubs.iter().flat_map(|stub| stub.arguments);
                scene.machine.iter().chain(stubs).any(|argument| argument.contains(file))
            };
            assert!(scene.drives.iter().all(|drive| given(drive.file)), "{}", scene.name);
            assert!(scene.stubs.iter().all(|stub| given(&stub.socket())), "{}", scene.name);
        }
    }
}
