//! Interruption by the user or by the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use vdk_driver::hal::event::{DeviceEvent, DeviceEvents};

/// Whether the user asked to stop, by Ctrl-C or SIGTERM. A second request ends the process
/// at once.
#[derive(Clone, Debug)]
pub(crate) struct StopRequest {
    flag: Arc<AtomicBool>,
    device: Option<Device>,
}

/// A device that is looked after, and why it is lost, for all clones.
#[derive(Clone, Debug)]
struct Device {
    events: DeviceEvents,
    lost: Arc<OnceLock<DeviceLost>>,
}

impl StopRequest {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds the flag unset and only sets it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("cannot listen for signals")?;
        }
        Ok(Self { flag, device: None })
    }

    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Relaxed; the flag carries nothing but itself.
        self.flag.load(Ordering::Relaxed)
    }

    /// Has [`check`](Self::check) look after a device too, by what it tells out of band.
    pub(crate) fn watching(self, events: &DeviceEvents) -> Self {
        Self { device: Some(Device { events: events.clone(), lost: Arc::default() }), ..self }
    }

    /// Whether to go on. Takes a system call.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], which says that things are `left` like this; [`DeviceLost`].
    pub(crate) fn check(&self, left: &'static str) -> Result<()> {
        if self.is_set() {
            return Err(Interrupted(left).into());
        }
        let Some(Device { events, lost }) = &self.device else { return Ok(()) };
        if lost.get().is_none()
            && let Some(event) = events.next()
        {
            let _ = lost.set(DeviceLost { event, left });
        }
        match lost.get() {
            Some(lost) => Err((*lost).into()),
            None => Ok(()),
        }
    }

    /// Waits until a file can be read without waiting, or is at its end.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub(crate) fn await_readable(&self, file: &impl AsFd, left: &'static str) -> Result<()> {
        self.await_ready(file, PollFlags::IN, left)
    }

    /// Waits until a file can be written without waiting, or nobody reads it any more.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub(crate) fn await_writable(&self, file: &impl AsFd, left: &'static str) -> Result<()> {
        self.await_ready(file, PollFlags::OUT, left)
    }

    fn await_ready(&self, file: &impl AsFd, wanted: PollFlags, left: &'static str) -> Result<()> {
        loop {
            self.check(left)?;
            // An end or an error is told by the read or the write that follows.
            match poll(&mut [PollFd::new(file, wanted)], Some(&SLICE)) {
                Ok(count) if count > 0 => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a file"),
            }
        }
    }
}

/// How long a wait lasts before it looks whether to stop: a signal may come just before it.
const SLICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The user asked to stop. Says how things are left.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted: {0}")]
pub(crate) struct Interrupted(pub(crate) &'static str);

/// The device cannot be used any more. Says how things are left.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{}: {left}", reason(*event))]
pub(crate) struct DeviceLost {
    event: DeviceEvent,
    left: &'static str,
}

fn reason(event: DeviceEvent) -> &'static str {
    match event {
        DeviceEvent::Removed => "the device was removed",
        DeviceEvent::ReleaseRequested => "the system asked for the device back, to unbind or remove it",
        DeviceEvent::Error => "the device reported an uncorrectable error, see `dmesg`",
        _ => "something happened to the device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_tells_stops_everybody_who_looks_after_it() {
        for (event, text) in [
            (DeviceEvent::Removed, "the device was removed: so"),
            (
                DeviceEvent::ReleaseRequested,
                "the system asked for the device back, to unbind or remove it: so",
            ),
            (DeviceEvent::Error, "the device reported an uncorrectable error, see `dmesg`: so"),
        ] {
            let events = DeviceEvents::new().unwrap();
            let stop = StopRequest::listen().unwrap().watching(&events);
            let other = stop.clone();
            stop.check("so").unwrap();
            events.raise(event);
            assert_eq!(other.check("so").unwrap_err().to_string(), text);
            assert_eq!(stop.check("so").unwrap_err().to_string(), text);
            assert!(!stop.is_set());
        }
    }

    #[test]
    fn who_waits_for_a_file_hears_what_the_device_tells() {
        let (reader, writer) = std::io::pipe().unwrap();
        let events = DeviceEvents::new().unwrap();
        let stop = StopRequest::listen().unwrap().watching(&events);
        stop.await_writable(&writer, "so").unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stop.await_readable(&reader, "so"));
            events.raise(DeviceEvent::ReleaseRequested);
            let error = waiting.join().unwrap().unwrap_err().to_string();
            assert!(error.ends_with("to unbind or remove it: so"), "{error}");
        });
        drop(writer);
        // The end of a file is no wait either.
        StopRequest::listen().unwrap().await_readable(&reader, "so").unwrap();
    }
}
