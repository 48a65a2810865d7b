//! Freed ranges of common sizes, kept ready for the next request of the same size.

use crate::space::NodeId;

/// A range that is free to the caller and still in use for the space below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached {
    /// The first unit.
    pub(super) start: u64,
    /// Its node.
    pub(super) node: NodeId,
}

/// One stack of ranges for each cached size: 1 to 32 units, and powers of two up to 2^18.
#[derive(Debug)]
pub(super) struct Magazines {
    stacks: Vec<Vec<Cached>>,
    units: u64,
    ranges: usize,
}

impl Magazines {
    pub(super) fn new() -> Self {
        let stacks = (0..STACKS).map(|_| Vec::with_capacity(DEPTH)).collect();
        Self { stacks, units: 0, ranges: 0 }
    }

    /// How many ranges are kept.
    pub(super) fn ranges(&self) -> usize {
        self.ranges
    }

    /// How many units they have together.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// Takes the latest range of exactly `units` that `fits` by its first unit.
    #[inline]
    pub(super) fn take(&mut self, units: u64, fits: impl Fn(u64) -> bool) -> Option<Cached> {
        let stack = self.stacks.get_mut(stack_of(units)?)?;
        let found = match stack.last() {
            None => return None,
            Some(range) if fits(range.start) => stack.pop(),
            Some(_) => {
                let index = stack.iter().rposition(|range| fits(range.start))?;
                Some(stack.remove(index))
            }
        };
        self.units -= units;
        self.ranges -= 1;
        found
    }

    /// Keeps a range of `units`; `false` when its size is not kept or there is no room.
    #[inline]
    pub(super) fn put(&mut self, units: u64, range: Cached) -> bool {
        let stack = stack_of(units).and_then(|index| self.stacks.get_mut(index));
        let Some(stack) = stack.filter(|stack| stack.len() < DEPTH) else { return false };
        stack.push(range);
        self.units += units;
        self.ranges += 1;
        true
    }

    /// Empties all stacks.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = NodeId> {
        self.units = 0;
        self.ranges = 0;
        self.stacks.iter_mut().flat_map(|stack| stack.drain(..)).map(|range| range.node)
    }
}

#[inline]
fn stack_of(units: u64) -> Option<usize> {
    let index = match units {
        0 => return None,
        1..=32 => units - 1,
        _ if units.is_power_of_two() && units <= 1 << 18 => 32 + u64::from(units.ilog2()) - 6,
        _ => return None,
    };
    usize::try_from(index).ok()
}

/// 1 to 32, then 2^6 to 2^18.
const STACKS: usize = 32 + 13;

/// How many ranges of one size are kept.
const DEPTH: usize = 16;
