//! Messages between our endpoint and rxe, both ways, over a wire that goes wrong; and whether
//! what rxe counted fits what was done to the frames.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vdk_descriptors::roce::{PathMtu, Psn};
use vdk_firmware_stubs::roce::Station;
use vdk_firmware_stubs::roce::wire::faults::{FaultEntry, FaultLog, WireFault};
use vdk_firmware_stubs::roce::wire::{FaultyWire, Wire, WireFaults};

use super::ours::{Ours, Struck};
use super::rxe::Rxe;
use super::traffic::{Chosen, Counted, Run, carry_messages};
use super::trial::{End, PSNS};
use super::unreliable::{self, Flow, Tally};

/// What goes wrong on the way to rxe, and on the way back. With no plan at all frames are not
/// counted; the rate of the first one holds nothing back.
pub(super) const FAULTS: &[&str] = &[
    "rate=1000000000",
    "drop=1%",
    "drop=10%",
    "duplicate=1%",
    "duplicate=10%",
    "reorder=1%",
    "reorder=10%",
    "corrupt=1%",
    "corrupt=10%",
];

/// First PSNs whose messages pass 2^24 and 2^23.
const WRAPS: [(u32, u32); 2] = [(0xff_fff0, 0x7f_fff0), (0x7f_fff8, 0xff_ffff)];

/// The code of the time for an answer: 0.27 s, since a guest may be slow.
const TIMEOUT: u8 = 16;

/// How long frames may be under way when all messages have arrived.
const LAST_FRAMES: Duration = Duration::from_secs(3);

/// How long a message may be under way when all frames have arrived.
const LAST_MESSAGES: Duration = Duration::from_millis(80);

/// Our endpoint and rxe, with a wire between them that goes wrong.
pub(super) struct Faulty<'a> {
    ours: Ours,
    rxe: &'a mut Rxe,
    faults: WireFaults,
    seed: u64,
    /// What rxe had counted before.
    before: BTreeMap<String, u64>,
    to_rxe: Arc<Mutex<FaultLog>>,
    from_rxe: Arc<Mutex<FaultLog>>,
}

impl<'a> Faulty<'a> {
    /// Starts our endpoint at `station`, with faults on its wire.
    ///
    /// # Errors
    ///
    /// The guest does not answer, or the system has no threads left.
    pub(super) fn start(
        wire: Box<dyn Wire>,
        station: Station,
        faults: WireFaults,
        seed: u64,
        rxe: &'a mut Rxe,
    ) -> Result<Self> {
        let before = rxe.counters()?;
        let wire = FaultyWire::new(wire, faults, faults, seed);
        let (to_rxe, from_rxe) = (wire.sent(), wire.received());
        let ours = Ours::start(wire, station)?;
        Ok(Self { ours, rxe, faults, seed, before, to_rxe, from_rxe })
    }

    /// Ends our endpoint and gives the wire back, and which frames were damaged on it on the way
    /// to rxe.
    ///
    /// # Errors
    ///
    /// Why the wire broke.
    pub(super) fn stop(self) -> Result<(Box<dyn Wire>, Vec<Struck>)> {
        let wire = self.ours.stop()?.into_wire();
        let faults = entries(&self.to_rxe);
        let damaged = faults.iter().filter(|entry| entry.fault == WireFault::Corrupt);
        Ok((wire, damaged.map(Struck::from).collect()))
    }

    /// Messages on reliable connections: all of them arrive.
    ///
    /// # Errors
    ///
    /// What did not, or what rxe counted otherwise.
    pub(super) fn reliable(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        let carried: Result<()> = WRAPS.into_iter().try_for_each(|psns| {
            for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
                self.carry(psns, mtu, &mut ended)
                    .with_context(|| format!("first PSNs {psns:#x?}, {mtu:?}"))?;
            }
            Ok(())
        });
        let again = ended.iter().try_fold(0, |again, (here, _): &(End, End)| {
            Ok::<u64, anyhow::Error>(again + self.ours.counters(here.pair)?.sent_again)
        })?;
        let answer = carried.and_then(|()| self.counted(again));
        for (here, there) in ended {
            here.end(&mut self.ours)?;
            there.end(self.rxe)?;
        }
        answer
    }

    fn carry(&mut self, psns: (u32, u32), mtu: PathMtu, ended: &mut Vec<(End, End)>) -> Result<()> {
        let psns = (Psn::new(psns.0), Psn::new(psns.1));
        let ask = Run { psns, mtu, chosen: Chosen::All, timeout: TIMEOUT, seed: self.seed };
        let (here, there) = carry_messages(&mut self.ours, self.rxe, &ask).context("ours to rxe")?;
        ended.push((here, there));
        // An acknowledgement that comes late, between two responses of a READ, makes rxe 6.12
        // complete the READ at once, with a warning of the kernel. So none is near a READ where
        // frames overtake each other.
        let in_order = self.faults.reorder == WireFaults::NONE.reorder;
        let answers: &[Chosen] =
            if in_order { &[Chosen::All] } else { &[Chosen::WithoutReads, Chosen::ReadsAlone] };
        for chosen in answers {
            let run = Run { chosen: *chosen, ..ask };
            let carried = carry_messages(self.rxe, &mut self.ours, &run);
            let (there, here) = carried.with_context(|| format!("rxe to ours, {chosen:?}"))?;
            ended.push((here, there));
        }
        Ok(())
    }

    /// Messages on services that promise nothing: what arrives is right.
    ///
    /// # Errors
    ///
    /// What is not, or what rxe counted otherwise.
    pub(super) fn unreliable(&mut self) -> Result<Tally> {
        let (own, other) = PSNS;
        let asked = unreliable::begin(&mut self.ours, self.rxe, (own, other), self.seed)?;
        let answered = unreliable::begin(self.rxe, &mut self.ours, (other, own), self.seed + 1)?;
        let answer = self.arrived(&asked, &answered);
        for flow in asked {
            flow.end(&mut self.ours, self.rxe)?;
        }
        for flow in answered {
            flow.end(self.rxe, &mut self.ours)?;
        }
        answer
    }

    fn arrived(&mut self, asked: &[Flow], answered: &[Flow]) -> Result<Tally> {
        asked.iter().try_for_each(|flow| flow.sent(&mut self.ours)).context("ours to rxe")?;
        answered.iter().try_for_each(|flow| flow.sent(self.rxe)).context("rxe to ours")?;
        self.counted(0)?;
        let mut tally = Tally::default();
        let faults = entries(&self.to_rxe);
        for flow in asked {
            tally.add(flow.arrived(self.rxe, true, &faults, LAST_MESSAGES).context("ours to rxe")?);
        }
        let faults = entries(&self.from_rxe);
        for flow in answered {
            tally.add(flow.arrived(&mut self.ours, false, &faults, LAST_MESSAGES).context("rxe to ours")?);
        }
        ensure!(tally.arrived > 0, "nothing arrived at all");
        Ok(tally)
    }

    /// Waits until rxe has counted every frame, of which so many were requests sent again.
    fn counted(&mut self, again: u64) -> Result<()> {
        let end = Instant::now() + LAST_FRAMES;
        loop {
            let counted = Counted::between(&self.before, &self.rxe.counters()?);
            let counts = |log: &Mutex<FaultLog>| log.lock().unwrap_or_else(PoisonError::into_inner).counts;
            let (to_rxe, from_rxe) = (counts(&self.to_rxe), counts(&self.from_rxe));
            match counted.fit(&to_rxe, &from_rxe, self.ours.sequence_naks(), again) {
                Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(50)),
                other => {
                    return other
                        .with_context(|| format!("{counted:?}, to rxe {to_rxe:?}, from rxe {from_rxe:?}"));
                }
            }
        }
    }
}

fn entries(log: &Mutex<FaultLog>) -> Vec<FaultEntry> {
    log.lock().unwrap_or_else(PoisonError::into_inner).entries().to_vec()
}
