//! What `vdk wire` says: a record for each frame and a summary.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use vdk_driver::descriptors::roce::{
    AtomicEth, Envelope, Extension, Frame, FrameError, Headers, Operation, Qpn, SyndromeKind, Transport,
    Unverified,
};

use super::capture::Captured;
use super::sequence::{Mark, Sequence};

/// All that is known about a capture.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// RoCE frames, sound or not.
    pub(crate) frames: u64,
    /// Frames whose invariant CRC is wrong.
    pub(crate) bad_icrc: u64,
    /// Frames whose headers contradict themselves.
    pub(crate) malformed: u64,
    /// Frames of which the capture kept too little to verify anything.
    pub(crate) cut_short: u64,
    /// Frames with a right invariant CRC and an opcode that is not known.
    pub(crate) unknown_opcodes: u64,
    /// Frames that are not RoCE.
    pub(crate) other: u64,
    /// How many frames there are of each opcode.
    pub(crate) by_opcode: BTreeMap<&'static str, u64>,
    /// One entry for each queue pair and each peer that sends to it.
    pub(crate) by_queue_pair: Vec<QueuePair>,
    #[serde(skip)]
    places: BTreeMap<Key, (usize, Sequence)>,
    #[serde(skip)]
    start: Option<Duration>,
}

/// Whose packets are numbered together: sender, receiver, the receiver's queue pair, and for
/// datagrams the sender's.
type Key = (IpAddr, IpAddr, Qpn, Option<Qpn>);

/// What went to one queue pair from one peer.
#[derive(Debug, Default, Serialize)]
pub(crate) struct QueuePair {
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) queue_pair: u32,
    pub(crate) transport: &'static str,
    pub(crate) frames: u64,
    /// Bytes of messages.
    pub(crate) payload: u64,
    pub(crate) retransmissions: u64,
    /// Packets that are missing, at least.
    pub(crate) missing: u64,
    pub(crate) naks: u64,
    pub(crate) rnr_naks: u64,
    /// The first PSN. A congestion notification has none.
    pub(crate) first_psn: Option<u32>,
    pub(crate) last_psn: Option<u32>,
}

/// One frame.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Record {
    /// Its place in the file, from 1.
    pub(crate) number: u64,
    /// Seconds after the first frame of the file.
    pub(crate) time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opcode: Option<&'static str>,
    /// An opcode without a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unknown_opcode: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_pair: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) psn: Option<u32>,
    /// Bytes of the message in this frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ack_request: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) solicited_event: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) syndrome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) msn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<Remote>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) atomic: Option<Atomic>,
    /// What an atomic operation found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) original: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagram: Option<Datagram>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) immediate: Option<u32>,
    /// The remote key that dies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) invalidate: Option<u32>,
    /// Whether the invariant CRC is right; absent when the frame is malformed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) icrc: Option<bool>,
    /// What is wrong with the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<&'static str>,
    #[serde(skip)]
    details: String,
}

/// The memory that a request names.
#[derive(Debug, Serialize)]
pub(crate) struct Remote {
    address: u64,
    key: u32,
    length: u32,
}

/// The memory that an atomic operation names, and its operands.
#[derive(Debug, Serialize)]
pub(crate) struct Atomic {
    address: u64,
    key: u32,
    swap_or_add: u64,
    compare: u64,
}

/// What a datagram says of its sender.
#[derive(Debug, Serialize)]
pub(crate) struct Datagram {
    q_key: u32,
    source: u32,
}

impl Report {
    /// Takes the next frame. `None` when it is not RoCE.
    pub(crate) fn take(&mut self, number: u64, captured: &Captured<'_>) -> Option<Record> {
        let start = *self.start.get_or_insert(captured.time);
        let time = match captured.time.checked_sub(start) {
            Some(later) => later.as_secs_f64(),
            None => -start.saturating_sub(captured.time).as_secs_f64(),
        };
        let mut record = Record { number, time, ..Record::default() };
        let unverified = match Unverified::parse(captured.bytes) {
            Ok(unverified) => unverified,
            Err(FrameError::Foreign(_)) => {
                self.other += 1;
                return None;
            }
            Err(error @ FrameError::Opcode { opcode, destination, psn }) => {
                self.frames += 1;
                (record.queue_pair, record.psn) = (Some(destination.value()), Some(psn.value()));
                record.unknown_opcode = Some(opcode);
                let envelope = Envelope::parse(captured.bytes);
                if let Ok(Envelope { network, .. }) = &envelope {
                    record.source = Some(network.source().to_string());
                    record.destination = Some(network.destination().to_string());
                }
                record.icrc = Some(envelope.is_ok());
                record.error = Some(envelope.err().unwrap_or(error).to_string());
                if record.icrc == Some(true) {
                    self.unknown_opcodes += 1;
                    record.marks.push("unknown opcode");
                } else {
                    self.bad_icrc += 1;
                    record.marks.push("bad icrc");
                }
                return Some(record);
            }
            Err(error) => {
                self.frames += 1;
                record.error = Some(match snapshot(&error, captured) {
                    Some(original) => {
                        self.cut_short += 1;
                        let kept = captured.bytes.len();
                        format!(
                            "only {kept} of {original} bytes were captured, so nothing can be verified: \
                             capture with a larger snapshot length (tcpdump -s 0)"
                        )
                    }
                    None => {
                        self.malformed += 1;
                        error.to_string()
                    }
                });
                return Some(record);
            }
        };
        self.frames += 1;
        record.describe(unverified.frame());
        *self.by_opcode.entry(unverified.frame().headers.bth.opcode.name()).or_default() += 1;
        match unverified.verify() {
            Ok(frame) => {
                record.icrc = Some(true);
                self.count(&frame, &mut record);
            }
            Err(error) => {
                // Its fields may be anything, so no queue pair gets it.
                self.bad_icrc += 1;
                record.icrc = Some(false);
                record.error = Some(error.to_string());
                record.marks.push("bad icrc");
            }
        }
        Some(record)
    }

    fn count(&mut self, frame: &Frame<'_>, record: &mut Record) {
        let Headers { network, bth, extension, .. } = &frame.headers;
        let sender = extension.datagram().map(|datagram| datagram.source);
        let key = (network.source(), network.destination(), bth.destination, sender);
        let queue_pairs = &mut self.by_queue_pair;
        let (place, sequence) = self.places.entry(key).or_insert_with(|| {
            queue_pairs.push(QueuePair {
                source: network.source().to_string(),
                destination: network.destination().to_string(),
                queue_pair: bth.destination.value(),
                transport: name(Transport::CongestionNotification),
                ..QueuePair::default()
            });
            (queue_pairs.len() - 1, Sequence::default())
        });
        let mark = sequence.mark(frame);
        let Some(queue_pair) = queue_pairs.get_mut(*place) else { return };
        queue_pair.frames += 1;
        queue_pair.payload =
            queue_pair.payload.saturating_add(u64::try_from(frame.payload.len()).unwrap_or(u64::MAX));
        if bth.opcode.transport() != Transport::CongestionNotification {
            // Anyone may tell of congestion; what the row is called is what else comes.
            queue_pair.transport = name(bth.opcode.transport());
            queue_pair.first_psn.get_or_insert(bth.psn.value());
            queue_pair.last_psn = Some(bth.psn.value());
        }
        let word = match mark {
            None => return,
            Some(Mark::Retransmission) => {
                queue_pair.retransmissions += 1;
                "retransmission"
            }
            Some(Mark::Gap(missing)) => {
                queue_pair.missing += u64::from(missing);
                "gap"
            }
            Some(Mark::Restart) => "restart",
            Some(Mark::Nak) => {
                queue_pair.naks += 1;
                "nak"
            }
            Some(Mark::RnrNak) => {
                queue_pair.rnr_naks += 1;
                "rnr nak"
            }
        };
        record.marks.push(word);
    }
}

impl Record {
    fn describe(&mut self, frame: &Frame<'_>) {
        let Headers { network, bth, extension, .. } = &frame.headers;
        self.source = Some(network.source().to_string());
        self.destination = Some(network.destination().to_string());
        self.opcode = Some(bth.opcode.name());
        self.queue_pair = Some(bth.destination.value());
        self.psn = Some(bth.psn.value());
        self.payload = Some(frame.payload.len());
        self.ack_request = Some(bth.ack_request);
        self.solicited_event = Some(bth.solicited_event);
        if let Some(acknowledge) = extension.acknowledge() {
            self.msn = Some(acknowledge.msn.value());
            let syndrome = acknowledge.syndrome;
            // A response with data says no more than that it is one.
            let silent = bth.opcode.operation() == Operation::ReadResponse
                && matches!(syndrome.kind(), SyndromeKind::Ack(_));
            self.syndrome = (!silent).then(|| syndrome.to_string());
        }
        if let Some(reth) = extension.remote() {
            self.remote = Some(Remote { address: reth.address, key: reth.key.0, length: reth.length });
        }
        self.datagram =
            extension.datagram().map(|deth| Datagram { q_key: deth.key.0, source: deth.source.value() });
        self.immediate = extension.immediate().map(|immediate| immediate.0);
        match *extension {
            Extension::Atomic(AtomicEth { address, key, swap_or_add, compare }) => {
                self.atomic = Some(Atomic { address, key: key.0, swap_or_add, compare });
            }
            Extension::AtomicAcknowledge(_, original) => self.original = Some(original.0),
            Extension::Invalidate(invalidate) => self.invalidate = Some(invalidate.0.0),
            _ => {}
        }
        self.details = details(extension);
        if bth.ack_request {
            self.details.push_str(" ack-request");
        }
        if bth.solicited_event {
            self.details.push_str(" solicited");
        }
    }

    /// The frame on one line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{:>6} {:>12.6}", self.number, self.time);
        if let (Some(source), Some(destination)) = (&self.source, &self.destination) {
            line.push_str(&format!(" {source} > {destination}"));
        }
        if let (Some(opcode), Some(queue_pair), Some(psn), Some(payload)) =
            (self.opcode, self.queue_pair, self.psn, self.payload)
        {
            line.push_str(&format!(" {opcode:<33} qp {queue_pair:#08x} psn {psn:#08x} len {payload}"));
        } else if let (Some(opcode), Some(queue_pair), Some(psn)) =
            (self.unknown_opcode, self.queue_pair, self.psn)
        {
            let opcode = format!("opcode {opcode:#04x}");
            line.push_str(&format!(" {opcode:<33} qp {queue_pair:#08x} psn {psn:#08x}"));
        }
        if let Some(syndrome) = &self.syndrome {
            line.push_str(&format!(" {syndrome}"));
        }
        line.push_str(&self.details);
        if let Some(error) = &self.error {
            line.push_str(&format!(" ! {error}"));
        }
        if !self.marks.is_empty() {
            line.push_str(&format!(" [{}]", self.marks.join(", ")));
        }
        line
    }
}

fn details(extension: &Extension) -> String {
    let mut text = String::new();
    if let Some(acknowledge) = extension.acknowledge() {
        text.push_str(&format!(" msn {}", acknowledge.msn.value()));
    }
    if let Some(reth) = extension.remote() {
        text.push_str(&format!(" va {:#x} key {} dma-len {}", reth.address, reth.key, reth.length));
    }
    if let Some(datagram) = extension.datagram() {
        text.push_str(&format!(" from qp {} q-key {}", datagram.source, datagram.key));
    }
    if let Some(immediate) = extension.immediate() {
        text.push_str(&format!(" imm {:#010x}", immediate.0));
    }
    match extension {
        Extension::Atomic(atomic) => text.push_str(&format!(
            " va {:#x} key {} swap-or-add {:#x} compare {:#x}",
            atomic.address, atomic.key, atomic.swap_or_add, atomic.compare
        )),
        Extension::AtomicAcknowledge(_, original) => text.push_str(&format!(" original {:#x}", original.0)),
        Extension::Invalidate(invalidate) => text.push_str(&format!(" invalidates key {}", invalidate.0)),
        _ => {}
    }
    text
}

/// The length on the wire of a frame that cannot be read because the capture kept too little of it.
fn snapshot(error: &FrameError, captured: &Captured<'_>) -> Option<usize> {
    let original = usize::try_from(captured.original_length).unwrap_or(usize::MAX);
    let cut = matches!(error, FrameError::Truncated { .. }) && captured.bytes.len() < original;
    cut.then_some(original)
}

const fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::ReliableConnection => "RC",
        Transport::UnreliableConnection => "UC",
        Transport::UnreliableDatagram => "UD",
        Transport::CongestionNotification => "CNP",
    }
}
