//! A port: an endpoint on a wire, with a clock and the addresses of its neighbours.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;
use vdk_driver::descriptors::roce::{Gid, Qpn};
use vdk_firmware_stubs::roce::time::Time;
use vdk_firmware_stubs::roce::wire::{self, GidTable, MAX_FRAME, Wire, WireAddress, WireError};
use vdk_firmware_stubs::roce::{Endpoint, Station};

use super::arguments::LinkArguments;
use super::layers::{FaultReport, Layers};
use super::patience::{Patience, Watch};
use crate::output;
use crate::signal::{Interrupted, StopRequest};

/// An endpoint on a wire.
pub(super) struct Port {
    pub(super) endpoint: Endpoint,
    wire: wire::Port<Box<dyn Wire>>,
    name: WireAddress,
    own: Station,
    start: Instant,
    buffer: Vec<u8>,
    stop: StopRequest,
    layers: Layers,
    /// Whose packets show that the other end is at work.
    watch: Option<Watch>,
    /// Whether the user was told what was done to the wire on purpose.
    told: bool,
}

/// What a test came to, and what was done to the wire on purpose.
#[derive(Debug, Serialize)]
struct Outcome<'a, R> {
    #[serde(flatten)]
    report: Option<&'a R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<FaultReport>,
}

/// How long the queue pair must be quiet before this end no longer answers the other after its own
/// last message, and with faults on purpose.
const QUIET: Duration = Duration::from_millis(300);
const QUIET_WITH_FAULTS: Duration = Duration::from_secs(1);
/// How many frames go each way before the other things have their turn.
const BURST: usize = 64;
/// How long the wire may sleep before something else is looked at.
const NAP: Duration = Duration::from_millis(10);
/// How many queue pairs there may be.
const QUEUE_PAIRS: usize = 16;

impl Port {
    /// Opens the wire.
    pub(super) fn open(link: &LinkArguments, stop: StopRequest) -> Result<Self> {
        let ethernet = link.ethernet();
        let open = link.wire.open().map_err(|error| match &error {
            WireError::System { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                anyhow!(error).context("the own end of the wire is taken by another program")
            }
            _ => anyhow!(error),
        })?;
        let gids = GidTable::new(ethernet, &[link.address]);
        let gid = gids.gid(link.gid_index).with_context(|| {
            let all = gids.all().iter().enumerate().map(|(index, gid)| format!("{index} is {gid}"));
            format!("choose another --gid-index: {}", all.collect::<Vec<_>>().join(", "))
        })?;
        // A file of the capture is written over, so that comes when nothing is wrong any more.
        let (open, layers) = Layers::put_on(open, &link.layers)?;
        let wire = wire::Port::new(open, ethernet, &[link.address]);
        let stations = gids.all().iter().map(|gid| Station { ethernet, address: gid.address() }).collect();
        Ok(Self {
            endpoint: Endpoint::new(stations, QUEUE_PAIRS),
            wire,
            name: link.wire.clone(),
            own: Station { ethernet, address: gid.address() },
            start: Instant::now(),
            buffer: vec![0; MAX_FRAME],
            stop,
            layers,
            watch: None,
            told: false,
        })
    }

    /// Lets the packets of a queue pair renew the patience of every wait from now on: as many as
    /// its test has, `steps`, and no more.
    pub(super) const fn watch(&mut self, number: Qpn, steps: u64) {
        self.watch = Some(Watch::new(number, steps));
    }

    /// Answers the other end until its queue pair is quiet, or has asked for `patience` what was
    /// answered before, or it left.
    pub(super) fn linger(&mut self, patience: Duration) -> Result<()> {
        match self.answer(patience) {
            // The test is over at both ends, and the other one was the first to leave.
            Err(error) if matches!(error.downcast_ref(), Some(WireError::Closed { .. })) => Ok(()),
            result => result,
        }
    }

    fn answer(&mut self, patience: Duration) -> Result<()> {
        let enough = if self.layers.report().is_some() { QUIET_WITH_FAULTS } else { QUIET };
        let begun = Instant::now();
        let mut quiet = Patience::new(enough, begun);
        let mut taken = self.taken();
        while !quiet.is_over(Instant::now()) && begun.elapsed() < patience {
            if !self.poll()? {
                self.wait(NAP)?;
            }
            let now_taken = self.taken();
            if now_taken != taken {
                taken = now_taken;
                quiet.renew(Instant::now());
            }
        }
        Ok(())
    }

    /// How many packets the queue pair took that belong to its connection.
    fn taken(&self) -> u64 {
        let counters = self.watch.and_then(|watch| self.endpoint.counters(watch.number));
        counters.map_or(0, |counters| counters.frames_received.saturating_sub(counters.dropped))
    }

    /// Prints what a test came to, as an object or as `text`, and what was done to the wire
    /// on purpose. The test has no report of its own where the other end measures.
    pub(super) fn print<R: Serialize>(&mut self, report: Option<&R>, text: &str, json: bool) -> Result<()> {
        self.layers.flush()?;
        let faults = self.layers.report();
        self.told = true;
        if report.is_none() && faults.is_none() {
            return Ok(());
        }
        if json {
            return output::print_json(&Outcome { report, faults });
        }
        output::print(&format!("{text}{}", faults.map_or_else(String::new, |faults| faults.to_string())))
    }

    /// The address of this end.
    pub(super) fn own(&self) -> Station {
        self.own
    }

    fn now(&self) -> Time {
        Time::ZERO.after(self.start.elapsed())
    }

    /// Moves frames both ways and lets timers expire. Tells whether anything moved.
    pub(super) fn poll(&mut self) -> Result<bool> {
        if self.stop.is_set() {
            return Err(Interrupted("the queue pair was closed").into());
        }
        let start = self.start;
        let now = || Time::ZERO.after(start.elapsed());
        let moved = self.wire.carry(&mut self.endpoint, now, &mut self.buffer, BURST, |_, _| ())?;
        Ok(moved > 0)
    }

    /// Sleeps until a frame may have come, a timer expires, or `most` is over.
    pub(super) fn wait(&mut self, most: Duration) -> Result<()> {
        let now = self.now();
        let next = [self.endpoint.deadline(), self.wire.deadline()].into_iter().flatten().min();
        let until = next.map_or(most, |deadline| deadline.since(now).min(most));
        if !until.is_zero() {
            self.wire.wait(None, Some(until))?;
        }
        Ok(())
    }

    /// Whoever has `gid`.
    pub(super) fn peer(&mut self, gid: Gid, patience: Duration) -> Result<Station> {
        let address = gid.address();
        ensure!(
            gid != Gid::default(),
            "the peer has no GID: start it with one, such as that of index 1: -g 1 for ibv_rc_pingpong, \
             -x 1 for perftest"
        );
        ensure!(
            !self.wire.gids().all().contains(&gid),
            "the peer says that it is at {address}, which is this end: give each end an --address of its own"
        );
        let begun = Instant::now();
        while begun.elapsed() < patience {
            let now = self.now();
            if let Some(ethernet) = self.wire.resolve(now, address)? {
                return Ok(Station { ethernet, address });
            }
            if !self.poll()? {
                self.wait(NAP)?;
            }
        }
        bail!(
            "waited {} s, and nobody at {} said to have {address}: is the other end of the wire up, and is \
             that the address of its RoCE port? --patience makes the wait longer",
            begun.elapsed().as_secs(),
            self.name
        )
    }

    /// Moves what there is to move, or sleeps for `most`. A step of the watched queue pair renews
    /// the patience of whoever waits.
    pub(super) fn rest(&mut self, patience: &mut Patience, most: Duration) -> Result<()> {
        if !self.poll()? {
            self.wait(most)?;
        }
        if let Some(watch) = &mut self.watch {
            let endpoint = &self.endpoint;
            let reached = endpoint.expected_psn(watch.number).zip(endpoint.unacknowledged_psn(watch.number));
            if watch.has_stepped(reached) {
                patience.renew(Instant::now());
            }
        }
        Ok(())
    }

    /// Polls until `done` gives something, for `patience` after the last step of the queue pair.
    pub(super) fn until<T>(
        &mut self,
        patience: Duration,
        what: &str,
        mut done: impl FnMut(&mut Endpoint) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut patience = Patience::new(patience, Instant::now());
        loop {
            if let Some(value) = done(&mut self.endpoint)? {
                return Ok(value);
            }
            let now = Instant::now();
            if patience.is_over(now) {
                bail!(
                    "{} for {what}: does the other end still run, and do its frames come through? \
                     --patience makes the wait longer",
                    patience.waited(now)
                );
            }
            self.rest(&mut patience, NAP)?;
        }
    }
}

impl Drop for Port {
    /// Says of a test that failed what was done to its wire on purpose.
    fn drop(&mut self) {
        if let Some(faults) = self.layers.report().filter(|_| !self.told) {
            let _ = write!(std::io::stderr(), "{faults}");
        }
        if let Err(error) = self.layers.flush() {
            log::warn!("{error:#}");
        }
    }
}
