//! Interrupts, by the one call that does everything to them.
//!
//! `VFIO_DEVICE_SET_IRQS` signals, disables or connects, depending on the kind of its data
//! and its count. Each of these is one function here, so that none is taken for another.

use core::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vfio_bindings::bindings::vfio as abi;

use super::device::{Device, Unreached};
use super::kernel::Call;
use super::message::Message;
use crate::interrupt::{EventFd, InterruptError, InterruptKind, Interrupts};

/// The interrupts of an open device.
pub(super) struct VfioInterrupts {
    device: Arc<Device>,
    kinds: [KindInfo; 3],
    /// The kind that is enabled in the kernel, and how many vectors it has there.
    enabled: Mutex<Option<(InterruptKind, u16)>>,
}

/// What the kernel says about a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindInfo {
    pub(super) count: u16,
    pub(super) maskable: bool,
    /// Vectors can be added while others are in use.
    pub(super) can_grow: bool,
}

impl VfioInterrupts {
    pub(super) fn read(device: &Arc<Device>) -> Result<Self, Unreached> {
        let mut kinds = [KindInfo::default(); 3];
        for (kind, info) in KINDS.into_iter().zip(&mut kinds) {
            *info = kind_info(device, index_of(kind))?;
        }
        Ok(Self { device: Arc::clone(device), kinds, enabled: Mutex::new(None) })
    }

    fn info(&self, kind: InterruptKind) -> KindInfo {
        // PANIC: there are three kinds, and as many entries.
        self.kinds[kind as usize]
    }

    fn lock(&self) -> MutexGuard<'_, Option<(InterruptKind, u16)>> {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks, if the device can be reached.
    fn open(
        &self,
        kind: InterruptKind,
    ) -> Result<MutexGuard<'_, Option<(InterruptKind, u16)>>, InterruptError> {
        self.device.reach(|_| Ok(())).map_err(|error| failed(kind, error))?;
        Ok(self.lock())
    }

    /// Checks that `vector` exists and its kind is enabled, and says with how many vectors.
    fn check(
        &self,
        enabled: Option<(InterruptKind, u16)>,
        kind: InterruptKind,
        vector: u16,
    ) -> Result<u16, InterruptError> {
        let count = self.info(kind).count;
        if count == 0 {
            return Err(InterruptError::NotSupported { kind });
        }
        if vector >= count {
            return Err(InterruptError::NoSuchVector { kind, vector, count });
        }
        match enabled {
            Some((now, vectors)) if now == kind => Ok(vectors),
            _ => Err(InterruptError::NotEnabled { kind }),
        }
    }

    fn set_masked(&self, kind: InterruptKind, vector: u16, action: u32) -> Result<(), InterruptError> {
        let enabled = self.open(kind)?;
        self.check(*enabled, kind, vector)?;
        if !self.info(kind).maskable {
            return Err(InterruptError::NotMaskable { kind });
        }
        let message = irq_message(index_of(kind), abi::VFIO_IRQ_SET_DATA_NONE | action, vector.into(), 1);
        self.send(kind, message)
    }

    fn send(&self, kind: InterruptKind, mut message: Message) -> Result<(), InterruptError> {
        match self.device.exchange_anyhow(Call::SetIrqs, &mut message) {
            Ok(0) => Ok(()),
            // So many vectors could be had, fewer than were asked for.
            Ok(available) => {
                log::warn!("{kind}: the system has only {available} vectors left");
                Err(InterruptError::System { kind, error: std::io::ErrorKind::QuotaExceeded })
            }
            Err(error) => Err(failed(kind, error)),
        }
    }

    /// Has the kernel look whether the line is up already: it was raised while nobody
    /// listened, and not every interrupt controller signals a level that does not change. The
    /// end of a mask looks at the function itself. A line that was signalled meanwhile may be
    /// signalled twice.
    fn look_at_line(&self) {
        let index = index_of(InterruptKind::Intx);
        for action in [abi::VFIO_IRQ_SET_ACTION_MASK, abi::VFIO_IRQ_SET_ACTION_UNMASK] {
            let message = irq_message(index, abi::VFIO_IRQ_SET_DATA_NONE | action, 0, 1);
            if let Err(error) = self.send(InterruptKind::Intx, message) {
                log::warn!("a line that was raised before may not be noticed: {error}");
                return;
            }
        }
    }

    /// Notes that everything is disabled, as it is after a reset.
    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    /// Disables whatever is enabled, for closing and for a reset.
    pub(super) fn disable_enabled(&self) {
        let mut enabled = self.lock();
        if let Some((kind, _)) = enabled.take()
            && let Err(error) = self.send(kind, disable_message(kind))
            && error != InterruptError::Gone
        {
            log::warn!("{kind} is not disabled: {error}");
        }
    }
}

impl Interrupts for VfioInterrupts {
    fn vector_count(&self, kind: InterruptKind) -> u16 {
        self.info(kind).count
    }

    fn enabled(&self) -> Option<InterruptKind> {
        self.lock().map(|(kind, _)| kind)
    }

    fn can_attach_later(&self, kind: InterruptKind) -> bool {
        self.info(kind).can_grow
    }

    fn enable(&self, kind: InterruptKind, events: &[Option<EventFd>]) -> Result<(), InterruptError> {
        let mut enabled = self.open(kind)?;
        let info = self.info(kind);
        if info.count == 0 {
            return Err(InterruptError::NotSupported { kind });
        }
        // Enabled without any vector is not a state of the kernel.
        let events = if events.is_empty() { &[None] } else { events };
        let asked = u16::try_from(events.len()).unwrap_or(u16::MAX);
        if asked > info.count {
            return Err(InterruptError::NoSuchVector { kind, vector: asked - 1, count: info.count });
        }
        if let Some((enabled, _)) = *enabled {
            return Err(InterruptError::AlreadyEnabled { kind, enabled });
        }
        if kind == InterruptKind::Msi && !asked.is_power_of_two() {
            return Err(InterruptError::NotPowerOfTwo { count: asked });
        }
        // In one call, in the order of the vectors. When it fails the kernel undoes it.
        self.send(kind, connect_message(index_of(kind), 0, events.iter().map(Option::as_ref)))?;
        *enabled = Some((kind, asked));
        if kind == InterruptKind::Intx && info.maskable {
            self.look_at_line();
        }
        Ok(())
    }

    fn attach(&self, kind: InterruptKind, vector: u16, event: &EventFd) -> Result<(), InterruptError> {
        let mut enabled = self.open(kind)?;
        let vectors = self.check(*enabled, kind, vector)?;
        if vector >= vectors && !self.info(kind).can_grow {
            return Err(InterruptError::CannotGrow { kind, vector, enabled: vectors });
        }
        self.send(kind, connect_message(index_of(kind), vector, [Some(event)].into_iter()))?;
        *enabled = Some((kind, vectors.max(vector + 1)));
        Ok(())
    }

    fn detach(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        let enabled = match self.open(kind) {
            Ok(enabled) => enabled,
            // With the session or the function everything was detached.
            Err(InterruptError::NotOpen | InterruptError::Gone) => return Ok(()),
            Err(error) => return Err(error),
        };
        match self.check(*enabled, kind, vector) {
            Ok(vectors) if vector < vectors => {
                self.send(kind, connect_message(index_of(kind), vector, [None].into_iter()))
            }
            Ok(_) | Err(InterruptError::NotEnabled { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn disable_all(&self, kind: InterruptKind) -> Result<(), InterruptError> {
        let mut enabled = match self.open(kind) {
            Ok(enabled) => enabled,
            Err(InterruptError::NotOpen | InterruptError::Gone) => return Ok(()),
            Err(error) => return Err(error),
        };
        if enabled.is_some_and(|(now, _)| now == kind) {
            self.send(kind, disable_message(kind))?;
            *enabled = None;
        }
        Ok(())
    }

    fn mask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.set_masked(kind, vector, abi::VFIO_IRQ_SET_ACTION_MASK)
    }

    fn unmask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.set_masked(kind, vector, abi::VFIO_IRQ_SET_ACTION_UNMASK)
    }

    fn self_test(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        let enabled = self.open(kind)?;
        self.check(*enabled, kind, vector)?;
        let flags = abi::VFIO_IRQ_SET_DATA_NONE | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
        self.send(kind, irq_message(index_of(kind), flags, vector.into(), 1))
    }
}

/// Connects one of the two indexes that are not the device's own interrupts: its errors,
/// and the kernel's wish to have it back. False when the device has none.
pub(super) fn connect_device_event(
    device: &Device,
    index: u32,
    event: Option<&EventFd>,
) -> Result<bool, Unreached> {
    if kind_info(device, index)?.count == 0 {
        return Ok(false);
    }
    let mut message = match event {
        Some(_) => connect_message(index, 0, [event].into_iter()),
        None => {
            let flags = abi::VFIO_IRQ_SET_DATA_NONE | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
            irq_message(index, flags, 0, 0)
        }
    };
    device.exchange_anyhow(Call::SetIrqs, &mut message).map(|_| true)
}

fn kind_info(device: &Device, index: u32) -> Result<KindInfo, Unreached> {
    let mut message =
        Message::new(size_of::<abi::vfio_irq_info>()).with(offset_of!(abi::vfio_irq_info, index), index);
    match device.exchange_anyhow(Call::IrqInfo, &mut message) {
        Ok(_) => Ok(parse_irq_info(&message, index)),
        // An index that the device does not have.
        Err(Unreached::Failed(_)) => Ok(KindInfo::default()),
        Err(error) => Err(error),
    }
}

/// What an answer says. No device has more vectors than MSI-X allows.
fn parse_irq_info(answer: &Message, index: u32) -> KindInfo {
    let flags = answer.word(offset_of!(abi::vfio_irq_info, flags)).unwrap_or(0);
    let count = answer.word(offset_of!(abi::vfio_irq_info, count)).unwrap_or(0);
    let most: u16 = match index {
        abi::VFIO_PCI_MSI_IRQ_INDEX => 32,
        abi::VFIO_PCI_MSIX_IRQ_INDEX => 2048,
        _ => 1,
    };
    if flags & abi::VFIO_IRQ_INFO_EVENTFD == 0 {
        return KindInfo::default();
    }
    let count = u16::try_from(count).unwrap_or(u16::MAX).min(most);
    KindInfo {
        count,
        maskable: flags & abi::VFIO_IRQ_INFO_MASKABLE != 0,
        can_grow: index == abi::VFIO_PCI_MSIX_IRQ_INDEX
            && count > 0
            && flags & abi::VFIO_IRQ_INFO_NORESIZE == 0,
    }
}

/// Everything off, nothing signalled: a count of zero.
fn disable_message(kind: InterruptKind) -> Message {
    irq_message(index_of(kind), abi::VFIO_IRQ_SET_DATA_NONE | abi::VFIO_IRQ_SET_ACTION_TRIGGER, 0, 0)
}

/// Vectors from `start` on signal these events, or nothing.
fn connect_message<'a>(
    index: u32,
    start: u16,
    events: impl ExactSizeIterator<Item = Option<&'a EventFd>>,
) -> Message {
    let flags = abi::VFIO_IRQ_SET_DATA_EVENTFD | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
    let count = events.len();
    let mut message = Message::new(HEADER + count * DESCRIPTOR);
    put_header(&mut message, index, flags, start.into(), u32::try_from(count).unwrap_or(u32::MAX));
    for (place, event) in events.enumerate() {
        let descriptor = event.map_or(-1, |event| event.as_fd().as_raw_fd());
        message.put_bytes(HEADER + place * DESCRIPTOR, &descriptor.to_ne_bytes());
    }
    message
}

fn irq_message(index: u32, flags: u32, start: u32, count: u32) -> Message {
    let mut message = Message::new(HEADER);
    put_header(&mut message, index, flags, start, count);
    message
}

fn put_header(message: &mut Message, index: u32, flags: u32, start: u32, count: u32) {
    message.put(offset_of!(abi::vfio_irq_set, flags), flags);
    message.put(offset_of!(abi::vfio_irq_set, index), index);
    message.put(offset_of!(abi::vfio_irq_set, start), start);
    message.put(offset_of!(abi::vfio_irq_set, count), count);
}

fn index_of(kind: InterruptKind) -> u32 {
    match kind {
        InterruptKind::Intx => abi::VFIO_PCI_INTX_IRQ_INDEX,
        InterruptKind::Msi => abi::VFIO_PCI_MSI_IRQ_INDEX,
        InterruptKind::Msix => abi::VFIO_PCI_MSIX_IRQ_INDEX,
    }
}

fn failed(kind: InterruptKind, unreached: Unreached) -> InterruptError {
    match unreached {
        Unreached::NotOpen => InterruptError::NotOpen,
        Unreached::Gone => InterruptError::Gone,
        Unreached::Failed(_) => InterruptError::System { kind, error: unreached.kind() },
    }
}

const KINDS: [InterruptKind; 3] = [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix];
const HEADER: usize = offset_of!(abi::vfio_irq_set, data);
const DESCRIPTOR: usize = 4;

#[cfg(test)]
mod tests;
