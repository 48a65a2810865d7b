//! From addresses of this process to I/O virtual addresses, by page.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use thiserror::Error;
use vdk_hal::address::{ByteLength, HostAddress, Iova, IovaRange};

use crate::region::DmaSegment;

/// Looks up where the pages of a [`DmaPool`](crate::DmaPool) lie for its devices, without a
/// lock and without writing anything.
///
/// A flat table has one word for each 2 MiB of address space, under a directory of 32 GiB
/// parts; memory that does not fill its 2 MiB has a table of 4 KiB pages beneath. Parts are
/// made when they are first needed and never freed while the table lives, so a look-up is
/// two or three loads.
///
/// # What a translation is worth
///
/// It holds as long as the pool, or a buffer of the slab that the address lies in, lives.
/// Later the address is unknown; a thread that looked it up before may still hand a stale
/// one to a device, whose access then faults in the IOMMU.
pub struct PoolTranslation {
    parts: Box<[OnceLock<Box<Part>>]>,
}

/// 32 GiB of address space.
struct Part {
    blocks: Box<[AtomicU64; BLOCKS]>,
    /// For each block the pages beneath; made with the first such block.
    pages: OnceLock<Box<[OnceLock<Box<BlockPages>>]>>,
}

/// The pages of 4 KiB in a block of 2 MiB.
type BlockPages = [AtomicU64; PAGES];

impl PoolTranslation {
    pub(crate) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| OnceLock::new()).collect() }
    }

    /// Where `address` lies for the devices, and how many bytes from there on are
    /// contiguous for them and for this process. More may be contiguous: ask again at the
    /// end. `None` when the pool has no such address.
    #[inline]
    #[must_use]
    pub fn translate(&self, address: HostAddress) -> Option<DmaSegment> {
        let host = address.as_u64();
        let part = self.part(host)?;
        let word = part.block(host);
        if word & PRESENT != 0 {
            return Some(segment(word, host, BLOCK_SHIFT));
        }
        part.translate_page(word, host)
    }

    /// Translates each of `addresses`, in order, into `iovas`, with less work when
    /// neighbours follow one another.
    ///
    /// # Errors
    ///
    /// [`Untranslated`] with the index of the first that cannot be written: the pool has no
    /// such address, or `iovas` is shorter. Those before it are written.
    #[inline]
    pub fn translate_pages(&self, addresses: &[HostAddress], iovas: &mut [Iova]) -> Result<(), Untranslated> {
        // The contiguous range of the latest look-up, empty at first.
        let (mut start, mut length, mut iova) = (0u64, 0u64, 0u64);
        for (index, (address, slot)) in addresses.iter().zip(iovas.iter_mut()).enumerate() {
            let host = address.as_u64();
            let mut distance = host.wrapping_sub(start);
            if distance >= length {
                let Some(found) = self.translate(*address) else {
                    return Err(Untranslated { index, address: *address });
                };
                (start, length, iova) = (host, found.length.as_u64(), found.iova.as_u64());
                distance = 0;
            }
            // Inside a mapped range, so the sum is an address of it.
            *slot = Iova::new(iova.wrapping_add(distance));
        }
        match addresses.get(iovas.len()) {
            Some(address) => Err(Untranslated { index: iovas.len(), address: *address }),
            None => Ok(()),
        }
    }

    /// The contiguous pieces of `length` bytes from `address` on, for a scatter-gather list.
    /// Pieces that meet for the device are not merged. An address that the pool does not
    /// have ends the sequence with an error.
    pub fn translate_range(
        &self,
        address: HostAddress,
        length: ByteLength,
    ) -> impl Iterator<Item = Result<DmaSegment, Untranslated>> {
        let (mut next, mut rest, mut index) = (Some(address), length.as_u64(), 0);
        core::iter::from_fn(move || {
            let address = next.filter(|_| rest > 0)?;
            let found = self.translate(address).map(|found| {
                let taken = ByteLength::new(found.length.as_u64().min(rest));
                rest -= taken.as_u64();
                next = address.checked_add(taken);
                DmaSegment { iova: found.iova, length: taken }
            });
            if found.is_none() {
                next = None;
            }
            index += 1;
            Some(found.ok_or(Untranslated { index: index - 1, address }))
        })
    }

    /// Adds memory from `host` on that lies at `range`, whole pages of 4 KiB both.
    pub(crate) fn insert(&self, host: HostAddress, range: IovaRange) {
        let (start, iova) = (host.as_u64(), range.start().as_u64());
        for piece in pieces(start, range.length().as_u64()) {
            let Some(part) = self.make_part(piece.start) else { continue };
            let word = (iova + (piece.start - start)) | (piece.run << RUN_SHIFT) | PRESENT;
            part.store(piece, word);
        }
    }

    /// Forgets memory that was inserted.
    pub(crate) fn remove(&self, host: HostAddress, length: ByteLength) {
        for piece in pieces(host.as_u64(), length.as_u64()) {
            if let Some(part) = self.part(piece.start) {
                part.store(piece, 0);
            }
        }
    }

    #[inline]
    fn part(&self, host: u64) -> Option<&Part> {
        let index = usize::try_from(host >> PART_SHIFT).ok()?;
        self.parts.get(index)?.get().map(Box::as_ref)
    }

    fn make_part(&self, host: u64) -> Option<&Part> {
        let slot = usize::try_from(host >> PART_SHIFT).ok().and_then(|index| self.parts.get(index));
        if slot.is_none() {
            log::warn!("address {host:#x} is beyond the translation table and cannot be looked up");
        }
        slot.map(|slot| slot.get_or_init(|| Box::new(Part::new())).as_ref())
    }
}

impl Part {
    fn new() -> Self {
        Self { blocks: zeroed(), pages: OnceLock::new() }
    }

    #[inline]
    fn block(&self, host: u64) -> u64 {
        // ORDERING: Acquire pairs with the Release store in `store`, so that the table
        // beneath a block is seen once the block refers to it.
        self.blocks[index_of::<BLOCKS>(host >> BLOCK_SHIFT)].load(Ordering::Acquire)
    }

    #[inline]
    fn translate_page(&self, block: u64, host: u64) -> Option<DmaSegment> {
        if block & BENEATH == 0 {
            return None;
        }
        let pages = self.pages.get()?.get(index_of::<BLOCKS>(host >> BLOCK_SHIFT))?.get()?;
        // ORDERING: Acquire pairs with the Release store in `store`: what the owner did to
        // the memory before it was added is seen.
        let word = pages[index_of::<PAGES>(host >> PAGE_SHIFT)].load(Ordering::Acquire);
        (word & PRESENT != 0).then(|| segment(word, host, PAGE_SHIFT))
    }

    fn store(&self, piece: Piece, word: u64) {
        let index = index_of::<BLOCKS>(piece.start >> BLOCK_SHIFT);
        let block = &self.blocks[index];
        if piece.shift == BLOCK_SHIFT {
            // ORDERING: Release pairs with the Acquire loads of look-ups.
            block.store(word, Ordering::Release);
            return;
        }
        let all = self.pages.get_or_init(|| (0..BLOCKS).map(|_| OnceLock::new()).collect());
        let pages = all[index].get_or_init(zeroed);
        // ORDERING: Release, as above.
        pages[index_of::<PAGES>(piece.start >> PAGE_SHIFT)].store(word, Ordering::Release);
        // ORDERING: Release, as above; the flag stays, only the pages come and go.
        block.fetch_or(BENEATH, Ordering::Release);
    }
}

impl fmt::Debug for PoolTranslation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts.iter().filter(|part| part.get().is_some()).count();
        f.debug_struct("PoolTranslation").field("parts", &parts).finish()
    }
}

/// An address that the pool does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "address {address}, number {index} of the request, cannot be translated: it is not memory of the pool, or there is no room for the result"
)]
pub struct Untranslated {
    /// Its place in the request.
    pub index: usize,
    /// The address.
    pub address: HostAddress,
}

/// A block or a page of memory, and how many of the same size follow it contiguously.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    shift: u32,
    run: u64,
}

/// Cuts memory into whole blocks, and pages where it does not fill a block.
fn pieces(start: u64, length: u64) -> impl Iterator<Item = Piece> {
    let end = start.saturating_add(length);
    let mut next = start;
    core::iter::from_fn(move || {
        let here = next;
        if here >= end {
            return None;
        }
        let whole = here & (BLOCK_SIZE - 1) == 0 && end - here >= BLOCK_SIZE;
        let (shift, stop) = if whole {
            (BLOCK_SHIFT, end)
        } else {
            (PAGE_SHIFT, end.min((here & !(BLOCK_SIZE - 1)).saturating_add(BLOCK_SIZE)))
        };
        next = here + (1 << shift);
        // A word has room for so many only; what follows is found by asking again.
        let run = (((stop - here) >> shift).saturating_sub(1)).min(LONGEST_RUN);
        Some(Piece { start: here, shift, run })
    })
}

/// The segment from `host` on, from the word of its block or page.
#[inline]
fn segment(word: u64, host: u64, shift: u32) -> DmaSegment {
    let offset = host & ((1 << shift) - 1);
    let run = ((word & WORD_FLAGS) >> RUN_SHIFT) + 1;
    // The address and all of the run are inside a mapped range: no overflow.
    DmaSegment {
        iova: Iova::new((word & !WORD_FLAGS) + offset),
        length: ByteLength::new((run << shift) - offset),
    }
}

/// The low bits of a number as an index of `N` entries, `N` a power of two.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the mask keeps what the index needs")]
fn index_of<const N: usize>(number: u64) -> usize {
    const { assert!(N.is_power_of_two()) };
    // CAST: the bits that are dropped are masked off anyway.
    number as usize & (N - 1)
}

fn zeroed<const N: usize>() -> Box<[AtomicU64; N]> {
    let words: Box<[AtomicU64]> = (0..N).map(|_| AtomicU64::new(0)).collect();
    // PANIC: the slice was made with `N` words.
    words.try_into().expect("a slice of N words is an array of N words")
}

/// Addresses of 48 bits, which is what `mmap` gives out unless asked for more.
const PARTS: usize = 1 << (48 - PART_SHIFT);

const PART_SHIFT: u32 = 35;

const BLOCK_SHIFT: u32 = 21;

const BLOCK_SIZE: u64 = 1 << BLOCK_SHIFT;

const BLOCKS: usize = 1 << (PART_SHIFT - BLOCK_SHIFT);

const PAGE_SHIFT: u32 = 12;

const PAGES: usize = 1 << (BLOCK_SHIFT - PAGE_SHIFT);

/// A word is an I/O virtual address of whole 4 KiB pages with flags in the low bits.
const WORD_FLAGS: u64 = (1 << PAGE_SHIFT) - 1;

const PRESENT: u64 = 1;

/// The block has a table of pages beneath.
const BENEATH: u64 = 2;

/// How many blocks or pages follow contiguously, in the rest of the low bits.
const RUN_SHIFT: u32 = 2;

const LONGEST_RUN: u64 = WORD_FLAGS >> RUN_SHIFT;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    fn host(address: u64) -> HostAddress {
        HostAddress::new(address)
    }

    fn range(start: u64, length: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), ByteLength::new(length)).unwrap()
    }

    #[test]
    fn the_first_and_last_byte_translate_and_their_neighbours_do_not() {
        let table = PoolTranslation::new();
        let start = 0x7f12_3460_0000;
        table.insert(host(start), range(0x10_0000, 0x40_3000));
        let at = |offset: u64| table.translate(host(start.wrapping_add(offset)));
        let all = at(0).unwrap();
        assert_eq!((all.iova, all.length), (Iova::new(0x10_0000), ByteLength::new(0x40_0000)));
        assert_eq!(at(0x40_0000).unwrap().length, ByteLength::new(0x3000), "the pages after the blocks");
        let last = at(0x40_2fff).unwrap();
        assert_eq!((last.iova, last.length), (Iova::new(0x50_2fff), ByteLength::new(1)));
        assert_eq!((at(0x40_3000), at(u64::MAX)), (None, None));
        for unmapped in [0, 1 << 35, 1 << 48, u64::MAX] {
            assert_eq!(table.translate(host(unmapped)), None, "{unmapped:#x}");
        }
        table.remove(host(start), ByteLength::new(0x40_3000));
        assert_eq!((at(0), at(0x40_0000)), (None, None));
    }

    #[test]
    fn contiguity_ends_where_the_next_memory_lies_elsewhere() {
        let table = PoolTranslation::new();
        let start = 0x5555_0000_0000;
        table.insert(host(start), range(0x20_0000, 0x20_0000));
        table.insert(host(start + 0x20_0000), range(0x80_0000, 0x20_0000));
        let both: Vec<DmaSegment> = table
            .translate_range(host(start + 0x1f_f000), ByteLength::new(0x2000))
            .map(Result::unwrap)
            .collect();
        let piece = |iova| DmaSegment { iova: Iova::new(iova), length: ByteLength::new(0x1000) };
        assert_eq!(both, [piece(0x3f_f000), piece(0x80_0000)]);
        let mut beyond = table.translate_range(host(start + 0x3f_f000), ByteLength::new(0x1001));
        assert_eq!(beyond.next(), Some(Ok(piece(0x9f_f000))));
        let address = host(start + 0x40_0000);
        assert_eq!(beyond.next(), Some(Err(Untranslated { index: 1, address })));
        assert_eq!(beyond.next(), None);
    }

    #[test]
    fn runs_longer_than_a_word_can_say_are_found_by_asking_again() {
        let table = PoolTranslation::new();
        let (start, length) = (0x7000_0000_0000, 5 << 30);
        table.insert(host(start), range(1 << 40, length));
        let pieces: Vec<DmaSegment> =
            table.translate_range(host(start), ByteLength::new(length)).map(Result::unwrap).collect();
        assert_eq!(pieces.iter().map(|piece| piece.length.as_u64()).sum::<u64>(), length);
        assert!(pieces.len() <= 4, "{}", pieces.len());
        let ends: Vec<u64> = pieces.iter().map(|piece| piece.iova.as_u64() + piece.length.as_u64()).collect();
        assert!(pieces.iter().skip(1).zip(&ends).all(|(piece, end)| piece.iova.as_u64() == *end));
    }

    #[test]
    fn a_batch_writes_what_comes_before_the_first_failure() {
        let table = PoolTranslation::new();
        let start = 0x7f00_0000_1000;
        table.insert(host(start), range(0x1_0000, 0x3000));
        let addresses = [start + 0x2000, start, start + 0x1008, 7].map(host);
        let mut iovas = [Iova::default(); 4];
        let failed = table.translate_pages(&addresses, &mut iovas).unwrap_err();
        assert_eq!(failed, Untranslated { index: 3, address: host(7) });
        assert_eq!(iovas.map(Iova::as_u64), [0x1_2000, 0x1_0000, 0x1_1008, 0]);
        assert_eq!(table.translate_pages(&addresses[..3], &mut iovas[..2]).unwrap_err().index, 2);
        assert_eq!(table.translate_pages(&addresses[..3], &mut iovas), Ok(()));
        assert_eq!(table.translate_pages(&[], &mut []), Ok(()));
    }

    proptest! {
        #[test]
        fn any_set_of_slabs_agrees_with_a_map_of_pages(
            slabs in prop::collection::vec((0u64..3000, 1u64..1500, 1u64..1 << 30), 1..8),
            probes in prop::collection::vec(0u64..3500 << 12, 1..60),
        ) {
            let base = (0x7fffu64 << 32) - (1000 << 12);
            let table = PoolTranslation::new();
            let mut model = BTreeMap::new();
            let mut inserted: Vec<(u64, u64)> = Vec::new();
            for (page, pages, iova) in slabs {
                if inserted.iter().any(|(start, count)| page < start + count && *start < page + pages) {
                    continue;
                }
                table.insert(host(base + (page << 12)), range(iova << 12, pages << 12));
                model.extend((0..pages).map(|n| (page + n, iova + n)));
                inserted.push((page, pages));
            }
            for round in 0..2 {
                for probe in &probes {
                    let expected = model.get(&(probe >> 12)).map(|page| (page << 12) | (probe & 0xfff));
                    let found = table.translate(host(base + probe));
                    prop_assert_eq!(found.map(|found| found.iova.as_u64()), expected);
                    if let Some(found) = found {
                        let last = probe + found.length.as_u64() - 1;
                        let end = model.get(&(last >> 12)).map(|page| (page << 12) | (last & 0xfff));
                        prop_assert_eq!(end, Some(found.iova.as_u64() + found.length.as_u64() - 1));
                    }
                }
                if round == 0 {
                    let (page, pages) = inserted.remove(0);
                    table.remove(host(base + (page << 12)), ByteLength::new(pages << 12));
                    model.retain(|known, _| !(page..page + pages).contains(known));
                }
            }
        }
    }
}
