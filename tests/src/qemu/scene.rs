//! What a run of a guest consists of.

use std::time::Duration;

/// One named run of a guest.
#[derive(Clone, Copy)]
pub struct Scene {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// What it boots.
    pub kernel: Kernel,
    /// The modules that it loads, of [`Kernel::Stock`]; the other one has what it needs.
    pub modules: &'static [&'static str],
    /// Words added to the kernel's command line.
    pub append: &'static str,
    /// Arguments of QEMU beside those of every guest. `{folder}` in one is the folder of the
    /// run, where drives and sockets are.
    pub machine: &'static [&'static str],
    /// The raw files behind its block devices.
    pub drives: &'static [Drive],
    /// Emulated devices, each served by a process of its own.
    pub stubs: &'static [Stub],
    /// Whether it needs QEMU 10.1 or newer though it has no [`stubs`](Self::stubs).
    pub recent: bool,
    /// Programs of Debian packages that it needs, as `tests/qemu/programs` wants them.
    pub programs: &'static [&'static str],
    /// Whether it needs the program `verbs` of `tests/roce/verbs.c`.
    pub verbs: bool,
    /// What it does, for busybox's shell, after `tests/qemu/init`.
    pub script: &'static str,
    /// About how long it takes: the longest are begun first.
    pub takes: Duration,
    /// How long it may take.
    pub limit: Duration,
    /// Whether it measures instead of testing: it is run by name only, with no other beside it.
    pub bench: bool,
}

/// A kernel to boot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The one of `tests/qemu/kernel`.
    Own,
    /// Debian's 6.1, of `tests/qemu/stock-kernel`.
    Stock,
}

/// A raw file of zeros.
#[derive(Clone, Copy)]
pub struct Drive {
    /// Its name in the folder of the run.
    pub file: &'static str,
    /// Its size in bytes.
    pub bytes: u64,
}

/// An emulated device behind a socket.
#[derive(Clone, Copy)]
pub struct Stub {
    /// Which: `edu`, `ioat`, `nvme`.
    pub kind: &'static str,
    /// Further arguments of `vdk serve`, with `{folder}` as in those of QEMU.
    pub arguments: &'static [&'static str],
}

impl Stub {
    /// The name of its socket in the folder of the run.
    #[must_use]
    pub fn socket(&self) -> String {
        format!("{}.sock", self.kind)
    }
}

impl Scene {
    /// A scene that boots [`Kernel::Own`] and has nothing yet; for use in a table.
    pub const EMPTY: Self = Self {
        name: "",
        shows: "",
        kernel: Kernel::Own,
        modules: &["vfio-iommu-type1", "vfio-pci", "nvme", "ioatdma", "nls_cp437", "nls_ascii", "vfat"],
        append: "",
        machine: &[],
        drives: &[],
        stubs: &[],
        recent: false,
        programs: &[],
        verbs: false,
        script: "",
        takes: Duration::from_secs(20),
        limit: Duration::from_secs(600),
        bench: false,
    };
}
