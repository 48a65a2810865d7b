//! The channel that moves the halves, and what is done when it fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use vdk_driver::descriptors::sg::{SgLimits, SgList, refine};
use vdk_driver::hal::event::DeviceEvents;
use vdk_driver::hal::function::PciNode;
use vdk_driver::hal::poll::{Clock, Deadline, SystemClock};
use vdk_driver::ioat::{
    Channel, ChannelOptions, Completion, CompletionMode, Ioat, OperationError, RejectReason, Statistics,
    StreamError, WaitError,
};
use vdk_driver::iommu::Domain;
use vdk_driver::kit::Session;
use vdk_firmware_stubs::StubNode;

use super::half::Half;
use crate::signal::StopRequest;

/// How the channel is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// How to wait.
    pub(super) mode: CompletionMode,
    /// How long the device may take for one half.
    pub(super) deadline: Duration,
    /// How many pieces a half has on each side.
    pub(super) segments: u32,
}

/// How often one half is tried.
const ATTEMPTS: u32 = 3;
/// How long a wait lasts before it looks whether the user wants to stop.
const SLICE: Duration = Duration::from_millis(100);

/// A running engine with one channel.
#[derive(Debug)]
pub(super) struct Engine {
    // In the order in which they are to be dropped: the channel first.
    channel: Channel<Half>,
    ioat: Ioat,
    settings: Settings,
    /// The lists of the copy that is being posted.
    source: SgList,
    destination: SgList,
    /// What has ended and was not asked for yet.
    ended: VecDeque<Completion<Half>>,
    /// The emulated device, if it is one, for what it has to say at the end.
    stub: Option<Arc<StubNode>>,
}

impl Engine {
    /// Opens the device, starts it and opens its first channel.
    pub(super) fn start(
        node: Arc<dyn PciNode>,
        stub: Option<Arc<StubNode>>,
        settings: Settings,
    ) -> Result<Self> {
        let session = Session::open(&node, "vdk copy")?;
        let ioat = Ioat::start(session)?;
        // Refined lists have at most one piece more than both sides together.
        let depth = settings.segments.saturating_mul(4).saturating_add(4).clamp(256, 65535);
        let channel = ioat.channel(0, ChannelOptions { depth, ..ChannelOptions::default() })?;
        let pieces = usize::try_from(settings.segments)?.saturating_add(1);
        Ok(Self {
            channel,
            ioat,
            settings,
            source: SgList::with_capacity(&SgLimits::NONE, pieces)?,
            destination: SgList::with_capacity(&SgLimits::NONE, pieces)?,
            ended: VecDeque::new(),
            stub,
        })
    }

    /// The address space of the device.
    pub(super) fn domain(&self) -> &Domain {
        self.ioat.domain()
    }

    /// What happens to the device beside its work.
    pub(super) fn device_events(&self) -> &DeviceEvents {
        self.ioat.device_events()
    }

    /// Hands a half to the device.
    pub(super) fn submit(&mut self, half: Half, stop: &StopRequest) -> Result<()> {
        let mut half = half;
        loop {
            stop.check(LEFT)?;
            half.describe(&mut self.source, &mut self.destination)?;
            let needed = refine(&self.source, &self.destination, self.ioat.facts().transfer_cap)?.count();
            let posted = if needed <= self.channel.capacity() {
                self.channel.copy_sg(&self.source, &self.destination, half)
            } else {
                let Self { channel, ended, settings, source, destination, .. } = self;
                match channel.copy_sg_streamed(
                    source,
                    destination,
                    half,
                    settings.mode,
                    settings.deadline,
                    |completion| ended.push_back(completion),
                ) {
                    Ok(cookie) => Ok(cookie),
                    Err(StreamError::Rejected(rejected)) => Err(rejected),
                    Err(error) => {
                        // The half is in the channel, which gives it back when it is reset.
                        log::warn!("the copy stopped in the middle: {error}");
                        return self.recover(stop);
                    }
                }
            };
            match posted {
                Ok(_) => {
                    if let Err(error) = self.channel.commit() {
                        log::warn!("the doorbell failed: {error}");
                        return self.recover(stop);
                    }
                    return Ok(());
                }
                Err(rejected) => {
                    half = rejected.owner;
                    match rejected.reason {
                        RejectReason::Full { .. } => self.make_progress(stop)?,
                        RejectReason::Channel(error) => {
                            log::warn!("{error}");
                            self.recover(stop)?;
                        }
                        reason => return Err(reason.into()),
                    }
                }
            }
        }
    }

    /// Waits for the oldest half, and repeats a copy that failed.
    pub(super) fn complete(&mut self, stop: &StopRequest) -> Result<Half> {
        loop {
            stop.check(LEFT)?;
            if let Some(completion) = self.ended.pop_front() {
                if completion.result.is_ok() {
                    return Ok(completion.owner);
                }
                self.ended.push_front(completion);
                self.repeat_failed(stop)?;
                continue;
            }
            self.make_progress(stop)?;
        }
    }

    /// Waits until something has ended, or the channel was recovered.
    fn make_progress(&mut self, stop: &StopRequest) -> Result<()> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, self.settings.deadline);
        loop {
            stop.check(LEFT)?;
            let slice = SLICE.min(deadline.remaining(&clock));
            let waited = self.channel.wait(self.settings.mode, slice);
            let Self { channel, ended, .. } = self;
            let polled = channel.poll(usize::MAX, |completion| ended.push_back(completion));
            match (waited, polled) {
                (_, Ok(count)) if count > 0 => return Ok(()),
                // News that ends nothing gives a device no more time than no news.
                (Ok(()) | Err(WaitError::TimedOut(_)), Ok(_)) if !deadline.is_over(&clock) => {}
                (Ok(()) | Err(WaitError::TimedOut(_)), Ok(_)) => {
                    log::warn!("the device completed nothing within {:?}", self.settings.deadline);
                    return self.recover(stop);
                }
                (Err(error), _) => {
                    log::warn!("{error}");
                    return self.recover(stop);
                }
                (_, Err(error)) => {
                    log::warn!("{error}");
                    return self.recover(stop);
                }
            }
            clock.sleep(Duration::ZERO);
        }
    }

    /// Resets the channel. What was outstanding ends, and what failed is repeated.
    fn recover(&mut self, stop: &StopRequest) -> Result<()> {
        let Self { channel, ended, .. } = self;
        let recovery = channel.recover(|completion| ended.push_back(completion));
        if let Err(error) = recovery {
            return Err(anyhow!(error).context("the device cannot be brought back, so the copy was given up"));
        }
        self.repeat_failed(stop)
    }

    /// Posts again what failed, in its order. What was completed stays in front.
    fn repeat_failed(&mut self, stop: &StopRequest) -> Result<()> {
        let mut failed = Vec::new();
        while let Some(position) = self.ended.iter().position(|completion| completion.result.is_err()) {
            failed.extend(self.ended.remove(position));
        }
        for completion in failed {
            let mut half = completion.owner;
            let Err(error) = completion.result else { continue };
            if matches!(error, OperationError::Gone) {
                return Err(anyhow!(error)).context("the copy was given up");
            }
            half.failures += 1;
            if half.failures >= ATTEMPTS {
                return Err(anyhow!(error))
                    .context(format!("the device failed {ATTEMPTS} times on the same bytes"));
            }
            log::warn!("repeating {} bytes after: {error}", half.length());
            self.submit(half, stop)?;
        }
        Ok(())
    }

    /// Stops the device and tells what it did.
    pub(super) fn stop(self) -> Result<Statistics> {
        let Self { channel, ioat, ended, stub, .. } = self;
        let statistics = channel.statistics();
        if let Some(stub) = stub {
            log::debug!("device: {:?}", stub.statistics());
            for fault in stub.iommu().faults() {
                log::warn!("the IOMMU refused: {fault}");
            }
        }
        let rest = channel.close()?;
        drop((rest, ended));
        ioat.stop()?;
        Ok(statistics)
    }
}

/// What an interruption leaves.
pub(super) const LEFT: &str = "the device was stopped and the copy was given up";
