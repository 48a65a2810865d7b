//! Dispatch sources: what makes handlers run on a queue.

mod delivery;
mod interrupt;
mod timer;

pub use interrupt::{Interrupt, InterruptSource};
pub use timer::{Expiry, TimerSource};

use thiserror::Error;

/// Why a source did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source was cancelled, which is for good.
    #[error("the source is cancelled: make a new one")]
    Cancelled,
    /// The system refused.
    #[error("the system refused to watch an event file: {error}")]
    System {
        /// What the system said; "entity already exists" when the file is watched already.
        error: std::io::ErrorKind,
    },
}
