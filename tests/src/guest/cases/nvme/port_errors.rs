//! Errors that the port above the controller reports: the host injects them, the kernel's AER
//! driver handles them.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use vdk_driver::nvme::{CompletionMode, ControllerOptions, QueueOptions};
use vdk_hal::event::DeviceEvent;

use super::bed::{Bed, LONG, note};
use super::life::submit_all;
use crate::guest::Guest;

/// The setting `port` is what the host calls the port.
pub(super) fn port_errors(guest: &Guest) -> Result<()> {
    guest.part("an error that is not fatal is an event, and I/O goes on", not_fatal(guest));
    guest.part("a fatal error is an event, and every command ends once", fatal(guest));
    guest.part("the controller works when it is opened again", again(guest));
    Ok(())
}

/// Has the host inject an error, and waits for what the kernel makes of it.
fn inject(guest: &Guest, bed: &Bed, error: &str) -> Result<()> {
    ensure!(bed.controller.next_device_event().is_none(), "there was an event before");
    guest.ask(&format!("aer {} {error}", guest.setting("port")?))?;
    let end = Instant::now() + LONG;
    loop {
        match bed.controller.next_device_event() {
            Some(DeviceEvent::Error) => return Ok(()),
            Some(other) => ensure!(false, "{other:?}"),
            None => ensure!(Instant::now() < end, "no event came"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn not_fatal(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 16)?;
    let memory = [bed.entry(0, bed.block())?];
    bed.read(0, &memory)?;
    inject(guest, &bed, "COMP_TIME")?;
    for block in 0..100 {
        bed.read(block, &memory)?;
    }
    Ok(())
}

/// The kernel resets everything below the port, behind the back of the driver.
fn fatal(guest: &Guest) -> Result<()> {
    let queue = QueueOptions { time_limit: Duration::from_millis(500), ..QueueOptions::default() };
    let mut bed = Bed::with(guest, 1 << 16, ControllerOptions::default(), queue)?;
    let (mut ended, mut twice) = (BTreeMap::new(), None);
    let mut next = submit_all(&mut bed, 0)?;
    inject(guest, &bed, "DLP")?;
    let end = Instant::now() + LONG;
    // The queue is kept full until the controller is found to have failed.
    let failure = loop {
        ensure!(Instant::now() < end, "{} of {next} commands ended, and no error", ended.len());
        if let Err(error) = bed.pair.wait(CompletionMode::Adaptive, Duration::from_secs(10)) {
            break error.to_string();
        }
        if let Err(error) = bed.pair.poll(u32::MAX, |completion| note(&mut ended, &mut twice, completion)) {
            break error.to_string();
        }
        match submit_all(&mut bed, next) {
            Ok(later) => next = later,
            Err(error) => {
                bed.pair.failure().with_context(|| format!("not a failure: {error:#}"))?;
                break error.to_string();
            }
        }
    };
    println!("{failure}");
    // The reset may fail, since the kernel does not bring the BARs back; the commands end.
    if let Err(error) = bed.pair.recover(|completion| note(&mut ended, &mut twice, completion)) {
        println!("{error}");
    }
    let submitted = bed.pair.statistics();
    ensure!(twice.is_none(), "command {twice:?} ended twice");
    ensure!(ended.keys().copied().eq(0..next), "{} of {next} ended: {submitted:?}", ended.len());
    let failed = ended.values().filter(|result| result.is_err()).count();
    ensure!(failed > 0, "no command failed");
    Ok(())
}

fn again(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 16)?;
    let memory = [bed.entry(0, bed.block())?];
    for block in 0..100 {
        bed.read(block, &memory)?;
    }
    Ok(())
}
