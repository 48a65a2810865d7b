//! In which order blocks are visited.

use anyhow::{Result, bail};
use vdk_driver::nvme::Namespace;

use crate::nvme::arguments::{BenchArguments, Operation, Pattern};

/// Where the next operation goes, and what it does.
#[derive(Clone, Debug)]
pub(super) struct Order {
    random: u64,
    is_random: bool,
    /// The first of the places and how many there are, in operations.
    first: u64,
    places: u64,
    next: u64,
    blocks: u64,
    /// How many of 2^32 operations read.
    reads: u64,
}

impl Order {
    /// The order of queue number `queue` of `queues`. Random queues share the namespace,
    /// sequential ones have a part each.
    pub(super) fn new(
        arguments: &BenchArguments,
        namespace: &Namespace,
        blocks: u64,
        queue: u16,
        queues: u16,
    ) -> Result<Self> {
        let all = namespace.blocks() / blocks;
        let is_random = arguments.pattern == Pattern::Random;
        let (first, places) = if is_random {
            (0, all)
        } else {
            let part = all / u64::from(queues);
            (part * u64::from(queue), part)
        };
        if places == 0 {
            bail!(
                "namespace {} has {} blocks of {} bytes, too few for operations of {} bytes in {queues} queues",
                namespace.id(),
                namespace.blocks(),
                namespace.block_length().as_u64(),
                arguments.block_size
            );
        }
        let percent = match arguments.operation {
            Operation::Read => 100,
            Operation::Write => 0,
            Operation::Mixed => u64::from(arguments.reads),
        };
        // Any seed but zero will do for the generator.
        let random = (arguments.seed ^ u64::from(queue) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Ok(Self { random, is_random, first, places, next: 0, blocks, reads: (percent << 32) / 100 })
    }

    /// The first block of the next operation.
    #[inline]
    pub(super) fn next_lba(&mut self) -> u64 {
        let place = if self.is_random {
            scaled(self.random(), self.places)
        } else {
            let place = self.next;
            self.next = if place + 1 == self.places { 0 } else { place + 1 };
            place
        };
        (self.first + place) * self.blocks
    }

    /// Whether the next operation reads.
    #[inline]
    pub(super) fn next_reads(&mut self) -> bool {
        match self.reads {
            0 => false,
            0x1_0000_0000 => true,
            reads => self.random() >> 32 < reads,
        }
    }

    /// Xorshift: fast, and random enough to defeat any cache.
    #[inline]
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// A random number below `count`.
#[inline]
fn scaled(random: u64, count: u64) -> u64 {
    // CAST: the product over 2^64 is below `count`.
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(is_random: bool, places: u64, reads: u64) -> Order {
        Order { random: 0x1234_5678_9abc_def1, is_random, first: 10, places, next: 0, blocks: 8, reads }
    }

    #[test]
    fn sequential_places_follow_one_another_and_begin_again() {
        let mut order = order(false, 3, 0);
        let visited: Vec<u64> = (0..5).map(|_| order.next_lba()).collect();
        assert_eq!(visited, [80, 88, 96, 80, 88]);
    }

    #[test]
    fn random_places_are_all_visited_and_none_outside() {
        let mut order = order(true, 16, 0);
        let mut seen = [0; 16];
        for _ in 0..1000 {
            let lba = order.next_lba();
            assert!(lba.is_multiple_of(8) && (80..80 + 16 * 8).contains(&lba), "{lba}");
            seen[usize::try_from(lba / 8 - 10).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
    }

    #[test]
    fn reads_have_their_share() {
        assert!((0..100).all(|_| order(true, 1, 1 << 32).next_reads()));
        assert!((0..100).all(|_| !order(true, 1, 0).next_reads()));
        let mut mixed = order(true, 1, (70 << 32) / 100);
        let reads = (0..10_000).filter(|_| mixed.next_reads()).count();
        assert!((6_700..7_300).contains(&reads), "{reads}");
    }
}
