//! What a command is answered with.

use rustix::io::Errno;
use vdk_hal::memory::SharedMemory;
use zerocopy::{Immutable, IntoBytes};

/// The payload of a reply, and the memory whose file goes with it.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) payload: Vec<u8>,
    pub(super) memory: Option<SharedMemory>,
}

impl Reply {
    /// Nothing but that it was done.
    pub(super) fn done() -> Self {
        Self::default()
    }

    /// A structure.
    pub(super) fn of<T: IntoBytes + Immutable>(value: &T) -> Self {
        Self { payload: value.as_bytes().to_vec(), memory: None }
    }

    /// What follows the structure.
    pub(super) fn followed_by(mut self, bytes: &[u8]) -> Self {
        self.payload.extend_from_slice(bytes);
        self
    }
}

/// How a command ended. The error goes to the client, the reason into the log.
pub(super) type Answer = Result<Reply, Refusal>;

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) error: Errno,
    pub(super) reason: String,
}

impl Refusal {
    pub(super) fn new(error: Errno, reason: impl Into<String>) -> Self {
        Self { error, reason: reason.into() }
    }

    /// The command contradicts itself or the specification.
    pub(super) fn invalid(reason: impl Into<String>) -> Self {
        Self::new(Errno::INVAL, reason)
    }
}
