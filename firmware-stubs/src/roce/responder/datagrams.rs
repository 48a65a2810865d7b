//! Datagrams: single packets from anyone who has the key of the queue.

use vdk_descriptors::roce::{Frame, Network, QKey};

use super::{Effect, Responder, immediate};
use crate::roce::completion::{Completion, CompletionOpcode, Side, Status, Success};
use crate::roce::counters::Counters;
use crate::roce::host::Host;

/// How many bytes of a receive stand in front of a datagram: the global route header, or its
/// last 20 bytes with an IPv4 header.
pub const ADDRESS_AREA: u32 = 40;

impl Responder {
    /// Takes a datagram; `bytes` is its frame.
    pub(in crate::roce) fn datagram(
        &mut self,
        frame: &Frame<'_>,
        bytes: &[u8],
        q_key: QKey,
        host: &mut impl Host,
        counters: &mut Counters,
    ) -> Effect {
        let Some(deth) = frame.headers.extension.datagram() else {
            counters.dropped += 1;
            return Effect::Fine;
        };
        if deth.key != q_key {
            counters.q_key_violations += 1;
            return Effect::Fine;
        }
        let Some(front) = self.queue.front() else {
            counters.dropped += 1;
            return Effect::Fine;
        };
        let id = front.id;
        let length = u32::try_from(frame.payload.len()).unwrap_or(u32::MAX);
        if length > self.settings.mtu {
            counters.dropped += 1;
            return Effect::Fine;
        }
        if u64::from(ADDRESS_AREA) + u64::from(length) > front.length {
            self.fail_receive(Some(Status::LocalLength), host);
            return Effect::Failed;
        }
        let domain = self.settings.domain;
        let area = address_area(frame, bytes);
        let stored = self
            .queue
            .scatter(host, domain, 0, &area)
            .and_then(|()| self.queue.scatter(host, domain, ADDRESS_AREA, frame.payload));
        if stored.is_err() {
            self.fail_receive(Some(Status::LocalProtection), host);
            return Effect::Failed;
        }
        self.queue.ring.release();
        counters.receives += 1;
        host.complete(
            Side::Receive,
            Completion::Success(Success {
                id,
                queue_pair: self.settings.number,
                opcode: CompletionOpcode::Receive,
                length,
                immediate: immediate(&frame.headers.extension),
                invalidated: None,
                source: Some(deth.source),
                solicited: frame.headers.bth.solicited_event,
            }),
        );
        Effect::Fine
    }
}

/// The network header of a frame, at the end of 40 bytes.
fn address_area(frame: &Frame<'_>, bytes: &[u8]) -> [u8; 40] {
    let length = match frame.headers.network {
        Network::Ipv4(..) => 20,
        Network::Ipv6(..) | Network::GlobalRoute(_) => 40,
    };
    let mut area = [0; 40];
    let start = frame.headers.ethernet.length();
    if let (Some(header), Some(place)) = (bytes.get(start..start + length), area.get_mut(40 - length..)) {
        place.copy_from_slice(header);
    }
    area
}
