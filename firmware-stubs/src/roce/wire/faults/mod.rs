//! Faults on purpose: frames lost, doubled, overtaken, late, damaged, slowed down.
//!
//! Only RoCE frames are touched, so that what is measured is the transport and not ARP. What
//! was done is in a [`FaultLog`], to be compared with the counters of the other end. The same
//! seed and the same frames give the same faults.

mod held;
mod log;
mod plan;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vdk_descriptors::roce::{Frame, Unverified, icrc};

use super::super::time::Time;
use super::{MAX_FRAME, Wire, WireError};
use crate::fault::Probability;
use crate::random::SplitMix64;

use held::Held;
pub use log::{FaultCounts, FaultEntry, FaultLog, WireFault};
pub use plan::{ParseWireFaultsError, WireFaults};

/// A wire with faults, each way its own.
#[derive(Debug)]
pub struct FaultyWire<W> {
    wire: W,
    sending: Injector,
    receiving: Injector,
}

impl<W: Wire> FaultyWire<W> {
    /// Lets `wire` go wrong as the two plans say.
    #[must_use]
    pub fn new(wire: W, sending: WireFaults, receiving: WireFaults, seed: u64) -> Self {
        Self {
            wire,
            sending: Injector::new(sending, seed),
            receiving: Injector::new(receiving, seed ^ 0x5555_5555_5555_5555),
        }
    }

    /// What was done to the frames that were sent. It lives on when the wire is gone.
    #[must_use]
    pub fn sent(&self) -> Arc<Mutex<FaultLog>> {
        Arc::clone(&self.sending.log)
    }

    /// What was done to the frames that came in.
    #[must_use]
    pub fn received(&self) -> Arc<Mutex<FaultLog>> {
        Arc::clone(&self.receiving.log)
    }

    /// The wire underneath.
    pub const fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Takes the faults away from the wire again. What was held back is lost.
    #[must_use]
    pub fn into_wire(self) -> W {
        self.wire
    }

    /// Sends what was held back until now.
    fn release(&mut self, now: Time) -> Result<(), WireError> {
        while let Some(index) = self.sending.held.due(now) {
            let frame = self.sending.held.frame(index);
            let result = self.wire.send(now, frame);
            self.sending.held.free(index);
            result?;
        }
        Ok(())
    }
}

impl<W: Wire> Wire for FaultyWire<W> {
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError> {
        self.release(now)?;
        let wire = &mut self.wire;
        let mut result = Ok(());
        self.sending.take(now, frame, |frame| {
            let sent = wire.send(now, frame);
            if result.is_ok() {
                result = sent;
            }
        });
        result
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        self.release(now)?;
        // Whoever calls has timers to look at, however many frames are lost.
        for _ in 0..MOST_LOST {
            if let Some(index) = self.receiving.held.due(now) {
                let frame = self.receiving.held.frame(index);
                let length = frame.len();
                let place = buffer.get_mut(..length).map(|place| place.copy_from_slice(frame));
                self.receiving.held.free(index);
                if place.is_some() {
                    return Ok(Some(length));
                }
            }
            let Some(length) = self.wire.receive(now, buffer)? else { return Ok(None) };
            let frame = buffer.get(..length).unwrap_or_default();
            if !self.receiving.judge(now, frame) {
                return Ok(Some(length));
            }
        }
        Ok(None)
    }

    fn is_ready(&self) -> bool {
        self.wire.is_ready()
    }

    fn deadline(&self) -> Option<Time> {
        let own = [self.sending.held.deadline(), self.receiving.held.deadline()];
        own.into_iter().chain([self.wire.deadline()]).flatten().min()
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        self.wire.wait(wake, timeout)
    }

    fn lost(&self) -> u64 {
        self.wire.lost()
    }
}

/// How many frames a call takes at most and gives none of.
const MOST_LOST: u32 = 64;

/// What happens one way.
#[derive(Debug)]
struct Injector {
    plan: WireFaults,
    random: SplitMix64,
    seen: u64,
    held: Held,
    /// When the line is free again, with a rate.
    free_at: Time,
    scratch: Box<[u8]>,
    log: Arc<Mutex<FaultLog>>,
}

/// What becomes of one frame.
#[derive(Debug, Default)]
struct Fate {
    drop: bool,
    corrupt: Option<usize>,
    duplicate: bool,
    reorder: bool,
    delay: bool,
}

impl Injector {
    fn new(plan: WireFaults, seed: u64) -> Self {
        Self {
            plan,
            random: SplitMix64::new(seed),
            seen: 0,
            held: Held::new(),
            free_at: Time::ZERO,
            scratch: vec![0; MAX_FRAME].into_boxed_slice(),
            log: Arc::new(Mutex::new(FaultLog::new())),
        }
    }

    /// Gives a frame to `forward`: now, twice, or not at all; or keeps it for later.
    fn take(&mut self, now: Time, frame: &[u8], mut forward: impl FnMut(&[u8])) {
        if !self.judge(now, frame) {
            forward(frame);
            return;
        }
        while let Some(index) = self.held.due(now) {
            forward(self.held.frame(index));
            self.held.free(index);
        }
    }

    /// Decides about a frame. Returns whether it, or what became of it, is among those that are
    /// held, if it is anywhere; else it passes as it is.
    fn judge(&mut self, now: Time, bytes: &[u8]) -> bool {
        // Without faults nothing is read or copied.
        if self.plan.is_none() {
            return false;
        }
        let Ok(unverified) = Unverified::parse(bytes) else { return false };
        let frame = unverified.frame();
        self.seen += 1;
        let fate = self.draw(frame);
        // A frame that waits to be overtaken is free once another one came.
        let overtaken = self.held.overtake();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.counts.frames += 1;
        if fate.drop {
            log.add(self.seen, WireFault::Drop, frame);
            drop(log);
            self.held.let_go(overtaken, now);
            return true;
        }
        let mut due = now;
        if let Some(rate) = self.plan.rate {
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let time = length.saturating_mul(1_000_000_000) / rate.get();
            due = self.free_at.max(now);
            if due.since(now) > self.plan.backlog {
                log.add(self.seen, WireFault::Overrun, frame);
                drop(log);
                self.held.let_go(overtaken, now);
                return true;
            }
            self.free_at = due.after(Duration::from_nanos(time));
        }
        let Some(copy) = self.scratch.get_mut(..bytes.len()) else { return false };
        copy.copy_from_slice(bytes);
        if let Some(bit) = fate.corrupt
            && let Some(byte) = copy.get_mut(bit / 8)
        {
            *byte ^= 1 << (bit % 8);
            log.add(self.seen, WireFault::Corrupt, frame);
        }
        if fate.delay {
            due = due.after(self.plan.delay_by);
            log.add(self.seen, WireFault::Delay, frame);
        }
        let wait = if fate.reorder {
            log.add(self.seen, WireFault::Reorder, frame);
            Some(now.after(REORDER_LIMIT))
        } else {
            None
        };
        if fate.duplicate {
            log.add(self.seen, WireFault::Duplicate, frame);
        }
        for _ in 0..=usize::from(fate.duplicate) {
            if !self.held.keep(copy, due, wait) {
                log.add(self.seen, WireFault::Overrun, frame);
            } else if fate.corrupt.is_some() {
                log.counts.damaged += 1;
            }
        }
        drop(log);
        self.held.let_go(overtaken, now);
        true
    }

    /// Every number is drawn for every frame, so that one fault does not shift another.
    fn draw(&mut self, frame: &Frame<'_>) -> Fate {
        let plan = self.plan;
        let mut chance = |probability: Probability| {
            self.random.next() % 1_000_000 < u64::from(probability.parts_per_million())
        };
        let (drop, duplicate, reorder) = (chance(plan.drop), chance(plan.duplicate), chance(plan.reorder));
        let (delay, corrupt) = (chance(plan.delay), chance(plan.corrupt));
        // Behind the base transport header, where no bit is left out of the invariant CRC.
        let headers = frame.headers.length();
        let first = headers - frame.headers.extension.kind().length();
        let end = first.max(headers + frame.payload.len().next_multiple_of(4) + icrc::LENGTH);
        let bits = u64::try_from((end - first) * 8).unwrap_or(1).max(1);
        let bit = first * 8 + usize::try_from(self.random.next() % bits).unwrap_or(0);
        Fate { drop, corrupt: corrupt.then_some(bit), duplicate, reorder, delay }
    }
}

/// How long a frame waits to be overtaken before it goes anyway.
const REORDER_LIMIT: Duration = Duration::from_millis(2);
