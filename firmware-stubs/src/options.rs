//! How an emulated device is built, and why it was not.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use vdk_hal::address::Bdf;
use vdk_iommu::soft::{SoftDomain, SoftIommu};

use crate::fault::FaultPlan;

/// How an emulated device is built. Every field has a sensible default.
#[derive(Clone, Debug)]
pub struct StubOptions {
    /// Where it sits.
    pub address: Bdf,
    /// The IOMMU in front of it; `None` makes one of its own.
    pub iommu: Option<Arc<SoftIommu>>,
    /// The address space of its DMA, to share one with other functions. `None` gives each
    /// session an empty one of its own.
    pub domain: Option<Arc<SoftDomain>>,
    /// What goes wrong, and when.
    pub fault_plan: FaultPlan,
    /// The seed of what is random in the fault plan, and part of the serial number.
    pub seed: u64,
    /// How long the device thread looks for more work before it sleeps. On a machine with
    /// one processor it never waits like this.
    pub spin: Duration,
    /// The processor that the device thread is pinned to, for measurements. One that does
    /// not exist is ignored, with a warning.
    pub cpu: Option<usize>,
    /// Whether doorbells are mapped memory. Where not, every access is trapped, as over a
    /// socket.
    pub mapped_doorbells: bool,
    /// Whether MSI-X vectors cannot be added once some are enabled, as with old kernels.
    pub fixed_vectors: bool,
    /// Whether the function keeps its state from D3hot to D0, so that there is no
    /// power-management reset.
    pub no_soft_reset: bool,
    /// How many channels an ioat has, 1 to 4.
    pub channels: u8,
    /// The largest transfer of one ioat descriptor as a power of two, 12 to 31.
    pub transfer_cap_log2: u8,
    /// How many address bits an edu drives in DMA, 12 to 64.
    pub address_bits: u8,
    /// How long an edu takes for a DMA transfer. QEMU's takes 100 ms.
    pub transfer_time: Duration,
    /// The namespaces of an nvme, 1 to 64; the first has the id 1.
    pub namespaces: Vec<NamespaceOptions>,
    /// How many pairs of I/O queues an nvme has, 1 to 64.
    pub queue_pairs: u16,
    /// How many entries an I/O queue of an nvme can have, 2 to 65536.
    pub queue_entries: u32,
    /// The longest transfer of one nvme command as a power of two, 13 to 20.
    pub max_transfer_log2: u8,
    /// How long an nvme tells its driver to wait for it to start or stop (CAP.TO): 500 ms to
    /// 127.5 s, rounded up to 500 ms.
    pub ready_timeout: Duration,
}

/// A namespace of an nvme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceOptions {
    /// How many bytes it has, a multiple of 4096. With a file, zero takes the file's size.
    pub bytes: u64,
    /// The size of a block after a reset: 512 or 4096. Format NVM can change it.
    pub block_size: u32,
    /// The file that keeps the blocks; `None` for memory that begins as zeros and lasts as
    /// long as the node. The file must be there, and be as long as the namespace.
    pub file: Option<PathBuf>,
}

impl Default for NamespaceOptions {
    /// 64 MiB of memory in blocks of 512 bytes.
    fn default() -> Self {
        Self { bytes: 64 << 20, block_size: 512, file: None }
    }
}

impl Default for StubOptions {
    fn default() -> Self {
        Self {
            address: Bdf::default(),
            iommu: None,
            domain: None,
            fault_plan: FaultPlan::default(),
            seed: 0,
            spin: Duration::from_micros(50),
            cpu: None,
            mapped_doorbells: true,
            fixed_vectors: false,
            no_soft_reset: false,
            channels: 2,
            transfer_cap_log2: 20,
            address_bits: vdk_descriptors::edu::DMA_ADDRESS_BITS,
            transfer_time: Duration::ZERO,
            namespaces: vec![NamespaceOptions::default()],
            queue_pairs: 4,
            queue_entries: 1024,
            max_transfer_log2: 19,
            // The device thread may have to wait for a processor.
            ready_timeout: Duration::from_secs(10),
        }
    }
}

/// Why an emulated device was not built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StubError {
    /// An option is out of its range.
    #[error("{option} is {value}, it must be {least} to {most}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The least value that it may have.
        least: u64,
        /// The largest value that it may have.
        most: u64,
    },
    /// The file of a namespace cannot be used.
    #[error("the file {} of a namespace cannot be used: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The description of the device contradicts the PCI standard.
    #[error("the device is described wrongly: {what}")]
    Profile {
        /// What is wrong.
        what: &'static str,
    },
}

impl StubError {
    /// Checks that an option is in its range.
    pub(crate) fn check_range(
        option: &'static str,
        value: u64,
        range: core::ops::RangeInclusive<u64>,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            Ok(())
        } else {
            Err(Self::Option { option, value, least: *range.start(), most: *range.end() })
        }
    }
}
