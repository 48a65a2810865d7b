//! The phase bit against a device written by hand.

use super::*;
use crate::ring::ZeroBased;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};

/// A 16-byte completion as of NVMe: the phase is bit 16 of the last 32-bit word.
const BIT: PhaseBit = PhaseBit { word: 1, bit: 48 };

/// The device's half, written with byte accesses and a round counter.
struct Device {
    memory: SharedMemory,
    depth: u64,
    posted: u64,
    head: u64,
}

impl Device {
    /// Posts one entry, unless that would overtake the head.
    fn post(&mut self, number: u32) -> bool {
        let tail = self.posted % self.depth;
        if (tail + 1) % self.depth == self.head {
            return false;
        }
        let at = usize::try_from(tail * 16).unwrap();
        self.memory.write(at, &number.to_le_bytes()).unwrap();
        self.memory.write(at + 8, &(!number).to_le_bytes()).unwrap();
        let phase = if (self.posted / self.depth).is_multiple_of(2) { 1u8 } else { 0 };
        self.memory.write(at + 14, &[phase]).unwrap();
        self.posted += 1;
        true
    }
}

fn device(depth: u64) -> (Device, PhaseConsumer<[u64; 2]>) {
    let memory = SharedMemory::allocate(ByteLength::new(depth * 16), Pages::Base).unwrap();
    let table = memory.slots(0, usize::try_from(depth).unwrap()).unwrap();
    let consumer = PhaseConsumer::new(table, BIT).unwrap();
    (Device { memory, depth, posted: 0, head: 0 }, consumer)
}

#[test]
fn a_queue_of_five_toggles_its_phase_after_the_fifth_entry() {
    let depth = ZeroBased::<u16>::from_raw(4).count();
    let (mut device, mut consumer) = device(depth);
    let mut phases = Vec::new();
    for number in 0..12 {
        phases.push(consumer.position().phase());
        assert!(device.post(number));
        let head = consumer.poll(8, |entry| assert_eq!(entry[0], u64::from(number))).unwrap();
        device.head = u64::from(head.slot);
    }
    assert_eq!(phases[..5], [true; 5]);
    assert_eq!(phases[5..10], [false; 5]);
    assert_eq!(phases[10..], [true; 2]);
}

#[test]
fn the_doorbell_is_rung_before_the_queue_is_full() {
    for depth in [2, 3, 4, 64, 4096] {
        let (mut device, mut consumer) = device(depth);
        let (mut sent, mut received) = (0u32, 0u32);
        while u64::from(received) < 10 * depth {
            while u64::from(sent) < 10 * depth && device.post(sent) {
                sent += 1;
            }
            let head = consumer.poll(7, |entry| {
                assert_eq!(entry[0], u64::from(received));
                assert_eq!(entry[1] & 0xffff_ffff, u64::from(!received));
                received += 1;
            });
            let head = head.expect("the device waits for the doorbell and the driver for an entry");
            assert!(head.taken <= 7);
            assert_eq!(head.total, u64::from(received));
            device.head = u64::from(head.slot);
        }
        assert!(consumer.poll(7, |_| {}).is_none());
    }
}

#[test]
fn a_step_of_a_whole_round_changes_the_phase_and_not_the_slot() {
    for depth in [1, 2, 3, 5, 8, u32::MAX] {
        let begin = PhasePosition::new(depth);
        assert_eq!(begin.ahead(depth), PhasePosition { slot: 0, phase: false, depth });
        assert_eq!(begin.ahead(depth).ahead(depth), begin);
        assert_eq!(begin.ahead(depth - 1).ahead(1), begin.ahead(depth));
        assert_eq!(begin.ahead(0), begin);
    }
}

#[test]
fn tables_and_bits_that_do_not_fit_are_refused() {
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    let table = || memory.slots::<[u64; 2]>(0, 4).unwrap();
    for bit in [PhaseBit { word: 2, bit: 0 }, PhaseBit { word: 0, bit: 64 }] {
        let error = PhaseConsumer::new(table(), bit).unwrap_err();
        assert_eq!(error, TableError::PhaseBit { word: bit.word, bit: bit.bit, words: 2 });
    }
    let none = memory.slots::<[u64; 2]>(0, 0).unwrap();
    assert!(matches!(PhaseConsumer::new(none, BIT), Err(TableError::Count { table: 0, .. })));
}
