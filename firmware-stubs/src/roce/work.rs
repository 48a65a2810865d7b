//! Work requests, and why a post is refused.

use thiserror::Error;
use vdk_descriptors::roce::{QKey, Qpn};

use super::completion::CompletionOpcode;
use super::path::Path;
use super::state::{Service, State};

/// A piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScatterGatherEntry {
    /// Where it begins.
    pub address: u64,
    /// How many bytes.
    pub length: u32,
    /// The local key of its region.
    pub key: u32,
}

/// Where an operation acts on the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The first address.
    pub address: u64,
    /// The remote key.
    pub key: u32,
}

/// What a send does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message into a receive of the other side.
    Send,
    /// The same with a value for its completion.
    SendWithImmediate(u32),
    /// The same, and a remote key dies.
    SendWithInvalidate(u32),
    /// A write to remote memory.
    Write(Remote),
    /// The same, with a value for the completion of a receive.
    WriteWithImmediate(Remote, u32),
    /// A read of remote memory.
    Read(Remote),
    /// Stores `swap` at the remote address when `compare` is there; the local memory gets
    /// what was there.
    CompareSwap {
        /// Where; a multiple of eight.
        remote: Remote,
        /// What must be there.
        compare: u64,
        /// What to store.
        swap: u64,
    },
    /// Adds to the remote number; the local memory gets what was there.
    FetchAdd {
        /// Where; a multiple of eight.
        remote: Remote,
        /// What to add.
        add: u64,
    },
}

impl Operation {
    /// Whether the other side answers with data, for which it keeps resources.
    #[inline]
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// How its completion calls it.
    #[must_use]
    pub const fn completion(&self) -> CompletionOpcode {
        match self {
            Self::Send | Self::SendWithImmediate(_) | Self::SendWithInvalidate(_) => CompletionOpcode::Send,
            Self::Write(_) | Self::WriteWithImmediate(..) => CompletionOpcode::Write,
            Self::Read(_) => CompletionOpcode::Read,
            Self::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            Self::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        }
    }
}

/// The local memory of a send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Pieces of registered memory. It must stay as it is until the completion.
    Entries(&'a [ScatterGatherEntry]),
    /// Bytes that are copied when the request is posted.
    Inline(&'a [u8]),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The way to the other side.
    pub path: Path,
    /// The queue pair there.
    pub queue_pair: Qpn,
    /// Its Q_Key. One with the highest bit set means the sender's own.
    pub q_key: QKey,
}

/// A send to post.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The caller's number, which the completion gives back.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// The local memory.
    pub payload: Payload<'a>,
    /// Whether success gives a completion. An error always does.
    pub signaled: bool,
    /// Whether the receiver is to get an event.
    pub solicited: bool,
    /// Whether to wait for all earlier READs and atomic operations.
    pub fence: bool,
    /// Where to; needed by datagrams. A connection has its own way and ignores this.
    pub destination: Option<&'a Destination>,
}

impl<'a> SendRequest<'a> {
    /// A signaled request without any option.
    #[must_use]
    pub const fn new(id: u64, operation: Operation, payload: Payload<'a>) -> Self {
        Self { id, operation, payload, signaled: true, solicited: false, fence: false, destination: None }
    }
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// The caller's number, which the completion gives back.
    pub id: u64,
    /// The memory for one message.
    pub entries: &'a [ScatterGatherEntry],
}

/// Why a work request was refused. There will be no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// The queue has no free slot.
    #[error("the queue is full: {capacity} requests have not completed; poll for completions first")]
    QueueFull {
        /// How many requests the queue holds.
        capacity: u32,
    },
    /// The state does not allow it.
    #[error("a queue pair in state {state:?} takes no such request; bring it to a later state first")]
    State {
        /// The state.
        state: State,
    },
    /// There are more pieces of memory than the queue allows.
    #[error("{count} scatter-gather entries, and the queue allows {most}; split the request")]
    Entries {
        /// How many there are.
        count: usize,
        /// How many may be.
        most: u32,
    },
    /// There are more bytes to be copied than the queue allows.
    #[error("{length:#x} inline bytes, and the queue allows {most:#x}")]
    Inline {
        /// How many there are.
        length: usize,
        /// How many may be.
        most: u32,
    },
    /// The message is longer than one may be.
    #[error("a message of {length:#x} bytes, and at most {most:#x} are allowed")]
    Length {
        /// How long it is.
        length: u64,
        /// How long it may be.
        most: u64,
    },
    /// The service does not have the operation.
    #[error("queue pairs of service {service:?} do not have this operation")]
    Operation {
        /// The service.
        service: Service,
    },
    /// The address of an atomic operation is no multiple of eight.
    #[error("an atomic operation at {address:#x}, which is no multiple of 8")]
    Misaligned {
        /// The address.
        address: u64,
    },
    /// The queue pair may have no READ or atomic operation outstanding at all.
    #[error("max_rd_atomic is 0: no READ or atomic operation can ever start; set it in the change to RTS")]
    NoReadDepth,
    /// A datagram without a destination.
    #[error("a datagram needs a destination")]
    NoDestination,
}
