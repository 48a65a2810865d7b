//! A circle of I/OAT descriptors between a driver's half and an engine written by hand:
//! chains of any length, a 16-bit count that wraps, completions that are addresses.

use vdk_descriptors::ioat::{ChannelState, ChannelStatus, DESCRIPTOR_LENGTH, IoatControl, IoatDescriptor};
use vdk_descriptors::ring::{Cursors, DescriptorCircle, FreeRunning, Handover, InOrder, Producer};
use vdk_descriptors::sg::{SgLimits, SgList, refine};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::memory::{Pages, SharedMemory};

const TABLE: u64 = 0x7_0000_0000;

/// Follows `next` from the first descriptor on, as far as the count says. It knows nothing
/// of the ring but the address where it begins.
struct Engine {
    memory: SharedMemory,
    next: u64,
    done: u16,
    status: ChannelStatus,
    moved: Vec<(u64, u64, u32)>,
}

impl Engine {
    fn run(&mut self, count: u16, most: u32) {
        for _ in 0..most {
            if self.done == count {
                return;
            }
            let offset = usize::try_from(self.next - TABLE).unwrap();
            let descriptor: IoatDescriptor = self.memory.read_value(offset).unwrap();
            self.moved.push((descriptor.source, descriptor.destination, descriptor.size));
            let state =
                if self.done.wrapping_add(1) == count { ChannelState::Idle } else { ChannelState::Active };
            if descriptor.control.completion_write() {
                self.status = ChannelStatus::new(Iova::new(self.next), state);
            }
            self.next = descriptor.next;
            self.done = self.done.wrapping_add(1);
        }
    }
}

/// Runs copies until `descriptors` have gone through a ring of `depth`, and compares what
/// was moved with what was asked for.
fn copies_through(depth: u32, descriptors: usize) {
    let bytes = DESCRIPTOR_LENGTH.as_u64() * u64::from(depth);
    let memory = SharedMemory::allocate(ByteLength::new(bytes), Pages::Base).unwrap();
    let circle = DescriptorCircle::new(Iova::new(TABLE), DESCRIPTOR_LENGTH, depth).unwrap();
    // One slot stays free, so that the address of the last descriptor tells all from none.
    let cursors = Cursors::<FreeRunning<u16>>::with_usable(depth, depth - 1).unwrap();
    let table = memory.slots::<IoatDescriptor>(0, usize::try_from(depth).unwrap()).unwrap();
    let mut ring = Producer::new(table, cursors, Handover::Doorbell).unwrap();
    let mut owners = InOrder::new(usize::try_from(depth).unwrap());
    let mut engine =
        Engine { memory, next: TABLE, done: 0, status: ChannelStatus::default(), moved: Vec::new() };

    let mut list = SgList::with_capacity(&SgLimits::NONE, 8).unwrap();
    let mut destination = SgList::new(&SgLimits::NONE).unwrap();
    let (mut asked, mut posted, mut returned) = (Vec::new(), 0u64, 0u64);
    while engine.moved.len() < descriptors {
        // As many segments as the ring has usable slots, at most eight.
        let segments = 1 + posted % 8.min(u64::from(depth) - 1);
        list.clear();
        destination.clear();
        for n in 0..segments {
            list.push(Iova::new((posted << 20) + n * 4096), ByteLength::new(1 + n)).unwrap();
        }
        destination.push(Iova::new(1 << 50), list.total()).unwrap();
        let copy = refine(&list, &destination, ByteLength::SIZE_4K).unwrap();
        let needed = u32::try_from(copy.clone().count()).unwrap();
        if let Some(mut batch) = ring.reserve(needed) {
            for (n, segment) in copy.enumerate() {
                let slot = batch.next_slot().unwrap();
                let mut control = IoatControl::default();
                control.set_completion_write(n as u64 + 1 == segments);
                let descriptor = IoatDescriptor {
                    size: segment.length,
                    control,
                    source: segment.source.as_u64(),
                    destination: segment.destination.as_u64(),
                    next: circle.next_address(slot).unwrap().as_u64(),
                    ..IoatDescriptor::default()
                };
                batch.write(&descriptor).unwrap();
                asked.push((descriptor.source, descriptor.destination, descriptor.size));
            }
            batch.publish();
            owners.post(needed, posted).unwrap();
            posted += 1;
            continue;
        }
        if let Some((_token, count)) = ring.doorbell() {
            engine.run(count, u32::MAX);
        }
        let completed = engine.status.completed();
        let new = circle.newly_completed(ring.cursors(), completed).unwrap();
        assert!(ring.consume(new).is_some() && owners.complete(new));
        while let Some((_, owner)) = owners.next() {
            assert_eq!(owner, returned);
            returned += 1;
        }
        assert_eq!(circle.newly_completed(ring.cursors(), completed), Ok(0), "told twice");
        let first = circle.address(0).unwrap();
        let outside = Iova::new(first.as_u64() + bytes);
        assert!(circle.newly_completed(ring.cursors(), outside).is_err());
    }
    asked.truncate(engine.moved.len());
    assert_eq!(engine.moved, asked);
    owners.reset(|_, owner| {
        assert_eq!(owner, returned);
        returned += 1;
    });
    assert_eq!(returned, posted, "every owner comes back");
}

#[test]
fn copies_pass_through_a_ring_with_one_usable_slot() {
    copies_through(2, 70_000);
}

#[test]
fn copies_pass_through_rings_of_any_depth_over_many_wraps() {
    for depth in [3, 5, 256, 1000] {
        copies_through(depth, 70_000);
    }
}

#[test]
fn copies_pass_through_the_largest_ring_while_its_count_wraps() {
    copies_through(1 << 16, 300_000);
}
