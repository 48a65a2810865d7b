//! The two work queues: slots, their pieces of memory, and nothing that a wire knows.

use super::memory::{Memory, MemoryError, ProtectionDomain, Reach, Rights};
use super::state::Service;
use super::work::{
    Destination, Operation, Payload, PostError, ReceiveRequest, ScatterGatherEntry, SendRequest,
};

/// How large the queues of a queue pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// How many sends can be posted and not completed: at most 32768. None is as good as one.
    pub sends: u32,
    /// How many receives can be posted and not completed: at most 32768. None is as good as one.
    pub receives: u32,
    /// How many pieces of memory a request may have: at most 32.
    pub entries: u32,
    /// How many bytes may be posted inline: at most 1024.
    pub inline: u32,
}

impl QueueSizes {
    /// The largest that there can be: the queues are made at once, not as they fill.
    pub const MOST: Self = Self { sends: 1 << 15, receives: 1 << 15, entries: 32, inline: 1024 };

    /// What of it is more than there can be: its name, what was asked for, and the most.
    #[must_use]
    pub const fn excess(&self) -> Option<(&'static str, u32, u32)> {
        let Self { sends, receives, entries, inline } = *self;
        if sends > Self::MOST.sends {
            Some(("number of sends", sends, Self::MOST.sends))
        } else if receives > Self::MOST.receives {
            Some(("number of receives", receives, Self::MOST.receives))
        } else if entries > Self::MOST.entries {
            Some(("number of scatter-gather entries", entries, Self::MOST.entries))
        } else if inline > Self::MOST.inline {
            Some(("number of inline bytes", inline, Self::MOST.inline))
        } else {
            None
        }
    }

    /// The same, with nothing above the most that there can be.
    pub(super) fn clamped(self) -> Self {
        Self {
            sends: self.sends.min(Self::MOST.sends),
            receives: self.receives.min(Self::MOST.receives),
            entries: self.entries.min(Self::MOST.entries),
            inline: self.inline.min(Self::MOST.inline),
        }
    }
}

impl Default for QueueSizes {
    fn default() -> Self {
        Self { sends: 128, receives: 128, entries: 4, inline: 64 }
    }
}

/// A posted send.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendSlot {
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// Bytes of the message.
    pub(super) length: u32,
    /// How many PSNs it takes.
    pub(super) packets: u32,
    /// Its first PSN, as a count; known when it was begun.
    pub(super) first: u64,
    /// How many packets of its answer came.
    pub(super) answered: u32,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    entries: u32,
    inline: bool,
}

impl SendSlot {
    const EMPTY: Self = Self {
        id: 0,
        operation: Operation::Send,
        length: 0,
        packets: 0,
        first: 0,
        answered: 0,
        signaled: false,
        solicited: false,
        fence: false,
        entries: 0,
        inline: false,
    };

    /// The first PSN after it, as a count.
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }
}

/// A ring of slots. Slots are named by free-running counts, so that a name is never used
/// twice.
#[derive(Debug)]
pub(super) struct Ring<T> {
    /// A power of two of them, so that a place needs no division.
    slots: Box<[T]>,
    capacity: u64,
    entries: Box<[ScatterGatherEntry]>,
    most: u32,
    head: u64,
    tail: u64,
}

impl<T: Copy> Ring<T> {
    fn new(capacity: u32, most: u32, empty: T) -> Self {
        let capacity = u64::from(capacity.max(1));
        let places = usize::try_from(capacity.next_power_of_two()).unwrap_or(1);
        let width = usize::try_from(most).unwrap_or(0);
        Self {
            slots: vec![empty; places].into(),
            capacity,
            entries: vec![ScatterGatherEntry::default(); places.saturating_mul(width)].into(),
            most,
            head: 0,
            tail: 0,
        }
    }

    /// The oldest slot in use.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// The slot after the newest one.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    fn place(&self, slot: u64) -> usize {
        // CAST: the low bits of the slot are kept, fewer than a `usize` has.
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
        let slot = slot as usize;
        slot & (self.slots.len() - 1)
    }

    #[inline]
    pub(super) fn slot(&self, slot: u64) -> &T {
        // PANIC: `place` is below the length.
        &self.slots[self.place(slot)]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, slot: u64) -> &mut T {
        let place = self.place(slot);
        // PANIC: `place` is below the length.
        &mut self.slots[place]
    }

    #[inline]
    fn pieces(&self, slot: u64, count: u32) -> &[ScatterGatherEntry] {
        let (start, count) = self.span(slot, count);
        self.entries.get(start..start + count).unwrap_or_default()
    }

    #[inline]
    fn span(&self, slot: u64, count: u32) -> (usize, usize) {
        // CAST: both are at most the length of the table, which is a `usize`.
        let (most, count) = (self.most as usize, count.min(self.most) as usize);
        (self.place(slot) * most, count)
    }

    /// Whether another request fits, and its pieces.
    fn admits(&self, entries: usize) -> Result<(), PostError> {
        let used = self.tail - self.head;
        if used >= self.capacity {
            let capacity = u32::try_from(self.capacity).unwrap_or(u32::MAX);
            return Err(PostError::QueueFull { capacity });
        }
        if entries > usize::try_from(self.most).unwrap_or(usize::MAX) {
            return Err(PostError::Entries { count: entries, most: self.most });
        }
        Ok(())
    }

    fn store(&mut self, slot: T, entries: &[ScatterGatherEntry]) {
        let (start, count) = self.span(self.tail, u32::try_from(entries.len()).unwrap_or(u32::MAX));
        if let (Some(room), Some(entries)) =
            (self.entries.get_mut(start..start + count), entries.get(..count))
        {
            // Most requests have one piece, which is no work for a copy of any length.
            match (&mut *room, entries) {
                ([room], [entry]) => *room = *entry,
                _ => room.copy_from_slice(entries),
            }
        }
        *self.slot_mut(self.tail) = slot;
        self.tail += 1;
    }

    /// Frees the oldest slot.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.head < self.tail {
            self.head += 1;
        }
    }

    /// Forgets all slots. Their names are not used again.
    pub(super) fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// The longest message.
pub(super) const LONGEST: u64 = 1 << 31;

fn sum(entries: &[ScatterGatherEntry]) -> u64 {
    // At most 2^32 entries of less than 2^32 bytes do not overflow 64 bits.
    entries.iter().map(|entry| u64::from(entry.length)).sum()
}

/// The send queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) ring: Ring<SendSlot>,
    /// Where each datagram goes, by its slot. None on a connection.
    destinations: Box<[Option<Destination>]>,
    inline: Box<[u8]>,
    inline_most: u32,
}

impl SendQueue {
    pub(super) fn new(service: Service, sizes: QueueSizes) -> Self {
        let ring = Ring::new(sizes.sends, sizes.entries, SendSlot::EMPTY);
        let width = usize::try_from(sizes.inline).unwrap_or(0);
        let bytes = ring.slots.len().saturating_mul(width);
        let destinations = if service == Service::Datagram { ring.slots.len() } else { 0 };
        Self {
            ring,
            destinations: vec![None; destinations].into(),
            inline: vec![0; bytes].into(),
            inline_most: sizes.inline,
        }
    }

    /// Takes a request whose message has at most `most` bytes, cut at `mtu`.
    pub(super) fn post(&mut self, request: &SendRequest<'_>, mtu: u32, most: u64) -> Result<(), PostError> {
        let (entries, inline): (&[ScatterGatherEntry], &[u8]) = match request.payload {
            Payload::Entries(entries) => (entries, &[]),
            Payload::Inline(bytes) => (&[], bytes),
        };
        self.ring.admits(entries.len())?;
        if inline.len() > usize::try_from(self.inline_most).unwrap_or(usize::MAX) {
            return Err(PostError::Inline { length: inline.len(), most: self.inline_most });
        }
        let length = sum(entries) + inline.len() as u64;
        let length = match u32::try_from(length) {
            Ok(fits) if length <= most => fits,
            _ => return Err(PostError::Length { length, most }),
        };
        let slot = SendSlot {
            id: request.id,
            operation: request.operation,
            length,
            // A division takes longer than all else here.
            packets: if length <= mtu { 1 } else { length.div_ceil(mtu) },
            first: 0,
            answered: 0,
            signaled: request.signaled,
            solicited: request.solicited,
            fence: request.fence,
            entries: u32::try_from(entries.len()).unwrap_or(0),
            inline: matches!(request.payload, Payload::Inline(_)),
        };
        let place = self.ring.place(self.ring.tail);
        if let Some(destination) = self.destinations.get_mut(place) {
            *destination = request.destination.copied();
        }
        if slot.inline {
            let start = self.inline_start(self.ring.tail);
            if let Some(room) = self.inline.get_mut(start..start + inline.len()) {
                room.copy_from_slice(inline);
            }
        }
        self.ring.store(slot, entries);
        Ok(())
    }

    /// Where the datagram of a slot goes.
    #[inline]
    pub(super) fn destination(&self, slot: u64) -> Option<&Destination> {
        self.destinations.get(self.ring.place(slot))?.as_ref()
    }

    fn inline_start(&self, slot: u64) -> usize {
        // CAST: at most the length of the inline table, which is a `usize`.
        self.ring.place(slot) * self.inline_most as usize
    }

    /// Whether the local memory of a slot may be used with `rights`.
    pub(super) fn check(
        &self,
        memory: &impl Memory,
        domain: ProtectionDomain,
        slot: u64,
        rights: Rights,
    ) -> Result<(), MemoryError> {
        let count = self.ring.slot(slot).entries;
        self.ring.pieces(slot, count).iter().filter(|piece| piece.length != 0).try_for_each(|piece| {
            let ScatterGatherEntry { address, length, key } = *piece;
            memory.check(&Reach { key, address, length, rights, domain })
        })
    }

    /// Reads the bytes of the message from `offset` on.
    pub(super) fn gather(
        &self,
        memory: &mut impl Memory,
        domain: ProtectionDomain,
        slot: u64,
        offset: u32,
        bytes: &mut [u8],
    ) -> Result<(), MemoryError> {
        let posted = self.ring.slot(slot);
        if posted.inline {
            // CAST: an offset in a message is at most 2^31.
            let start = self.inline_start(slot) + offset as usize;
            if let Some(from) = self.inline.get(start..start + bytes.len()) {
                bytes.copy_from_slice(from);
            }
            return Ok(());
        }
        let pieces = self.ring.pieces(slot, posted.entries);
        each_piece(pieces, offset, bytes.len(), |address, key, length, range| {
            let reach = Reach { key, address, length, rights: Rights::NONE, domain };
            memory.read(&reach, bytes.get_mut(range).unwrap_or_default())
        })
    }

    /// Writes an answer to the bytes of the message from `offset` on.
    pub(super) fn scatter(
        &self,
        memory: &mut impl Memory,
        domain: ProtectionDomain,
        slot: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), MemoryError> {
        let posted = self.ring.slot(slot);
        scatter(memory, domain, self.ring.pieces(slot, posted.entries), offset, bytes)
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceiveSlot {
    pub(super) id: u64,
    pub(super) length: u64,
    entries: u32,
}

/// The receive queue.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    pub(super) ring: Ring<ReceiveSlot>,
}

impl ReceiveQueue {
    pub(super) fn new(sizes: QueueSizes) -> Self {
        Self { ring: Ring::new(sizes.receives, sizes.entries, ReceiveSlot::default()) }
    }

    pub(super) fn post(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        self.ring.admits(request.entries.len())?;
        let length = sum(request.entries);
        let entries = u32::try_from(request.entries.len()).unwrap_or(0);
        self.ring.store(ReceiveSlot { id: request.id, length, entries }, request.entries);
        Ok(())
    }

    /// The oldest receive.
    #[inline]
    pub(super) fn front(&self) -> Option<&ReceiveSlot> {
        (!self.ring.is_empty()).then(|| self.ring.slot(self.ring.head()))
    }

    /// Writes to the oldest receive from `offset` on.
    #[inline]
    pub(super) fn scatter(
        &self,
        memory: &mut impl Memory,
        domain: ProtectionDomain,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), MemoryError> {
        let Some(front) = self.front() else { return Ok(()) };
        scatter(memory, domain, self.ring.pieces(self.ring.head(), front.entries), offset, bytes)
    }
}

fn scatter(
    memory: &mut impl Memory,
    domain: ProtectionDomain,
    pieces: &[ScatterGatherEntry],
    offset: u32,
    bytes: &[u8],
) -> Result<(), MemoryError> {
    each_piece(pieces, offset, bytes.len(), |address, key, length, range| {
        let reach = Reach { key, address, length, rights: Rights::LOCAL_WRITE, domain };
        memory.write(&reach, bytes.get(range).unwrap_or_default())
    })
}

/// Calls `touch` with each piece of memory for `length` bytes from `offset` on: address, key,
/// length, and which of the bytes it is.
#[inline]
fn each_piece(
    pieces: &[ScatterGatherEntry],
    offset: u32,
    length: usize,
    mut touch: impl FnMut(u64, u32, u32, core::ops::Range<usize>) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    let mut skip = offset;
    let mut done = 0_usize;
    for piece in pieces {
        if done == length {
            break;
        }
        if skip >= piece.length {
            skip -= piece.length;
            continue;
        }
        let left = u32::try_from(length - done).unwrap_or(u32::MAX);
        let part = left.min(piece.length - skip);
        let address = piece.address.wrapping_add(u64::from(skip));
        // CAST: `part` is at most `length - done`, which is a `usize`.
        let end = done + part as usize;
        touch(address, piece.key, part, done..end)?;
        skip = 0;
        done = end;
    }
    Ok(())
}
