//! What is known of a function, as one value.

use anyhow::Result;
use serde::Serialize;
use vdk_driver::hal::address::BarIndex;
use vdk_driver::hal::bar::BarInfo;
use vdk_driver::hal::config::{self, ConfigSpace, Msi, Msix};
use vdk_driver::hal::dma::DmaGeometry;
use vdk_driver::hal::function::{PciFunction, PciIdentity};
use vdk_driver::hal::interrupt::InterruptKind;
use vdk_driver::hal::sysfs::SysfsFunction;

use super::capabilities::{self, CapabilityReport};
use crate::device;
use crate::names;

/// Everything that `vdk info` prints.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) address: String,
    pub(super) ids: String,
    pub(super) subsystem_ids: String,
    pub(super) class: String,
    pub(super) class_name: String,
    pub(super) revision: String,
    pub(super) command: Vec<String>,
    pub(super) status: Vec<String>,
    pub(super) driver: Option<String>,
    pub(super) iommu_group: Option<u32>,
    /// The kernel interface it was opened through, and why.
    pub(super) interface: Option<String>,
    pub(super) bars: Vec<BarReport>,
    pub(super) capabilities: Vec<CapabilityReport>,
    pub(super) capabilities_fault: Option<String>,
    pub(super) extended_capabilities: Vec<CapabilityReport>,
    pub(super) extended_capabilities_fault: Option<String>,
    pub(super) interrupts: Vec<InterruptReport>,
    pub(super) dma: Option<DmaReport>,
    pub(super) resets: Option<Vec<String>>,
    pub(super) obstacles: Vec<ObstacleReport>,
}

/// One BAR.
#[derive(Debug, Serialize)]
pub(super) struct BarReport {
    pub(super) index: u8,
    pub(super) kind: String,
    pub(super) size: Option<u64>,
    pub(super) address: String,
    pub(super) prefetchable: bool,
}

/// One kind of interrupt.
#[derive(Debug, Serialize)]
pub(super) struct InterruptReport {
    pub(super) kind: String,
    pub(super) vectors: u16,
}

/// What the IOMMU accepts.
#[derive(Debug, Serialize)]
pub(super) struct DmaReport {
    pub(super) mapper: String,
    pub(super) ranges: Vec<RangeReport>,
    pub(super) page_sizes: Vec<u64>,
    pub(super) mappings_available: Option<u32>,
}

/// What keeps vdk from opening the function.
#[derive(Debug, Serialize)]
pub(super) struct ObstacleReport {
    pub(super) reason: String,
    pub(super) fix: String,
}

/// A range with inclusive ends.
#[derive(Debug, Serialize)]
pub(super) struct RangeReport {
    pub(super) start: String,
    pub(super) last: String,
}

impl Report {
    /// The report of a function that is open.
    pub(super) fn of_open(function: &dyn PciFunction) -> Result<Self> {
        let config = function.config();
        let identity = config::identity(config)?;
        let mut report = Self::of_config(function.name().to_owned(), &identity, config)?;
        report.address = function.address().to_string();
        report.bars = BarIndex::all().filter_map(|index| function.bar_info(index)).map(bar).collect();
        let kinds = [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix];
        let interrupts = function.interrupts();
        report.interrupts = kinds
            .into_iter()
            .map(|kind| InterruptReport { kind: kind.to_string(), vectors: interrupts.vector_count(kind) })
            .filter(|interrupt| interrupt.vectors > 0)
            .collect();
        let dma = function.dma();
        report.dma = Some(dma_report(dma.name(), &dma.geometry()));
        report.resets = Some(function.reset_kinds().iter().map(ToString::to_string).collect());
        Ok(report)
    }

    /// The report of a function of this machine, without opening it.
    pub(super) fn of_sysfs(function: &SysfsFunction) -> Result<Self> {
        let config = function.config()?;
        let mut report = Self::of_config(function.address.to_string(), &function.identity, &config)?;
        report.address = function.address.to_string();
        report.driver = function.driver.clone();
        report.iommu_group = function.iommu_group.as_ref().map(|group| group.number);
        report.bars = function.bars.bars().map(bar).collect();
        let mut interrupts = Vec::new();
        if config.read8(config::register::INTERRUPT_PIN).unwrap_or(0) != 0 {
            interrupts.push((InterruptKind::Intx, 1));
        }
        if let Ok(Some(msi)) = Msi::find(&config) {
            interrupts.push((InterruptKind::Msi, msi.vectors()));
        }
        if let Ok(Some(msix)) = Msix::find(&config) {
            interrupts.push((InterruptKind::Msix, msix.vectors()));
        }
        report.interrupts = interrupts
            .into_iter()
            .map(|(kind, vectors)| InterruptReport { kind: kind.to_string(), vectors })
            .collect();
        report.obstacles = device::refusal(function)
            .into_iter()
            .map(|(reason, fix)| ObstacleReport { reason, fix })
            .collect();
        Ok(report)
    }

    fn of_config(name: String, identity: &PciIdentity, config: &dyn ConfigSpace) -> Result<Self> {
        let (capabilities, capabilities_fault) = capabilities::standard(config);
        let (extended_capabilities, extended_capabilities_fault) = capabilities::extended(config);
        Ok(Self {
            name,
            description: names::function(identity),
            address: String::new(),
            ids: identity.to_string(),
            subsystem_ids: format!("{:04x}:{:04x}", identity.subsystem_vendor, identity.subsystem),
            class: format!("{:06x}", identity.class),
            class_name: names::class(identity),
            revision: format!("{:02x}", identity.revision),
            command: command_words(config)?,
            status: status_words(config)?,
            driver: None,
            iommu_group: None,
            interface: None,
            bars: Vec::new(),
            capabilities,
            capabilities_fault,
            extended_capabilities,
            extended_capabilities_fault,
            interrupts: Vec::new(),
            dma: None,
            resets: None,
            obstacles: Vec::new(),
        })
    }
}

fn command_words(config: &dyn ConfigSpace) -> Result<Vec<String>> {
    let command = config::read_command(config)?;
    Ok(words(&[
        (command.io_space(), "I/O space"),
        (command.memory_space(), "memory space"),
        (command.bus_master(), "bus master"),
        (command.parity_error_response(), "parity error response"),
        (command.system_error_enable(), "system error"),
        (command.interrupt_disable(), "INTx disabled"),
    ]))
}

fn status_words(config: &dyn ConfigSpace) -> Result<Vec<String>> {
    let status = config::read_status(config)?;
    Ok(words(&[
        (status.interrupt(), "interrupt"),
        (status.capabilities_list(), "capability list"),
        (status.master_data_parity_error(), "master data parity error"),
        (status.signaled_target_abort(), "signaled target abort"),
        (status.received_target_abort(), "received target abort"),
        (status.received_master_abort(), "received master abort"),
        (status.signaled_system_error(), "signaled system error"),
        (status.detected_parity_error(), "detected parity error"),
    ]))
}

fn words(flags: &[(bool, &str)]) -> Vec<String> {
    flags.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()).collect()
}

fn bar(info: BarInfo) -> BarReport {
    BarReport {
        index: info.index.as_u8(),
        kind: info.kind.to_string(),
        size: Some(info.size.as_u64()),
        address: format!("{:#x}", info.address),
        prefetchable: info.prefetchable,
    }
}

fn dma_report(mapper: String, geometry: &DmaGeometry) -> DmaReport {
    let ranges = geometry.ranges.iter();
    DmaReport {
        mapper,
        ranges: ranges
            .map(|range| RangeReport { start: range.start().to_string(), last: range.last().to_string() })
            .collect(),
        page_sizes: (0..64).map(|bit| 1 << bit).filter(|size| geometry.page_sizes & size != 0).collect(),
        mappings_available: geometry.mappings_available,
    }
}
