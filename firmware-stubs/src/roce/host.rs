//! What a queue pair needs from whoever owns it.

use vdk_descriptors::roce::Qpn;

use super::completion::{Completion, Side};
use super::memory::Memory;

/// The owner of queue pairs, seen by one of them.
pub trait Host: Memory {
    /// Takes a completion. Each posted work request gives one, except a send that succeeds
    /// and was posted without a signal.
    fn complete(&mut self, side: Side, completion: Completion);

    /// Takes note of something that belongs to no work request.
    fn event(&mut self, event: Event);
}

/// What can happen to a queue pair aside from its work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The first request was accepted while the queue pair could not send yet. It is reported
    /// once for each change to RTR.
    Established(Qpn),
    /// All sends that were begun are done, and none is begun: the state is SQD.
    SendQueueDrained(Qpn),
    /// A request of the other side was refused as invalid. The state is Error.
    RequestError(Qpn),
    /// A request of the other side had no right to the memory. The state is Error.
    AccessError(Qpn),
    /// The other side says that the path is congested.
    Congestion(Qpn),
}

impl Event {
    /// How many kinds there are.
    pub(super) const KINDS: usize = Self::Congestion(Qpn::MULTICAST).kind() + 1;

    /// Which of the kinds it is. The last has the highest number.
    const fn kind(self) -> usize {
        match self {
            Self::Established(_) => 0,
            Self::SendQueueDrained(_) => 1,
            Self::RequestError(_) => 2,
            Self::AccessError(_) => 3,
            Self::Congestion(_) => 4,
        }
    }
}
