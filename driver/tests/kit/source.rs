//! Interrupt and timer sources: coalescing, enabling, terminal cancel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::queue::{Dropped, LONG, block};
use vdk_driver::hal::interrupt::EventFd;
use vdk_driver::kit::{CancelError, DispatchQueue, EventLoop, InterruptSource, SourceError, TimerSource};

/// Returns when the loop has seen everything that was signalled or due before the call.
struct Fence {
    event: EventFd,
    seen: Receiver<()>,
    _source: InterruptSource,
}

impl Fence {
    fn new(events: &EventLoop) -> Self {
        let queue = DispatchQueue::new("fence").unwrap();
        let event = EventFd::new().unwrap();
        let (sender, seen) = channel();
        let source = InterruptSource::new(events, &queue, &event, move |_| sender.send(()).unwrap()).unwrap();
        Self { event, seen, _source: source }
    }

    /// The loop is one thread: once `drained` is empty it is at or behind that file.
    fn pass(&self, drained: &EventFd) {
        let begin = Instant::now();
        while drained.wait(Duration::ZERO).unwrap() {
            assert!(begin.elapsed() < LONG);
            std::thread::yield_now();
        }
        self.event.signal(1);
        self.seen.recv_timeout(LONG).unwrap();
    }
}

/// A source that writes down the counts that its handler got.
fn counting(
    events: &EventLoop,
    queue: &DispatchQueue,
    event: &EventFd,
) -> (InterruptSource, Arc<Mutex<Vec<u64>>>) {
    let counts = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&counts);
    let handler = move |interrupt: vdk_driver::kit::Interrupt| sink.lock().unwrap().push(interrupt.count);
    (InterruptSource::new(events, queue, event, handler).unwrap(), counts)
}

#[test]
fn a_thousand_interrupts_while_the_queue_is_busy_are_one_call() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let fence = Fence::new(&events);
    let (_source, counts) = counting(&events, &queue, &event);
    let release = block(&queue);
    for _ in 0..1000 {
        event.signal(1);
    }
    fence.pass(&event);
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [1000]);

    // And one that comes alone is one call of one.
    event.signal(1);
    fence.pass(&event);
    queue.run(|| ()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [1000, 1]);
}

#[test]
fn interrupts_during_the_handler_are_one_more_call() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let fence = Fence::new(&events);
    let (begun, has_begun) = channel();
    let (release, wait) = sync_channel::<()>(0);
    let handler = move |interrupt: vdk_driver::kit::Interrupt| {
        begun.send(interrupt.count).unwrap();
        let _ = wait.recv();
    };
    let _source = InterruptSource::new(&events, &queue, &event, handler).unwrap();
    event.signal(2);
    assert_eq!(has_begun.recv_timeout(LONG), Ok(2));
    event.signal(3);
    fence.pass(&event);
    event.signal(4);
    fence.pass(&event);
    drop(release);
    assert_eq!(has_begun.recv_timeout(LONG), Ok(7));
    queue.run(|| ()).unwrap();
    assert!(has_begun.try_recv().is_err());
}

#[test]
fn a_disabled_source_keeps_its_interrupts_until_it_is_enabled() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let fence = Fence::new(&events);
    let (source, counts) = counting(&events, &queue, &event);
    source.set_enabled(false).unwrap();
    event.signal(5);
    fence.pass(&event);
    queue.run(|| ()).unwrap();
    assert!(counts.lock().unwrap().is_empty());
    source.set_enabled(true).unwrap();
    queue.run(|| ()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [5]);

    // Disabled while its call was queued already.
    let release = block(&queue);
    event.signal(6);
    fence.pass(&event);
    source.set_enabled(false).unwrap();
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [5]);
    source.set_enabled(true).unwrap();
    queue.run(|| ()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [5, 6]);
}

#[test]
fn after_cancel_there_is_no_call_and_the_handler_is_gone() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let fence = Fence::new(&events);
    let (calls, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, held) = (Arc::clone(&calls), Dropped(Arc::clone(&dropped)));
    let handler = move |_| {
        let _ = &held;
        counter.fetch_add(1, Ordering::SeqCst);
    };
    let source = InterruptSource::new(&events, &queue, &event, handler).unwrap();
    let release = block(&queue);
    event.signal(1);
    fence.pass(&event);
    // Its call is in the queue now.
    source.cancel().wait(LONG).unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(source.set_enabled(true), Err(SourceError::Cancelled));
    assert_eq!(source.set_enabled(false), Err(SourceError::Cancelled));
    source.cancel().wait(LONG).unwrap();

    // What comes later belongs to the next source on the same file, all of it.
    event.signal(3);
    let (_next, counts) = counting(&events, &queue, &event);
    fence.pass(&event);
    queue.run(|| ()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [3]);
}

#[test]
fn cancel_resolves_when_the_call_that_runs_has_returned() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let (begun, has_begun) = channel();
    let (release, wait) = sync_channel::<()>(0);
    let returned = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&returned);
    let handler = move |_| {
        begun.send(()).unwrap();
        let _ = wait.recv();
        counter.fetch_add(1, Ordering::SeqCst);
    };
    let source = InterruptSource::new(&events, &queue, &event, handler).unwrap();
    event.signal(1);
    has_begun.recv_timeout(LONG).unwrap();
    let cancellation = source.cancel();
    assert!(matches!(cancellation.wait(Duration::from_millis(1)), Err(CancelError::TimedOut(_))));
    assert_eq!(returned.load(Ordering::SeqCst), 0);
    drop(release);
    cancellation.wait(LONG).unwrap();
    assert_eq!(returned.load(Ordering::SeqCst), 1);
}

#[test]
fn cancel_from_the_handler_makes_it_the_last_call() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let fence = Fence::new(&events);
    let place: Arc<Mutex<Option<InterruptSource>>> = Arc::default();
    let (own, own_queue) = (Arc::clone(&place), queue.clone());
    let (sender, outcomes) = channel();
    let unmasked = Arc::new(AtomicUsize::new(0));
    let unmask_count = Arc::clone(&unmasked);
    let handler = move |_| {
        assert!(own_queue.on_queue());
        let cancellation = own.lock().unwrap().as_ref().unwrap().cancel();
        sender.send(cancellation.wait(LONG)).unwrap();
    };
    let unmask = move || {
        unmask_count.fetch_add(1, Ordering::SeqCst);
    };
    let source = InterruptSource::level(&events, &queue, &event, handler, unmask).unwrap();
    *place.lock().unwrap() = Some(source);
    event.signal(1);
    assert_eq!(outcomes.recv_timeout(LONG), Ok(Err(CancelError::InsideHandler)));
    // Another handler of the queue may wait: the call has returned by then.
    let source = place.lock().unwrap().take().unwrap();
    let waited = queue.run(move || source.cancel().wait(Duration::ZERO)).unwrap();
    assert_eq!(waited, Ok(()));
    event.signal(1);
    fence.pass(&EventFd::new().unwrap());
    queue.run(|| ()).unwrap();
    assert!(outcomes.try_recv().is_err());
    assert_eq!(unmasked.load(Ordering::SeqCst), 0, "a line whose source is cancelled stays masked");
}

#[test]
fn a_level_triggered_line_is_unmasked_after_each_call() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let (sender, steps) = channel();
    let unmask_sender = sender.clone();
    let handler = move |_| sender.send("handler").unwrap();
    let unmask = move || unmask_sender.send("unmask").unwrap();
    let _source = InterruptSource::level(&events, &queue, &event, handler, unmask).unwrap();
    for _ in 0..3 {
        event.signal(1);
        assert_eq!(steps.recv_timeout(LONG), Ok("handler"));
        assert_eq!(steps.recv_timeout(LONG), Ok("unmask"));
    }
}

#[test]
fn a_handler_that_panics_does_not_hold_up_the_cancel() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let handler = |_| panic!("in the handler");
    let source = InterruptSource::new(&events, &queue, &event, handler).unwrap();
    event.signal(1);
    let begin = Instant::now();
    while !queue.is_cancelled() {
        assert!(begin.elapsed() < LONG);
        std::thread::yield_now();
    }
    source.cancel().wait(LONG).unwrap();
    queue.cancel().wait(LONG).unwrap();
    assert_eq!(queue.panic_message().as_deref(), Some("in the handler"));
}

#[test]
fn one_event_file_has_one_source() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("irq").unwrap();
    let event = EventFd::new().unwrap();
    let (source, _) = counting(&events, &queue, &event);
    let second = InterruptSource::new(&events, &queue, &event, |_| ());
    assert_eq!(second.err(), Some(SourceError::System { error: std::io::ErrorKind::AlreadyExists }));
    drop(source);
    let (_third, _) = counting(&events, &queue, &event);
}

#[test]
fn a_timer_calls_once_and_not_before_its_time() {
    let events = EventLoop::new().unwrap();
    let queue = DispatchQueue::new("timer").unwrap();
    let (sender, expiries) = channel();
    let timer = TimerSource::new(&events, &queue, move |expiry| sender.send(expiry).unwrap());
    let deadline = Instant::now() + Duration::from_millis(20);
    timer.wake_at(deadline, Duration::ZERO).unwrap();
    let expiry = expiries.recv_timeout(LONG).unwrap();
    assert_eq!(expiry.deadline, deadline);
    assert!(expiry.at >= deadline);

    // Armed anew before it is due: only the new time counts.
    timer.wake_at(Instant::now() + Duration::from_secs(3600), Duration::ZERO).unwrap();
    let now = Instant::now();
    timer.wake_at(now, Duration::from_secs(3600)).unwrap();
    // The leeway of an hour is not used up when something else is due.
    let other = TimerSource::new(&events, &queue, |_| ());
    other.wake_at(now, Duration::ZERO).unwrap();
    assert_eq!(expiries.recv_timeout(LONG).unwrap().deadline, now);
    queue.run(|| ()).unwrap();
    assert!(expiries.try_recv().is_err());
}

#[test]
fn a_timer_that_is_armed_anew_forgets_what_was_not_handled() {
    let events = EventLoop::new().unwrap();
    let (queue, fence_queue) = (DispatchQueue::new("timer").unwrap(), DispatchQueue::new("fence").unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let timer = TimerSource::new(&events, &queue, move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let (sender, passed) = channel();
    let fence = TimerSource::new(&events, &fence_queue, move |_| sender.send(()).unwrap());
    let expire = || {
        let now = Instant::now();
        timer.wake_at(now, Duration::ZERO).unwrap();
        fence.wake_at(now + Duration::from_nanos(1), Duration::ZERO).unwrap();
        passed.recv_timeout(LONG).unwrap();
    };
    let release = block(&queue);
    expire();
    timer.wake_at(Instant::now() + Duration::from_secs(3600), Duration::ZERO).unwrap();
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);

    let release = block(&queue);
    expire();
    timer.disarm();
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);

    timer.set_enabled(false).unwrap();
    expire();
    queue.run(|| ()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    timer.set_enabled(true).unwrap();
    queue.run(|| ()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);

    let release = block(&queue);
    expire();
    timer.cancel().wait(LONG).unwrap();
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(timer.wake_at(Instant::now(), Duration::ZERO), Err(SourceError::Cancelled));
    assert_eq!(timer.set_enabled(true), Err(SourceError::Cancelled));
}
