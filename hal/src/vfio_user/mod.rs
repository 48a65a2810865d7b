//! A PCI function behind a vfio-user socket.
//!
//! vfio-user is VFIO over a UNIX socket: the device model is another process, the "server".
//! The interface is that of QEMU's document "vfio-user Protocol Specification".
//!
//! # Parts
//!
//! - [`message`]: the layout of messages, and nothing else.
//! - [`capabilities`]: what both sides tell each other when a connection begins.
//! - [`transport`]: whole messages with file descriptors over a stream socket, bounded in
//!   size and time.
//!
//!
//! A client and a server share these three, and no behaviour. The client is
//! [`VfioUserNode`] and what it opens, [`VfioUserFunction`].
//!
//! # Memory
//!
//! The server reaches memory of the client in two ways. Memory with a file
//! ([`SharedMemory::file`](crate::memory::SharedMemory::file)) is handed over with it: the
//! server maps it and reaches it as fast as its own. Such memory stays shared for good, since
//! the server may keep the file: after the mapping has ended it can be mapped again, but
//! never becomes [pinned](crate::memory::SharedMemory::try_into_pinned). Any other memory,
//! such as a caller's own pages, is reached by messages, which this client answers; a server
//! need not send them, and that of this project does not.

mod connection;
mod function;
mod interrupts;
mod memory;
mod node;
mod regions;

pub mod capabilities;
pub mod message;
pub mod transport;

pub use function::VfioUserFunction;
pub use node::{VfioUserNode, VfioUserOptions};
