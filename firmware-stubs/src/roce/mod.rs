//! RDMA over Ethernet as the firmware of an adapter does it.
//!
//! - [`time`]: the time that is passed in everywhere.
//! - [`wire`]: what carries frames from one port to another.

pub mod time;
pub mod wire;
