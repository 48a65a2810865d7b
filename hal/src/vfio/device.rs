//! The file of an open device: the only way to it, and one that can be shut.

use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::io::Errno;

use super::kernel::{Attached, Call, KernelFile};
use super::message::Message;
use crate::bar::{Liveness, LivenessState};
use crate::memory::SharedMemory;

/// A device whose file is closed by [`shut`](Self::shut), whoever still holds a handle.
pub(super) struct Device {
    file: RwLock<Option<Arc<dyn KernelFile>>>,
    liveness: Arc<Liveness>,
    /// In low power by our own wish.
    resting: AtomicBool,
    /// What is mapped, and from where in the file.
    areas: Mutex<Vec<(SharedMemory, u64)>>,
}

/// Why the device was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreached {
    /// The session is closed.
    NotOpen,
    /// The function is gone.
    Gone,
    /// The kernel said no.
    Failed(Errno),
}

impl Device {
    pub(super) fn new(file: Arc<dyn KernelFile>) -> Self {
        Self {
            file: RwLock::new(Some(file)),
            liveness: Liveness::new(),
            resting: AtomicBool::new(false),
            areas: Mutex::default(),
        }
    }

    pub(super) fn liveness(&self) -> &Arc<Liveness> {
        &self.liveness
    }

    /// Notes that memory space was turned on or off. An access while it is off would look
    /// like a removal.
    pub(super) fn set_decoding(&self, on: bool) {
        if on && !self.is_resting() {
            self.liveness.wake_after(|| self.restore_areas());
        } else {
            self.liveness.sleep();
        }
    }

    /// Notes that `memory` maps the file from `offset`.
    pub(super) fn add_area(&self, memory: SharedMemory, offset: u64) {
        self.areas.lock().unwrap_or_else(PoisonError::into_inner).push((memory, offset));
    }

    /// Nothing is mapped anew after this.
    pub(super) fn forget_areas(&self) {
        self.areas.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Maps anew what was touched while the function slept: ones took its place.
    fn restore_areas(&self) {
        let areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        if areas.is_empty() || !self.liveness.take_torn() {
            return;
        }
        for (memory, offset) in &*areas {
            if let Ok(Err(error)) = self.with_file(|file| memory.restore(file, *offset)) {
                log::error!("a BAR cannot be mapped again: {error}");
                self.liveness.remove();
            }
        }
    }

    /// Whether accesses to the function's memory are answered.
    pub(super) fn is_decoding(&self) -> bool {
        self.liveness.state() == LivenessState::Live
    }

    /// Notes that the function enters or leaves low power.
    pub(super) fn set_resting(&self, resting: bool) {
        // ORDERING: Release pairs with `is_resting`.
        self.resting.store(resting, Ordering::Release);
        if resting {
            self.liveness.sleep();
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        // ORDERING: Acquire pairs with `set_resting`.
        self.resting.load(Ordering::Acquire)
    }

    /// Ends every access and closes the file. Accesses that are under way are waited for.
    pub(super) fn shut(&self) -> Option<Arc<dyn KernelFile>> {
        self.file.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Uses the file, if it is open and the function there.
    pub(super) fn reach<R>(
        &self,
        access: impl FnOnce(&dyn KernelFile) -> Result<R, Errno>,
    ) -> Result<R, Unreached> {
        match self.liveness.state() {
            LivenessState::Closed => return Err(Unreached::NotOpen),
            LivenessState::Gone => return Err(Unreached::Gone),
            LivenessState::Live | LivenessState::Asleep => {}
        }
        self.reach_anyhow(access)
    }

    /// Uses the file even after the session was closed, for closing it.
    pub(super) fn reach_anyhow<R>(
        &self,
        access: impl FnOnce(&dyn KernelFile) -> Result<R, Errno>,
    ) -> Result<R, Unreached> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &*file else { return Err(Unreached::NotOpen) };
        access(&**file).map_err(|error| match error {
            Errno::NODEV | Errno::NXIO => {
                self.liveness.remove();
                Unreached::Gone
            }
            other => Unreached::Failed(other),
        })
    }

    /// A message and its answer.
    pub(super) fn exchange(&self, call: Call, message: &mut Message) -> Result<u32, Unreached> {
        self.reach(|file| file.exchange(call, message, Attached::Nothing))
    }

    /// As [`exchange`](Self::exchange), even after the session was closed.
    pub(super) fn exchange_anyhow(&self, call: Call, message: &mut Message) -> Result<u32, Unreached> {
        self.reach_anyhow(|file| file.exchange(call, message, Attached::Nothing))
    }

    /// Uses the file for mapping a part of it.
    pub(super) fn with_file<R>(&self, access: impl FnOnce(&File) -> R) -> Result<R, Unreached> {
        self.reach(|file| Ok(access(file.file())))
    }
}

impl Unreached {
    /// What the system said, for errors that have no better place for it.
    pub(super) fn kind(self) -> std::io::ErrorKind {
        match self {
            Self::NotOpen => std::io::ErrorKind::NotConnected,
            Self::Gone => std::io::ErrorKind::NotFound,
            Self::Failed(error) => std::io::Error::from(error).kind(),
        }
    }
}
