//! Traffic of all kinds between two adapters over a wire that goes wrong: the bytes must be
//! where they belong, and what rxe counted must fit what the wire did.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use vdk_descriptors::roce::{PathMtu, Psn};
use vdk_firmware_stubs::roce::wire::faults::FaultCounts;
use vdk_firmware_stubs::roce::{Operation, Remote, Rights, Service, Side};

use super::adapter::{Adapter, Connection, Send};
use super::rows::{Key, PLAIN, Settings};
use super::trial::{End, connection};

/// How long the regions are, in bytes; each message has a place of its own in them.
const REGION: u32 = 512 << 10;
/// How long a run may take without a completion.
const PATIENCE: Duration = Duration::from_secs(30);

/// The messages of a run: what, and how many bytes.
const MESSAGES: &[(Kind, u32)] = &[
    (Kind::Write, 1),
    (Kind::Send, 1023),
    (Kind::Read, 1024),
    (Kind::Write, 1025),
    (Kind::Send, 0),
    (Kind::Read, 5000),
    (Kind::Write, 65536),
    (Kind::Send, 10000),
    (Kind::Read, 65537),
    (Kind::Write, 40000),
    (Kind::Send, 20001),
    (Kind::Read, 1),
];

/// How often a fetch and add is done after the messages.
const ADDITIONS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// Some of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// All, and the additions.
    All,
    /// All that are no READs, and the additions.
    WithoutReads,
    /// READs alone: their responses are the only answers.
    ReadsAlone,
}

impl Chosen {
    fn has(self, kind: Kind) -> bool {
        match self {
            Self::All => true,
            Self::WithoutReads => kind != Kind::Read,
            Self::ReadsAlone => kind == Kind::Read,
        }
    }

    const fn additions(self) -> u64 {
        if matches!(self, Self::ReadsAlone) { 0 } else { ADDITIONS }
    }
}

/// How messages are carried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The first PSNs: of the requester, and of the responder.
    pub(super) psns: (Psn, Psn),
    /// How many bytes a packet carries.
    pub(super) mtu: PathMtu,
    /// Which of the messages are carried.
    pub(super) chosen: Chosen,
    /// The code of the time for an answer. Seven times of it are waited for.
    pub(super) timeout: u8,
    /// What the bytes are made from.
    pub(super) seed: u64,
}

/// Carries all messages from `requester` to `responder` over a reliable connection, and compares
/// the bytes of both sides by their hashes. Gives both ends, still connected: frames may be under
/// way that belong to them.
///
/// # Errors
///
/// A work request failed or did not complete, or the bytes differ.
pub(super) fn carry_messages(
    requester: &mut dyn Adapter,
    responder: &mut dyn Adapter,
    run: &Run,
) -> Result<(End, End)> {
    let Run { psns: (own, other), mtu, chosen, timeout, seed } = *run;
    let additions = chosen.additions();
    let settings = Settings { rnr_retries: 7, timeout, ..PLAIN };
    let service = Service::ReliableConnected;
    let asking = End::new(requester, service, REGION, Rights::ALL)?;
    let answering = End::new(responder, service, REGION, Rights::ALL)?;
    let patient = |connection| Connection { mtu, retries: 7, ..connection };
    let to_responder = patient(connection(&settings, Rights::ALL, (responder, &answering), (own, other)));
    let to_requester = patient(connection(&settings, Rights::ALL, (requester, &asking), (other, own)));
    responder.connect(answering.pair, &to_requester)?;
    requester.connect(asking.pair, &to_responder)?;

    let places: Vec<u32> = MESSAGES
        .iter()
        .scan(64, |next, (_, length)| {
            let place = *next;
            *next = (place + length).next_multiple_of(64) + 64;
            Some(place)
        })
        .collect();
    let messages = || {
        places.iter().copied().zip(MESSAGES.iter().copied()).filter(move |(_, (kind, _))| chosen.has(*kind))
    };
    let mut sends = 0;
    for (id, (place, (kind, length))) in (1..).zip(messages()) {
        let seed = seed.wrapping_mul(31).wrapping_add(id);
        if kind == Kind::Read {
            responder.fill(&answering.region, place, length, seed)?;
        } else {
            requester.fill(&asking.region, place, length, seed)?;
        }
        if kind == Kind::Send {
            sends += 1;
            let taken =
                responder.receive(answering.pair, id, &[answering.entry(place, length, Key::Good)])?;
            ensure!(taken, "a receive was refused");
        }
    }
    for (id, (place, (kind, length))) in (1..).zip(messages()) {
        let remote = answering.remote(place, Key::Good);
        let operation = match kind {
            Kind::Send => Operation::Send,
            Kind::Write => Operation::Write(remote),
            Kind::Read => Operation::Read(remote),
        };
        let entries = [asking.entry(place, length, Key::Good)];
        let send = Send { id, operation, entries: &entries, to: None };
        ensure!(requester.send(asking.pair, &send)?, "send {id} was refused");
    }
    let counter: Remote = answering.remote(0, Key::Good);
    for id in 0..additions {
        let entries = [asking.entry(8, 8, Key::Good)];
        let operation = Operation::FetchAdd { remote: counter, add: 3 };
        let send = Send { id: 100 + id, operation, entries: &entries, to: None };
        ensure!(requester.send(asking.pair, &send)?, "an addition was refused");
    }
    let mut expected: Vec<u64> = (1..).zip(messages()).map(|(id, _)| id).collect();
    expected.extend((0..additions).map(|id| 100 + id));
    let mut done = Vec::new();
    while done.len() < expected.len() {
        let more = requester.poll(asking.pair, Side::Send, expected.len() - done.len(), PATIENCE)?;
        ensure!(!more.is_empty(), "{} of {} sends completed, and then none", done.len(), expected.len());
        done.extend(more);
    }
    for done in &done {
        ensure!(done.status.is_none(), "send {} ended with {:?}", done.id, done.status);
    }
    let ids: Vec<u64> = done.iter().map(|done| done.id).collect();
    ensure!(ids == expected, "sends completed in the order {ids:?}");
    let receives = responder.poll(answering.pair, Side::Receive, sends, PATIENCE)?;
    ensure!(receives.iter().all(|done| done.status.is_none()), "receives ended with {receives:?}");
    let lengths: Vec<u32> = receives.iter().map(|done| done.length).collect();
    let sends = messages().filter(|(_, (kind, _))| *kind == Kind::Send);
    let sent: Vec<u32> = sends.map(|(_, (_, length))| length).collect();
    ensure!(lengths == sent, "receives got {lengths:?} bytes, and {sent:?} were sent");
    for (place, (kind, length)) in messages() {
        let own = requester.hash(&asking.region, place, length)?;
        let other = responder.hash(&answering.region, place, length)?;
        ensure!(own == other, "a {kind:?} of {length} bytes arrived changed");
    }
    if additions == 0 {
        return Ok((asking, answering));
    }
    // The last addition found the sum of those before it.
    let mut sum = [0; 16];
    let (_, before) = sum.split_at_mut(8);
    before.copy_from_slice(&(3 * (additions - 1)).to_le_bytes());
    let found = requester.hash(&asking.region, 8, 8)?;
    ensure!(found == super::adapter::hash(before), "the additions were not done once each");
    ensure!(
        responder.hash(&answering.region, 0, 8)? == super::adapter::hash(&(3 * additions).to_le_bytes()),
        "the sum of the additions is wrong"
    );
    Ok((asking, answering))
}

/// What rxe counted during a run, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted(BTreeMap<String, u64>);

impl Counted {
    /// What came between two readings of the counters.
    #[must_use]
    pub(super) fn between(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Self {
        let difference = |(name, value): (&String, &u64)| {
            (name.clone(), value.wrapping_sub(before.get(name).copied().unwrap_or(0)))
        };
        Self(after.iter().map(difference).collect())
    }

    fn named(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Whether the counters fit what was done to the frames on their way to rxe and from it, how
    /// many NAKs of a gap arrived, and how many requests we sent again: on a busy machine an
    /// answer may be late without a fault.
    ///
    /// # Errors
    ///
    /// What does not fit.
    pub(super) fn fit(
        &self,
        to_rxe: &FaultCounts,
        from_rxe: &FaultCounts,
        naks: u64,
        sent_again: u64,
    ) -> Result<()> {
        // A copy of a damaged frame is damaged too; the plans have one fault each.
        let arrived = to_rxe.frames + to_rxe.duplicated - to_rxe.dropped - to_rxe.overrun - to_rxe.corrupted;
        let received = self.named("rcvd_pkts");
        ensure!(received == arrived, "rxe took {received} packets, and {arrived} came to it undamaged");
        let sent = self.named("sent_pkts");
        ensure!(sent == from_rxe.frames, "rxe sent {sent} packets, and {} came out of it", from_rxe.frames);
        let exceeded = self.named("retry_exceeded_err") + self.named("retry_rnr_exceeded_err");
        ensure!(exceeded == 0, "rxe gave up {exceeded} times");
        let lost = to_rxe.dropped + to_rxe.corrupted + to_rxe.reordered + to_rxe.overrun;
        // A duplicate behind its original leaves no gap, and a whole way leaves nothing.
        let gaps = self.named("out_of_seq_request");
        ensure!(gaps == 0 || lost > 0, "rxe saw {gaps} gaps, and the wire made none");
        let vanished = from_rxe.dropped + from_rxe.corrupted + from_rxe.overrun;
        ensure!(
            naks <= gaps + from_rxe.duplicated && gaps <= naks + vanished,
            "rxe saw {gaps} gaps, and {naks} of its NAKs arrived"
        );
        let again = self.named("duplicate_request");
        let causes = sent_again + to_rxe.duplicated + to_rxe.reordered;
        ensure!(
            again <= causes,
            "rxe was asked {again} times again; {sent_again} requests were sent again, the wire doubled \
             {} and let {} be overtaken",
            to_rxe.duplicated,
            to_rxe.reordered
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_miss_a_packet_do_not_fit() {
        let before = BTreeMap::from([("rcvd_pkts".to_owned(), 5), ("sent_pkts".to_owned(), 7)]);
        let after = BTreeMap::from([("rcvd_pkts".to_owned(), 14), ("sent_pkts".to_owned(), 10)]);
        let counted = Counted::between(&before, &after);
        let to_rxe = FaultCounts { frames: 10, dropped: 1, ..FaultCounts::default() };
        let from_rxe = FaultCounts { frames: 3, ..FaultCounts::default() };
        counted.fit(&to_rxe, &from_rxe, 0, 0).unwrap();
        let more = FaultCounts { frames: 11, ..to_rxe };
        assert!(
            counted.fit(&more, &from_rxe, 0, 0).unwrap_err().to_string().contains("9 packets, and 10 came")
        );
        assert!(counted.fit(&to_rxe, &more, 0, 0).is_err());
        assert!(counted.fit(&to_rxe, &from_rxe, 1, 0).unwrap_err().to_string().contains("0 gaps, and 1 of"));
    }

    #[test]
    fn each_request_that_came_again_has_a_cause() {
        let after = BTreeMap::from([("rcvd_pkts".to_owned(), 9), ("duplicate_request".to_owned(), 3)]);
        let counted = Counted::between(&BTreeMap::new(), &after);
        let (plain, none) = (FaultCounts { frames: 9, ..FaultCounts::default() }, FaultCounts::default());
        let doubled = FaultCounts { frames: 7, duplicated: 2, ..FaultCounts::default() };
        assert!(counted.fit(&plain, &none, 0, 3).is_ok() && counted.fit(&doubled, &none, 0, 1).is_ok());
        assert!(counted.fit(&plain, &none, 0, 2).unwrap_err().to_string().contains("3 times again"));
        assert!(counted.fit(&doubled, &none, 0, 0).is_err());
    }
}
