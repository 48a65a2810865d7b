//! Address spaces of the kernel: sharing, what a mapping costs, and its end.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use vdk_descriptors::sg::SgEntry;
use vdk_driver::edu::{Completion, Edu, TransferDirection};
use vdk_driver::kit::Session;
use vdk_driver::nvme::{CompletionMode, Controller, ControllerOptions, QueueOptions};
use vdk_hal::address::{Bdf, ByteLength, Iova};
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
    Case { name: "vfio-drivers", shows: "two drivers work in one address space", run: drivers },
    Case { name: "vfio-width", shows: "addresses are as wide as the IOMMU, and no wider", run: width },
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

/// The device is edu, the other one an NVMe controller: each driver reaches what was mapped
/// for the other.
fn drivers(guest: &Guest) -> Result<()> {
    let space = SharedAddressSpace::new();
    let session = |address, address_space| {
        let options = VfioOptions { address_space, ..options(guest) };
        let node: std::sync::Arc<dyn PciNode> = std::sync::Arc::new(VfioNode::new(address, options));
        Session::open(&node, "vdk-guest")
    };
    let (first, second) = (address(guest)?, other(guest)?);
    let shared = || AddressSpace::Shared(space.clone());
    let edu_session = session(first, shared())?;
    let domain = Domain::new(edu_session.dma()?, AddressWidth::FULL)?;
    let alone = session(second, AddressSpace::Own)?;
    match Controller::start_in(alone, &domain, ControllerOptions::default()) {
        Err(error) => ensure!(error.to_string().contains("the domain is over"), "{error}"),
        Ok(_) => bail!("a driver was started in an address space that its device does not see"),
    }
    let mut edu = Edu::start_in(edu_session, &domain)?;
    let nvme = Controller::start_in(session(second, shared())?, &domain, ControllerOptions::default())?;
    let mut pair = nvme.queue_pair::<()>(QueueOptions::default())?;
    let namespace = nvme.namespace(1)?;
    let length = namespace.block_length().to_usize().context("a block")?;
    ensure!(length <= 2048, "edu's buffer does not take a block of {length:#x}");
    let memory: DmaRegion<Bidirectional> = edu.domain().map(pages(3)?)?;
    let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
    memory.write(0, &bytes)?;
    // Through the buffer of the one and a block of the other.
    let place = |page: usize| memory.segment(page << 12, length);
    let half = length / 2;
    for offset in [0, half] {
        let at = u64::try_from(offset)?;
        edu.copy_to_buffer(&memory, offset, half, at, Completion::Interrupt, LONG)?;
    }
    edu.transfer(TransferDirection::FromBuffer, place(1)?, 0, Completion::Poll, LONG)?;
    for write in [true, false] {
        let segment = place(if write { 1 } else { 2 })?;
        let entry = [SgEntry { iova: segment.iova, length: segment.length }];
        if write {
            pair.write(&namespace, 0, &entry, ())?;
        } else {
            pair.read(&namespace, 0, &entry, ())?;
        }
        pair.commit()?;
        let mut ended = Vec::new();
        while ended.is_empty() {
            pair.wait(CompletionMode::Adaptive, LONG)?;
            pair.poll(9, |completion| ended.push(completion.result))?;
        }
        ensure!(ended == [Ok(0)], "{ended:?}");
    }
    let mut found = vec![0; length];
    memory.read(2 << 12, &mut found)?;
    ensure!(found == bytes, "the bytes did not arrive");
    Ok(())
}

/// The IOMMU has as many address bits as the setting `width` says, fewer than the device:
/// nothing is mapped above them, neither by choice nor by wish.
fn width(guest: &Guest) -> Result<()> {
    let bits: u32 = guest.setting("width")?.parse()?;
    let limit = 1u64 << bits;
    let function = open_function(guest)?;
    let ranges = function.dma().geometry().ranges;
    let top = ranges.last().context("no addresses")?.last().as_u64();
    ensure!(top == limit - 1, "the kernel says {top:#x}, the IOMMU has {bits} bits");
    let domain = Domain::new(function.dma(), AddressWidth::FULL)?;
    // Address 0 is never chosen, so that one multiple of half of the space is left.
    let half = ByteLength::new(limit / 2);
    let upper: DmaRegion<Bidirectional> = domain.map_aligned(pages(1)?, half)?;
    ensure!(upper.iova().as_u64() == limit / 2, "mapped at {:#x}", upper.iova());
    ensure!(domain.map_aligned::<Bidirectional>(pages(1)?, half).is_err(), "there is no second one");
    let _highest: DmaRegion<Bidirectional> = domain.map_at(Iova::new(limit - 4096), pages(1)?)?;
    for (above, count) in [(limit, 1), (limit - 8192, 3)] {
        let refused = domain.map_at::<Bidirectional>(Iova::new(above), pages(count)?);
        ensure!(refused.is_err(), "{count} pages at {above:#x} were mapped");
    }
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
