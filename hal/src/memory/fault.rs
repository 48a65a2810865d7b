//! What happens when a mapped device is taken away under an access.
//!
//! The kernel answers an access to a mapped BAR whose device is gone, or to a page past the
//! end of a mapped file, with SIGBUS, and the process dies. Here one handler for the whole
//! process turns that into what a removed PCI function answers: all ones. It marks the
//! function as gone, puts a page of ones in the place of the one that faulted and returns,
//! whereupon the access is repeated and succeeds. Every other SIGBUS goes to the handler
//! that was there before.
//!
//! # Why the handler is safe to run anywhere
//!
//! 1. It runs on the thread that made the access, at the access. It takes no lock, does not
//!    allocate and calls nothing but memory system calls (by `rustix`, which are bare
//!    system call instructions) and atomics. `errno` is kept.
//! 2. The table of ranges is read without waiting; see [`fault_table`](super::fault_table).
//!    The range found is certain to stay: the access holds its memory, and the memory holds
//!    the entry. So the pointer to [`Liveness`] may be followed.
//! 3. Other threads may access the page meanwhile. The page of ones is filled elsewhere and
//!    then moved over the old page in one step (`mremap(2)`), so that they meet a fault or
//!    ones and nothing in between. Two threads that fault at once move two such pages, one
//!    over the other. A huge page cannot be split, so that a small one cannot take the
//!    place of its part: a file without a byte then takes the place of the whole huge page
//!    (`mmap(2)`, in one step as well), and the access that is made again meets that.
//! 4. Liveness is marked before the page is moved: who reads ones from it and asks then is
//!    told that the function is gone.
//!    One that is asleep or closed is not gone: who wakes it waits for those that are moving
//!    pages and maps them anew. An access that was made before, and comes here only
//!    when the function is awake, is made again.
//! 5. It cannot loop: accesses are made again while somebody wakes the function, which is
//!    bounded, and a bounded number of times after that: once for each thread that found
//!    the huge page, and once. If the page cannot be replaced, the
//!    signal goes to the previous handler, and in the end to the default action.

// UNSAFETY: installs a signal handler, which replaces pages of guarded mappings.
#![expect(unsafe_code, reason = "a signal handler that replaces pages")]

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use libc::{c_int, sigaction, siginfo_t};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};

use super::fault_table::{FaultEntry, FaultTable, Guarded};
use super::page_size;
use crate::bar::{Liveness, Remedy};

/// Installs the handler, once for the process.
///
/// # Errors
///
/// What `sigaction(2)` says when it cannot be installed, or `memfd_create(2)`.
pub(super) fn prepare() -> io::Result<()> {
    if EMPTY.get().is_none() {
        let file = File::from(memfd_create(c"revoked", MemfdFlags::CLOEXEC)?);
        // Another thread's file is as good.
        let _ = EMPTY.set(file);
    }
    static INSTALLED: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    INSTALLED.get_or_init(|| install().map_err(|error| error.kind())).map_err(io::Error::from)?;
    if !is_installed() {
        log::warn!("something else in this process handles SIGBUS now: the removal of a device may kill it");
    }
    Ok(())
}

/// A file without a byte, after [`prepare`].
pub(super) fn empty_file() -> Option<&'static File> {
    EMPTY.get()
}

/// Guards the range `start .. end` of whole pages of `page` bytes until the result is
/// dropped: a fault in it marks `liveness` as removed. [`prepare`] was called before.
///
/// The owner of the result keeps the range mapped, and to itself, for as long.
pub(super) fn guard(start: usize, end: usize, page: usize, liveness: Arc<Liveness>) -> FaultEntry {
    TABLE.add(start, end, page, liveness)
}

fn install() -> io::Result<()> {
    // ORDERING: Relaxed; the handler is installed after it, by a system call.
    PAGE.store(page_size().to_usize().unwrap_or_default(), Ordering::Relaxed);
    // The previous action is known before ours can run, and once more, exactly, after it
    // was replaced, should another thread have changed it in between.
    remember(action(None)?);
    // SAFETY: all zeros is a valid `sigaction`: default action, no flags, empty mask.
    let mut ours: sigaction = unsafe { core::mem::zeroed() };
    ours.sa_sigaction = handler();
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    remember(action(Some(&ours))?);
    Ok(())
}

/// Reads the action of SIGBUS and, if there is a `new` one, replaces it.
fn action(new: Option<&sigaction>) -> io::Result<sigaction> {
    // SAFETY: as in `install`.
    let mut old: sigaction = unsafe { core::mem::zeroed() };
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY:
    // 1. Both pointers are null or to a `sigaction` of this thread.
    // 2. The handler, if there is one, has the signature that SA_SIGINFO asks for, and is
    //    async-signal-safe: see the module text.
    if unsafe { libc::sigaction(libc::SIGBUS, new, &raw mut old) } == 0 {
        Ok(old)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn remember(previous: sigaction) {
    // Leaked, since the handler may be reading it at any time; this happens twice.
    let previous = Box::leak(Box::new(previous));
    // ORDERING: Release pairs with the Acquire load in `pass_on`.
    PREVIOUS.store(previous, Ordering::Release);
}

fn is_installed() -> bool {
    action(None).is_ok_and(|now| now.sa_sigaction == handler())
}

fn handler() -> usize {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_sigbus;
    handler as usize
}

extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: `errno` is a location of this thread, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { errno.read() };
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    let fault = unsafe { &*info };
    // Only these come from an access that the kernel could not complete. A signal sent by
    // a process, a misaligned access or a broken memory cell is not ours to mend.
    let mended = matches!(fault.si_code, BUS_ADRERR | BUS_OBJERR) && {
        // SAFETY: SIGBUS with one of these codes has an address.
        let address = unsafe { fault.si_addr() };
        mend(address.addr())
    };
    if !mended {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { errno.write(saved) };
}

/// Marks the function that `address` belongs to as gone, unless it is asleep or closed, and
/// puts ones there; false when it belongs to none, or that fails.
fn mend(address: usize) -> bool {
    let Some(Guarded { liveness, page: block }) = TABLE.find(address) else { return false };
    // SAFETY: the entry found is alive, and holds the `Arc` that this points into: see
    // number 2 of the module text.
    let liveness = unsafe { &*liveness };
    if liveness.faulted() == Remedy::TryAgain {
        return true;
    }
    // ORDERING: Relaxed; written before the handler was installed.
    let page = PAGE.load(Ordering::Relaxed);
    let replaced = page.is_power_of_two()
        && (replace_page(address & !(page - 1), page)
            || (block.is_power_of_two() && block > page && empty_block(address & !(block - 1), block)));
    liveness.mended();
    replaced
}

fn replace_page(target: usize, page: usize) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let Ok(fresh) = (unsafe { mmap_anonymous(ptr::null_mut(), page, access, MapFlags::PRIVATE) }) else {
        return false;
    };
    // SAFETY: the page was just mapped, writable, and nobody else knows it.
    unsafe { fresh.cast::<u8>().write_bytes(0xff, page) };
    let target = ptr::with_exposed_provenance_mut(target);
    // SAFETY:
    // 1. `fresh` is one page, mapped above.
    // 2. `target` is a page of a guarded range, which is mapped as long as its entry lives
    //    and holds nothing but the range: see `guard`.
    // 3. No Rust reference into it exists, as into all shared memory.
    if unsafe { mremap_fixed(fresh, page, page, MremapFlags::MAYMOVE, target) }.is_ok() {
        return true;
    }
    // SAFETY: `fresh` is still the page mapped above; a failure to unmap it leaks a page.
    let _ = unsafe { munmap(fresh, page) };
    false
}

/// Takes the huge page at `target` out of the range: what is there from now on are small
/// pages past the end of a file, each of which faults and is mended by itself.
fn empty_block(target: usize, block: usize) -> bool {
    let Some(empty) = empty_file() else { return false };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    let target = ptr::with_exposed_provenance_mut(target);
    // SAFETY: `target` is a huge page of a guarded range, as in `replace_page`.
    unsafe { mmap(target, block, access, flags, empty, 0) }.is_ok()
}

/// Does what would have been done without this module.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // ORDERING: Acquire pairs with the Release store in `remember`.
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: it is null or a leaked `sigaction`, never written again.
    let Some(previous) = (unsafe { previous.as_ref() }) else { return die(info) };
    match previous.sa_sigaction {
        libc::SIG_DFL => die(info),
        // The kernel does not let an access be ignored, but a sent signal can be.
        libc::SIG_IGN => {
            if sent_by_process(info) {
                return;
            }
            die(info);
        }
        function if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the field is a function of this signature.
            let function: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { core::mem::transmute(function) };
            function(signal, info, context);
        }
        function => {
            // SAFETY: without SA_SIGINFO the field is a function of this signature.
            let function: extern "C" fn(c_int) = unsafe { core::mem::transmute(function) };
            function(signal);
        }
    }
}

/// Takes the default action. An access is repeated on return and faults again; a signal
/// that was sent is sent again.
fn die(info: *mut siginfo_t) {
    // SAFETY: as in `install`.
    let default: sigaction = unsafe { core::mem::zeroed() };
    let _ = action(Some(&default));
    if sent_by_process(info) {
        // SAFETY: `raise` is async-signal-safe; the signal is blocked until we return.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

fn sent_by_process(info: *mut siginfo_t) -> bool {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    unsafe { (*info).si_code <= 0 }
}

static TABLE: FaultTable = FaultTable::new();
/// What takes the place of huge pages and of files that were let go of; read without
/// waiting.
static EMPTY: OnceLock<File> = OnceLock::new();
static PREVIOUS: AtomicPtr<sigaction> = AtomicPtr::new(ptr::null_mut());
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// The codes of SIGBUS in Linux's `include/uapi/asm-generic/siginfo.h`.
const BUS_ADRERR: c_int = 2;
const BUS_OBJERR: c_int = 3;
