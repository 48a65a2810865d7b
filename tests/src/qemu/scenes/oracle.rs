//! The fault oracle of RoCE, with Linux's `rdma_rxe` in the guest.

use std::time::Duration;

use crate::qemu::scene::{Kernel, Scene};

/// A port on the wire, `eth0` in the guest, with room for a path MTU of 4096, and a line to the
/// program `verbs`. Its station is [`crate::oracle::GUEST`].
const MACHINE: &[&str] = &[
    "-netdev",
    "stream,id=wire,server=on,addr.type=unix,addr.path={wire}",
    "-device",
    "virtio-net-pci,netdev=wire,addr=0a.0,mac=52:54:00:00:00:01,host_mtu=4200,romfile=",
    "-chardev",
    "socket,id=verbs,path={folder}/verbs.sock,server=on,wait=off",
    "-device",
    "virtio-serial-pci,addr=0b.0",
    "-device",
    "virtserialport,chardev=verbs,name=verbs",
];

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "rxe-oracle",
        shows: "32 faults and more between vdk and Linux's rxe, each of them as requester",
        machine: MACHINE,
        verbs: true,
        script: include_str!("../../../qemu/scenes/rxe-oracle.sh"),
        takes: Duration::from_secs(60),
        ..Scene::EMPTY
    },
    Scene {
        name: "rxe-oracle-stock",
        shows: "the same faults with the rxe of Debian's own 6.1 kernel",
        kernel: Kernel::Stock,
        modules: &[
            "virtio_pci",
            "virtio_net",
            "virtio_console",
            "crc32_generic",
            "crc32c_generic",
            "rdma_rxe",
        ],
        append: "oracle=rows",
        machine: MACHINE,
        verbs: true,
        script: include_str!("../../../qemu/scenes/rxe-oracle.sh"),
        takes: Duration::from_secs(40),
        ..Scene::EMPTY
    },
];
