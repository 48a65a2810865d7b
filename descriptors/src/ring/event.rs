//! When to ring, and how to go to sleep.

use core::sync::atomic::Ordering;
#[cfg(not(loom))]
use core::sync::atomic::fence;

#[cfg(loom)]
use loom::sync::atomic::fence;

use super::RingIndex;

/// Whether the other side wants to be woken: it asked for that when `event` is passed, and
/// the index has gone from `old` to `new` since the last time this was asked.
///
/// True when `event` is one of `old, .., new - 1`, modulo the period: that entry is among
/// the new ones. See Virtio 1.2 §2.7.10 "Available Buffer Notification Suppression".
#[inline]
#[must_use]
pub fn need_ring<I: RingIndex>(event: I, new: I, old: I) -> bool {
    new.distance_from(I::truncate(event.to_u64().wrapping_add(1))) < new.distance_from(old)
}

/// Arms a wake-up and looks once more: the only order in which no event is lost.
///
/// What happened before it was armed is found by the look; what happens after it wakes.
/// Sleep only when `look` finds nothing; when it finds something, be content with one
/// wake-up too many.
///
/// # Errors
///
/// What `arm` reports; nothing was looked at then.
#[inline]
pub fn arm_then_look<T, E>(arm: impl FnOnce() -> Result<(), E>, look: impl FnOnce() -> T) -> Result<T, E> {
    arm()?;
    // ORDERING: SeqCst; the store that arms is ordered before the loads of the look. Pairs
    // with a full fence between the other side's store of an entry and its look at what
    // was armed; a device does the same by its order of memory write and interrupt.
    fence(Ordering::SeqCst);
    Ok(look())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_ring_is_right_for_every_8_bit_case() {
        for old in 0..=u8::MAX {
            for step in 0..=u8::MAX {
                let new = old.wrapping_add(step);
                for event in 0..=u8::MAX {
                    let passed = (0..step).any(|n| old.wrapping_add(n) == event);
                    assert_eq!(need_ring(event, new, old), passed, "event {event} new {new} old {old}");
                }
            }
        }
    }

    #[test]
    fn need_ring_holds_over_the_wrap_of_16_bits() {
        assert!(need_ring(0xffffu16, 1, 0xfffe));
        assert!(need_ring(0u16, 1, 0xfffe));
        assert!(!need_ring(1u16, 1, 0xfffe));
        assert!(!need_ring(5u16, 5, 5));
    }

    #[test]
    fn nothing_is_looked_at_when_arming_fails() {
        let looked = core::cell::Cell::new(false);
        let result = arm_then_look(|| Err("gone"), || looked.set(true));
        assert_eq!((result, looked.get()), (Err("gone"), false));
        assert_eq!(arm_then_look(|| Ok::<_, ()>(()), || 7), Ok(7));
    }
}
