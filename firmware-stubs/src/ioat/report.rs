//! How a channel reports: completion words, interrupts, and the halt on an error.

use core::time::Duration;
use std::time::Instant;

use vdk_descriptors::ioat::{ChannelErrors, ChannelState, ChannelStatus, IoatControl};
use vdk_hal::address::Iova;
use vdk_iommu::soft::{Burst, BusMaster};

use super::attention::Attention;
use super::channel::{Channel, Held, State};
use super::engine::Batch;
use crate::fault::FaultAction;
use crate::shell::{Surroundings, Work};

impl Channel {
    /// A descriptor that wants to be reported is done. Completion words of one batch become
    /// one, unless an interrupt or a fault says otherwise.
    #[inline]
    pub(super) fn complete(
        &mut self,
        control: IoatControl,
        batch: &mut Batch,
        burst: &mut Burst<'_>,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) {
        if control.completion_write() {
            if self.trouble.armed.is_some() {
                self.complete_with_fault(control, batch, burst, attention, surroundings);
                return;
            }
            batch.unreported = Some(self.completed);
        }
        if control.interrupt_enable() {
            self.report(batch, burst, attention, surroundings);
            if self.trouble.held.is_none() && self.state != State::Halted {
                self.interrupt(attention, surroundings);
            }
        }
    }

    #[cold]
    fn complete_with_fault(
        &mut self,
        control: IoatControl,
        batch: &mut Batch,
        burst: &mut Burst<'_>,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) {
        self.report(batch, burst, attention, surroundings);
        let word = self.completion_word(self.completed);
        let interrupt = control.interrupt_enable();
        match self.trouble.armed.take() {
            Some(FaultAction::DelayCompletion(delay)) => self.hold(word, interrupt, delay),
            Some(FaultAction::DuplicateCompletion) => {
                self.write_completion(word, Some(burst), attention, surroundings);
                self.trouble.stale = Some(word);
                if interrupt {
                    self.interrupt(attention, surroundings);
                }
            }
            Some(FaultAction::CorruptCompletion) => {
                // Some other address of 48 bits, never the right one.
                let noise = surroundings.random() & 0xffff_ffff_ff80 | 0x40;
                self.write_completion(word ^ noise, Some(burst), attention, surroundings);
                if interrupt {
                    self.interrupt(attention, surroundings);
                }
            }
            // Dropped: neither word nor interrupt.
            _ => {}
        }
    }

    /// Writes the completion word of the last descriptor that wants one.
    #[inline]
    pub(super) fn report(
        &mut self,
        batch: &mut Batch,
        burst: &mut Burst<'_>,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) {
        let Some(address) = batch.unreported.take() else { return };
        let word = self.completion_word(address);
        if let Some(stale) = self.trouble.stale.take() {
            self.write_completion(stale, Some(burst), attention, surroundings);
            self.interrupt(attention, surroundings);
            self.hold(word, true, DUPLICATE_TIME);
            return;
        }
        self.write_completion(word, Some(burst), attention, surroundings);
    }

    fn completion_word(&self, address: u64) -> u64 {
        let idle = self.executed == self.count && self.current.is_none();
        let state = if idle { ChannelState::Idle } else { ChannelState::Active };
        self.word(address, state)
    }

    /// The completion word after the descriptor at `address` when nothing is left to do.
    #[inline]
    pub(super) fn idle_word(&self, address: u64) -> u64 {
        self.word(address, ChannelState::Idle)
    }

    #[inline]
    fn word(&self, address: u64, state: ChannelState) -> u64 {
        let mut status = ChannelStatus::new(Iova::new(address), state);
        status.set_soft_error(self.soft_error);
        status.0
    }

    #[inline]
    fn write_completion(
        &mut self,
        word: u64,
        burst: Option<&mut Burst<'_>>,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) {
        let Some(burst) = burst else { return };
        if burst.store_u64(Iova::new(self.completion_address), word).is_ok() {
            surroundings.count_completion();
        } else {
            surroundings.request_failed();
            // No burst: the halt cannot be reported there either.
            self.halt(ChannelErrors::COMPLETION_ADDRESS, None, attention, surroundings);
        }
    }

    /// Stops the channel on an error, and tells as CHANCTRL wants it.
    #[cold]
    pub(super) fn halt(
        &mut self,
        errors: ChannelErrors,
        burst: Option<&mut Burst<'_>>,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) {
        self.errors |= errors;
        self.state = State::Halted;
        self.current = None;
        if self.control.error_completion_enable()
            && let Some(burst) = burst
        {
            let word = self.status().0;
            if burst.store_u64(Iova::new(self.completion_address), word).is_ok() {
                surroundings.count_completion();
            } else {
                self.errors |= ChannelErrors::COMPLETION_ADDRESS;
                surroundings.request_failed();
            }
        }
        if self.control.error_interrupt_enable() {
            self.interrupt(attention, surroundings);
        }
    }

    fn hold(&mut self, word: u64, interrupt: bool, delay: Duration) {
        let now = Instant::now();
        let due = now.checked_add(delay).unwrap_or(now);
        self.trouble.held = Some(Held { due, word, interrupt });
    }

    #[cold]
    pub(super) fn release_held(
        &mut self,
        bus: &mut BusMaster,
        attention: &mut Attention,
        surroundings: &mut Surroundings<'_>,
    ) -> Work {
        let Some(held) = self.trouble.held else { return Work::Idle };
        if Instant::now() < held.due {
            return Work::IdleUntil(held.due);
        }
        self.trouble.held = None;
        match bus.burst() {
            Ok(mut burst) => self.write_completion(held.word, Some(&mut burst), attention, surroundings),
            Err(_) => self.halt(ChannelErrors::COMPLETION_ADDRESS, None, attention, surroundings),
        }
        if held.interrupt && self.state != State::Halted {
            self.interrupt(attention, surroundings);
        }
        Work::Busy
    }
}

/// How long the right completion word is late after a duplicate.
const DUPLICATE_TIME: Duration = Duration::from_millis(1);
