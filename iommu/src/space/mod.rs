//! Free and used ranges of a one-dimensional space, counted in units.
//!
//! Every range is a node. Nodes that touch are linked in address order, so that a freed
//! range finds its neighbours at once; holes are also linked by size class for best fit,
//! and indexed by their last unit for look-up by address. Allocating from the bottom of a
//! hole changes neither its last unit nor, mostly, its class.

mod classes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::classes::{COUNT, ClassSet, class_of};

/// The number of a node. It stays the same while the range is in use.
pub(crate) type NodeId = u32;

/// What is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// How many units, not zero.
    pub(crate) units: u64,
    /// The alignment of the first unit, a power of two.
    pub(crate) alignment: u64,
    /// The last unit that may be used.
    pub(crate) limit: u64,
    /// From the top of the hole rather than from its bottom.
    pub(crate) top_down: bool,
}

/// The ranges of a space.
///
/// # Invariants
///
/// - Node ids in `by_last`, in the class lists and in links refer to nodes of `nodes`.
/// - Every hole is on the list of its class and in `by_last`, and on no other.
/// - Linked nodes touch; no two linked nodes are both holes.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    nodes: Vec<Node>,
    spare: NodeId,
    by_last: BTreeMap<u64, NodeId>,
    heads: Vec<NodeId>,
    classes: ClassSet,
    ranges: Vec<(u64, u64)>,
    free_units: u64,
    used_ranges: usize,
    used_units: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    last: u64,
    /// The neighbours in address order.
    below: NodeId,
    above: NodeId,
    /// The neighbours on the class list; `after` also links spare nodes.
    before: NodeId,
    after: NodeId,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Spare,
    Hole,
    Used,
    /// In use, but no longer inside the ranges of the space.
    Stranded,
}

impl Space {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            spare: NONE,
            by_last: BTreeMap::new(),
            heads: vec![NONE; COUNT],
            classes: ClassSet::new(),
            ranges: Vec::new(),
            free_units: 0,
            used_ranges: 0,
            used_units: 0,
        }
    }

    /// How many units are free.
    pub(crate) fn free_units(&self) -> u64 {
        self.free_units
    }

    /// How many ranges are in use, and how many units they have.
    pub(crate) fn used(&self) -> (usize, u64) {
        (self.used_ranges, self.used_units)
    }

    /// How many holes there are.
    pub(crate) fn holes(&self) -> usize {
        self.by_last.len()
    }

    /// The first and the last unit of a used range.
    #[inline]
    pub(crate) fn bounds(&self, id: NodeId) -> (u64, u64) {
        let node = self.node(id);
        (node.start, node.last)
    }

    /// How many units the largest hole has below `limit`.
    pub(crate) fn largest_hole(&self, limit: u64) -> u64 {
        let clipped = |id: &NodeId| {
            let node = self.node(*id);
            if node.start > limit { 0 } else { (node.last.min(limit) - node.start).saturating_add(1) }
        };
        let Some(class) = self.classes.largest() else { return 0 };
        if limit == u64::MAX {
            self.list(class).map(|id| clipped(&id)).max().unwrap_or(0)
        } else {
            self.by_last.values().map(clipped).max().unwrap_or(0)
        }
    }

    /// Adds a free range that touches no other, from `start` to `last`.
    pub(crate) fn add_range(&mut self, start: u64, last: u64) {
        self.ranges.push((start, last));
        self.add_hole(start, last);
    }

    /// Replaces the ranges. Used ranges keep their node; those no longer inside are
    /// returned, with their bounds, and become part of no hole when they are freed.
    pub(crate) fn set_ranges(&mut self, ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        self.ranges = merge(ranges);
        self.rebuild();
        let stranded = self.nodes.iter().filter(|node| node.state == State::Stranded);
        stranded.map(|node| (node.start, node.last)).collect()
    }

    /// Takes units: from the tightest hole of the smallest class that has one that fits.
    /// `None` only when no hole fits.
    pub(crate) fn allocate(&mut self, request: &Request) -> Option<NodeId> {
        let mut class = self.classes.next_from(class_of(request.units));
        while let Some(candidate) = class {
            if let Some((hole, start)) = self.tightest(candidate, request) {
                return Some(self.carve(hole, start, start + (request.units - 1)));
            }
            class = self.classes.next_from(candidate + 1);
        }
        None
    }

    /// Takes exactly the units from `start` to `last`; `None` when one of them is not free.
    pub(crate) fn reserve(&mut self, start: u64, last: u64) -> Option<NodeId> {
        let (&hole_last, &hole) = self.by_last.range(last..).next()?;
        debug_assert!(hole_last >= last);
        (self.node(hole).start <= start).then(|| self.carve(hole, start, last))
    }

    /// Whether every unit from `start` to `last` belongs to the space, free or used.
    pub(crate) fn covers(&self, start: u64, last: u64) -> bool {
        self.ranges.iter().any(|(from, to)| *from <= start && last <= *to)
    }

    /// Gives a used range back and merges it with the holes beside it.
    pub(crate) fn free(&mut self, id: NodeId) {
        let Node { start, last, below, above, state, .. } = *self.node(id);
        self.used_ranges -= 1;
        self.used_units -= last - start + 1;
        if state == State::Stranded {
            self.discard(id);
            self.rebuild();
            return;
        }
        debug_assert_eq!(state, State::Used, "node {id}");
        self.free_units += last - start + 1;
        let hole = if self.is_hole(above) {
            self.delist_class(above);
            self.node_mut(above).start = start;
            self.link(below, above);
            self.discard(id);
            above
        } else {
            self.node_mut(id).state = State::Hole;
            self.by_last.insert(last, id);
            id
        };
        if self.is_hole(below) {
            let Node { start, last, below: next_below, .. } = *self.node(below);
            self.delist_class(below);
            self.by_last.remove(&last);
            self.discard(below);
            self.node_mut(hole).start = start;
            self.link(next_below, hole);
        }
        self.enlist_class(hole);
    }

    /// The tightest of the first holes of a class that fit, and where to begin in it.
    fn tightest(&self, class: usize, request: &Request) -> Option<(NodeId, u64)> {
        let mut best: Option<(u64, NodeId, u64)> = None;
        for (examined, id) in self.list(class).enumerate() {
            let node = self.node(id);
            if let Some(start) = place(node, request) {
                let size = node.last - node.start;
                let closer = best.is_none_or(|(least, _, at)| {
                    size < least || (size == least && (start < at) != request.top_down)
                });
                if closer {
                    best = Some((size, id, start));
                }
                if size == request.units - 1 {
                    break;
                }
            }
            if best.is_some() && examined >= EXAMINED {
                break;
            }
        }
        best.map(|(_, id, start)| (id, start))
    }

    /// Makes a used node of a part of a hole; what is left of the hole stays one.
    fn carve(&mut self, hole: NodeId, start: u64, last: u64) -> NodeId {
        let Node { start: hole_start, last: hole_last, below, above, .. } = *self.node(hole);
        debug_assert!(hole_start <= start && start <= last && last <= hole_last);
        self.free_units -= last - start + 1;
        self.used_units += last - start + 1;
        self.used_ranges += 1;
        // The node of the hole keeps its last unit if it can, since that is its key.
        let used = if last < hole_last {
            let used = self.new_node(start, last, State::Used);
            self.resize_hole(hole, last + 1);
            self.link(used, hole);
            used
        } else {
            self.delist_class(hole);
            self.by_last.remove(&hole_last);
            let node = self.node_mut(hole);
            node.state = State::Used;
            node.start = start;
            self.link(hole, above);
            hole
        };
        if hole_start < start {
            let lower = self.new_node(hole_start, start - 1, State::Hole);
            self.link(below, lower);
            self.link(lower, used);
            self.enlist(lower);
        } else {
            self.link(below, used);
        }
        used
    }

    fn resize_hole(&mut self, hole: NodeId, start: u64) {
        let node = self.node(hole);
        let class = class_of(node.last - node.start + 1);
        if class_of(node.last - start + 1) == class {
            self.node_mut(hole).start = start;
        } else {
            self.delist_class(hole);
            self.node_mut(hole).start = start;
            self.enlist_class(hole);
        }
    }

    /// Makes the holes anew from the ranges and the used nodes.
    fn rebuild(&mut self) {
        for hole in core::mem::take(&mut self.by_last).into_values() {
            self.discard(hole);
        }
        self.heads.fill(NONE);
        self.classes = ClassSet::new();
        self.free_units = 0;
        let mut used: Vec<NodeId> =
            (0..).zip(&self.nodes).filter(|(_, n)| n.is_used()).map(|(id, _)| id).collect();
        used.sort_unstable_by_key(|id| self.node(*id).start);
        for id in &used {
            let Node { start, last, .. } = *self.node(*id);
            let state = if self.covers(start, last) { State::Used } else { State::Stranded };
            let node = self.node_mut(*id);
            (node.below, node.above, node.state) = (NONE, NONE, state);
        }
        for (first, last) in self.ranges.clone() {
            self.rebuild_range(first, last, &used);
        }
    }

    fn rebuild_range(&mut self, first: u64, last: u64, used: &[NodeId]) {
        let mut next_free = Some(first);
        let mut below = NONE;
        let inside = |node: &Node| node.last >= first && node.start <= last;
        for id in used.iter().copied().filter(|id| inside(self.node(*id))).collect::<Vec<_>>() {
            let node = *self.node(id);
            let Some(start) = next_free else { break };
            if node.start > start {
                let hole = self.add_hole(start, node.start - 1);
                self.link(below, hole);
                below = hole;
            }
            if node.state == State::Stranded {
                below = NONE;
            } else {
                self.link(below, id);
                below = id;
            }
            next_free = node.last.checked_add(1);
        }
        if let Some(start) = next_free.filter(|start| *start <= last) {
            let hole = self.add_hole(start, last);
            self.link(below, hole);
        }
    }

    /// Makes a new hole of units that were none of the space's free ones.
    fn add_hole(&mut self, start: u64, last: u64) -> NodeId {
        self.free_units += last - start + 1;
        let hole = self.new_node(start, last, State::Hole);
        self.enlist(hole);
        hole
    }

    fn enlist(&mut self, hole: NodeId) {
        let last = self.node(hole).last;
        self.by_last.insert(last, hole);
        self.enlist_class(hole);
    }

    fn enlist_class(&mut self, hole: NodeId) {
        let node = self.node(hole);
        let class = class_of(node.last - node.start + 1);
        let head = core::mem::replace(&mut self.heads[class], hole);
        let node = self.node_mut(hole);
        (node.before, node.after) = (NONE, head);
        if head == NONE {
            self.classes.insert(class);
        } else {
            self.node_mut(head).before = hole;
        }
    }

    fn delist_class(&mut self, hole: NodeId) {
        let Node { start, last, before, after, .. } = *self.node(hole);
        if after != NONE {
            self.node_mut(after).before = before;
        }
        if before != NONE {
            self.node_mut(before).after = after;
            return;
        }
        let class = class_of(last - start + 1);
        self.heads[class] = after;
        if after == NONE {
            self.classes.remove(class);
        }
    }

    fn list(&self, class: usize) -> impl Iterator<Item = NodeId> {
        let some = |id: NodeId| (id != NONE).then_some(id);
        core::iter::successors(some(self.heads[class]), move |id| some(self.node(*id).after))
    }

    fn link(&mut self, below: NodeId, above: NodeId) {
        if below != NONE {
            self.node_mut(below).above = above;
        }
        if above != NONE {
            self.node_mut(above).below = below;
        }
    }

    fn new_node(&mut self, start: u64, last: u64, state: State) -> NodeId {
        let node = Node { start, last, below: NONE, above: NONE, before: NONE, after: NONE, state };
        if self.spare != NONE {
            let id = self.spare;
            self.spare = self.node(id).after;
            *self.node_mut(id) = node;
            return id;
        }
        // PANIC: 2^32 - 1 nodes of 40 bytes are 160 GiB; memory ends first.
        let id =
            NodeId::try_from(self.nodes.len()).ok().filter(|id| *id != NONE).expect("fewer than 2^32 ranges");
        self.nodes.push(node);
        id
    }

    fn discard(&mut self, id: NodeId) {
        let spare = core::mem::replace(&mut self.spare, id);
        let node = self.node_mut(id);
        (node.state, node.after) = (State::Spare, spare);
    }

    #[inline]
    fn is_hole(&self, id: NodeId) -> bool {
        id != NONE && self.node(id).state == State::Hole
    }

    #[inline]
    fn node(&self, id: NodeId) -> &Node {
        // PANIC: ids are indices of `nodes` by the type invariant, which never shrinks.
        &self.nodes[id as usize]
    }

    #[inline]
    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        // PANIC: as in `node`.
        &mut self.nodes[id as usize]
    }
}

impl Node {
    fn is_used(&self) -> bool {
        matches!(self.state, State::Used | State::Stranded)
    }
}

/// Where the request begins in a hole, if it fits.
#[inline]
fn place(hole: &Node, request: &Request) -> Option<u64> {
    let mask = request.alignment - 1;
    let last = hole.last.min(request.limit);
    if request.top_down {
        let start = last.checked_sub(request.units - 1)? & !mask;
        (start >= hole.start).then_some(start)
    } else {
        let start = hole.start.checked_add(mask)? & !mask;
        (start.checked_add(request.units - 1)? <= last).then_some(start)
    }
}

/// Sorts ranges and joins those that overlap or touch.
fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (start, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if end.checked_add(1).is_none_or(|next| start <= next) => *end = last.max(*end),
            _ => merged.push((start, last)),
        }
    }
    merged
}

/// "No node".
const NONE: NodeId = NodeId::MAX;

/// How many holes of a class are compared once one was found that fits.
const EXAMINED: usize = 8;
