//! What a request must pass before anything is done, in order.

use vdk_descriptors::roce::{Extension, Operation, Packet, Psn, Reth};

use super::{MessageKind, Responder, uses_receive};
use crate::roce::completion::Status;
use crate::roce::memory::{Memory, Reach, Rights};
use crate::roce::queues::LONGEST;
use crate::roce::state::Service;

/// What a failed check asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nothing.
    Drop,
    /// The packet with this PSN came before.
    Duplicate(u64),
    /// A packet before this one is missing.
    Gap,
    /// There is no receive.
    NotReady,
    /// The request is invalid. The receive ends with this status.
    Invalid(Option<Status>),
    /// The request has no right to the memory.
    Access,
    /// This side cannot carry it out. The receive ends with this status.
    Operation(Option<Status>),
}

impl Responder {
    /// Makes all checks, in the order of the field: the first that fails decides.
    #[inline]
    pub(super) fn check(&self, packet: &Packet<'_>, memory: &impl Memory) -> Result<(), Refusal> {
        // It is the turn of its PSN.
        self.check_turn(packet.bth.psn)?;
        // Its place in a message follows the packet before.
        self.check_order(packet)?;
        // The queue pair allows the operation.
        self.check_rights(packet)?;
        // There is a receive, or room to remember the answer.
        self.check_resources(packet)?;
        // It has as many bytes as its place allows, and the receive can hold them.
        self.check_length(packet)?;
        // The address of an atomic operation is a multiple of eight.
        check_alignment(packet)?;
        // The key allows the whole of the operation.
        self.check_key(packet, memory)
    }

    #[inline]
    pub(super) fn check_turn(&self, psn: Psn) -> Result<(), Refusal> {
        let psn = psn.extend(self.expected);
        if psn > self.expected {
            Err(Refusal::Gap)
        } else if psn < self.expected {
            Err(Refusal::Duplicate(psn))
        } else if self.responses.is_full() {
            // As if it were lost: what waits must be sent first.
            Err(Refusal::Drop)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn check_order(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        let fits = match self.message {
            None => opcode.position().begins(),
            Some(message) => {
                let same = match message.kind {
                    MessageKind::Send => opcode.operation() == Operation::Send,
                    MessageKind::Write { .. } => opcode.operation() == Operation::Write,
                };
                same && !opcode.position().begins()
            }
        };
        if fits { Ok(()) } else { Err(Refusal::Invalid(None)) }
    }

    #[inline]
    fn check_rights(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let needed = remote_rights(packet.bth.opcode.operation());
        if self.settings.rights.allow(needed) { Ok(()) } else { Err(Refusal::Invalid(None)) }
    }

    #[inline]
    fn check_resources(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        match opcode.operation() {
            Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd => {
                if self.responses.can_remember() { Ok(()) } else { Err(Refusal::Invalid(None)) }
            }
            _ if uses_receive(opcode) && self.queue.front().is_none() => Err(Refusal::NotReady),
            _ => Ok(()),
        }
    }

    #[inline]
    fn check_length(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        let length = packet.payload.len() as u64;
        let mtu = u64::from(self.settings.mtu);
        if !opcode.has_payload() {
            return match packet.extension {
                Extension::Remote(reth) if u64::from(reth.length) > LONGEST => Err(Refusal::Invalid(None)),
                _ if length != 0 => Err(Refusal::Invalid(None)),
                _ => Ok(()),
            };
        }
        let position = opcode.position();
        let in_place =
            if position.ends() { length <= mtu && (length != 0 || position.begins()) } else { length == mtu };
        if !in_place {
            return Err(Refusal::Invalid(None));
        }
        let received = self.message.map_or(0, |message| u64::from(message.received));
        match opcode.operation() {
            Operation::Write => {
                let whole = match (packet.extension.remote(), self.message.map(|open| open.kind)) {
                    (Some(reth), _) => u64::from(reth.length),
                    (None, Some(MessageKind::Write { length, .. })) => u64::from(length),
                    (None, _) => return Err(Refusal::Invalid(None)),
                };
                let sum = received + length;
                let fits = if position.ends() { sum == whole } else { sum < whole };
                if fits && whole <= LONGEST { Ok(()) } else { Err(Refusal::Invalid(None)) }
            }
            _ => {
                let most = self.queue.front().map_or(0, |front| front.length);
                if received + length > most.min(LONGEST) {
                    Err(Refusal::Invalid(Some(Status::LocalLength)))
                } else {
                    Ok(())
                }
            }
        }
    }

    #[inline]
    fn check_key(&self, packet: &Packet<'_>, memory: &impl Memory) -> Result<(), Refusal> {
        let operation = packet.bth.opcode.operation();
        let (address, key, length) = match packet.extension {
            // Nothing is reached, so the key may be any.
            Extension::Remote(Reth { length: 0, .. })
            | Extension::RemoteImmediate(Reth { length: 0, .. }, _) => {
                return Ok(());
            }
            // The access itself checks a WRITE of one packet, and touches nothing if it must not.
            Extension::Remote(_) | Extension::RemoteImmediate(..)
                if operation == Operation::Write && packet.bth.opcode.position().ends() =>
            {
                return Ok(());
            }
            Extension::Remote(reth) | Extension::RemoteImmediate(reth, _) => {
                (reth.address, reth.key.0, reth.length)
            }
            Extension::Atomic(atomic) => (atomic.address, atomic.key.0, 8),
            _ => return Ok(()),
        };
        let (rights, domain) = (remote_rights(operation), self.settings.domain);
        memory.check(&Reach { key, address, length, rights, domain }).map_err(|_| Refusal::Access)
    }

    /// Whether the service answers its requests.
    pub(super) fn answers(&self) -> bool {
        self.settings.service == Service::ReliableConnected
    }
}

#[inline]
fn check_alignment(packet: &Packet<'_>) -> Result<(), Refusal> {
    match packet.extension {
        Extension::Atomic(atomic) if !atomic.address.is_multiple_of(8) => Err(Refusal::Invalid(None)),
        _ => Ok(()),
    }
}

/// What an operation of the other side needs to be allowed.
#[inline]
pub(super) fn remote_rights(operation: Operation) -> Rights {
    match operation {
        Operation::Write => Rights::REMOTE_WRITE,
        Operation::ReadRequest => Rights::REMOTE_READ,
        Operation::CompareSwap | Operation::FetchAdd => Rights::REMOTE_ATOMIC,
        _ => Rights::NONE,
    }
}
