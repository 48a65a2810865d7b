//! How channels get attention: INTRCTRL, ATTNSTATUS and INTRDELAY.

use core::time::Duration;
use std::time::Instant;

use vdk_descriptors::ioat::{InterruptControl, InterruptDelay};

use crate::shell::{Surroundings, Work};

/// The interrupts of the whole device.
///
/// With one vector for all channels, reading INTRCTRL clears the master enable bit, and
/// writing it back at the end of a handler lets the next interrupt out: what came meanwhile
/// is in ATTNSTATUS and is signalled then.
#[derive(Debug, Default)]
pub(super) struct Attention {
    control: InterruptControl,
    delay: InterruptDelay,
    /// ATTNSTATUS.
    status: u32,
    /// Channels whose own vector could not be sent yet.
    unsent: u32,
    /// When the interrupts that INTRDELAY holds back are due, and for which channels.
    due: Option<(Instant, u32)>,
}

impl Attention {
    /// A channel wants attention.
    pub(super) fn signal(&mut self, channel: u8, surroundings: &Surroundings<'_>) {
        let bit = 1 << channel;
        let delay = self.delay.microseconds();
        if delay == 0 {
            self.deliver(bit, surroundings);
            return;
        }
        match &mut self.due {
            Some((_, channels)) => *channels |= bit,
            None => {
                let at = Instant::now() + Duration::from_micros(u64::from(delay));
                self.due = Some((at, bit));
            }
        }
    }

    /// Whether INTRDELAY holds an interrupt back.
    #[inline]
    pub(super) fn is_delayed(&self) -> bool {
        self.due.is_some()
    }

    /// Delivers what INTRDELAY has held back long enough.
    pub(super) fn deliver_due(&mut self, surroundings: &Surroundings<'_>) -> Work {
        match self.due {
            Some((at, channels)) if at <= Instant::now() => {
                self.due = None;
                self.deliver(channels, surroundings);
                Work::Busy
            }
            Some((at, _)) => Work::IdleUntil(at),
            None => Work::Idle,
        }
    }

    /// Reads INTRCTRL, which closes the gate for further interrupts.
    pub(super) fn take_control(&mut self, surroundings: &Surroundings<'_>) -> InterruptControl {
        let mut value = self.control;
        value.set_status(self.status != 0);
        value.set_signalled(self.is_signalled());
        if !self.control.vector_per_channel() {
            self.control.set_master_enable(false);
            self.update_line(surroundings);
        }
        value
    }

    /// Reads ATTNSTATUS, which clears it.
    pub(super) fn take_status(&mut self, surroundings: &Surroundings<'_>) -> u32 {
        let status = core::mem::take(&mut self.status);
        self.update_line(surroundings);
        status
    }

    /// Writes INTRCTRL.
    pub(super) fn write_control(&mut self, value: u8, surroundings: &Surroundings<'_>) {
        let was = self.is_signalled();
        let written = InterruptControl(value);
        self.control.set_master_enable(written.master_enable());
        self.control.set_vector_per_channel(written.vector_per_channel());
        if self.control.vector_per_channel() && self.control.master_enable() {
            let unsent = core::mem::take(&mut self.unsent);
            self.send_each(unsent, surroundings);
        } else if self.is_signalled() && !was {
            surroundings.interrupts().message(0);
        }
        self.update_line(surroundings);
    }

    pub(super) fn delay(&self) -> InterruptDelay {
        let mut delay = self.delay;
        delay.set_supported(true);
        delay
    }

    pub(super) fn write_delay(&mut self, value: u16) {
        self.delay.set_microseconds(InterruptDelay(value).microseconds());
    }

    fn deliver(&mut self, channels: u32, surroundings: &Surroundings<'_>) {
        let was = self.is_signalled();
        self.status |= channels;
        if self.control.vector_per_channel() {
            if self.control.master_enable() {
                self.send_each(channels, surroundings);
            } else {
                self.unsent |= channels;
            }
        } else if self.is_signalled() && !was {
            surroundings.interrupts().message(0);
        }
        self.update_line(surroundings);
    }

    fn send_each(&self, channels: u32, surroundings: &Surroundings<'_>) {
        for channel in (0..32).filter(|channel| channels >> channel & 1 != 0) {
            surroundings.interrupts().message(channel);
        }
    }

    fn is_signalled(&self) -> bool {
        self.control.master_enable() && self.status != 0
    }

    fn update_line(&self, surroundings: &Surroundings<'_>) {
        surroundings.interrupts().set_level(self.is_signalled());
    }
}
