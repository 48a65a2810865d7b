//! What may go wrong, from the start of the controller to the end of one command.

use thiserror::Error;
use vdk_descriptors::nvme::{AdminOpcode, Cns, ControllerCapabilities, Status};
use vdk_hal::bar::BarError;
use vdk_hal::config::ConfigError;
use vdk_hal::memory::{MemoryError, OutOfBounds};
use vdk_hal::poll::TimedOut;
use vdk_iommu::DomainError;

use super::queue::CompletionFault;
use crate::kit::SessionError;

/// Why the controller was not started. It is disabled, with bus mastering off.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The controller does not know the NVM command set.
    #[error("the controller has no NVM command set (CAP {0:#x}): it is not a storage controller")]
    NoNvmCommandSet(u64),
    /// MQES is zero, which is not valid.
    #[error("CAP.MQES is {mqes}: a queue needs two entries at least")]
    QueueEntries {
        /// MQES.
        mqes: u16,
    },
    /// MPSMIN is above MPSMAX, or larger than this driver handles.
    #[error("the controller has pages from 2^{min} to 2^{max} bytes, which no host page fits")]
    PageSize {
        /// Binary logarithm of the smallest page.
        min: u32,
        /// Binary logarithm of the largest page.
        max: u32,
    },
    /// What Identify returned makes no sense.
    #[error("{cns} says {what}")]
    Identify {
        /// The structure.
        cns: Cns,
        /// What is wrong with it.
        what: String,
    },
    /// It took shadow doorbells before a reset and does not any more.
    #[error("the controller has lost its shadow doorbells: start it without them")]
    ShadowDoorbells,
    /// The controller does not follow CC.EN.
    #[error(transparent)]
    Enable(#[from] EnableError),
    /// An admin command failed.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A register could not be accessed, or the device is gone.
    #[error(transparent)]
    Register(#[from] BarError),
    /// Configuration space could not be accessed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The session refused something.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The address space could not be set up.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// No memory for the queues.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The queues do not fit their memory.
    #[error(transparent)]
    Layout(#[from] OutOfBounds),
}

/// Why the controller does not follow CC.EN.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnableError {
    /// CSTS.RDY did not follow in the time of CAP.TO.
    #[error("{error} (CAP.TO); CSTS reads {status:#x}: reset the function, or cycle its power")]
    TimedOut {
        /// What was waited for.
        error: TimedOut,
        /// CSTS at the end.
        status: u32,
    },
    /// CSTS.CFS is set.
    #[error("the controller has a fatal error, CSTS reads {status:#x}: reset it")]
    Fatal {
        /// CSTS.
        status: u32,
    },
    /// A register could not be accessed, or the device is gone.
    #[error(transparent)]
    Register(#[from] BarError),
}

impl From<TimedOut> for EnableError {
    fn from(error: TimedOut) -> Self {
        Self::TimedOut { error, status: 0 }
    }
}

/// Why the controller was not reset, or did not come back from it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResetError {
    /// It could not be shown to have stopped. What it was given stays its own.
    #[error("the controller could not be stopped: {0}; what it was given stays its own")]
    NotStopped(StopError),
    /// It has stopped, and did not come up again.
    #[error("the controller has stopped and did not come up again: {0}")]
    NotStarted(Box<StartError>),
    /// It is gone, or its session closed: it reaches memory no more.
    #[error("the device is gone or its session closed")]
    Gone,
}

/// Why the controller could not be shown to have stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StopError {
    /// CSTS.RDY did not go off.
    #[error(transparent)]
    Enable(#[from] EnableError),
    /// The session refused something, or bus mastering did not go off.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<StopError> for StartError {
    fn from(error: StopError) -> Self {
        match error {
            StopError::Enable(error) => Self::Enable(error),
            StopError::Session(error) => Self::Session(error),
        }
    }
}

impl StopError {
    /// Whether the device is gone or its session closed: in both cases it reaches memory
    /// no more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Enable(EnableError::Register(error)) => error.is_gone(),
            Self::Session(error) => error.is_gone(),
            Self::Enable(_) => false,
        }
    }
}

/// Why an admin command failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The controller says so.
    #[error("{command} failed: {status} ({status:#05x}){}", retry_hint(*do_not_retry))]
    Status {
        /// The command.
        command: AdminOpcode,
        /// The status.
        status: Status,
        /// The same command would fail again.
        do_not_retry: bool,
    },
    /// It was not completed in time. The admin queue is out of service until a reset.
    #[error("{command}: {error}; the controller needs a reset")]
    TimedOut {
        /// The command.
        command: AdminOpcode,
        /// What was waited for.
        error: TimedOut,
    },
    /// A completion makes no sense. The admin queue is out of service until a reset.
    #[error("{command}: the admin queue got {fault}; the controller needs a reset")]
    BadCompletion {
        /// The command that was waited for.
        command: AdminOpcode,
        /// What is wrong.
        fault: CompletionFault,
    },
    /// The admin queue is out of service.
    #[error("{command} was not sent: the admin queue is out of service until the controller is reset")]
    OutOfService {
        /// The command.
        command: AdminOpcode,
    },
    /// The controller was stopped, or did not come back from a reset.
    #[error("{command} was not sent: the controller is stopped")]
    Stopped {
        /// The command.
        command: AdminOpcode,
    },
    /// The data does not fit.
    #[error("{command} with {length:#x} bytes of data: at most {limit:#x} in one command; ask in parts")]
    TooLong {
        /// The command.
        command: AdminOpcode,
        /// The length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The controller does not have it.
    #[error("the controller has no {command}: {field} says so")]
    NotSupported {
        /// The command.
        command: AdminOpcode,
        /// Where it says so.
        field: &'static str,
    },
    /// A register could not be accessed, or the device is gone.
    #[error("{command}: {error}")]
    Register {
        /// The command.
        command: AdminOpcode,
        /// What happened.
        error: BarError,
    },
}

fn retry_hint(do_not_retry: bool) -> &'static str {
    if do_not_retry { "; the same command would fail again" } else { "" }
}

/// Why a namespace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// There is no such namespace.
    #[error("there is no active namespace {id}: `vdk nvme list` shows which there are")]
    NotActive {
        /// The number.
        id: u32,
    },
    /// The blocks are not 512 bytes to 64 KiB.
    #[error("namespace {id} has blocks of 2^{exponent} bytes: format it with blocks of 512 or 4096 bytes")]
    BlockLength {
        /// The number.
        id: u32,
        /// Binary logarithm of the size.
        exponent: u8,
    },
    /// Each block has metadata behind its data.
    #[error(
        "namespace {id} has {metadata} bytes of metadata behind each block: format it without metadata, or \
         with metadata in its own buffer"
    )]
    Metadata {
        /// The number.
        id: u32,
        /// The bytes.
        metadata: u16,
    },
    /// An admin command failed.
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// Why a queue pair was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenQueueError {
    /// All queues that the controller gave are open.
    #[error("all {granted} I/O queues that the controller gave are open ({asked} were asked for): close one")]
    NoQueueLeft {
        /// How many it gave.
        granted: u16,
        /// How many were asked for.
        asked: u16,
    },
    /// The depth is zero or more than the controller can have.
    #[error(
        "a depth of {depth} commands is not possible: CAP.MQES allows queues of {entries} entries, which is 1 \
         to {limit} commands"
    )]
    Depth {
        /// The depth.
        depth: u32,
        /// MQES plus one.
        entries: u32,
        /// The most commands in flight.
        limit: u32,
    },
    /// No memory for the queues.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The queues could not be mapped.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// The queues do not fit their memory.
    #[error(transparent)]
    Layout(#[from] OutOfBounds),
    /// A doorbell is not in the BAR.
    #[error(transparent)]
    Register(#[from] BarError),
    /// The controller did not create it.
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// What is wrong with a queue pair. Nothing is submitted any more until
/// [`recover`](super::QueuePair::recover).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A completion makes no sense: the queue is quarantined.
    #[error("queue {queue} got {fault}; the controller needs a reset")]
    BadCompletion {
        /// The queue.
        queue: u16,
        /// What is wrong.
        fault: CompletionFault,
    },
    /// Commands were not completed in time, not even after an abort.
    #[error("queue {queue}: {count} commands are overdue; the controller needs a reset")]
    Overdue {
        /// The queue.
        queue: u16,
        /// How many.
        count: u32,
    },
    /// The controller was reset: the queue does not exist any more.
    #[error("queue {queue} is gone since the controller was reset: it must be created again")]
    Reset {
        /// The queue.
        queue: u16,
    },
    /// The controller says that it has failed, or that it is not ready.
    #[error("queue {queue}: the controller does not run, CSTS reads {status:#x}; it needs a reset")]
    NotRunning {
        /// The queue.
        queue: u16,
        /// CSTS.
        status: u32,
    },
    /// The controller is being stopped.
    #[error("queue {queue}: the controller is being stopped")]
    Stopping {
        /// The queue.
        queue: u16,
    },
    /// The device is gone or was stopped, or its session closed.
    #[error("queue {queue}: the device is gone or its session closed")]
    Gone {
        /// The queue.
        queue: u16,
    },
    /// A register could not be accessed.
    #[error("queue {queue}: {error}")]
    Register {
        /// The queue.
        queue: u16,
        /// What happened.
        error: BarError,
    },
}

/// Why a queue pair was not recovered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The controller could not be reset. With [`ResetError::NotStopped`] nothing was given
    /// back: close the queue pair.
    #[error(transparent)]
    Reset(#[from] ResetError),
    /// Everything was given back, and the queue pair could not be created again.
    #[error("the queue pair could not be created again: {0}")]
    Create(AdminError),
}

impl From<AdminError> for RecoverError {
    fn from(error: AdminError) -> Self {
        Self::Create(error)
    }
}

/// Whether CAP names something that this driver can work with.
pub(super) fn check_capabilities(capabilities: ControllerCapabilities) -> Result<(), StartError> {
    if !capabilities.nvm_command_set() {
        return Err(StartError::NoNvmCommandSet(capabilities.0));
    }
    match capabilities.max_queue_entries() {
        0 => Err(StartError::QueueEntries { mqes: 0 }),
        _ => Ok(()),
    }
}
