//! The lock of a device, who waits for it, and one open session.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use vdk_hal::address::{BarIndex, Bdf};
use vdk_hal::bar::{Liveness, LivenessState, MappedArea};
use vdk_hal::event::DeviceEvents;
use vdk_hal::mmio::Kick;
use vdk_iommu::soft::{BusMasterGate, SoftDomain, SoftIommu};

use super::device::{Device, Shared};

/// A device and everything that outlives its sessions.
pub(crate) struct Core {
    pub(crate) address: Bdf,
    pub(crate) shared: Shared,
    pub(crate) iommu: Arc<SoftIommu>,
    pub(crate) domain: Option<Arc<SoftDomain>>,
    pub(crate) spin: Duration,
    /// The processor of the device thread.
    pub(crate) cpu: Option<usize>,
    /// Who has the function open.
    pub(crate) holder: Mutex<Option<String>>,
    sessions: AtomicU64,
    waiting: Waiting,
    device: Mutex<Device>,
}

/// How many threads want the device, on a cache line that is otherwise not written.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Waiting(AtomicU32);

impl Core {
    pub(crate) fn new(
        address: Bdf,
        shared: Shared,
        iommu: Arc<SoftIommu>,
        domain: Option<Arc<SoftDomain>>,
        spin: Duration,
        cpu: Option<usize>,
        device: Device,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            shared,
            iommu,
            domain,
            spin,
            cpu,
            holder: Mutex::default(),
            sessions: AtomicU64::new(0),
            waiting: Waiting::default(),
            device: Mutex::new(device),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.shared.profile.name
    }

    /// A number that no other session of the device has, and not zero.
    pub(crate) fn next_session(&self) -> u64 {
        // ORDERING: Relaxed; only uniqueness matters.
        self.sessions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The device, for the device thread, which lets others in when they wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device, for everybody else: announces itself to the device thread, which then
    /// lets go within one step of its work.
    pub(crate) fn visit(&self) -> MutexGuard<'_, Device> {
        // ORDERING: Relaxed, as below; the mutex orders everything, this only makes the
        // device thread let go of it.
        self.waiting.0.fetch_add(1, Ordering::Relaxed);
        let device = self.lock_soon();
        self.waiting.0.fetch_sub(1, Ordering::Relaxed);
        device
    }

    /// Whether somebody waits for the device.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        // ORDERING: Relaxed; see `visit`.
        self.waiting.0.load(Ordering::Relaxed) != 0
    }

    /// For the device thread without the lock: gives those that wait time to take it.
    pub(crate) fn let_in(&self) {
        for look in 0..LOOKS {
            if !self.is_wanted() {
                return;
            }
            if look < LOOKS / 2 { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Looks for a while before it sleeps in the kernel: the device thread lets go soon.
    fn lock_soon(&self) -> MutexGuard<'_, Device> {
        for _ in 0..LOOKS {
            match self.device.try_lock() {
                Ok(device) => return device,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => core::hint::spin_loop(),
            }
        }
        self.lock()
    }
}

/// One open session. Handles of a closed one find another number in the device, or none.
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) core: Arc<Core>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) events: DeviceEvents,
    pub(crate) kick: Arc<Kick>,
    pub(crate) gate: Arc<BusMasterGate>,
    pub(crate) domain: Arc<SoftDomain>,
    pub(crate) areas: Vec<(BarIndex, MappedArea)>,
    pub(crate) stop: AtomicBool,
    /// Mapped doorbells are written by another process, which wakes nobody.
    pub(crate) silent_doorbells: AtomicBool,
}

/// Why a session does not reach its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    NotOpen,
    Gone,
}

impl Session {
    /// Whether the session is open and the function there.
    pub(crate) fn check(&self) -> Result<(), Unreachable> {
        match self.liveness.state() {
            LivenessState::Live | LivenessState::Asleep => Ok(()),
            LivenessState::Closed => Err(Unreachable::NotOpen),
            LivenessState::Gone => Err(Unreachable::Gone),
        }
    }

    /// The device, if this session still has it.
    pub(crate) fn visit(&self) -> Result<MutexGuard<'_, Device>, Unreachable> {
        self.check()?;
        let device = self.core.visit();
        if device.is_open_by(self.number) { Ok(device) } else { Err(Unreachable::NotOpen) }
    }

    /// Tells the device thread to end.
    pub(crate) fn stop(&self) {
        // ORDERING: SeqCst store before the look at the sleeper in `wake`; pairs with the
        // device thread, which says that it sleeps before it looks here.
        self.stop.store(true, Ordering::SeqCst);
        self.kick.wake();
    }

    /// From now on mapped doorbells may be written by a process that cannot wake the device
    /// thread, so that the thread has to look at them again and again.
    pub(crate) fn expect_silent_doorbells(&self) {
        // ORDERING: Relaxed; the wake-up makes the device thread look at it.
        self.silent_doorbells.store(true, Ordering::Relaxed);
        self.kick.wake();
    }

    /// Whether mapped doorbells may be written without a wake-up.
    pub(crate) fn has_silent_doorbells(&self) -> bool {
        // ORDERING: Relaxed; see `expect_silent_doorbells`.
        self.silent_doorbells.load(Ordering::Relaxed)
    }

    /// Whether the device thread is to end.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        // ORDERING: Relaxed; after `prepare_sleep` its fence orders this load.
        self.stop.load(Ordering::Relaxed)
    }
}

/// How often a waiter looks before it sleeps in the kernel.
const LOOKS: u32 = 2000;
