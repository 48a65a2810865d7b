//! Opening and closing through kernel VFIO: who may, who has it, and who is told.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use vdk_driver::edu::{Completion, Edu};
use vdk_driver::kit::Session;
use vdk_hal::address::{BarIndex, Bdf};
use vdk_hal::bar::{BarError, LivenessState};
use vdk_hal::config::{self, ConfigError, Msix};
use vdk_hal::event::DeviceEvent;
use vdk_hal::function::{OpenError, PciFunction};
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::sysfs::{self, SysfsListing};
use vdk_hal::vfio::{KernelInterface, VfioFunction, VfioNode, VfioOptions};

use super::vfio_process::Other;
use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] = &[
    Case { name: "vfio-open", shows: "a function is opened as asked, or the reason is told", run: open },
    Case { name: "vfio-regions", shows: "regions keep their numbers, and holes are trapped", run: regions },
    Case { name: "vfio-busy", shows: "the second process is told who has the device", run: busy },
    Case { name: "vfio-kill", shows: "a killed driver leaves a device that is quiet and usable", run: kill },
    Case { name: "vfio-unbind", shows: "a release request is answered", run: unbind },
    Case { name: "vfio-unplug", shows: "a device that is unplugged while it is open is let go", run: unplug },
    Case { name: "vfio-power", shows: "a function sleeps and wakes", run: power },
    Case { name: "vfio-wake", shows: "a function that is woken by somebody else tells it", run: wake },
    Case { name: "vfio-user", shows: "a plain user is told what is missing", run: plain_user },
];

/// How long something may take on a busy machine before it counts as not happening.
const LONG: Duration = Duration::from_secs(60);

pub(super) fn options(guest: &Guest) -> VfioOptions {
    VfioOptions { interface: guest.interface().kernel(), ..VfioOptions::default() }
}

pub(super) fn address(guest: &Guest) -> Result<Bdf> {
    guest.device().parse().with_context(|| format!("{} is no PCI function", guest.device()))
}

pub(super) fn open_function(guest: &Guest) -> Result<Arc<VfioFunction>> {
    Ok(VfioNode::new(address(guest)?, options(guest)).open_function()?)
}

fn open(guest: &Guest) -> Result<()> {
    let asked = guest.interface().kernel();
    guest.part(
        "the interface is the one that was asked for",
        (|| {
            let function = open_function(guest)?;
            let chosen = function.interface();
            ensure!(chosen.interface == asked && chosen.reason == "it was asked for", "{chosen:?}");
            Ok(())
        })(),
    );
    guest.part(
        "auto chooses one and says why",
        (|| {
            let function = VfioNode::new(address(guest)?, VfioOptions::default()).open_function()?;
            let chosen = function.interface();
            let iommufd = Path::new("/dev/iommu").exists();
            let expected = if iommufd { KernelInterface::Iommufd } else { KernelInterface::Type1 };
            ensure!(chosen.interface == expected && chosen.reason.contains("/dev/iommu"), "{chosen:?}");
            Ok(())
        })(),
    );
    guest.part(
        "a function that is not there is not found",
        (|| {
            let nowhere = VfioNode::new("0000:7f:1f.7".parse()?, options(guest));
            match nowhere.open_function() {
                Err(OpenError::NotFound { .. }) => Ok(()),
                other => bail!("{:?}", other.map(|_| ())),
            }
        })(),
    );
    guest.part(
        "functions of other drivers are refused with what to do",
        (|| {
            let listing = SysfsListing::read(Path::new(sysfs::DEVICES))?;
            let mut tried = 0;
            for function in listing.functions.iter().filter(|one| one.driver.as_deref() != Some("vfio-pci")) {
                match VfioNode::new(function.address, options(guest)).open_function() {
                    Err(OpenError::Refused { reason, fix, .. }) => {
                        ensure!(
                            !reason.is_empty() && !fix.is_empty(),
                            "{}: {reason}: {fix}",
                            function.address
                        );
                    }
                    other => bail!("{}: {:?}", function.address, other.map(|_| ())),
                }
                tried += 1;
            }
            ensure!(tried > 0, "there is no such function");
            Ok(())
        })(),
    );
    Ok(())
}

fn regions(guest: &Guest) -> Result<()> {
    let function = open_function(guest)?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    let numbers: Vec<u32> = function.regions().map(|region| region.index).collect();
    ensure!(numbers.contains(&7) && numbers.is_sorted() && !numbers.contains(&8), "regions {numbers:?}");
    let msix = Msix::find(function.config())?;
    for index in BarIndex::all() {
        let Some(info) = function.bar_info(index) else { continue };
        let bar = function.bar(index)?;
        let areas: Vec<(u64, u64)> =
            bar.mapped_areas().iter().map(|area| (area.offset, area.memory.length().as_u64())).collect();
        println!("{index}: {} {}, mapped {areas:x?}", info.size, info.kind);
        ensure!(!areas.is_empty(), "{index} is not mapped");
        // The first register, through the mapping.
        let mapped: u32 = bar.read(areas[0].0)?;
        ensure!(bar.read::<u32>(areas[0].0)? == mapped, "{index} reads differently the second time");
        if let Some(msix) = msix.filter(|msix| msix.table.bar == index) {
            // The kernel keeps the table to itself, mapped or not; access must not fail.
            bar.read::<u32>(msix.table.offset)?;
        }
    }
    if let Some(msix) = msix {
        guest.part("vectors are added one by one while others are in use", grow(&*function, msix.vectors()));
    }
    guest.part("the regions have their numbers and are mapped", Ok(()));
    Ok(())
}

fn grow(function: &dyn PciFunction, vectors: u16) -> Result<()> {
    let interrupts = function.interrupts();
    let kind = InterruptKind::Msix;
    let first = EventFd::new()?;
    let last = EventFd::new()?;
    interrupts.enable(kind, &[Some(first.clone())])?;
    let added = interrupts.attach(kind, vectors - 1, &last);
    if !interrupts.can_attach_later(kind) {
        ensure!(added.is_err(), "a vector was added where the kernel cannot");
        interrupts.disable_all(kind)?;
        interrupts.enable(kind, &vec![None; usize::from(vectors)])?;
        interrupts.attach(kind, 0, &first)?;
        interrupts.attach(kind, vectors - 1, &last)?;
    } else {
        added?;
    }
    interrupts.self_test(kind, vectors - 1)?;
    ensure!(last.wait(LONG)? && first.take() == 0, "the last vector signals nothing, or the first one too");
    interrupts.disable_all(kind)?;
    ensure!(last.take() == 1, "disabling signalled");
    Ok(())
}

fn busy(guest: &Guest) -> Result<()> {
    let other = Other::start(guest, "hold")?;
    match guest.node()?.open() {
        Err(OpenError::Busy { holder, .. }) => {
            println!("told: {holder}");
            ensure!(holder.contains(&format!("process {}", other.id())), "{holder} is not {}", other.id());
        }
        other => bail!("{:?}", other.map(|_| ())),
    }
    other.kill()?;
    drop(guest.node()?.open().context("after the other has ended")?);
    Ok(())
}

fn kill(guest: &Guest) -> Result<()> {
    let other = Other::start(guest, "dma")?;
    ensure!(masters_bus(guest)?, "bus mastering is off under DMA");
    other.kill()?;
    ensure!(!masters_bus(guest)?, "bus mastering is on after the driver was killed");
    let function = guest.node()?.open()?;
    ensure!(!config::read_command(function.config())?.bus_master(), "bus mastering is on after opening");
    drop(function);
    works(guest)
}

/// What the function itself says, beside VFIO.
fn masters_bus(guest: &Guest) -> Result<bool> {
    let config = std::fs::read(Path::new(sysfs::DEVICES).join(guest.device()).join("config"))?;
    Ok(config.get(4).context("no configuration space")? & 4 != 0)
}

fn works(guest: &Guest) -> Result<()> {
    let mut edu = Edu::start(Session::open(&guest.node()?, "vdk-guest")?)?;
    let found = edu.factorial(6, Completion::Interrupt, LONG)?;
    ensure!(found == 720, "6! is {found}");
    Ok(())
}

/// Unbinds the function while it is open, and answers the request.
fn unbind(guest: &Guest) -> Result<()> {
    guest.part("the kernel's request arrives, and closing answers it within a second", answered(guest));
    guest.part("a driver that does not close is closed", overdue(guest));
    guest.part("the device works after it was bound again", works(guest));
    Ok(())
}

/// The kernel has its function back within a second of asking. Of three rounds the fastest
/// counts, since the machine under the guest may be busy with others.
fn answered(guest: &Guest) -> Result<()> {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        fastest = fastest.min(answered_once(guest)?);
        println!("the fastest unbinding took {fastest:?} from the request on");
    }
    ensure!(fastest < Duration::from_secs(1), "the fastest took {fastest:?}");
    Ok(())
}

fn answered_once(guest: &Guest) -> Result<Duration> {
    let function = open_function(guest)?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
    let before: u32 = bar.read(0)?;
    let unbinding = Unbinding::start(guest);
    let event = wait_event(&function)?;
    let asked = Instant::now();
    ensure!(event == DeviceEvent::ReleaseRequested, "{event:?}");
    ensure!(bar.read::<u32>(0)? == before, "the device is gone before it was let go");
    function.close();
    unbinding.finish()?;
    let taken = asked.elapsed();
    // A handle of the BAR is held all the while: it must not keep the device.
    ensure!(matches!(bar.read::<u32>(0), Err(BarError::NotOpen { .. })), "{:?}", bar.read::<u32>(0));
    ensure!(function.config().read32(0) == Err(ConfigError::NotOpen), "configuration space answers");
    bind(guest)?;
    Ok(taken)
}

fn overdue(guest: &Guest) -> Result<()> {
    let options = VfioOptions { release_limit: Some(Duration::from_millis(300)), ..options(guest) };
    let function = VfioNode::new(address(guest)?, options).open_function()?;
    function.set_bus_master(true)?;
    Unbinding::start(guest).finish()?;
    ensure!(function.config().read32(0) == Err(ConfigError::NotOpen), "it is open");
    bind(guest)
}

pub(super) fn wait_event(function: &VfioFunction) -> Result<DeviceEvent> {
    ensure!(function.events().event().wait(LONG)?, "no event came");
    function.events().next().context("the event file was readable without an event")
}

/// An unbind that the kernel is busy with, in a thread.
struct Unbinding(std::thread::JoinHandle<std::io::Result<()>>);

impl Unbinding {
    fn start(guest: &Guest) -> Self {
        let device = guest.device().to_owned();
        Self(std::thread::spawn(move || std::fs::write("/sys/bus/pci/drivers/vfio-pci/unbind", device)))
    }

    fn finish(self) -> Result<()> {
        self.0.join().map_err(|_| anyhow::anyhow!("the thread has panicked"))?.context("unbind")
    }
}

fn bind(guest: &Guest) -> Result<()> {
    std::fs::write("/sys/bus/pci/drivers_probe", guest.device()).context("bind again")
}

/// The host unplugs the device, named by the setting `id`, while it is open and may master
/// the bus.
fn unplug(guest: &Guest) -> Result<()> {
    let id = guest.setting("id")?;
    let function = open_function(guest)?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    function.set_bus_master(true)?;
    let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
    bar.read::<u32>(0)?;
    guest.ask(&format!("device_del {id}"))?;
    let event = wait_event(&function)?;
    ensure!(matches!(event, DeviceEvent::ReleaseRequested | DeviceEvent::Removed), "{event:?}");
    function.close();
    ensure!(bar.liveness() != LivenessState::Live && bar.read::<u32>(0).is_err(), "the BAR answers");
    ensure!(function.config().read32(0).is_err(), "configuration space answers");
    let folder = Path::new(sysfs::DEVICES).join(guest.device());
    let end = Instant::now() + LONG;
    while folder.exists() {
        ensure!(Instant::now() < end, "the kernel did not remove it");
        std::thread::sleep(Duration::from_millis(50));
    }
    match guest.node()?.open() {
        Err(OpenError::NotFound { .. }) => Ok(()),
        other => bail!("opened after the removal: {:?}", other.map(|_| ())),
    }
}

fn power(guest: &Guest) -> Result<()> {
    let function = open_function(guest)?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
    let before: u32 = bar.read(0)?;
    let sleep = function.enter_low_power(None)?;
    ensure!(matches!(bar.read::<u32>(0), Err(BarError::Asleep { .. })), "the BAR answers in low power");
    let twice = function.enter_low_power(None);
    ensure!(matches!(twice, Err(ConfigError::NotSupported { .. })), "it fell asleep twice");
    ensure!(config::identity(function.config())? == guest.node()?.identity()?, "the identity changed");
    drop(sleep);
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    ensure!(bar.read::<u32>(0)? == before, "BAR0 reads {:x?}", bar.read::<u32>(0));
    ensure!(bar.liveness() == LivenessState::Live, "it counts as gone");
    // Memory space off is a sleep of its own, not a removal.
    config::update_command(function.config(), |command| command.set_memory_space(false))?;
    ensure!(matches!(bar.read::<u32>(0), Err(BarError::Asleep { .. })), "the BAR answers, memory space off");
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    ensure!(bar.read::<u32>(0)? == before, "BAR0 does not answer again");
    Ok(())
}

/// The kernel wakes the function, as it does when it has work for it, and not its owner.
fn wake(guest: &Guest) -> Result<()> {
    let function = open_function(guest)?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
    let before: u32 = bar.read(0)?;
    let power = Path::new(sysfs::DEVICES).join(guest.device()).join("power");
    let is = |state: &str| -> Result<bool> {
        Ok(std::fs::read_to_string(power.join("runtime_status"))?.trim_end() == state)
    };
    let wakeup = EventFd::new()?;
    let sleep = function.enter_low_power(Some(&wakeup))?;
    let end = Instant::now() + LONG;
    while !is("suspended")? {
        ensure!(Instant::now() < end, "the kernel does not let it sleep");
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(wakeup.take() == 0, "it woke before it slept");
    std::fs::write(power.join("control"), "on").context("wake it")?;
    let woken = wakeup.wait(LONG);
    std::fs::write(power.join("control"), "auto").context("let it sleep again")?;
    ensure!(woken?, "the wake-up was not told");
    // It stays awake, and is its owner's again when the owner says so.
    std::thread::sleep(Duration::from_millis(200));
    ensure!(is("active")?, "it fell asleep again");
    ensure!(matches!(bar.read::<u32>(0), Err(BarError::Asleep { .. })), "the BAR answers in low power");
    drop(sleep);
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    ensure!(bar.read::<u32>(0)? == before, "BAR0 reads {:x?}", bar.read::<u32>(0));
    Ok(())
}

/// As a user without rights, then with rights on the nodes and little memory to lock.
fn plain_user(guest: &Guest) -> Result<()> {
    let refused = Other::run_as_user(guest, "open", 64)?;
    guest.part(
        "without rights on the node, the node and the fix are named",
        (|| {
            ensure!(refused.contains("may not open /dev/") && refused.contains("chown"), "{refused}");
            Ok(())
        })(),
    );
    Other::give_nodes(guest)?;
    let limited = Other::run_as_user(guest, "map", 64)?;
    guest.part(
        "with 64 KiB to lock, the limit and the command are told",
        (|| {
            ensure!(
                limited.contains("of locked memory") && limited.contains("prlimit --pid $$"),
                "{limited}"
            );
            Ok(())
        })(),
    );
    let mapped = Other::run_as_user(guest, "map", 4096)?;
    guest.part(
        "with enough to lock it works",
        (|| {
            ensure!(mapped.contains("mapped and unmapped 100 times"), "{mapped}");
            Ok(())
        })(),
    );
    Ok(())
}
