//! Model checks of the queue and source cores: every order of the steps of a few threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vdk-driver --test loom_queue --release`

#![cfg(loom)]

// What only keeps the books is of the standard library: it adds no steps to be reordered.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;
use vdk_driver::kit::{QueueCore, Refusal, SourceCore};

/// Ignored under loom: a wait ends when it should, or the check fails.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Checks every order in which a thread loses the processor at most four times where it
/// need not; that is where faults of this kind show, and takes seconds instead of hours.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(model);
}

/// Where jobs end: each exactly once.
#[derive(Default)]
struct Ends {
    inside: AtomicBool,
    resolved: AtomicBool,
    run: AtomicUsize,
    dropped: AtomicUsize,
}

/// A job that says how it ended.
struct Job {
    ends: Arc<Ends>,
    over: bool,
}

impl Job {
    fn new(ends: &Arc<Ends>) -> Self {
        Self { ends: Arc::clone(ends), over: false }
    }

    fn run(mut self) {
        assert!(!self.ends.inside.swap(true, Ordering::SeqCst), "two handlers of one queue at once");
        assert!(!self.ends.resolved.load(Ordering::SeqCst), "a handler after the cancel has resolved");
        self.over = true;
        // Where another handler could begin.
        thread::yield_now();
        assert!(!self.ends.resolved.load(Ordering::SeqCst), "resolved while a handler ran");
        self.ends.run.fetch_add(1, Ordering::SeqCst);
        self.ends.inside.store(false, Ordering::SeqCst);
    }

    /// A queue did not take it.
    fn give_back(mut self) {
        self.over = true;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.over {
            assert!(
                !self.ends.resolved.load(Ordering::SeqCst),
                "a handler was kept after the cancel has resolved"
            );
            self.ends.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn serve(core: &Arc<QueueCore<Job>>) -> thread::JoinHandle<()> {
    let core = Arc::clone(core);
    thread::spawn(move || core.serve(Job::run, || ()))
}

/// C6 and C7 of the conformance list for queues.
#[test]
fn after_a_queue_cancel_has_resolved_every_job_has_ended_once() {
    check(|| {
        let ends: Arc<Ends> = Arc::default();
        let core = Arc::new(QueueCore::new(8));
        let worker = serve(&core);
        // Either may cancel first, and drop what the other had queued.
        let push_and_cancel = |jobs: usize| {
            let (core, ends) = (Arc::clone(&core), Arc::clone(&ends));
            move || {
                let mut given_back = 0;
                for _ in 0..jobs {
                    if let Err((job, refusal)) = core.push(Job::new(&ends)) {
                        assert_eq!(refusal, Refusal::Cancelled);
                        job.give_back();
                        given_back += 1;
                    }
                }
                drop(core.cancel());
                given_back
            }
        };
        let producer = thread::spawn(push_and_cancel(2));
        let own_given_back = push_and_cancel(1)();
        assert!(core.wait_ended(TIMEOUT));
        ends.resolved.store(true, Ordering::SeqCst);
        let given_back = producer.join().unwrap() + own_given_back;
        worker.join().unwrap();
        let (run, dropped) = (ends.run.load(Ordering::SeqCst), ends.dropped.load(Ordering::SeqCst));
        assert_eq!(run + dropped + given_back, 3, "run {run}, dropped {dropped}, given back {given_back}");
    });
}

#[test]
fn without_a_cancel_no_job_is_forgotten() {
    check(|| {
        let ends: Arc<Ends> = Arc::default();
        let core = Arc::new(QueueCore::new(1));
        let worker = {
            let (core, ends) = (Arc::clone(&core), Arc::clone(&ends));
            // The last of the jobs that were taken cancels, from inside.
            thread::spawn(move || {
                let own = Arc::clone(&core);
                core.serve(
                    move |job: Job| {
                        job.run();
                        if ends.run.load(Ordering::SeqCst) == 2 {
                            drop(own.cancel());
                        }
                    },
                    || (),
                );
            })
        };
        let second = {
            let (core, ends) = (Arc::clone(&core), Arc::clone(&ends));
            thread::spawn(move || core.push_always(Job::new(&ends)).is_ok())
        };
        // Full is possible here, since the other job may wait; then it goes in all the same.
        if let Err((job, refusal)) = core.push(Job::new(&ends)) {
            assert_eq!(refusal, Refusal::Full);
            assert!(core.push_always(job).is_ok());
        }
        assert!(core.wait_ended(TIMEOUT));
        assert!(second.join().unwrap());
        worker.join().unwrap();
        assert_eq!(ends.run.load(Ordering::SeqCst), 2);
    });
}

/// A source on a queue, with its handler.
struct Source {
    core: SourceCore<u32>,
    queue: QueueCore<()>,
    running: AtomicBool,
    resolved: AtomicBool,
    delivered: AtomicUsize,
}

impl Source {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            core: SourceCore::new(true),
            queue: QueueCore::new(0),
            running: AtomicBool::new(false),
            resolved: AtomicBool::new(false),
            delivered: AtomicUsize::new(0),
        })
    }

    fn signal(&self, count: u64) {
        if self.core.signal(count, 0) {
            self.queue_up();
        }
    }

    fn queue_up(&self) {
        let _ = self.queue.push_always(());
        assert!(self.queue.waiting() <= 1, "a source has one place in its queue");
    }

    /// What the queue does with the job of the source; `expected` ends the queue.
    fn deliver(&self, expected: usize) {
        let Some(pulse) = self.core.begin() else { return };
        assert!(!self.running.swap(true, Ordering::SeqCst), "the handler overlaps itself");
        assert!(!self.resolved.load(Ordering::SeqCst), "a call after the cancel has resolved");
        thread::yield_now();
        assert!(!self.resolved.load(Ordering::SeqCst), "resolved while the handler ran");
        let count = usize::try_from(pulse.count).unwrap();
        let all = self.delivered.fetch_add(count, Ordering::SeqCst) + count;
        self.running.store(false, Ordering::SeqCst);
        if self.core.end() {
            self.queue_up();
        }
        if all == expected {
            drop(self.queue.cancel());
        }
    }

    fn serve(source: &Arc<Self>, expected: usize) -> thread::JoinHandle<()> {
        let this = Arc::clone(source);
        thread::spawn(move || this.queue.serve(|()| this.deliver(expected), || ()))
    }
}

/// C7 of the conformance list for sources.
#[test]
fn after_a_source_cancel_has_resolved_there_is_no_call() {
    check(|| {
        let source = Source::new();
        let worker = Source::serve(&source, usize::MAX);
        let device = {
            let source = Arc::clone(&source);
            thread::spawn(move || {
                source.signal(1);
                source.signal(1);
            })
        };
        source.core.cancel();
        assert!(source.core.wait_idle(TIMEOUT));
        source.resolved.store(true, Ordering::SeqCst);
        assert_eq!(source.core.set_enabled(true), None);
        device.join().unwrap();
        drop(source.queue.cancel());
        worker.join().unwrap();
        assert!(source.delivered.load(Ordering::SeqCst) <= 2);
    });
}

/// The order of "arm" and "look again": a pulse that comes while the handler ends is not lost.
#[test]
fn no_pulse_is_lost_however_they_are_merged() {
    check(|| {
        let source = Source::new();
        let worker = Source::serve(&source, 6);
        let device = {
            let source = Arc::clone(&source);
            thread::spawn(move || {
                source.signal(1);
                source.signal(2);
            })
        };
        source.signal(3);
        // Ends only when all six were delivered.
        assert!(source.queue.wait_ended(TIMEOUT));
        device.join().unwrap();
        worker.join().unwrap();
        assert_eq!(source.delivered.load(Ordering::SeqCst), 6);
    });
}

#[test]
fn turning_a_source_off_and_on_loses_nothing() {
    check(|| {
        let source = Source::new();
        let worker = Source::serve(&source, 2);
        let device = {
            let source = Arc::clone(&source);
            thread::spawn(move || source.signal(2))
        };
        assert_ne!(source.core.set_enabled(false), None);
        if source.core.set_enabled(true) == Some(true) {
            source.queue_up();
        }
        assert!(source.queue.wait_ended(TIMEOUT));
        device.join().unwrap();
        worker.join().unwrap();
        assert_eq!(source.delivered.load(Ordering::SeqCst), 2);
    });
}
