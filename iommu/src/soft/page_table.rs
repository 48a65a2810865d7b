//! The page table of a software IOMMU: from an I/O virtual address to a mapping.
//!
//! It is a radix tree of tables with 512 entries, as on x86: level 0 has entries of 4 KiB,
//! level 1 of 2 MiB, level 2 of 1 GiB. An entry of these levels may be a leaf; a leaf names
//! the mapping that it belongs to. There are 4 levels for addresses of 48 bits, and up to 6
//! when the usable ranges reach further.

use vdk_hal::address::{Iova, IovaRange};

/// The number of a mapping, chosen by the owner of the table.
pub(super) type MappingIndex = usize;

/// A page table.
///
/// # Invariants
///
/// No table except the root is without entries, and tables of level 0 hold no tables.
#[derive(Debug)]
pub(super) struct PageTable {
    root: Box<Table>,
    levels: u32,
    page_sizes: u64,
}

#[derive(Debug)]
struct Table {
    entries: [Entry; ENTRIES],
    used: u32,
}

#[derive(Debug)]
enum Entry {
    Empty,
    Table(Box<Table>),
    Leaf(MappingIndex),
}

impl PageTable {
    /// An empty table for addresses up to `highest`, with leaves of 4 KiB and of those of
    /// 2 MiB and 1 GiB that are in the bitmap `page_sizes`.
    pub(super) fn new(highest: Iova, page_sizes: u64) -> Self {
        let bits = u64::BITS - highest.as_u64().leading_zeros();
        let levels = bits.saturating_sub(PAGE_BITS).div_ceil(INDEX_BITS).max(4);
        Self { root: Table::new(), levels, page_sizes }
    }

    /// The mapping at `address`.
    pub(super) fn lookup(&self, address: Iova) -> Option<MappingIndex> {
        if address > self.highest() {
            return None;
        }
        let mut table = &*self.root;
        for level in (0..self.levels).rev() {
            match &table.entries[index(address.as_u64(), level)] {
                Entry::Empty => return None,
                Entry::Leaf(mapping) => return Some(*mapping),
                Entry::Table(next) => table = next,
            }
        }
        None
    }

    /// The mapping with the lowest address in `range`.
    pub(super) fn first_in(&self, range: IovaRange) -> Option<MappingIndex> {
        let reachable = IovaRange::from_bounds(Iova::new(0), self.highest())?;
        let range = range.intersection(reachable)?;
        self.root.first_in(self.levels - 1, range.start().as_u64(), range.last().as_u64())
    }

    /// Enters leaves for all of `range`, which is whole pages of 4 KiB, up to the highest
    /// address, and free.
    pub(super) fn insert(&mut self, range: IovaRange, mapping: MappingIndex) {
        let levels = self.levels;
        for (address, level) in leaves(range, self.page_sizes) {
            self.root.insert(levels - 1, address, level, mapping);
        }
    }

    /// Takes out the leaves that [`insert`](Self::insert) entered for exactly `range`.
    pub(super) fn remove(&mut self, range: IovaRange) {
        let levels = self.levels;
        for (address, level) in leaves(range, self.page_sizes) {
            self.root.remove(levels - 1, address, level);
        }
    }

    fn highest(&self) -> Iova {
        let bits = PAGE_BITS + INDEX_BITS * self.levels;
        Iova::new(u64::MAX >> u64::BITS.saturating_sub(bits))
    }
}

impl Table {
    fn new() -> Box<Self> {
        Box::new(Self { entries: [const { Entry::Empty }; ENTRIES], used: 0 })
    }

    fn first_in(&self, level: u32, start: u64, last: u64) -> Option<MappingIndex> {
        let (low, high) = (index(start, level), index(last, level));
        for position in low..=high {
            let found = match &self.entries[position] {
                Entry::Empty => None,
                Entry::Leaf(mapping) => Some(*mapping),
                Entry::Table(table) => {
                    let start = if position == low { start } else { 0 };
                    let last = if position == high { last } else { u64::MAX };
                    table.first_in(level - 1, start, last)
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn insert(&mut self, level: u32, address: u64, leaf_level: u32, mapping: MappingIndex) {
        let entry = &mut self.entries[index(address, level)];
        if matches!(entry, Entry::Empty) {
            self.used += 1;
        }
        if level == leaf_level {
            *entry = Entry::Leaf(mapping);
            return;
        }
        if !matches!(entry, Entry::Table(_)) {
            *entry = Entry::Table(Table::new());
        }
        if let Entry::Table(table) = entry {
            table.insert(level - 1, address, leaf_level, mapping);
        }
    }

    fn remove(&mut self, level: u32, address: u64, leaf_level: u32) {
        let entry = &mut self.entries[index(address, level)];
        let emptied = match entry {
            Entry::Empty => false,
            Entry::Leaf(_) => level == leaf_level,
            Entry::Table(table) => {
                if level > leaf_level {
                    table.remove(level - 1, address, leaf_level);
                }
                table.used == 0
            }
        };
        if emptied {
            *entry = Entry::Empty;
            self.used -= 1;
        }
    }
}

/// The leaves that cover `range`: each as large as its address, the rest of the range and
/// `page_sizes` allow. The same range always gives the same leaves.
fn leaves(range: IovaRange, page_sizes: u64) -> impl Iterator<Item = (u64, u32)> {
    let last = range.last().as_u64();
    let mut next = Some(range.start().as_u64());
    core::iter::from_fn(move || {
        let address = next.filter(|address| *address <= last)?;
        let level = [2, 1].into_iter().find(|level| {
            let size = 1u64 << shift(*level);
            page_sizes & size != 0 && address & (size - 1) == 0 && last - address >= size - 1
        });
        let level = level.unwrap_or(0);
        next = address.checked_add(1 << shift(level));
        Some((address, level))
    })
}

/// Where `address` falls in a table of `level`; below [`ENTRIES`].
#[inline(always)]
fn index(address: u64, level: u32) -> usize {
    // CAST: nine bits.
    ((address >> shift(level)) & INDEX_MASK) as usize
}

#[inline(always)]
const fn shift(level: u32) -> u32 {
    PAGE_BITS + INDEX_BITS * level
}

const PAGE_BITS: u32 = 12;
const INDEX_BITS: u32 = 9;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const ENTRIES: usize = 1 << INDEX_BITS;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use vdk_hal::address::ByteLength;

    impl PageTable {
        fn tables(&self) -> usize {
            self.root.tables()
        }
    }

    impl Table {
        fn tables(&self) -> usize {
            let below = self.entries.iter().map(|entry| match entry {
                Entry::Table(table) => table.tables(),
                Entry::Empty | Entry::Leaf(_) => 0,
            });
            1 + below.sum::<usize>()
        }
    }

    fn range(start: u64, length: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), ByteLength::new(length)).unwrap()
    }

    const ALL: u64 = K4 | M2 | G1;
    const K4: u64 = 1 << 12;
    const M2: u64 = 1 << 21;
    const G1: u64 = 1 << 30;
    const TOP_48: Iova = Iova::new((1 << 48) - 1);

    #[test]
    fn leaves_are_as_large_as_alignment_and_length_allow() {
        let sizes = |start, length, page_sizes| -> Vec<(u64, u32)> {
            leaves(range(start, length), page_sizes).collect()
        };
        assert_eq!(sizes(G1, G1, ALL), [(G1, 2)]);
        assert_eq!(sizes(G1 - M2, G1 + 2 * M2, ALL), [(G1 - M2, 1), (G1, 2), (2 * G1, 1)]);
        assert_eq!(sizes(M2 - K4, M2 + 2 * K4, ALL), [(M2 - K4, 0), (M2, 1), (2 * M2, 0)]);
        assert_eq!(sizes(M2, M2, K4).len(), 512);
        assert_eq!(sizes(0, M2 - K4, ALL).len(), 511);
        let top = u64::MAX - (M2 - 1);
        assert_eq!(sizes(top, M2, ALL), [(top, 1)]);
    }

    #[test]
    fn a_gigabyte_takes_one_leaf_and_three_tables() {
        let mut table = PageTable::new(TOP_48, ALL);
        table.insert(range(4 * G1, 2 * G1), 7);
        assert_eq!(table.tables(), 2);
        for (address, mapping) in
            [(4 * G1 - 1, None), (4 * G1, Some(7)), (6 * G1 - 1, Some(7)), (6 * G1, None), (1 << 48, None)]
        {
            assert_eq!(table.lookup(Iova::new(address)), mapping, "{address:#x}");
        }
        // The bits above the table's reach do not wrap around.
        assert_eq!(table.lookup(Iova::new((1 << 48) + 4 * G1)), None);
        assert_eq!(table.first_in(range((1 << 48) + 4 * G1, K4)), None);
        assert_eq!(table.first_in(range(0, u64::MAX)), Some(7));
        table.remove(range(4 * G1, 2 * G1));
        assert_eq!((table.tables(), table.first_in(range(0, u64::MAX))), (1, None));
    }

    #[test]
    fn the_table_grows_with_the_usable_addresses() {
        for (highest, levels) in [(0, 4), ((1 << 48) - 1, 4), (1 << 48, 5), (1 << 57, 6), (u64::MAX, 6)] {
            assert_eq!(PageTable::new(Iova::new(highest), ALL).levels, levels, "{highest:#x}");
        }
        let mut table = PageTable::new(Iova::new(u64::MAX), ALL);
        table.insert(range(u64::MAX - (K4 - 1), K4), 1);
        assert_eq!(table.tables(), 6);
        assert_eq!(table.lookup(Iova::new(u64::MAX)), Some(1));
        assert_eq!(table.lookup(Iova::new(u64::MAX - K4)), None);
    }

    /// Places around the boundaries of each level.
    fn place() -> impl Strategy<Value = (u64, u64)> {
        let corner = prop_oneof![
            Just(0),
            Just(M2),
            Just(G1 - M2),
            Just(G1),
            Just(3 * G1),
            Just((1 << 39) - M2),
            Just((1 << 48) - 2 * G1)
        ];
        let length = prop_oneof![1..4u64, 510..515u64, Just(1024), Just(512 * 512)];
        (corner, 0..1030u64, length).prop_map(|(corner, page, pages)| (corner + page * K4, pages * K4))
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_an_ordered_map(
            page_sizes in prop_oneof![Just(ALL), Just(K4 | M2), Just(M2 | G1)],
            steps in prop::collection::vec((place(), any::<prop::sample::Index>(), 0..3u8), 1..60),
        ) {
            let mut table = PageTable::new(TOP_48, page_sizes);
            let mut model: BTreeMap<u64, (u64, MappingIndex)> = BTreeMap::new();
            let overlapping = |model: &BTreeMap<u64, (u64, MappingIndex)>, range: IovaRange| {
                let first = model.iter().find(|(_, (last, _))| *last >= range.start().as_u64());
                first.filter(|(start, _)| **start <= range.last().as_u64()).map(|(_, (_, index))| *index)
            };
            for (number, ((start, length), pick, action)) in steps.into_iter().enumerate() {
                let wanted = range(start, length);
                prop_assert_eq!(table.first_in(wanted), overlapping(&model, wanted));
                if action == 0 && !model.is_empty() {
                    let start = *model.keys().nth(pick.index(model.len())).unwrap();
                    let (last, _) = model.remove(&start).unwrap();
                    table.remove(IovaRange::from_bounds(Iova::new(start), Iova::new(last)).unwrap());
                } else if overlapping(&model, wanted).is_none() {
                    table.insert(wanted, number);
                    model.insert(start, (wanted.last().as_u64(), number));
                }
                for (start, (last, index)) in &model {
                    for address in [*start, (start + last) / 2, *last] {
                        prop_assert_eq!(table.lookup(Iova::new(address)), Some(*index));
                    }
                    for address in [start.wrapping_sub(1), last + 1] {
                        let address = range(address, 1);
                        prop_assert_eq!(table.lookup(address.start()), overlapping(&model, address));
                    }
                }
            }
            for (start, (last, _)) in model {
                table.remove(IovaRange::from_bounds(Iova::new(start), Iova::new(last)).unwrap());
            }
            prop_assert_eq!(table.tables(), 1);
        }
    }
}
