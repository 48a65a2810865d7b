//! The responder: takes the requests of the other side, carries them out, and answers.
//!
//! A request passes the list of [`checks`] in its order; the first that fails decides what the
//! other side hears. What is to be sent waits in [`responses`], in the order of the PSNs.

mod checks;
mod datagrams;
mod duplicates;
mod execution;
mod responses;

use vdk_descriptors::roce::{Extension, ImmDt, Msn, NakCode, Opcode, Packet, Psn, Qpn, RnrTimer};

use super::completion::{Completion, Failure, Side, Status};
use super::counters::Counters;
use super::host::Host;
use super::memory::{ProtectionDomain, Rights};
use super::path::Room;
use super::queues::{QueueSizes, ReceiveQueue};
use super::requester::first_count;
use super::state::Service;
use checks::Refusal;
pub use datagrams::ADDRESS_AREA;
use responses::Responses;

/// What the attributes of a queue pair tell its responder.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponderSettings {
    pub(super) service: Service,
    pub(super) number: Qpn,
    pub(super) domain: ProtectionDomain,
    pub(super) mtu: u32,
    pub(super) rights: Rights,
    /// How many READs and atomic operations the other side may have outstanding.
    pub(super) depth: u32,
    pub(super) rnr_timer: RnrTimer,
}

/// What a request did to the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    Fine,
    /// It failed: its request was invalid.
    RequestError,
    /// It failed: the request had no right to the memory.
    AccessError,
    /// It failed for a reason of this side, which a receive tells.
    Failed,
}

/// A message of which the first packet came and the last did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    kind: MessageKind,
    /// How many bytes came.
    received: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Send,
    Write {
        address: u64,
        key: u32,
        /// All bytes of it.
        length: u32,
    },
}

/// The receive side of a queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) settings: ResponderSettings,
    pub(super) queue: ReceiveQueue,
    /// The PSN that comes next, as a count.
    expected: u64,
    /// The last PSN that an acknowledgement may name: that of a SEND or WRITE packet, never
    /// one of a READ response.
    acknowledged: u64,
    /// How many requests were finished.
    finished: Msn,
    /// Whether the gap, or the missing receive, at the expected PSN was reported.
    reported: bool,
    message: Option<Message>,
    responses: Responses,
}

impl Responder {
    pub(super) fn new(settings: ResponderSettings, sizes: QueueSizes) -> Self {
        Self {
            settings,
            queue: ReceiveQueue::new(sizes),
            expected: 0,
            acknowledged: 0,
            finished: Msn::new(0),
            reported: false,
            message: None,
            responses: Responses::new(settings.depth),
        }
    }

    /// Forgets everything posted, without completions.
    pub(super) fn reset(&mut self) {
        self.queue.ring.clear();
        self.start(Psn::new(0));
    }

    /// Expects `psn` next.
    pub(super) fn start(&mut self, psn: Psn) {
        self.expected = first_count(psn);
        self.acknowledged = self.expected - 1;
        self.finished = Msn::new(0);
        self.reported = false;
        self.message = None;
        self.responses = Responses::new(self.settings.depth);
    }

    /// Sets how many READs and atomic operations may be outstanding. What waits to be sent is
    /// kept, and the newest of what is remembered.
    pub(super) fn set_depth(&mut self, depth: u32) {
        if depth != self.settings.depth {
            self.settings.depth = depth;
            self.responses.resize(depth);
        }
    }

    /// Takes a request.
    #[inline]
    pub(super) fn request(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Effect {
        if self.settings.service == Service::UnreliableConnected {
            let bth = &packet.bth;
            self.resynchronise(bth.psn, bth.opcode.position().begins(), counters);
        }
        if let Err(refusal) = self.check(packet, host) {
            return self.refuse(refusal, Some(packet), host, counters);
        }
        match self.execute(packet, host, counters) {
            Ok(()) => Effect::Fine,
            Err(refusal) => self.refuse(refusal, Some(packet), host, counters),
        }
    }

    /// Takes a packet whose opcode is not known. Its PSN is looked at first, as with any other:
    /// out of its turn it is a gap, or one that came before and whose answer nobody knows.
    #[cold]
    pub(super) fn unknown(&mut self, psn: Psn, host: &mut impl Host, counters: &mut Counters) -> Effect {
        if self.settings.service == Service::UnreliableConnected {
            self.resynchronise(psn, false, counters);
        }
        let refusal = match self.check_turn(psn) {
            Ok(()) => Refusal::Invalid(None),
            Err(Refusal::Duplicate(_)) => Refusal::Drop,
            Err(refusal) => refusal,
        };
        self.refuse(refusal, None, host, counters)
    }

    /// A message of which a packet is missing is lost as a whole; the next one begins with
    /// whatever PSN it has.
    fn resynchronise(&mut self, number: Psn, begins: bool, counters: &mut Counters) {
        let psn = number.extend(self.expected);
        if psn != self.expected {
            counters.out_of_sequence += 1;
        }
        if psn != self.expected || begins {
            self.message = None;
        }
        // Not the count itself, which a peer could lead below zero step by step.
        self.expected = first_count(number);
    }

    /// Does what a failed check asks for.
    #[cold]
    fn refuse(
        &mut self,
        refusal: Refusal,
        packet: Option<&Packet<'_>>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Effect {
        if self.settings.service == Service::UnreliableConnected {
            return self.drop_message(refusal, host, counters);
        }
        match refusal {
            Refusal::Drop => {
                counters.dropped += 1;
                Effect::Fine
            }
            Refusal::Duplicate(psn) => {
                counters.duplicates += 1;
                if let Some(packet) = packet {
                    self.duplicate(psn, packet, host);
                }
                Effect::Fine
            }
            Refusal::Gap => {
                counters.out_of_sequence += 1;
                if !self.reported {
                    self.reported = true;
                    counters.sequence_naks_sent += 1;
                    self.responses.gap(self.expected, self.finished);
                }
                Effect::Fine
            }
            Refusal::NotReady => {
                self.reported = true;
                counters.rnr_naks_sent += 1;
                self.responses.not_ready(self.expected, self.finished, self.settings.rnr_timer);
                Effect::Fine
            }
            Refusal::Invalid(receive) => {
                self.responses.refuse(self.expected, self.finished, NakCode::InvalidRequest);
                self.fail_receive(receive, host);
                Effect::RequestError
            }
            Refusal::Access => {
                self.responses.refuse(self.expected, self.finished, NakCode::RemoteAccessError);
                Effect::AccessError
            }
            Refusal::Operation(receive) => {
                self.responses.refuse(self.expected, self.finished, NakCode::RemoteOperationalError);
                self.fail_receive(receive, host);
                Effect::Failed
            }
        }
    }

    /// On an unreliable connection nothing is answered: the message is lost. Only what is
    /// wrong with a receive of this side ends the queue pair.
    fn drop_message(&mut self, refusal: Refusal, host: &mut impl Host, counters: &mut Counters) -> Effect {
        counters.dropped += 1;
        self.expected += 1;
        self.message = None;
        match refusal {
            Refusal::Invalid(Some(status)) | Refusal::Operation(Some(status)) => {
                self.fail_receive(Some(status), host);
                Effect::Failed
            }
            _ => Effect::Fine,
        }
    }

    fn fail_receive(&mut self, status: Option<Status>, host: &mut impl Host) {
        let Some(status) = status else { return };
        if let Some(front) = self.queue.front() {
            let failure = Failure { id: front.id, queue_pair: self.settings.number, status };
            self.queue.ring.release();
            host.complete(Side::Receive, Completion::Error(failure));
        }
    }

    /// Completes everything that is left as flushed.
    pub(super) fn flush(&mut self, host: &mut impl Host) {
        self.message = None;
        while !self.queue.ring.is_empty() {
            self.fail_receive(Some(Status::Flushed), host);
        }
    }

    /// Sends nothing that waits.
    pub(super) fn silence(&mut self) {
        self.responses.clear();
    }

    /// Whether something waits to be sent.
    #[inline]
    pub(super) fn has_response(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Builds the next response in `room`.
    #[inline]
    pub(super) fn respond(&mut self, host: &mut impl Host, room: &mut Room<'_>) -> (Option<usize>, Effect) {
        self.responses.send(&self.settings, host, room)
    }

    /// The number of the next request, as the wire shows it.
    pub(super) fn expected(&self) -> Psn {
        super::requester::wire(self.expected)
    }
}

/// The immediate value of a packet.
#[inline]
fn immediate(extension: &Extension) -> Option<u32> {
    extension.immediate().map(|ImmDt(value)| value)
}

/// Whether a packet needs a receive: the first of a SEND, the last of a WRITE with immediate.
#[inline]
fn uses_receive(opcode: Opcode) -> bool {
    use vdk_descriptors::roce::Operation;
    match opcode.operation() {
        Operation::Send => opcode.position().begins(),
        Operation::Write => opcode.has_immediate(),
        _ => false,
    }
}
