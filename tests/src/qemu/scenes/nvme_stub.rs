//! Our nvme stub under Linux's driver.

use std::time::Duration;

use crate::qemu::scene::{Drive, Scene, Stub};

/// The device that `vdk serve nvme` emulates, which is `0000:00:08.0` in the guest; its blocks
/// are in a file of the host.
const NVME_STUB: &[&str] = &[
    "-device",
    r#"{"driver":"vfio-user-pci","addr":"08.0","socket":{"type":"unix","path":"{folder}/nvme.sock"}}"#,
];

const NVME_STUB_DRIVE: &[Drive] = &[Drive { file: "stub.img", bytes: 32 << 20 }];

/// Commands are counted over all queues, those of the probe included.
const NVME_FAULTS: &str = "drop-completion@120, fail@250:0x281, halt@400:1, delay-completion@600:100ms";

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "nvme-stub",
        shows: "Linux's nvme judges our nvme stub",
        machine: NVME_STUB,
        drives: NVME_STUB_DRIVE,
        stubs: &[Stub { kind: "nvme", arguments: &["--disk", "{folder}/stub.img"] }],
        programs: &["fio", "--", "/usr/bin/fio"],
        script: include_str!("../../../qemu/scenes/nvme-stub.sh"),
        takes: Duration::from_secs(30),
        ..Scene::EMPTY
    },
    Scene {
        name: "nvme-stub-faults",
        shows: "Linux's nvme recovers when our nvme stub loses completions, fails and halts",
        append: "nvme_core.io_timeout=3 nvme_core.admin_timeout=3",
        machine: NVME_STUB,
        drives: NVME_STUB_DRIVE,
        stubs: &[Stub { kind: "nvme", arguments: &["--disk", "{folder}/stub.img", "--fault", NVME_FAULTS] }],
        script: include_str!("../../../qemu/scenes/nvme-stub-faults.sh"),
        ..Scene::EMPTY
    },
];
