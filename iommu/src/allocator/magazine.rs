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
}

impl Magazines {
    pub(super) fn new() -> Self {
        Self { stacks: (0..STACKS).map(|_| Vec::with_capacity(DEPTH)).collect() }
    }

    /// How many ranges are kept.
    pub(super) fn ranges(&self) -> usize {
        self.stacks.iter().map(Vec::len).sum()
    }

    /// How many units they have together.
    pub(super) fn units(&self) -> u64 {
        // CAST: at most `DEPTH`.
        (0..).zip(&self.stacks).map(|(index, stack)| units_of(index) * stack.len() as u64).sum()
    }

    /// Takes the latest range of exactly `units` that `fits` by its first unit.
    #[inline]
    pub(super) fn take(&mut self, units: u64, fits: impl Fn(u64) -> bool) -> Option<Cached> {
        let stack = self.stacks.get_mut(stack_of(units))?;
        let range = stack.pop()?;
        if fits(range.start) {
            return Some(range);
        }
        stack.push(range);
        let index = stack.iter().rposition(|range| fits(range.start))?;
        Some(stack.swap_remove(index))
    }

    /// Keeps a range of `units`; `false` when its size is not kept or there is no room.
    #[inline]
    pub(super) fn put(&mut self, units: u64, range: Cached) -> bool {
        let stack = self.stacks.get_mut(stack_of(units)).filter(|stack| stack.len() < DEPTH);
        stack.map(|stack| stack.push(range)).is_some()
    }

    /// Empties all stacks.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = NodeId> {
        self.stacks.iter_mut().flat_map(|stack| stack.drain(..)).map(|range| range.node)
    }
}

/// The stack for a size; beyond the last one for sizes that are not kept.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
fn stack_of(units: u64) -> usize {
    if units <= SINGLE {
        // CAST: at most 32. Zero wraps to beyond the last.
        (units as usize).wrapping_sub(1)
    } else if units.is_power_of_two() {
        // CAST: at most 63.
        units.ilog2() as usize + 26
    } else {
        usize::MAX
    }
}

/// The size that a stack keeps.
fn units_of(stack: u32) -> u64 {
    if u64::from(stack) < SINGLE { u64::from(stack) + 1 } else { 1 << (stack - 26) }
}

/// Sizes up to this one have a stack each.
const SINGLE: u64 = 32;

/// 1 to 32, then 2^6 to 2^18.
const STACKS: usize = 32 + 13;

/// How many ranges of one size are kept.
const DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stack_keeps_one_size() {
        for stack in 0..45u32 {
            assert_eq!(stack_of(units_of(stack)), stack as usize);
        }
        for units in [0, 33, 63, 65, 1 << 19, u64::MAX] {
            assert!(stack_of(units) >= STACKS, "{units}");
        }
    }
}
