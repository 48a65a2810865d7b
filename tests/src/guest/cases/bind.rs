//! Giving a function to `vfio-pci` and back, by the kernel's own means.
//!
//! The device is one that another driver has, with a disk behind it.

use core::time::Duration;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use vdk_hal::address::Bdf;
use vdk_hal::machine::{
    Binder, Finding, Level, Machine, Outcome, SystemControl, Transfer, TransferError, Usage,
};
use vdk_hal::sysfs;

use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] = &[
    Case { name: "bind", shows: "a disk goes to vfio-pci and comes back to its driver", run: bind },
    Case { name: "bind-mounted", shows: "a disk with a mounted file system is refused", run: mounted },
];

fn bind(guest: &Guest) -> Result<()> {
    let address: Bdf = guest.device().parse()?;
    let driver = driver(address).context("no driver has it")?;
    disk(address)?;
    guest.part("the doctor finds this machine fit", fit(&Machine::this().diagnose()));
    guest.part("the doctor names the driver that is in the way", in_the_way(address, &driver));
    guest.part("a disk that a process has open is refused", open_disk(address, &driver));
    guest.part("a trial changes nothing", trial(address, &driver));
    guest.part("the function goes to vfio-pci, and only once", given(address, &driver));
    guest.part("the doctor finds it fit", fit(&Machine::this().diagnose_function(address)?));
    guest.part("it can be opened and closed", guest.node()?.open().map(drop).map_err(Into::into));
    guest.part("it comes back to its driver, disk included", returned(address, &driver));
    guest.part("nothing is left to give back", nothing_left(address, &driver));
    guest.part("without a memory the kernel chooses the driver", chosen(address, &driver));
    Ok(())
}

/// The disk is mounted when the case begins.
fn mounted(guest: &Guest) -> Result<()> {
    let address: Bdf = guest.device().parse()?;
    let usage = refused(address)?;
    let is_mount = |usage: &Usage| matches!(usage, Usage::Mounted { .. });
    ensure!(usage.iter().any(is_mount), "refused for another reason: {usage:?}");
    let findings = Machine::this().diagnose_function(address)?;
    ensure!(findings.iter().any(|finding| finding.subject == "in use"), "the doctor says {findings:?}");
    ensure!(driver(address).is_some_and(|driver| driver != "vfio-pci"), "it was taken all the same");
    Ok(())
}

fn fit(findings: &[Finding]) -> Result<()> {
    let wrong: Vec<&Finding> = findings.iter().filter(|finding| finding.level == Level::Problem).collect();
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

fn in_the_way(address: Bdf, driver: &str) -> Result<()> {
    let findings = Machine::this().diagnose_function(address)?;
    let found = findings.iter().find(|finding| finding.subject == "driver").context("it says nothing")?;
    ensure!(found.level == Level::Problem && found.text.starts_with(driver), "{found:?}");
    ensure!(found.fix.as_deref() == Some(&format!("vdk bind {address}")), "{found:?}");
    Ok(())
}

fn open_disk(address: Bdf, driver_name: &str) -> Result<()> {
    let disk = disk(address)?;
    let holder = Holder::of(&disk)?;
    let usage = await_usage(address);
    drop(holder);
    let usage = usage?;
    let is_open = |usage: &Usage| matches!(usage, Usage::Open { .. });
    ensure!(usage.iter().any(is_open), "refused for another reason: {usage:?}");
    ensure!(driver(address).as_deref() == Some(driver_name), "it was taken all the same");
    Ok(())
}

fn trial(address: Bdf, driver_name: &str) -> Result<()> {
    let machine = Machine::this();
    let planned = Binder::new(&machine, &SystemControl).trial(true).bind(&[address], false, None)?;
    ensure!(planned[0].outcome == Outcome::Planned && planned[0].steps.len() >= 3, "{planned:?}");
    ensure!(driver(address).as_deref() == Some(driver_name), "the driver is another one");
    Ok(())
}

fn given(address: Bdf, driver_name: &str) -> Result<()> {
    let done = give(address)?;
    ensure!(done.outcome == Outcome::Done && done.from.as_deref() == Some(driver_name), "{done:?}");
    ensure!(driver(address).as_deref() == Some("vfio-pci"), "the driver is {:?}", driver(address));
    let again = give(address)?;
    ensure!(again.outcome == Outcome::Already, "{again:?}");
    Ok(())
}

fn returned(address: Bdf, driver_name: &str) -> Result<()> {
    let back = take_back(address)?;
    ensure!(back.to.as_deref() == Some(driver_name) && back.notes.is_empty(), "{back:?}");
    let mut sector = [0; 512];
    File::open(disk(address)?)?.read_exact(&mut sector).context("the disk cannot be read")?;
    let reserved = fs::read_to_string(folder(address).join("driver_override"))?;
    ensure!(reserved.trim() == "(null)", "it is still reserved for {reserved}");
    Ok(())
}

fn nothing_left(address: Bdf, driver_name: &str) -> Result<()> {
    let again = take_back(address)?;
    ensure!(again.outcome == Outcome::Already && again.to.as_deref() == Some(driver_name), "{again:?}");
    Ok(())
}

fn chosen(address: Bdf, driver_name: &str) -> Result<()> {
    give(address)?;
    fs::remove_dir_all("/run/vdk").context("no driver was remembered in /run/vdk")?;
    let back = take_back(address)?;
    ensure!(back.to.as_deref() == Some(driver_name) && back.notes.len() == 1, "{back:?}");
    disk(address).map(drop)
}

fn give(address: Bdf) -> Result<Transfer> {
    let machine = Machine::this();
    let mut done = Binder::new(&machine, &SystemControl).bind(&[address], true, Some(0))?;
    done.retain(|transfer| transfer.address == address);
    done.pop().context("nothing is told of the function")
}

fn take_back(address: Bdf) -> Result<Transfer> {
    let machine = Machine::this();
    let mut done = Binder::new(&machine, &SystemControl).unbind(&[address])?;
    done.pop().context("nothing is told of the function")
}

/// For what uses the function is refused.
fn refused(address: Bdf) -> Result<Vec<Usage>> {
    let machine = Machine::this();
    match Binder::new(&machine, &SystemControl).trial(true).bind(&[address], false, None) {
        Err(TransferError::InUse { usage }) => Ok(usage.into_iter().map(|(_, usage)| usage).collect()),
        other => bail!("it was not refused: {other:?}"),
    }
}

/// As [`refused`], once the holder has come to open the disk.
fn await_usage(address: Bdf) -> Result<Vec<Usage>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match refused(address) {
            Err(_) if Instant::now() < end => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// The disk of the function, once the driver has made it: its node is there before it can be
/// opened.
fn disk(address: Bdf) -> Result<std::path::PathBuf> {
    let own = fs::canonicalize(folder(address))?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        for entry in fs::read_dir("/sys/class/block")?.flatten() {
            let node = Path::new("/dev").join(entry.file_name());
            let belongs = fs::canonicalize(entry.path()).is_ok_and(|path| path.starts_with(&own));
            if belongs && File::open(&node).is_ok() {
                return Ok(node);
            }
        }
        std::thread::sleep(PAUSE);
    }
    bail!("{address} has no disk")
}

fn driver(address: Bdf) -> Option<String> {
    let link = fs::read_link(folder(address).join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn folder(address: Bdf) -> std::path::PathBuf {
    Path::new(sysfs::DEVICES).join(address.to_string())
}

/// A process that has a file open, ended when dropped.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Result<Self> {
        let script = format!("exec 9<{}; exec sleep 600", path.display());
        Ok(Self(Command::new("sh").args(["-c", &script]).spawn()?))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
