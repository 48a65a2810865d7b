//! Page pointers against a reader written from the device's side.

use super::*;
use crate::sg::{SgLimits, SgList, Translation};
use proptest::prelude::*;
use vdk_hal::address::HostAddress;
use vdk_hal::memory::{Pages, SharedMemory};

const PAGE: u64 = 4096;
const LIST: u64 = 0x5000_0000;

/// List pages in one piece of memory, seen by the device at `LIST`.
struct Lists {
    memory: SharedMemory,
    pages: Vec<PrpListPage>,
}

/// `used` list pages, with a canary page before and behind.
fn lists(used: u64) -> Lists {
    let memory = SharedMemory::allocate(ByteLength::new((used + 2) * PAGE), Pages::Base).unwrap();
    memory.fill(0, usize::try_from((used + 2) * PAGE).unwrap(), 0xa5).unwrap();
    let page = |n: u64| {
        let offset = usize::try_from((n + 1) * PAGE).unwrap();
        PrpListPage::new(Iova::new(LIST + (n + 1) * PAGE), memory.slots(offset, 512).unwrap())
    };
    let pages = (0..used).map(page).collect();
    Lists { memory, pages }
}

impl Lists {
    fn canaries_are_whole(&self) -> bool {
        let mut page = [0; 4096];
        let behind = self.memory.length().to_usize().unwrap() - 4096;
        [0, behind].into_iter().all(|offset| {
            self.memory.read(offset, &mut page).unwrap();
            page == [0xa5; 4096]
        })
    }

    fn load(&self, address: u64) -> u64 {
        self.memory.read_value(usize::try_from(address - LIST).unwrap()).unwrap()
    }
}

/// What a device moves: it knows the length, and follows the pointers one by one.
fn read(prp: Prp, lists: &Lists, length: u64) -> Vec<(u64, u64)> {
    let mut moved = Vec::new();
    let mut left = length;
    let mut take = |address: u64, left: &mut u64| {
        let count = (PAGE - address % PAGE).min(*left);
        moved.push((address, count));
        *left -= count;
    };
    take(prp.first, &mut left);
    if left == 0 {
        assert_eq!(prp.second, 0);
        return moved;
    }
    if left <= PAGE {
        assert_eq!(prp.second % PAGE, 0);
        take(prp.second, &mut left);
        return moved;
    }
    let mut at = prp.second;
    while left > 0 {
        let entry = lists.load(at);
        assert_eq!(entry % PAGE, 0, "pointers behind the first have no offset");
        if at % PAGE == PAGE - 8 && left > PAGE {
            at = entry;
        } else {
            take(entry, &mut left);
            at += 8;
        }
    }
    moved
}

fn runs(pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (start, length) in pieces {
        match runs.last_mut() {
            Some((from, bytes)) if *from + *bytes == start => *bytes += length,
            _ => runs.push((start, length)),
        }
    }
    runs
}

fn entries(pieces: &[(u64, u64)]) -> Vec<SgEntry> {
    pieces.iter().map(|p| SgEntry { iova: Iova::new(p.0), length: ByteLength::new(p.1) }).collect()
}

fn format() -> PrpFormat {
    PrpFormat::new(ByteLength::SIZE_4K, None).unwrap()
}

/// Builds, reads back and compares; returns how many list pages were used.
fn check(pieces: &[(u64, u64)], list_pages: u64) -> usize {
    let lists = lists(list_pages);
    let prp = format().build(&entries(pieces), &lists.pages).unwrap();
    let length = pieces.iter().map(|piece| piece.1).sum();
    assert_eq!(runs(read(prp, &lists, length)), runs(pieces.iter().copied()));
    assert!(lists.canaries_are_whole());
    prp.list_pages
}

#[test]
fn lists_of_exactly_one_page_hold_a_data_pointer_in_their_last_slot() {
    for (list_entries, pages) in [(511, 1), (512, 1), (513, 2), (1022, 2), (1023, 2), (1024, 3)] {
        let data = 1 + list_entries;
        assert_eq!(check(&[(0x100_0000, data * PAGE)], pages), usize::try_from(pages).unwrap());
        assert_eq!(
            check(&[(0x100_0000 + 512, data * PAGE - 512)], pages),
            usize::try_from(pages).unwrap(),
            "with an offset in the first page"
        );
        let last = check(&[(0x100_0000 + 4, (data - 1) * PAGE)], pages);
        assert_eq!(last, usize::try_from(pages).unwrap(), "with a last page that is not full");
    }
}

#[test]
fn one_and_two_pages_need_no_list() {
    assert_eq!(check(&[(0x1000, 1)], 0), 0);
    assert_eq!(check(&[(0x1ffc, 4)], 0), 0);
    assert_eq!(check(&[(0x1ffc, 5)], 0), 0);
    assert_eq!(check(&[(0x1000, 2 * PAGE)], 0), 0);
    assert_eq!(check(&[(0x1000, PAGE), (0x9000, 8)], 0), 0);
    assert_eq!(check(&[(0x1004, 2 * PAGE)], 1), 1);
}

#[test]
fn transfers_of_any_number_of_pages_go_through_one_builder() {
    for pages in [1, 2, 3, 600, 5000] {
        check(&[(0x10_0000, pages * PAGE)], format().list_pages(ByteLength::new(pages * PAGE)));
    }
}

#[test]
fn data_that_does_not_begin_on_four_bytes_is_refused() {
    for offset in 1..4 {
        let iova = Iova::new(0x1000 + offset);
        let error = format().build(&entries(&[(0x1000 + offset, 512)]), &[]).unwrap_err();
        assert_eq!(error, PrpError::Unaligned { iova });
    }
}

#[test]
fn holes_inside_a_page_are_refused() {
    let refused = |pieces: &[(u64, u64)]| format().build(&entries(pieces), &[]).unwrap_err();
    assert_eq!(
        refused(&[(0x1000, 2000), (0x5000, 2096)]),
        PrpError::NotPrpable { index: 1, iova: Iova::new(0x5000), end: 0x1000 + 2000 }
    );
    assert!(matches!(
        refused(&[(0x1000, PAGE), (0x5000, 882), (0x9000, PAGE)]),
        PrpError::NotPrpable { index: 2, .. }
    ));
    assert!(matches!(refused(&[(0x1000, PAGE), (0x5100, 16)]), PrpError::NotPrpable { index: 1, .. }));
    assert_eq!(refused(&[]), PrpError::Empty { index: 0 });
    assert_eq!(refused(&[(0x1000, PAGE), (0x5000, 0)]), PrpError::Empty { index: 1 });
    let iova = Iova::new(u64::MAX - 3);
    assert_eq!(refused(&[(u64::MAX - 3, 5)]), PrpError::PastEnd { index: 0, iova });
}

#[test]
fn pieces_that_touch_inside_a_page_are_one() {
    check(&[(0x1000, 2000), (0x1000 + 2000, 2096)], 0);
    check(&[(0x1100, 100), (0x1164, 10), (0x116e, PAGE), (0x216e, 3 * PAGE)], 1);
    check(&[(0x1800, 0x7fc), (0x1ffc, 4), (0x7000, PAGE), (0x3000, 1)], 1);
}

#[test]
fn list_pages_of_two_commands_do_not_touch_each_other() {
    let memory = SharedMemory::allocate(ByteLength::new(2 * PAGE), Pages::Base).unwrap();
    let page = |n: u64| {
        let offset = usize::try_from(n * PAGE).unwrap();
        [PrpListPage::new(Iova::new(LIST + n * PAGE), memory.slots(offset, 512).unwrap())]
    };
    let first = format().build(&entries(&[(0x100_0000, 513 * PAGE)]), &page(0)).unwrap();
    let second = format().build(&entries(&[(0x900_0000, 513 * PAGE)]), &page(1)).unwrap();
    let lists = Lists { memory: memory.clone(), pages: Vec::new() };
    assert_eq!(runs(read(first, &lists, 513 * PAGE)), [(0x100_0000, 513 * PAGE)]);
    assert_eq!(runs(read(second, &lists, 513 * PAGE)), [(0x900_0000, 513 * PAGE)]);
}

#[test]
fn a_transfer_too_long_for_its_list_or_its_controller_writes_nothing() {
    let lists = lists(1);
    let error = format().build(&entries(&[(0x10_0000, 514 * PAGE)]), &lists.pages).unwrap_err();
    assert_eq!(error, PrpError::ListTooShort { pages: 514, needed: 2, available: 1 });
    let small = PrpFormat::new(ByteLength::SIZE_4K, Some(ByteLength::new(128 << 10))).unwrap();
    let error = small.build(&entries(&[(0x10_0000, (128 << 10) + 4)]), &lists.pages).unwrap_err();
    assert_eq!(error, PrpError::TooLong { length: (128 << 10) + 4, limit: 128 << 10 });
    assert!(small.build(&entries(&[(0x10_0000, 128 << 10)]), &lists.pages).is_ok());
    assert_eq!(lists.load(LIST + PAGE + 31 * 8), 0xa5a5_a5a5_a5a5_a5a5);
}

#[test]
fn list_pages_and_page_sizes_are_checked() {
    assert!(PrpFormat::new(ByteLength::new(2048), None).is_none());
    assert!(PrpFormat::new(ByteLength::new(4097), None).is_none());
    let memory = SharedMemory::allocate(ByteLength::new(2 * PAGE), Pages::Base).unwrap();
    let bad = [
        PrpListPage::new(Iova::new(LIST + 8), memory.slots(0, 512).unwrap()),
        PrpListPage::new(Iova::new(LIST), memory.slots(0, 511).unwrap()),
    ];
    for page in bad {
        let iova = page.iova();
        let error = format().build(&entries(&[(0x1000, 4 * PAGE)]), &[page]).unwrap_err();
        assert_eq!(error, PrpError::ListPage { index: 0, iova });
    }
    let big = PrpFormat::new(ByteLength::new(64 << 10), None).unwrap();
    assert_eq!(big.list_pages(ByteLength::SIZE_1G), 3);
    assert_eq!(format().list_pages(ByteLength::ZERO), 0);
}

#[test]
fn pages_of_a_buffer_in_any_order_have_their_own_pointers() {
    const BUFFER: u64 = 0x7000_0000_0000;
    let limits = SgLimits { page: Some(ByteLength::SIZE_4K), ..SgLimits::NONE };
    let mut list = SgList::new(&limits).unwrap();
    let reverse = |address: HostAddress, _: ByteLength| {
        let offset = address.as_u64() - BUFFER;
        let iova = 0x200_0000 - offset / PAGE * PAGE + offset % PAGE;
        Ok::<_, ()>(Translation::new(Iova::new(iova), ByteLength::new(PAGE - offset % PAGE)))
    };
    list.push_buffer(HostAddress::new(BUFFER + 512), ByteLength::new(4 * PAGE), reverse).unwrap();
    let lists = lists(1);
    let prp = format().build(list.entries(), &lists.pages).unwrap();
    assert_eq!(
        read(prp, &lists, 4 * PAGE),
        [
            (0x200_0000 + 512, PAGE - 512),
            (0x200_0000 - PAGE, PAGE),
            (0x200_0000 - 2 * PAGE, PAGE),
            (0x200_0000 - 3 * PAGE, PAGE),
            (0x200_0000 - 4 * PAGE, 512),
        ]
    );
}

proptest! {
    #[test]
    fn the_bytes_are_those_of_the_entries_or_the_build_is_refused(
        pieces in proptest::collection::vec((0u64..40, 0u64..4096, 1u64..12_000, any::<bool>()), 1..12),
    ) {
        let mut next = 0x100_0000u64;
        let pieces: Vec<_> = pieces
            .into_iter()
            .map(|(gap, offset, length, whole)| {
                let (start, length) = if whole {
                    (next.next_multiple_of(PAGE) + gap * PAGE, length.next_multiple_of(PAGE))
                } else {
                    (next + (gap / 20) * (offset & !3), length)
                };
                next = start + length;
                (start, length)
            })
            .collect();
        let lists = lists(4);
        let total = pieces.iter().map(|piece| piece.1).sum();
        match format().build(&entries(&pieces), &lists.pages) {
            Ok(prp) => prop_assert_eq!(runs(read(prp, &lists, total)), runs(pieces)),
            Err(PrpError::Unaligned { .. }) => prop_assert!(!pieces[0].0.is_multiple_of(4)),
            Err(PrpError::NotPrpable { index, .. }) => {
                let end = pieces[index - 1].0 + pieces[index - 1].1;
                let hole = end != pieces[index].0;
                prop_assert!(hole && (end % PAGE != 0 || pieces[index].0 % PAGE != 0));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        prop_assert!(lists.canaries_are_whole());
    }
}
