//! What carries Ethernet frames from one port to another.
//!
//! A [`Wire`] is one end. [`pair()`] makes two in one process; [`DatagramWire`] and
//! [`StreamWire`] speak to QEMU's network back-ends. Layers have a wire inside and are one
//! themselves, so that they can be put on each other in any order: [`Port`] has addresses and
//! answers who asks for them, [`Tap`] writes a capture, [`Tracer`] a log, and [`FaultyWire`]
//! lets frames go wrong.
//!
//! Frames are whole Ethernet frames without their check sequence. A wire may lose them, as
//! Ethernet does, and whatever comes out of one was made by somebody else.

mod address;
mod carry;
mod datagram;
pub mod faults;
pub mod pair;
mod port;
mod stream;
mod tap;
#[cfg(test)]
mod tests;
mod tracer;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use thiserror::Error;

use super::time::Time;
use crate::unix_socket::SocketError;

pub use address::{ParseWireAddressError, WireAddress};
pub use datagram::DatagramWire;
pub use faults::{FaultyWire, WireFaults};
pub use pair::{PairWire, pair};
pub use port::{GidIndexError, GidTable, Port};
pub use stream::StreamWire;
pub use tap::Tap;
pub use tracer::{Described, Tracer};

/// The longest frame a wire must carry, in bytes: a path MTU of 4096 with all headers, and
/// the full Ethernet MTU of 9000 for what is not RoCE.
pub const MAX_FRAME: usize = 9000 + 22;

/// One end of something that carries Ethernet frames.
///
/// It belongs to one thread. Nothing in it waits except [`wait`](Self::wait), and nothing
/// allocates once it is warm.
pub trait Wire: Send {
    /// Sends a frame, or loses it when there is no room.
    ///
    /// # Errors
    ///
    /// The frame is longer than [`MAX_FRAME`], or the wire is broken.
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError>;

    /// Copies the next frame that arrived into `buffer` and returns its length; `None` when
    /// none is there. A frame longer than the buffer is lost.
    ///
    /// # Errors
    ///
    /// The wire is broken; no frame will come any more.
    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError>;

    /// Whether a frame that is sent now has room. Who sends only then loses nothing to a wire
    /// that is slow, if the wire can tell; [`receive`](Self::receive) makes room, and
    /// [`wait`](Self::wait) ends when there may be some.
    fn is_ready(&self) -> bool {
        true
    }

    /// When [`receive`](Self::receive) is to be called although nothing arrives, because a
    /// layer holds a frame back until then.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Sleeps until a frame may be there, until `wake` can be read, or for `timeout`; for
    /// ever when that is `None`. It may return for no reason at all. The
    /// [`deadline`](Self::deadline) is for the caller to look at.
    ///
    /// # Errors
    ///
    /// The system cannot wait.
    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError>;

    /// Frames lost in this process for lack of room or because they were too long.
    fn lost(&self) -> u64;
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError> {
        (**self).send(now, frame)
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        (**self).receive(now, buffer)
    }

    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn deadline(&self) -> Option<Time> {
        (**self).deadline()
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        (**self).wait(wake, timeout)
    }

    fn lost(&self) -> u64 {
        (**self).lost()
    }
}

/// Why a wire does not carry a frame.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The frame is longer than any link carries.
    #[error("a frame of {length:#x} bytes is longer than {MAX_FRAME:#x}: lower the path mtu")]
    FrameTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// The other end is gone.
    #[error("the other end of {name} was closed")]
    Closed {
        /// The wire.
        name: String,
    },
    /// The other end sent something that cannot be a frame.
    #[error("{name} announced a frame of {length:#x} bytes: the other end does not speak this format")]
    Format {
        /// The wire.
        name: String,
        /// The length that was announced.
        length: usize,
    },
    /// There is no socket for it.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused.
    #[error("cannot {operation} {name}")]
    System {
        /// What was to be done.
        operation: &'static str,
        /// The wire.
        name: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Refuses what no link carries.
fn check_length(frame: &[u8]) -> Result<(), WireError> {
    if frame.len() > MAX_FRAME { Err(WireError::FrameTooLong { length: frame.len() }) } else { Ok(()) }
}

/// Sleeps until `wire` can be read, or written if `write` is set, until `wake` can be read, or
/// until the time is over.
fn wait_for(
    wire: BorrowedFd<'_>,
    write: bool,
    wake: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    // A time beyond what the system can say is for ever.
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    let interest = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let wire = PollFd::from_borrowed_fd(wire, interest);
    let result = match wake {
        Some(wake) => poll(&mut [wire, PollFd::from_borrowed_fd(wake, PollFlags::IN)], timeout.as_ref()),
        None => poll(&mut [wire], timeout.as_ref()),
    };
    match result {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
