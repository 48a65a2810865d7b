//! Messages over the services that promise nothing, on a wire that goes wrong: a message that
//! lost a packet is lost as a whole, and what arrives is what was sent.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vdk_descriptors::roce::{PathMtu, Psn, QKey};
use vdk_firmware_stubs::roce::wire::faults::{FaultEntry, WireFault};
use vdk_firmware_stubs::roce::{ADDRESS_AREA, Operation, QueueSizes, Rights, Service, Side};

use super::adapter::{self, Adapter, Done, Send};
use super::rows::{Key, PLAIN, Settings};
use super::trial::{End, Q_KEY, connection};

/// Messages of one kind, one after the other.
#[derive(Debug)]
struct Shape {
    name: &'static str,
    service: Service,
    /// WRITEs with immediate; SENDs with immediate when it is false. The immediate is the
    /// number of the message.
    writes: bool,
    lengths: &'static [u32],
}

/// Each on a queue pair of its own.
const SHAPES: &[Shape] = &[
    Shape {
        name: "UC SEND",
        service: Service::UnreliableConnected,
        writes: false,
        lengths: &[10, 3000, 1024, 1025, 2048, 1, 5000, 0, 2049, 700, 4096, 3000, 1024, 10, 5000, 100],
    },
    Shape {
        name: "UC WRITE",
        service: Service::UnreliableConnected,
        writes: true,
        lengths: &[10, 1024, 3000, 1025, 1, 5000, 2048, 100, 3000, 10],
    },
    Shape {
        name: "UD SEND",
        service: Service::Datagram,
        writes: false,
        lengths: &[10, 1024, 1000, 1, 0, 700, 1023, 512, 64, 1024, 3, 900, 8, 1024, 333, 100],
    },
];

/// How many bytes a packet carries.
const MTU: PathMtu = PathMtu::Mtu1024;
/// How many bytes of a region belong to one message, or to one receive.
const SLOT: u32 = 8192;
/// How long sends may take that nobody acknowledges.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many messages one packet that was struck can cost: its own, on rxe the one that ends the
/// gap, and when two packets changed places the same again.
const COST: usize = 4;

impl Shape {
    /// Twice as many receives as messages, since a packet that passes twice can be two messages.
    fn receives(&self) -> u32 {
        2 * self.messages()
    }

    fn messages(&self) -> u32 {
        u32::try_from(self.lengths.len()).unwrap_or(u32::MAX)
    }

    /// What stands in a receive before the message.
    fn area(&self) -> u32 {
        if self.service == Service::Datagram { ADDRESS_AREA } else { 0 }
    }

    /// The messages: how far the first packet is from the first of all, how many there are, and
    /// the length.
    fn packets(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.lengths.iter().scan(0, |next, length| {
            let (first, count) = (*next, MTU.packets(*length));
            *next += count;
            Some((first, count, *length))
        })
    }
}

/// Messages under way.
#[derive(Debug)]
pub(super) struct Flow {
    shape: &'static Shape,
    asking: End,
    answering: End,
    first: Psn,
    seed: u64,
}

/// What came of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Messages that arrived, each counted once.
    pub(super) arrived: usize,
    /// Messages that did not.
    pub(super) lost: usize,
}

impl Tally {
    pub(super) const fn add(&mut self, other: Self) {
        self.arrived += other.arrived;
        self.lost += other.lost;
    }
}

/// Connects the queue pairs, and posts all receives and then all sends. The first PSNs are those
/// of the requester and of the responder.
///
/// # Errors
///
/// An adapter refuses something, or does not answer.
pub(super) fn begin(
    requester: &mut dyn Adapter,
    responder: &mut dyn Adapter,
    (own, other): (Psn, Psn),
    seed: u64,
) -> Result<Vec<Flow>> {
    SHAPES
        .iter()
        .map(|shape| {
            let flow = Flow::new(shape, requester, responder, (own, other), seed)?;
            flow.post(requester, responder).with_context(|| shape.name)?;
            Ok(flow)
        })
        .collect()
}

impl Flow {
    fn new(
        shape: &'static Shape,
        requester: &mut dyn Adapter,
        responder: &mut dyn Adapter,
        (own, other): (Psn, Psn),
        seed: u64,
    ) -> Result<Self> {
        let settings = Settings { service: shape.service, ..PLAIN };
        let queue = |sends, receives| QueueSizes { sends, receives, entries: 1, inline: 0 };
        let (messages, receives) = (shape.messages(), shape.receives());
        let asking = End::sized(requester, shape.service, queue(messages, 1), messages * SLOT, Rights::ALL)?;
        let answering =
            End::sized(responder, shape.service, queue(1, receives), receives * SLOT, Rights::ALL)?;
        let to_responder = connection(&settings, Rights::ALL, (responder, &answering), (own, other));
        let to_requester = connection(&settings, Rights::ALL, (requester, &asking), (other, own));
        responder.connect(answering.pair, &to_requester)?;
        requester.connect(asking.pair, &to_responder)?;
        Ok(Self { shape, asking, answering, first: own, seed })
    }

    fn post(&self, requester: &mut dyn Adapter, responder: &mut dyn Adapter) -> Result<()> {
        let Self { shape, asking, answering, .. } = self;
        requester.fill(&asking.region, 0, shape.messages() * SLOT, self.seed)?;
        for slot in 0..shape.receives() {
            let entry = [answering.entry(slot * SLOT, SLOT, Key::Good)];
            let entries = if shape.writes { &[][..] } else { &entry };
            ensure!(responder.receive(answering.pair, slot.into(), entries)?, "a receive was refused");
        }
        let to = (shape.service == Service::Datagram)
            .then(|| (responder.station(), answering.pair.number, QKey(Q_KEY)));
        for (number, length) in (0..).zip(shape.lengths) {
            let operation = if shape.writes {
                Operation::WriteWithImmediate(answering.remote(number * SLOT, Key::Good), number)
            } else {
                Operation::SendWithImmediate(number)
            };
            let entries = [asking.entry(number * SLOT, *length, Key::Good)];
            let send = Send { id: number.into(), operation, entries: &entries, to };
            ensure!(requester.send(asking.pair, &send)?, "message {number} was refused");
        }
        Ok(())
    }

    /// Waits until all is sent.
    ///
    /// # Errors
    ///
    /// A send failed, or does not end.
    pub(super) fn sent(&self, requester: &mut dyn Adapter) -> Result<()> {
        let wanted = self.shape.lengths.len();
        let done = requester.poll(self.asking.pair, Side::Send, wanted, PATIENCE)?;
        let name = self.shape.name;
        ensure!(done.len() == wanted, "{name}: {} of {wanted} sends ended", done.len());
        let failed = done.iter().find(|done| done.status.is_some());
        ensure!(failed.is_none(), "{name}: a send failed: {failed:?}");
        Ok(())
    }

    /// Compares what arrived with what was sent and with what was done to it on the way. When all
    /// that can come has come, nothing more is waited for than `quiet`.
    ///
    /// Where rxe (of Linux 6.12) receives, a WRITE that lost a packet takes all after it along:
    /// only with SENDs it begins anew at the next First.
    ///
    /// # Errors
    ///
    /// A message arrived changed, or though a packet of it was lost, or did not arrive for no
    /// reason.
    pub(super) fn arrived(
        &self,
        responder: &mut dyn Adapter,
        by_rxe: bool,
        faults: &[FaultEntry],
        quiet: Duration,
    ) -> Result<Tally> {
        let Self { shape, answering, .. } = self;
        let most = usize::try_from(shape.receives())?;
        let done = responder.poll(answering.pair, Side::Receive, most, quiet)?;
        let mut sent = vec![0; shape.lengths.len() * usize::try_from(SLOT)?];
        adapter::fill(&mut sent, self.seed);
        let mut counts = vec![0; shape.lengths.len()];
        for done in &done {
            let number = self.check(responder, done, &sent)?;
            *counts.get_mut(number).context("there is no such message")? += 1;
        }
        let faults: Vec<(WireFault, u32)> = faults
            .iter()
            .filter(|entry| entry.destination == answering.pair.number)
            .map(|entry| (entry.fault, entry.psn.distance_from(self.first)))
            .collect();
        self.account(&counts, &faults, by_rxe).with_context(|| {
            format!("{}: messages arrived {counts:?} times; the faults are {faults:?}", shape.name)
        })
    }

    /// Compares a message that arrived with what was sent; gives its number.
    fn check(&self, responder: &mut dyn Adapter, done: &Done, sent: &[u8]) -> Result<usize> {
        let shape = self.shape;
        ensure!(done.status.is_none(), "{}: a receive ended with {done:?}", shape.name);
        let number = done.immediate.with_context(|| format!("{}: {done:?} has no number", shape.name))?;
        let index = usize::try_from(number)?;
        let what = || format!("{}: message {number}", shape.name);
        let length = *shape.lengths.get(index).with_context(|| format!("{} was never sent", what()))?;
        let slot = if shape.writes { number } else { u32::try_from(done.id)? };
        let area = shape.area();
        // Verbs count what stands before a datagram.
        ensure!(
            shape.writes || done.length == length || done.length == length + area,
            "{} of {length} bytes arrived with {} bytes",
            what(),
            done.length
        );
        let right = usize::try_from(number * SLOT)?;
        let right = sent.get(right..right + usize::try_from(length)?).context("there is no such message")?;
        let arrived = responder.hash(&self.answering.region, slot * SLOT + area, length)?;
        ensure!(arrived == adapter::hash(right), "{} of {length} bytes arrived changed", what());
        Ok(index)
    }

    /// Whether messages arrived as often as what happened to their packets allows.
    fn account(&self, counts: &[usize], faults: &[(WireFault, u32)], by_rxe: bool) -> Result<Tally> {
        let shape = self.shape;
        for ((number, (first, packets, _)), count) in (0..).zip(shape.packets()).zip(counts) {
            let number: u32 = number;
            let of_this = |kinds: &[WireFault]| {
                let struck = faults.iter().filter(|(fault, _)| kinds.contains(fault));
                struck.filter(|(_, psn)| (first..first + packets).contains(psn)).count()
            };
            let vanished = of_this(&[WireFault::Drop, WireFault::Corrupt, WireFault::Overrun]);
            let doubled = of_this(&[WireFault::Duplicate]);
            ensure!(vanished == 0 || *count == 0, "message {number} lost a packet and arrived all the same");
            let most = if packets == 1 { 1 + doubled } else { 1 };
            ensure!(*count <= most, "message {number} arrived {count} times");
            if shape.service == Service::Datagram {
                let due = if vanished == 0 { 1 + doubled } else { 0 };
                ensure!(*count == due, "datagram {number} arrived {count} times, and {due} was due");
            }
        }
        let lost = counts.iter().filter(|count| **count == 0).count();
        let stays_lost = by_rxe && shape.writes && !faults.is_empty();
        ensure!(
            stays_lost || lost <= COST * faults.len(),
            "{lost} messages were lost, more than {} faults account for",
            faults.len()
        );
        Ok(Tally { arrived: counts.len() - lost, lost })
    }

    /// Ends both queue pairs.
    ///
    /// # Errors
    ///
    /// An adapter refuses it, or does not answer.
    pub(super) fn end(self, requester: &mut dyn Adapter, responder: &mut dyn Adapter) -> Result<()> {
        self.asking.end(requester)?;
        self.answering.end(responder)
    }

    /// The queue pair that receives.
    #[cfg(test)]
    pub(super) const fn receiver(&self) -> super::adapter::Pair {
        self.answering.pair
    }
}

#[cfg(test)]
mod tests {
    use vdk_descriptors::roce::Qpn;

    use super::super::adapter::{Pair, Region};
    use super::*;

    fn flow(shape: usize) -> Flow {
        let pair = Pair { handle: 0, number: Qpn::default() };
        let region = Region { handle: 0, address: 0, local_key: 0, remote_key: 0 };
        let end = End { pair, region };
        Flow { shape: &SHAPES[shape], asking: end, answering: end, first: Psn::new(7), seed: 1 }
    }

    /// Of each message one, but of one of them so many.
    fn counts(flow: &Flow, message: usize, count: usize) -> Vec<usize> {
        let mut counts = vec![1; flow.shape.lengths.len()];
        counts[message] = count;
        counts
    }

    #[test]
    fn a_message_that_lost_a_packet_must_not_arrive() {
        // The second SEND has the packets 1 to 3.
        let flow = flow(0);
        let lost = [(WireFault::Drop, 2)];
        let tally = flow.account(&counts(&flow, 1, 0), &lost, false).unwrap();
        assert_eq!(tally, Tally { arrived: 15, lost: 1 });
        let error = flow.account(&counts(&flow, 1, 1), &lost, false).unwrap_err();
        assert!(error.to_string().contains("message 1 lost a packet and arrived"), "{error}");
        let error = flow.account(&counts(&flow, 1, 0), &[], false).unwrap_err();
        assert!(error.to_string().contains("1 messages were lost, more than 0 faults"), "{error}");
    }

    #[test]
    fn only_a_message_of_one_packet_may_arrive_twice() {
        let flow = flow(0);
        let doubled = [(WireFault::Duplicate, 0), (WireFault::Duplicate, 3)];
        assert!(flow.account(&counts(&flow, 0, 2), &doubled, false).is_ok());
        assert!(flow.account(&counts(&flow, 0, 2), &[], false).is_err());
        assert!(flow.account(&counts(&flow, 1, 2), &doubled, false).is_err());
    }

    #[test]
    fn each_datagram_arrives_as_often_as_its_packet_passed() {
        let flow = flow(2);
        let faults = [(WireFault::Duplicate, 4), (WireFault::Reorder, 5)];
        assert!(flow.account(&counts(&flow, 4, 2), &faults, true).is_ok());
        assert!(flow.account(&counts(&flow, 4, 1), &faults, true).is_err());
        assert!(flow.account(&counts(&flow, 6, 0), &faults, true).is_err());
    }

    #[test]
    fn writes_behind_a_lost_one_may_be_lost_with_rxe_alone() {
        let flow = flow(1);
        let counts = [vec![1, 1], vec![0; 8]].concat();
        let faults = [(WireFault::Drop, 3)];
        assert!(flow.account(&counts, &faults, true).is_ok());
        assert!(flow.account(&counts, &faults, false).is_err());
        assert!(flow.account(&counts, &[], true).is_err());
    }
}
