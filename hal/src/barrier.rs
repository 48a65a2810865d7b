//! Barriers by name, each with the ordering it gives.
//!
//! A driver and a device share memory and talk through registers. Three orders
//! matter, and each has a name here:
//!
//! 1. descriptor stores before the word that hands them over: [`dma_wmb`];
//! 2. the load of an owner, phase or completion word before the loads of what it
//!    announces: [`dma_rmb`];
//! 3. everything written to memory before the doorbell register: [`doorbell`],
//!    which yields the [`DoorbellToken`] without which a doorbell cannot be rung.
//!
//! On x86-64 stores to write-back memory and to uncached MMIO become visible in
//! program order, so 1 to 3 only stop the compiler; on AArch64 they are `dmb`/`dsb`
//! instructions. Writes to *write-combining* memory are not covered by any of these:
//! use [`write_combining_flush`].
//!
//! The second half of the module is an asymmetric pair for "I publish, you sleep"
//! and "I use, you revoke" protocols: [`light`] on the frequent side and [`heavy`] on
//! the rare side together order a store before a later load on both sides, like a
//! full fence on each, but the frequent side pays nothing.

// UNSAFETY: calls `membarrier(2)`, and on AArch64 emits barrier instructions.
#![expect(unsafe_code, reason = "membarrier(2) and barrier instructions")]

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// Orders earlier stores to device-visible memory before later ones, as the device sees
/// them: a descriptor's body before the word that makes it valid.
#[inline(always)]
pub fn dma_wmb() {
    // ORDERING: Release pairs with the device's read of the word stored next.
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `dmb oshst` orders stores for the outer-shareable domain and has no other effect.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders an earlier load from device-visible memory before later loads: the word that
/// says "this entry is yours" before the rest of the entry.
#[inline(always)]
pub fn dma_rmb() {
    // ORDERING: Acquire pairs with the device's last store of the entry.
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `dmb oshld` orders loads for the outer-shareable domain and has no other effect.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Proof that everything written to memory so far is ordered before the next doorbell.
///
/// Only [`doorbell`] makes one, and each rings one doorbell once: a ring without its own
/// barrier does not compile. What is written between the barrier and the ring is not
/// covered.
#[derive(Debug)]
#[must_use = "the barrier was for a doorbell; ring it with this token"]
pub struct DoorbellToken(());

/// Orders every earlier store to memory before the doorbell that the token rings.
#[inline(always)]
pub fn doorbell() -> DoorbellToken {
    // ORDERING: Release pairs with the device's acquire of the doorbell value.
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `dsb st` completes earlier stores before later ones and has no other effect.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    DoorbellToken(())
}

/// Drains write-combining buffers: stores to a write-combining BAR (inline descriptors,
/// BlueFlame) before whatever is written next.
#[inline(always)]
pub fn write_combining_flush() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has SSE; `sfence` orders stores and has no other effect.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `dsb st` completes earlier stores, gathered ones too, and has no other effect.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(all(target_arch = "x86_64", not(miri)), target_arch = "aarch64")))]
    // ORDERING: SeqCst is the strongest barrier there is without knowing the processor.
    fence(Ordering::SeqCst);
}

/// The frequent side of the asymmetric pair: a store before it is ordered before a load
/// after it, as seen by a thread that calls [`heavy`] in between.
///
/// Costs nothing where the kernel has `membarrier(2)`, else one full fence.
#[inline(always)]
pub fn light() {
    // ORDERING: Relaxed; the state only ever moves from unknown to one final value, and
    // both sides read it after `prepare` ran (see `asymmetric_state`).
    if STATE.load(Ordering::Relaxed) == EXPEDITED {
        // ORDERING: a compiler fence suffices because `heavy` makes every running thread
        // of the process execute a full fence.
        compiler_fence(Ordering::SeqCst);
    } else {
        // ORDERING: SeqCst pairs with the fence in `heavy`.
        fence(Ordering::SeqCst);
    }
}

/// The rare side of the asymmetric pair: a full fence on every thread of this process.
///
/// Takes some microseconds.
pub fn heavy() {
    if asymmetric_state() == EXPEDITED && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // The kernel accepted the registration and now refuses the command: no order can
        // be promised to the light side any more.
        log::error!("membarrier(2) failed after it was registered; aborting");
        std::process::abort();
    }
    // ORDERING: SeqCst pairs with the fence in `light` where there is no membarrier.
    fence(Ordering::SeqCst);
}

/// Settles which form the asymmetric pair takes. Called by everything that builds a
/// structure on [`light`]; harmless to repeat.
///
/// Before it has run, [`light`] is a full fence, so that a race on first use is safe.
pub fn prepare() {
    let _ = asymmetric_state();
}

fn asymmetric_state() -> u8 {
    // ORDERING: Acquire/Release are not needed for data; the value itself is all there is.
    match STATE.load(Ordering::Acquire) {
        UNKNOWN => {
            let registered =
                cfg!(not(any(miri, loom))) && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
            let state = if registered { EXPEDITED } else { FENCE };
            // ORDERING: Release publishes the choice after the registration took effect.
            match STATE.compare_exchange(UNKNOWN, state, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => state,
                Err(other) => other,
            }
        }
        state => state,
    }
}

fn membarrier(command: libc::c_int) -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY:
    // 1. `membarrier` takes three integers and touches no memory of ours.
    // 2. The commands used are process-private and need no privilege.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;
const EXPEDITED: u8 = 1;
const FENCE: u8 = 2;
