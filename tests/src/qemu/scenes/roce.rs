//! Scenes with Linux's `rdma_rxe` at one end of a wire and vdk at the other.

use std::time::Duration;

use crate::qemu::scene::Scene;

/// A port on the wire, `eth0` in the guest, with room for a path MTU of 4096, and one that
/// carries TCP between the guest and the host, `eth1`; then further devices.
macro_rules! network {
    ($($more:literal),*) => {
        &[
            "-netdev",
            "stream,id=wire,server=on,addr.type=unix,addr.path={wire}",
            "-device",
            "virtio-net-pci,netdev=wire,addr=0a.0,mac=52:54:00:00:00:01,host_mtu=4200,romfile=",
            "-netdev",
            "user,id=tcp,hostfwd=tcp:127.0.0.1:{guest}-10.0.2.15:18515",
            "-device",
            "virtio-net-pci,netdev=tcp,addr=0b.0,romfile=",
            $($more),*
        ]
    };
}

const NETWORK: &[&str] = network!();

/// A port on a wire of each other kind that QEMU has: `eth2` to `eth4`.
const WIRES: &[&str] = network!(
    "-netdev",
    "stream,id=wire2,server=on,addr.type=inet,addr.host=127.0.0.1,addr.port={tcp}",
    "-device",
    "virtio-net-pci,netdev=wire2,addr=0c.0,mac=52:54:00:00:00:02,host_mtu=4200,romfile=",
    "-netdev",
    "dgram,id=wire3,local.type=inet,local.host=127.0.0.1,local.port={udp},remote.type=inet,\
     remote.host=127.0.0.1,remote.port={udp-peer}",
    "-device",
    "virtio-net-pci,netdev=wire3,addr=0d.0,mac=52:54:00:00:00:03,host_mtu=4200,romfile=",
    "-netdev",
    "dgram,id=wire4,local.type=unix,local.path={wire}.qemu,remote.type=unix,remote.path={wire}.vdk",
    "-device",
    "virtio-net-pci,netdev=wire4,addr=0e.0,mac=52:54:00:00:00:04,host_mtu=4200,romfile="
);

/// The tools of Linux with what makes them work on rxe.
const TOOLS: &[&str] = &[
    "perftest",
    "ibverbs-utils",
    "ibverbs-providers",
    "iproute2",
    "--",
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_read_bw",
    "/usr/bin/ib_send_bw",
    "/usr/bin/ib_atomic_bw",
    "/usr/bin/ib_write_lat",
    "/usr/bin/ib_send_lat",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/ibv_uc_pingpong",
    "/usr/bin/ibv_ud_pingpong",
    "/usr/bin/rdma",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
    "/etc/libibverbs.d/rxe.driver",
];

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "rxe-pingpong",
        shows: "Linux's rxe and ibv_*_pingpong with vdk at the other end of each kind of wire",
        machine: WIRES,
        programs: TOOLS,
        script: concat!(
            include_str!("../../../qemu/scenes/rxe.sh"),
            include_str!("../../../qemu/scenes/rxe-pingpong.sh")
        ),
        takes: Duration::from_secs(110),
        limit: Duration::from_secs(600),
        ..Scene::EMPTY
    },
    Scene {
        name: "rxe-perftest",
        shows: "Linux's rxe and perftest with vdk at the other end of the wire, the data compared",
        machine: NETWORK,
        programs: TOOLS,
        script: concat!(
            include_str!("../../../qemu/scenes/rxe.sh"),
            include_str!("../../../qemu/scenes/rxe-perftest.sh")
        ),
        takes: Duration::from_secs(120),
        limit: Duration::from_secs(600),
        ..Scene::EMPTY
    },
    Scene {
        name: "rxe-faults",
        shows: "the same on a wire that loses, doubles, swaps and damages frames, and rxe's counters",
        machine: NETWORK,
        programs: TOOLS,
        script: concat!(
            include_str!("../../../qemu/scenes/rxe.sh"),
            include_str!("../../../qemu/scenes/rxe-faults.sh")
        ),
        takes: Duration::from_secs(120),
        limit: Duration::from_secs(600),
        ..Scene::EMPTY
    },
    Scene {
        name: "bench-roce",
        shows: "rxe to rxe by perftest beside vdk to vdk, in one guest, measured",
        machine: NETWORK,
        programs: TOOLS,
        script: concat!(
            include_str!("../../../qemu/scenes/rxe.sh"),
            include_str!("../../../qemu/scenes/bench-roce.sh")
        ),
        takes: Duration::from_secs(120),
        limit: Duration::from_secs(600),
        bench: true,
        ..Scene::EMPTY
    },
];
