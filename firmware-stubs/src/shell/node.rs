//! An emulated function as a node that can be opened.

use core::fmt;
use core::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use vdk_hal::address::Bdf;
use vdk_hal::bar::Liveness;
use vdk_hal::config::ConfigError;
use vdk_hal::event::{DeviceEvent, DeviceEvents};
use vdk_hal::function::{OpenError, PciFunction, PciIdentity, PciNode};
use vdk_hal::mmio::Kick;
use vdk_iommu::soft::{BusMasterGate, SoftIommu, SoftIommuOptions};

use super::device::{Attachment, Device, Presence, Shared};
use super::function::StubFunction;
use super::interrupts::InterruptUnit;
use super::model::DeviceModel;
use super::profile::Profile;
use super::session::{Core, Session};
use crate::driver_fault::{DriverFault, DriverFaultLog};
use crate::fault::FaultPlan;
use crate::kind::StubKind;
use crate::options::{StubError, StubOptions};
use crate::statistics::{Counters, StubStatistics};

/// An emulated function that can be opened, by one owner at a time. It is also the person
/// behind the bus: it removes the function, asks for it back, and knows what happened.
pub struct StubNode {
    core: Arc<Core>,
}

impl StubNode {
    /// Builds an emulated device.
    ///
    /// # Errors
    ///
    /// [`StubError::Option`] when an option is out of its range.
    pub fn new(kind: StubKind, options: StubOptions) -> Result<Arc<Self>, StubError> {
        let (profile, model) = match kind {
            StubKind::Edu => crate::edu::build(&options)?,
            StubKind::Ioat => crate::ioat::build(&options)?,
            StubKind::Nvme => crate::nvme::build(&options)?,
        };
        Self::with_model(profile, model, options)
    }

    /// Puts a device model of the caller's behind the PCI shell. The options that belong to
    /// the models of this crate are not looked at.
    ///
    /// # Errors
    ///
    /// [`StubError::Profile`] when the description contradicts the PCI standard.
    pub fn with_model(
        profile: Profile,
        model: Box<dyn DeviceModel>,
        options: StubOptions,
    ) -> Result<Arc<Self>, StubError> {
        profile.check()?;
        let device = Device::new(&profile, model, &options.fault_plan, options.seed);
        let iommu = match (&options.domain, options.iommu) {
            (Some(domain), _) => Arc::clone(domain.iommu()),
            (None, Some(iommu)) => iommu,
            (None, None) => SoftIommu::new(SoftIommuOptions::default()),
        };
        let shared = Shared {
            interrupts: InterruptUnit::new(&profile, options.fixed_vectors),
            profile,
            faults: DriverFaultLog::default(),
            counters: Counters::default(),
        };
        let StubOptions { address, domain, spin, cpu, .. } = options;
        let core = Core::new(address, shared, iommu, domain, spin, cpu, device);
        Ok(Arc::new(Self { core }))
    }

    /// The IOMMU in front of the device, with its log of translation faults.
    #[must_use]
    pub fn iommu(&self) -> &Arc<SoftIommu> {
        &self.core.iommu
    }

    /// Removes the function by surprise: everything answers as if it were not there, DMA
    /// ends, and the session gets [`DeviceEvent::Removed`].
    pub fn remove(&self) {
        self.core.visit().remove(&self.core.shared);
    }

    /// Asks the session for the function, as the kernel does when somebody unbinds it.
    pub fn request_release(&self) {
        self.core.visit().raise(DeviceEvent::ReleaseRequested);
    }

    /// Reports an uncorrectable internal error, in the AER capability where there is one.
    pub fn report_error(&self) {
        self.core.visit().raise(DeviceEvent::Error);
    }

    /// What the device has done.
    #[must_use]
    pub fn statistics(&self) -> StubStatistics {
        self.core.shared.counters.snapshot(self.core.shared.interrupts.counts())
    }

    /// What drivers did wrong: the first 256 faults.
    #[must_use]
    pub fn driver_faults(&self) -> Vec<DriverFault> {
        self.core.shared.faults.entries()
    }

    /// How many things drivers did wrong.
    #[must_use]
    pub fn driver_fault_count(&self) -> u64 {
        self.core.shared.faults.count()
    }

    /// Forgets what drivers did wrong.
    pub fn clear_driver_faults(&self) {
        self.core.shared.faults.clear();
    }

    /// Replaces the fault plan; descriptors are counted from one again.
    pub fn set_fault_plan(&self, plan: &FaultPlan) {
        self.core.visit().set_fault_plan(plan);
    }

    /// Opens the function and keeps its own type.
    ///
    /// # Errors
    ///
    /// As [`PciNode::open`].
    pub fn open_stub(&self) -> Result<Arc<StubFunction>, OpenError> {
        let function = self.core.name().to_owned();
        let mut holder = self.core.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = &*holder {
            return Err(OpenError::Busy { function, holder: holder.clone() });
        }
        let session = self.begin_session(&function)?;
        let opened = StubFunction::start(session)?;
        *holder = Some(holder_text());
        Ok(opened)
    }

    fn begin_session(&self, function: &str) -> Result<Arc<Session>, OpenError> {
        let refused = |error: &dyn fmt::Display| OpenError::Refused {
            function: function.to_owned(),
            reason: error.to_string(),
            fix: "close files or raise `ulimit -n`".to_owned(),
        };
        let kick = Kick::new().map_err(|error| refused(&error))?;
        let events = DeviceEvents::new().map_err(|error| refused(&error))?;
        let domain = self.core.domain.clone().unwrap_or_else(|| self.core.iommu.domain());
        let mut device = self.core.visit();
        if device.presence() != Presence::Present {
            return Err(OpenError::Gone { function: function.to_owned() });
        }
        let areas = device.model().open(&kick).map_err(|error| refused(&error))?;
        let session = Session {
            number: self.core.next_session(),
            core: Arc::clone(&self.core),
            liveness: Liveness::new(),
            events,
            kick,
            gate: BusMasterGate::new(),
            domain,
            areas,
            stop: AtomicBool::new(false),
            silent_doorbells: AtomicBool::new(false),
        };
        let attachment = Attachment {
            session: session.number,
            liveness: Arc::clone(&session.liveness),
            events: session.events.clone(),
            gate: Arc::clone(&session.gate),
        };
        device.attach(&self.core.shared, attachment);
        Ok(Arc::new(session))
    }
}

impl PciNode for StubNode {
    fn name(&self) -> &str {
        self.core.name()
    }

    fn address(&self) -> Bdf {
        self.core.address
    }

    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        match self.core.visit().presence() {
            Presence::Present => Ok(self.core.shared.profile.identity),
            Presence::AllOnes | Presence::Removed => Err(ConfigError::DeviceGone),
        }
    }

    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        let function: Arc<dyn PciFunction> = self.open_stub()?;
        Ok(function)
    }
}

impl fmt::Debug for StubNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubNode")
            .field("name", &self.core.name())
            .field("address", &self.core.address)
            .finish_non_exhaustive()
    }
}

fn holder_text() -> String {
    let thread = std::thread::current();
    format!("process {}, thread {}", std::process::id(), thread.name().unwrap_or("without a name"))
}
