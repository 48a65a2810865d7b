//! What may go wrong, from the start of the device to the end of one operation.

use core::fmt;

use thiserror::Error;
use vdk_descriptors::ioat::{ChannelErrors, ChannelState, Version};
use vdk_descriptors::sg::RefineError;
use vdk_hal::bar::BarError;
use vdk_hal::config::ConfigError;
use vdk_hal::memory::{MemoryError, OutOfBounds};
use vdk_hal::poll::TimedOut;
use vdk_iommu::DomainError;

use crate::kit::SessionError;

/// Why the device was not started. It is stopped, with bus mastering off.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The interface version is not 3.x.
    #[error("the engine has interface version {version}; this driver knows 3.x")]
    Version {
        /// What CBVER says.
        version: Version,
    },
    /// CHANCNT says zero.
    #[error("the engine has no channel")]
    NoChannels,
    /// XFERCAP is zero or below a page.
    #[error("the engine says that it moves 2^{log2} bytes at most, which is below a page")]
    TransferCap {
        /// The low five bits of XFERCAP.
        log2: u8,
    },
    /// A channel could not be reset.
    #[error("channel {channel}: {error}")]
    Reset {
        /// The channel.
        channel: u8,
        /// What happened.
        error: StopError,
    },
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
}

/// Why the function was not reset.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResetDeviceError {
    /// A channel is open. Nothing was done.
    #[error("{count} channels are open: close them first")]
    ChannelsOpen {
        /// How many.
        count: u32,
    },
    /// The device was stopped, before or meanwhile, and stays off.
    #[error("the device was stopped: start it again instead")]
    Stopped,
    /// The function has no reset of its own; a hot reset would hit others too. Nothing was
    /// done.
    #[error("the function has no reset of its own: it needs a function-level or power-management reset")]
    NoKind,
    /// Bus mastering could not be turned off.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The reset failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The device did not come up again.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why a channel was not opened. The channel is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenChannelError {
    /// There is no such channel.
    #[error("there is no channel {channel}: the engine has {count}, counted from 0")]
    NoSuchChannel {
        /// The number asked for.
        channel: u8,
        /// How many there are.
        count: u8,
    },
    /// Somebody has it open.
    #[error("channel {channel} is open already: close it first, or use another")]
    Busy {
        /// The number asked for.
        channel: u8,
    },
    /// The ring cannot have that depth.
    #[error("a ring of depth {depth} is not possible: 1 to 65536 descriptors can be in flight")]
    Depth {
        /// The depth asked for.
        depth: u32,
    },
    /// No memory for the ring.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The ring could not be mapped.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// The ring does not fit its memory.
    #[error(transparent)]
    Layout(#[from] OutOfBounds),
    /// The channel did not start.
    #[error(transparent)]
    Start(#[from] ChannelError),
}

/// Why a channel could not be shown to have stopped. What it was given stays the device's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StopError {
    /// The reset bit did not clear.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// A register could not be accessed, or the device is gone.
    #[error(transparent)]
    Register(#[from] BarError),
    /// The session refused something, or bus mastering did not go off.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl StopError {
    /// Whether the device is gone or its session closed: in both cases it reaches memory
    /// no more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Register(error) => error.is_gone(),
            Self::Session(error) => error.is_gone(),
            Self::TimedOut(_) => false,
        }
    }
}

/// What is wrong with a channel. Nothing is posted any more until
/// [`recover`](super::Channel::recover).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The engine halted.
    #[error("channel {channel} halted: {errors}; it needs a reset")]
    Halted {
        /// The channel.
        channel: u8,
        /// What CHANERR says.
        errors: ChannelErrors,
    },
    /// The engine is in a state that nobody asked for.
    #[error("channel {channel} is {state} though nobody stopped it; it needs a reset")]
    UnexpectedState {
        /// The channel.
        channel: u8,
        /// Its state.
        state: ChannelState,
    },
    /// The completion word makes no sense.
    #[error("channel {channel} wrote completion word {word:#x}, {fault}; it needs a reset")]
    BadCompletion {
        /// The channel.
        channel: u8,
        /// What was read.
        word: u64,
        /// What is wrong with it.
        fault: CompletionFault,
    },
    /// Something did not end in time.
    #[error("channel {channel}: {error}; it needs a reset")]
    TimedOut {
        /// The channel.
        channel: u8,
        /// What was waited for.
        error: TimedOut,
    },
    /// The channel could not be shown to have stopped.
    #[error("channel {channel} did not stop: {error}; closing it turns bus mastering off")]
    NotStopped {
        /// The channel.
        channel: u8,
        /// What happened.
        error: StopError,
    },
    /// The device is gone, or its session closed.
    #[error("channel {channel}: the device is gone or its session closed")]
    Gone {
        /// The channel.
        channel: u8,
    },
    /// A register could not be accessed.
    #[error("channel {channel}: {error}")]
    Register {
        /// The channel.
        channel: u8,
        /// What happened.
        error: BarError,
    },
}

/// What is wrong with a completion word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionFault {
    /// The address is not one of the ring.
    OutsideRing,
    /// The descriptor was not handed to the engine yet.
    NotIssued,
}

impl fmt::Display for CompletionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutsideRing => "which is no address of the ring",
            Self::NotIssued => "a descriptor that it was not given yet",
        })
    }
}

/// Why an operation ended without success. Some of its bytes may have been moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The engine halted on it.
    #[error("the engine halted on it: {errors}")]
    Hardware {
        /// What CHANERR said.
        errors: ChannelErrors,
    },
    /// It was outstanding when the channel was reset for another reason.
    #[error("it was given up when the channel was reset")]
    Aborted,
    /// The device went away under it.
    #[error("the device is gone")]
    Gone,
}

/// An operation that was not posted, with its owner. Nothing has changed.
pub type Rejected<T> = crate::rejected::Rejected<T, RejectReason>;

/// Why an operation was not posted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The ring has too few free descriptors now.
    #[error("needs {needed} descriptors and {free} are free: wait until some are done")]
    Full {
        /// How many descriptors it takes.
        needed: u64,
        /// How many are free.
        free: usize,
    },
    /// The ring never has so many descriptors.
    #[error(
        "needs {needed} descriptors and the ring holds {capacity}: use fewer segments at once, or a deeper ring"
    )]
    TooLong {
        /// How many descriptors it takes.
        needed: u64,
        /// How many the ring holds.
        capacity: usize,
    },
    /// There is no segment.
    #[error("there is no segment to move")]
    Empty,
    /// A segment has no bytes; the engine would halt on it.
    #[error("segment {index} has no bytes")]
    ZeroLength {
        /// Its number, counted from 0.
        index: usize,
    },
    /// A segment passes the end of the 64-bit address space.
    #[error("segment {index} passes the end of the address space")]
    AddressOverflow {
        /// Its number, counted from 0.
        index: usize,
    },
    /// The two lists do not make a copy.
    #[error(transparent)]
    Lists(#[from] RefineError),
    /// The engine cannot fill.
    #[error("the engine has no fill operation")]
    NoFill,
    /// The channel cannot wait in that way.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The channel must be recovered first.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Why a wait ended without a completion.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Nothing completed in time. The channel works on, as far as one can tell: wait again,
    /// or recover it.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The channel was opened without an interrupt.
    #[error("channel {channel} has no interrupt to wait for: open it with one, or poll")]
    NoInterrupt {
        /// The channel.
        channel: u8,
    },
    /// The channel must be recovered first.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Why a streamed copy was not posted whole.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError<T> {
    /// Nothing was posted, and here is the owner.
    Rejected(Rejected<T>),
    /// A part of it is with the device. The owner comes back from
    /// [`recover`](super::Channel::recover), with an error.
    Interrupted {
        /// The operation.
        cookie: super::Cookie,
        /// What happened.
        error: ChannelError,
    },
}

impl<T> fmt::Debug for StreamError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::Interrupted { cookie, error } => {
                f.debug_struct("Interrupted").field("cookie", cookie).field("error", error).finish()
            }
        }
    }
}

impl<T> fmt::Display for StreamError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::Interrupted { error, .. } => write!(f, "stopped in the middle: {error}"),
        }
    }
}

impl<T> std::error::Error for StreamError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rejected(rejected) => std::error::Error::source(rejected),
            // Its text is in the message.
            Self::Interrupted { .. } => None,
        }
    }
}
