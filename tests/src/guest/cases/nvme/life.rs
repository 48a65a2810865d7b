//! Resets, aborts, time limits and removal: every command ends once.

use core::time::Duration;
use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use vdk_driver::kit::{Registry, Session};
use vdk_driver::nvme::{
    CommandError, CompletionMode, Controller, ControllerOptions, QueueError, QueueOptions, RecoverError,
    ResetError, WaitError,
};
use vdk_hal::event::DeviceEvent;
use vdk_hal::poll::{Deadline, SystemClock};

use super::bed::{Bed, LONG, is_failure, note};
use crate::guest::Guest;

pub(super) fn life(guest: &Guest) -> Result<()> {
    guest.part("dozens of starts and stops leave nothing behind", starts(guest));
    guest.part("a reset in the middle of I/O ends each command once", resets(guest));
    guest.part("a close in the middle of I/O ends each command once", closes(guest));
    guest.part("an abort is answered and the command ends once", aborts(guest));
    guest.part("a stop under a queue gives its commands back", stops(guest));
    Ok(())
}

/// As many as the setting `starts` says. The kernel resets the function whenever it is opened
/// and closed, and sleeps for a tenth of a second each time.
fn starts(guest: &Guest) -> Result<()> {
    let rounds: u64 = guest.setting("starts").unwrap_or("25").parse()?;
    for round in 0..rounds {
        let mut bed = Bed::new(guest, 1 << 16)?;
        let memory = [bed.entry(0, bed.block())?];
        for command in 0..round % 5 {
            bed.pair.read(&bed.namespace, command, &memory, command)?;
        }
        // In half of the rounds commands are in flight when everything is dropped.
        if round % 2 == 0 {
            bed.finish().with_context(|| format!("round {round}"))?;
        } else {
            bed.pair.commit()?;
        }
    }
    Ok(())
}

/// Submits until the queue is full, all to be counted.
pub(super) fn submit_all(bed: &mut Bed, first: u64) -> Result<u64> {
    let memory = [bed.entry(0, bed.block())?];
    let (mut next, blocks) = (first, bed.namespace.blocks());
    while bed.pair.free() > 0 {
        bed.pair.read(&bed.namespace, next % blocks, &memory, next)?;
        next += 1;
    }
    bed.pair.commit()?;
    Ok(next)
}

fn resets(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 16)?;
    let mut other = bed.controller.queue_pair::<u64>(QueueOptions::default())?;
    let mut next = 0;
    for round in 0..10 {
        let first = next;
        next = submit_all(&mut bed, next)?;
        let memory = [bed.entry(0, bed.block())?];
        other.read(&bed.namespace, 0, &memory, 1)?;
        other.commit()?;
        let (mut ended, mut twice) = (BTreeMap::new(), None);
        if round % 2 == 0 {
            bed.pair.poll(3, |completion| note(&mut ended, &mut twice, completion))?;
        }
        bed.controller.reset()?;
        let refused = bed.pair.commit();
        ensure!(matches!(refused, Err(QueueError::Reset { .. })), "{refused:?}");
        bed.pair.recover(|completion| note(&mut ended, &mut twice, completion))?;
        ensure!(twice.is_none(), "command {twice:?} ended twice");
        ensure!(ended.keys().copied().eq(first..next), "{} of {} commands ended", ended.len(), next - first);
        for (owner, result) in &ended {
            let fine = matches!(result, Ok(_) | Err(CommandError::Reset));
            ensure!(fine, "command {owner} ended with {result:?}");
        }
        let mut others = 0;
        other.recover(|_| others += 1)?;
        ensure!(others == 1, "{others} commands of the other queue ended");
        bed.read(round, &memory)?;
    }
    Ok(())
}

fn closes(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 16)?;
    for _ in 0..5 {
        let count = submit_all(&mut bed, 0)?;
        let pair = bed.controller.queue_pair::<u64>(QueueOptions::default())?;
        let (mut ended, mut twice) = (BTreeMap::new(), None);
        for completion in core::mem::replace(&mut bed.pair, pair).close()? {
            note(&mut ended, &mut twice, completion);
        }
        ensure!(twice.is_none() && ended.len() as u64 == count, "{} of {count} ended", ended.len());
        let fine = |result: &Result<u32, CommandError>| match result {
            Ok(_) | Err(CommandError::Deleted | CommandError::Status { .. }) => true,
            Err(_) => false,
        };
        ensure!(ended.values().all(fine), "{ended:?}");
    }
    Ok(())
}

fn aborts(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 16)?;
    let memory = [bed.entry(0, bed.block())?];
    let cookie = bed.pair.read(&bed.namespace, 0, &memory, 0)?;
    bed.pair.commit()?;
    bed.pair.abort(cookie)?;
    let ended = bed.finish_all()?;
    ensure!(ended.len() == 1, "{ended:?}");
    ensure!(!bed.pair.abort(cookie)?, "a command that has ended was aborted");
    ensure!(bed.pair.statistics().aborts == 1, "{:?}", bed.pair.statistics());
    bed.read(1, &memory)
}

fn stops(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 16)?;
    let count = submit_all(&mut bed, 0)?;
    bed.controller.stop()?;
    let (mut ended, mut twice) = (BTreeMap::new(), None);
    let recovered = bed.pair.recover(|completion| note(&mut ended, &mut twice, completion));
    ensure!(matches!(recovered, Err(RecoverError::Reset(ResetError::Gone))), "{recovered:?}");
    ensure!(twice.is_none() && ended.len() as u64 == count, "{} of {count} ended", ended.len());
    Ok(())
}

/// A drive that is throttled to one operation in a while: the driver aborts what takes too
/// long, then finds it overdue, and a recovery gives everything back.
pub(super) fn slow(guest: &Guest) -> Result<()> {
    let queue = QueueOptions { depth: 16, time_limit: Duration::from_millis(400), ..QueueOptions::default() };
    let mut bed = Bed::with(guest, 1 << 16, ControllerOptions::default(), queue)?;
    let count = submit_all(&mut bed, 0)?;
    let (mut ended, mut twice) = (BTreeMap::new(), None);
    let failure = loop {
        match bed.pair.wait(CompletionMode::Adaptive, LONG) {
            Ok(()) => {
                bed.pair.poll(64, |completion| note(&mut ended, &mut twice, completion))?;
                ensure!(ended.len() as u64 <= count, "{} commands ended", ended.len());
                if bed.pair.outstanding() == 0 {
                    bail!("all commands ended in time: the drive is not slow");
                }
            }
            Err(error) if is_failure(&error) => break error,
            Err(error) => return Err(error.into()),
        }
    };
    let overdue = matches!(failure, WaitError::Queue(QueueError::Overdue { .. }));
    ensure!(overdue, "{failure}");
    ensure!(bed.pair.statistics().aborts > 0, "nothing was aborted");
    bed.pair.recover(|completion| note(&mut ended, &mut twice, completion))?;
    ensure!(twice.is_none() && ended.len() as u64 == count, "{} of {count} ended", ended.len());
    Ok(())
}

/// The host takes the controller away while commands are in flight.
pub(super) fn unplug(guest: &Guest) -> Result<()> {
    let node = guest.node()?;
    let device = guest.setting("unplug")?;
    let mut bed = Bed::new(guest, 1 << 16)?;
    let function = node.name().to_owned();
    let (mut first, mut total, mut ended, mut twice) = (0, 0u64, BTreeMap::new(), None);
    let (mut asked, mut told) = (false, None);
    let failure = loop {
        // Keep it busy until it is gone.
        match submit_all(&mut bed, first) {
            Ok(next) => (total, first) = (total + next - first, next),
            Err(error) if bed.pair.failure().is_some() => break error.to_string(),
            Err(error) => return Err(error),
        }
        if !asked {
            guest.ask(&format!("device_del {device}"))?;
            asked = true;
        }
        match bed.pair.wait(CompletionMode::Adaptive, Duration::from_secs(10)) {
            Ok(()) => {}
            Err(error) => break error.to_string(),
        }
        if let Err(error) = bed.pair.poll(u32::MAX, |completion| note(&mut ended, &mut twice, completion)) {
            break error.to_string();
        }
        if let Some(event @ (DeviceEvent::Removed | DeviceEvent::ReleaseRequested)) =
            bed.controller.next_device_event()
        {
            told = Some(event);
            break format!("{event:?}");
        }
        ensure!(ended.len() < 2_000_000, "{function} was never removed");
    };
    println!("{function}: {failure}");
    // The failure may be found before the event comes, but the event has to come.
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, Duration::from_secs(30));
    while told.is_none() {
        ensure!(!deadline.is_over(&clock), "no event told of the removal of {function}");
        bed.controller.device_events().event().wait(Duration::from_millis(100))?;
        told = bed
            .controller
            .next_device_event()
            .filter(|event| matches!(event, DeviceEvent::Removed | DeviceEvent::ReleaseRequested));
    }
    // It may succeed while the device is only asked for, and fails once it is gone, also in the
    // middle of the new start; what must not be is that nothing stopped the controller. Either
    // way every command has ended.
    let recovered = bed.pair.recover(|completion| note(&mut ended, &mut twice, completion));
    let stopped = !matches!(recovered, Err(RecoverError::Reset(ResetError::NotStopped(_))));
    ensure!(stopped, "after {told:?} the recovery ended with {recovered:?}");
    ensure!(recovered.is_ok() == bed.pair.failure().is_none(), "{recovered:?}, {:?}", bed.pair.failure());
    ensure!(twice.is_none(), "command {twice:?} ended twice");
    ensure!(ended.len() as u64 == total, "{} of {total} commands ended", ended.len());
    Ok(())
}

pub(super) fn kit(guest: &Guest) -> Result<()> {
    let registry = Registry::new()?;
    registry.register::<Controller>()?;
    let running = registry.start::<Controller>(&guest.node()?).map_err(|why| anyhow!("{why}"))?;
    let found = running.with(|controller| controller.namespaces().map_err(|error| error.to_string()));
    let found = found.context("the driver did not run")?;
    ensure!(found.as_ref().is_ok_and(|found| !found.is_empty()), "{found:?}");
    ensure!(running.stop().is_final(), "it did not stop");
    // The function can be opened again.
    drop(Session::open(&guest.node()?, "vdk-guest")?);
    Ok(())
}
