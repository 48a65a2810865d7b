//! The requester: turns posted sends into request packets.
//!
//! Inside, PSNs are 64-bit counts, which have an order; the wire shows their low 24 bits. A
//! cursor names the packet to be sent next. Going back moves the cursor, nothing else, so a
//! packet sent again is built again from the request and the memory.

mod packets;

use core::time::Duration;

use vdk_descriptors::roce::{Psn, QKey, Qpn};

use super::completion::{Completion, Failure, Side, Status, Success};
use super::counters::Counters;
use super::host::Host;
use super::memory::{ProtectionDomain, Rights};
use super::path::Room;
use super::queues::{LONGEST, QueueSizes, SendQueue};
use super::state::Service;
use super::time::Time;
use super::work::{Operation, Payload, PostError, SendRequest};

/// What the attributes of a queue pair tell its requester.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequesterSettings {
    pub(super) service: Service,
    pub(super) number: Qpn,
    pub(super) domain: ProtectionDomain,
    pub(super) mtu: u32,
    /// How many PSNs may be sent and not acknowledged.
    pub(super) window: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// How many READs and atomic operations may be outstanding.
    pub(super) depth: u32,
    pub(super) q_key: QKey,
}

/// What the requester has to say after it was given something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Fine,
    /// A request completed with an error: the queue pair has failed.
    Failed,
}

/// What the requester has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// Nothing now.
    Nothing,
    /// A frame of so many bytes.
    Frame(usize),
    /// A request completed with an error: the queue pair has failed.
    Failed,
}

/// Where the cursor went back to since there was progress, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WentBack {
    /// Nowhere.
    No,
    /// Here, because the wait for the receiver or for an answer ended. A sequence NAK for the
    /// packet may be as old as what was sent before: it costs no retry.
    Waited(u64),
    /// Here, because the other side missed something. It goes back there only once, however many
    /// packets say so; after that the timer decides.
    Told(u64),
}

/// The packet that is sent next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) slot: u64,
    pub(super) psn: u64,
}

/// The send side of a queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) settings: RequesterSettings,
    pub(super) queue: SendQueue,
    pub(super) cursor: Cursor,
    /// The first slot that was never begun.
    pub(super) begun: u64,
    /// The first PSN that is not acknowledged.
    pub(super) unacknowledged: u64,
    /// The first PSN that was never sent.
    pub(super) unsent: u64,
    /// READs and atomic operations that were begun and are not answered in full.
    pub(super) outstanding: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// When the answer to what was sent is overdue.
    pub(super) overdue: Option<Time>,
    /// Until when the other side is not ready.
    pub(super) not_ready_until: Option<Time>,
    /// Where the cursor went back to since there was progress, and why.
    pub(super) went_back: WentBack,
    /// Where the last READ began that asked for the rest of an answer.
    pub(super) asked_again: u64,
    /// A request that cannot be carried out, and why. It completes in its turn.
    stuck: Option<(u64, Status)>,
    /// Packets since one that asked for an acknowledgement.
    unasked: u32,
    /// What congestion leaves of the window.
    pub(super) allowance: u32,
    congested: Option<Time>,
}

/// The most PSNs that may be outstanding: half of all, less one, or the two ends could not tell
/// old from new.
pub(super) const MOST_OUTSTANDING: u64 = (1 << 23) - 1;
/// How often at most congestion halves the window.
const CONGESTION_INTERVAL: Duration = Duration::from_micros(50);
/// PSN counts begin here, so that those before the first are counts too.
const FIRST_PERIOD: u64 = 1 << 24;

/// The count that the PSN of a state change begins with.
pub(super) fn first_count(psn: Psn) -> u64 {
    FIRST_PERIOD + u64::from(psn.value())
}

/// What the wire shows of a count.
pub(super) fn wire(count: u64) -> Psn {
    // CAST: keeps the low bits, of which the PSN keeps 24.
    #[expect(clippy::cast_possible_truncation, reason = "keeps the low bits")]
    Psn::new(count as u32)
}

impl Requester {
    pub(super) fn new(settings: RequesterSettings, sizes: QueueSizes) -> Self {
        let mut requester = Self {
            settings,
            queue: SendQueue::new(settings.service, sizes),
            cursor: Cursor::default(),
            begun: 0,
            unacknowledged: 0,
            unsent: 0,
            outstanding: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            overdue: None,
            not_ready_until: None,
            went_back: WentBack::No,
            asked_again: 0,
            stuck: None,
            unasked: 0,
            allowance: settings.window,
            congested: None,
        };
        requester.reset();
        requester
    }

    /// Forgets everything posted, without completions.
    pub(super) fn reset(&mut self) {
        self.queue.ring.clear();
        self.start(Psn::new(0));
    }

    /// Begins at `psn`. Nothing may have been sent.
    pub(super) fn start(&mut self, psn: Psn) {
        let count = first_count(psn);
        self.cursor = Cursor { slot: self.queue.ring.head(), psn: count };
        self.begun = self.queue.ring.head();
        (self.unacknowledged, self.unsent) = (count, count);
        self.outstanding = 0;
        (self.overdue, self.not_ready_until, self.stuck) = (None, None, None);
        self.went_back = WentBack::No;
        self.asked_again = 0;
        self.unasked = 0;
        self.allowance = self.settings.window;
        self.congested = None;
        self.reload();
    }

    pub(super) fn reload(&mut self) {
        self.retries_left = self.settings.retries;
        self.rnr_retries_left = self.settings.rnr_retries;
    }

    /// Takes a request, or refuses it and does nothing.
    pub(super) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let service = self.settings.service;
        let allowed = match service {
            Service::ReliableConnected => true,
            Service::UnreliableConnected => matches!(
                request.operation,
                Operation::Send
                    | Operation::SendWithImmediate(_)
                    | Operation::Write(_)
                    | Operation::WriteWithImmediate(..)
            ),
            Service::Datagram => {
                matches!(request.operation, Operation::Send | Operation::SendWithImmediate(_))
            }
        };
        let answered = request.operation.is_answered();
        if !allowed || (answered && matches!(request.payload, Payload::Inline(_))) {
            return Err(PostError::Operation { service });
        }
        if answered && self.settings.depth == 0 {
            return Err(PostError::NoReadDepth);
        }
        if service == Service::Datagram && request.destination.is_none() {
            return Err(PostError::NoDestination);
        }
        let atomic = match request.operation {
            Operation::CompareSwap { remote, .. } | Operation::FetchAdd { remote, .. } => Some(remote),
            _ => None,
        };
        if let Some(remote) = atomic {
            if !remote.address.is_multiple_of(8) {
                return Err(PostError::Misaligned { address: remote.address });
            }
            let length = match request.payload {
                Payload::Entries(entries) => entries.iter().map(|entry| u64::from(entry.length)).sum(),
                Payload::Inline(_) => 0,
            };
            if length != 8 {
                return Err(PostError::Length { length, most: 8 });
            }
        }
        let mtu = self.settings.mtu;
        let most = match service {
            Service::Datagram => u64::from(mtu),
            _ => LONGEST.min(u64::from(mtu) * MOST_OUTSTANDING),
        };
        // A connection has one way, whatever the request says.
        let destination = request.destination.filter(|_| service == Service::Datagram);
        self.queue.post(&SendRequest { destination, ..*request }, mtu, most)
    }

    /// Whether there is something to send. Nothing new begins when `draining`.
    #[inline]
    pub(super) fn may_send(&self, draining: bool) -> bool {
        // What stands before a request that is stuck may have to be sent again.
        let stuck = self.stuck.is_some_and(|(slot, _)| slot <= self.cursor.slot);
        if self.not_ready_until.is_some() || stuck {
            return false;
        }
        let fresh = self.cursor.slot == self.begun;
        if fresh && (draining || self.begun == self.queue.ring.tail() || !self.may_begin()) {
            return false;
        }
        self.cursor.psn - self.unacknowledged < u64::from(self.allowance)
    }

    /// Builds the next frame in `room`, which [`may_send`](Self::may_send) allowed.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: Time,
        host: &mut impl Host,
        room: &mut Room<'_>,
        counters: &mut Counters,
    ) -> Sending {
        let fresh = self.cursor.slot == self.begun;
        if fresh && let Err(status) = self.begin(host) {
            return self.hold_up(self.cursor.slot, status, host);
        }
        match self.build(host, room) {
            Ok(length) => {
                self.sent(now, fresh, host, counters);
                Sending::Frame(length)
            }
            Err(status) => self.hold_up(self.cursor.slot, status, host),
        }
    }

    /// Whether the next request may begin: by fence, depth and the number of PSNs.
    #[inline]
    fn may_begin(&self) -> bool {
        let slot = self.queue.ring.slot(self.begun);
        if slot.fence && self.outstanding != 0 {
            return false;
        }
        if slot.operation.is_answered() && self.outstanding >= self.settings.depth {
            return false;
        }
        self.unsent - self.unacknowledged + u64::from(slot.packets) <= MOST_OUTSTANDING
    }

    /// Gives the next request its PSNs.
    #[inline]
    fn begin(&mut self, host: &mut impl Host) -> Result<(), Status> {
        let number = self.begun;
        let first = self.unsent;
        let slot = self.queue.ring.slot_mut(number);
        slot.first = first;
        slot.answered = 0;
        // The access itself checks a message of one packet; the first packet of a longer one
        // must not go out when a later one cannot.
        if slot.packets > 1 && !slot.operation.is_answered() {
            let domain = self.settings.domain;
            self.queue.check(host, domain, number, Rights::NONE).map_err(|_| Status::LocalProtection)?;
        }
        Ok(())
    }

    /// Notes that a packet was sent, and which is the next.
    #[inline]
    fn sent(&mut self, now: Time, fresh: bool, host: &mut impl Host, counters: &mut Counters) {
        let slot = self.queue.ring.slot(self.cursor.slot);
        let (answered, end) = (slot.operation.is_answered(), slot.end());
        if fresh {
            self.begun += 1;
            self.outstanding += u32::from(answered);
        }
        counters.sent_again += u64::from(self.cursor.psn < self.unsent);
        self.cursor.psn = if answered { end } else { self.cursor.psn + 1 };
        self.unsent = self.unsent.max(self.cursor.psn);
        if self.cursor.psn == end {
            self.cursor.slot += 1;
        }
        match self.settings.service {
            Service::ReliableConnected => {
                if self.overdue.is_none() {
                    self.overdue = self.settings.timeout.map(|timeout| now.after(timeout));
                }
            }
            Service::UnreliableConnected | Service::Datagram => {
                self.unacknowledged = self.unsent;
                if self.cursor.psn == end {
                    self.complete(host, counters);
                }
            }
        }
    }

    /// Stops at a request that cannot be carried out, until those before it are done.
    fn hold_up(&mut self, slot: u64, status: Status, host: &mut impl Host) -> Sending {
        self.stuck = Some((slot, status));
        match self.settle(host) {
            Outcome::Failed => Sending::Failed,
            Outcome::Fine => Sending::Nothing,
        }
    }

    /// Fails the request that is stuck when all before it are done. One that could not be
    /// sent again may turn out to have arrived: it is done, and those after it go on.
    pub(super) fn settle(&mut self, host: &mut impl Host) -> Outcome {
        match self.stuck {
            Some((slot, _)) if slot < self.queue.ring.head() => {
                self.stuck = None;
                Outcome::Fine
            }
            Some((slot, status)) if slot == self.queue.ring.head() => {
                self.fail(status, host);
                Outcome::Failed
            }
            _ => Outcome::Fine,
        }
    }

    /// Completes the oldest request.
    #[inline]
    pub(super) fn complete(&mut self, host: &mut impl Host, counters: &mut Counters) {
        let slot = self.queue.ring.slot(self.queue.ring.head());
        if slot.operation.is_answered() {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        counters.sends += 1;
        if slot.signaled {
            host.complete(
                Side::Send,
                Completion::Success(Success {
                    id: slot.id,
                    queue_pair: self.settings.number,
                    opcode: slot.operation.completion(),
                    length: slot.length,
                    immediate: None,
                    invalidated: None,
                    source: None,
                    solicited: false,
                }),
            );
        }
        self.queue.ring.release();
    }

    /// Completes the oldest request with an error.
    pub(super) fn fail(&mut self, status: Status, host: &mut impl Host) {
        if self.queue.ring.is_empty() {
            return;
        }
        let id = self.queue.ring.slot(self.queue.ring.head()).id;
        self.queue.ring.release();
        let failure = Failure { id, queue_pair: self.settings.number, status };
        host.complete(Side::Send, Completion::Error(failure));
    }

    /// Completes everything that is left as flushed, and sends nothing any more.
    pub(super) fn flush(&mut self, host: &mut impl Host) {
        while !self.queue.ring.is_empty() {
            self.fail(Status::Flushed, host);
        }
        self.start(wire(self.unsent));
    }

    /// Whether nothing that was begun is left.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.ring.head() == self.begun
    }

    /// When the requester wants to be ticked.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.not_ready_until.or(self.overdue)
    }

    /// Lets timers expire.
    pub(super) fn tick(&mut self, now: Time, host: &mut impl Host, counters: &mut Counters) -> Outcome {
        if let Some(until) = self.not_ready_until {
            if until <= now {
                self.not_ready_until = None;
                self.restart_timer(now);
            }
            return Outcome::Fine;
        }
        if self.overdue.is_none_or(|overdue| overdue > now) {
            return Outcome::Fine;
        }
        counters.timeouts += 1;
        if self.retries_left == 0 {
            counters.retries_exceeded += 1;
            self.fail(Status::RetryExceeded, host);
            return Outcome::Failed;
        }
        self.retries_left -= 1;
        self.go_back(self.unacknowledged);
        self.went_back = WentBack::Waited(self.unacknowledged);
        self.restart_timer(now);
        Outcome::Fine
    }

    /// The first packet that is not acknowledged, as the wire shows it.
    pub(super) fn first_unacknowledged(&self) -> Psn {
        wire(self.unacknowledged)
    }

    /// Notes that everything before `psn` is acknowledged.
    #[inline]
    pub(super) fn progress(&mut self, now: Time, psn: u64) {
        if psn == self.unacknowledged {
            return;
        }
        self.unacknowledged = psn;
        if self.cursor.psn < psn {
            // What was to be sent again has arrived after all.
            self.go_back(psn);
        }
        self.reload();
        self.went_back = WentBack::No;
        if self.allowance < self.settings.window {
            self.allowance += 1;
        }
        self.restart_timer(now);
    }

    pub(super) fn restart_timer(&mut self, now: Time) {
        self.overdue = if self.unacknowledged == self.unsent {
            None
        } else {
            self.settings.timeout.map(|timeout| now.after(timeout))
        };
    }

    /// Puts the cursor on `psn`, which was sent before or is the next.
    pub(super) fn go_back(&mut self, psn: u64) {
        self.unasked = 0;
        let mut slot = self.queue.ring.head();
        while slot < self.begun && self.queue.ring.slot(slot).end() <= psn {
            slot += 1;
        }
        self.cursor = Cursor { slot, psn };
    }

    /// Halves the window: the path is congested.
    pub(super) fn slow_down(&mut self, now: Time) {
        if self.congested.is_none_or(|last| now.since(last) >= CONGESTION_INTERVAL) {
            let least = (asking_interval(self.settings.window) + 1).min(self.settings.window);
            self.allowance = (self.allowance / 2).max(least);
            self.congested = Some(now);
        }
    }
}

/// After how many packets an acknowledgement is asked for. Less than the window ever gets, so
/// that it never closes with nothing asked.
#[inline]
const fn asking_interval(window: u32) -> u32 {
    match window / 4 {
        0 => 1,
        quarter if quarter > 32 => 32,
        quarter => quarter,
    }
}
