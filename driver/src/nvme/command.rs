//! What a queue pair takes and gives back.

use thiserror::Error;
use vdk_descriptors::nvme::{NvmOpcode, Status};
use vdk_descriptors::prp::PrpError;
use vdk_descriptors::ring::Cookie;
use vdk_descriptors::sgl::SglError;
use vdk_hal::poll::TimedOut;

use super::error::QueueError;

/// The end of one command.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<T> {
    /// Which command.
    pub cookie: Cookie,
    /// Dword 0 of the completion, or why there is none.
    pub result: Result<u32, CommandError>,
    /// What rode along.
    pub owner: T,
}

/// Why a command ended without success. Some of its blocks may have been read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The controller says so.
    #[error("{status} ({status:#05x})")]
    Status {
        /// The status.
        status: Status,
        /// The same command would fail again.
        do_not_retry: bool,
    },
    /// It was outstanding when the controller was reset.
    #[error("it was given up when the controller was reset")]
    Reset,
    /// It was outstanding when its queue was deleted.
    #[error("it was given up when its queue was deleted")]
    Deleted,
    /// The device went away under it.
    #[error("the device is gone")]
    Gone,
}

/// A command that was not submitted, with its owner. Nothing has changed.
pub type Rejected<T> = crate::rejected::Rejected<T, RejectReason>;

/// Why a command was not submitted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// As many commands are in flight as the queue holds.
    #[error("all {depth} commands of the queue are in flight: wait until one has ended")]
    Full {
        /// How many it holds.
        depth: u32,
    },
    /// The namespace has no blocks.
    #[error("namespace {namespace} has 0 blocks: create or format it first")]
    NoBlocks {
        /// The namespace.
        namespace: u32,
    },
    /// The range is not inside the namespace.
    #[error(
        "{blocks} blocks from LBA {lba:#x} pass the end of namespace {namespace}, which has {size:#x} blocks"
    )]
    Range {
        /// The namespace.
        namespace: u32,
        /// The first block.
        lba: u64,
        /// How many blocks.
        blocks: u64,
        /// How many blocks there are.
        size: u64,
    },
    /// The data is not whole blocks.
    #[error("{length:#x} bytes are not whole blocks of {block:#x} bytes: use a multiple of the block size")]
    PartialBlock {
        /// The length of the data.
        length: u64,
        /// The size of a block.
        block: u64,
    },
    /// More than one command carries.
    #[error(
        "{length:#x} bytes are more than one command carries, {limit:#x} ({because}): transfer less at once"
    )]
    TooLong {
        /// The length of the data.
        length: u64,
        /// The limit.
        limit: u64,
        /// Where it comes from.
        because: &'static str,
    },
    /// More ranges than one command carries, or none.
    #[error("{count} ranges: one command carries 1 to 256")]
    Ranges {
        /// How many.
        count: usize,
    },
    /// The memory cannot be described by page pointers, and the controller has no SGLs.
    #[error("{0}; the controller has no SGLs: use memory that begins on a page")]
    Memory(PrpError),
    /// The memory cannot be described by an SGL.
    #[error(transparent)]
    Sgl(#[from] SglError),
    /// The namespace is write protected.
    #[error("namespace {namespace} is write protected")]
    ReadOnly {
        /// The namespace.
        namespace: u32,
    },
    /// The controller does not have the command.
    #[error("the controller has no {command}: ONCS says so")]
    NotSupported {
        /// The command.
        command: NvmOpcode,
    },
    /// The queue must be recovered first.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<PrpError> for RejectReason {
    fn from(error: PrpError) -> Self {
        Self::Memory(error)
    }
}

/// Why a wait ended without a completion.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Nothing completed in time. The queue works on, as far as one can tell: wait again,
    /// or recover it.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The queue was opened without an interrupt.
    #[error("queue {queue} has no interrupt to wait for: open it with one, or poll")]
    NoInterrupt {
        /// The queue.
        queue: u16,
    },
    /// The queue must be recovered first.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// What happened on a queue pair since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Commands that were submitted.
    pub commands: u64,
    /// Commands that ended.
    pub completions: u64,
    /// Commands that ended with an error.
    pub failed: u64,
    /// Writes to the submission doorbell.
    pub submission_doorbells: u64,
    /// Writes to the completion doorbell.
    pub completion_doorbells: u64,
    /// Doorbells that the controller did not want, since it looks at their shadow.
    pub doorbells_spared: u64,
    /// Interrupts received.
    pub interrupts: u64,
    /// Looks that found nothing, in waits.
    pub spins: u64,
    /// Abort commands that were sent.
    pub aborts: u64,
    /// Recoveries, each with a reset of the controller or after one.
    pub recoveries: u64,
}
