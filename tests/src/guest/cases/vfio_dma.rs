//! Address spaces of the kernel: sharing, what a mapping costs, and its end.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use vdk_driver::edu::{Completion, Edu, TransferDirection};
use vdk_driver::kit::Session;
use vdk_hal::address::{Bdf, ByteLength};
use vdk_hal::dma::UnmapError;
use vdk_hal::function::{OpenError, PciFunction, PciNode};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::sysfs::{self, SysfsListing};
use vdk_hal::vfio::{AddressSpace, KernelInterface, SharedAddressSpace, VfioNode, VfioOptions};
use vdk_iommu::{AddressWidth, Bidirectional, DmaRegion, Domain, DomainError, FromDevice, ToDevice};

use super::vfio::{address, open_function, options};
use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] = &[
    Case { name: "vfio-share", shows: "two functions share one address space", run: share },
    Case { name: "vfio-map", shows: "memory is mapped and unmapped by one call each", run: map },
    Case { name: "vfio-leave", shows: "mappings end with the function, and the memory is free", run: leave },
];

const LONG: Duration = Duration::from_secs(60);

/// Another function that is bound to `vfio-pci`: the setting `other`, or the first.
fn other(guest: &Guest) -> Result<Bdf> {
    if let Ok(other) = guest.setting("other") {
        return Ok(other.parse()?);
    }
    let own = address(guest)?;
    let listing = SysfsListing::read(Path::new(sysfs::DEVICES))?;
    let mut bound = listing.functions.iter().filter(|one| one.driver.as_deref() == Some("vfio-pci"));
    bound
        .find(|one| one.address != own)
        .map(|one| one.address)
        .context("no other function is bound to vfio-pci")
}

/// The device is edu, the other one anything.
fn share(guest: &Guest) -> Result<()> {
    let space = SharedAddressSpace::new();
    let shared = || VfioOptions { address_space: AddressSpace::Shared(space.clone()), ..options(guest) };
    ensure!(space.mapper().geometry().ranges.is_empty(), "nothing is attached, and there are addresses");
    let second = VfioNode::new(other(guest)?, shared()).open_function()?;
    let first: std::sync::Arc<dyn PciNode> = std::sync::Arc::new(VfioNode::new(address(guest)?, shared()));
    let mut edu = Edu::start(Session::open(&first, "vdk-guest")?)?;
    ensure!(space.mapper().name() == second.dma().name(), "the mappers are not the same");

    guest.part(
        "one mapping is seen by both",
        (|| {
            let input: DmaRegion<ToDevice> = edu.domain().map(pages(1)?)?;
            let output: DmaRegion<FromDevice> = edu.domain().map(pages(1)?)?;
            input.write(0, &[0x3c; 100])?;
            edu.copy_to_buffer(&input, 0, 100, 0, Completion::Poll, LONG)?;
            edu.transfer(TransferDirection::FromBuffer, output.segment(0, 100)?, 0, Completion::Poll, LONG)?;
            let mut found = [0; 100];
            output.read(0, &mut found)?;
            ensure!(found == [0x3c; 100], "the bytes did not arrive");
            let taken = second.dma().map(output.iova(), &pages(1)?, vdk_hal::dma::Permissions::Read);
            ensure!(taken.is_err(), "the second function does not see the mapping");
            Ok(())
        })(),
    );
    guest.part(
        "an address space has one interface",
        (|| {
            let other = match guest.interface().kernel() {
                KernelInterface::Type1 => KernelInterface::Iommufd,
                KernelInterface::Iommufd | KernelInterface::Auto => KernelInterface::Type1,
            };
            // Closed first: the function itself must not be what is refused.
            let address = second.address();
            second.close();
            let refused =
                VfioNode::new(address, VfioOptions { interface: other, ..shared() }).open_function();
            match refused {
                Err(OpenError::Refused { reason, .. }) => {
                    ensure!(reason.contains("address space"), "{reason}");
                    Ok(())
                }
                other => bail!("{:?}", other.map(|_| ())),
            }
        })(),
    );
    guest.part(
        "the mappings stay when one function leaves, and the device works on",
        (|| {
            let input: DmaRegion<ToDevice> = edu.domain().map(pages(1)?)?;
            edu.copy_to_buffer(&input, 0, 64, 0, Completion::Poll, LONG)?;
            Ok(())
        })(),
    );
    Ok(())
}

/// As many MiB as the setting `mebibytes` says, on pages of 4 KiB and of 2 MiB.
fn map(guest: &Guest) -> Result<()> {
    let mebibytes: u64 = guest.setting("mebibytes").unwrap_or("64").parse()?;
    let length = ByteLength::new(mebibytes << 20);
    let function = open_function(guest)?;
    for kind in [Pages::Base, Pages::Huge2M] {
        let memory = match SharedMemory::allocate(length, kind) {
            Ok(memory) => memory,
            Err(error) if kind == Pages::Huge2M => {
                println!("no huge pages, measuring without: {error}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        memory.populate()?;
        let domain = Domain::new(function.dma(), AddressWidth::new(39).context("a width")?)?;
        let begin = Instant::now();
        let region: DmaRegion<Bidirectional> = domain.map(memory)?;
        let mapped = begin.elapsed();
        let begin = Instant::now();
        let memory = region.unmap().map_err(|(error, _)| error)?;
        let unmapped = begin.elapsed();
        let calls = domain.statistics();
        guest.figure(&format!(
            "{} {length} on {kind} pages: map {:.2} ms in {} call, unmap {:.2} ms in {} call",
            guest.interface(),
            mapped.as_secs_f64() * 1e3,
            calls.map_calls,
            unmapped.as_secs_f64() * 1e3,
            calls.unmap_calls
        ));
        guest.part(
            &format!("{length} on {kind} pages take one call each way"),
            (|| {
                ensure!((calls.map_calls, calls.unmap_calls) == (1, 1), "{calls:?}");
                ensure!(memory.try_into_pinned().is_ok(), "somebody still holds the memory");
                Ok(())
            })(),
        );
    }
    Ok(())
}

fn leave(guest: &Guest) -> Result<()> {
    let function = open_function(guest)?;
    let dma = function.dma();
    let domain = Domain::new(function.dma(), AddressWidth::new(32).context("a width")?)?;
    let region: DmaRegion<Bidirectional> = domain.map(pages(4)?)?;
    let range = region.range();
    function.close();
    ensure!(dma.geometry().ranges.is_empty(), "a closed function leaves addresses");
    let refused = domain.map::<Bidirectional>(pages(1)?);
    ensure!(
        matches!(refused, Err(DomainError::NotAttached { .. } | DomainError::Map(_))),
        "it mapped after the end"
    );
    // The kernel has ended the mapping; its owner learns that it is over, and has the memory.
    let memory = region.unmap().map_err(|(error, _)| error)?;
    ensure!(memory.try_into_pinned().is_ok(), "an ended mapping holds its memory");
    ensure!(matches!(dma.unmap(range), Err(UnmapError::NotMapped { .. })), "it was unmapped twice");
    Ok(())
}

fn pages(count: u64) -> Result<SharedMemory> {
    Ok(SharedMemory::allocate(ByteLength::new(count << 12), Pages::Base)?)
}
