//! Carrying out a request that passed all checks.

use vdk_descriptors::roce::{AtomicEth, Extension, Ieth, Operation, Packet};

use super::checks::{Refusal, remote_rights};
use super::{Message, MessageKind, Responder, immediate};
use crate::roce::completion::{Completion, CompletionOpcode, Side, Status, Success};
use crate::roce::counters::Counters;
use crate::roce::host::Host;
use crate::roce::memory::{Atomic, MemoryError, Reach};

impl Responder {
    #[inline]
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Result<(), Refusal> {
        let operation = packet.bth.opcode.operation();
        match operation {
            Operation::Send => self.execute_send(packet, host, counters),
            Operation::Write => self.execute_write(packet, host, counters),
            Operation::ReadRequest => self.execute_read(packet),
            Operation::CompareSwap | Operation::FetchAdd => self.execute_atomic(packet, host),
            _ => Err(Refusal::Drop),
        }
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Result<(), Refusal> {
        let offset = self.message.map_or(0, |message| message.received);
        self.queue
            .scatter(host, self.settings.domain, offset, packet.payload)
            .map_err(|_| Refusal::Operation(Some(Status::LocalProtection)))?;
        let received = offset + length(packet);
        if !packet.bth.opcode.position().ends() {
            self.message = Some(Message { kind: MessageKind::Send, received });
            self.advance(packet);
            return Ok(());
        }
        let invalidated = match packet.extension {
            Extension::Invalidate(Ieth(key)) => {
                if host.invalidate(self.settings.domain, key.0).is_err() {
                    // The receive has its data, but not what the message promised with it.
                    self.fail_receive(Some(Status::RemoteInvalidRequest), host);
                    return Err(Refusal::Access);
                }
                Some(key.0)
            }
            _ => None,
        };
        self.message = None;
        self.complete_receive(packet, CompletionOpcode::Receive, received, invalidated, host, counters);
        self.finish(packet);
        Ok(())
    }

    #[inline]
    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Result<(), Refusal> {
        let (start, key, whole, received) = match (packet.extension.remote(), self.message) {
            (Some(reth), _) => (reth.address, reth.key.0, reth.length, 0),
            (None, Some(Message { kind: MessageKind::Write { address, key, length }, received })) => {
                (address, key, length, received)
            }
            (None, _) => return Err(Refusal::Invalid(None)),
        };
        let part = length(packet);
        if part != 0 {
            let address = start.wrapping_add(u64::from(received));
            let (rights, domain) = (remote_rights(Operation::Write), self.settings.domain);
            let reach = Reach { key, address, length: part, rights, domain };
            host.write(&reach, packet.payload).map_err(refusal)?;
        }
        let received = received + part;
        if !packet.bth.opcode.position().ends() {
            let kind = MessageKind::Write { address: start, key, length: whole };
            self.message = Some(Message { kind, received });
            self.advance(packet);
            return Ok(());
        }
        self.message = None;
        if packet.bth.opcode.has_immediate() {
            self.complete_receive(packet, CompletionOpcode::ReceiveWrite, received, None, host, counters);
        }
        self.finish(packet);
        Ok(())
    }

    fn execute_read(&mut self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let Extension::Remote(reth) = packet.extension else { return Err(Refusal::Drop) };
        let packets = reth.length.div_ceil(self.settings.mtu).max(1);
        self.finished = self.finished.next();
        self.responses.read(self.expected, packets, &reth, self.finished);
        self.expected += u64::from(packets);
        self.reported = false;
        Ok(())
    }

    fn execute_atomic(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let Extension::Atomic(atomic) = packet.extension else { return Err(Refusal::Drop) };
        let AtomicEth { address, key, swap_or_add, compare } = atomic;
        let purpose = packet.bth.opcode.operation();
        let operation = match purpose {
            Operation::CompareSwap => Atomic::CompareSwap { compare, swap: swap_or_add },
            _ => Atomic::FetchAdd { add: swap_or_add },
        };
        let (rights, domain) = (remote_rights(purpose), self.settings.domain);
        let reach = Reach { key: key.0, address, length: 8, rights, domain };
        let original = host.atomic(&reach, operation).map_err(refusal)?;
        self.finished = self.finished.next();
        self.responses.atomic(self.expected, original, self.finished);
        self.expected += 1;
        self.reported = false;
        Ok(())
    }

    /// The last packet of a SEND or WRITE was carried out.
    #[inline]
    fn finish(&mut self, packet: &Packet<'_>) {
        self.finished = self.finished.next();
        self.advance(packet);
    }

    /// A packet of a SEND or WRITE was carried out.
    #[inline]
    fn advance(&mut self, packet: &Packet<'_>) {
        self.acknowledged = self.expected;
        self.expected += 1;
        self.reported = false;
        if packet.bth.ack_request && self.answers() {
            self.responses.acknowledge(self.acknowledged, self.finished);
        }
    }

    fn complete_receive(
        &mut self,
        packet: &Packet<'_>,
        opcode: CompletionOpcode,
        length: u32,
        invalidated: Option<u32>,
        host: &mut impl Host,
        counters: &mut Counters,
    ) {
        let Some(front) = self.queue.front() else { return };
        let id = front.id;
        self.queue.ring.release();
        counters.receives += 1;
        host.complete(
            Side::Receive,
            Completion::Success(Success {
                id,
                queue_pair: self.settings.number,
                opcode,
                length,
                immediate: immediate(&packet.extension),
                invalidated,
                source: None,
                solicited: packet.bth.solicited_event,
            }),
        );
    }
}

/// How many bytes of the message a packet has; at most the path MTU, as was checked.
#[inline]
fn length(packet: &Packet<'_>) -> u32 {
    u32::try_from(packet.payload.len()).unwrap_or(0)
}

/// What the other side hears when its memory access fails.
fn refusal(error: MemoryError) -> Refusal {
    match error {
        MemoryError::Fault { .. } => Refusal::Operation(None),
        _ => Refusal::Access,
    }
}
