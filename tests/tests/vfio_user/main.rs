//! Emulated devices on a vfio-user socket: the client, the server and the drivers together,
//! and each side with another implementation of the protocol.

mod conformance;
mod drivers;
mod harness;
mod judges;
