//! Interrupts: messages, or the line that stays asserted until the host has served.

use vdk_hal::interrupt::InterruptKind;

use super::bus::Nvme;
use crate::shell::Surroundings;

impl Nvme {
    /// Tells the host of what was posted since the last time.
    pub(super) fn signal(&mut self, surroundings: &Surroundings<'_>) {
        let kind = surroundings.interrupts().enabled();
        let mask = self.registers.mask;
        for queue in self.queues.completions() {
            if !queue.fresh {
                continue;
            }
            let masked = queue.vector < 32 && mask >> queue.vector & 1 != 0;
            match kind {
                // Kept until the mask is cleared.
                Some(InterruptKind::Msi) if masked => continue,
                Some(InterruptKind::Msi | InterruptKind::Msix) if queue.interrupts => {
                    surroundings.interrupts().message(queue.vector);
                }
                _ => {}
            }
            queue.fresh = false;
        }
        if !matches!(kind, Some(InterruptKind::Msi | InterruptKind::Msix)) {
            self.update_line(surroundings);
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
