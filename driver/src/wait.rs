//! Waiting for completions: what the queues of all drivers have in common.

use core::time::Duration;

use vdk_hal::poll::{Deadline, SystemClock, TimedOut};

/// How a wait learns of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CompletionMode {
    /// Looks all the time. The shortest delay, and a processor for it.
    Poll,
    /// Sleeps until the interrupt.
    Interrupt,
    /// Looks for a while, then sleeps until the interrupt; without one it goes on looking.
    #[default]
    Adaptive,
}

/// Looks between two readings of the clock.
const LOOKS_PER_ROUND: u32 = 256;
/// How often a wait asks the device whether it is there and runs. A device that cannot
/// write to memory any more reports nothing else.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_millis(10);
/// How long a sleep lasts at most: an interrupt that is lost costs so much and not the
/// deadline.
pub(crate) const NAP: Duration = Duration::from_millis(50);

/// A queue whose completions can be waited for.
pub(crate) trait CompletionQueue {
    /// Why a wait ends without a completion.
    type Error: From<TimedOut>;

    /// Tells the processor between two looks that it waits. A hypervisor may take that for a
    /// reason to stop the virtual processor, which costs more than many looks.
    const PAUSES: bool;

    /// The clock of its deadlines.
    fn clock(&self) -> SystemClock;

    /// Whether there is something to poll.
    fn has_news(&mut self) -> bool;

    /// Counts a look that found nothing.
    fn count_spin(&mut self);

    /// Asks the device whether it is there and runs.
    fn check_device(&mut self) -> Result<(), Self::Error>;

    /// Whether a sleep can be ended by an interrupt.
    fn has_interrupt(&self) -> bool;

    /// Sleeps until an interrupt brings something to poll.
    fn sleep_until(&mut self, deadline: Deadline) -> Result<(), Self::Error>;

    /// Looks so many times at most, and says whether there is something to poll.
    fn spin(&mut self, looks: u32) -> bool {
        for _ in 0..looks {
            if self.has_news() {
                return true;
            }
            self.count_spin();
            if Self::PAUSES {
                core::hint::spin_loop();
            }
        }
        false
    }

    /// Waits as the mode says. `looks` come before a sleep of [`CompletionMode::Adaptive`].
    fn wait_until(
        &mut self,
        mode: CompletionMode,
        looks: u32,
        deadline: Deadline,
    ) -> Result<(), Self::Error> {
        match mode {
            CompletionMode::Poll => self.look_until(deadline),
            CompletionMode::Interrupt => self.sleep_until(deadline),
            CompletionMode::Adaptive if self.spin(looks) => Ok(()),
            CompletionMode::Adaptive if self.has_interrupt() => self.sleep_until(deadline),
            CompletionMode::Adaptive => self.look_until(deadline),
        }
    }

    /// Looks until there is something to poll.
    fn look_until(&mut self, deadline: Deadline) -> Result<(), Self::Error> {
        let clock = self.clock();
        let mut health = Deadline::after(&clock, HEALTH_INTERVAL);
        loop {
            // The clock first: a thread that lost the processor looks once more.
            let over = deadline.is_over(&clock);
            if self.spin(LOOKS_PER_ROUND) {
                return Ok(());
            }
            if over || health.is_over(&clock) {
                self.check_device()?;
                health = Deadline::after(&clock, HEALTH_INTERVAL);
                // A software device may need the processor that this thread burns.
                std::thread::yield_now();
            }
            if over && !self.has_news() {
                return Err(timed_out(deadline));
            }
        }
    }
}

/// Nothing came in time.
pub(crate) fn timed_out<E: From<TimedOut>>(deadline: Deadline) -> E {
    TimedOut { what: "a completion", allowed: deadline.allowed() }.into()
}
