//! The cache of translations of one bus master.
//!
//! An entry covers a whole mapping. It is never invalidated: its token carries the epoch in
//! which it was made, and every revocation in the domain changes the epoch of the bursts
//! that follow, so that all entries miss at once.
//!
//! Three stages, from fast to slow, before the page table is walked:
//!
//! 1. the last translation of each [`Stream`] of accesses, without any look-up;
//! 2. a direct-mapped table by page number, for many small mappings;
//! 3. a few recent mappings that are searched, for large mappings whose pages are used in
//!    random order: they would fill the table slowly.

use vdk_hal::address::Iova;
use vdk_hal::dma::Permissions;
use vdk_hal::memory::access::AccessToken;

/// The kinds of accesses that a device interleaves. Each tends to stay in one mapping, and
/// would push the others out if they shared an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Into the device: descriptors.
    Read,
    /// Out of the device: completions.
    Write,
    /// The source of a copy.
    CopySource,
    /// The destination of a copy.
    CopyDestination,
}

impl Stream {
    const COUNT: usize = 4;

    #[inline(always)]
    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::CopyDestination)
    }

    #[inline(always)]
    pub(super) const fn permits(self, permissions: Permissions) -> bool {
        if self.writes() { permissions.allows_write() } else { permissions.allows_read() }
    }
}

/// Where a mapping begins and the way to its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Translation {
    pub(super) start: Iova,
    pub(super) token: AccessToken,
}

impl Translation {
    const NONE: Self = Self { start: Iova::new(0), token: AccessToken::STALE };

    /// Where `address` lies in the memory of the token; outside it when the mapping does
    /// not have `address`.
    #[inline(always)]
    pub(super) fn offset(&self, address: Iova) -> usize {
        let offset = address.as_u64().wrapping_sub(self.start.as_u64());
        usize::try_from(offset).unwrap_or(usize::MAX)
    }

    /// How many bytes the memory has from `address` on.
    #[inline(always)]
    pub(super) fn bytes_from(&self, address: Iova) -> u64 {
        // CAST: `usize` is at most 64 bits wide.
        self.token.length().saturating_sub(self.offset(address)) as u64
    }

    #[inline(always)]
    fn covers(&self, epoch: u64, address: Iova) -> bool {
        self.token.epoch() == epoch && self.offset(address) < self.token.length()
    }
}

/// A translation and what it may be used for.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Entry {
    pub(super) translation: Translation,
    pub(super) permissions: Permissions,
}

impl Entry {
    const NONE: Self = Self { translation: Translation::NONE, permissions: Permissions::Read };

    #[inline(always)]
    fn serves(&self, epoch: u64, stream: Stream, address: Iova) -> bool {
        self.translation.covers(epoch, address) && stream.permits(self.permissions)
    }
}

/// The cache.
///
/// # Invariants
///
/// `last[stream]` permits what the stream does.
#[derive(Debug)]
pub(super) struct Iotlb {
    last: [Translation; Stream::COUNT],
    direct: Box<[Entry; DIRECT]>,
    recent: [Entry; RECENT],
    victim: usize,
}

impl Iotlb {
    pub(super) fn new() -> Self {
        Self {
            last: [Translation::NONE; Stream::COUNT],
            direct: Box::new([Entry::NONE; DIRECT]),
            recent: [Entry::NONE; RECENT],
            victim: 0,
        }
    }

    /// The last translation of `stream`. The caller finds out by using it whether it covers
    /// an address and is still valid.
    #[inline(always)]
    pub(super) fn last(&self, stream: Stream) -> &Translation {
        // CAST: a discriminant below COUNT.
        &self.last[stream as usize]
    }

    /// A translation of `address` that is valid in `epoch`; it becomes the last one.
    #[inline]
    pub(super) fn find(&mut self, epoch: u64, stream: Stream, address: Iova) -> Option<Translation> {
        if self.last(stream).covers(epoch, address) {
            return Some(*self.last(stream));
        }
        let direct = &mut self.direct[direct_index(address)];
        if !direct.serves(epoch, stream, address) {
            *direct = *self.recent.iter().find(|entry| entry.serves(epoch, stream, address))?;
        }
        let translation = direct.translation;
        // CAST: a discriminant below COUNT.
        self.last[stream as usize] = translation;
        Some(translation)
    }

    /// Enters what the page table said about `address`.
    pub(super) fn insert(&mut self, stream: Stream, address: Iova, entry: Entry) {
        if stream.permits(entry.permissions) {
            // CAST: a discriminant below COUNT.
            self.last[stream as usize] = entry.translation;
        }
        self.direct[direct_index(address)] = entry;
        self.recent[self.victim % RECENT] = entry;
        self.victim = (self.victim + 1) % RECENT;
    }
}

/// The high bits of the page number times the golden ratio, so that mappings at regular
/// distances do not share entries.
#[inline(always)]
fn direct_index(address: Iova) -> usize {
    let page = address.as_u64() >> 12;
    // CAST: below DIRECT.
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - DIRECT_BITS)) as usize
}

const DIRECT_BITS: u32 = 8;
const DIRECT: usize = 1 << DIRECT_BITS;
const RECENT: usize = 8;
