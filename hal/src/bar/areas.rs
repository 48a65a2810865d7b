//! Which parts of a BAR may be mapped.
//!
//! A backend can map whole host pages only, and must not map the MSI-X table and pending
//! bits unless the kernel says that it may: what is left over is trapped. Nothing here
//! assumes a page size.

use super::RegionInfo;
use crate::address::{BarIndex, ByteLength};
use crate::config::{Msix, MsixLocation};

/// A part of a BAR, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Area {
    /// Where it begins in the BAR.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

impl Area {
    /// The end, or `None` when it is past 2^64.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }
}

/// The parts of a BAR that may be mapped, ascending and apart from each other. Each begins
/// on a page of `page` bytes, the host's page size.
///
/// The last area ends on a page too, with one exception: a BAR smaller than a page is one
/// area, and the mapping is rounded up to the page, which a kernel that offers to map it has
/// reserved. A *part* smaller than a page is never rounded up: its neighbours are not ours.
///
/// - Without the mmap flag there are none.
/// - With a sparse capability only its areas count, cut to the BAR.
/// - The pages of the MSI-X table and pending bits are left out if they lie in this BAR,
///   unless the region says that they may be mapped. Where they lie outside the BAR they
///   are ignored: the device contradicts itself, and there is nothing to protect.
///
/// `page` is a power of two; none is given for zero.
#[must_use]
pub fn mappable_areas(
    bar: BarIndex,
    region: &RegionInfo,
    msix: Option<&Msix>,
    page: ByteLength,
) -> Vec<Area> {
    if !region.mappable || region.size == 0 || !page.as_u64().is_power_of_two() {
        return Vec::new();
    }
    let page = page.as_u64();
    let whole = [Area { offset: 0, length: region.size }];
    let offered = region.sparse.as_deref().unwrap_or(&whole);
    let holes: Vec<Area> = match msix {
        Some(msix) if !region.msix_mappable => {
            [msix.table, msix.pending].iter().filter_map(|location| hole(*location, bar, page)).collect()
        }
        _ => Vec::new(),
    };
    let mut areas: Vec<Area> = offered
        .iter()
        .filter_map(|area| whole_pages(*area, region.size, page))
        .flat_map(|area| without(area, &holes))
        .collect();
    areas.sort_unstable();
    merge(areas)
}

/// The pages that `location` touches, if it lies in `bar`.
fn hole(location: MsixLocation, bar: BarIndex, page: u64) -> Option<Area> {
    if location.bar != bar {
        return None;
    }
    let end = location.offset.saturating_add(location.length.as_u64());
    let start = location.offset & !(page - 1);
    Some(Area { offset: start, length: end.checked_next_multiple_of(page).unwrap_or(u64::MAX) - start })
}

/// The part of `area` that is inside `size` and whole pages.
fn whole_pages(area: Area, size: u64, page: u64) -> Option<Area> {
    let end = area.end().unwrap_or(u64::MAX).min(size);
    if size < page {
        return (area.offset == 0 && end == size).then_some(Area { offset: 0, length: size });
    }
    let start = area.offset.checked_next_multiple_of(page)?;
    let end = end & !(page - 1);
    (start < end).then(|| Area { offset: start, length: end - start })
}

/// What is left of `area` beside `holes`.
fn without(area: Area, holes: &[Area]) -> Vec<Area> {
    let mut left = vec![(area.offset, area.offset + area.length)];
    for hole in holes {
        let (start, end) = (hole.offset, hole.offset.saturating_add(hole.length));
        left = left
            .into_iter()
            .flat_map(|(from, to)| [(from, to.min(start)), (from.max(end), to)])
            .filter(|(from, to)| from < to)
            .collect();
    }
    left.into_iter().map(|(from, to)| Area { offset: from, length: to - from }).collect()
}

/// Joins areas that overlap or touch; `areas` are sorted and end below 2^64.
fn merge(areas: Vec<Area>) -> Vec<Area> {
    let mut merged: Vec<Area> = Vec::with_capacity(areas.len());
    for area in areas {
        match merged.last_mut() {
            Some(last) if area.offset <= last.offset + last.length => {
                last.length = last.length.max(area.offset + area.length - last.offset);
            }
            _ => merged.push(area),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MsixControl;

    const KIB: u64 = 1 << 10;

    fn bar(index: u8) -> BarIndex {
        BarIndex::new(index).unwrap()
    }

    fn region(size: u64) -> RegionInfo {
        RegionInfo { readable: true, writable: true, mappable: true, size, ..RegionInfo::default() }
    }

    fn sparse(size: u64, areas: &[(u64, u64)]) -> RegionInfo {
        let areas = areas.iter().map(|(offset, length)| Area { offset: *offset, length: *length });
        RegionInfo { sparse: Some(areas.collect()), ..region(size) }
    }

    /// A table of 0x810 bytes and its pending bits, both in BAR 0.
    fn msix(table: u64, pending: u64) -> Msix {
        let at = |offset, length| MsixLocation { bar: bar(0), offset, length: ByteLength::new(length) };
        Msix { offset: 0x40, control: MsixControl(0x80), table: at(table, 0x810), pending: at(pending, 0x18) }
    }

    fn areas(region: &RegionInfo, msix: Option<&Msix>, page: u64) -> Vec<(u64, u64)> {
        let areas = mappable_areas(bar(0), region, msix, ByteLength::new(page));
        areas.iter().map(|area| (area.offset, area.end().unwrap())).collect()
    }

    #[test]
    fn table_and_pending_bits_are_left_out_in_whole_host_pages() {
        let whole = region(64 * KIB);
        assert_eq!(areas(&whole, None, 4096), [(0, 0x10000)]);
        let both = msix(0x5200, 0x5a10);
        assert_eq!(areas(&whole, Some(&both), 4096), [(0, 0x5000), (0x6000, 0x10000)]);
        let apart = msix(0x0000, 0xe000);
        assert_eq!(areas(&whole, Some(&apart), 4096), [(0x1000, 0xe000), (0xf000, 0x10000)]);
        let crossing = msix(0x5c00, 0x8000);
        assert_eq!(areas(&whole, Some(&crossing), 4096), [(0, 0x5000), (0x7000, 0x8000), (0x9000, 0x10000)]);
        assert_eq!(areas(&whole, Some(&both), 16 * KIB), [(0, 0x4000), (0x8000, 0x10000)]);
        assert_eq!(areas(&whole, Some(&both), 64 * KIB), []);
        assert_eq!(areas(&region(256 * KIB), Some(&both), 64 * KIB), [(0x10000, 0x40000)]);
    }

    #[test]
    fn holes_outside_the_region_or_in_another_bar_change_nothing() {
        let whole = region(64 * KIB);
        assert_eq!(areas(&whole, Some(&msix(0x11000, 0x12000)), 4096), [(0, 0x10000)]);
        assert_eq!(areas(&whole, Some(&msix(0xfffff000, 0xf000)), 4096), [(0, 0xf000)]);
        let other = mappable_areas(bar(2), &whole, Some(&msix(0, 0x1000)), ByteLength::SIZE_4K);
        assert_eq!(other, [Area { offset: 0, length: 0x10000 }]);
    }

    #[test]
    fn a_region_that_says_so_is_mapped_with_its_table() {
        let table = msix(0x5200, 0x8000);
        let mappable = RegionInfo { msix_mappable: true, ..region(64 * KIB) };
        assert_eq!(areas(&mappable, Some(&table), 4096), [(0, 0x10000)]);
        let not_at_all = RegionInfo { mappable: false, ..mappable };
        assert_eq!(areas(&not_at_all, Some(&table), 4096), []);
        assert_eq!(areas(&region(0), None, 4096), []);
    }

    #[test]
    fn sparse_areas_are_cut_to_the_region_and_to_whole_pages() {
        let size = 64 * KIB;
        let two = sparse(size, &[(0x8000, 0x4000), (0, 0x5000)]);
        assert_eq!(areas(&two, None, 4096), [(0, 0x5000), (0x8000, 0xc000)]);
        let beyond = sparse(size, &[(0xf000, 0x9000), (0x20000, 0x1000), (u64::MAX - 10, u64::MAX)]);
        assert_eq!(areas(&beyond, None, 4096), [(0xf000, 0x10000)]);
        let ragged = sparse(size, &[(0x1800, 0x2000), (0x6000, 0x800)]);
        assert_eq!(areas(&ragged, None, 4096), [(0x2000, 0x3000)]);
        let touching = sparse(size, &[(0, 0x2000), (0x1000, 0x3000), (0x4000, 0x1000)]);
        assert_eq!(areas(&touching, None, 4096), [(0, 0x5000)]);
        assert_eq!(areas(&sparse(size, &[]), None, 4096), []);
        let with_table = sparse(size, &[(0x4000, 0x4000)]);
        assert_eq!(
            areas(&with_table, Some(&msix(0x5200, 0x5a10)), 4096),
            [(0x4000, 0x5000), (0x6000, 0x8000)]
        );
    }

    #[test]
    fn only_a_whole_bar_below_a_page_is_rounded_up() {
        let cases: [(&RegionInfo, &[(u64, u64)]); 6] = [
            (&region(16 * KIB), &[(0, 0x4000)]),
            (&region(256), &[(0, 0x100)]),
            (&sparse(16 * KIB, &[(0, 0x4000)]), &[(0, 0x4000)]),
            (&sparse(16 * KIB, &[(0, 0x2000)]), &[]),
            (&sparse(16 * KIB, &[(0x1000, 0x3000)]), &[]),
            (&sparse(256 * KIB, &[(0x10000, 0x4000), (0x20000, 0x10000)]), &[(0x20000, 0x30000)]),
        ];
        for (region, expected) in cases {
            assert_eq!(areas(region, None, 64 * KIB), expected, "{region:?}");
        }
        // The table shares the only page of the BAR: nothing is left.
        assert_eq!(areas(&region(16 * KIB), Some(&msix(0x2000, 0x3000)), 64 * KIB), []);
    }
}
