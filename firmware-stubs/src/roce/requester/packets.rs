//! Building a request packet.

use vdk_descriptors::roce::{
    AtomicEth, Bth, Deth, Extension, ExtensionKind, Ieth, ImmDt, Opcode, QKey, Qpn, RemoteKey, Reth,
};

use super::{Requester, asking_interval, wire};
use crate::roce::completion::Status;
use crate::roce::host::Host;
use crate::roce::path::{Room, Unbuilt};
use crate::roce::queues::SendSlot;
use crate::roce::state::Service;
use crate::roce::work::{Operation, Remote};

impl Requester {
    /// Builds the packet at the cursor.
    #[inline]
    pub(super) fn build(&mut self, host: &mut impl Host, room: &mut Room<'_>) -> Result<usize, Status> {
        let number = self.cursor.slot;
        let slot = self.queue.ring.slot(number);
        let destination = self.queue.destination(number);
        let mtu = self.settings.mtu;
        // CAST: a position in a message is below its number of packets, 2^23.
        #[expect(clippy::cast_possible_truncation, reason = "below the number of packets")]
        let position = (self.cursor.psn - slot.first) as u32;
        let offset = position.saturating_mul(mtu).min(slot.length);
        let rest = slot.length - offset;
        let mut bth = Bth::new(Opcode::RC_READ_REQUEST, Qpn::default(), wire(self.cursor.psn));
        let mut length = 0;
        let extension = match slot.operation {
            Operation::Read(remote) => {
                bth.ack_request = true;
                if position != 0 {
                    self.asked_again = self.cursor.psn;
                }
                let address = remote.address.wrapping_add(u64::from(offset));
                Extension::Remote(Reth { address, key: RemoteKey(remote.key), length: rest })
            }
            Operation::CompareSwap { remote, compare, swap } => {
                (bth.opcode, bth.ack_request) = (Opcode::RC_COMPARE_SWAP, true);
                let Remote { address, key } = remote;
                Extension::Atomic(AtomicEth { address, key: RemoteKey(key), swap_or_add: swap, compare })
            }
            Operation::FetchAdd { remote, add } => {
                (bth.opcode, bth.ack_request) = (Opcode::RC_FETCH_ADD, true);
                let Remote { address, key } = remote;
                Extension::Atomic(AtomicEth { address, key: RemoteKey(key), swap_or_add: add, compare: 0 })
            }
            _ => {
                length = rest.min(mtu);
                let last = position + 1 == slot.packets;
                bth.opcode = opcode(self.settings.service, &slot.operation, position == 0, last);
                bth.solicited_event =
                    slot.solicited && last && !matches!(slot.operation, Operation::Write(_));
                if self.settings.service == Service::ReliableConnected {
                    self.unasked += 1;
                    bth.ack_request = last || self.unasked >= asking_interval(self.settings.window);
                    if bth.ack_request {
                        self.unasked = 0;
                    }
                }
                let source = self.settings.number;
                let deth = destination.map(|destination| {
                    let own = destination.q_key.is_controlled();
                    Deth { key: if own { self.settings.q_key } else { destination.q_key }, source }
                });
                extension(bth.opcode.extension(), slot, deth)
            }
        };
        // CAST: a payload is at most the MTU.
        let length = length as usize;
        let fill = |bytes: &mut [u8]| self.queue.gather(host, self.settings.domain, number, offset, bytes);
        let built = match destination {
            Some(destination) => {
                let flow = destination.path.flow();
                room.redirect(&flow, destination.queue_pair).build(bth, extension, length, fill)
            }
            None => room.build(bth, extension, length, fill),
        };
        built.map_err(|unbuilt| match unbuilt {
            Unbuilt::Payload(_) => Status::LocalProtection,
            Unbuilt::Room => Status::LocalQueuePairOperation,
        })
    }
}

/// The opcode of a packet of a SEND or WRITE.
#[inline]
fn opcode(service: Service, operation: &Operation, first: bool, last: bool) -> Opcode {
    let reliable = match (operation, first, last) {
        (Operation::Write(_) | Operation::WriteWithImmediate(..), true, false) => Opcode::RC_WRITE_FIRST,
        (Operation::Write(_) | Operation::WriteWithImmediate(..), false, false) => Opcode::RC_WRITE_MIDDLE,
        (Operation::Write(_), false, true) => Opcode::RC_WRITE_LAST,
        (Operation::Write(_), true, true) => Opcode::RC_WRITE_ONLY,
        (Operation::WriteWithImmediate(..), false, true) => Opcode::RC_WRITE_LAST_IMMEDIATE,
        (Operation::WriteWithImmediate(..), true, true) => Opcode::RC_WRITE_ONLY_IMMEDIATE,
        (_, true, false) => Opcode::RC_SEND_FIRST,
        (_, false, false) => Opcode::RC_SEND_MIDDLE,
        (Operation::SendWithImmediate(_), false, true) => Opcode::RC_SEND_LAST_IMMEDIATE,
        (Operation::SendWithImmediate(_), true, true) => Opcode::RC_SEND_ONLY_IMMEDIATE,
        (Operation::SendWithInvalidate(_), false, true) => Opcode::RC_SEND_LAST_INVALIDATE,
        (Operation::SendWithInvalidate(_), true, true) => Opcode::RC_SEND_ONLY_INVALIDATE,
        (_, false, true) => Opcode::RC_SEND_LAST,
        (_, true, true) => Opcode::RC_SEND_ONLY,
    };
    let service = match service {
        Service::ReliableConnected => 0,
        Service::UnreliableConnected => 0x20,
        Service::Datagram => 0x60,
    };
    Opcode::new(reliable.value() | service).unwrap_or(reliable)
}

/// The headers of a packet of a SEND or WRITE after the first one.
#[inline]
fn extension(kind: ExtensionKind, slot: &SendSlot, deth: Option<Deth>) -> Extension {
    let (immediate, invalidate) = match slot.operation {
        Operation::SendWithImmediate(value) | Operation::WriteWithImmediate(_, value) => (value, 0),
        Operation::SendWithInvalidate(key) => (0, key),
        _ => (0, 0),
    };
    let reth = match slot.operation {
        Operation::Write(remote) | Operation::WriteWithImmediate(remote, _) => {
            Reth { address: remote.address, key: RemoteKey(remote.key), length: slot.length }
        }
        _ => Reth { address: 0, key: RemoteKey(0), length: 0 },
    };
    let deth = deth.unwrap_or(Deth { key: QKey(0), source: Qpn::default() });
    match kind {
        ExtensionKind::Immediate => Extension::Immediate(ImmDt(immediate)),
        ExtensionKind::Invalidate => Extension::Invalidate(Ieth(RemoteKey(invalidate))),
        ExtensionKind::Remote => Extension::Remote(reth),
        ExtensionKind::RemoteImmediate => Extension::RemoteImmediate(reth, ImmDt(immediate)),
        ExtensionKind::Datagram => Extension::Datagram(deth),
        ExtensionKind::DatagramImmediate => Extension::DatagramImmediate(deth, ImmDt(immediate)),
        _ => Extension::None,
    }
}
