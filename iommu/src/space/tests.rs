//! The space against a model of one flag for each unit.

use proptest::prelude::*;

use super::*;

impl Space {
    /// Panics when an invariant of the type does not hold.
    fn check(&self) {
        let mut listed = 0;
        for class in 0..COUNT {
            for id in self.list(class) {
                let node = self.node(id);
                assert_eq!(node.state, State::Hole);
                assert_eq!(class_of(node.last - node.start + 1), class);
                assert_eq!(self.by_last.get(&node.last), Some(&id));
                listed += 1;
            }
        }
        assert_eq!(listed, self.by_last.len());
        let free: u64 =
            self.by_last.values().map(|id| self.node(*id)).map(|node| node.last - node.start + 1).sum();
        assert_eq!(free, self.free_units);
        for (id, node) in (0..).zip(&self.nodes).filter(|(_, node)| node.state != State::Spare) {
            if node.above != NONE {
                let above = self.node(node.above);
                assert_eq!((above.below, above.start), (id, node.last + 1));
                assert!(!(node.state == State::Hole && above.state == State::Hole), "unmerged holes");
            }
        }
    }
}

fn anywhere(units: u64) -> Request {
    Request { units, alignment: 1, limit: u64::MAX, top_down: false }
}

fn space(ranges: &[(u64, u64)]) -> Space {
    let mut space = Space::new();
    assert_eq!(space.set_ranges(ranges.to_vec()), []);
    space
}

#[test]
fn the_tightest_hole_is_taken() {
    let mut space = space(&[(0, 99), (200, 204), (300, 306)]);
    let five = space.allocate(&anywhere(5)).unwrap();
    assert_eq!(space.bounds(five), (200, 204));
    let six = space.allocate(&anywhere(6)).unwrap();
    assert_eq!(space.bounds(six), (300, 305));
    let two = space.allocate(&anywhere(2)).unwrap();
    assert_eq!(space.bounds(two), (0, 1));
    space.check();
    space.free(five);
    assert_eq!(space.allocate(&anywhere(4)).map(|id| space.bounds(id)), Some((200, 203)));
}

#[test]
fn freed_neighbours_merge_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut space = space(&[(1, 9)]);
        let nodes = [3, 3, 3].map(|units| space.allocate(&anywhere(units)).unwrap());
        assert!(space.allocate(&anywhere(1)).is_none());
        for index in order {
            space.free(nodes[index]);
            space.check();
        }
        assert_eq!((space.holes(), space.largest_hole(u64::MAX)), (1, 9));
        assert!(space.allocate(&anywhere(9)).is_some(), "{order:?}");
    }
}

#[test]
fn the_last_units_of_the_64_bit_space_are_usable() {
    let mut space = space(&[(u64::MAX - 3, u64::MAX)]);
    assert!(space.allocate(&anywhere(5)).is_none());
    assert!(space.allocate(&Request { alignment: 8, ..anywhere(1) }).is_none());
    let all = space.allocate(&anywhere(4)).unwrap();
    assert_eq!(space.bounds(all), (u64::MAX - 3, u64::MAX));
    space.free(all);
    assert_eq!(space.reserve(u64::MAX, u64::MAX).map(|id| space.bounds(id)), Some((u64::MAX, u64::MAX)));
    space.check();
}

#[test]
fn a_certain_range_is_had_only_if_all_of_it_is_free() {
    let mut space = space(&[(10, 19), (30, 39)]);
    let middle = space.reserve(14, 15).unwrap();
    space.check();
    for (start, last) in [(14, 14), (15, 16), (10, 19), (9, 10), (19, 30), (25, 26), (39, 40), (50, 60)] {
        assert!(space.reserve(start, last).is_none(), "{start}..={last}");
    }
    space.free(middle);
    assert!(space.reserve(10, 19).is_some());
    space.check();
}

#[test]
fn ranges_in_use_survive_new_ranges_and_stranded_ones_do_not_come_back() {
    let mut space = space(&[(0, 99)]);
    let kept = space.reserve(40, 49).unwrap();
    let stranded = space.reserve(80, 89).unwrap();
    assert_eq!(space.set_ranges(vec![(30, 59), (85, 120)]), [(80, 89)]);
    space.check();
    assert_eq!(space.free_units(), 10 + 10 + 31);
    space.free(stranded);
    space.check();
    assert_eq!(space.free_units(), 10 + 10 + 36, "its units inside the new range are free now");
    assert!(space.reserve(80, 84).is_none());
    space.free(kept);
    space.check();
    assert_eq!((space.holes(), space.free_units()), (2, 30 + 36));
}

#[test]
fn touching_and_overlapping_ranges_are_one() {
    let mut space = space(&[(20, 29), (0, 9), (5, 14), (15, 19)]);
    assert_eq!(space.holes(), 1);
    assert!(space.allocate(&anywhere(30)).is_some());
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate { units: u64, alignment_shift: u32, limit: u64, top_down: bool },
    Reserve { start: u64, units: u64 },
    Free { index: usize },
    SetRanges { hole: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1u64..24, 0u32..5, 0u64..400, any::<bool>()).prop_map(|(units, alignment_shift, limit, top_down)| {
            Operation::Allocate { units, alignment_shift, limit, top_down }
        }),
        1 => (0u64..280, 1u64..40).prop_map(|(start, units)| Operation::Reserve { start, units }),
        6 => any::<usize>().prop_map(|index| Operation::Free { index }),
        1 => (0u64..246).prop_map(|hole| Operation::SetRanges { hole }),
    ]
}

/// One flag for each unit that is usable, and one for each in use.
struct Model {
    usable: Vec<bool>,
    used: Vec<bool>,
}

impl Model {
    fn is_free(&self, start: u64, last: u64) -> bool {
        let (start, last) = (usize::try_from(start).unwrap(), usize::try_from(last).unwrap());
        last < 256 && (start..=last).all(|unit| self.usable[unit] && !self.used[unit])
    }

    fn set_used(&mut self, (start, last): (u64, u64), used: bool) {
        for unit in start..=last {
            let slot = &mut self.used[usize::try_from(unit).unwrap()];
            assert_ne!(*slot, used);
            *slot = used;
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_bitmap(operations in prop::collection::vec(operation(), 1..200)) {
        let mut space = space(&[(0, 99), (120, 255)]);
        let mut model = Model { usable: (0..256).map(|u| !(100..120).contains(&u)).collect(), used: vec![false; 256] };
        let mut live = Vec::new();
        for operation in operations {
            match operation {
                Operation::Allocate { units, alignment_shift, limit, top_down } => {
                    let alignment = 1 << alignment_shift;
                    let fits = |start: &u64| start.is_multiple_of(alignment)
                        && start + units - 1 <= limit && model.is_free(*start, start + units - 1);
                    let possible = (0..256).any(|start| fits(&start));
                    match space.allocate(&Request { units, alignment, limit, top_down }) {
                        Some(id) => {
                            let (start, last) = space.bounds(id);
                            prop_assert_eq!(last - start + 1, units);
                            prop_assert!(fits(&start), "{} of {}", start, units);
                            model.set_used((start, last), true);
                            live.push(id);
                        }
                        None => prop_assert!(!possible, "a hole fits {} units", units),
                    }
                }
                Operation::Reserve { start, units } => {
                    let last = start + units - 1;
                    let possible = model.is_free(start, last.min(255)) && last < 256;
                    let id = space.reserve(start, last);
                    prop_assert_eq!(id.is_some(), possible);
                    if let Some(id) = id {
                        model.set_used((start, last), true);
                        live.push(id);
                    }
                }
                Operation::Free { index } if !live.is_empty() => {
                    let id = live.swap_remove(index % live.len());
                    model.set_used(space.bounds(id), false);
                    space.free(id);
                }
                Operation::Free { .. } => {}
                Operation::SetRanges { hole } => {
                    let ranges = vec![(0, hole), (hole + 10, 255)];
                    for (unit, usable) in (0..).zip(&mut model.usable) {
                        *usable = unit <= hole || unit >= hole + 10;
                    }
                    let stranded = space.set_ranges(ranges);
                    let outside = |id: &&NodeId| {
                        let (start, last) = space.bounds(**id);
                        start <= hole + 9 && last > hole
                    };
                    prop_assert_eq!(stranded.len(), live.iter().filter(outside).count());
                }
            }
            space.check();
        }
        for id in live {
            space.free(id);
        }
        space.check();
        let usable = model.usable.iter().filter(|usable| **usable).count();
        prop_assert_eq!(space.free_units(), u64::try_from(usable).unwrap());
        prop_assert!(space.holes() <= 2);
    }
}
