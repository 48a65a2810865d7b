//! Interrupts of a client: which vectors signal which of its event files.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use vdk_hal::config::Msi;
use vdk_hal::function::PciFunction;
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind};
use vdk_hal::vfio_user::message::{InterruptIndex, InterruptInfo, InterruptSet, argument_size};
use vdk_hal::vfio_user::transport::Message;

use super::reply::{Answer, Refusal, Reply};
use super::session::parse;
use crate::shell::StubFunction;

/// What a client has set up. It outlives a reset of the function, which takes the event
/// files away: [`restore`](Self::restore) gives them back.
#[derive(Debug)]
pub(super) struct InterruptSetup {
    msi_maskable: bool,
    enabled: Option<(InterruptKind, Vec<Option<EventFd>>)>,
    /// Told of errors of the function.
    error: Option<EventFd>,
    /// Told that the function is wanted back.
    request: Option<EventFd>,
    /// Unmasks INTx when it is signalled.
    unmask: Option<EventFd>,
}

/// For which vectors of the range a command is meant.
enum Selection<'a> {
    All,
    Those(&'a [u8]),
}

impl Selection<'_> {
    fn has(&self, number: usize) -> bool {
        match self {
            Self::All => true,
            Self::Those(bytes) => bytes.get(number).is_some_and(|byte| *byte != 0),
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Mask,
    Unmask,
    Trigger,
}

impl InterruptSetup {
    pub(super) fn new(function: &dyn PciFunction) -> Self {
        let msi = Msi::find(function.config()).ok().flatten();
        let msi_maskable = msi.is_some_and(|msi| msi.control.per_vector_masking());
        Self { msi_maskable, enabled: None, error: None, request: None, unmask: None }
    }

    /// Answers what a kind of interrupt is.
    pub(super) fn info(&self, function: &dyn PciFunction, request: &InterruptInfo) -> Answer {
        let index = index(request.index)?;
        let fixed = match index {
            InterruptIndex::Intx => InterruptInfo::MASKABLE | InterruptInfo::AUTOMASKED,
            InterruptIndex::Msi if self.msi_maskable => InterruptInfo::MASKABLE | InterruptInfo::NO_RESIZE,
            InterruptIndex::Msi => InterruptInfo::NO_RESIZE,
            InterruptIndex::Msix if function.interrupts().can_attach_later(InterruptKind::Msix) => {
                InterruptInfo::MASKABLE
            }
            InterruptIndex::Msix => InterruptInfo::MASKABLE | InterruptInfo::NO_RESIZE,
            InterruptIndex::Error | InterruptIndex::Request => InterruptInfo::NO_RESIZE,
        };
        Ok(Reply::of(&InterruptInfo {
            argument_size: argument_size::<InterruptInfo>(),
            flags: InterruptInfo::EVENT_FILE | fixed,
            index: request.index,
            count: count(function, index),
        }))
    }

    /// Does what a client asks for.
    pub(super) fn set(&mut self, function: &StubFunction, message: Message) -> Answer {
        let (request, bytes) = parse::<InterruptSet>(&message)?;
        let index = index(request.index)?;
        let action = match request.flags & InterruptSet::ACTION {
            InterruptSet::ACTION_MASK => Action::Mask,
            InterruptSet::ACTION_UNMASK => Action::Unmask,
            InterruptSet::ACTION_TRIGGER => Action::Trigger,
            flags => return Err(Refusal::invalid(format!("the actions {flags:#x} are not one action"))),
        };
        if request.flags & !(InterruptSet::ACTION | InterruptSet::DATA) != 0 {
            return Err(Refusal::invalid(format!("unknown flags in {:#x}", request.flags)));
        }
        let data = request.flags & InterruptSet::DATA;
        let has_files = !message.files.is_empty();
        if has_files && data != InterruptSet::DATA_EVENT_FILE {
            return Err(Refusal::invalid("event files came along, and are not spoken of"));
        }
        if request.count == 0 {
            let ends = data == InterruptSet::DATA_NONE && action == Action::Trigger && request.start == 0;
            return if ends {
                self.disable(function, index)
            } else {
                Err(Refusal::invalid("no vector is named"))
            };
        }
        let (start, count) = vectors(function, index, &request)?;
        match data {
            InterruptSet::DATA_NONE => self.act(function, index, action, start, count, &Selection::All),
            InterruptSet::DATA_BOOL => {
                let length = usize::from(count);
                let bytes = bytes.get(..length).ok_or_else(|| {
                    Refusal::invalid(format!("{} truth values for {length} vectors", bytes.len()))
                })?;
                self.act(function, index, action, start, count, &Selection::Those(bytes))
            }
            InterruptSet::DATA_EVENT_FILE => {
                let events = events(message.files, count)?;
                self.assign(function, index, action, start, events)
            }
            _ => Err(Refusal::invalid(format!("the data flags {data:#x} are not one kind of data"))),
        }
    }

    /// Gives the event files back after a reset of the function, if it took them.
    pub(super) fn restore(&self, function: &dyn PciFunction) {
        let Some((kind, events)) = &self.enabled else { return };
        let interrupts = function.interrupts();
        if interrupts.enabled().is_none()
            && let Err(error) = interrupts.enable(*kind, events)
        {
            log::debug!("{}: {kind} is off after a reset: {error}", function.name());
        }
    }

    /// The event file that unmasks INTx.
    pub(super) fn unmask_event(&self) -> Option<&EventFd> {
        self.unmask.as_ref()
    }

    /// The event file that unmasks INTx was signalled.
    pub(super) fn unmask_by_event(&self, function: &dyn PciFunction) {
        if self.unmask.as_ref().is_some_and(|event| event.take() > 0)
            && let Err(error) = function.interrupts().unmask(InterruptKind::Intx, 0)
        {
            log::debug!("{}: INTx was not unmasked: {error}", function.name());
        }
    }

    /// Signals the event file for an event of the function.
    pub(super) fn signal(&self, index: InterruptIndex) {
        let event = match index {
            InterruptIndex::Error => &self.error,
            InterruptIndex::Request => &self.request,
            InterruptIndex::Intx | InterruptIndex::Msi | InterruptIndex::Msix => &None,
        };
        if let Some(event) = event {
            event.signal(1);
        }
    }

    fn disable(&mut self, function: &dyn PciFunction, index: InterruptIndex) -> Answer {
        match index {
            InterruptIndex::Error => self.error = None,
            InterruptIndex::Request => self.request = None,
            InterruptIndex::Intx | InterruptIndex::Msi | InterruptIndex::Msix => {
                let kind = kind(index)?;
                function.interrupts().disable_all(kind).map_err(|error| of_interrupt(&error))?;
                self.enabled.take_if(|(enabled, _)| *enabled == kind);
                if kind == InterruptKind::Intx {
                    self.unmask = None;
                }
            }
        }
        Ok(Reply::done())
    }

    /// Masks, unmasks or fires vectors.
    fn act(
        &self,
        function: &dyn PciFunction,
        index: InterruptIndex,
        action: Action,
        start: u16,
        count: u16,
        selection: &Selection<'_>,
    ) -> Answer {
        if matches!(index, InterruptIndex::Error | InterruptIndex::Request) {
            if action != Action::Trigger {
                return Err(Refusal::invalid("this interrupt cannot be masked"));
            }
            if selection.has(0) {
                self.signal(index);
            }
            return Ok(Reply::done());
        }
        let (kind, interrupts) = (kind(index)?, function.interrupts());
        if interrupts.enabled() != Some(kind) {
            return Err(Refusal::invalid(format!("{kind} is not enabled")));
        }
        for (number, vector) in (start..start.saturating_add(count)).enumerate() {
            if selection.has(number) {
                let done = match action {
                    Action::Mask => interrupts.mask(kind, vector),
                    Action::Unmask => interrupts.unmask(kind, vector),
                    Action::Trigger => interrupts.self_test(kind, vector),
                };
                done.map_err(|error| of_interrupt(&error))?;
            }
        }
        Ok(Reply::done())
    }

    /// Says what is signalled when a vector fires, or what unmasks the line.
    fn assign(
        &mut self,
        function: &StubFunction,
        index: InterruptIndex,
        action: Action,
        start: u16,
        events: Vec<Option<EventFd>>,
    ) -> Answer {
        let first = events.first().cloned().flatten();
        match (index, action) {
            (InterruptIndex::Error, Action::Trigger) => self.error = first,
            (InterruptIndex::Request, Action::Trigger) => self.request = first,
            (InterruptIndex::Intx, Action::Unmask) => self.unmask = first,
            (_, Action::Trigger) => return self.attach(function, kind(index)?, start, events),
            (_, Action::Mask | Action::Unmask) => {
                return Err(Refusal::new(Errno::OPNOTSUPP, "masking by an event file is not supported"));
            }
        }
        Ok(Reply::done())
    }

    fn attach(
        &mut self,
        function: &StubFunction,
        kind: InterruptKind,
        start: u16,
        events: Vec<Option<EventFd>>,
    ) -> Answer {
        let mut all = match &self.enabled {
            Some((enabled, _)) if *enabled != kind => {
                return Err(Refusal::invalid(format!("{enabled} is enabled, and {kind} is asked for")));
            }
            Some((_, events)) => events.clone(),
            None => Vec::new(),
        };
        let count = u16::try_from(events.len()).unwrap_or(u16::MAX);
        let first = usize::from(start);
        let mut length = all.len().max(first + events.len());
        if kind == InterruptKind::Msi {
            length = length.next_power_of_two();
        }
        // One message has few event files, so that the vectors of a kind may come in several.
        all.resize(length, None);
        for (place, event) in all.iter_mut().skip(first).zip(events) {
            *place = event;
        }
        function.assign_interrupts(kind, (start, count), &all).map_err(|error| of_interrupt(&error))?;
        self.enabled = Some((kind, all));
        Ok(Reply::done())
    }
}

fn index(number: u32) -> Result<InterruptIndex, Refusal> {
    InterruptIndex::from_number(number)
        .ok_or_else(|| Refusal::invalid(format!("there is no kind of interrupt {number}")))
}

fn kind(index: InterruptIndex) -> Result<InterruptKind, Refusal> {
    match index {
        InterruptIndex::Intx => Ok(InterruptKind::Intx),
        InterruptIndex::Msi => Ok(InterruptKind::Msi),
        InterruptIndex::Msix => Ok(InterruptKind::Msix),
        InterruptIndex::Error | InterruptIndex::Request => {
            Err(Refusal::invalid("this interrupt has no vectors"))
        }
    }
}

fn count(function: &dyn PciFunction, index: InterruptIndex) -> u32 {
    kind(index).map_or(1, |kind| u32::from(function.interrupts().vector_count(kind)))
}

/// The vectors that a command names, which are all there.
fn vectors(
    function: &dyn PciFunction,
    index: InterruptIndex,
    request: &InterruptSet,
) -> Result<(u16, u16), Refusal> {
    let (start, named, there) = (request.start, request.count, count(function, index));
    let inside = start.checked_add(named).is_some_and(|end| end <= there);
    let pair = u16::try_from(start).ok().zip(u16::try_from(named).ok()).filter(|_| inside);
    pair.ok_or_else(|| Refusal::invalid(format!("{named} vectors from {start}, of {there}")))
}

/// The event files that came along: one for each vector, or none at all.
fn events(files: Vec<OwnedFd>, count: u16) -> Result<Vec<Option<EventFd>>, Refusal> {
    let count = usize::from(count);
    if files.is_empty() {
        return Ok(vec![None; count]);
    }
    if files.len() != count {
        return Err(Refusal::invalid(format!("{} event files for {count} vectors", files.len())));
    }
    let events = files.into_iter().map(|file| EventFd::from_untrusted(file).map(Some));
    events
        .collect::<std::io::Result<_>>()
        .map_err(|error| Refusal::invalid(format!("a file is not an event file: {error}")))
}

fn of_interrupt(error: &InterruptError) -> Refusal {
    let number = match error {
        InterruptError::Gone | InterruptError::NotOpen => Errno::NODEV,
        InterruptError::NotMaskable { .. } | InterruptError::NotSupported { .. } => Errno::OPNOTSUPP,
        InterruptError::System { .. } => Errno::IO,
        _ => Errno::INVAL,
    };
    Refusal::new(number, error.to_string())
}
