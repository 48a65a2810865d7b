//! An endpoint: queue pairs, memory regions and completion queues at one address.
//!
//! It is the smallest thing that owns the core, and has no I/O either: frames go in by
//! [`Endpoint::receive`] and come out of [`Endpoint::transmit`].

mod keys;
mod view;

use std::collections::VecDeque;

use thiserror::Error;
use vdk_descriptors::roce::{Envelope, FrameError, Gid, Prediction, Psn, Qpn, Unverified};

use super::attributes::Attributes;
use super::completion::{Completion, Side};
use super::counters::Counters;
use super::host::Event;
use super::memory::ProtectionDomain;
use super::path::Station;
use super::queue_pair::{QueuePair, QueuePairOptions};
use super::state::{State, TransitionError};
use super::time::Time;
use super::work::{PostError, ReceiveRequest, SendRequest};
pub use keys::{KeyTable, RegisterError, Registration};
use view::{Pending, View};

/// The largest number of completions that a completion queue is made for (`max_cqe`): those of 32
/// queue pairs whose queues are all of the largest size.
pub const MOST_COMPLETIONS: u32 = 1 << 21;

/// A completion queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(usize);

/// Why the endpoint refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// There is no such queue pair.
    #[error("there is no queue pair {0}; was it destroyed?")]
    QueuePair(Qpn),
    /// There are as many queue pairs as there may be.
    #[error("there are {0} queue pairs, and no more are allowed; destroy one")]
    Quota(usize),
    /// A queue would be larger than there can be.
    #[error("the {name} is {value:#x}, and at most {most:#x} are possible; ask for fewer")]
    QueueSize {
        /// What is too large.
        name: &'static str,
        /// What was asked for.
        value: u32,
        /// The most that is possible.
        most: u32,
    },
    /// There is no such completion queue.
    #[error("the completion queue belongs to another endpoint")]
    CompletionQueue,
    /// The change of state is refused.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The work request is refused.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// What an endpoint counted of the frames that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounters {
    /// Frames that are no RoCE, or damaged: they vanish.
    pub unreadable: u64,
    /// Frames for another address.
    pub misdirected: u64,
    /// Frames for a queue pair that there is not.
    pub homeless: u64,
}

#[derive(Debug)]
struct Pair {
    queue_pair: QueuePair,
    send: CompletionQueueId,
    receive: CompletionQueueId,
    /// What comes next, if it is a connection from one of the stations.
    prediction: Option<Prediction>,
    /// Whether it is in the list of those that may have something to send.
    listed: bool,
    /// What happened to it and nobody asked for yet.
    pending: Pending,
}

/// Queue pairs, memory regions and completion queues at one address.
#[derive(Debug)]
pub struct Endpoint {
    stations: Vec<Station>,
    /// Queue pairs by their number less [`FIRST_NUMBER`]. A number is never used twice.
    pairs: Vec<Option<Pair>>,
    /// The places of those that were not destroyed.
    live: Vec<usize>,
    most: usize,
    ready: VecDeque<usize>,
    memory: KeyTable,
    completions: Vec<VecDeque<Completion>>,
    /// The places of those to which something happened that nobody asked for yet, each once.
    eventful: VecDeque<usize>,
    domains: u32,
    frames: FrameCounters,
}

/// The number of the first queue pair; those below are for management.
const FIRST_NUMBER: u32 = 0x11;

impl Endpoint {
    /// An endpoint with these addresses, which allows `most` queue pairs.
    #[must_use]
    pub fn new(stations: Vec<Station>, most: usize) -> Self {
        Self {
            stations,
            pairs: Vec::new(),
            live: Vec::new(),
            most,
            ready: VecDeque::new(),
            memory: KeyTable::default(),
            completions: Vec::new(),
            eventful: VecDeque::new(),
            domains: 0,
            frames: FrameCounters::default(),
        }
    }

    /// Its addresses.
    #[must_use]
    pub fn stations(&self) -> &[Station] {
        &self.stations
    }

    /// The GIDs of its addresses, by index.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.stations.iter().map(|station| Gid::from_address(station.address))
    }

    /// A new protection domain.
    pub fn protection_domain(&mut self) -> ProtectionDomain {
        self.domains += 1;
        ProtectionDomain(self.domains)
    }

    /// A new completion queue with room for `capacity` completions. When more are not
    /// polled, it grows: none is ever lost.
    ///
    /// # Errors
    ///
    /// [`EndpointError::QueueSize`], for more than [`MOST_COMPLETIONS`].
    pub fn completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, EndpointError> {
        let (value, most) = (capacity, MOST_COMPLETIONS);
        let room = usize::try_from(value).ok().filter(|_| value <= most);
        let room = room.ok_or(EndpointError::QueueSize { name: "number of completions", value, most })?;
        self.completions.push(VecDeque::with_capacity(room));
        Ok(CompletionQueueId(self.completions.len() - 1))
    }

    /// The memory regions.
    #[must_use]
    pub const fn memory(&self) -> &KeyTable {
        &self.memory
    }

    /// The memory regions, to register and to write.
    pub const fn memory_mut(&mut self) -> &mut KeyTable {
        &mut self.memory
    }

    /// Makes a queue pair in the state Reset, with a completion queue for each side.
    ///
    /// # Errors
    ///
    /// [`EndpointError`]: too many queue pairs, queues above [`QueueSizes::MOST`], or a foreign
    /// completion queue.
    ///
    /// [`QueueSizes::MOST`]: crate::roce::QueueSizes::MOST
    pub fn create(
        &mut self,
        options: &QueuePairOptions,
        send: CompletionQueueId,
        receive: CompletionQueueId,
    ) -> Result<Qpn, EndpointError> {
        if send.0.max(receive.0) >= self.completions.len() {
            return Err(EndpointError::CompletionQueue);
        }
        if let Some((name, value, most)) = options.sizes.excess() {
            return Err(EndpointError::QueueSize { name, value, most });
        }
        let number = u32::try_from(self.pairs.len()).ok().and_then(|index| index.checked_add(FIRST_NUMBER));
        // The highest number is that of all members of a multicast group.
        let number = number.and_then(Qpn::new).filter(|number| *number != Qpn::MULTICAST);
        let live = self.live.len();
        let number = number.filter(|_| live < self.most).ok_or(EndpointError::Quota(live))?;
        let queue_pair = QueuePair::new(number, options);
        self.live.push(self.pairs.len());
        self.pairs.push(Some(Pair {
            queue_pair,
            send,
            receive,
            prediction: None,
            listed: false,
            pending: Pending::default(),
        }));
        Ok(number)
    }

    /// Ends a queue pair. Gives back what is posted and was not completed, sends first; for
    /// that there will be no completions.
    ///
    /// # Errors
    ///
    /// [`EndpointError::QueuePair`].
    pub fn destroy(&mut self, number: Qpn) -> Result<Vec<(Side, u64)>, EndpointError> {
        let pair = slot(number).and_then(|slot| self.pairs.get_mut(slot)).and_then(Option::take);
        let pair = pair.ok_or(EndpointError::QueuePair(number))?;
        self.live.retain(|live| Some(*live) != slot(number));
        self.eventful.retain(|eventful| Some(*eventful) != slot(number));
        Ok(pair.queue_pair.destroy())
    }

    /// Moves a queue pair to `to`.
    ///
    /// # Errors
    ///
    /// [`EndpointError`], and nothing changes.
    pub fn modify(&mut self, number: Qpn, to: State, attributes: &Attributes) -> Result<(), EndpointError> {
        let answer = self.with(number, |pair, host| pair.modify(to, attributes, host))?;
        if let Some(pair) = slot(number).and_then(|slot| self.pairs.get_mut(slot)?.as_mut()) {
            let ours = |address| self.stations.iter().any(|station| station.address == address);
            let ours = pair.queue_pair.address().is_some_and(ours);
            pair.prediction = if ours { pair.queue_pair.prediction() } else { None };
        }
        Ok(answer?)
    }

    /// Posts a send.
    ///
    /// # Errors
    ///
    /// [`EndpointError`], and there will be no completion.
    #[inline]
    pub fn post_send(&mut self, number: Qpn, request: &SendRequest<'_>) -> Result<(), EndpointError> {
        self.with(number, |pair, host| pair.post_send(request, host))?.map_err(Into::into)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// [`EndpointError`], and there will be no completion.
    #[inline]
    pub fn post_receive(&mut self, number: Qpn, request: &ReceiveRequest<'_>) -> Result<(), EndpointError> {
        self.with(number, |pair, host| pair.post_receive(request, host))?.map_err(Into::into)
    }

    /// The next completion of a queue.
    #[inline]
    pub fn poll(&mut self, queue: CompletionQueueId) -> Option<Completion> {
        self.completions.get_mut(queue.0)?.pop_front()
    }

    /// The next event. Those of one queue pair come in their order, and each kind once for as
    /// long as nobody asks: however many wait, none is lost. Those of a queue pair that was
    /// destroyed are gone with it.
    pub fn event(&mut self) -> Option<Event> {
        let slot = *self.eventful.front()?;
        let pending = &mut self.pairs.get_mut(slot)?.as_mut()?.pending;
        let event = pending.take();
        if pending.is_empty() {
            self.eventful.pop_front();
        }
        event
    }

    /// The state of a queue pair.
    #[must_use]
    pub fn state(&self, number: Qpn) -> Option<State> {
        self.pair(number).map(|pair| pair.queue_pair.state())
    }

    /// What a queue pair counted.
    #[must_use]
    pub fn counters(&self, number: Qpn) -> Option<&Counters> {
        self.pair(number).map(|pair| pair.queue_pair.counters())
    }

    /// The PSN that a queue pair expects next.
    #[must_use]
    pub fn expected_psn(&self, number: Qpn) -> Option<Psn> {
        self.pair(number).map(|pair| pair.queue_pair.expected_psn())
    }

    /// The PSN of the first request packet of a queue pair that is not acknowledged.
    #[must_use]
    pub fn unacknowledged_psn(&self, number: Qpn) -> Option<Psn> {
        self.pair(number).map(|pair| pair.queue_pair.unacknowledged_psn())
    }

    /// What was counted of frames that reached no queue pair.
    #[must_use]
    pub const fn frame_counters(&self) -> &FrameCounters {
        &self.frames
    }

    fn pair(&self, number: Qpn) -> Option<&Pair> {
        self.pairs.get(slot(number)?)?.as_ref()
    }

    /// Takes a frame. What is no RoCE, damaged or for somebody else vanishes.
    #[inline]
    pub fn receive(&mut self, now: Time, bytes: &[u8]) {
        if !self.receive_predicted(now, bytes) {
            self.receive_any(now, bytes);
        }
    }

    /// Takes a frame if it is the one that a connection waits for.
    #[inline]
    fn receive_predicted(&mut self, now: Time, bytes: &[u8]) -> bool {
        let Some(slot) = Prediction::destination(bytes).and_then(slot) else { return false };
        let Some(Some(pair)) = self.pairs.get(slot) else { return false };
        let packet = pair.prediction.as_ref().and_then(|prediction| prediction.read(bytes));
        let Some(packet) = &packet else { return false };
        self.with_slot(slot, |pair, host| pair.receive_predicted(now, packet, host)).is_some()
    }

    /// Takes any frame.
    #[inline(never)]
    fn receive_any(&mut self, now: Time, bytes: &[u8]) {
        // Looked at where it is: a frame is large, and moving it costs more than reading it.
        let parsed = Unverified::parse(bytes);
        let frame = match &parsed {
            Ok(unverified) if unverified.is_intact() => unverified.frame(),
            Err(FrameError::Opcode { .. }) => return self.receive_unknown(bytes),
            _ => {
                self.frames.unreadable += 1;
                return;
            }
        };
        let to = frame.headers.network.destination();
        if !self.stations.iter().any(|station| station.address == to) {
            self.frames.misdirected += 1;
            return;
        }
        let number = frame.headers.bth.destination;
        if self.with(number, |pair, host| pair.receive(now, frame, bytes, host)).is_err() {
            self.frames.homeless += 1;
        }
    }

    /// Takes a frame whose opcode is not known.
    #[cold]
    fn receive_unknown(&mut self, bytes: &[u8]) {
        let Ok(envelope) = Envelope::parse(bytes) else {
            self.frames.unreadable += 1;
            return;
        };
        let to = envelope.network.destination();
        if !self.stations.iter().any(|station| station.address == to) {
            self.frames.misdirected += 1;
        } else if self.with(envelope.destination, |pair, host| pair.receive_unknown(&envelope, host)).is_err()
        {
            self.frames.homeless += 1;
        }
    }

    /// Builds the next frame in `bytes` and gives its length. The queue pairs take turns.
    #[inline]
    pub fn transmit(&mut self, now: Time, bytes: &mut [u8]) -> Option<usize> {
        // Asked in vain after each burst of frames, so that is to cost nothing.
        if self.ready.is_empty() { None } else { self.transmit_listed(now, bytes) }
    }

    fn transmit_listed(&mut self, now: Time, bytes: &mut [u8]) -> Option<usize> {
        while let Some(slot) = self.ready.front() {
            let Some(pair) = self.pairs.get_mut(*slot).and_then(Option::as_mut) else {
                self.ready.pop_front();
                continue;
            };
            let mut host = View {
                memory: &mut self.memory,
                completions: &mut self.completions,
                eventful: &mut self.eventful,
                pending: &mut pair.pending,
                slot: *slot,
                send: pair.send,
                receive: pair.receive,
            };
            if let Some(length) = pair.queue_pair.transmit(now, &mut host, bytes) {
                if !pair.queue_pair.has_frame() {
                    pair.listed = false;
                    self.ready.pop_front();
                } else if self.ready.len() > 1 {
                    self.ready.rotate_left(1);
                }
                return Some(length);
            }
            pair.listed = false;
            self.ready.pop_front();
        }
        None
    }

    /// Lets the timers expire that are due.
    pub fn tick(&mut self, now: Time) {
        for place in 0..self.live.len() {
            let Some(slot) = self.live.get(place).copied() else { break };
            let due = |pair: &Pair| pair.queue_pair.deadline().is_some_and(|deadline| deadline <= now);
            if self.pairs.get(slot).and_then(Option::as_ref).is_some_and(due) {
                self.with_slot(slot, |pair, host| pair.tick(now, host));
            }
        }
    }

    /// When [`tick`](Self::tick) is due; `None` when it is not.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let live = self.live.iter().filter_map(|slot| self.pairs.get(*slot)?.as_ref());
        live.filter_map(|pair| pair.queue_pair.deadline()).min()
    }

    #[inline]
    fn with<T>(
        &mut self,
        number: Qpn,
        act: impl FnOnce(&mut QueuePair, &mut View<'_>) -> T,
    ) -> Result<T, EndpointError> {
        slot(number).and_then(|slot| self.with_slot(slot, act)).ok_or(EndpointError::QueuePair(number))
    }

    /// Does something to a queue pair, which may then have something to send.
    #[inline]
    fn with_slot<T>(
        &mut self,
        slot: usize,
        act: impl FnOnce(&mut QueuePair, &mut View<'_>) -> T,
    ) -> Option<T> {
        let pair = self.pairs.get_mut(slot)?.as_mut()?;
        let mut host = View {
            memory: &mut self.memory,
            completions: &mut self.completions,
            eventful: &mut self.eventful,
            pending: &mut pair.pending,
            slot,
            send: pair.send,
            receive: pair.receive,
        };
        let answer = act(&mut pair.queue_pair, &mut host);
        if !pair.listed {
            pair.listed = true;
            self.ready.push_back(slot);
        }
        Some(answer)
    }
}

#[inline]
fn slot(number: Qpn) -> Option<usize> {
    // CAST: 24 bits.
    number.value().checked_sub(FIRST_NUMBER).map(|slot| slot as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_look_at_no_queue_pair_that_was_destroyed() {
        let mut endpoint = Endpoint::new(Vec::new(), 3);
        let queue = endpoint.completion_queue(1).unwrap();
        let options = QueuePairOptions::default();
        let kept = endpoint.create(&options, queue, queue).unwrap();
        for _ in 0..100 {
            let number = endpoint.create(&options, queue, queue).unwrap();
            endpoint.destroy(number).unwrap();
        }
        let last = endpoint.create(&options, queue, queue).unwrap();
        assert_eq!(endpoint.live, [slot(kept).unwrap(), slot(last).unwrap()]);
        assert_eq!(endpoint.pairs.len(), 102);
    }
}
