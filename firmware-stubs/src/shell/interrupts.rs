//! The interrupts of a function: what the device raises and what reaches an event file.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind};

use super::layout::{log2, vector_bits};
use super::profile::Profile;

/// The interrupts of a function. A model raises them; the session says where they go.
///
/// Event files are signalled with the state locked, so that nothing is signalled any more
/// when "disable" has returned.
#[derive(Debug)]
pub struct InterruptUnit {
    state: Mutex<InterruptState>,
}

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct InterruptState {
    /// The session that may set interrupts up; zero for none.
    pub(crate) session: u64,
    pub(crate) enabled: Option<InterruptKind>,
    pub(crate) line: Line,
    pub(crate) msi: Messages,
    pub(crate) msix: Messages,
    pub(crate) function_mask: bool,
    pub(crate) fixed_vectors: bool,
}

/// The INTx line.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) present: bool,
    asserted: bool,
    masked: bool,
    /// Interrupt Disable in the Command register.
    disabled: bool,
    event: Option<EventFd>,
    count: u64,
}

/// The vectors of MSI or MSI-X.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) vectors: Vec<Vector>,
    maskable: bool,
    /// How many vectors were given to "enable".
    active: u16,
}

/// One vector, with what its MSI-X table entry holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vector {
    pub(crate) address: u64,
    pub(crate) message: u32,
    /// The Vector Control word: bit 0 masks, the others are kept.
    pub(crate) control: u32,
    pub(crate) pending: bool,
    event: Option<EventFd>,
    count: u64,
}

impl InterruptUnit {
    pub(crate) fn new(profile: &Profile, fixed_vectors: bool) -> Self {
        let messages = |vectors: u16, maskable| Messages {
            vectors: vec![Vector::default(); usize::from(vectors)],
            maskable,
            active: 0,
        };
        let mut state = InterruptState {
            session: 0,
            enabled: None,
            line: Line { present: profile.intx, ..Line::default() },
            msi: profile.msi.map_or(messages(0, false), |msi| messages(msi.vectors, msi.maskable)),
            msix: messages(profile.msix.map_or(0, |msix| msix.vectors), true),
            function_mask: false,
            fixed_vectors,
        };
        state.reset();
        Self { state: Mutex::new(state) }
    }

    /// Which kind is enabled.
    #[must_use]
    pub fn enabled(&self) -> Option<InterruptKind> {
        self.lock().enabled
    }

    /// Sends message `vector`, if MSI or MSI-X is enabled; with fewer vectors enabled than
    /// the device has they are shared. A masked vector becomes pending instead.
    pub fn message(&self, vector: u16) {
        let mut state = self.lock();
        match state.enabled {
            Some(InterruptKind::Msi) => {
                let active = state.msi.active.max(1);
                state.msi.raise(vector % active, false);
            }
            Some(InterruptKind::Msix) => {
                let masked = state.function_mask;
                state.msix.raise(vector, masked);
            }
            Some(InterruptKind::Intx) | None => {}
        }
    }

    /// Asserts or deasserts the INTx line.
    pub fn set_level(&self, asserted: bool) {
        let mut state = self.lock();
        state.line.asserted = asserted;
        state.fire_line();
    }

    /// How often a vector reached an event file by itself, self-tests not counted.
    #[must_use]
    pub fn raised(&self, kind: InterruptKind, vector: u16) -> u64 {
        let state = self.lock();
        match kind {
            InterruptKind::Intx if vector == 0 => state.line.count,
            InterruptKind::Intx => 0,
            InterruptKind::Msi => state.msi.vectors.get(usize::from(vector)).map_or(0, |vector| vector.count),
            InterruptKind::Msix => {
                state.msix.vectors.get(usize::from(vector)).map_or(0, |vector| vector.count)
            }
        }
    }

    /// How often each vector reached an event file, those never raised left out.
    pub(crate) fn counts(&self) -> Vec<(InterruptKind, u16, u64)> {
        let state = self.lock();
        let mut counts = Vec::new();
        if state.line.count > 0 {
            counts.push((InterruptKind::Intx, 0, state.line.count));
        }
        for (kind, messages) in [(InterruptKind::Msi, &state.msi), (InterruptKind::Msix, &state.msix)] {
            for (number, vector) in (0u16..).zip(&messages.vectors) {
                if vector.count > 0 {
                    counts.push((kind, number, vector.count));
                }
            }
        }
        counts
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, InterruptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InterruptState {
    /// Everything off, as after a reset; nothing is signalled. Counts stay.
    pub(crate) fn reset(&mut self) {
        self.enabled = None;
        self.function_mask = false;
        self.line = Line { present: self.line.present, count: self.line.count, ..Line::default() };
        self.msi.reset(0);
        self.msix.reset(MASKED);
    }

    /// How many vectors of a kind there are.
    pub(crate) fn count(&self, kind: InterruptKind) -> u16 {
        match kind {
            InterruptKind::Intx => u16::from(self.line.present),
            InterruptKind::Msi => self.msi.count(),
            InterruptKind::Msix => self.msix.count(),
        }
    }

    pub(crate) fn enable(
        &mut self,
        kind: InterruptKind,
        events: &[Option<EventFd>],
    ) -> Result<(), InterruptError> {
        let count = self.count(kind);
        if count == 0 {
            return Err(InterruptError::NotSupported { kind });
        }
        if let Some(enabled) = self.enabled {
            return Err(InterruptError::AlreadyEnabled { kind, enabled });
        }
        let wanted = u16::try_from(events.len()).unwrap_or(u16::MAX);
        if wanted > count {
            return Err(InterruptError::NoSuchVector { kind, vector: wanted - 1, count });
        }
        if kind == InterruptKind::Msi && !wanted.is_power_of_two() {
            return Err(InterruptError::NotPowerOfTwo { count: wanted });
        }
        self.enabled = Some(kind);
        match kind {
            InterruptKind::Intx => {
                self.line.event = events.first().cloned().flatten();
                self.line.masked = false;
                self.fire_line();
            }
            InterruptKind::Msi => {
                self.msi.active = wanted;
                for (vector, event) in self.msi.vectors.iter_mut().zip(events) {
                    vector.event = event.clone();
                    vector.control = 0;
                }
            }
            InterruptKind::Msix => {
                self.msix.active = wanted;
                for (vector, event) in self.msix.vectors.iter_mut().zip(events) {
                    vector.event = event.clone();
                    vector.control &= !MASKED;
                }
            }
        }
        Ok(())
    }

    /// Makes the `count` vectors from `start` of `kind` signal what `all` has for them, and
    /// enables the kind with `all` where it is off. As many vectors as `all` has are enabled
    /// then, if there were not more. All of it is done, or nothing; and it is one step, so that
    /// what is raised meanwhile reaches the old event files or the new ones.
    pub(crate) fn assign(
        &mut self,
        kind: InterruptKind,
        (start, count): (u16, u16),
        all: &[Option<EventFd>],
    ) -> Result<(), InterruptError> {
        if self.enabled.is_none() {
            return self.enable(kind, all);
        }
        let wanted = u16::try_from(all.len()).unwrap_or(u16::MAX);
        if kind == InterruptKind::Msi && !wanted.is_power_of_two() {
            return Err(InterruptError::NotPowerOfTwo { count: wanted });
        }
        let end = start.saturating_add(count);
        self.check(kind, wanted.max(end).saturating_sub(1))?;
        match kind {
            InterruptKind::Intx => {}
            InterruptKind::Msi => self.msi.active = self.msi.active.max(wanted),
            InterruptKind::Msix => self.msix.active = self.msix.active.max(wanted),
        }
        for (vector, event) in (start..end).zip(all.iter().skip(usize::from(start))) {
            match event {
                Some(event) => self.attach(kind, vector, event)?,
                None => self.detach(kind, vector)?,
            }
        }
        Ok(())
    }

    pub(crate) fn attach(
        &mut self,
        kind: InterruptKind,
        vector: u16,
        event: &EventFd,
    ) -> Result<(), InterruptError> {
        self.check(kind, vector)?;
        let function_mask = self.function_mask;
        match kind {
            InterruptKind::Intx => {
                self.line.event = Some(event.clone());
                self.fire_line();
            }
            InterruptKind::Msi => {
                self.check_grow(kind, vector, self.msi.active)?;
                self.msi.vector(vector).event = Some(event.clone());
            }
            InterruptKind::Msix => {
                if self.fixed_vectors {
                    self.check_grow(kind, vector, self.msix.active)?;
                }
                let place = self.msix.vector(vector);
                place.event = Some(event.clone());
                place.control &= !MASKED;
                self.msix.fire_pending(vector, function_mask);
            }
        }
        Ok(())
    }

    pub(crate) fn detach(&mut self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        let count = self.count(kind);
        if vector >= count {
            return Err(InterruptError::NoSuchVector { kind, vector, count });
        }
        match kind {
            InterruptKind::Intx => self.line.event = None,
            InterruptKind::Msi => self.msi.vector(vector).event = None,
            InterruptKind::Msix => {
                let place = self.msix.vector(vector);
                place.event = None;
                place.control |= MASKED;
            }
        }
        Ok(())
    }

    pub(crate) fn disable(&mut self, kind: InterruptKind) {
        if self.enabled != Some(kind) {
            return;
        }
        self.enabled = None;
        match kind {
            InterruptKind::Intx => {
                self.line.event = None;
                self.line.masked = false;
            }
            InterruptKind::Msi => self.msi.reset(0),
            InterruptKind::Msix => self.msix.reset(MASKED),
        }
    }

    pub(crate) fn set_masked(
        &mut self,
        kind: InterruptKind,
        vector: u16,
        masked: bool,
    ) -> Result<(), InterruptError> {
        self.check(kind, vector)?;
        let function_mask = self.function_mask;
        match kind {
            InterruptKind::Intx => {
                self.line.masked = masked;
                self.fire_line();
            }
            InterruptKind::Msi if !self.msi.maskable => return Err(InterruptError::NotMaskable { kind }),
            InterruptKind::Msi => self.msi.set_masked(vector, masked, false),
            InterruptKind::Msix => self.msix.set_masked(vector, masked, function_mask),
        }
        Ok(())
    }

    pub(crate) fn self_test(&mut self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        self.check(kind, vector)?;
        let event = match kind {
            InterruptKind::Intx => &self.line.event,
            InterruptKind::Msi => &self.msi.vector(vector).event,
            InterruptKind::Msix => &self.msix.vector(vector).event,
        };
        if let Some(event) = event {
            event.signal(1);
        }
        Ok(())
    }

    /// Interrupt Disable in the Command register.
    pub(crate) fn set_line_disabled(&mut self, disabled: bool) {
        self.line.disabled = disabled;
        self.fire_line();
    }

    /// Whether Interrupt Status in the Status register is set: a function with messages
    /// enabled has no line.
    pub(crate) fn line_status(&self) -> bool {
        let messages = matches!(self.enabled, Some(InterruptKind::Msi | InterruptKind::Msix));
        self.line.present && self.line.asserted && !messages
    }

    /// The mask bits of MSI were written.
    pub(crate) fn write_msi_masks(&mut self, masks: u32) {
        for number in 0..self.msi.count() {
            self.msi.set_masked(number, masks >> number & 1 != 0, false);
        }
    }

    /// The mask bits of MSI.
    pub(crate) fn msi_masks(&self) -> u32 {
        self.msi.bits(|vector| vector.control & MASKED != 0)
    }

    /// The pending bits of MSI.
    pub(crate) fn msi_pending(&self) -> u32 {
        self.msi.bits(|vector| vector.pending)
    }

    /// How many vectors of MSI are in use, as a power of two.
    pub(crate) fn msi_enabled_log2(&self) -> u16 {
        log2(self.msi.active)
    }

    /// The function mask of MSI-X was written.
    pub(crate) fn set_function_mask(&mut self, masked: bool) {
        self.function_mask = masked;
        self.fire_all_pending();
    }

    /// The Vector Control word of an MSI-X entry was written.
    pub(crate) fn write_vector_control(&mut self, vector: u16, control: u32) {
        if let Some(place) = self.msix.vectors.get_mut(usize::from(vector)) {
            place.control = control;
        }
        self.fire_all_pending();
    }

    fn fire_all_pending(&mut self) {
        if self.enabled == Some(InterruptKind::Msix) {
            for number in 0..self.msix.count() {
                self.msix.fire_pending(number, self.function_mask);
            }
        }
    }

    fn fire_line(&mut self) {
        let line = &mut self.line;
        if self.enabled == Some(InterruptKind::Intx) && line.asserted && !line.masked && !line.disabled {
            // Level-triggered: masked until the driver has served the device.
            line.masked = true;
            if let Some(event) = &line.event {
                line.count += 1;
                event.signal(1);
            }
        }
    }

    fn check(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError> {
        if self.enabled != Some(kind) {
            return Err(InterruptError::NotEnabled { kind });
        }
        let count = self.count(kind);
        if vector >= count { Err(InterruptError::NoSuchVector { kind, vector, count }) } else { Ok(()) }
    }

    fn check_grow(&self, kind: InterruptKind, vector: u16, enabled: u16) -> Result<(), InterruptError> {
        if vector < enabled { Ok(()) } else { Err(InterruptError::CannotGrow { kind, vector, enabled }) }
    }
}

impl Messages {
    fn count(&self) -> u16 {
        // CAST: at most 2048, as the profile was checked.
        u16::try_from(self.vectors.len()).unwrap_or(u16::MAX)
    }

    /// A vector whose number was checked.
    fn vector(&mut self, number: u16) -> &mut Vector {
        // PANIC: the callers have compared the number with `count`.
        &mut self.vectors[usize::from(number)]
    }

    fn reset(&mut self, control: u32) {
        self.active = 0;
        for vector in &mut self.vectors {
            *vector = Vector { control, count: vector.count, ..Vector::default() };
        }
    }

    fn raise(&mut self, number: u16, all_masked: bool) {
        let Some(vector) = self.vectors.get_mut(usize::from(number)) else { return };
        if all_masked || vector.control & MASKED != 0 {
            vector.pending = true;
        } else {
            vector.fire();
        }
    }

    fn set_masked(&mut self, number: u16, masked: bool, all_masked: bool) {
        let Some(vector) = self.vectors.get_mut(usize::from(number)) else { return };
        vector.control = vector.control & !MASKED | u32::from(masked);
        self.fire_pending(number, all_masked);
    }

    fn fire_pending(&mut self, number: u16, all_masked: bool) {
        let Some(vector) = self.vectors.get_mut(usize::from(number)) else { return };
        if vector.pending && !all_masked && vector.control & MASKED == 0 {
            vector.pending = false;
            vector.fire();
        }
    }

    fn bits(&self, set: impl Fn(&Vector) -> bool) -> u32 {
        let bits = self.vectors.iter().take(32).enumerate();
        let all = bits.fold(0, |all, (number, vector)| all | u32::from(set(vector)) << number);
        all & vector_bits(self.count())
    }
}

impl Vector {
    fn fire(&mut self) {
        if let Some(event) = &self.event {
            self.count += 1;
            event.signal(1);
        }
    }
}

/// The mask bit of a Vector Control word.
pub(crate) const MASKED: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The interrupts of a function with four vectors of both kinds of messages.
    fn unit() -> InterruptUnit {
        let messages = || Messages { vectors: vec![Vector::default(); 4], maskable: true, active: 0 };
        let mut state = InterruptState {
            session: 0,
            enabled: None,
            line: Line::default(),
            msi: messages(),
            msix: messages(),
            function_mask: false,
            fixed_vectors: true,
        };
        state.reset();
        InterruptUnit { state: Mutex::new(state) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs event files")]
    fn more_vectors_take_nothing_from_those_that_are_there() {
        for kind in [InterruptKind::Msi, InterruptKind::Msix] {
            let unit = unit();
            let events: Vec<Option<EventFd>> = (0..4).map(|_| Some(EventFd::new().unwrap())).collect();
            let taken = || events.iter().flatten().map(EventFd::take).collect::<Vec<_>>();
            unit.lock().assign(kind, (0, 1), &events[..1]).unwrap();
            unit.lock().set_masked(kind, 0, true).unwrap();
            unit.message(0);
            unit.lock().assign(kind, (1, 3), &events).unwrap();
            unit.message(3);
            assert_eq!(taken(), [0, 0, 0, 1], "{kind}");
            unit.lock().set_masked(kind, 0, false).unwrap();
            assert_eq!(taken(), [1, 0, 0, 0], "{kind}: what waited for the mask was not lost");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs event files")]
    fn an_assignment_that_fails_changes_nothing() {
        for kind in [InterruptKind::Msi, InterruptKind::Msix] {
            let unit = unit();
            let [old, new] = [EventFd::new().unwrap(), EventFd::new().unwrap()];
            unit.lock().assign(kind, (0, 2), &[Some(old.clone()), Some(old.clone())]).unwrap();
            let all = vec![Some(new.clone()); 8];
            let refused = unit.lock().assign(kind, (0, 8), &all).unwrap_err();
            assert_eq!(refused, InterruptError::NoSuchVector { kind, vector: 7, count: 4 });
            let other = if kind == InterruptKind::Msi { InterruptKind::Msix } else { InterruptKind::Msi };
            let refused = unit.lock().assign(other, (0, 1), &all[..1]).unwrap_err();
            assert_eq!(refused, InterruptError::NotEnabled { kind: other });
            unit.message(0);
            unit.message(1);
            assert_eq!((old.take(), new.take()), (2, 0), "{kind}");
            unit.lock().assign(kind, (1, 1), &[None, Some(new.clone())]).unwrap();
            unit.message(0);
            unit.message(1);
            assert_eq!((old.take(), new.take()), (1, 1), "{kind}: only those of the range");
        }
    }
}
