//! What every PCI function must do, whatever is behind it.
//!
//! The suite takes any [`PciNode`] and needs to know nothing about the device: an
//! emulated one, one behind a socket, or hardware. [`CHECKS`] are run one by one, each on a
//! function that it opens itself and closes again.

mod bars;
mod config;
mod dma;
mod interrupts;
mod life;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use vdk_hal::function::{PciFunction, PciNode};

/// One requirement: its name, as a sentence, and what looks whether it is met.
pub type Check = (&'static str, fn(&Target) -> Result<()>);

/// The function under test.
pub struct Target {
    node: Arc<dyn PciNode>,
}

impl Target {
    /// The suite on `node`, which nobody has open.
    #[must_use]
    pub fn new(node: Arc<dyn PciNode>) -> Self {
        Self { node }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &dyn PciNode {
        &*self.node
    }

    /// Opens the function.
    ///
    /// # Errors
    ///
    /// Why it was not opened.
    pub fn open(&self) -> Result<Arc<dyn PciFunction>> {
        self.node.open().with_context(|| format!("open {}", self.node.name()))
    }

    /// Runs every check; gives the names of those that failed, and why.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        CHECKS
            .iter()
            .filter_map(|(name, check)| check(self).err().map(|error| format!("{name}: {error:#}")))
            .collect()
    }
}

/// Every check, in the order in which it is run.
pub const CHECKS: &[Check] = &[
    ("an open function is not opened again", life::exclusive),
    ("identity is the same before and after opening", life::identity),
    ("bus mastering is off after opening, and off again after closing", life::bus_master),
    ("every handle of a closed function answers not open", life::closed),
    ("closing twice and dropping after closing are harmless", life::closed_twice),
    ("a reset turns memory and bus mastering off, and other kinds are refused", life::reset),
    ("opening and closing leaves no file open", life::files),
    ("a function begins without events", life::events),
    ("configuration space reads the same in every width", config::widths),
    ("misaligned and outside accesses of configuration space are refused", config::refusals),
    ("a write of Command leaves Status alone", config::command),
    ("capability lists end and every capability can be read", config::capabilities),
    ("BARs have sizes that are powers of two, and upper halves are none", bars::sizes),
    ("BARs that are not there are absent", bars::absent),
    ("accesses outside a BAR and off their alignment are refused", bars::refusals),
    ("mapped areas lie inside their BAR and apart", bars::areas),
    ("vectors are as many as the capabilities say", interrupts::counts),
    ("a vector signals its own event and no other", interrupts::vectors),
    ("disabling signals nothing and can be repeated", interrupts::disable),
    ("a detached vector signals nothing", interrupts::detach),
    ("kinds that are absent, in use or not enabled are refused", interrupts::refusals),
    ("usable address ranges are in order and apart", dma::geometry),
    ("a mapping ends exactly once and with its size", dma::life_of_a_mapping),
    ("overlapping, misaligned and outside mappings are refused and change nothing", dma::refusals),
];

/// Asserts that a call failed, and that its error is of the expected kind.
macro_rules! ensure_error {
    ($call:expr, $pattern:pat) => {
        match $call {
            Err($pattern) => {}
            Err(other) => anyhow::bail!("{} failed with {other:?}", stringify!($call)),
            Ok(_) => anyhow::bail!("{} succeeded", stringify!($call)),
        }
    };
}
pub(crate) use ensure_error;

/// How many files this process has open.
fn open_files() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd").context("count the open files")?.count())
}

/// Asserts that two values are equal, naming them.
fn ensure_equal<T: PartialEq + std::fmt::Debug>(what: &str, left: T, right: T) -> Result<()> {
    ensure!(left == right, "{what}: {left:?} is not {right:?}");
    Ok(())
}
