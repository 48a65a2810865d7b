//! The lock and the condition variable of the queues: of the standard library, or of loom
//! when the crate is built for a model check.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Locks, also after a panic: every state here is consistent between two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification.
pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `done`, `timeout` at most; gives whether it is. Loom has no time: there it
/// waits for ever, and a wait that does not end is a finding.
pub(crate) fn wait_until<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    done: impl Fn(&T) -> bool,
) -> (MutexGuard<'a, T>, bool) {
    let end = Instant::now().checked_add(timeout);
    let mut guard = guard;
    loop {
        if done(&guard) {
            return (guard, true);
        }
        let left = end.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() && !cfg!(loom) {
            return (guard, false);
        }
        guard = condition.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
