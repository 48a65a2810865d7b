//! Work that a queue did not take.

use core::fmt;

/// Work that was not taken, with its owner. Nothing has changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Rejected<T, R> {
    /// What was to ride along.
    pub owner: T,
    /// Why.
    pub reason: R,
}

impl<T, R: fmt::Debug> fmt::Debug for Rejected<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T, R: fmt::Display> fmt::Display for Rejected<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T, R: std::error::Error> std::error::Error for Rejected<T, R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason.source()
    }
}
