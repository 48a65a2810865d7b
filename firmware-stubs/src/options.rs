//! How an emulated device is built, and why it was not.

use core::time::Duration;
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
