//! What a responder has to send, and what it remembers to be able to send it again.

use std::collections::VecDeque;

use vdk_descriptors::roce::{
    Aeth, AtomicAckEth, Bth, Extension, Msn, NakCode, Opcode, Qpn, Reth, RnrTimer, Syndrome,
};

use super::checks::remote_rights;
use super::{Effect, ResponderSettings};
use crate::roce::host::Host;
use crate::roce::memory::{MemoryError, Reach};
use crate::roce::path::{Room, Unbuilt};
use crate::roce::requester::wire;

/// Something to be sent.
#[derive(Clone, Copy, Debug)]
enum Response {
    Acknowledge {
        psn: u64,
        syndrome: Syndrome,
        finished: Msn,
    },
    /// The rest of the answer to a READ.
    Read {
        psn: u64,
        end: u64,
        address: u64,
        key: u32,
        rest: u32,
        begins: bool,
        finished: Msn,
        /// Whether it was answered before.
        again: bool,
    },
    Atomic {
        psn: u64,
        original: u64,
        finished: Msn,
        again: bool,
    },
}

impl Response {
    /// The PSN of its next packet.
    fn psn(&self) -> u64 {
        match *self {
            Self::Acknowledge { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => psn,
        }
    }
}

/// A READ or atomic operation that was answered.
#[derive(Clone, Copy, Debug)]
enum Remembered {
    Nothing,
    Read { first: u64, packets: u32, reth: Reth, finished: Msn },
    Atomic { psn: u64, original: u64, finished: Msn },
}

/// The responses that wait, and the memory of those before.
#[derive(Debug)]
pub(super) struct Responses {
    waiting: VecDeque<Response>,
    most: usize,
    /// The last READs and atomic operations, as many as the other side may have outstanding.
    remembered: Box<[Remembered]>,
    next: usize,
}

/// How many responses may wait beside two for each READ: acknowledgements merge.
const SLACK: usize = 4;

impl Responses {
    pub(super) fn new(depth: u32) -> Self {
        let depth = usize::try_from(depth).unwrap_or(0);
        let most = 2 * depth + SLACK;
        Self {
            // A NAK or two are taken when it is full.
            waiting: VecDeque::with_capacity(most + SLACK),
            most,
            remembered: vec![Remembered::Nothing; depth].into(),
            next: 0,
        }
    }

    /// The same for another number of READs: what waits is kept, and of what is remembered the
    /// newest.
    pub(super) fn resize(&mut self, depth: u32) {
        let mut kept = Self::new(depth);
        kept.waiting.append(&mut self.waiting);
        let (old, new) = (self.remembered.len(), kept.remembered.len());
        let dropped = old.saturating_sub(new);
        for answered in self.remembered.iter().cycle().skip(self.next + dropped).take(old - dropped) {
            kept.remember(*answered);
        }
        *self = kept;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether so much waits that no request is to be taken.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.most
    }

    /// Whether another READ or atomic operation can be taken: fewer wait for their first answer
    /// than the other side may have outstanding.
    pub(super) fn can_remember(&self) -> bool {
        let first = |waiting: &&Response| {
            matches!(waiting, Response::Read { again: false, .. } | Response::Atomic { again: false, .. })
        };
        self.waiting.iter().filter(first).count() < self.remembered.len()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Acknowledges everything up to `psn`.
    #[inline]
    pub(super) fn acknowledge(&mut self, psn: u64, finished: Msn) {
        let response = Response::Acknowledge { psn, syndrome: Syndrome::ACK, finished };
        match self.waiting.back_mut() {
            Some(last @ Response::Acknowledge { syndrome: Syndrome::ACK, .. }) => *last = response,
            _ => self.waiting.push_back(response),
        }
    }

    /// The same for a request that came again.
    pub(super) fn acknowledge_again(&mut self, psn: u64, finished: Msn) {
        if !self.is_full() {
            self.acknowledge(psn, finished);
        }
    }

    /// Says that the packet with `psn` is missing.
    pub(super) fn gap(&mut self, psn: u64, finished: Msn) {
        self.refuse(psn, finished, NakCode::PsnSequenceError);
    }

    /// Says that there is no receive for the packet with `psn`.
    pub(super) fn not_ready(&mut self, psn: u64, finished: Msn, timer: RnrTimer) {
        let syndrome = Syndrome::rnr_nak(timer);
        let response = Response::Acknowledge { psn, syndrome, finished };
        match self.waiting.back_mut() {
            Some(Response::Acknowledge { psn: last, syndrome: same, .. })
                if *last == psn && *same == syndrome => {}
            _ => self.waiting.push_back(response),
        }
    }

    /// Refuses the packet with `psn`.
    pub(super) fn refuse(&mut self, psn: u64, finished: Msn, code: NakCode) {
        self.waiting.push_back(Response::Acknowledge { psn, syndrome: Syndrome::nak(code), finished });
    }

    /// Answers a READ, and remembers it.
    pub(super) fn read(&mut self, first: u64, packets: u32, reth: &Reth, finished: Msn) {
        self.remember(Remembered::Read { first, packets, reth: *reth, finished });
        self.waiting.push_back(response_to_read(first, packets, reth, finished, false));
    }

    /// Answers an atomic operation, and remembers what it found.
    pub(super) fn atomic(&mut self, psn: u64, original: u64, finished: Msn) {
        self.remember(Remembered::Atomic { psn, original, finished });
        self.waiting.push_back(Response::Atomic { psn, original, finished, again: false });
    }

    fn remember(&mut self, answered: Remembered) {
        if let Some(place) = self.remembered.get_mut(self.next) {
            *place = answered;
            self.next = (self.next + 1) % self.remembered.len();
        }
    }

    /// Answers a READ again, from the packet with `psn` on, when what is asked for is part of
    /// what was asked for before.
    pub(super) fn read_again(&mut self, psn: u64, reth: &Reth, mtu: u32) {
        let packets = reth.length.div_ceil(mtu).max(1);
        let end = psn + u64::from(packets);
        let found = self.remembered.iter().find_map(|remembered| match *remembered {
            Remembered::Read { first, packets, reth: whole, finished } => {
                let last = first + u64::from(packets);
                let skipped = psn.checked_sub(first)?.checked_mul(u64::from(mtu))?;
                let inside = end <= last
                    && reth.key == whole.key
                    && reth.address == whole.address.wrapping_add(skipped)
                    && skipped + u64::from(reth.length) <= u64::from(whole.length);
                inside.then_some((first, last, finished))
            }
            _ => None,
        });
        let Some((first, last, finished)) = found else { return };
        // Who asks again does not want the rest of the first answer.
        self.waiting.retain(
            |response| !matches!(response, Response::Read { psn, .. } if (first..last).contains(psn)),
        );
        if !self.is_full() {
            self.put_in_order(response_to_read(psn, packets, reth, finished, true), end);
        }
    }

    /// Answers an atomic operation again: with what it found when it was carried out.
    pub(super) fn atomic_again(&mut self, psn: u64) {
        let found = self.remembered.iter().find_map(|remembered| match *remembered {
            Remembered::Atomic { psn: known, original, finished } if known == psn => {
                Some(Response::Atomic { psn, original, finished, again: true })
            }
            _ => None,
        });
        let Some(response) = found else { return };
        self.waiting.retain(|waiting| !matches!(waiting, Response::Atomic { psn: same, .. } if *same == psn));
        if !self.is_full() {
            self.put_in_order(response, psn + 1);
        }
    }

    /// Puts a repeated answer before whatever waits from `end` on: an acknowledgement that
    /// overtook it would say that it is lost.
    fn put_in_order(&mut self, response: Response, end: u64) {
        let later = self.waiting.iter().position(|waiting| waiting.psn() >= end);
        self.waiting.insert(later.unwrap_or(self.waiting.len()), response);
    }

    /// Builds the first response that waits.
    #[inline]
    pub(super) fn send(
        &mut self,
        settings: &ResponderSettings,
        host: &mut impl Host,
        room: &mut Room<'_>,
    ) -> (Option<usize>, Effect) {
        let Some(front) = self.waiting.front_mut() else { return (None, Effect::Fine) };
        let (opcode, psn, extension) = match *front {
            Response::Acknowledge { psn, syndrome, finished } => {
                (Opcode::RC_ACKNOWLEDGE, psn, Extension::Acknowledge(Aeth { syndrome, msn: finished }))
            }
            Response::Atomic { psn, original, finished, .. } => {
                let aeth = Aeth { syndrome: Syndrome::ACK, msn: finished };
                let extension = Extension::AtomicAcknowledge(aeth, AtomicAckEth(original));
                (Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, extension)
            }
            Response::Read { .. } => return self.send_read(settings, host, room),
        };
        self.waiting.pop_front();
        let bth = Bth::new(opcode, Qpn::default(), wire(psn));
        (room.build::<()>(bth, extension, 0, |_| Ok(())).ok(), Effect::Fine)
    }

    fn send_read(
        &mut self,
        settings: &ResponderSettings,
        host: &mut impl Host,
        room: &mut Room<'_>,
    ) -> (Option<usize>, Effect) {
        let Some(Response::Read { psn, end, address, key, rest, begins, finished, .. }) =
            self.waiting.front_mut()
        else {
            return (None, Effect::Fine);
        };
        let length = (*rest).min(settings.mtu);
        let last = *psn + 1 == *end;
        let opcode = match (*begins, last) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
        };
        let extension = if opcode == Opcode::RC_READ_RESPONSE_MIDDLE {
            Extension::None
        } else {
            Extension::Acknowledge(Aeth { syndrome: Syndrome::ACK, msn: *finished })
        };
        let reach = Reach {
            key: *key,
            address: *address,
            length,
            rights: remote_rights(vdk_descriptors::roce::Operation::ReadRequest),
            domain: settings.domain,
        };
        let bth = Bth::new(opcode, Qpn::default(), wire(*psn));
        // CAST: a payload is at most the path MTU.
        let built = room.build(bth, extension, length as usize, |bytes| host.read(&reach, bytes));
        match built {
            Ok(frame) => {
                *psn += 1;
                *address = address.wrapping_add(u64::from(length));
                *rest -= length;
                *begins = false;
                if last {
                    self.waiting.pop_front();
                }
                (Some(frame), Effect::Fine)
            }
            Err(Unbuilt::Room) => (None, Effect::Fine),
            Err(Unbuilt::Payload(error)) => {
                // The key died after the request was taken.
                let (psn, finished) = (*psn, *finished);
                self.waiting.clear();
                let (code, effect) = match error {
                    MemoryError::Fault { .. } => (NakCode::RemoteOperationalError, Effect::Failed),
                    _ => (NakCode::RemoteAccessError, Effect::AccessError),
                };
                self.refuse(psn, finished, code);
                let (frame, _) = self.send(settings, host, room);
                (frame, effect)
            }
        }
    }
}

fn response_to_read(psn: u64, packets: u32, reth: &Reth, finished: Msn, again: bool) -> Response {
    Response::Read {
        psn,
        end: psn + u64::from(packets),
        address: reth.address,
        key: reth.key.0,
        rest: reth.length,
        begins: true,
        finished,
        again,
    }
}
