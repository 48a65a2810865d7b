//! QEMU's edu and ours.

use super::{IOMMUFD, TYPE1};
use crate::qemu::scene::{Kernel, Scene, Stub};

/// QEMU's edu, which is `0000:00:05.0` in the guest.
const EDU: &[&str] = &["-device", "edu,addr=05.0"];

/// The device that `vdk serve edu` emulates, which is `0000:00:05.0` in the guest.
const EDU_STUB: &[&str] = &[
    "-device",
    r#"{"driver":"vfio-user-pci","addr":"05.0","socket":{"type":"unix","path":"{folder}/edu.sock"}}"#,
];

const EDU_CASES: &str = r#"
check "edu is bound to vfio-pci" give 0000:00:05.0 vfio-pci
cases conformance edu edu-line edu-unmapped edu-lifecycle --device 0000:00:05.0 --interface "$interface"
"#;

pub(super) const SCENES: &[Scene] = &[
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
        name: "stock-edu",
        shows: "QEMU's edu under Debian's own 6.1 kernel",
        kernel: Kernel::Stock,
        append: TYPE1,
        machine: EDU,
        script: EDU_CASES,
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
];
