//! The vfio-user server against clients that speak the protocol by hand, good and bad.

mod doorbells;
mod harness;
mod hostile;
mod interrupts;
mod life;
mod memory;
mod messages;
