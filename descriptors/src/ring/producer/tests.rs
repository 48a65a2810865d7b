//! Reservation, handover and doorbell.

use super::*;
use crate::ring::{FreeRunning, PhaseConsumer, RingIndex, Wrapped};
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};

type Entry = [u64; 2];
const BIT: PhaseBit = PhaseBit { word: 1, bit: 63 };

fn memory() -> SharedMemory {
    SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap()
}

fn producer(memory: &SharedMemory, depth: u32, handover: Handover) -> Producer<Entry, FreeRunning<u16>> {
    let table = memory.slots(0, depth as usize).unwrap();
    Producer::new(table, Cursors::new(depth).unwrap(), handover).unwrap()
}

#[test]
fn slots_are_reserved_all_or_none() {
    let memory = memory();
    let mut producer = producer(&memory, 4, Handover::Doorbell);
    assert!(producer.reserve(5).is_none());
    let reservation = producer.reserve(4).unwrap();
    assert_eq!(reservation.run().slots().collect::<Vec<_>>(), [0, 1, 2, 3]);
    reservation.publish();
    assert_eq!(producer.cursors().used(), 0, "nothing was written");
    let mut reservation = producer.reserve(3).unwrap();
    for _ in 0..3 {
        reservation.write(&[1, 2]).unwrap();
    }
    assert_eq!(reservation.write(&[1, 2]), Err(ReservationFull(3)));
    assert_eq!(reservation.next_slot(), None);
    reservation.publish();
    assert!(producer.reserve(2).is_none());
    assert!(producer.reserve(1).is_some());
}

#[test]
fn a_dropped_reservation_gives_its_slots_back_and_rings_nothing() {
    let memory = memory();
    for handover in [Handover::Doorbell, Handover::Phase(BIT)] {
        let mut producer = producer(&memory, 2, handover);
        let mut reservation = producer.reserve(2).unwrap();
        reservation.write(&[7, 7]).unwrap();
        drop(reservation);
        assert_eq!(producer.cursors().free(), 2);
        assert!(producer.doorbell().is_none());
    }
}

#[test]
fn one_doorbell_covers_all_batches() {
    let memory = memory();
    let mut producer = producer(&memory, 8, Handover::Doorbell);
    for _ in 0..3 {
        let mut reservation = producer.reserve(2).unwrap();
        reservation.write(&[1, 1]).unwrap();
        reservation.write(&[2, 2]).unwrap();
        reservation.publish();
    }
    assert_eq!(producer.consume(1), None, "the device was not told of any");
    let (_token, index) = producer.doorbell().unwrap();
    assert_eq!(index, 6);
    assert!(producer.doorbell().is_none());
    assert_eq!(producer.consume(6).unwrap().count(), 6);
}

#[test]
fn the_index_wraps_at_the_depth_that_was_agreed_on() {
    let agreed = crate::ring::ZeroBased::<u16>::from_raw(127).count().min(256);
    let memory = memory();
    let table = memory.slots::<Entry>(0, usize::try_from(agreed).unwrap()).unwrap();
    let cursors = Cursors::<Wrapped<u16>>::new(u32::truncate(agreed)).unwrap();
    let mut producer = Producer::new(table, cursors, Handover::Doorbell).unwrap();
    for _ in 0..1000 {
        let mut reservation = producer.reserve(1).unwrap();
        reservation.write(&[0, 0]).unwrap();
        reservation.publish();
        let (_token, index) = producer.doorbell().unwrap();
        assert!(index < 128, "doorbell {index} beyond the queue");
        producer.accept_consumed(index).unwrap();
    }
}

#[test]
fn a_table_of_another_size_is_refused() {
    let memory = memory();
    let table = memory.slots::<Entry>(0, 4).unwrap();
    let cursors = Cursors::<FreeRunning<u16>>::new(5).unwrap();
    let error = Producer::new(table, cursors, Handover::Doorbell).unwrap_err();
    assert_eq!(error, TableError::Count { table: 4, depth: 5 });
    let table = memory.slots::<Entry>(0, 4).unwrap();
    let cursors = Cursors::<FreeRunning<u16>>::new(4).unwrap();
    let bit = PhaseBit { word: 2, bit: 0 };
    let error = Producer::new(table, cursors, Handover::Phase(bit)).unwrap_err();
    assert_eq!(error, TableError::PhaseBit { word: 2, bit: 0, words: 2 });
}

#[test]
fn a_chain_becomes_valid_as_a_whole_and_its_phase_follows_the_wrap() {
    for depth in [1u32, 2, 3, 5, 8] {
        for chain in 1..=depth {
            let memory = memory();
            let mut producer = producer(&memory, depth, Handover::Phase(BIT));
            let table = memory.slots::<Entry>(0, depth as usize).unwrap();
            let mut consumer = PhaseConsumer::<Entry>::new(table, BIT).unwrap();
            let mut sent = 0u64;
            for _ in 0..4 * depth {
                let mut reservation = producer.reserve(chain).unwrap();
                for n in 0..chain {
                    // The phase bit of the writer's entry is replaced, whatever it is.
                    let noise = u64::from(n % 2) << 63;
                    reservation.write(&[sent + u64::from(n), noise | 5]).unwrap();
                    assert!(!consumer.is_ready(), "chain of {chain} in {depth} seen before it was published");
                }
                reservation.publish();
                let mut seen = Vec::new();
                let head = consumer.poll(u32::MAX, |entry| seen.push(entry)).unwrap();
                assert_eq!(head.taken, chain);
                let numbers: Vec<_> = seen.iter().map(|entry| entry[0]).collect();
                assert_eq!(numbers, (sent..sent + u64::from(chain)).collect::<Vec<_>>());
                assert!(seen.iter().all(|entry| entry[1] << 1 == 10));
                sent += u64::from(chain);
                assert_eq!(producer.accept_consumed(u16::truncate(sent)).unwrap().count(), chain);
            }
        }
    }
}

#[test]
fn entries_of_a_dropped_reservation_are_never_seen() {
    let memory = memory();
    let mut producer = producer(&memory, 4, Handover::Phase(BIT));
    let mut consumer = PhaseConsumer::<Entry>::new(memory.slots(0, 4).unwrap(), BIT).unwrap();
    for round in 0..20u64 {
        let mut dropped = producer.reserve(3).unwrap();
        for _ in 0..3 {
            dropped.write(&[u64::MAX, u64::MAX]).unwrap();
        }
        drop(dropped);
        let mut reservation = producer.reserve(1).unwrap();
        reservation.write(&[round, 0]).unwrap();
        reservation.publish();
        let mut seen = Vec::new();
        assert_eq!(consumer.poll(8, |entry| seen.push(entry[0])).unwrap().taken, 1);
        assert_eq!(seen, [round]);
        assert_eq!(producer.consume(1).unwrap().count(), 1);
    }
}

#[test]
fn a_reset_ring_begins_in_the_first_round() {
    let memory = memory();
    let mut producer = producer(&memory, 3, Handover::Phase(BIT));
    let mut consumer = PhaseConsumer::<Entry>::new(memory.slots(0, 3).unwrap(), BIT).unwrap();
    for outstanding in 0..100u32 {
        for n in 0..outstanding % 4 {
            let mut reservation = producer.reserve(1).unwrap();
            reservation.write(&[u64::from(n), 0]).unwrap();
            reservation.publish();
        }
        memory.fill(0, 48, 0).unwrap();
        producer.reset();
        consumer.reset();
        assert!(!consumer.is_ready());
        let mut reservation = producer.reserve(2).unwrap();
        reservation.write(&[8, 0]).unwrap();
        reservation.write(&[9, 0]).unwrap();
        reservation.publish();
        let head = consumer.poll(8, |_| {}).unwrap();
        assert_eq!((head.taken, head.slot, head.total), (2, 2, 2));
        memory.fill(0, 48, 0).unwrap();
        producer.reset();
        consumer.reset();
    }
}
