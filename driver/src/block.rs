//! Block devices, whatever is behind them: what a file system, a server or another driver
//! embeds.
//!
//! [`BlockDevice`] takes requests of any length with the memory that they read or write, and
//! gives the memory back when they have ended. A device that moves less at once splits them
//! by itself. [`nvme::BlockQueue`](crate::nvme::BlockQueue) is one.

use core::fmt;
use core::time::Duration;
use std::error::Error as StdError;

use thiserror::Error;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::OutOfBounds;
use vdk_hal::poll::TimedOut;
use vdk_iommu::{Direction, DmaBuffer, DmaRegion, DmaSegment};

/// What a block device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGeometry {
    /// The size of a block, a power of two.
    pub block_length: ByteLength,
    /// How many blocks there are.
    pub blocks: u64,
    /// What the device moves at once; longer requests are split.
    pub max_transfer: ByteLength,
    /// Memory begins at a multiple of this for the device.
    pub alignment: ByteLength,
    /// How many requests can be in flight.
    pub requests: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Written data is durable only after a flush.
    pub write_cache: bool,
    /// It has [`BlockOperation::WriteZeroes`].
    pub write_zeroes: bool,
    /// It has [`BlockOperation::Discard`].
    pub discard: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockOperation {
    /// Reads blocks into memory.
    Read,
    /// Writes memory to blocks.
    Write,
    /// Makes what was written before durable. Has no blocks and no memory.
    Flush,
    /// Sets blocks to zero. Has no memory.
    WriteZeroes,
    /// The blocks are no longer needed; what they read as is not said. Has no memory.
    Discard,
}

impl BlockOperation {
    /// Whether a request has memory.
    #[must_use]
    pub fn has_memory(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether it changes blocks.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::WriteZeroes | Self::Discard)
    }
}

impl fmt::Display for BlockOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::WriteZeroes => "write of zeroes",
            Self::Discard => "discard",
        })
    }
}

/// Memory that a device reaches at contiguous addresses, as long as the value lives.
pub trait BlockMemory {
    /// How long it is.
    fn length(&self) -> ByteLength;

    /// A part of it as the device addresses it.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    fn segment(&self, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds>;
}

impl BlockMemory for DmaBuffer {
    fn length(&self) -> ByteLength {
        Self::length(self)
    }

    fn segment(&self, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds> {
        Self::segment(self, offset, length)
    }
}

impl<D: Direction> BlockMemory for DmaRegion<D> {
    fn length(&self) -> ByteLength {
        Self::length(self)
    }

    fn segment(&self, offset: usize, length: usize) -> Result<DmaSegment, OutOfBounds> {
        Self::segment(self, offset, length)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest<M> {
    /// What to do.
    pub operation: BlockOperation,
    /// The first block.
    pub lba: u64,
    /// How many blocks; the memory, where there is any, is at least as long.
    pub blocks: u64,
    /// The memory.
    pub memory: Option<M>,
}

/// Names a request until it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// The end of a request, with its memory.
#[derive(Debug)]
pub struct BlockEnd<M> {
    /// Which one.
    pub id: RequestId,
    /// How it ended. After an error some of its blocks may have been read or written.
    pub result: Result<(), BlockFailure>,
    /// Its memory.
    pub memory: Option<M>,
}

/// Why a request ended without success.
#[derive(Debug, Error)]
#[error("{operation} of {blocks} blocks from LBA {lba:#x}: {error}")]
pub struct BlockFailure {
    /// What was to be done.
    pub operation: BlockOperation,
    /// The first block of the part that failed.
    pub lba: u64,
    /// How many blocks the part has.
    pub blocks: u64,
    /// What the device says.
    pub error: Box<dyn StdError + Send + Sync>,
}

/// A request that was not taken, with its memory. Nothing has changed.
pub struct Refused<M> {
    /// The request.
    pub request: BlockRequest<M>,
    /// Why.
    pub reason: RefuseReason,
}

impl<M> fmt::Debug for Refused<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for Refused<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<M> StdError for Refused<M> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.reason.source()
    }
}

/// Why a request was not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RefuseReason {
    /// As many requests are in flight as the device takes.
    #[error("{requests} requests are in flight, as many as there can be: wait until one has ended")]
    Full {
        /// How many.
        requests: u32,
    },
    /// The range is not inside the device, or empty.
    #[error("{blocks} blocks from LBA {lba:#x} are not inside the device, which has {size:#x} blocks")]
    Range {
        /// The first block.
        lba: u64,
        /// How many blocks.
        blocks: u64,
        /// How many there are.
        size: u64,
    },
    /// The memory is missing or shorter than the blocks.
    #[error("{blocks} blocks need {needed:#x} bytes of memory, there are {length:#x}")]
    Memory {
        /// How many blocks.
        blocks: u64,
        /// How many bytes they have.
        needed: u64,
        /// How long the memory is.
        length: u64,
    },
    /// The memory does not begin where the device wants it.
    #[error(
        "memory at iova {iova:#x} is not aligned to {alignment} bytes: copy the data to an aligned place"
    )]
    Unaligned {
        /// Where it begins.
        iova: u64,
        /// What the device wants.
        alignment: u64,
    },
    /// The device does not have the operation, or is read only.
    #[error("the device has no {operation}{}", if *read_only { ": it is read only" } else { "" })]
    NotSupported {
        /// The operation.
        operation: BlockOperation,
        /// Since it is read only.
        read_only: bool,
    },
    /// The device must be recovered first.
    #[error(transparent)]
    Device(#[from] BlockError),
}

/// What is wrong with a block device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Nothing ended in time. The device goes on.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// It takes nothing new until [`BlockDevice::recover`].
    #[error(transparent)]
    Failed(Box<dyn StdError + Send + Sync>),
    /// It was not recovered, and what it has stays its own.
    #[error(transparent)]
    Lost(Box<dyn StdError + Send + Sync>),
}

/// A device of blocks, with one user. Requests are executed in no promised order.
pub trait BlockDevice<M: BlockMemory> {
    /// What it is.
    fn geometry(&self) -> BlockGeometry;

    /// Takes a request, whole or not at all. The device may begin with it at
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// [`Refused`] with the request.
    fn submit(&mut self, request: BlockRequest<M>) -> Result<RequestId, Refused<M>>;

    /// Hands what was submitted to the device.
    ///
    /// # Errors
    ///
    /// [`BlockError::Failed`].
    fn commit(&mut self) -> Result<(), BlockError>;

    /// How many requests have not ended.
    fn outstanding(&self) -> u32;

    /// Gives back what has ended, without waiting, and returns how many.
    ///
    /// # Errors
    ///
    /// [`BlockError::Failed`], after what could be given back was.
    fn poll(&mut self, ended: &mut dyn FnMut(BlockEnd<M>)) -> Result<u32, BlockError>;

    /// Waits until a [`poll`](Self::poll) may have something, `within` at most.
    ///
    /// # Errors
    ///
    /// [`BlockError::TimedOut`], [`BlockError::Failed`].
    fn wait(&mut self, within: Duration) -> Result<(), BlockError>;

    /// Brings a device that has failed to work again. Everything outstanding ends with an
    /// error.
    ///
    /// # Errors
    ///
    /// [`BlockError::Failed`] when everything was given back and it does not work;
    /// [`BlockError::Lost`] when the device could not be shown to have stopped, so that it
    /// keeps what it has.
    fn recover(&mut self, ended: &mut dyn FnMut(BlockEnd<M>)) -> Result<(), BlockError>;
}
