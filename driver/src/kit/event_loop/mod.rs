//! The thread that waits for event files and timers, for any number of sources.

mod timers;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use self::timers::{Armed, TimerTable};
use crate::hal::interrupt::EventFd;

/// A thread that watches event files and timers and wakes their sources. Clones share it;
/// when the last is dropped the thread ends.
#[derive(Clone)]
pub struct EventLoop {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
}

struct Core {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Signalled when the thread is to end.
    end: EventFd,
    next_token: AtomicU64,
    watches: Mutex<HashMap<u64, Watched>>,
    timers: Mutex<Timers>,
}

struct Watched {
    event: EventFd,
    watch: Arc<dyn Watch>,
}

struct Timers {
    table: TimerTable<Instant>,
    alarms: HashMap<u64, Weak<dyn Alarm>>,
}

/// What is woken when an event file is readable. Called on the loop's thread with its table
/// locked, so it takes the count, tells a queue, and returns.
pub(crate) trait Watch: Send + Sync {
    fn readable(&self, event: &EventFd);
}

/// What is woken when a timer is due. Called on the loop's thread with nothing locked.
pub(crate) trait Alarm: Send + Sync {
    fn due(self: Arc<Self>, deadline: Instant);
}

/// A watch that ends when it is dropped: then `readable` does not run and never will.
pub(crate) struct Registration {
    core: Weak<Core>,
    token: u64,
}

/// The right to arm one timer; disarmed when it is dropped.
pub(crate) struct TimerSlot {
    core: Weak<Core>,
    token: u64,
}

impl EventLoop {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// What the system reports, mostly "too many open files".
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let end = EventFd::new()?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        let core = Arc::new(Core {
            epoll,
            timer,
            end,
            next_token: AtomicU64::new(FIRST_FREE),
            watches: Mutex::default(),
            timers: Mutex::new(Timers { table: TimerTable::new(), alarms: HashMap::new() }),
        });
        let worker = Arc::clone(&core);
        std::thread::Builder::new().name("vdk-events".to_owned()).spawn(move || worker.work())?;
        Ok(Self { handle: Arc::new(Handle { core }) })
    }

    /// Watches an event file. One file can have one watch.
    pub(crate) fn watch(&self, event: &EventFd, watch: Arc<dyn Watch>) -> io::Result<Registration> {
        let core = &self.handle.core;
        let token = core.token();
        let mut watches = locked(&core.watches);
        epoll::add(&core.epoll, event, EventData::new_u64(token), EventFlags::IN)?;
        watches.insert(token, Watched { event: event.clone(), watch });
        Ok(Registration { core: Arc::downgrade(core), token })
    }

    /// A timer that is not armed yet.
    pub(crate) fn timer(&self, alarm: Weak<dyn Alarm>) -> TimerSlot {
        let core = &self.handle.core;
        let token = core.token();
        locked(&core.timers).alarms.insert(token, alarm);
        TimerSlot { core: Arc::downgrade(core), token }
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventLoop")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.end.signal(1);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let mut watches = locked(&core.watches);
        let Some(watched) = watches.remove(&self.token) else { return };
        if let Err(error) = epoll::delete(&core.epoll, &watched.event) {
            log::error!("cannot stop watching an event file: {error}");
        }
        drop(watches);
        // What the watch owns is dropped here, outside the lock.
        drop(watched);
    }
}

impl TimerSlot {
    /// Arms the timer, instead of what it was armed for before.
    pub(crate) fn arm(&self, deadline: Instant, leeway: Duration) {
        let Some(core) = self.core.upgrade() else { return };
        let latest = deadline.checked_add(leeway).unwrap_or(deadline);
        let mut timers = locked(&core.timers);
        timers.table.arm(self.token, Armed { deadline, latest });
        core.program(&timers);
    }

    /// Disarms it. One that is due already may still be on its way.
    pub(crate) fn disarm(&self) {
        let Some(core) = self.core.upgrade() else { return };
        locked(&core.timers).table.disarm(self.token);
    }
}

impl Drop for TimerSlot {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let mut timers = locked(&core.timers);
        timers.table.disarm(self.token);
        timers.alarms.remove(&self.token);
    }
}

impl Core {
    fn token(&self) -> u64 {
        // ORDERING: a unique number is all that is needed.
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    fn work(&self) {
        let mut ready: Vec<Event> = Vec::with_capacity(READY_AT_ONCE);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut ready), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    log::error!("the event loop ends, no interrupt will be seen: {error}");
                    return;
                }
            }
            for event in ready.drain(..) {
                // The struct is packed on some targets; a copy is aligned.
                let data = event.data;
                match data.u64() {
                    END => return,
                    TIMER => self.fire(),
                    token => self.wake(token),
                }
            }
        }
    }

    /// Wakes a watch. The lock is held meanwhile, so that a watch that has ended takes
    /// nothing from an event file that somebody else watches by then.
    fn wake(&self, token: u64) {
        if let Some(watched) = locked(&self.watches).get(&token) {
            watched.watch.readable(&watched.event);
        }
    }

    fn fire(&self) {
        let mut expirations = [0; 8];
        // Empty when it was armed anew meanwhile; the table decides.
        let _ = rustix::io::read(&self.timer, &mut expirations);
        let mut timers = locked(&self.timers);
        let due = timers.table.take_due(Instant::now());
        let alarms: Vec<_> = due
            .into_iter()
            .filter_map(|(token, armed)| Some((timers.alarms.get(&token)?.upgrade()?, armed.deadline)))
            .collect();
        self.program(&timers);
        drop(timers);
        for (alarm, deadline) in alarms {
            alarm.due(deadline);
        }
    }

    /// Sets the kernel's timer to the next time that something is due.
    fn program(&self, timers: &Timers) {
        let Some(at) = timers.table.wake_at() else { return };
        // Zero would disarm the kernel's timer.
        let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let Ok(it_value) = Timespec::try_from(wait) else { return };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
            log::error!("cannot set the timer of the event loop: {error}");
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tokens of the loop's own files; the others count up from `FIRST_FREE`.
const END: u64 = 0;
const TIMER: u64 = 1;
const FIRST_FREE: u64 = 2;

/// How many ready files one wait reports.
const READY_AT_ONCE: usize = 64;
