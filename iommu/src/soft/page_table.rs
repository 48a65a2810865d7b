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
