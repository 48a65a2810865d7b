//! One driver on one function, from start to end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::context::{Context, Sources};
use super::driver::{Driver, StartError, StopReason};
use super::event_loop::{Alarm, EventLoop, Registration, TimerSlot, Watch};
use super::personality::Personality;
use super::queue::{DispatchQueue, QueueEnd, RunError, discard, panic_text};
use super::session::Session;
use super::state::{DriverState, Failure};
use crate::hal::event::DeviceEvent;
use crate::hal::function::PciNode;
use crate::hal::interrupt::EventFd;
use crate::hal::poll::{Deadline, SystemClock};

/// How long a driver may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowances {
    /// From the call of `start` to its return.
    pub start: Duration,
    /// From the request to stop until the function is closed, with what was queued before.
    pub stop: Duration,
    /// From a call of [`Running::with`](super::Running::with) to its result, with what was
    /// queued before.
    pub call: Duration,
}

impl Default for Allowances {
    fn default() -> Self {
        Self { start: Duration::from_secs(10), stop: Duration::from_secs(5), call: Duration::from_secs(60) }
    }
}

/// What makes a driver.
pub(super) type Factory<D> = dyn Fn(&Context<D>, Session) -> Result<D, StartError> + Send + Sync;

/// One driver on one function.
///
/// # Who ends it
///
/// Four may want to: a failed `start`, a finished `stop`, a panic, a deadline. The first to
/// `claim` the end closes the function and sets the final state; the others then find nothing
/// to do. Whatever happens, the driver is dropped on its own queue.
pub(super) struct Instance<D: Driver> {
    function: String,
    personality: Personality,
    allowances: Allowances,
    session: Session,
    /// Locked by handlers on the queue only, so nobody waits for it.
    driver: Mutex<Option<D>>,
    queue: OnceLock<DispatchQueue>,
    sources: Arc<Sources>,
    watch: Mutex<Option<Registration>>,
    stop_timer: OnceLock<TimerSlot>,
    life: Mutex<Life>,
    changed: Condvar,
    /// The events that the driver is about to be told, each once.
    telling: Mutex<Vec<DeviceEvent>>,
}

struct Life {
    state: DriverState,
    /// Somebody is closing the function; what follows is a final state.
    claimed: bool,
    stop: Option<(StopReason, Deadline)>,
}

impl<D: Driver> Instance<D> {
    /// Opens the function, starts the driver on a queue of its own, and waits until `start`
    /// has returned or taken too long. `Err` when not even the queue could be made.
    pub(super) fn launch(
        node: &Arc<dyn PciNode>,
        personality: Personality,
        events: &EventLoop,
        allowances: Allowances,
        factory: Arc<Factory<D>>,
    ) -> Result<Arc<Self>, Failure> {
        let session = Session::open(node, personality.name()).map_err(Failure::Open)?;
        let instance = Arc::new(Self {
            function: session.name().to_owned(),
            personality,
            allowances,
            session,
            driver: Mutex::new(None),
            queue: OnceLock::new(),
            sources: Arc::new(Sources::new()),
            watch: Mutex::new(None),
            stop_timer: OnceLock::new(),
            life: Mutex::new(Life { state: DriverState::Starting, claimed: false, stop: None }),
            changed: Condvar::new(),
            telling: Mutex::default(),
        });
        if let Err(error) = instance.begin(events, factory) {
            let failure = Failure::System { error: error.kind() };
            instance.end(|| DriverState::Failed(failure.clone()));
            return Err(failure);
        }
        if matches!(
            instance.wait(allowances.start, |state| !matches!(state, DriverState::Starting)),
            DriverState::Starting
        ) {
            let allowed = allowances.start;
            instance.end(|| DriverState::Failed(Failure::StartOverrun { allowed }));
        }
        Ok(instance)
    }

    fn begin(self: &Arc<Self>, events: &EventLoop, factory: Arc<Factory<D>>) -> std::io::Result<()> {
        let on_end = Arc::clone(self);
        let name = format!("{}@{}", self.personality.name(), self.function);
        let queue = DispatchQueue::with_end(&name, DispatchQueue::DEFAULT_CAPACITY, move |end| {
            on_end.queue_ended(end)
        })?;
        let queue = self.queue.get_or_init(|| queue);
        let alarm: Weak<dyn Alarm> = Arc::downgrade(self) as Weak<dyn Alarm>;
        self.stop_timer.get_or_init(|| events.timer(alarm));
        let watch = Arc::new(EventWatch { instance: Arc::downgrade(self) });
        // Before `start`: a removal meanwhile is not missed, its stop waits behind it.
        *locked(&self.watch) = Some(events.watch(self.session.events().event(), watch)?);
        let context = Context {
            instance: Arc::downgrade(self),
            queue: queue.clone(),
            events: events.clone(),
            personality: self.personality,
            sources: Arc::clone(&self.sources),
        };
        let this = Arc::clone(self);
        queue
            .dispatch(move || this.run_start(&context, &*factory))
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))
    }

    fn run_start(&self, context: &Context<D>, factory: &Factory<D>) {
        match factory(context, self.session.clone()) {
            Ok(driver) => {
                *locked(&self.driver) = Some(driver);
                let mut life = locked(&self.life);
                // When `start` was too slow the end is claimed; `queue_ended` drops the driver.
                if !life.claimed {
                    life.state = match life.stop {
                        Some((reason, _)) => DriverState::Stopping(reason),
                        None => DriverState::Running,
                    };
                }
                drop(life);
                self.changed.notify_all();
                log::info!("{}: {} has started", self.function, self.personality.name());
            }
            Err(error) => {
                let error = Arc::new(error);
                self.end(|| DriverState::Failed(Failure::Start(error)));
            }
        }
    }

    /// Asks the driver to stop; the first reason counts.
    pub(super) fn request_stop(self: &Arc<Self>, reason: StopReason) {
        let mut life = locked(&self.life);
        if life.claimed || life.stop.is_some() {
            return;
        }
        life.stop = Some((reason, Deadline::after(&SystemClock::new(), self.allowances.stop)));
        if matches!(life.state, DriverState::Running) {
            life.state = DriverState::Stopping(reason);
        }
        drop(life);
        self.changed.notify_all();
        if let Some((timer, end)) =
            self.stop_timer.get().zip(Instant::now().checked_add(self.allowances.stop))
        {
            timer.arm(end, Duration::ZERO);
        }
        let this = Arc::clone(self);
        if let Some(queue) = self.queue.get() {
            // Refused when the queue has ended, and then the function is closed anyway.
            let _ = queue.dispatch_always(move || this.run_stop());
        }
    }

    fn run_stop(&self) {
        let life = locked(&self.life);
        let Some((reason, deadline)) = life.stop.filter(|_| !life.claimed) else { return };
        drop(life);
        let mut slot = locked(&self.driver);
        if let Some(driver) = slot.as_mut() {
            // In its place meanwhile: should it panic, the function is closed before it is dropped.
            driver.stop(reason, deadline);
        }
        let driver = slot.take();
        drop(slot);
        self.sources.cancel();
        self.session.quiesce();
        let panic = drop_caught(driver);
        self.end(|| match panic {
            None => DriverState::Stopped(reason),
            Some(message) => DriverState::Failed(Failure::Panicked { message }),
        });
    }

    /// Runs on the queue's thread when nothing else ever will.
    fn queue_ended(&self, end: QueueEnd) {
        // Closed first: the device must be off the bus before memory that it knows is freed.
        let claimed = self.claim();
        self.session.close();
        self.sources.cancel();
        let driver = locked(&self.driver).take();
        if let Some(message) = drop_caught(driver) {
            log::error!(
                "{}: {} panicked while it was dropped: {message}",
                self.function,
                self.personality.name()
            );
        }
        if claimed {
            self.settle(DriverState::Failed(match end {
                QueueEnd::Panicked(message) => Failure::Panicked { message },
                QueueEnd::Cancelled => Failure::QueueCancelled,
            }));
        }
    }

    /// A queue that the driver made has ended.
    pub(super) fn other_queue_ended(&self, end: QueueEnd) {
        if let QueueEnd::Panicked(message) = end {
            self.end(|| DriverState::Failed(Failure::Panicked { message }));
        }
    }

    /// Closes the function and sets the final state, unless somebody else does.
    fn end(&self, state: impl FnOnce() -> DriverState) {
        if self.claim() {
            self.session.close();
            self.sources.cancel();
            self.settle(state());
        }
    }

    /// Tells the driver of an event, also when its queue is full: there are few kinds of
    /// events, and one that waits to be told is not told twice.
    fn tell(self: &Arc<Self>, event: DeviceEvent) {
        let Some(queue) = self.queue.get() else { return };
        let mut telling = locked(&self.telling);
        if telling.contains(&event) {
            return;
        }
        telling.push(event);
        drop(telling);
        let this = Arc::clone(self);
        let told = queue.dispatch_always(move || {
            locked(&this.telling).retain(|other| *other != event);
            this.with_driver(|driver| driver.on_device_event(event));
        });
        if let Err(rejected) = told {
            log::warn!("{}: {event:?} was not told to the driver: {}", self.function, rejected.reason);
        }
    }

    fn claim(&self) -> bool {
        !std::mem::replace(&mut locked(&self.life).claimed, true)
    }

    fn settle(&self, state: DriverState) {
        let watch = locked(&self.watch).take();
        drop(watch);
        if let Some(timer) = self.stop_timer.get() {
            timer.disarm();
        }
        match &state {
            DriverState::Failed(_) => log::error!("{}: {} {state}", self.function, self.personality.name()),
            _ => log::info!("{}: {} {state}", self.function, self.personality.name()),
        }
        // Before the state: who has seen that is never left waiting in the queue.
        if let Some(queue) = self.queue.get() {
            queue.cancel();
        }
        locked(&self.life).state = state;
        self.changed.notify_all();
    }

    /// Runs a handler with the driver; `None` when it is not there. On the queue only.
    pub(super) fn with_driver<R>(&self, call: impl FnOnce(&mut D) -> R) -> Option<R> {
        // After a deadline the function is closed, and the driver only waits to be dropped.
        if locked(&self.life).claimed {
            return None;
        }
        locked(&self.driver).as_mut().map(call)
    }

    /// Runs a handler with the driver on its queue, from elsewhere.
    pub(super) fn run_with<R: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&mut D) -> R + Send + 'static,
    ) -> Result<Option<R>, RunError> {
        let Some(queue) = self.queue.get() else { return Ok(None) };
        let this = Arc::clone(self);
        queue.run_within(self.allowances.call, move || this.with_driver(call))
    }

    pub(super) fn state(&self) -> DriverState {
        locked(&self.life).state.clone()
    }

    /// Waits until the state is as wanted, `timeout` at most; gives the state then.
    pub(super) fn wait(&self, timeout: Duration, wanted: impl Fn(&DriverState) -> bool) -> DriverState {
        let life = locked(&self.life);
        let waited = self.changed.wait_timeout_while(life, timeout, |life| !wanted(&life.state));
        waited.unwrap_or_else(PoisonError::into_inner).0.state.clone()
    }

    pub(super) fn function(&self) -> &str {
        &self.function
    }

    pub(super) fn personality(&self) -> &Personality {
        &self.personality
    }

    pub(super) fn allowances(&self) -> Allowances {
        self.allowances
    }
}

/// The time to stop is over.
impl<D: Driver> Alarm for Instance<D> {
    fn due(self: Arc<Self>, _deadline: Instant) {
        // A close may take long, a reset for example; the event loop serves others too.
        let this = Arc::clone(&self);
        let overrun = move || {
            let stop = locked(&this.life).stop;
            let Some((reason, deadline)) = stop else { return };
            let allowed = deadline.allowed();
            this.end(|| DriverState::Failed(Failure::StopOverrun { reason, allowed }));
        };
        if let Err(error) = std::thread::Builder::new().name("vdk-force-close".to_owned()).spawn(overrun) {
            log::error!("{}: no thread to close it, though its driver does not stop: {error}", self.function);
            if let Some((timer, again)) = self.stop_timer.get().zip(Instant::now().checked_add(SPAWN_AGAIN)) {
                timer.arm(again, Duration::ZERO);
            }
        }
    }
}

/// When a thread is tried for again that the system did not give.
const SPAWN_AGAIN: Duration = Duration::from_secs(1);

struct EventWatch<D: Driver> {
    instance: Weak<Instance<D>>,
}

impl<D: Driver> Watch for EventWatch<D> {
    fn readable(&self, event: &EventFd) {
        let Some(instance) = self.instance.upgrade() else { return event.drain() };
        while let Some(event) = instance.session.events().next() {
            instance.tell(event);
            match event {
                DeviceEvent::Removed => instance.request_stop(StopReason::Removed),
                DeviceEvent::ReleaseRequested => instance.request_stop(StopReason::ReleaseRequested),
                _ => {}
            }
        }
    }
}

/// Drops a driver; gives the message when that panics.
fn drop_caught<D>(driver: Option<D>) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(|| drop(driver))).err()?;
    let message = panic_text(&*payload);
    discard(payload);
    Some(message)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
