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
//! A client and a server share these three, and no behaviour.

pub mod capabilities;
pub mod message;
pub mod transport;
