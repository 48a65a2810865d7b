//! A queue pair: requester, completer and responder under one state.

mod modify;

use core::net::IpAddr;
use core::time::Duration;

use vdk_descriptors::roce::{
    AckTimeout, Bth, Envelope, Extension, Flow, Frame, Network, Opcode, PKey, Packet, PathMtu, Prediction,
    Psn, QKey, Qpn, RnrTimer, Transport,
};

use super::completion::{Completion, Failure, Side, Status};
use super::counters::Counters;
use super::host::{Event, Host};
use super::memory::{ProtectionDomain, Rights};
use super::path::{Path, Room};
use super::queues::QueueSizes;
use super::requester::{Outcome, Requester, RequesterSettings, Sending};
use super::responder::{Effect, Responder, ResponderSettings};
use super::state::{Service, State};
use super::time::Time;
use super::work::{PostError, ReceiveRequest, SendRequest};

/// What a queue pair is made with and never changes.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions {
    /// Its service.
    pub service: Service,
    /// The protection domain of its memory.
    pub domain: ProtectionDomain,
    /// How large its queues are.
    pub sizes: QueueSizes,
    /// How many PSNs it sends without an acknowledgement: 1 to 2^23 - 1.
    pub window: u32,
    /// How much a datagram may carry. A connection has its own path MTU.
    pub port_mtu: PathMtu,
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        Self {
            service: Service::ReliableConnected,
            domain: ProtectionDomain(0),
            sizes: QueueSizes::default(),
            window: 128,
            port_mtu: PathMtu::Mtu4096,
        }
    }
}

/// A queue pair, without I/O and without a clock.
///
/// Frames, posted work and the time go in by calls. Frames come out of
/// [`transmit`](Self::transmit), one for each call; completions and events go to the
/// [`Host`]. When nothing else happens, [`tick`](Self::tick) is due at the
/// [`deadline`](Self::deadline).
#[derive(Debug)]
pub struct QueuePair {
    number: Qpn,
    service: Service,
    port_mtu: PathMtu,
    state: State,
    /// The way to the other side, and its headers.
    way: Option<(Path, Flow)>,
    destination: Qpn,
    q_key: QKey,
    drained_event: bool,
    /// Whether the end of draining was reported.
    drained: bool,
    /// Whether the first request was reported since the change to RTR.
    established: bool,
    requester: Requester,
    responder: Responder,
    counters: Counters,
    /// The way to a sender whose packets met congestion, and its queue pair.
    congestion: Option<(Path, Qpn)>,
    notified: Option<Time>,
    /// Whether the responder sends next, when both have something.
    turn: bool,
}

/// How often at most a sender is told of congestion.
const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);
/// Both congestion bits of the traffic class: the packet met congestion.
const CONGESTION_EXPERIENCED: u8 = 3;

impl QueuePair {
    /// Makes a queue pair in the state Reset. Queues larger than [`QueueSizes::MOST`] get that
    /// size.
    #[must_use]
    pub fn new(number: Qpn, options: &QueuePairOptions) -> Self {
        let QueuePairOptions { service, domain, sizes, window, port_mtu } = *options;
        let sizes = sizes.clamped();
        let requester = RequesterSettings {
            service,
            number,
            domain,
            mtu: port_mtu.bytes(),
            window: window.clamp(1, (1 << 23) - 1),
            timeout: AckTimeout::default().duration(),
            retries: 7,
            rnr_retries: 7,
            depth: 0,
            q_key: QKey(0),
        };
        let responder = ResponderSettings {
            service,
            number,
            domain,
            mtu: port_mtu.bytes(),
            rights: Rights::NONE,
            depth: 0,
            rnr_timer: RnrTimer::default(),
        };
        Self {
            number,
            service,
            port_mtu,
            state: State::Reset,
            way: None,
            destination: Qpn::default(),
            q_key: QKey(0),
            drained_event: false,
            drained: false,
            established: false,
            requester: Requester::new(requester, sizes),
            responder: Responder::new(responder, sizes),
            counters: Counters::default(),
            congestion: None,
            notified: None,
            turn: false,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> Qpn {
        self.number
    }

    /// Its service.
    #[must_use]
    pub const fn service(&self) -> Service {
        self.service
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What it counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The PSN that the next request of the other side must have.
    #[must_use]
    pub fn expected_psn(&self) -> Psn {
        self.responder.expected()
    }

    /// The PSN of the first request packet of this side that is not acknowledged. Without a
    /// reliable connection a packet is acknowledged when it is sent.
    #[must_use]
    pub fn unacknowledged_psn(&self) -> Psn {
        self.requester.first_unacknowledged()
    }

    /// Posts a send.
    ///
    /// # Errors
    ///
    /// [`PostError`], and there will be no completion.
    #[inline]
    pub fn post_send(&mut self, request: &SendRequest<'_>, host: &mut impl Host) -> Result<(), PostError> {
        match self.state {
            State::Reset | State::Init | State::ReadyToReceive => Err(PostError::State { state: self.state }),
            State::ReadyToSend | State::SendQueueDrain => self.requester.post(request),
            State::SendQueueError | State::Error => {
                let failure = Failure { id: request.id, queue_pair: self.number, status: Status::Flushed };
                host.complete(Side::Send, Completion::Error(failure));
                Ok(())
            }
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// [`PostError`], and there will be no completion.
    #[inline]
    pub fn post_receive(
        &mut self,
        request: &ReceiveRequest<'_>,
        host: &mut impl Host,
    ) -> Result<(), PostError> {
        match self.state {
            State::Reset => Err(PostError::State { state: self.state }),
            State::Error => {
                let failure = Failure { id: request.id, queue_pair: self.number, status: Status::Flushed };
                host.complete(Side::Receive, Completion::Error(failure));
                Ok(())
            }
            _ => self.responder.queue.post(request),
        }
    }

    /// Takes a frame for this queue pair; `bytes` is what it was parsed from, from Ethernet
    /// on. What does not fit is dropped.
    #[inline]
    pub fn receive(&mut self, now: Time, frame: &Frame<'_>, bytes: &[u8], host: &mut impl Host) {
        self.counters.frames_received += 1;
        let bth = &frame.headers.bth;
        // A queue pair that takes nothing says nothing either, not even that a path is congested.
        if !self.state.receives() || !self.is_for_me(frame) {
            self.counters.dropped += 1;
            return;
        }
        if bth.opcode == Opcode::CONGESTION_NOTIFICATION {
            self.counters.congestion_received += 1;
            self.requester.slow_down(now);
            host.event(Event::Congestion(self.number));
            return;
        }
        if frame.headers.network.traffic_class() & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED {
            self.note_congestion(now, frame);
        }
        if self.service == Service::Datagram {
            let before = (self.responder.expected(), self.counters.refused());
            let effect = self.responder.datagram(frame, bytes, self.q_key, host, &mut self.counters);
            self.requested(before, effect, host);
        } else {
            self.take(now, &frame.packet(), host);
        }
    }

    /// The prediction of what a connection receives; none while it is not connected.
    pub(super) fn prediction(&self) -> Option<Prediction> {
        let (path, _) = self.way.as_ref()?;
        Prediction::new(&path.network, self.service.transport(), self.number)
    }

    /// Whose frames come here when they are on the queue pair's own way.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.way.as_ref().map(|(path, _)| path.network.source())
    }

    /// Takes a packet that was [predicted](Self::prediction): service, partition and addresses
    /// are right, and it met no congestion.
    #[inline]
    pub(super) fn receive_predicted(&mut self, now: Time, packet: &Packet<'_>, host: &mut impl Host) {
        self.counters.frames_received += 1;
        if self.state.receives() {
            self.take(now, packet, host);
        } else {
            self.counters.dropped += 1;
        }
    }

    /// Takes a packet of this connection.
    #[inline]
    fn take(&mut self, now: Time, packet: &Packet<'_>, host: &mut impl Host) {
        if packet.bth.opcode.is_request() {
            let before = (self.responder.expected(), self.counters.refused());
            let effect = self.responder.request(packet, host, &mut self.counters);
            self.requested(before, effect, host);
        } else if self.state.sends() {
            let outcome = self.requester.answer(now, packet, host, &mut self.counters);
            self.conclude(outcome, host);
        } else {
            self.counters.dropped += 1;
        }
    }

    /// What follows from a request. `before` is what was expected, and how much refused,
    /// before it came.
    #[inline]
    fn requested(&mut self, before: (Psn, u64), effect: Effect, host: &mut impl Host) {
        if self.state == State::ReadyToReceive && !self.established && effect == Effect::Fine {
            self.note_established(before, host);
        }
        self.apply(effect, host);
    }

    /// Whether service, partition and addresses of a frame are those of this queue pair.
    #[inline]
    fn is_for_me(&self, frame: &Frame<'_>) -> bool {
        let bth = &frame.headers.bth;
        let notification = bth.opcode == Opcode::CONGESTION_NOTIFICATION;
        (bth.opcode.transport() == self.service.transport() || notification)
            && self.comes_from_my_peer(bth.partition, &frame.headers.network)
    }

    /// Whether partition and addresses are those of this queue pair.
    #[inline]
    fn comes_from_my_peer(&self, partition: PKey, network: &Network) -> bool {
        if !PKey::DEFAULT.admits(partition) {
            return false;
        }
        if self.service == Service::Datagram {
            return true;
        }
        self.way.as_ref().is_some_and(|(path, _)| network.goes_back(&path.network))
    }

    /// Takes a packet for this queue pair whose opcode is not known. In its turn it is an invalid
    /// request; whatever does not fit is dropped.
    #[cold]
    pub(super) fn receive_unknown(&mut self, envelope: &Envelope, host: &mut impl Host) {
        self.counters.frames_received += 1;
        let mine = Transport::of(envelope.opcode) == Some(self.service.transport())
            && self.comes_from_my_peer(envelope.partition, &envelope.network);
        if !self.state.receives() || !mine || self.service == Service::Datagram {
            self.counters.dropped += 1;
            return;
        }
        let effect = self.responder.unknown(envelope.psn, host, &mut self.counters);
        self.apply(effect, host);
    }

    /// Reports the first request that was accepted before the change to RTS. `before` is what
    /// was expected, and how much refused, before it came.
    #[cold]
    fn note_established(&mut self, before: (Psn, u64), host: &mut impl Host) {
        let (expected, refused) = before;
        let taken = self.service == Service::Datagram || self.responder.expected() != expected;
        if taken && self.counters.refused() == refused {
            self.established = true;
            host.event(Event::Established(self.number));
        }
    }

    /// Remembers to tell the sender of a frame that the path is congested.
    #[cold]
    fn note_congestion(&mut self, now: Time, frame: &Frame<'_>) {
        let due = self.notified.is_none_or(|last| now.since(last) >= NOTIFICATION_INTERVAL);
        let sender = match frame.headers.extension.datagram() {
            Some(deth) => deth.source,
            None => self.destination,
        };
        if due && let Some(path) = Path::back(&frame.headers) {
            self.congestion = Some((path, sender));
            self.notified = Some(now);
        }
    }

    /// Lets the timers expire that are due.
    pub fn tick(&mut self, now: Time, host: &mut impl Host) {
        if self.state.sends() {
            let outcome = self.requester.tick(now, host, &mut self.counters);
            self.conclude(outcome, host);
        }
    }

    /// When [`tick`](Self::tick) is due; `None` when it is not.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if self.state.sends() { self.requester.deadline() } else { None }
    }

    /// Whether there is something to send now.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        self.congestion.is_some() || self.responder.has_response() || self.may_request()
    }

    #[inline]
    fn may_request(&self) -> bool {
        self.state.sends() && self.requester.may_send(self.state == State::SendQueueDrain)
    }

    /// Builds the next frame in `bytes` and gives its length; `None` when there is nothing to
    /// send now. `bytes` must have room for a frame of the path MTU, or requests fail.
    #[inline]
    pub fn transmit(&mut self, now: Time, host: &mut impl Host, bytes: &mut [u8]) -> Option<usize> {
        if self.congestion.is_some() {
            return self.notify(bytes);
        }
        let (may_respond, may_request) = (self.responder.has_response(), self.may_request());
        if !may_respond && !may_request {
            return None;
        }
        let flow = match &self.way {
            Some((_, flow)) => Some(flow),
            // Each datagram has a way of its own.
            None if self.service == Service::Datagram => None,
            None => return None,
        };
        let mut room = Room::new(bytes, flow, self.destination);
        self.turn = !self.turn;
        if may_request && !(may_respond && self.turn) {
            match self.requester.send(now, host, &mut room, &mut self.counters) {
                Sending::Frame(length) => {
                    self.counters.frames_sent += 1;
                    if self.service != Service::ReliableConnected {
                        self.note_drained(host);
                    }
                    return Some(length);
                }
                Sending::Nothing => {}
                Sending::Failed => {
                    self.conclude(Outcome::Failed, host);
                    return None;
                }
            }
        }
        if !may_respond {
            return None;
        }
        let (length, effect) = self.responder.respond(host, &mut room);
        self.counters.frames_sent += u64::from(length.is_some());
        self.apply(effect, host);
        length
    }

    /// Tells a sender of congestion.
    #[cold]
    fn notify(&mut self, bytes: &mut [u8]) -> Option<usize> {
        let (path, sender) = self.congestion.take()?;
        let mut bth = Bth::new(Opcode::CONGESTION_NOTIFICATION, sender, Psn::new(0));
        bth.backward_congestion = true;
        let flow = path.flow();
        let mut room = Room::new(bytes, Some(&flow), sender);
        let length = room.build::<()>(bth, Extension::Congestion, 0, |_| Ok(())).ok()?;
        self.counters.congestion_sent += 1;
        self.counters.frames_sent += 1;
        Some(length)
    }

    /// What a request of the other side does to the state.
    #[inline]
    fn apply(&mut self, effect: Effect, host: &mut impl Host) {
        if effect == Effect::Fine {
            return;
        }
        // What waits to be sent ends with the refusal, and is still sent.
        self.state = State::Error;
        self.congestion = None;
        self.requester.flush(host);
        self.responder.flush(host);
        match effect {
            Effect::RequestError => host.event(Event::RequestError(self.number)),
            Effect::AccessError => host.event(Event::AccessError(self.number)),
            Effect::Fine | Effect::Failed => {}
        }
    }

    /// What an answer, or none, does to the state.
    #[inline]
    fn conclude(&mut self, outcome: Outcome, host: &mut impl Host) {
        if outcome == Outcome::Failed {
            self.requester.flush(host);
            if self.service == Service::ReliableConnected {
                self.enter_error(host);
            } else {
                self.state = State::SendQueueError;
            }
        } else if self.state == State::SendQueueDrain {
            self.note_drained(host);
        }
    }

    fn enter_error(&mut self, host: &mut impl Host) {
        self.state = State::Error;
        self.requester.flush(host);
        self.responder.flush(host);
        self.responder.silence();
        self.congestion = None;
    }

    fn note_drained(&mut self, host: &mut impl Host) {
        if self.state == State::SendQueueDrain && !self.drained && self.requester.is_drained() {
            self.drained = true;
            if self.drained_event {
                host.event(Event::SendQueueDrained(self.number));
            }
        }
    }

    /// Ends the queue pair. Gives back what is posted and was not completed, sends first.
    #[must_use]
    pub fn destroy(self) -> Vec<(Side, u64)> {
        let (sends, receives) = (&self.requester.queue.ring, &self.responder.queue.ring);
        let sends = (sends.head()..sends.tail()).map(|slot| (Side::Send, sends.slot(slot).id));
        let receives = (receives.head()..receives.tail()).map(|slot| (Side::Receive, receives.slot(slot).id));
        sends.chain(receives).collect()
    }
}
