//! A function of this machine that may be opened.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cdev;
use super::choice::{Circumstances, choose, device_node, iommufd_node};
use super::claim::Claim;
use super::function::VfioFunction;
use super::group::Group;
use super::node_file::open_node;
use super::options::{AddressSpace, VfioOptions};
use super::refusal::Refusal;
use super::session::{Attachment, Opened, Session};
use super::space::Backing;
use crate::address::Bdf;
use crate::config::ConfigError;
use crate::function::{OpenError, PciFunction, PciIdentity, PciNode};
use crate::sysfs::{self, Obstacle, SysfsError, SysfsFunction};

/// A PCI function of this machine that is bound to `vfio-pci`.
#[derive(Debug)]
pub struct VfioNode {
    name: String,
    address: Bdf,
    options: VfioOptions,
    root: PathBuf,
}

impl VfioNode {
    /// The function at `address`. Nothing is looked at before it is opened.
    #[must_use]
    pub fn new(address: Bdf, options: VfioOptions) -> Self {
        Self { name: address.to_string(), address, options, root: sysfs::DEVICES.into() }
    }

    /// The same with another list of functions than [`sysfs::DEVICES`], for containers that
    /// have sysfs elsewhere.
    #[must_use]
    pub fn with_sysfs(mut self, root: impl AsRef<Path>) -> Self {
        self.root = root.as_ref().to_owned();
        self
    }

    /// Opens the function, as [`open`](PciNode::open) does, and keeps its type.
    ///
    /// # Errors
    ///
    /// [`OpenError`], with what to do about it.
    pub fn open_function(&self) -> Result<Arc<VfioFunction>, OpenError> {
        self.open_session().map(|session| Arc::new(VfioFunction { session }))
    }

    fn open_session(&self) -> Result<Arc<Session>, OpenError> {
        let refused = |refusal: Refusal| refusal.into_error(&self.name);
        let function = self.look()?;
        // A group that is shared is for the kernel to judge.
        if let Some(obstacle) =
            function.obstacles().into_iter().find(|one| !matches!(one, Obstacle::GroupShared { .. }))
        {
            return Err(refused(Refusal::new(obstacle.reason(), obstacle.fix())));
        }
        let claim = Claim::take(self.address).map_err(refused)?;
        self.attach(&function, claim).map_err(refused)
    }

    fn look(&self) -> Result<SysfsFunction, OpenError> {
        SysfsFunction::read(&self.root, self.address).map_err(|error| match error {
            SysfsError::Read { error: io::ErrorKind::NotFound, .. } => {
                OpenError::NotFound { function: self.name.clone() }
            }
            error => OpenError::Refused {
                function: self.name.clone(),
                reason: error.to_string(),
                fix: "see that sysfs is mounted at /sys".to_owned(),
            },
        })
    }

    fn attach(&self, function: &SysfsFunction, claim: Claim) -> Result<Arc<Session>, Refusal> {
        let space = match &self.options.address_space {
            AddressSpace::Own => Arc::default(),
            AddressSpace::Shared(shared) => Arc::clone(&shared.inner),
        };
        let token = self.options.vf_token;
        let interface = choose(&Circumstances {
            asked: self.options.interface,
            space: space.interface(),
            has_token: token.is_some(),
            iommufd: &|| iommufd_node(function),
        });
        log::debug!("{}: through {}, since {}", self.name, interface.interface, interface.reason);
        let (file, attachment) = match space.backing(interface.interface)? {
            Backing::Type1(container) => {
                let number = function.iommu_group.as_ref().map(|group| group.number);
                let number =
                    number.ok_or_else(|| Refusal::new("it is in no IOMMU group", "turn the IOMMU on"))?;
                let group = Group::join(function, number, &container, &space)?;
                let file = group.device(&self.name, token)?;
                (file, Attachment::Group { _group: group })
            }
            Backing::Iommufd(ioas) => {
                let node = device_node(function)?;
                let file = open_node(&node, "vfio-pci")?;
                cdev::bind_and_attach(&file, &node, &ioas, token, function)?;
                (file, Attachment::Iommufd)
            }
        };
        let opened = Opened {
            name: self.name.clone(),
            address: self.address,
            interface,
            root: self.root.clone(),
            file: Arc::new(file),
            attachment,
            space,
            claim,
        };
        Session::start(opened, &self.options)
    }
}

impl PciNode for VfioNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Bdf {
        self.address
    }

    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        match SysfsFunction::read(&self.root, self.address) {
            Ok(function) => Ok(function.identity),
            Err(SysfsError::Read { error: io::ErrorKind::NotFound, .. }) => Err(ConfigError::DeviceGone),
            Err(SysfsError::Read { error, .. }) => Err(ConfigError::System { offset: 0, error }),
            Err(SysfsError::Malformed { .. }) => {
                Err(ConfigError::Malformed { offset: 0, what: "sysfs does not say what the function is" })
            }
        }
    }

    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        Ok(self.open_function()?)
    }
}

#[cfg(test)]
mod tests;
