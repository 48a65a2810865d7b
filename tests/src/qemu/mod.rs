//! Guests of QEMU, run from the host.
//!
//! A [`Scene`] is one named run: a kernel, the devices, a script for the guest. `vdk-qemu`
//! runs scenes by name, several at a time; `tests/run --guest NAME` is the way to it for a person.
//!
//! A guest has two serial ports. The first is its console, kept in a file and shown when
//! something fails. On the second it tells results, one a line, and asks for what only the
//! host can do: see [`crate::guest`].

mod captures;
mod folders;
mod initramfs;
mod jobs;
mod machine;
mod monitor;
mod peer;
mod provision;
mod scene;
mod scenes;

pub use folders::{keep_folder, remove_abandoned, run_folder};
pub use initramfs::Initramfs;
pub use jobs::in_parallel;
pub use machine::{Outcome, Verdict, console, run};
pub use provision::{Provision, binaries};
pub use scene::{Drive, Kernel, Scene, Stub};
pub use scenes::scenes;
