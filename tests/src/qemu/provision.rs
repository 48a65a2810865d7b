//! What guests are made of: kernels, QEMU, static binaries.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::scene::{Kernel, Scene};
use crate::sources;

/// The files that a guest boots and QEMU itself.
pub struct Provision {
    /// The kernel image.
    pub kernel: PathBuf,
    /// A folder of modules to load, in the order of their names.
    pub modules: Option<PathBuf>,
    /// The command that runs QEMU.
    pub emulator: PathBuf,
    /// The static busybox.
    pub busybox: PathBuf,
    /// The folder with the static `vdk` and `vdk-guest`.
    pub binaries: PathBuf,
    /// Folders that are copied into the root of the guest.
    pub programs: Vec<PathBuf>,
}

impl Provision {
    /// Finds, builds or installs what a scene needs.
    ///
    /// # Errors
    ///
    /// What is missing, and what to install.
    pub fn new(scene: &Scene, binaries: &Path) -> Result<Self> {
        let (kernel, modules) = match scene.kernel {
            Kernel::Own => (script("kernel", &[])?, None),
            Kernel::Stock => {
                let folder = script("stock-kernel", scene.modules)?;
                (folder.join("vmlinuz"), Some(folder.join("modules")))
            }
        };
        let recent = scene.recent || !scene.stubs.is_empty();
        let device: &[&str] = if recent { &["vfio-user-pci"] } else { &[] };
        let emulator = script("emulator", device)?;
        let busybox = busybox()?;
        let mut programs = match scene.programs {
            [] => Vec::new(),
            names => vec![script("programs", names)?],
        };
        if scene.verbs {
            programs.push(script("verbs", &[])?);
        }
        Ok(Self { kernel, modules, emulator, busybox, binaries: binaries.to_owned(), programs })
    }
}

/// Builds the static binaries; gives the folder that they are in.
///
/// # Errors
///
/// When the build fails.
pub fn binaries() -> Result<PathBuf> {
    let root = sources::root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = target.join("guest");
    // With a target named, so that build scripts and macros are not linked statically too.
    let triple = "x86_64-unknown-linux-gnu";
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked", "--quiet", "--profile", "guest", "--target", triple])
        .args(["--package", "vdk", "--package", "vdk-tests", "--bin", "vdk", "--bin", "vdk-guest"])
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the static binaries were not built");
    Ok(target.join(triple).join("guest"))
}

/// Runs a script of `tests/qemu`, which prints a path.
fn script(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let path = sources::root().join("tests/qemu").join(name);
    let output = Command::new(&path)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    ensure!(output.status.success(), "tests/qemu/{name} ended with {}", output.status);
    let text = String::from_utf8(output.stdout).context("a path that is not text")?;
    Ok(PathBuf::from(text.trim_end()))
}

/// The busybox of Debian's package busybox-static: the ordinary one would need libraries.
fn busybox() -> Result<PathBuf> {
    let path = sources::root().join("tests/qemu/packages");
    let why = "the shell of the guests";
    let status = Command::new(&path).args([why, "busybox-static"]).status()?;
    if !status.success() {
        bail!("the guests have no shell");
    }
    let found = ["/bin/busybox", "/usr/bin/busybox"].iter().map(PathBuf::from).find(|path| path.exists());
    found.context("busybox-static is installed but /bin/busybox is not there")
}
