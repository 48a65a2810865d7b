//! Our ioat stub under vdk's driver and under Linux's.

use std::time::Duration;

use super::{IOMMUFD, TYPE1};
use crate::qemu::scene::{Scene, Stub};

/// The device that `vdk serve ioat` emulates, which is `0000:00:07.0` in the guest.
const IOAT_STUB: &[&str] = &[
    "-device",
    r#"{"driver":"vfio-user-pci","addr":"07.0","socket":{"type":"unix","path":"{folder}/ioat.sock"}}"#,
];

const IOAT_CASES: &str = r#"
check "ioat is bound to vfio-pci" give 0000:00:07.0 vfio-pci
cases conformance ioat ioat-unmapped --device 0000:00:07.0 --interface "$interface"
"#;

pub(super) const SCENES: &[Scene] = &[
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
        name: "ioatdma",
        shows: "Linux's ioatdma and dmatest judge our ioat stub",
        machine: IOAT_STUB,
        stubs: &[Stub { kind: "ioat", arguments: &[] }],
        script: include_str!("../../../qemu/scenes/ioatdma.sh"),
        takes: Duration::from_secs(35),
        ..Scene::EMPTY
    },
    Scene {
        name: "ioatdma-faults",
        shows: "Linux's ioatdma recovers when our ioat stub halts",
        machine: IOAT_STUB,
        stubs: &[Stub { kind: "ioat", arguments: &["--fault", "halt@100:0x1, drop-completion@200"] }],
        script: include_str!("../../../qemu/scenes/ioatdma-faults.sh"),
        ..Scene::EMPTY
    },
];
