//! The other process of cases that need two.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use vdk_driver::edu::{Completion, Edu};
use vdk_driver::kit::Session;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::vfio::{VfioNode, VfioOptions};
use vdk_iommu::{AddressWidth, Bidirectional, DmaRegion, Domain, ToDevice};

use super::vfio::{address, options};
use super::vfio_virtual::TOKEN;
use crate::guest::{Case, Guest, Interface};

pub(super) const CASES: &[Case] =
    &[Case { name: "vfio-other", shows: "what the setting `role` says, for another process", run: role }];

/// A user that has no rights of its own.
const PLAIN_USER: u32 = 1000;
const READY: &str = "the other is ready";

/// Another process of this program, with the same device. It is killed when dropped.
pub(super) struct Other(Child);

impl Other {
    /// Starts it in a role and waits until it is ready.
    pub(super) fn start(guest: &Guest, role: &str) -> Result<Self> {
        Self::start_on(guest, guest.device(), role)
    }

    /// The same on another device.
    pub(super) fn start_on(guest: &Guest, device: &str, role: &str) -> Result<Self> {
        let child = Self::command(guest, device, role)?.stdout(Stdio::piped()).spawn()?;
        let mut other = Self(child);
        let output = other.0.stdout.take().context("no output")?;
        let mut said = String::new();
        for line in BufReader::new(output).lines() {
            let line = line?;
            if line == READY {
                return Ok(other);
            }
            said.push_str(&line);
        }
        ensure!(false, "the other process ended: {said}");
        Ok(other)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills it as `kill -9` does, and waits for its end.
    pub(super) fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Runs it to its end as a plain user who may lock so many KiB; returns what it said.
    pub(super) fn run_as_user(guest: &Guest, role: &str, kib: u32) -> Result<String> {
        let own = Self::command(guest, guest.device(), role)?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -l {kib} && exec \"$0\" \"$@\"")]);
        command.arg(own.get_program()).args(own.get_args());
        command.uid(PLAIN_USER).gid(PLAIN_USER).env_remove("VDK_HOST");
        let mut child = Self(command.stdout(Stdio::piped()).spawn().context("start as a plain user")?);
        let mut said = String::new();
        child.0.stdout.take().context("no output")?.read_to_string(&mut said)?;
        Ok(said)
    }

    /// Gives the plain user the nodes that lead to the device.
    pub(super) fn give_nodes(guest: &Guest) -> Result<()> {
        let function =
            vdk_hal::sysfs::SysfsFunction::read(Path::new(vdk_hal::sysfs::DEVICES), address(guest)?)?;
        let vfio = Path::new("/dev/vfio");
        let nodes = match guest.interface() {
            Interface::Type1 => {
                let group = function.iommu_group.context("no group")?.number;
                vec![vfio.join("vfio"), vfio.join(group.to_string())]
            }
            Interface::Iommufd => {
                let own = function.vfio_device().context("no node of its own")?;
                vec![Path::new("/dev/iommu").to_owned(), vfio.join("devices").join(own)]
            }
        };
        for node in nodes {
            std::os::unix::fs::chown(&node, Some(PLAIN_USER), Some(PLAIN_USER))
                .with_context(|| format!("chown {}", node.display()))?;
        }
        Ok(())
    }

    fn command(guest: &Guest, device: &str, role: &str) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["vfio-other", "--device", device]);
        command.args(["--interface", &guest.interface().to_string(), "--set", &format!("role={role}")]);
        command.env_remove("VDK_HOST").stdin(Stdio::null());
        Ok(command)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn role(guest: &Guest) -> Result<()> {
    match guest.setting("role")? {
        "hold" => {
            let function = guest.node()?.open()?;
            println!("{READY}");
            wait_for_the_end();
            drop(function);
        }
        "hold-virtual" => {
            let vf_token = (guest.interface() == Interface::Type1).then_some(TOKEN);
            let options = VfioOptions { vf_token, ..options(guest) };
            let function = VfioNode::new(address(guest)?, options).open_function()?;
            println!("{READY}");
            wait_for_the_end();
            drop(function);
        }
        "dma" => move_bytes(guest)?,
        "open" => drop(guest.node()?.open()?),
        "map" => map_at_the_limit(guest)?,
        other => anyhow::bail!("there is no role {other:?}"),
    }
    Ok(())
}

fn wait_for_the_end() {
    std::thread::sleep(core::time::Duration::from_secs(600));
}

/// Keeps the device busy until the process is killed.
fn move_bytes(guest: &Guest) -> Result<()> {
    let limit = core::time::Duration::from_secs(60);
    let mut edu = Edu::start(Session::open(&guest.node()?, "the other process")?)?;
    let memory = SharedMemory::allocate(ByteLength::new(1 << 16), Pages::Base)?;
    let input: DmaRegion<ToDevice> = edu.domain().map(memory)?;
    edu.copy_to_buffer(&input, 0, 4000, 0, Completion::Poll, limit)?;
    println!("{READY}");
    loop {
        edu.copy_to_buffer(&input, 0, 4000, 0, Completion::Poll, limit)?;
    }
}

/// Maps 2 MiB again and again: what is counted must come back each time.
fn map_at_the_limit(guest: &Guest) -> Result<()> {
    let function = guest.node()?.open()?;
    let domain = Domain::new(function.dma(), AddressWidth::new(48).context("a width")?)?;
    for _ in 0..100 {
        let memory = SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Base)?;
        let region: DmaRegion<Bidirectional> = domain.map(memory)?;
        region.unmap().map_err(|(error, _)| error)?;
    }
    println!("mapped and unmapped 100 times");
    Ok(())
}
