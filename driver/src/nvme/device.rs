//! The controller under its queues: enable, disable, reset.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use vdk_descriptors::nvme::{
    self, AdminOpcode, AdminQueueAttributes, COMPLETION_ENTRY_LOG2, CompletionEntry, ControllerCapabilities,
    ControllerConfiguration, ControllerStatus, NvmeRegisters, SUBMISSION_ENTRY_LOG2, ShutdownNotification,
    SubmissionEntry, Version,
};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::BarError;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::mmio::RegisterBlock;
use vdk_hal::poll::{Deadline, Pace, SystemClock, poll_until};
use vdk_iommu::Domain;

use super::ControllerOptions;
use super::admin::{Admin, DATA_LENGTH};
use super::bring_up::{self, ControllerFacts, Shadow};
use super::error::{AdminError, EnableError, ResetError, StartError, check_capabilities};
use super::queue::{ListShape, ShadowPages};
use super::stop::StopState;
use crate::kit::{BusMasterGuard, InterruptVector, Session};

/// A controller that runs. Queues keep it alive; it is stopped by `stop` or with the last.
pub(super) struct Device {
    /// Bus mastering is on while this is here.
    pub(super) bus_master: Mutex<Option<BusMasterGuard>>,
    registers: RegisterBlock<NvmeRegisters>,
    capabilities: ControllerCapabilities,
    version: Version,
    page: ByteLength,
    options: ControllerOptions,
    domain: Domain,
    vectors: Vec<InterruptVector>,
    facts: OnceLock<ControllerFacts>,
    pub(super) shadow: OnceLock<Shadow>,
    /// Which numbers of I/O queues are in use; the first is queue 1.
    taken: Mutex<Vec<bool>>,
    /// Counts the resets that were confirmed: queues of an earlier one exist no more.
    pub(super) generation: AtomicU64,
    pub(super) stop_state: StopState,
    pub(super) admin: Mutex<Admin>,
    /// Last, so that the function is closed when everything is unmapped.
    session: Session,
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Device {
    /// Brings the controller up: disabled first, and only then on the bus.
    pub(super) fn start(
        session: Session,
        domain: Domain,
        options: ControllerOptions,
    ) -> Result<Self, StartError> {
        session.enable_memory()?;
        let bar = session.bar(bar_index())?;
        let registers = bar.registers::<NvmeRegisters>(0)?;
        let capabilities = ControllerCapabilities(registers.read(NvmeRegisters::CAP)?);
        if capabilities.0 == u64::MAX {
            return Err(BarError::DeviceGone { bar: bar_index() }.into());
        }
        check_capabilities(capabilities)?;
        let version = Version(registers.read(NvmeRegisters::VS)?);
        let page = choose_page(capabilities)?;
        if let Err(error) = disable(&registers, capabilities) {
            // What does not listen to its own registers may listen to the bus.
            let Some(kind) = session.own_reset_kind()? else { return Err(error.into()) };
            log::warn!("{}: {error}; trying {kind}", session.name());
            session.reset(kind)?;
            disable(&registers, capabilities)?;
        }
        let vectors =
            if options.interrupts { plan_interrupts(&session, options.queues)? } else { Vec::new() };
        let max_transfer = ByteLength::from_usize(DATA_LENGTH);
        let shape = ListShape { page, max_transfer, sgl: None };
        let stride = capabilities.doorbell_stride();
        let admin = Admin::new(bar.registers(0)?, &domain, shape, stride, options.admin_limit)?;
        let device = Self {
            session,
            bus_master: Mutex::new(None),
            registers,
            capabilities,
            version,
            page,
            options,
            domain,
            vectors,
            facts: OnceLock::new(),
            shadow: OnceLock::new(),
            taken: Mutex::new(Vec::new()),
            generation: AtomicU64::new(0),
            stop_state: StopState::default(),
            admin: Mutex::new(admin),
        };
        // From here on an error stops the controller when `device` is dropped.
        let mut admin = device.lock_admin();
        let facts = device.enable(&mut admin)?;
        drop(admin);
        *locked(&device.taken) = vec![false; usize::from(facts.queues)];
        log::debug!("{}: {facts:?}", device.session.name());
        let _ = device.facts.set(facts);
        Ok(device)
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(super) fn registers(&self) -> &RegisterBlock<NvmeRegisters> {
        &self.registers
    }

    pub(super) fn capabilities(&self) -> ControllerCapabilities {
        self.capabilities
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    pub(super) fn page(&self) -> ByteLength {
        self.page
    }

    /// The page, as an offset in memory.
    pub(super) fn page_bytes(&self) -> usize {
        // PANIC: at most 2 MiB, by `choose_page`.
        usize::try_from(self.page.as_u64()).expect("a page of at most 2 MiB")
    }

    pub(super) fn options(&self) -> &ControllerOptions {
        &self.options
    }

    /// What the controller says of itself; there is a controller only when it was read.
    pub(super) fn facts(&self) -> &ControllerFacts {
        // PANIC: `start` sets it before it gives the device out.
        self.facts.get().expect("a started controller has facts")
    }

    /// The vectors, the first of them of the admin queue.
    pub(super) fn vectors(&self) -> &[InterruptVector] {
        &self.vectors
    }

    /// The event file of I/O queue `number`, with the number of its vector.
    pub(super) fn event(&self, number: u16) -> Option<(EventFd, u16)> {
        let vector = self.vectors.get(usize::from(number))?;
        Some((vector.event.clone(), vector.index))
    }

    pub(super) fn shadow_pages(&self) -> Option<&ShadowPages> {
        self.shadow.get().map(Shadow::pages)
    }

    pub(super) fn shadow_cell(&self) -> &OnceLock<Shadow> {
        &self.shadow
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `reset_locked`: who sees the new number
        // sees a controller that has stopped.
        self.generation.load(Ordering::Acquire)
    }

    /// Marks the lowest free I/O queue as in use.
    pub(super) fn take_queue(&self) -> Option<u16> {
        let mut taken = locked(&self.taken);
        let free = taken.iter().position(|taken| !taken)?;
        taken[free] = true;
        u16::try_from(free + 1).ok()
    }

    /// Marks an I/O queue as free.
    pub(super) fn release_queue(&self, number: u16) {
        if let Some(taken) = locked(&self.taken).get_mut(usize::from(number).wrapping_sub(1)) {
            *taken = false;
        }
    }

    /// CSTS, unless the device is gone.
    pub(super) fn status(&self) -> Result<ControllerStatus, BarError> {
        read_status(&self.registers)
    }

    pub(super) fn lock_admin(&self) -> MutexGuard<'_, Admin> {
        locked(&self.admin)
    }

    /// Executes an admin command, and hands its data to `take` when it succeeded.
    pub(super) fn admin<R>(
        &self,
        opcode: AdminOpcode,
        entry: SubmissionEntry,
        length: usize,
        take: impl FnOnce(&CompletionEntry, &Admin) -> R,
    ) -> Result<R, AdminError> {
        if self.stop_state.is_stopping() {
            return Err(AdminError::Stopped { command: opcode });
        }
        let mut admin = self.lock_admin();
        let completion = admin.execute(opcode, entry, length)?;
        Ok(take(&completion, &admin))
    }

    /// Sends an abort without waiting for anything. `false` when it has to be tried again:
    /// somebody uses the admin queue, or the controller takes no more now.
    pub(super) fn post_abort(&self, queue: u16, command_id: u16) -> Result<bool, AdminError> {
        if self.stop_state.is_stopping() {
            return Err(AdminError::Stopped { command: AdminOpcode::ABORT });
        }
        match self.admin.try_lock() {
            Ok(mut admin) => admin.post_abort(queue, command_id),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().post_abort(queue, command_id),
            Err(TryLockError::WouldBlock) => Ok(false),
        }
    }

    /// Executes an admin command without data.
    pub(super) fn execute(
        &self,
        opcode: AdminOpcode,
        entry: SubmissionEntry,
    ) -> Result<CompletionEntry, AdminError> {
        self.admin(opcode, entry, 0, |completion, _| *completion)
    }

    /// Resets the controller if its queues are still those of `generation`: of several that
    /// ask for it, one does it. One that is to stop is stopped, and gone then.
    pub(super) fn reset(&self, generation: u64) -> Result<(), ResetError> {
        let mut admin = self.lock_admin();
        if self.stop_state.is_stopping() {
            return Err(self.stop_for_reset(&mut admin));
        }
        if self.generation() != generation {
            return Ok(());
        }
        self.reset_locked(&mut admin)
    }

    fn reset_locked(&self, admin: &mut Admin) -> Result<(), ResetError> {
        log::info!("{}: resetting the controller", self.session.name());
        admin.shut();
        let revived = match self.prove_stopped() {
            Ok(revived) => revived,
            Err(error) if error.is_gone() => return Err(ResetError::Gone),
            Err(error) => return Err(ResetError::NotStopped(error)),
        };
        // ORDERING: Release pairs with `generation`: the controller has stopped.
        self.generation.fetch_add(1, Ordering::Release);
        match revived {
            Ok(()) => {}
            Err(error) if error.is_gone() => return Err(ResetError::Gone),
            Err(error) => return Err(ResetError::NotStarted(Box::new(error.into()))),
        }
        match self.enable(admin) {
            Ok(facts) if self.facts().shadow_doorbells && !facts.shadow_doorbells => {
                admin.shut();
                Err(ResetError::NotStarted(Box::new(StartError::ShadowDoorbells)))
            }
            Ok(facts) => {
                let queues = self.facts().queues;
                if facts.queues < queues {
                    log::warn!(
                        "{}: only {} of {queues} queues after the reset",
                        self.session.name(),
                        facts.queues
                    );
                }
                Ok(())
            }
            Err(error) => {
                admin.shut();
                Err(ResetError::NotStarted(Box::new(error)))
            }
        }
    }

    /// Lets the controller master the bus, gives it fresh admin queues, enables it and tells
    /// it what is wanted. Queue attributes are written anew each time.
    fn enable(&self, admin: &mut Admin) -> Result<ControllerFacts, StartError> {
        admin.reset();
        let place = admin.place(self.page);
        let mut attributes = AdminQueueAttributes::default();
        attributes.set_submission_size(place.submission_entries - 1);
        attributes.set_completion_size(place.completion_entries - 1);
        self.registers.write(NvmeRegisters::AQA, attributes.0)?;
        self.registers.write(NvmeRegisters::ASQ, place.submission)?;
        self.registers.write(NvmeRegisters::ACQ, place.completion)?;
        let mut bus_master = locked(&self.bus_master);
        if bus_master.is_none() {
            *bus_master = Some(self.session.enable_bus_master()?);
        }
        drop(bus_master);
        let mut configuration = ControllerConfiguration::default();
        configuration.set_page_exponent(page_exponent(self.page));
        configuration.set_submission_entry_exponent(SUBMISSION_ENTRY_LOG2);
        configuration.set_completion_entry_exponent(COMPLETION_ENTRY_LOG2);
        configuration.set_enable(true);
        self.registers.write(NvmeRegisters::CC, configuration.0)?;
        wait_ready(&self.registers, self.capabilities, true)?;
        bring_up::bring_up(self, admin)
    }
}

pub(super) fn bar_index() -> BarIndex {
    // PANIC: the constant is a valid index.
    BarIndex::new(nvme::BAR).expect("BAR 0 exists")
}

/// CSTS; all ones is a device that is gone.
pub(super) fn read_status(registers: &RegisterBlock<NvmeRegisters>) -> Result<ControllerStatus, BarError> {
    match registers.read(NvmeRegisters::CSTS)? {
        u32::MAX => Err(BarError::DeviceGone { bar: bar_index() }),
        status => Ok(ControllerStatus(status)),
    }
}

/// Clears CC.EN and waits until the controller says that it has stopped.
pub(super) fn disable(
    registers: &RegisterBlock<NvmeRegisters>,
    capabilities: ControllerCapabilities,
) -> Result<(), EnableError> {
    read_status(registers)?;
    let mut configuration = ControllerConfiguration(registers.read(NvmeRegisters::CC)?);
    if configuration.enable() {
        configuration.set_enable(false);
        configuration.set_shutdown(ShutdownNotification::NONE);
        registers.write(NvmeRegisters::CC, configuration.0)?;
    }
    wait_ready(registers, capabilities, false)
}

/// Waits until CSTS.RDY is `ready`, as long as CAP.TO allows.
fn wait_ready(
    registers: &RegisterBlock<NvmeRegisters>,
    capabilities: ControllerCapabilities,
    ready: bool,
) -> Result<(), EnableError> {
    let clock = SystemClock::new();
    // CAP.TO of zero is known from controllers that need a moment all the same.
    let limit = capabilities.timeout().max(Duration::from_millis(500));
    let what =
        if ready { "CSTS.RDY after CC.EN was set" } else { "CSTS.RDY going off after CC.EN was cleared" };
    let mut last = 0;
    let waited = poll_until(&clock, Deadline::after(&clock, limit), Pace::SLOW, what, || {
        let status = read_status(registers)?;
        last = status.0;
        // A fatal error is cleared by clearing EN, so on the way there it is no reason to stop.
        if ready && status.fatal() {
            return Err(EnableError::Fatal { status: status.0 });
        }
        Ok((status.ready() == ready).then_some(()))
    });
    waited.map_err(|error| match error {
        EnableError::TimedOut { error, .. } => EnableError::TimedOut { error, status: last },
        other => other,
    })
}

/// The page of queues and page pointers: 4 KiB, or the smallest that the controller has.
fn choose_page(capabilities: ControllerCapabilities) -> Result<ByteLength, StartError> {
    let (min, max) = (capabilities.page_min(), capabilities.page_max());
    if min > max || min > ByteLength::SIZE_2M {
        return Err(StartError::PageSize {
            min: min.as_u64().trailing_zeros(),
            max: max.as_u64().trailing_zeros(),
        });
    }
    Ok(min)
}

/// CC.MPS for a page.
fn page_exponent(page: ByteLength) -> u8 {
    // A page is 4 KiB to 2 MiB, by `choose_page`.
    u8::try_from(page.as_u64().trailing_zeros().saturating_sub(12)).unwrap_or(0)
}

/// Enables an MSI-X vector for the admin queue and one for each I/O queue, as far as the
/// function has them. Without any, completions can only be polled.
fn plan_interrupts(session: &Session, queues: u16) -> Result<Vec<InterruptVector>, StartError> {
    let available = session.interrupts()?.vector_count(InterruptKind::Msix);
    if available == 0 {
        log::warn!("{}: no MSI-X; completions can only be polled", session.name());
        return Ok(Vec::new());
    }
    match session.configure_interrupts(InterruptKind::Msix, 1, queues.saturating_add(1)) {
        Ok(vectors) => Ok(vectors),
        Err(error) => {
            log::warn!("{}: {error}; completions can only be polled", session.name());
            Ok(Vec::new())
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
