//! Interrupts, by signalling the vectors as if the device had.

use std::time::Duration;

use anyhow::{Result, ensure};
use vdk_hal::config::{self, Msi, Msix};
use vdk_hal::function::PciFunction;
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind};

use super::{Target, ensure_equal, ensure_error};

const KINDS: [InterruptKind; 3] = [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix];
/// How long a signal that must come may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn counts(target: &Target) -> Result<()> {
    let function = target.open()?;
    let config = function.config();
    let msi = Msi::find(config)?.map_or(0, |msi| msi.vectors());
    let msix = Msix::find(config)?.map_or(0, |msix| msix.vectors());
    let pin = config.read8(config::register::INTERRUPT_PIN)?;
    ensure_equal("INTx", function.interrupts().vector_count(InterruptKind::Intx), u16::from(pin != 0))?;
    ensure_equal("MSI", function.interrupts().vector_count(InterruptKind::Msi), msi)?;
    ensure_equal("MSI-X", function.interrupts().vector_count(InterruptKind::Msix), msix)
}

pub(super) fn vectors(target: &Target) -> Result<()> {
    let function = target.open()?;
    for (kind, events) in kinds(&*function)? {
        let interrupts = function.interrupts();
        interrupts.enable(kind, &events.iter().cloned().map(Some).collect::<Vec<_>>())?;
        ensure_equal("the enabled kind", interrupts.enabled(), Some(kind))?;
        for (vector, event) in (0..).zip(&events) {
            interrupts.self_test(kind, vector)?;
            ensure!(event.wait(LIMIT)?, "{kind} vector {vector} signalled nothing");
            let counts: Vec<u64> = events.iter().map(EventFd::take).collect();
            let expected: Vec<u64> = (0..events.len()).map(|n| u64::from(n == usize::from(vector))).collect();
            ensure_equal("signals by vector", counts, expected)?;
        }
        interrupts.disable_all(kind)?;
    }
    Ok(())
}

pub(super) fn disable(target: &Target) -> Result<()> {
    let function = target.open()?;
    for (kind, events) in kinds(&*function)? {
        let interrupts = function.interrupts();
        interrupts.disable_all(kind)?;
        for _ in 0..2 {
            interrupts.enable(kind, &events.iter().cloned().map(Some).collect::<Vec<_>>())?;
            interrupts.disable_all(kind)?;
            interrupts.disable_all(kind)?;
            ensure_equal("the enabled kind", interrupts.enabled(), None)?;
        }
        ensure!(events.iter().all(|event| event.take() == 0), "disabling {kind} signalled a vector");
    }
    Ok(())
}

pub(super) fn detach(target: &Target) -> Result<()> {
    let function = target.open()?;
    for (kind, events) in kinds(&*function)? {
        let interrupts = function.interrupts();
        interrupts.enable(kind, &events.iter().cloned().map(Some).collect::<Vec<_>>())?;
        interrupts.detach(kind, 0)?;
        // Whether a test of a vector without an event is an error is for the backend to say.
        let _ = interrupts.self_test(kind, 0);
        ensure_equal("signals of a detached vector", events[0].take(), 0)?;
        interrupts.attach(kind, 0, &events[0])?;
        interrupts.self_test(kind, 0)?;
        ensure!(events[0].wait(LIMIT)?, "{kind} vector 0 signalled nothing after it was attached again");
        interrupts.disable_all(kind)?;
        events[0].drain();
    }
    Ok(())
}

pub(super) fn refusals(target: &Target) -> Result<()> {
    let function = target.open()?;
    let interrupts = function.interrupts();
    let present = kinds(&*function)?;
    for kind in KINDS {
        let count = interrupts.vector_count(kind);
        ensure_error!(
            interrupts.mask(kind, 0),
            InterruptError::NotEnabled { .. } | InterruptError::NotSupported { .. }
        );
        if count == 0 {
            ensure_error!(interrupts.enable(kind, &[None]), InterruptError::NotSupported { .. });
            continue;
        }
        let many = vec![None; usize::from(count) * 2];
        ensure_error!(interrupts.enable(kind, &many), InterruptError::NoSuchVector { .. });
        interrupts.enable(kind, &[None])?;
        ensure_error!(interrupts.enable(kind, &[None]), InterruptError::AlreadyEnabled { .. });
        for (other, _) in present.iter().filter(|(other, _)| *other != kind) {
            ensure_error!(interrupts.enable(*other, &[None]), InterruptError::AlreadyEnabled { .. });
        }
        ensure_error!(interrupts.attach(kind, count, &EventFd::new()?), InterruptError::NoSuchVector { .. });
        ensure_equal("the enabled kind after refusals", interrupts.enabled(), Some(kind))?;
        interrupts.disable_all(kind)?;
    }
    Ok(())
}

/// The kinds that the function has, with an event for each vector.
fn kinds(function: &dyn PciFunction) -> Result<Vec<(InterruptKind, Vec<EventFd>)>> {
    let mut kinds = Vec::new();
    for kind in KINDS {
        let count = function.interrupts().vector_count(kind);
        let events = (0..count).map(|_| EventFd::new()).collect::<std::io::Result<Vec<_>>>()?;
        if count > 0 {
            kinds.push((kind, events));
        }
    }
    Ok(kinds)
}
