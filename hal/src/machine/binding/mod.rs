//! Giving functions to `vfio-pci`, and back to the drivers that had them.
//!
//! One call is one transaction: when a step fails, every function is brought back to the
//! state that it had, and the error tells whether that worked.

mod error;
mod settle;
mod step;

pub use error::{Fault, TransferError};
pub use step::Step;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use settle::{Taker, Target};

use super::driver_state::DriverState;
use super::{Control, Machine, VFIO_PCI, is_safe_in_group, is_vfio};
use crate::address::Bdf;
use crate::poll::{Clock, Deadline, SystemClock};
use crate::sysfs::{SysfsError, SysfsFunction};

/// Moves functions between drivers.
pub struct Binder<'a> {
    machine: &'a Machine,
    control: &'a dyn Control,
    forced: bool,
    trial: bool,
}

/// What was done, or would be done, with one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The function.
    pub address: Bdf,
    /// The driver that had it.
    pub from: Option<String>,
    /// The driver that has it now. In a trial: the one that is meant to get it.
    pub to: Option<String>,
    /// How it went.
    pub outcome: Outcome,
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// What is worth knowing.
    pub notes: Vec<String>,
}

/// How a transfer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was nothing to do.
    Already,
    /// It was done.
    Done,
    /// It would be done: this was a trial.
    Planned,
}

/// A function with the state that it had before.
struct Former {
    address: Bdf,
    state: DriverState,
    remembered: Option<DriverState>,
    /// The owners of its device nodes.
    owners: Vec<(PathBuf, u32)>,
}

impl<'a> Binder<'a> {
    /// Moves functions of `machine` by the means of `control`.
    #[must_use]
    pub fn new(machine: &'a Machine, control: &'a dyn Control) -> Self {
        Self { machine, control, forced: false, trial: false }
    }

    /// The same, taking functions that are in use as well when `forced`. What no IOMMU confines
    /// is refused all the same.
    #[must_use]
    pub fn forced(mut self, forced: bool) -> Self {
        self.forced = forced;
        self
    }

    /// The same, changing nothing and only telling the steps when `trial`.
    #[must_use]
    pub fn trial(mut self, trial: bool) -> Self {
        self.trial = trial;
        self
    }

    /// Gives functions to `vfio-pci` and remembers the drivers that had them. With
    /// `whole_group` the other members of their IOMMU groups go along where a driver has
    /// them that keeps the group from being opened. `owner` gets the device nodes.
    ///
    /// # Errors
    ///
    /// [`TransferError`]. Every function is then as it was, unless the error says otherwise.
    pub fn bind(
        &self,
        functions: &[Bdf],
        whole_group: bool,
        owner: Option<u32>,
    ) -> Result<Vec<Transfer>, TransferError> {
        let functions = self.chosen(functions, whole_group)?;
        let mut formers = Vec::new();
        for function in &functions {
            formers.push(self.former(function)?);
        }
        let wanting: Vec<&SysfsFunction> =
            functions.iter().filter(|function| !self.is_bound(function.address)).collect();
        self.refuse_unfit(&wanting)?;
        self.refuse_without_rights(wanting.first().map(|function| function.address))?;
        let mut module = Vec::new();
        if !wanting.is_empty() {
            self.load(VFIO_PCI, &mut module)?;
        }
        let target =
            Target { taker: Taker::This(VFIO_PCI.to_owned()), reserved_for: Some(VFIO_PCI.to_owned()) };
        let mut transfers = Vec::new();
        for (index, (function, former)) in functions.iter().zip(&formers).enumerate() {
            let result = self.bind_one(function, former, &target, owner);
            let mut transfer =
                result.map_err(|fault| self.undo(fault, formers.get(..=index).unwrap_or_default()))?;
            if transfer.outcome != Outcome::Already {
                module.append(&mut transfer.steps);
                transfer.steps = std::mem::take(&mut module);
            }
            transfers.push(transfer);
        }
        for (transfer, function) in transfers.iter_mut().zip(&functions) {
            transfer.notes.extend(self.rest_of_group(function, &functions));
        }
        Ok(transfers)
    }

    /// Gives functions back to the drivers that are remembered. Where none is, the kernel
    /// chooses. A function that `vfio-pci` does not have is left alone.
    ///
    /// # Errors
    ///
    /// [`TransferError`]. Every function is then as it was, unless the error says otherwise.
    pub fn unbind(&self, functions: &[Bdf]) -> Result<Vec<Transfer>, TransferError> {
        let functions = self.chosen(functions, false)?;
        let mut formers = Vec::new();
        for function in &functions {
            formers.push(self.former(function)?);
            if !self.forced && self.is_bound(function.address) {
                self.refuse_open(function)?;
            }
        }
        let concerned = formers.iter().find(|former| is_given_away(&former.state));
        self.refuse_without_rights(concerned.map(|former| former.address))?;
        let mut transfers = Vec::new();
        for (index, former) in formers.iter().enumerate() {
            let result = self.unbind_one(former);
            transfers
                .push(result.map_err(|fault| self.undo(fault, formers.get(..=index).unwrap_or_default()))?);
        }
        Ok(transfers)
    }

    /// The named functions once each, and the members of their groups.
    fn chosen(&self, functions: &[Bdf], whole_group: bool) -> Result<Vec<SysfsFunction>, TransferError> {
        let mut chosen: Vec<SysfsFunction> = Vec::new();
        let mut addresses = functions.to_vec();
        let mut next = 0;
        while let Some(&address) = addresses.get(next) {
            next += 1;
            if chosen.iter().any(|function| function.address == address) {
                continue;
            }
            let function =
                SysfsFunction::read(&self.machine.devices(), address).map_err(|error| match error {
                    SysfsError::Read { error: io::ErrorKind::NotFound, .. } => {
                        TransferError::NotFound { address }
                    }
                    other => TransferError::Sysfs(other),
                })?;
            if whole_group && let Some(group) = &function.iommu_group {
                let foreign =
                    |driver: &Option<String>| driver.as_deref().is_some_and(|name| !is_safe_in_group(name));
                addresses.extend(
                    group.members.iter().filter(|(_, driver)| foreign(driver)).map(|(member, _)| *member),
                );
            }
            chosen.push(function);
        }
        Ok(chosen)
    }

    fn former(&self, function: &SysfsFunction) -> Result<Former, TransferError> {
        let address = function.address;
        let state = self.machine.driver_state(address).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TransferError::NoDriverOverride { address },
            _ => TransferError::Sysfs(SysfsError::Read {
                path: self.machine.function(address).join("driver_override"),
                error: error.kind(),
            }),
        })?;
        let owner = |node: PathBuf| Some((node.clone(), fs::metadata(node).ok()?.uid()));
        let owners = self.machine.device_nodes(function).into_iter().filter_map(owner).collect();
        Ok(Former { address, state, remembered: self.machine.remembered(address), owners })
    }

    fn is_bound(&self, address: Bdf) -> bool {
        self.machine.driver(address).is_some_and(|driver| is_vfio(&driver))
    }

    /// Refuses functions that are in use unless forced, and those that `vfio-pci` would not take.
    fn refuse_unfit(&self, wanting: &[&SysfsFunction]) -> Result<(), TransferError> {
        let mut usage = Vec::new();
        for function in wanting.iter().filter(|_| !self.forced) {
            usage.extend(self.machine.usage(function).into_iter().map(|one| (function.address, one)));
        }
        if !usage.is_empty() {
            return Err(TransferError::InUse { usage });
        }
        // Forced or not: it would be taken from its driver for nothing.
        let unconfined = |function: &&&SysfsFunction| function.iommu_group.is_none();
        match wanting.iter().find(unconfined) {
            Some(function) => Err(TransferError::NoIommu { address: function.address }),
            None => Ok(()),
        }
    }

    /// Refuses to take a function from under a program: the kernel would wait for it.
    fn refuse_open(&self, function: &SysfsFunction) -> Result<(), TransferError> {
        for node in self.machine.device_nodes(function) {
            let holders = self.machine.holders(&node);
            if !holders.is_empty() {
                return Err(TransferError::Open { address: function.address, holders });
            }
        }
        Ok(())
    }

    fn refuse_without_rights(&self, address: Option<Bdf>) -> Result<(), TransferError> {
        let Some(address) = address else { return Ok(()) };
        let path = self.machine.function(address).join("driver_override");
        if self.trial || self.control.may_write(&path) {
            Ok(())
        } else {
            Err(TransferError::NotPermitted { path })
        }
    }

    /// Sees to it that a driver is there.
    fn load(&self, driver: &str, steps: &mut Vec<Step>) -> Result<(), TransferError> {
        let there = || self.machine.path(&format!("/sys/bus/pci/drivers/{driver}")).exists();
        if there() {
            return Ok(());
        }
        steps.push(Step::LoadModule { name: driver.to_owned() });
        if self.trial {
            return Ok(());
        }
        log::info!("loading the module {driver}");
        let missing = |reason: String| TransferError::NoModule { name: driver.to_owned(), reason };
        self.control.load_module(driver).map_err(missing)?;
        if there() {
            Ok(())
        } else {
            Err(missing("the module was loaded, and the driver is not there".to_owned()))
        }
    }

    fn bind_one(
        &self,
        function: &SysfsFunction,
        former: &Former,
        target: &Target,
        owner: Option<u32>,
    ) -> Result<Transfer, Fault> {
        let address = former.address;
        let already = former.state.driver.as_deref().is_some_and(is_vfio);
        let mut transfer = self.transfer(former);
        if already {
            transfer.to.clone_from(&transfer.from);
            transfer.outcome = Outcome::Already;
        } else {
            transfer.to = Some(VFIO_PCI.to_owned());
            // One that was taken away from vfio-pci by hand is still given away: who had it
            // before was remembered then.
            let had = match &former.remembered {
                Some(state) if is_given_away(&former.state) => state,
                _ => &former.state,
            };
            let place = self.remember(address, had)?;
            transfer.steps.push(Step::Remember { place, state: had.clone() });
            self.settle(address, &former.state, target, &mut transfer.steps)?;
        }
        if let Some(user) = owner {
            for path in self.awaited_nodes(function, already) {
                transfer.steps.push(Step::ChangeOwner { path: path.clone(), user });
                if !self.trial {
                    self.change_owner(&path, user)?;
                }
            }
        }
        Ok(transfer)
    }

    fn unbind_one(&self, former: &Former) -> Result<Transfer, Fault> {
        let address = former.address;
        let mut transfer = self.transfer(former);
        if !is_given_away(&former.state) {
            transfer.to.clone_from(&transfer.from);
            transfer.outcome = Outcome::Already;
            if !self.trial {
                self.machine.forget(address);
            }
            return Ok(transfer);
        }
        let target = match &former.remembered {
            Some(state) => Target::of(state),
            None => {
                transfer.notes.push("no driver was remembered: the kernel chose".to_owned());
                Target { taker: Taker::Any, reserved_for: None }
            }
        };
        if let Taker::This(driver) = &target.taker {
            // Whether it worked is seen when the driver is to take the function.
            let _ = self.load(driver, &mut transfer.steps);
            transfer.to = Some(driver.clone());
        }
        self.settle(address, &former.state, &target, &mut transfer.steps)?;
        if former.remembered.is_some() {
            transfer.steps.push(Step::Forget { address });
        }
        if !self.trial {
            self.machine.forget(address);
            transfer.to = self.machine.driver(address);
        }
        Ok(transfer)
    }

    fn transfer(&self, former: &Former) -> Transfer {
        Transfer {
            address: former.address,
            from: former.state.driver.clone(),
            to: None,
            outcome: if self.trial { Outcome::Planned } else { Outcome::Done },
            steps: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn remember(&self, address: Bdf, state: &DriverState) -> Result<PathBuf, Fault> {
        if self.trial {
            return Ok(self.machine.records.first().cloned().unwrap_or_default().join(address.to_string()));
        }
        let remembered = self.machine.remember(address, state);
        remembered.map_err(|(path, error)| Fault::Remember { path, error: error.to_string() })
    }

    /// Brings the functions back to what they were; the last first.
    fn undo(&self, fault: Fault, formers: &[Former]) -> TransferError {
        let mut left = Vec::new();
        if !self.trial {
            for former in formers.iter().rev() {
                let now = self.machine.driver_state(former.address).unwrap_or_default();
                let target = Target::of(&former.state);
                if let Err(fault) = self.settle(former.address, &now, &target, &mut Vec::new()) {
                    left.push(fault);
                }
                match &former.remembered {
                    Some(state) => left.extend(self.remember(former.address, state).err()),
                    None => self.machine.forget(former.address),
                }
                for (path, user) in &former.owners {
                    let changed = fs::metadata(path).is_ok_and(|metadata| metadata.uid() != *user);
                    if changed && let Err(fault) = self.change_owner(path, *user) {
                        left.push(fault);
                    }
                }
            }
        }
        TransferError::Failed { fault, left }
    }

    fn change_owner(&self, path: &Path, user: u32) -> Result<(), Fault> {
        let failed =
            |error: io::Error| Fault::Owner { path: path.to_owned(), user, error: error.to_string() };
        self.control.change_owner(path, user).map_err(failed)
    }

    /// The nodes that an owner is given: those that are there, after a short wait for them.
    fn awaited_nodes(&self, function: &SysfsFunction, already: bool) -> Vec<PathBuf> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, NODE_PATIENCE);
        loop {
            let nodes = self.machine.device_nodes(function);
            let complete = nodes.iter().all(|node| node.exists());
            if self.trial || complete || already || deadline.is_over(&clock) {
                return nodes.into_iter().filter(|node| self.trial || node.exists()).collect();
            }
            clock.sleep(NODE_PAUSE);
        }
    }

    /// What still keeps the group of a function from being opened.
    fn rest_of_group(&self, function: &SysfsFunction, moved: &[SysfsFunction]) -> Option<String> {
        let group = function.iommu_group.as_ref()?;
        let others: Vec<String> = group
            .members
            .iter()
            .filter(|(member, _)| moved.iter().all(|function| function.address != *member))
            .filter_map(|(member, driver)| Some((member, driver.as_ref()?)))
            .filter(|(_, driver)| !is_safe_in_group(driver))
            .map(|(member, driver)| format!("{member} ({driver})"))
            .collect();
        (!others.is_empty()).then(|| {
            format!(
                "IOMMU group {} cannot be opened yet, since it also holds {}: vdk bind --group {}",
                group.number,
                others.join(", "),
                function.address
            )
        })
    }
}

impl Machine {
    /// The device nodes through which user space opens a function: that of its group and its
    /// own, whether they are there or not.
    pub(super) fn device_nodes(&self, function: &SysfsFunction) -> Vec<PathBuf> {
        let group = function.iommu_group.as_ref().map(|group| {
            let prefix = if group.without_iommu { "noiommu-" } else { "" };
            self.path(&format!("/dev/vfio/{prefix}{}", group.number))
        });
        let own = super::names(&function.folder().join("vfio-dev"));
        let own = own.iter().map(|name| self.path(&format!("/dev/vfio/devices/{name}")));
        group.into_iter().chain(own).collect()
    }
}

/// Whether a function is with a driver of VFIO, or waits for one.
fn is_given_away(state: &DriverState) -> bool {
    match &state.driver {
        Some(driver) => is_vfio(driver),
        None => state.reserved_for.as_deref().is_some_and(is_vfio),
    }
}

/// udev needs a few tens of milliseconds on a busy machine.
const NODE_PATIENCE: core::time::Duration = core::time::Duration::from_millis(400);
const NODE_PAUSE: core::time::Duration = core::time::Duration::from_millis(20);

#[cfg(test)]
mod tests;
