//! Hot resets: of functions that one driver has, of functions that it has not, and behind a
//! link that does not come back.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use vdk_hal::address::{BarIndex, Bdf};
use vdk_hal::bar::{Bar, BarError};
use vdk_hal::config;
use vdk_hal::function::PciFunction;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::reset::{ResetError, ResetKind};
use vdk_hal::sysfs;
use vdk_hal::vfio::{AddressSpace, SharedAddressSpace, VfioFunction, VfioNode, VfioOptions};

use super::vfio::{address, open_function, options};
use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] = &[
    Case { name: "vfio-hot-reset", shows: "a hot reset hits a function and its neighbour", run: hot_reset },
    Case { name: "vfio-hot-link", shows: "a link that does not come back is told", run: lost_link },
];

/// A register that a reset brings back: that of the lamps of an e1000e or igb.
const LAMPS: u64 = 0xe00;

/// A function that has been used: its memory space and bus mastering are on, an interrupt is
/// connected, and a register is not what it is after a reset.
pub(super) struct Used {
    pub(super) function: Arc<VfioFunction>,
    bar: Bar,
    fresh: u32,
    _vector: EventFd,
}

impl Used {
    pub(super) fn new(function: Arc<VfioFunction>) -> Result<Self> {
        config::update_command(function.config(), |command| command.set_memory_space(true))?;
        let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
        let fresh: u32 = bar.read(LAMPS)?;
        let vector = EventFd::new()?;
        function.interrupts().enable(InterruptKind::Msix, &[Some(vector.clone())])?;
        function.set_bus_master(true)?;
        bar.write(LAMPS, fresh ^ 0x0f0f)?;
        let used = Self { function, bar, fresh, _vector: vector };
        used.require_untouched()?;
        Ok(used)
    }

    /// Nothing was reset.
    pub(super) fn require_untouched(&self) -> Result<()> {
        let command = config::read_command(self.function.config())?;
        ensure!(command.memory_space() && command.bus_master(), "the command register is {command:?}");
        let found: u32 = self.bar.read(LAMPS)?;
        ensure!(found == self.fresh ^ 0x0f0f, "the register is {found:#x}, before {:#x}", self.fresh);
        Ok(())
    }

    /// Brings the register back by hand.
    pub(super) fn restore(&self) -> Result<()> {
        Ok(self.bar.write(LAMPS, self.fresh)?)
    }

    /// It was reset, its registers in configuration space are as they should be, and it works.
    pub(super) fn require_reset(&self) -> Result<()> {
        let command = config::read_command(self.function.config())?;
        ensure!(!command.memory_space() && !command.bus_master(), "the command register is {command:?}");
        ensure!(matches!(self.bar.read::<u32>(LAMPS), Err(BarError::Asleep { .. })), "its memory is on");
        config::update_command(self.function.config(), |command| command.set_memory_space(true))?;
        let found: u32 = self.bar.read(LAMPS)?;
        ensure!(found == self.fresh, "the register is {found:#x}, after a reset {:#x}", self.fresh);
        // Interrupts are off, and can be turned on again.
        let vector = EventFd::new()?;
        self.function.interrupts().enable(InterruptKind::Msix, &[Some(vector.clone())])?;
        self.function.interrupts().self_test(InterruptKind::Msix, 0)?;
        ensure!(vector.wait(LONG)?, "no interrupt came");
        self.function.interrupts().disable_all(InterruptKind::Msix)?;
        Ok(())
    }
}

/// The device is an e1000e, the setting `sibling` names another function of the same device,
/// which is an edu in the same group.
fn hot_reset(guest: &Guest) -> Result<()> {
    let sibling: Bdf = guest.setting("sibling")?.parse()?;
    guest.part("a neighbour that VFIO does not have is named, and nothing is reset", unbound(guest, sibling));
    guest.part("with a neighbour in the same group it works", alone(guest));
    guest.part("with both open in one address space it works", together(guest, sibling));
    Ok(())
}

fn unbound(guest: &Guest, sibling: Bdf) -> Result<()> {
    let folder = Path::new(sysfs::DEVICES).join(sibling.to_string());
    std::fs::write(folder.join("driver/unbind"), sibling.to_string()).context("unbind")?;
    let refused = (|| {
        let used = Used::new(open_function(guest)?)?;
        ensure!(!used.function.reset_kinds().contains(&ResetKind::Hot), "it is offered");
        match used.function.reset(ResetKind::Hot) {
            Err(error @ ResetError::NotOwner { .. }) => {
                let text = error.to_string();
                println!("told: {text}");
                let named = format!("hits {sibling} (bound to no driver), which");
                ensure!(text.contains(&named) && text.contains("vfio-pci"), "{text}");
            }
            other => bail!("{other:?}"),
        }
        used.require_untouched()?;
        used.restore()
    })();
    std::fs::write("/sys/bus/pci/drivers_probe", sibling.to_string()).context("bind again")?;
    refused
}

fn alone(guest: &Guest) -> Result<()> {
    let used = Used::new(open_function(guest)?)?;
    ensure!(used.function.reset_kinds().contains(&ResetKind::Hot), "{:?}", used.function.reset_kinds());
    used.function.reset(ResetKind::Hot)?;
    used.require_reset()
}

fn together(guest: &Guest, sibling: Bdf) -> Result<()> {
    let space = SharedAddressSpace::new();
    let shared = || VfioOptions { address_space: AddressSpace::Shared(space.clone()), ..options(guest) };
    let neighbour = VfioNode::new(sibling, shared()).open_function()?;
    let used = Used::new(VfioNode::new(address(guest)?, shared()).open_function()?)?;
    config::update_command(neighbour.config(), |command| command.set_memory_space(true))?;
    let bar = neighbour.bar(BarIndex::new(0).context("BAR0")?)?;
    let before: u32 = bar.read(0)?;
    used.function.reset(ResetKind::Hot)?;
    used.require_reset()?;
    config::update_command(neighbour.config(), |command| command.set_memory_space(true))?;
    ensure!(bar.read::<u32>(0)? == before, "the neighbour reads {:x?}", bar.read::<u32>(0));
    Ok(())
}

/// Behind a port whose link the kernel does not see come up again.
fn lost_link(guest: &Guest) -> Result<()> {
    let function = open_function(guest)?;
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    function.set_bus_master(true)?;
    match function.reset(ResetKind::Hot) {
        Err(error @ ResetError::LinkDown { .. }) => println!("told: {error}"),
        other => bail!("{other:?}"),
    }
    // It was reset all the same.
    let command = config::read_command(function.config())?;
    ensure!(!command.bus_master() && !command.memory_space(), "the command register is {command:?}");
    config::update_command(function.config(), |command| command.set_memory_space(true))?;
    let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
    bar.read::<u32>(0)?;
    Ok(())
}

const LONG: Duration = Duration::from_secs(60);
