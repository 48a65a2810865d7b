//! How work ended.

use core::fmt;

use vdk_descriptors::roce::Qpn;

/// Which of the two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// How one work request ended. Of a failed one only the request, the queue pair and the
/// status are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It was done.
    Success(Success),
    /// It was not.
    Error(Failure),
}

impl Completion {
    /// The caller's number of the work request.
    #[must_use]
    pub const fn id(&self) -> u64 {
        match self {
            Self::Success(success) => success.id,
            Self::Error(failure) => failure.id,
        }
    }

    /// The queue pair.
    #[must_use]
    pub const fn queue_pair(&self) -> Qpn {
        match self {
            Self::Success(success) => success.queue_pair,
            Self::Error(failure) => failure.queue_pair,
        }
    }

    /// The error, when it is one.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Success(_) => None,
            Self::Error(failure) => Some(failure.status),
        }
    }
}

/// A work request that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success {
    /// The caller's number of the work request.
    pub id: u64,
    /// The queue pair.
    pub queue_pair: Qpn,
    /// What was done.
    pub opcode: CompletionOpcode,
    /// How many bytes: of the message, without the 40 bytes of the address area. A receive
    /// of a WRITE with immediate has the length of the WRITE.
    pub length: u32,
    /// The immediate value that came with the message.
    pub immediate: Option<u32>,
    /// The remote key that the message made invalid.
    pub invalidated: Option<u32>,
    /// The sender, of a datagram.
    pub source: Option<Qpn>,
    /// Whether the other side asked for an event.
    pub solicited: bool,
}

/// A work request that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The caller's number of the work request.
    pub id: u64,
    /// The queue pair.
    pub queue_pair: Qpn,
    /// Why.
    pub status: Status,
}

/// What a completed work request did. The numbers are those of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOpcode {
    /// A SEND.
    Send = 0,
    /// A WRITE.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A receive of a SEND.
    Receive = 128,
    /// A receive that a WRITE with immediate used.
    ReceiveWrite = 129,
}

/// Why a work request failed. The numbers are those of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The buffers of this side are too short.
    LocalLength = 1,
    /// This side could not carry it out.
    LocalQueuePairOperation = 2,
    /// A local key does not allow it.
    LocalProtection = 4,
    /// The queue pair failed before it was done.
    Flushed = 5,
    /// The other side's answer makes no sense.
    BadResponse = 7,
    /// The other side says that the request is invalid. Of a receive: the message came, and asked
    /// to invalidate a key that it may not.
    RemoteInvalidRequest = 9,
    /// The other side's memory does not allow it.
    RemoteAccess = 10,
    /// The other side could not carry it out.
    RemoteOperation = 11,
    /// The other side did not answer, or too many packets were lost.
    RetryExceeded = 12,
    /// The other side had no receive, too often.
    ReceiverNotReadyExceeded = 13,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "local length error: the buffers of this side are too short",
            Self::LocalQueuePairOperation => "local operation error: this side could not carry it out",
            Self::LocalProtection => "local protection error: a local key does not allow it",
            Self::Flushed => "flushed: the queue pair failed before it was done",
            Self::BadResponse => "bad response: the answer of the other side makes no sense",
            Self::RemoteInvalidRequest => "remote invalid request: the other side refuses the request",
            Self::RemoteAccess => "remote access error: the other side's memory does not allow it",
            Self::RemoteOperation => "remote operation error: the other side could not carry it out",
            Self::RetryExceeded => {
                "transport retries exceeded: the other side does not answer; check its address, \
                 queue pair number, path MTU, state and READ depth (max_dest_rd_atomic)"
            }
            Self::ReceiverNotReadyExceeded => {
                "receiver not ready, retries exceeded: the other side posted no receive"
            }
        })
    }
}
