//! A submission queue with its completion queue, without any of what the commands mean.
//!
//! The admin queue and the I/O queues are both one. It allocates nothing, takes no lock and
//! makes no system call after it was made.

mod bell;
mod describe;

pub(super) use bell::{Bell, ShadowPages, bells};
pub(super) use describe::{Describer, ListShape};

use core::fmt;
use core::sync::atomic::Ordering;

use vdk_descriptors::nvme::{
    CompletionEntry, PHASE_BIT, SubmissionEntry, completion_doorbell, submission_doorbell,
};
use vdk_descriptors::ring::{
    CompletionError, Completions, Cookie, Cursors, DepthError, Handover, PhaseConsumer, Producer, TableError,
    Wrapped,
};
use vdk_hal::address::ByteLength;
use vdk_hal::bar::BarError;
use vdk_hal::barrier;
use vdk_hal::memory::Slots;

/// Both queues, and the owners of the commands that are in flight.
///
/// # Ownership
///
/// [`submit`](Self::submit) takes an owner. It comes back once, from
/// [`poll`](Self::poll) or [`reset`](Self::reset).
pub(super) struct CommandQueue<T> {
    number: u16,
    producer: Producer<SubmissionEntry, Wrapped<u16>>,
    consumer: PhaseConsumer<CompletionEntry>,
    table: Completions<T>,
    stamps: Box<[Stamp]>,
    /// Which bits of an identifier are the slot.
    slot_mask: usize,
    tail: Bell,
    head: Bell,
    /// Completions that the controller was not told of.
    unacknowledged: u32,
    /// How many may be so: with as many, the completion queue still has room for every
    /// command in flight.
    acknowledge_after: u32,
    /// Counts the time: see [`advance`](Self::advance).
    epoch: u32,
}

/// What is known of the command in a slot.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    cookie: Cookie,
    /// How many commands were submitted before it.
    position: u64,
    /// When it was submitted.
    epoch: u32,
    /// It has not ended.
    in_flight: bool,
    /// An abort was sent for it.
    aborted: bool,
}

/// A completion that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionFault {
    /// It names a command that is not in flight.
    Command {
        /// Its identifier.
        command_id: u16,
        /// What is wrong with it.
        error: CompletionError,
    },
    /// It names another submission queue.
    Queue {
        /// The queue that it names.
        named: u16,
    },
    /// The head of the submission queue cannot be there.
    Head {
        /// The head that it names.
        head: u16,
    },
}

impl fmt::Display for CompletionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command_id, error } => {
                write!(f, "a completion of command {command_id:#06x} that is not in flight ({error})")
            }
            Self::Queue { named } => write!(f, "a completion that names submission queue {named:#x}"),
            Self::Head { head } => {
                write!(f, "a completion with submission queue head {head:#x}, where it cannot be")
            }
        }
    }
}

/// What was polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Polled {
    /// How many commands ended.
    pub(super) count: u32,
    /// What ended the poll early.
    pub(super) fault: Option<CompletionFault>,
}

/// Why the queues cannot be made of the given memory.
#[derive(Debug)]
pub(super) struct LayoutError(String);

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<DepthError> for LayoutError {
    fn from(error: DepthError) -> Self {
        Self(error.to_string())
    }
}

impl From<TableError> for LayoutError {
    fn from(error: TableError) -> Self {
        Self(error.to_string())
    }
}

impl<T> CommandQueue<T> {
    /// Empty queues in zeroed memory.
    pub(super) fn new(
        number: u16,
        submission: Slots<SubmissionEntry>,
        completion: Slots<CompletionEntry>,
        (tail, head): (Bell, Bell),
    ) -> Result<Self, LayoutError> {
        let entries = u32::try_from(submission.count()).unwrap_or(u32::MAX);
        let room = u32::try_from(completion.count()).unwrap_or(u32::MAX).saturating_sub(1);
        let cursors = Cursors::new(entries)?;
        let depth = cursors.usable();
        // With 15 bits no command gets the identifier 0xffff, which means none in the error
        // log; more commands leave no room for a generation, and do not reach it either.
        let tag_bits = if depth <= 1 << 15 { 15 } else { 16 };
        let table = Completions::new(depth, tag_bits)
            .ok_or_else(|| LayoutError(format!("{depth:#x} commands have no identifiers of 16 bits")))?;
        let stamp =
            Stamp { cookie: Cookie::from_bits(0), position: 0, epoch: 0, in_flight: false, aborted: false };
        // CAST: `usize` has 32 bits at least.
        let stamps = vec![stamp; depth as usize].into_boxed_slice();
        Ok(Self {
            number,
            producer: Producer::new(submission, cursors, Handover::Doorbell)?,
            consumer: PhaseConsumer::new(completion, PHASE_BIT)?,
            table,
            slot_mask: stamps.len().next_power_of_two() - 1,
            stamps,
            tail,
            head,
            unacknowledged: 0,
            acknowledge_after: room.saturating_sub(depth).max(1),
            epoch: 0,
        })
    }

    /// The controller looks at shadows in `pages` from now on, or at none any more. The
    /// registers are written as well: not all controllers look at the shadows of the admin
    /// queue.
    pub(super) fn attach_shadow(&mut self, pages: Option<&ShadowPages>, stride: ByteLength) {
        let first = submission_doorbell(0, stride);
        self.tail.attach(pages, submission_doorbell(self.number, stride) - first, true);
        self.head.attach(pages, completion_doorbell(self.number, stride) - first, true);
    }

    /// How many commands can be in flight.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.producer.cursors().usable()
    }

    /// How many commands are in flight.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    /// How many more commands can be submitted.
    #[inline]
    pub(super) fn free(&self) -> u32 {
        self.table.free().min(self.producer.cursors().free())
    }

    /// Writes of the submission and completion doorbells, and those that were spared.
    pub(super) fn doorbells(&self) -> (u64, u64, u64) {
        (self.tail.rung, self.head.rung, self.tail.spared + self.head.spared)
    }

    /// Writes one command into the queue; the controller sees it at the next
    /// [`commit`](Self::commit). `build` fills it in, given the number of its slot.
    ///
    /// # Errors
    ///
    /// The owner; with `None` when the queue is full, else with what `build` said.
    #[inline]
    pub(super) fn submit<E>(
        &mut self,
        owner: T,
        build: impl FnOnce(usize, &mut SubmissionEntry) -> Result<(), E>,
    ) -> Result<Cookie, (T, Option<E>)> {
        let position = self.producer.cursors().produced();
        let Some(mut slot) = self.producer.reserve(1) else { return Err((owner, None)) };
        let cookie = match self.table.post(owner) {
            Ok(cookie) => cookie,
            Err(full) => return Err((full.0, None)),
        };
        let mut entry = SubmissionEntry::default();
        // CAST: a tag has at most 16 bits, a slot fits `usize`.
        #[expect(clippy::cast_possible_truncation, reason = "a tag has at most 16 bits")]
        {
            entry.command_id = self.table.tag(cookie) as u16;
        }
        // CAST: as above.
        let place = cookie.slot() as usize;
        if let Err(error) = build(place, &mut entry) {
            drop(slot);
            // PANIC: it was posted a moment ago.
            let owner = self.table.complete(cookie).expect("the command was posted");
            return Err((owner, Some(error)));
        }
        let written = slot.write(&entry);
        debug_assert!(written.is_ok(), "one slot was reserved");
        slot.publish();
        // PANIC: there are as many stamps as places in the table.
        self.stamps[place] = Stamp { cookie, position, epoch: self.epoch, in_flight: true, aborted: false };
        Ok(cookie)
    }

    /// Hands everything submitted to the controller, with one doorbell.
    #[inline]
    pub(super) fn commit(&mut self) -> Result<(), BarError> {
        match self.producer.doorbell() {
            Some((token, tail)) => self.tail.ring(token, tail),
            None => Ok(()),
        }
    }

    /// Whether a completion is there.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.consumer.is_ready()
    }

    /// Gives back the owners of what has ended, `budget` at most. Each completion is checked
    /// against what was submitted; at the first that makes no sense the poll ends.
    #[inline]
    pub(super) fn poll(
        &mut self,
        budget: u32,
        mut ended: impl FnMut(Cookie, &CompletionEntry, T),
    ) -> Result<Polled, BarError> {
        let mut polled = Polled { count: 0, fault: None };
        let mut next = None;
        while polled.count < budget {
            if self.consumer.poll(1, |entry| next = Some(entry)).is_none() {
                break;
            }
            let Some(entry) = next.take() else { break };
            match self.finish(&entry) {
                Ok((cookie, owner)) => {
                    polled.count += 1;
                    self.unacknowledged += 1;
                    ended(cookie, &entry, owner);
                }
                Err(fault) => {
                    polled.fault = Some(fault);
                    return Ok(polled);
                }
            }
        }
        if self.unacknowledged >= self.acknowledge_after {
            self.acknowledge()?;
        }
        Ok(polled)
    }

    /// Tells the controller which completions were taken. [`poll`](Self::poll) does it before
    /// the completion queue could be full; call it before sleeping, since some controllers
    /// hold an interrupt back until then.
    #[inline]
    pub(super) fn acknowledge(&mut self) -> Result<(), BarError> {
        if core::mem::take(&mut self.unacknowledged) == 0 {
            return Ok(());
        }
        // CAST: the place in a queue of at most 2^16 entries.
        #[expect(clippy::cast_possible_truncation, reason = "queues have at most 2^16 entries")]
        let head = self.consumer.position().slot() as u16;
        self.head.ring(barrier::doorbell(), head)
    }

    /// The command that an entry completes, after all that it says was checked.
    #[inline]
    fn finish(&mut self, entry: &CompletionEntry) -> Result<(Cookie, T), CompletionFault> {
        if entry.submission_queue != self.number {
            return Err(CompletionFault::Queue { named: entry.submission_queue });
        }
        let head = entry.submission_head;
        let Some((place, stamp)) = self.stamp_of(entry.command_id) else {
            let error = CompletionError::Unknown { slot: u32::from(entry.command_id), depth: self.depth() };
            return Err(CompletionFault::Command { command_id: entry.command_id, error });
        };
        let advance = self.head_advance(head, stamp.position).ok_or(CompletionFault::Head { head })?;
        let owner = self
            .table
            .complete_tag(u32::from(entry.command_id))
            .map_err(|error| CompletionFault::Command { command_id: entry.command_id, error })?;
        let consumed = self.producer.consume(advance);
        debug_assert!(consumed.is_some(), "not more than is outstanding");
        // PANIC: the stamp was there a moment ago.
        self.stamps[place].in_flight = false;
        Ok((stamp.cookie, owner))
    }

    /// What is known of the command in the slot of an identifier, in flight or not.
    #[inline]
    fn stamp_of(&self, command_id: u16) -> Option<(usize, Stamp)> {
        let place = usize::from(command_id) & self.slot_mask;
        self.stamps.get(place).map(|stamp| (place, *stamp))
    }

    /// How many more entries of the submission queue are free when its head is at `head`, as
    /// the completion of a command says that came after `position` others. `None` when the
    /// head cannot be there: it is past that command and not past the tail.
    ///
    /// A head before the one that was known is fine: completions are not always posted in
    /// the order in which their heads were read.
    #[inline]
    fn head_advance(&self, head: u16, position: u64) -> Option<u32> {
        let cursors = self.producer.cursors();
        let (depth, head) = (cursors.depth(), u32::from(head));
        if head >= depth {
            return None;
        }
        let outstanding = cursors.outstanding();
        let tail = cursors.consumer_slot() + outstanding;
        let tail = if tail >= depth { tail - depth } else { tail };
        let behind_tail = if tail >= head { tail - head } else { tail + depth - head };
        // Counted from the beginning: the latest place not past the tail.
        let reached = (cursors.consumed() + u64::from(outstanding)).checked_sub(u64::from(behind_tail))?;
        if reached <= position {
            return None;
        }
        u32::try_from(reached.saturating_sub(cursors.consumed())).ok()
    }

    /// Moves the clock of the commands one step on. A command that was submitted in one epoch
    /// is older than `n` steps when the epoch is more than `n` ahead.
    pub(super) fn advance(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The identifiers of commands older than `steps` for which no abort was sent, and how
    /// many there are that are twice as old.
    pub(super) fn overdue(&self, steps: u32) -> (Vec<(Cookie, u16)>, u32) {
        let (mut late, mut lost) = (Vec::new(), 0);
        for stamp in self.stamps.iter().filter(|stamp| stamp.in_flight) {
            let age = self.epoch.wrapping_sub(stamp.epoch);
            if age > steps.saturating_mul(2) {
                lost += 1;
            } else if age > steps && !stamp.aborted {
                let tag = u16::try_from(self.table.tag(stamp.cookie)).unwrap_or(u16::MAX);
                late.push((stamp.cookie, tag));
            }
        }
        (late, lost)
    }

    /// Notes that an abort was sent.
    pub(super) fn mark_aborted(&mut self, cookie: Cookie) {
        // CAST: a slot fits `usize`.
        if let Some(stamp) = self.stamps.get_mut(cookie.slot() as usize) {
            stamp.aborted |= stamp.cookie == cookie;
        }
    }

    /// The identifier of a command in flight, and whether there is such a command.
    pub(super) fn command_id(&self, cookie: Cookie) -> Option<u16> {
        // CAST: a slot fits `usize`.
        let stamp = self.stamps.get(cookie.slot() as usize)?;
        let is_meant = stamp.cookie == cookie && stamp.in_flight;
        is_meant.then(|| u16::try_from(self.table.tag(cookie)).unwrap_or(u16::MAX))
    }

    /// Gives back every owner and empties the queues, as a reset of the controller does.
    /// The controller must not reach them any more.
    pub(super) fn reset(&mut self, take: impl FnMut(Cookie, T)) {
        self.table.reset(take);
        for stamp in &mut self.stamps {
            stamp.in_flight = false;
        }
        self.producer.reset();
        self.consumer.reset();
        let table = self.consumer.table();
        for slot in 0..table.count() {
            for word in 0..2 {
                // ORDERING: Relaxed; the command that creates the queue again follows.
                table.store_word(slot, word, 0, Ordering::Relaxed);
            }
        }
        self.tail.reset();
        self.head.reset();
        self.unacknowledged = 0;
    }
}

impl<T> CommandQueue<T> {
    /// Loses every owner: the controller has what they own for ever.
    pub(super) fn forget_owners(&mut self) {
        self.table.reset(|_, owner| core::mem::forget(owner));
    }

    /// How many entries the submission queue has.
    pub(super) fn submission_entries(&self) -> usize {
        self.producer.table().count()
    }

    /// How many entries the completion queue has.
    pub(super) fn completion_entries(&self) -> usize {
        self.consumer.table().count()
    }
}

impl<T> fmt::Debug for CommandQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandQueue")
            .field("number", &self.number)
            .field("depth", &self.depth())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
