//! Doorbells: a register, and its shadow in memory where the controller looks at one.

use core::sync::atomic::{Ordering, fence};

use vdk_descriptors::nvme::{NvmeDoorbells, completion_doorbell, submission_doorbell};
use vdk_descriptors::ring::need_ring;
use vdk_hal::address::ByteLength;
use vdk_hal::bar::{Bar, BarError};
use vdk_hal::barrier::DoorbellToken;
use vdk_hal::memory::SharedMemory;
use vdk_hal::mmio::Doorbell;

/// Where the shadows of all doorbells and their event indices lie: one page each, laid out
/// like the doorbells.
#[derive(Clone, Debug)]
pub(in super::super) struct ShadowPages {
    /// What the host has rung.
    pub(in super::super) shadow: SharedMemory,
    /// Which value of the shadow the controller wants to hear about.
    pub(in super::super) event: SharedMemory,
}

/// One end of one queue.
#[derive(Debug)]
pub(in super::super) struct Bell {
    register: Doorbell<u32>,
    shadow: Option<Shadow>,
    last: u16,
    /// Writes to the register.
    pub(in super::super) rung: u64,
    /// Writes to the register that were not needed.
    pub(in super::super) spared: u64,
}

#[derive(Debug)]
struct Shadow {
    value: SharedMemory,
    event: SharedMemory,
    /// The register is written as well, whatever the event index says.
    always: bool,
}

/// The tail and head doorbells of queue `number`. The doorbells of the admin queue are
/// written in both places: not all controllers look at their shadows.
pub(in super::super) fn bells(
    bar: &Bar,
    number: u16,
    stride: ByteLength,
    pages: Option<&ShadowPages>,
) -> Result<(Bell, Bell), BarError> {
    let (tail, head) = (submission_doorbell(number, stride), completion_doorbell(number, stride));
    let block = bar.registers::<NvmeDoorbells>(tail)?;
    let tail_register = block.doorbell(NvmeDoorbells::TAIL)?;
    let head_register = if head == tail + 4 {
        block.doorbell(NvmeDoorbells::HEAD)?
    } else {
        bar.registers::<NvmeDoorbells>(head)?.doorbell(NvmeDoorbells::TAIL)?
    };
    let first = submission_doorbell(0, stride);
    let bell = |register, offset| {
        let shadow = pages.and_then(|pages| pages.word(offset - first, number == 0));
        Bell { register, shadow, last: 0, rung: 0, spared: 0 }
    };
    Ok((bell(tail_register, tail), bell(head_register, head)))
}

impl ShadowPages {
    /// The words of the doorbell at `offset`; `None` when it is not in the page.
    fn word(&self, offset: u64, always: bool) -> Option<Shadow> {
        let offset = usize::try_from(offset).ok()?;
        let (value, event) = (self.shadow.slice(offset, 4).ok()?, self.event.slice(offset, 4).ok()?);
        Some(Shadow { value, event, always })
    }
}

impl Bell {
    /// Tells the controller of `value`. Everything written before the token was made is
    /// visible to it then.
    #[inline]
    pub(in super::super) fn ring(&mut self, token: DoorbellToken, value: u16) -> Result<(), BarError> {
        let last = core::mem::replace(&mut self.last, value);
        if let Some(shadow) = &self.shadow
            && !shadow.wants(value, last)
        {
            self.spared += 1;
            return Ok(());
        }
        self.rung += 1;
        self.register.ring(token, u32::from(value))
    }

    /// A doorbell without a shadow.
    #[cfg(test)]
    pub(in super::super) fn of(register: Doorbell<u32>) -> Self {
        Self { register, shadow: None, last: 0, rung: 0, spared: 0 }
    }

    /// The controller looks at the shadow at `offset` in `pages` from now on; `None` for a
    /// doorbell without one.
    pub(in super::super) fn attach(&mut self, pages: Option<&ShadowPages>, offset: u64, always: bool) {
        self.shadow = pages.and_then(|pages| pages.word(offset, always));
        if let Some(shadow) = &self.shadow {
            // ORDERING: Release, as in `ring`.
            let stored = shadow.value.store(0, u32::from(self.last), Ordering::Release);
            debug_assert!(stored.is_ok(), "the word was cut out of the page");
        }
    }

    /// Begins at zero, as the controller does with a new queue.
    pub(in super::super) fn reset(&mut self) {
        self.last = 0;
        if let Some(shadow) = &self.shadow {
            for word in [&shadow.value, &shadow.event] {
                // ORDERING: Release; the command that creates the queue follows.
                if let Err(error) = word.store(0, 0u32, Ordering::Release) {
                    debug_assert!(false, "the word was cut out of the page: {error}");
                }
            }
        }
    }
}

impl Shadow {
    /// Stores the value where the controller looks for it, and asks whether it looks.
    #[inline]
    fn wants(&self, value: u16, last: u16) -> bool {
        // ORDERING: Release; the entries before the index. The token's barrier has done it
        // already for a controller.
        if self.value.store(0, u32::from(value), Ordering::Release).is_err() {
            return true;
        }
        // ORDERING: SeqCst; the store of the shadow is ordered before the load of the event
        // index. The controller does it the other way round: it stores the event index and
        // then looks at the shadow once more. So one of the two sees the other.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed; the index is all that is read.
        let Ok(event) = self.event.load::<u32>(0, Ordering::Relaxed) else { return true };
        // CAST: an event index is a place in the queue; what else it may hold only costs a
        // doorbell or a time-out.
        #[expect(clippy::cast_possible_truncation, reason = "indices are 16 bits wide")]
        let event = event as u16;
        self.always || need_ring(event, value, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_hal::memory::Pages;

    fn word() -> (SharedMemory, Shadow) {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let shadow =
            Shadow { value: memory.slice(0, 4).unwrap(), event: memory.slice(4, 4).unwrap(), always: false };
        (memory, shadow)
    }

    #[test]
    fn the_register_is_wanted_exactly_when_the_event_index_is_passed() {
        let (memory, shadow) = word();
        for (event, value, last, wanted) in [
            (0u32, 1u16, 0u16, true),
            (1, 1, 0, false),
            (5, 8, 5, true),
            (7, 8, 5, true),
            (8, 8, 5, false),
            (4, 8, 5, false),
            // Over the end of a queue of 16.
            (15, 2, 14, true),
            (1, 2, 14, true),
            (2, 2, 14, false),
            (13, 2, 14, false),
        ] {
            memory.store(4, event, Ordering::Relaxed).unwrap();
            assert_eq!(shadow.wants(value, last), wanted, "event {event} value {value} last {last}");
            assert_eq!(memory.load::<u32>(0, Ordering::Relaxed), Ok(u32::from(value)));
        }
    }

    #[test]
    fn the_admin_queue_always_writes_both() {
        let (memory, mut shadow) = word();
        shadow.always = true;
        memory.store(4, 9u32, Ordering::Relaxed).unwrap();
        assert!(shadow.wants(3, 2));
        assert_eq!(memory.load::<u32>(0, Ordering::Relaxed), Ok(3));
    }

    #[test]
    fn a_doorbell_outside_the_page_has_no_shadow() {
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
        let pages = ShadowPages { shadow: memory.clone(), event: memory };
        assert!(pages.word(4092, false).is_some());
        assert!(pages.word(4096, false).is_none());
    }
}
