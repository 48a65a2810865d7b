//! RoCEv2: what the firmware of an RDMA adapter does.
//!
//! The core is a [`QueuePair`] without I/O and without a clock. Frames, posted work and the time
//! go in; frames and completions come out; what it does to memory goes through [`Memory`],
//! which checks every key. The requester builds the packets of posted sends, the completer
//! takes the answers to them, the responder carries out the requests of the other side.
//!
//! An [`Endpoint`] owns queue pairs, memory regions and completion queues at one address.
//!
//! [`wire`] has what carries frames from one port to another, and [`time`] the time that is
//! passed in everywhere.
//!
//! What the standard leaves open is decided here:
//!
//! - keys are not checked for operations of length zero;
//! - acknowledgements carry no credits, and credits of the other side are not counted;
//! - seven retries are seven, and seven retries of a receiver that is not ready are for ever;
//! - after an RNR NAK the packets behind the refused one are dropped in silence;
//! - a datagram that is too long for its receive fails the receive and the queue pair.

mod attributes;
mod completer;
mod completion;
mod counters;
mod endpoint;
mod host;
mod memory;
mod path;
mod queue_pair;
mod queues;
mod requester;
mod responder;
mod state;
pub mod time;
pub mod wire;
mod work;

pub use attributes::{Attributes, MOST_DEPTH};
pub use completion::{Completion, CompletionOpcode, Failure, Side, Status, Success};
pub use counters::Counters;
pub use endpoint::{
    CompletionQueueId, Endpoint, EndpointError, FrameCounters, KeyTable, MOST_COMPLETIONS, RegisterError,
    Registration,
};
pub use host::{Event, Host};
pub use memory::{Atomic, Memory, MemoryError, ProtectionDomain, Reach, Rights};
pub use path::{Path, Station};
pub use queue_pair::{QueuePair, QueuePairOptions};
pub use queues::QueueSizes;
pub use responder::ADDRESS_AREA;
pub use state::{Mask, Service, State, Transition, TransitionError, check, transition};
pub use time::Time;
pub use work::{
    Destination, Operation, Payload, PostError, ReceiveRequest, Remote, ScatterGatherEntry, SendRequest,
};
