//! What a fault plan does to the controller.

use std::time::Instant;

use vdk_descriptors::nvme::{CompletionEntry, Status};
use vdk_iommu::soft::Burst;

use super::bus::Nvme;
use crate::fault::FaultAction;
use crate::shell::{Surroundings, Work};

/// What a fault plan has done and will do.
#[derive(Debug)]
pub(super) struct Trouble {
    /// Strikes the next completion.
    pub(super) armed: Option<FaultAction>,
    /// Completions that are late.
    pub(super) late: Vec<Late>,
    /// Nothing is done or obeyed any more.
    pub(super) wedged: bool,
}

/// A completion that is late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    pub(super) due: Instant,
    /// The submission queue.
    pub(super) queue: u16,
    pub(super) entry: CompletionEntry,
}

/// What comes of a fault that strikes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Struck {
    /// The command is executed.
    Execute,
    /// It fails.
    Fail(Status),
    /// The controller stops.
    Stop,
}

impl Trouble {
    pub(super) fn new() -> Self {
        Self { armed: None, late: Vec::with_capacity(MOST_LATE), wedged: false }
    }
}

impl Nvme {
    /// What the fault plan does to the next command of a queue.
    #[cold]
    pub(super) fn strike(&mut self, queue: u16, surroundings: &mut Surroundings<'_>) -> Struck {
        let channel = u8::try_from(queue).unwrap_or(u8::MAX);
        match surroundings.next_fault(channel) {
            None => Struck::Execute,
            Some(FaultAction::Fail(code)) => {
                Struck::Fail(Status(u16::try_from(code & 0x7ff).unwrap_or(Status::INTERNAL_ERROR.0)))
            }
            Some(FaultAction::Halt(_)) => {
                self.registers.status.set_fatal(true);
                Struck::Stop
            }
            Some(FaultAction::StopResponding) => {
                self.trouble.wedged = true;
                Struck::Stop
            }
            Some(FaultAction::Vanish | FaultAction::AllOnes) => Struck::Stop,
            Some(
                action @ (FaultAction::DropCompletion
                | FaultAction::DelayCompletion(_)
                | FaultAction::DuplicateCompletion
                | FaultAction::CorruptCompletion),
            ) => {
                self.trouble.armed = Some(action);
                Struck::Execute
            }
        }
    }

    /// Posts a completion as the fault plan wants it.
    #[cold]
    pub(super) fn post_struck(
        &mut self,
        queue: u16,
        mut entry: CompletionEntry,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) {
        match self.trouble.armed.take() {
            Some(FaultAction::DropCompletion) => {}
            Some(FaultAction::DelayCompletion(delay)) if self.trouble.late.len() < MOST_LATE => {
                if let Some((_, completion)) = self.queues.pair(queue) {
                    completion.reserved += 1;
                    let now = Instant::now();
                    let due = now.checked_add(delay).unwrap_or(now);
                    self.trouble.late.push(Late { due, queue, entry });
                }
            }
            Some(FaultAction::DuplicateCompletion) => {
                self.post_entry(queue, entry, burst, surroundings);
                if self.queues.pair(queue).is_some_and(|(_, completion)| completion.has_room()) {
                    self.post_entry(queue, entry, burst, surroundings);
                }
            }
            Some(FaultAction::CorruptCompletion) => {
                match surroundings.random() % 3 {
                    0 => entry.command_id ^= 0x8000,
                    1 => entry.submission_queue ^= 0x4000,
                    _ => entry.submission_head = u16::MAX,
                }
                self.post_entry(queue, entry, burst, surroundings);
            }
            _ => self.post_entry(queue, entry, burst, surroundings),
        }
    }

    /// Posts the late completions that are due now.
    #[cold]
    pub(super) fn release_late(
        &mut self,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) -> Work {
        let now = Instant::now();
        let mut work = Work::Idle;
        let mut index = 0;
        while let Some(late) = self.trouble.late.get(index).copied() {
            if late.due > now {
                work = work.and(Work::IdleUntil(late.due));
                index += 1;
                continue;
            }
            self.trouble.late.remove(index);
            self.post_late(late, burst, surroundings);
            work = Work::Busy;
        }
        work
    }

    /// Posts one late completion, for which an entry was kept.
    pub(super) fn post_late(
        &mut self,
        late: Late,
        burst: &mut Burst<'_>,
        surroundings: &mut Surroundings<'_>,
    ) {
        if let Some((_, completion)) = self.queues.pair(late.queue) {
            completion.reserved = completion.reserved.saturating_sub(1);
            self.post_entry(late.queue, late.entry, burst, surroundings);
        }
    }

    /// Gives up the late completions of a queue that is deleted.
    pub(super) fn forget_late(&mut self, queue: u16) {
        let before = self.trouble.late.len();
        self.trouble.late.retain(|late| late.queue != queue);
        let given_up = before - self.trouble.late.len();
        if let Some((_, completion)) = self.queues.pair(queue) {
            let given_up = u32::try_from(given_up).unwrap_or(u32::MAX);
            completion.reserved = completion.reserved.saturating_sub(given_up);
        }
    }
}

/// So many completions can be late at once; one more is in time.
const MOST_LATE: usize = 64;
