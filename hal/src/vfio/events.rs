//! What the kernel says about a function out of band, handed on as events.

use core::time::Duration;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vfio_bindings::bindings::vfio as abi;

use super::device::{Device, Unreached};
use super::irq::connect_device_event;
use crate::bar::LivenessState;
use crate::config::{ConfigError, ConfigSpace, require_present};
use crate::event::{DeviceEvent, DeviceEvents};
use crate::interrupt::EventFd;

/// A thread that waits for errors, release requests and the end of the function.
pub(super) struct Watcher {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

/// What it watches.
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) device: Arc<Device>,
    pub(super) config: Box<dyn ConfigSpace>,
    pub(super) events: DeviceEvents,
    pub(super) release_limit: Option<Duration>,
    /// Closes the function, when its owner does not.
    pub(super) close: Box<dyn Fn() + Send>,
}

/// The events of the kernel.
struct Sources {
    stop: EventFd,
    error: EventFd,
    release: EventFd,
}

impl Watcher {
    pub(super) fn start(watched: Watched) -> std::io::Result<Self> {
        let sources = Sources { stop: EventFd::new()?, error: EventFd::new()?, release: EventFd::new()? };
        for (index, event) in
            [(abi::VFIO_PCI_ERR_IRQ_INDEX, &sources.error), (abi::VFIO_PCI_REQ_IRQ_INDEX, &sources.release)]
        {
            match connect_device_event(&watched.device, index, Some(event)) {
                Ok(_) => {}
                Err(Unreached::Failed(error)) => log::warn!("{}: no events {index}: {error}", watched.name),
                Err(_) => break,
            }
        }
        let stop = sources.stop.clone();
        let thread = std::thread::Builder::new().name("vfio-events".to_owned());
        let thread = thread.spawn(move || watch(&watched, &sources))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread, and no event is raised after that. Harmless on the thread itself.
    pub(super) fn stop(mut self, device: &Device) {
        for index in [abi::VFIO_PCI_ERR_IRQ_INDEX, abi::VFIO_PCI_REQ_IRQ_INDEX] {
            // What is not connected any more went with the function.
            let _ = connect_device_event(device, index, None);
        }
        self.stop.signal(1);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            log::error!("the thread of device events has panicked");
        }
    }
}

fn watch(watched: &Watched, sources: &Sources) {
    let mut due = None;
    let mut removed = false;
    loop {
        let mut files = [&sources.stop, &sources.error, &sources.release]
            .map(|event| PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN));
        let wait = due.map_or(LOOK, |due: Instant| due.saturating_duration_since(Instant::now()).min(LOOK));
        match poll(&mut files, Timespec::try_from(wait).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                log::error!("{}: no more device events: {error}", watched.name);
                return;
            }
        }
        if sources.stop.take() > 0 {
            return;
        }
        if sources.error.take() > 0 {
            watched.events.raise(DeviceEvent::Error);
        }
        if sources.release.take() > 0 {
            watched.events.raise(DeviceEvent::ReleaseRequested);
            due = due.or_else(|| Instant::now().checked_add(watched.release_limit?));
        }
        if due.is_some_and(|due| Instant::now() >= due) {
            log::warn!(
                "{}: the kernel wants it back and its driver does not close it; closing it",
                watched.name
            );
            (watched.close)();
            return;
        }
        if !removed && is_removed(watched) {
            removed = true;
            watched.device.liveness().remove();
            watched.events.raise(DeviceEvent::Removed);
        }
    }
}

/// Whether the function is gone. Looking at it would wake it from low power.
fn is_removed(watched: &Watched) -> bool {
    match watched.device.liveness().state() {
        LivenessState::Gone => true,
        LivenessState::Closed => false,
        LivenessState::Asleep if watched.device.is_resting() => false,
        LivenessState::Live | LivenessState::Asleep => {
            matches!(require_present(&*watched.config), Err(ConfigError::DeviceGone))
        }
    }
}

/// How long the removal of a function may go unnoticed.
const LOOK: Duration = Duration::from_millis(500);
