//! What the cases have in hand: a controller, a queue pair and memory.

use core::time::Duration;
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use vdk_descriptors::sg::SgEntry;
use vdk_driver::kit::Session;
use vdk_driver::nvme::{
    CommandError, Completion, CompletionMode, Controller, ControllerOptions, Namespace, QueueOptions,
    QueuePair, WaitError,
};
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, DmaRegion};

use crate::guest::Guest;

/// How long anything may take in a guest without hardware virtualisation.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A limit that a case chose, or instead of the usual one a limit for a busy machine.
fn patient(limit: Duration, usual: Duration) -> Duration {
    if limit == usual { LONG } else { limit }
}

pub(super) fn start(guest: &Guest, options: ControllerOptions) -> Result<Controller> {
    let admin_limit = patient(options.admin_limit, ControllerOptions::default().admin_limit);
    let options = ControllerOptions { admin_limit, ..options };
    Ok(Controller::start(Session::open(&guest.node()?, "vdk-guest")?, options)?)
}

/// A controller with one queue pair, and memory of which parts are lent to commands.
pub(super) struct Bed {
    // In the order in which they are to be dropped: the queue first.
    pub(super) pair: QueuePair<u64>,
    pub(super) region: DmaRegion<Bidirectional>,
    pub(super) namespace: Namespace,
    pub(super) controller: Controller,
    pub(super) mode: CompletionMode,
}

impl Bed {
    pub(super) fn new(guest: &Guest, memory: usize) -> Result<Self> {
        Self::with(guest, memory, ControllerOptions::default(), QueueOptions::default())
    }

    pub(super) fn with(
        guest: &Guest,
        memory: usize,
        controller: ControllerOptions,
        queue: QueueOptions,
    ) -> Result<Self> {
        let controller = start(guest, controller)?;
        let time_limit = patient(queue.time_limit, QueueOptions::default().time_limit);
        let pair = controller.queue_pair(QueueOptions { time_limit, ..queue })?;
        let memory = SharedMemory::allocate(ByteLength::from_usize(memory), Pages::Base)?;
        let region = controller.domain().map(memory)?;
        let first = *controller.namespaces()?.first().context("no namespace is active")?;
        let namespace = controller.namespace(first)?;
        Ok(Self { pair, region, namespace, controller, mode: CompletionMode::Adaptive })
    }

    pub(super) fn block(&self) -> usize {
        // CAST: at most 64 KiB.
        1 << self.namespace.block_exponent()
    }

    /// A part of the memory.
    pub(super) fn entry(&self, offset: usize, length: usize) -> Result<SgEntry> {
        let part = self.region.segment(offset, length)?;
        Ok(SgEntry { iova: part.iova, length: part.length })
    }

    pub(super) fn write(&mut self, lba: u64, memory: &[SgEntry]) -> Result<()> {
        self.pair.write(&self.namespace, lba, memory, 0)?;
        self.finish()
    }

    pub(super) fn read(&mut self, lba: u64, memory: &[SgEntry]) -> Result<()> {
        self.pair.read(&self.namespace, lba, memory, 0)?;
        self.finish()
    }

    /// Waits for everything outstanding, which must succeed.
    pub(super) fn finish(&mut self) -> Result<()> {
        for (owner, result) in self.finish_all()? {
            result.with_context(|| format!("command {owner}"))?;
        }
        Ok(())
    }

    /// Waits for everything outstanding, and returns how each ended.
    pub(super) fn finish_all(&mut self) -> Result<BTreeMap<u64, Result<u32, CommandError>>> {
        let mut ended = BTreeMap::new();
        self.pair.commit()?;
        while self.pair.outstanding() > 0 {
            self.pair.wait(self.mode, LONG)?;
            let mut twice = None;
            self.pair.poll(u32::MAX, |completion| note(&mut ended, &mut twice, completion))?;
            if let Some(owner) = twice {
                bail!("command {owner} ended twice");
            }
        }
        Ok(ended)
    }

    /// Bytes that no other place and round has, in a part of the memory.
    pub(super) fn fill(&self, offset: usize, length: usize, seed: u64) -> Result<()> {
        Ok(self.region.write(offset, &pattern(length, seed))?)
    }

    /// Checks that a part of the memory has the bytes of [`fill`](Self::fill).
    pub(super) fn check(&self, offset: usize, length: usize, seed: u64) -> Result<()> {
        let mut found = vec![0; length];
        self.region.read(offset, &mut found)?;
        same(&found, &pattern(length, seed))
    }

    pub(super) fn clear(&self) -> Result<()> {
        let zeros = vec![0; usize::try_from(self.region.length().as_u64())?];
        Ok(self.region.write(0, &zeros)?)
    }
}

/// Notes the end of a command; an owner that came before is told.
pub(super) fn note(
    ended: &mut BTreeMap<u64, Result<u32, CommandError>>,
    twice: &mut Option<u64>,
    completion: Completion<u64>,
) {
    if ended.insert(completion.owner, completion.result).is_some() {
        *twice = Some(completion.owner);
    }
}

/// Whether a wait ended for a reason that a failed controller explains.
pub(super) fn is_failure(error: &WaitError) -> bool {
    matches!(error, WaitError::Queue(_))
}

pub(super) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(super) fn same(found: &[u8], wanted: &[u8]) -> Result<()> {
    let different = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    if let Some(place) = different {
        bail!("byte {place:#x} of {:#x} is {:#04x}, not {:#04x}", wanted.len(), found[place], wanted[place]);
    }
    ensure!(found.len() == wanted.len(), "{} bytes, not {}", found.len(), wanted.len());
    Ok(())
}
