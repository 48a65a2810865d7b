//! The driver kit: what DriverKit promises, for PCI functions on Linux.
//!
//! A [`Registry`] knows drivers by their [`Personality`] declarations and is offered
//! functions. It starts the one that matches best, with an exclusive [`Session`] of the
//! function, on a serial [`DispatchQueue`] that all its callbacks run on, and stops it with a
//! reason and a deadline. For each function it can tell [`Why`] it is driven or is not.
//!
//! ```
//! use std::sync::Arc;
//! use vdk_driver::hal::function::PciNode;
//! use vdk_driver::hal::poll::Deadline;
//! use vdk_driver::kit::*;
//!
//! struct Lamp {
//!     session: Session,
//! }
//!
//! impl Driver for Lamp {
//!     const PERSONALITIES: &'static [Personality] =
//!         &[Personality::new("lamp", PciMatch::new().primary("0x11e81234"))];
//!
//!     fn start(_context: &Context<Self>, session: Session) -> Result<Self, StartError> {
//!         session.enable_memory()?;
//!         Ok(Self { session })
//!     }
//!
//!     fn stop(&mut self, _reason: StopReason, _deadline: Deadline) {}
//! }
//!
//! fn drive(node: &Arc<dyn PciNode>) -> std::io::Result<()> {
//!     let registry = Registry::new()?;
//!     registry.register::<Lamp>().expect("the name is unique");
//!     match registry.start::<Lamp>(node) {
//!         Ok(lamp) => println!("{:?}", lamp.with(|lamp| lamp.session.is_open())),
//!         Err(why) => println!("{why}"),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # When a driver goes wrong
//!
//! | what | then |
//! |---|---|
//! | `start` gives an error | the session is closed, no handler has run |
//! | `start` or `stop` is late | the function is closed under the driver, and it is dropped when it returns |
//! | a method or handler panics | the function is closed, then the driver is dropped; the process goes on |
//! | the function is removed | `stop` with [`StopReason::Removed`]; accesses fail with errors |

mod context;
mod driver;
mod event_loop;
mod instance;
mod matching;
mod personality;
mod queue;
mod registry;
mod running;
mod session;
mod source;
mod state;

pub use context::Context;
pub use driver::{Driver, StartError, StopReason};
pub use event_loop::EventLoop;
pub use instance::Allowances;
pub use matching::{Alternative, Hit, MatchKey, MatchString, Miss, ParseMatchError, PciMatch};
pub use personality::{Personality, Rank};
pub use queue::{CancelError, Cancellation, DispatchQueue, Pulse, Refusal, Rejected, RunError};
#[cfg(loom)]
pub use queue::{QueueCore, SourceCore};
pub use registry::{Outcome, RegisterError, Registry, Verdict, Why};
pub use running::{Running, WithError};
pub use session::{BusMasterGuard, InterruptVector, Session, SessionError};
pub use source::{Expiry, Interrupt, InterruptSource, SourceError, TimerSource};
pub use state::{DriverState, Failure};
