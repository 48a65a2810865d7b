//! The completer: what the answers of the other side do to the requests of this one.
//!
//! An acknowledgement is cumulative, but it never passes a READ or an atomic operation that
//! has no answer: then an answer was lost, and the requester goes back for it.

use vdk_descriptors::roce::{
    Aeth, AtomicAckEth, Extension, NakCode, Operation as Purpose, Packet, RnrTimer, Syndrome, SyndromeKind,
};

use super::completion::Status;
use super::counters::Counters;
use super::host::Host;
use super::requester::{Outcome, Requester, WentBack};
use super::time::Time;
use super::work::Operation;

/// The kind of a syndrome that is a NAK, also one without a meaning.
const NAK: u8 = Syndrome::nak(NakCode::PsnSequenceError).to_byte() >> 5;

/// What stops a cumulative acknowledgement.
enum Reached {
    /// Nothing: everything before the PSN is acknowledged.
    All,
    /// A request that needs an answer of its own.
    Unanswered,
}

impl Requester {
    /// Takes an answer.
    pub(super) fn answer(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Outcome {
        let psn = packet.bth.psn.extend(self.unacknowledged);
        if psn < self.unacknowledged || psn >= self.unsent {
            // An old answer, or the answer to something that was never asked.
            counters.strange_answers += 1;
            return Outcome::Fine;
        }
        let outcome = match packet.bth.opcode.operation() {
            Purpose::Acknowledge => self.acknowledgement(now, psn, packet, host, counters),
            Purpose::ReadResponse | Purpose::AtomicAcknowledge => {
                self.response(now, psn, packet, host, counters)
            }
            _ => Outcome::Fine,
        };
        match outcome {
            Outcome::Fine => self.settle(host),
            Outcome::Failed => Outcome::Failed,
        }
    }

    #[inline]
    fn acknowledgement(
        &mut self,
        now: Time,
        psn: u64,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Outcome {
        let Some(aeth) = packet.extension.acknowledge() else { return Outcome::Fine };
        match aeth.syndrome.kind() {
            // Credits are not counted: a receiver without any says so with an RNR NAK.
            SyndromeKind::Ack(_) => {
                if let Reached::Unanswered = self.acknowledge(now, psn + 1, host, counters) {
                    self.answer_lost(now, counters)
                } else {
                    Outcome::Fine
                }
            }
            SyndromeKind::RnrNak(timer) => {
                if let Reached::Unanswered = self.acknowledge(now, psn, host, counters) {
                    return self.answer_lost(now, counters);
                }
                self.not_ready(now, psn, timer, host, counters)
            }
            SyndromeKind::Nak(code) => {
                if let Reached::Unanswered = self.acknowledge(now, psn, host, counters) {
                    return self.answer_lost(now, counters);
                }
                let status = match code {
                    NakCode::PsnSequenceError => {
                        counters.sequence_naks_received += 1;
                        return self.send_again(now, psn, host, counters);
                    }
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccessError => Status::RemoteAccess,
                    // The last is for reliable datagrams, and none was sent: all that is known is
                    // that the other side refuses.
                    NakCode::RemoteOperationalError | NakCode::InvalidRdRequest => Status::RemoteOperation,
                };
                self.fail(status, host);
                Outcome::Failed
            }
            SyndromeKind::Reserved(byte) if byte >> 5 == NAK => {
                if let Reached::Unanswered = self.acknowledge(now, psn, host, counters) {
                    return self.answer_lost(now, counters);
                }
                self.fail(Status::RemoteOperation, host);
                Outcome::Failed
            }
            SyndromeKind::Reserved(_) => {
                counters.strange_answers += 1;
                Outcome::Fine
            }
        }
    }

    /// Acknowledges everything before `end`, as far as it needs no answer of its own.
    #[inline]
    fn acknowledge(&mut self, now: Time, end: u64, host: &mut impl Host, counters: &mut Counters) -> Reached {
        while self.queue.ring.head() < self.begun {
            let slot = self.queue.ring.slot(self.queue.ring.head());
            if slot.operation.is_answered() {
                let missing = slot.first + u64::from(slot.answered);
                let reached = if missing < end { Reached::Unanswered } else { Reached::All };
                self.progress(now, missing.min(end).max(self.unacknowledged));
                return reached;
            }
            if slot.end() > end {
                break;
            }
            self.complete(host, counters);
        }
        self.progress(now, end.max(self.unacknowledged));
        Reached::All
    }

    /// The answer that is missing first will not come any more: asks for it again, once. Unlike a
    /// sequence NAK it costs no retry: nobody refused anything, and where the wire loses every
    /// tenth packet a READ would end before its time. When it does not help the timer decides.
    #[cold]
    fn answer_lost(&mut self, now: Time, counters: &mut Counters) -> Outcome {
        counters.answers_lost += 1;
        if self.went_back != WentBack::Told(self.unacknowledged) {
            self.went_back = WentBack::Told(self.unacknowledged);
            self.go_back(self.unacknowledged);
            self.restart_timer(now);
        }
        Outcome::Fine
    }

    /// Packets from `psn` on were lost: sends them again, once.
    fn send_again(&mut self, now: Time, psn: u64, host: &mut impl Host, counters: &mut Counters) -> Outcome {
        // What is missing is sent next anyway: after a wait, or since the cursor is there already.
        if self.cursor.psn == psn || self.went_back == WentBack::Told(psn) {
            return Outcome::Fine;
        }
        // A NAK from before the wait cannot be told from one after it. It is believed, since the
        // other side tells of a gap only once, but the wait has been paid for.
        if self.went_back != WentBack::Waited(psn) {
            if self.retries_left == 0 {
                counters.retries_exceeded += 1;
                self.fail(Status::RetryExceeded, host);
                return Outcome::Failed;
            }
            self.retries_left -= 1;
        }
        self.went_back = WentBack::Told(psn);
        self.go_back(psn);
        self.restart_timer(now);
        Outcome::Fine
    }

    /// The other side has no receive for the request at `psn`.
    fn not_ready(
        &mut self,
        now: Time,
        psn: u64,
        timer: RnrTimer,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Outcome {
        if self.not_ready_until.is_some() {
            return Outcome::Fine;
        }
        counters.rnr_naks_received += 1;
        match self.rnr_retries_left {
            0 => {
                counters.rnr_retries_exceeded += 1;
                self.fail(Status::ReceiverNotReadyExceeded, host);
                return Outcome::Failed;
            }
            // Seven means for ever.
            7 => {}
            _ => self.rnr_retries_left -= 1,
        }
        self.go_back(psn);
        self.went_back = WentBack::Waited(psn);
        self.not_ready_until = Some(now.after(timer.delay()));
        self.overdue = None;
        Outcome::Fine
    }

    /// Takes a packet of data that was asked for.
    fn response(
        &mut self,
        now: Time,
        psn: u64,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Outcome {
        // What comes before the request that is answered has been done.
        if let Reached::Unanswered = self.acknowledge(now, psn, host, counters) {
            return self.answer_lost(now, counters);
        }
        let number = self.queue.ring.head();
        let slot = self.queue.ring.slot(number);
        let expected = slot.first + u64::from(slot.answered);
        if number == self.begun || psn != expected {
            counters.strange_answers += 1;
            return Outcome::Fine;
        }
        let status = match (packet.extension, slot.operation) {
            (
                Extension::AtomicAcknowledge(aeth, AtomicAckEth(original)),
                Operation::CompareSwap { .. } | Operation::FetchAdd { .. },
            ) if is_positive(&aeth) => {
                self.queue.scatter(host, self.settings.domain, number, 0, &original.to_ne_bytes()).err()
            }
            (extension @ (Extension::None | Extension::Acknowledge(_)), Operation::Read(_)) => {
                let refused = extension.acknowledge().is_some_and(|aeth| !is_positive(&aeth));
                // An answer begins where it was asked for: with the request, or when it asked again.
                let in_place = if packet.bth.opcode.position().begins() {
                    slot.answered == 0 || psn == self.asked_again
                } else {
                    slot.answered != 0
                };
                let offset = slot.answered.saturating_mul(self.settings.mtu);
                let ends = packet.bth.opcode.position().ends();
                let rest = slot.length - offset;
                let due = rest.min(self.settings.mtu);
                let last = slot.answered + 1 == slot.packets;
                let fits = in_place && !refused && ends == last;
                if !fits || packet.payload.len() as u64 != u64::from(due) {
                    self.fail(Status::BadResponse, host);
                    return Outcome::Failed;
                }
                self.queue.scatter(host, self.settings.domain, number, offset, packet.payload).err()
            }
            _ => {
                self.fail(Status::BadResponse, host);
                return Outcome::Failed;
            }
        };
        if status.is_some() {
            self.fail(Status::LocalProtection, host);
            return Outcome::Failed;
        }
        let slot = self.queue.ring.slot_mut(number);
        slot.answered += 1;
        if slot.answered == slot.packets {
            self.complete(host, counters);
        }
        self.progress(now, psn + 1);
        Outcome::Fine
    }
}

/// Whether an answer with data says that the request was carried out.
fn is_positive(aeth: &Aeth) -> bool {
    matches!(aeth.syndrome.kind(), SyndromeKind::Ack(_))
}
