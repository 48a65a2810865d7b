//! The rings under every interleaving and every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vdk-descriptors --test loom_ring --release`
//!
//! The code under test is that of the library; only the table is one of loom's atomics.
//! Each model has mutants that must fail, or it would prove nothing.

#![cfg(loom)]

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, fence};
use loom::thread;
use vdk_descriptors::ring::{
    Consumer, Cursors, FreeRunning, Handover, PhaseBit, PhaseConsumer, Producer, SlotTable, arm_then_look,
};

type Entry = [u64; 2];
const BIT: PhaseBit = PhaseBit { word: 1, bit: 63 };

/// A table in memory that loom watches. `Release` and `Acquire` can be weakened.
#[derive(Clone)]
struct Table {
    words: Arc<Vec<AtomicU64>>,
    store: Ordering,
    load: Ordering,
}

impl Table {
    fn new(depth: usize) -> Self {
        let words = (0..depth * 2).map(|_| AtomicU64::new(0)).collect();
        Self { words: Arc::new(words), store: Ordering::Release, load: Ordering::Acquire }
    }

    fn with_relaxed_stores(self) -> Self {
        Self { store: Ordering::Relaxed, ..self }
    }

    fn with_relaxed_loads(self) -> Self {
        Self { load: Ordering::Relaxed, ..self }
    }
}

impl SlotTable<Entry> for Table {
    fn count(&self) -> usize {
        self.words.len() / 2
    }

    fn load_word(&self, slot: usize, word: usize, ordering: Ordering) -> u64 {
        let ordering = if ordering == Ordering::Acquire { self.load } else { ordering };
        self.words[slot * 2 + word].load(ordering)
    }

    fn store_word(&self, slot: usize, word: usize, value: u64, ordering: Ordering) {
        let ordering = if ordering == Ordering::Release { self.store } else { ordering };
        self.words[slot * 2 + word].store(value, ordering);
    }
}

fn cursors(depth: usize) -> Cursors<FreeRunning<u16>> {
    Cursors::new(u32::try_from(depth).unwrap()).unwrap()
}

fn producer(table: Table, handover: Handover) -> Producer<Entry, FreeRunning<u16>, Table> {
    let cursors = cursors(table.count());
    Producer::new(table, cursors, handover).unwrap()
}

/// An entry whose halves belong together; the top bit of the second is the phase.
fn entry(number: u64) -> Entry {
    [number, number + 100]
}

fn assert_whole(entry: Entry, number: u64) {
    assert_eq!([entry[0], entry[1] & !(1 << 63)], [number, number + 100], "torn entry");
}

fn publish(producer: &mut Producer<Entry, FreeRunning<u16>, Table>, numbers: &[u64]) {
    let mut reservation = producer.reserve(u32::try_from(numbers.len()).unwrap()).unwrap();
    for number in numbers {
        reservation.write(&entry(*number)).unwrap();
    }
    reservation.publish();
}

/// Two batches through a ring with phase bits, polled by another thread.
fn phase_ring(producer_table: fn(Table) -> Table, consumer_table: fn(Table) -> Table) {
    loom::model(move || {
        let table = Table::new(3);
        let mut consumer = PhaseConsumer::<Entry, _>::new(consumer_table(table.clone()), BIT).unwrap();
        let mut producer = producer(producer_table(table), Handover::Phase(BIT));
        let writer = thread::spawn(move || {
            publish(&mut producer, &[1]);
            publish(&mut producer, &[2, 3]);
        });
        let mut next = 1;
        while next <= 3 {
            let before = next;
            let head = consumer.poll(4, |entry| {
                assert_whole(entry, next);
                next += 1;
            });
            assert_eq!(head.map_or(0, |head| u64::from(head.taken)), next - before);
            assert_ne!(next, 3, "torn chain");
            thread::yield_now();
        }
        writer.join().unwrap();
    });
}

#[test]
fn an_entry_is_seen_whole_and_a_chain_from_its_head() {
    phase_ring(|table| table, |table| table);
}

#[test]
#[should_panic(expected = "torn")]
fn a_writer_without_release_is_caught() {
    phase_ring(Table::with_relaxed_stores, |table| table);
}

#[test]
#[should_panic(expected = "torn")]
fn a_reader_without_acquire_is_caught() {
    phase_ring(|table| table, Table::with_relaxed_loads);
}

#[test]
#[should_panic(expected = "torn entry")]
fn a_writer_that_stores_the_phase_first_is_caught() {
    loom::model(|| {
        let table = Table::new(2);
        let mut consumer = PhaseConsumer::<Entry, _>::new(table.clone(), BIT).unwrap();
        let writer = thread::spawn(move || {
            let [first, second] = entry(1);
            table.store_word(0, 1, second | 1 << 63, Ordering::Release);
            table.store_word(0, 0, first, Ordering::Release);
        });
        let _ = consumer.poll(1, |entry| assert_whole(entry, 1));
        writer.join().unwrap();
    });
}

/// A ring of depth 1: each entry waits until the one before it was taken.
#[test]
fn a_slot_is_not_written_before_it_was_read() {
    loom::model(move || {
        let table = Table::new(1);
        let head = Arc::new(AtomicU16::new(0));
        let mut consumer = PhaseConsumer::<Entry, _>::new(table.clone(), BIT).unwrap();
        let mut producer = producer(table, Handover::Phase(BIT));
        let writer = thread::spawn({
            let head = Arc::clone(&head);
            move || {
                publish(&mut producer, &[1]);
                while producer.accept_consumed(head.load(Ordering::Acquire)).unwrap().is_empty() {
                    thread::yield_now();
                }
                publish(&mut producer, &[2]);
            }
        });
        for number in 1..=2 {
            while !consumer.is_ready() {
                thread::yield_now();
            }
            let taken = consumer.poll(1, |entry| assert_whole(entry, number)).unwrap();
            head.store(u16::try_from(taken.total).unwrap(), Ordering::Release);
        }
        writer.join().unwrap();
    });
}

/// Entries up to an index, as behind a doorbell.
fn index_ring(doorbell_store: Ordering) {
    loom::model(move || {
        let table = Table::new(2);
        let doorbell = Arc::new(AtomicU16::new(0));
        let mut consumer = Consumer::<Entry, _, _>::new(table.clone(), cursors(2)).unwrap();
        let mut producer = producer(table, Handover::Doorbell);
        let writer = thread::spawn({
            let doorbell = Arc::clone(&doorbell);
            move || {
                publish(&mut producer, &[1]);
                publish(&mut producer, &[2]);
                let (_token, index) = producer.doorbell().unwrap();
                doorbell.store(index, doorbell_store);
            }
        });
        let mut next = 1;
        while next <= 2 {
            consumer.accept_produced(doorbell.load(Ordering::Acquire)).unwrap();
            while let Some((_, entry)) = consumer.take() {
                assert_whole(entry, next);
                next += 1;
            }
            thread::yield_now();
        }
        writer.join().unwrap();
    });
}

#[test]
fn entries_up_to_the_doorbell_are_whole() {
    index_ring(Ordering::Release);
}

#[test]
#[should_panic(expected = "torn entry")]
fn a_doorbell_that_overtakes_its_entries_is_caught() {
    index_ring(Ordering::Relaxed);
}

/// The consumer arms a wake-up, looks again, and sleeps when it finds nothing; the producer
/// publishes and wakes whoever is armed.
fn sleep_and_wake(producer_fence: bool, arm: fn(&AtomicBool, &dyn Fn() -> bool) -> bool) {
    loom::model(move || {
        let table = Table::new(1);
        let armed = Arc::new(AtomicBool::new(false));
        let mut consumer = PhaseConsumer::<Entry, _>::new(table.clone(), BIT).unwrap();
        let mut producer = producer(table, Handover::Phase(BIT));
        let writer = thread::spawn({
            let armed = Arc::clone(&armed);
            move || {
                publish(&mut producer, &[1]);
                if producer_fence {
                    fence(Ordering::SeqCst);
                }
                armed.load(Ordering::Relaxed)
            }
        });
        let mut taken = consumer.poll(1, |entry| assert_whole(entry, 1)).is_some();
        let sleeps = !taken && !arm(&armed, &|| consumer.is_ready());
        if !taken && !sleeps {
            taken = consumer.poll(1, |entry| assert_whole(entry, 1)).is_some();
        }
        let wakes = writer.join().unwrap();
        assert!(taken || wakes, "slept over an entry");
    });
}

fn armed_with_a_fence(armed: &AtomicBool, look: &dyn Fn() -> bool) -> bool {
    let arm = || {
        armed.store(true, Ordering::Relaxed);
        Ok::<_, core::convert::Infallible>(())
    };
    arm_then_look(arm, look).unwrap()
}

fn armed_without_a_fence(armed: &AtomicBool, look: &dyn Fn() -> bool) -> bool {
    armed.store(true, Ordering::Relaxed);
    look()
}

#[test]
fn no_entry_is_slept_over() {
    sleep_and_wake(true, armed_with_a_fence);
}

#[test]
#[should_panic(expected = "slept over")]
fn a_consumer_that_arms_without_a_fence_is_caught() {
    sleep_and_wake(true, armed_without_a_fence);
}

#[test]
#[should_panic(expected = "slept over")]
fn a_producer_that_looks_without_a_fence_is_caught() {
    sleep_and_wake(false, armed_with_a_fence);
}

#[test]
#[should_panic(expected = "slept over")]
fn a_consumer_that_arms_and_does_not_look_is_caught() {
    sleep_and_wake(true, |armed, _| {
        armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        false
    });
}
