//! The handle through which a BAR is accessed.

// UNSAFETY: volatile accesses through checked pointers into mapped areas.
#![expect(unsafe_code, reason = "volatile access to checked addresses")]

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::Arc;

use volatile::VolatilePtr;

use super::{BarError, BarInfo};
use crate::memory::SharedMemory;
use crate::mmio::{Kick, RegisterBlock, RegisterSet, RegisterValue, Width};

/// How a backend reaches the parts of a BAR that are not mapped.
pub trait BarAccess: Send + Sync {
    /// Reads `width` bytes at `offset`. The caller has checked bounds and alignment.
    ///
    /// # Errors
    ///
    /// [`BarError::DeviceGone`], [`BarError::System`].
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError>;

    /// Writes `width` bytes at `offset`. The caller has checked bounds and alignment.
    ///
    /// # Errors
    ///
    /// [`BarError::DeviceGone`], [`BarError::System`].
    fn write(&self, offset: u64, width: Width, value: u64) -> Result<(), BarError>;
}

/// A part of a BAR that is plain memory of this process.
#[derive(Clone, Debug)]
pub struct MappedArea {
    /// Where the part begins in the BAR.
    pub offset: u64,
    /// The memory, as long as the part.
    pub memory: SharedMemory,
    /// How a sleeping software device is woken after a write, if it needs to be.
    pub kick: Option<Arc<Kick>>,
}

/// Which accesses a backend allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarPermissions {
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
}

impl BarPermissions {
    /// Both directions.
    pub const READ_WRITE: Self = Self { read: true, write: true };
}

/// Whether handles of a function still work; shared by all of them.
#[derive(Debug)]
pub struct Liveness {
    state: AtomicU8,
    /// Ones took the place of pages while the function was asleep.
    torn: AtomicBool,
}

/// The states of [`Liveness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessState {
    /// The session is open and the function there.
    Live,
    /// The session is closed.
    Closed,
    /// The function is gone.
    Gone,
    /// The function does not answer accesses to its memory for now: it is in low power, or
    /// memory space is off. Only backends to which such an access would look like a removal
    /// say so.
    Asleep,
}

impl Liveness {
    /// A function that is there, in a session that is open.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(0), torn: AtomicBool::new(false) })
    }

    /// The state.
    #[inline]
    #[must_use]
    pub fn state(&self) -> LivenessState {
        // ORDERING: Acquire pairs with the Release stores below: who sees the end also sees
        // what led to it.
        match self.state.load(Ordering::Acquire) {
            0 => LivenessState::Live,
            1 => LivenessState::Closed,
            2 => LivenessState::Gone,
            _ => LivenessState::Asleep,
        }
    }

    /// Ends the session. A function that is gone stays gone.
    pub fn close(&self) {
        for open in [0, 3] {
            // ORDERING: Release pairs with `state`; a failed exchange means it ended before.
            let _ = self.state.compare_exchange(open, 1, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Stops accesses to the memory of a live function until [`wake`](Self::wake).
    pub fn sleep(&self) {
        // ORDERING: Release pairs with `state`; a failed exchange means it was not live.
        let _ = self.state.compare_exchange(0, 3, Ordering::Release, Ordering::Relaxed);
    }

    /// Lets accesses through again.
    pub fn wake(&self) {
        // ORDERING: SeqCst pairs with `mended`; a failed exchange means it did not sleep.
        let _ = self.state.compare_exchange(3, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// An access to a mapped page met nothing; called before ones take its place. A function
    /// that is asleep or closed is not gone for that. Async-signal-safe.
    pub(crate) fn faulted(&self) {
        match self.state() {
            LivenessState::Live | LivenessState::Gone => self.remove(),
            LivenessState::Closed | LivenessState::Asleep => {}
        }
    }

    /// Ones have taken the place of a page. Async-signal-safe.
    pub(crate) fn mended(&self) {
        // ORDERING: SeqCst: either who wakes the function sees this, or the look at the state
        // below sees that it is awake.
        self.torn.store(true, Ordering::SeqCst);
        // ORDERING: SeqCst, as above.
        if self.state.load(Ordering::SeqCst) == 0 {
            self.remove();
        }
    }

    /// Whether ones have taken the place of pages since it was asked last.
    pub(crate) fn take_torn(&self) -> bool {
        // ORDERING: SeqCst pairs with `mended`.
        self.torn.swap(false, Ordering::SeqCst)
    }

    /// Marks the function as gone, for good.
    pub fn remove(&self) {
        // ORDERING: Release pairs with `state`.
        self.state.store(2, Ordering::Release);
    }
}

/// A handle to one BAR. Clones share it, and each keeps the mapping alive, so that
/// no access can meet unmapped memory.
#[derive(Clone)]
pub struct Bar {
    inner: Arc<Inner>,
}

struct Inner {
    info: BarInfo,
    permissions: BarPermissions,
    areas: Vec<MappedArea>,
    trapped: Option<Arc<dyn BarAccess>>,
    liveness: Arc<Liveness>,
}

impl Bar {
    /// Assembles a handle; for backends. Areas that are not inside the BAR are dropped with
    /// a warning: they come from a kernel or a device.
    #[must_use]
    pub fn new(
        info: BarInfo,
        permissions: BarPermissions,
        areas: Vec<MappedArea>,
        trapped: Option<Arc<dyn BarAccess>>,
        liveness: Arc<Liveness>,
    ) -> Self {
        let mut areas = areas;
        areas.retain(|area| {
            let end = area.offset.checked_add(area.memory.length().as_u64());
            let inside = end.is_some_and(|end| end <= info.size.as_u64());
            if !inside {
                log::warn!("{}: ignoring a mapped area at {:#x} outside the BAR", info.index, area.offset);
            }
            inside
        });
        areas.sort_by_key(|area| area.offset);
        Self { inner: Arc::new(Inner { info, permissions, areas, trapped, liveness }) }
    }

    /// What the register decodes.
    #[must_use]
    pub fn info(&self) -> &BarInfo {
        &self.inner.info
    }

    /// The parts that are mapped, by offset. Everything else is trapped.
    #[must_use]
    pub fn mapped_areas(&self) -> &[MappedArea] {
        &self.inner.areas
    }

    /// Whether the session is open and the device there.
    #[must_use]
    pub fn liveness(&self) -> LivenessState {
        self.inner.liveness.state()
    }

    /// Reads a register. Where kernel VFIO traps the access, one of 64 bits is two of 32, the
    /// low word first; so is a write.
    ///
    /// # Errors
    ///
    /// - [`BarError::OutOfBounds`], [`BarError::Misaligned`], [`BarError::Forbidden`];
    /// - [`BarError::NotOpen`] after the session was closed;
    /// - [`BarError::DeviceGone`] when the function is gone, also when that was only found
    ///   by this access.
    #[inline]
    pub fn read<T: RegisterValue>(&self, offset: u64) -> Result<T, BarError> {
        self.check(offset, T::WIDTH)?;
        if !self.inner.permissions.read {
            return Err(self.forbidden("readable"));
        }
        self.alive()?;
        match self.area(offset, T::WIDTH) {
            Some((area, inside)) => {
                let address =
                    area.memory.checked_word::<T>(inside).map_err(|_| self.misaligned(offset, T::WIDTH))?;
                // SAFETY: `checked_word` proved range and alignment, and `self` keeps it alive.
                let value = unsafe { read_volatile::<T>(address) };
                // A removed device answers all ones, and the fault handler has noted that.
                // ORDERING: Acquire keeps the look at liveness after the read of the register.
                fence(Ordering::Acquire);
                self.alive()?;
                Ok(value)
            }
            None => Ok(T::from_u64(self.trapped(offset)?.read(offset, T::WIDTH)?)),
        }
    }

    /// Writes a register. A write is posted: that it succeeds does not mean that the device
    /// is there; see [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn write<T: RegisterValue>(&self, offset: u64, value: T) -> Result<(), BarError> {
        self.check(offset, T::WIDTH)?;
        if !self.inner.permissions.write {
            return Err(self.forbidden("writable"));
        }
        self.alive()?;
        match self.area(offset, T::WIDTH) {
            Some((area, inside)) => {
                let address =
                    area.memory.checked_word::<T>(inside).map_err(|_| self.misaligned(offset, T::WIDTH))?;
                // SAFETY: `checked_word` proved range and alignment, and `self` keeps it alive.
                unsafe { write_volatile::<T>(address, value) };
                if let Some(kick) = &area.kick {
                    kick.after_write();
                }
                self.alive()
            }
            None => self.trapped(offset)?.write(offset, T::WIDTH, value.to_u64()),
        }
    }

    /// Reads a 32-bit register back so that earlier writes have reached the device, and
    /// with that decides whether it is still there.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn flush(&self, offset: u64) -> Result<(), BarError> {
        self.read::<u32>(offset).map(|_| ())
    }

    /// A set of registers at `offset`, checked once against the BAR.
    ///
    /// # Errors
    ///
    /// [`BarError::SetOutOfBounds`] when the set is not inside the BAR,
    /// [`BarError::Misaligned`] when `offset` is not a multiple of 8.
    pub fn registers<S: RegisterSet>(&self, offset: u64) -> Result<RegisterBlock<S>, BarError> {
        RegisterBlock::new(self.clone(), offset)
    }

    /// The mapped area that holds all of an access, and where in it.
    #[inline]
    pub(crate) fn area(&self, offset: u64, width: Width) -> Option<(&MappedArea, usize)> {
        // CAST: a width is at most 8.
        self.area_of(offset, width.bytes() as u64)
    }

    pub(crate) fn area_of(&self, offset: u64, length: u64) -> Option<(&MappedArea, usize)> {
        self.inner.areas.iter().find_map(|area| {
            let inside = offset.checked_sub(area.offset)?;
            let limit = area.memory.length().as_u64();
            if inside <= limit && length <= limit - inside {
                Some((area, usize::try_from(inside).ok()?))
            } else {
                None
            }
        })
    }

    pub(crate) fn permissions(&self) -> BarPermissions {
        self.inner.permissions
    }

    #[inline]
    fn alive(&self) -> Result<(), BarError> {
        match self.inner.liveness.state() {
            LivenessState::Live => Ok(()),
            LivenessState::Closed => Err(BarError::NotOpen { bar: self.inner.info.index }),
            LivenessState::Gone => Err(BarError::DeviceGone { bar: self.inner.info.index }),
            LivenessState::Asleep => Err(BarError::Asleep { bar: self.inner.info.index }),
        }
    }

    #[inline]
    fn check(&self, offset: u64, width: Width) -> Result<(), BarError> {
        let size = self.inner.info.size.as_u64();
        // CAST: a width is at most 8.
        let bytes = width.bytes() as u64;
        if offset > size || bytes > size - offset {
            return Err(BarError::OutOfBounds { bar: self.inner.info.index, offset, width, size });
        }
        if !offset.is_multiple_of(bytes) {
            return Err(self.misaligned(offset, width));
        }
        Ok(())
    }

    fn trapped(&self, offset: u64) -> Result<&dyn BarAccess, BarError> {
        self.inner.trapped.as_deref().ok_or(BarError::System {
            bar: self.inner.info.index,
            offset,
            error: std::io::ErrorKind::Unsupported,
        })
    }

    #[cold]
    fn misaligned(&self, offset: u64, width: Width) -> BarError {
        BarError::Misaligned { bar: self.inner.info.index, offset, width }
    }

    #[cold]
    fn forbidden(&self, access: &'static str) -> BarError {
        BarError::Forbidden { bar: self.inner.info.index, access }
    }
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bar")
            .field("info", &self.inner.info)
            .field("areas", &self.inner.areas)
            .finish_non_exhaustive()
    }
}

/// One volatile load.
///
/// # Safety
///
/// `address` is valid for reads of `T`, aligned, and no Rust reference to it is live.
#[inline(always)]
pub(crate) unsafe fn read_volatile<T: RegisterValue>(address: *mut u8) -> T {
    // SAFETY: a valid address is not null.
    let pointer = unsafe { NonNull::new_unchecked(address.cast::<T>()) };
    // SAFETY: the caller's contract.
    unsafe { VolatilePtr::new(pointer) }.read()
}

/// One volatile store.
///
/// # Safety
///
/// `address` is valid for writes of `T`, aligned, and no Rust reference to it is live.
#[inline(always)]
pub(crate) unsafe fn write_volatile<T: RegisterValue>(address: *mut u8, value: T) {
    // SAFETY: a valid address is not null.
    let pointer = unsafe { NonNull::new_unchecked(address.cast::<T>()) };
    // SAFETY: the caller's contract.
    unsafe { VolatilePtr::new(pointer) }.write(value);
}

#[cfg(test)]
mod tests;
