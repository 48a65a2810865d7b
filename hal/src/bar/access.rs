//! The handle through which a BAR is accessed.

// UNSAFETY: volatile accesses through checked pointers into mapped areas.
#![expect(unsafe_code, reason = "volatile access to checked addresses")]

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use volatile::VolatilePtr;

use super::liveness::Moment;
use super::{BarError, BarInfo, Liveness, LivenessState};
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
    ///   by this access;
    /// - [`BarError::Asleep`] when the function sleeps, or slept during the access.
    #[inline]
    pub fn read<T: RegisterValue>(&self, offset: u64) -> Result<T, BarError> {
        self.check(offset, T::WIDTH)?;
        if !self.inner.permissions.read {
            return Err(self.forbidden("readable"));
        }
        let before = self.alive()?;
        match self.area(offset, T::WIDTH) {
            Some((area, inside)) => {
                let address =
                    area.memory.checked_word::<T>(inside).map_err(|_| self.misaligned(offset, T::WIDTH))?;
                // SAFETY: `checked_word` proved range and alignment, and `self` keeps it alive.
                let value = unsafe { read_volatile::<T>(address) };
                // A removed device answers all ones, and the fault handler has noted that.
                // ORDERING: Acquire keeps the look at liveness after the read of the register.
                fence(Ordering::Acquire);
                self.alive_since(before)?;
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
        let before = self.alive()?;
        match self.area(offset, T::WIDTH) {
            Some((area, inside)) => {
                let address =
                    area.memory.checked_word::<T>(inside).map_err(|_| self.misaligned(offset, T::WIDTH))?;
                // SAFETY: `checked_word` proved range and alignment, and `self` keeps it alive.
                unsafe { write_volatile::<T>(address, value) };
                if let Some(kick) = &area.kick {
                    kick.after_write();
                }
                self.alive_since(before)
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
    fn alive(&self) -> Result<Moment, BarError> {
        let now = self.inner.liveness.moment();
        if now.state() == LivenessState::Live { Ok(now) } else { Err(self.not_alive(now)) }
    }

    /// Whether the function was alive from one look at it to the next.
    #[inline]
    fn alive_since(&self, before: Moment) -> Result<(), BarError> {
        let now = self.inner.liveness.moment();
        if now == before { Ok(()) } else { Err(self.not_alive(now)) }
    }

    #[cold]
    fn not_alive(&self, now: Moment) -> BarError {
        let bar = self.inner.info.index;
        match now.state() {
            LivenessState::Closed => BarError::NotOpen { bar },
            LivenessState::Gone => BarError::DeviceGone { bar },
            // It sleeps, or has slept since.
            LivenessState::Asleep | LivenessState::Live => BarError::Asleep { bar },
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
