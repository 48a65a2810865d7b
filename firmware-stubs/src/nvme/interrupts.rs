//! Interrupts: messages, or the line that stays asserted until the host has served.

use vdk_hal::interrupt::InterruptKind;

use super::bus::Nvme;
use crate::shell::Surroundings;

impl Nvme {
    /// Tells the host of what was posted since the last time. Without a lock when no queue
    /// that has something wants interrupts.
    pub(super) fn signal(&mut self, surroundings: &mut Surroundings<'_>) {
        let mut wanted = false;
        for queue in self.queues.completions() {
            queue.fresh &= queue.interrupts;
            wanted |= queue.fresh;
        }
        if !wanted {
            return;
        }
        let kind = surroundings.interrupts().enabled();
        if !matches!(kind, Some(InterruptKind::Msi | InterruptKind::Msix)) {
            self.queues.completions().for_each(|queue| queue.fresh = false);
            self.serve_line(surroundings);
            return;
        }
        let mask = self.registers.mask;
        for queue in self.queues.completions().filter(|queue| queue.fresh) {
            let masked = queue.vector < 32 && mask >> queue.vector & 1 != 0;
            // Kept until the mask is cleared, which MSI-X does not have.
            if !masked || kind == Some(InterruptKind::Msix) {
                surroundings.interrupts().message(queue.vector);
                queue.fresh = false;
            }
        }
    }

    /// Asserts or deasserts the line.
    pub(super) fn update_line(&mut self, surroundings: &Surroundings<'_>) {
        let masked = self.registers.mask & 1 != 0;
        let waiting = self.queues.completions().any(|queue| queue.interrupts && queue.outstanding() > 0);
        let messages = || {
            let kind = surroundings.interrupts().enabled();
            matches!(kind, Some(InterruptKind::Msi | InterruptKind::Msix))
        };
        let asserted = waiting && !masked && !messages();
        if asserted != self.line {
            self.line = asserted;
            surroundings.interrupts().set_level(asserted);
        }
    }

    /// Looks at what the host has consumed while the line is asserted.
    pub(super) fn serve_line(&mut self, surroundings: &mut Surroundings<'_>) {
        for id in 0..=self.pairs {
            self.poll_head(id, surroundings);
        }
        self.update_line(surroundings);
    }
}
