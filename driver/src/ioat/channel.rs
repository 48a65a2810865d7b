//! One channel of the engine.

use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use vdk_descriptors::ioat::{
    ChannelControl, ChannelState, ChannelStatus, IoatChannelRegisters, IoatDescriptor, IoatRegisters,
    MAX_OUTSTANDING,
};
use vdk_descriptors::sg::{CopySegment, SgEntry, SgList, refine};
use vdk_hal::address::ByteLength;
use vdk_hal::bar::BarError;
use vdk_hal::barrier;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::memory::{Pages, SharedMemory, Slots};
use vdk_hal::mmio::{Doorbell, RegisterBlock};
use vdk_hal::poll::SystemClock;
use vdk_iommu::{Bidirectional, DmaRegion};

use super::device::{self, Device};
use super::error::{ChannelError, OpenChannelError, RejectReason, Rejected};
use super::ring::{Progress, Ring, RingOptions, SLOT_BYTES, Transfer};
use super::{Completion, Cookie, Statistics};

/// How a channel is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    /// How many descriptors can be in flight, 1 to 65536. 65536 gives 65535: DMACOUNT has
    /// 16 bits.
    pub depth: u32,
    /// How many descriptors the table holds at least, up to 65536; it is the next power of
    /// two above `depth` if that is more. `None`: what `depth` needs, and when the engine is
    /// software of this process 64 (4 KiB) up to a depth of 16 and 16384 (1 MiB) above. Many
    /// are faster when the processor of the engine no longer holds a slot by the time that
    /// the slot is used again; few are when both processors hold all of them.
    pub slots: Option<u32>,
    /// After how many descriptors, counted in whole operations, the engine writes a
    /// completion word; it also does at the end of each batch. Smaller reports progress
    /// sooner, larger costs the engine less.
    pub completion_interval: u32,
    /// Whether a completion word may come with an interrupt. Without it only
    /// [`CompletionMode::Poll`](super::CompletionMode::Poll) can wait.
    pub interrupt: bool,
    /// How many looks an adaptive wait takes before it sleeps.
    pub spins: u32,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self { depth: 1023, slots: None, completion_interval: 16, interrupt: true, spins: 2000 }
    }
}

/// The memory in front of the table, for the completion words.
const CELLS_BYTES: usize = 4096;
/// One completion word on a pair of cache lines of its own, since processors fetch lines
/// in pairs.
type Cell = [u64; 16];
pub(super) const CELL_BYTES: usize = size_of::<Cell>();
const CELLS: usize = CELLS_BYTES / CELL_BYTES;

/// One channel, with whatever rides along as `T`: each owner is given back exactly once,
/// by [`poll`](Self::poll), [`recover`](Self::recover) or [`close`](Self::close).
///
/// A channel has one user, who posts, commits and polls; send it to another thread as a
/// whole. Posting, committing and polling allocate nothing, take no lock and make no system
/// call (a software device that sleeps is woken with one).
///
/// Dropping it stops the channel first, then drops the owners, then unmaps the ring.
pub struct Channel<T> {
    pub(super) ring: Ring<T>,
    pub(super) cells: Slots<Cell>,
    /// The cell in use; another one after each reset, so that a late word of the chain
    /// before goes where nobody looks.
    pub(super) cell: usize,
    /// The completion word that was looked at last.
    pub(super) seen: u64,
    doorbell: Doorbell<u16>,
    pub(super) failure: Option<ChannelError>,
    pub(super) statistics: Statistics,
    pub(super) number: u8,
    pub(super) registers: RegisterBlock<IoatChannelRegisters>,
    pub(super) interrupt: Option<ChannelInterrupt>,
    pub(super) clock: SystemClock,
    pub(super) options: ChannelOptions,
    pub(super) device: Arc<Device>,
    /// The channel was stopped, or could not be.
    pub(super) closed: bool,
    /// The device has the ring for ever.
    pub(super) leaked: bool,
    /// Last, so that it is unmapped when nothing above needs it.
    pub(super) region: Option<DmaRegion<Bidirectional>>,
}

/// What wakes the user of a channel.
#[derive(Debug)]
pub(super) struct ChannelInterrupt {
    pub(super) event: EventFd,
    /// Set when the vector or line is that of the whole device.
    pub(super) shared: Option<SharedInterrupt>,
}

/// A vector or line of the whole device.
#[derive(Debug)]
pub(super) struct SharedInterrupt {
    pub(super) kind: InterruptKind,
    pub(super) registers: RegisterBlock<IoatRegisters>,
}

impl<T> Channel<T> {
    pub(super) fn open(
        device: &Arc<Device>,
        number: u8,
        options: ChannelOptions,
    ) -> Result<Self, OpenChannelError> {
        let count = device.facts().channels;
        if number >= count {
            return Err(OpenChannelError::NoSuchChannel { channel: number, count });
        }
        let capacity = capacity(options.depth).ok_or(OpenChannelError::Depth { depth: options.depth })?;
        if !device.take(number) {
            return Err(OpenChannelError::Busy { channel: number });
        }
        let opened = Self::build(device, number, options, capacity);
        let mut channel = match opened {
            Ok(channel) => channel,
            Err(error) => {
                device.release(number);
                return Err(error);
            }
        };
        // From here on dropping `channel` stops it and releases the number.
        channel.restart()?;
        Ok(channel)
    }

    fn build(
        device: &Arc<Device>,
        number: u8,
        options: ChannelOptions,
        capacity: u32,
    ) -> Result<Self, OpenChannelError> {
        let broken = |error| ChannelError::Register { channel: number, error };
        let registers = device.channel_registers(number).map_err(broken)?;
        let doorbell = registers.doorbell(IoatChannelRegisters::DMACOUNT).map_err(broken)?;
        let least = match doorbell.is_software() {
            true if capacity <= SHALLOW_DEPTH => SHALLOW_SLOTS,
            true => SOFTWARE_SLOTS,
            false => 0,
        };
        let slots = table_size(capacity, options.slots.unwrap_or(least));
        let bytes = CELLS_BYTES + slots * size_of::<IoatDescriptor>();
        let memory = SharedMemory::allocate(ByteLength::from_usize(bytes), Pages::Base)?;
        let region = device.domain().map::<Bidirectional>(memory)?;
        let cells = region.slots::<Cell>(0, CELLS)?;
        let table = region.slots::<IoatDescriptor>(CELLS_BYTES, slots)?;
        let base = region.segment(CELLS_BYTES, slots * size_of::<IoatDescriptor>())?.iova;
        let interrupt = match device.event(number).filter(|_| options.interrupt) {
            Some((event, kind)) => {
                let registers = registers.bar().registers(0).map_err(broken)?;
                let shared = kind.map(|kind| SharedInterrupt { kind, registers });
                Some(ChannelInterrupt { event, shared })
            }
            None => None,
        };
        let ring = Ring::new(
            table,
            base,
            RingOptions {
                capacity,
                transfer_cap: device.facts().transfer_cap.as_u64(),
                completion_interval: options.completion_interval.max(1),
                interrupt: interrupt.is_some(),
                software: doorbell.is_software(),
            },
        );
        Ok(Self {
            ring,
            cells,
            cell: 0,
            seen: 0,
            doorbell,
            failure: None,
            statistics: Statistics::default(),
            number,
            registers,
            interrupt,
            clock: SystemClock::new(),
            options,
            device: Arc::clone(device),
            closed: false,
            leaked: false,
            region: Some(region),
        })
    }

    /// The number of the channel.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// How many descriptors can be posted now. A segment up to the engine's transfer cap
    /// takes one, a longer one as many as it has pieces.
    #[must_use]
    pub fn free(&self) -> usize {
        self.ring.free()
    }

    /// How many descriptors can be in flight at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// How many operations have not been given back. A streamed copy counts once for each
    /// of its pieces.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.ring.outstanding()
    }

    /// Whether the owner of `cookie` was given back.
    #[must_use]
    pub fn has_ended(&self, cookie: Cookie) -> bool {
        self.ring.has_ended(cookie)
    }

    /// What is wrong with the channel; it takes nothing new until
    /// [`recover`](Self::recover) then.
    #[must_use]
    pub fn failure(&self) -> Option<&ChannelError> {
        self.failure.as_ref()
    }

    /// Whether [`wait`](Self::wait) can sleep until an interrupt.
    #[must_use]
    pub fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics { bytes: self.ring.bytes(), descriptors: self.ring.descriptors(), ..self.statistics }
    }

    /// Posts a copy of `segments`, all of it or nothing. The engine sees it at the next
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    #[inline(always)]
    pub fn copy(&mut self, segments: &[CopySegment], owner: T) -> Result<Cookie, Rejected<T>> {
        let posted = self.ring.post::<false>(segments.iter().copied().map(Transfer::from), Some(owner));
        posted.map_err(|(owner, reason)| self.rejected(owner, reason))
    }

    /// Posts a copy of its own for each of `copies`, while the ring has room, and returns how
    /// many. It is the fastest way to many small copies; what does not fit stays in the
    /// iterator. The engine sees them at the next [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner of a copy that is not valid or, being above the engine's
    /// transfer cap, needs more room than there is. Those before it are posted.
    #[inline(always)]
    pub fn copy_each(
        &mut self,
        copies: &mut impl Iterator<Item = (CopySegment, T)>,
    ) -> Result<usize, Rejected<T>> {
        let mut count = 0;
        loop {
            let (posted, long) = self.ring.post_each(copies);
            count += posted;
            let Some((segment, owner)) = long else { break };
            self.copy(&[segment], owner)?;
            count += 1;
        }
        Ok(count)
    }

    /// Posts a copy from one list to another of the same size, whatever their pieces. It
    /// takes as many descriptors as [`refine`] yields with the engine's transfer cap.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn copy_sg(
        &mut self,
        source: &SgList,
        destination: &SgList,
        owner: T,
    ) -> Result<Cookie, Rejected<T>> {
        let segments = match refine(source, destination, self.device.facts().transfer_cap) {
            Ok(segments) => segments,
            Err(error) => return Err(Rejected { owner, reason: error.into() }),
        };
        let posted = self.ring.post::<false>(segments.map(Transfer::from), Some(owner));
        posted.map_err(|(owner, reason)| self.rejected(owner, reason))
    }

    /// Posts a fill: `pattern` again and again over each of `entries`, its lowest byte
    /// first, and from its beginning in each.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the owner; see [`RejectReason`].
    pub fn fill(&mut self, pattern: u64, entries: &[SgEntry], owner: T) -> Result<Cookie, Rejected<T>> {
        if !self.device.facts().capabilities.fill() {
            return Err(Rejected { owner, reason: RejectReason::NoFill });
        }
        let transfers = entries.iter().map(|entry| Transfer::fill(pattern, entry));
        let posted = self.ring.post::<true>(transfers, Some(owner));
        posted.map_err(|(owner, reason)| self.rejected(owner, reason))
    }

    /// Hands everything posted to the engine, with one doorbell.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Gone`] and [`ChannelError::Register`], where the doorbell is not
    /// mapped; a mapped one does not tell. The channel has failed then.
    #[inline]
    pub fn commit(&mut self) -> Result<(), ChannelError> {
        let Some(count) = self.ring.issue() else { return Ok(()) };
        // As little as possible is stored between the last descriptor and the doorbell, so
        // that both lines are on their way together.
        let rung = self.doorbell.ring(barrier::doorbell(), count);
        self.statistics.doorbells += 1;
        self.ring.prefetch();
        match rung {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail_register(error)),
        }
    }

    /// Gives back the owners of what has ended, `budget` at most, and returns how many.
    /// Looks at the completion word once; the device is not asked.
    ///
    /// # Errors
    ///
    /// [`ChannelError`], after the owners that it could give back were given back. The
    /// channel has failed then, and what is outstanding ends in
    /// [`recover`](Self::recover).
    #[inline]
    pub fn poll(
        &mut self,
        budget: usize,
        mut ended: impl FnMut(Completion<T>),
    ) -> Result<usize, ChannelError> {
        // ORDERING: Acquire pairs with the device's write of the word, which it does after
        // the data of the descriptors.
        let word = self.cells.load_word(self.cell, 0, Ordering::Acquire);
        if word != self.seen {
            self.digest(word);
        }
        let count = self.ring.retire(budget, &mut ended);
        self.statistics.operations += count as u64;
        match &self.failure {
            None => Ok(count),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Takes note of a completion word.
    #[inline]
    pub(super) fn digest(&mut self, word: u64) {
        if self.failure.is_some() {
            return;
        }
        let status = ChannelStatus(word);
        match self.ring.progress(status.completed()) {
            Ok(Progress::UpTo(index)) => self.ring.complete(index),
            Ok(Progress::None) => {}
            Ok(Progress::Stale) => self.statistics.stale_words += 1,
            Err(fault) => {
                self.fail(ChannelError::BadCompletion { channel: self.number, word, fault });
                return;
            }
        }
        self.seen = word;
        match status.state() {
            ChannelState::Active | ChannelState::Idle => {}
            state => drop(self.stopped_by_itself(state)),
        }
    }

    /// Whether there is something new for [`poll`](Self::poll).
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        // ORDERING: Relaxed; `poll` loads it again with Acquire.
        self.cells.load_word(self.cell, 0, Ordering::Relaxed) != self.seen || self.ring.can_retire()
    }

    /// The engine says in a completion word or in CHANSTS that it does not run.
    #[cold]
    pub(super) fn stopped_by_itself(&mut self, state: ChannelState) -> ChannelError {
        let channel = self.number;
        if state != ChannelState::Halted {
            return self.fail(ChannelError::UnexpectedState { channel, state });
        }
        match device::errors(&self.registers) {
            Ok(errors) if errors.0 == u32::MAX => self.fail(ChannelError::Gone { channel }),
            Ok(errors) => self.fail(ChannelError::Halted { channel, errors }),
            Err(error) => self.fail_register(error),
        }
    }

    /// Marks the channel as failed: nothing is posted until it is recovered.
    #[cold]
    pub(super) fn fail(&mut self, failure: ChannelError) -> ChannelError {
        self.ring.shut();
        self.failure.get_or_insert(failure).clone()
    }

    #[cold]
    pub(super) fn fail_register(&mut self, error: BarError) -> ChannelError {
        let channel = self.number;
        self.fail(if error.is_gone() {
            ChannelError::Gone { channel }
        } else {
            ChannelError::Register { channel, error }
        })
    }

    /// What CHANCTRL is written with: run, and let one interrupt through.
    pub(super) fn control(&self) -> ChannelControl {
        let mut control = ChannelControl::RUN;
        control.set_error_interrupt_enable(self.interrupt.is_some());
        control
    }

    #[cold]
    fn rejected(&self, owner: Option<T>, reason: RejectReason) -> Rejected<T> {
        // PANIC: `post` gives back the owner that it was given.
        let owner = owner.expect("a rejected post gives its owner back");
        // A channel that has failed has no free slots; say why.
        let reason = match (&self.failure, reason) {
            (Some(failure), RejectReason::Full { .. }) => failure.clone().into(),
            (_, reason) => reason,
        };
        Rejected { owner, reason }
    }
}

impl<T> fmt::Debug for Channel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("number", &self.number)
            .field("options", &self.options)
            .field("outstanding", &self.outstanding())
            .field("failure", &self.failure)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// How many descriptors can be in flight in a ring of `depth`.
fn capacity(depth: u32) -> Option<u32> {
    let most = u32::from(MAX_OUTSTANDING);
    (1..=most + 1).contains(&depth).then(|| depth.min(most))
}

/// How many slots a table has: a power of two above `capacity`, at least `least`.
fn table_size(capacity: u32, least: u32) -> usize {
    let slots = (capacity + 1).max(least.min(u32::from(MAX_OUTSTANDING) + 1)).next_power_of_two();
    debug_assert!(u64::from(slots) * SLOT_BYTES <= 4 << 20);
    // CAST: at most 2^16.
    slots as usize
}

/// Up to this depth descriptors are expected to come one at a time, or few.
const SHALLOW_DEPTH: u32 = 16;
/// The least size of a table that a software engine reads then, in slots: it stays in the
/// first-level caches of both processors. Alone, a copy of 64 bytes takes 103 ns by it and
/// 131 by a long table, at a round trip of 103.
const SHALLOW_SLOTS: u32 = 64;
/// The least size of a table that a software engine reads otherwise, in slots: 1 MiB, what the
/// second-level cache of a processor has today.
const SOFTWARE_SLOTS: u32 = 1 << 14;
