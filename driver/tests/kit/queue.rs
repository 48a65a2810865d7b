//! Serial queues: order, exactly once, cancel, panics.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vdk_driver::kit::{CancelError, DispatchQueue, Refusal, RunError};

/// Long enough that only a hang reaches it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Counts its drops.
pub(crate) struct Dropped(pub(crate) Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Blocks a queue until the sender is used or dropped.
pub(crate) fn block(queue: &DispatchQueue) -> std::sync::mpsc::SyncSender<()> {
    let (release, wait) = sync_channel::<()>(1);
    let (begun, has_begun) = channel();
    queue
        .dispatch(move || {
            begun.send(()).unwrap();
            let _ = wait.recv();
        })
        .unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    release
}

#[test]
fn handlers_run_in_order_and_never_overlap() {
    let queue = DispatchQueue::with_capacity("order", usize::MAX).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inside = Arc::new(AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (queue, seen, inside) = (&queue, &seen, &inside);
            scope.spawn(move || {
                for index in 0..250u32 {
                    let (seen, inside) = (Arc::clone(seen), Arc::clone(inside));
                    let handler = move || {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two handlers at once");
                        seen.lock().unwrap().push((thread, index));
                        inside.fetch_sub(1, Ordering::SeqCst);
                    };
                    queue.dispatch(handler).unwrap();
                }
            });
        }
    });
    queue.run(|| ()).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1000);
    for thread in 0..4 {
        let own: Vec<_> = seen.iter().filter(|(by, _)| *by == thread).map(|(_, index)| *index).collect();
        assert_eq!(own, (0..250).collect::<Vec<_>>());
    }
    assert_eq!(queue.panic_message(), None);
}

#[test]
fn run_gives_the_result_and_refuses_to_wait_for_itself() {
    let queue = DispatchQueue::new("run").unwrap();
    assert!(!queue.on_queue());
    let other = queue.clone();
    let (on_queue, inner) = queue.run(move || (other.on_queue(), other.run(|| 1))).unwrap();
    assert!(on_queue);
    assert_eq!(inner, Err(RunError::InsideHandler { queue: "run".to_owned() }));
    // Another queue may be waited for. A name may be anything.
    let second = DispatchQueue::new("sec\0nd").unwrap();
    assert_eq!(queue.run(move || second.run(|| 41 + 1)), Ok(Ok(42)));
}

#[test]
fn a_full_queue_gives_the_handler_back() {
    let queue = DispatchQueue::with_capacity("full", 2).unwrap();
    let release = block(&queue);
    let count = Arc::new(AtomicUsize::new(0));
    let job = || {
        let dropped = Dropped(Arc::clone(&count));
        move || drop(dropped)
    };
    queue.dispatch(job()).unwrap();
    queue.dispatch(job()).unwrap();
    assert_eq!(queue.waiting(), 2);
    let rejected = queue.dispatch(job()).unwrap_err();
    assert_eq!(rejected.reason, Refusal::Full);
    assert_eq!(rejected.to_string(), "queue full did not take a handler: it is full");
    assert_eq!(count.load(Ordering::SeqCst), 0);
    drop(release);
    let mut again = rejected.handler;
    // It is whole, and can be given to the queue once there is room.
    let mut tries = 0;
    while let Err(rejected) = queue.dispatch(again) {
        again = rejected.handler;
        tries += 1;
        assert!(tries < 60_000);
        std::thread::sleep(Duration::from_millis(1));
    }
    queue.run(|| ()).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[test]
fn after_cancel_has_resolved_nothing_runs_and_nothing_is_kept() {
    let queue = DispatchQueue::new("cancel").unwrap();
    let release = block(&queue);
    let (ran, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..10 {
        let (ran, held) = (Arc::clone(&ran), Dropped(Arc::clone(&dropped)));
        let handler = move || {
            ran.fetch_add(1, Ordering::SeqCst);
            drop(held);
        };
        queue.dispatch(handler).unwrap();
    }
    let cancellation = queue.cancel();
    let late = cancellation.wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.to_string(), "the end of the last handler did not happen within 1ms");
    assert_eq!(queue.dispatch(|| ()).unwrap_err().reason, Refusal::Cancelled);
    let refused = RunError::Refused { queue: "cancel".to_owned(), reason: Refusal::Cancelled };
    assert_eq!(queue.run(|| ()), Err(refused));
    release.send(()).unwrap();
    cancellation.wait(LONG).unwrap();
    assert_eq!((ran.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (0, 10));
    queue.cancel().wait(LONG).unwrap();
}

#[test]
fn cancel_from_a_handler_makes_it_the_last() {
    let queue = DispatchQueue::new("self").unwrap();
    let release = block(&queue);
    let own = queue.clone();
    let (outcome, seen) = channel();
    queue
        .dispatch(move || {
            let cancellation = own.cancel();
            outcome.send(cancellation.wait(LONG)).unwrap();
        })
        .unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let held = Dropped(Arc::clone(&dropped));
    queue.dispatch(move || drop(held)).unwrap();
    drop(release);
    assert_eq!(seen.recv_timeout(LONG).unwrap(), Err(CancelError::InsideHandler));
    queue.cancel().wait(LONG).unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_ends_the_queue_and_nothing_else() {
    let queue = DispatchQueue::new("panics").unwrap();
    let release = block(&queue);
    queue.dispatch(|| panic!("number {}", 7)).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let held = Dropped(Arc::clone(&dropped));
    queue.dispatch(move || drop(held)).unwrap();
    drop(release);
    // Nobody cancels: the panic does.
    let waited = queue.run(|| ());
    assert!(matches!(waited, Err(RunError::Cancelled { .. } | RunError::Refused { .. })), "{waited:?}");
    queue.cancel().wait(LONG).unwrap();
    assert_eq!(queue.panic_message().as_deref(), Some("number 7"));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(queue.dispatch(|| ()).unwrap_err().reason, Refusal::Cancelled);

    let queue = DispatchQueue::new("panics too").unwrap();
    let outcome = queue.run(|| -> u32 { std::panic::panic_any(5u8) });
    let message = "a panic without a message".to_owned();
    assert_eq!(outcome, Err(RunError::Panicked { queue: "panics too".to_owned(), message }));
}

#[test]
fn what_panics_when_it_is_dropped_does_not_stop_the_cancel() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let queue = DispatchQueue::new("bomb").unwrap();
    let release = block(&queue);
    let bomb = Bomb;
    queue.dispatch(move || std::mem::forget(bomb)).unwrap();
    let cancellation = queue.cancel();
    drop(release);
    cancellation.wait(LONG).unwrap();

    let queue = DispatchQueue::new("bomb payload").unwrap();
    queue.dispatch(|| std::panic::panic_any(Bomb)).unwrap();
    queue.cancel().wait(LONG).unwrap();
}

#[test]
fn a_handler_that_has_not_begun_in_time_never_runs() {
    let queue = DispatchQueue::new("late").unwrap();
    let release = block(&queue);
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let outcome = queue.run_within(Duration::from_millis(1), move || counter.fetch_add(1, Ordering::SeqCst));
    assert!(matches!(outcome, Err(RunError::TimedOut { begun: false, .. })), "{outcome:?}");
    drop(release);
    queue.run(|| ()).unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0);

    // One that has begun goes on. How soon it begins is the machine's business.
    for timeout in [20, 200, 2_000, 20_000].map(Duration::from_millis) {
        let (release, wait) = sync_channel::<()>(0);
        let outcome = queue.run_within(timeout, move || {
            let _ = wait.recv();
        });
        drop(release);
        queue.run(|| ()).unwrap();
        match outcome {
            Err(RunError::TimedOut { begun: true, .. }) => return,
            Err(RunError::TimedOut { begun: false, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("a handler never began");
}

#[test]
fn dropping_the_last_handle_cancels() {
    let queue = DispatchQueue::new("handles").unwrap();
    let clone = queue.clone();
    drop(queue);
    assert_eq!(clone.run(|| 3), Ok(3));
    let release = block(&clone);
    let (sender, receiver) = channel::<()>();
    clone
        .dispatch(move || {
            let _ = sender.send(());
        })
        .unwrap();
    drop(clone);
    drop(release);
    // Dropped, not run.
    assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
}
