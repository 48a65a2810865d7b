//! Who posted what: owners that ride along and come back exactly once.

use core::fmt;

use thiserror::Error;

/// Names one posted piece of work. A cookie is never used twice by one table until 2^32
/// pieces have gone through its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl Cookie {
    /// The place in the table.
    #[must_use]
    pub fn slot(self) -> u32 {
        self.slot
    }

    /// How often the place was used before.
    #[must_use]
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// As one word, for descriptors with a field of 64 bits that the device gives back.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The cookie in a word that a device gave back. It may be anything.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        // CAST: the halves of the word.
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the word")]
        let (slot, generation) = (bits as u32, (bits >> 32) as u32);
        Self { slot, generation }
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}:{:#x}", self.slot, self.generation)
    }
}

/// There is no free place; the owner is given back.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("as many pieces of work are in flight as the queue holds")]
pub struct Full<T>(pub T);

/// A completion that names nothing in flight. It is the device's fault, or one that comes
/// late; nobody was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// There is no such place.
    #[error("completion of slot {slot:#x} in a queue of {depth:#x}")]
    Unknown {
        /// The slot, or the whole tag when it is too large for one.
        slot: u32,
        /// How many there are.
        depth: u32,
    },
    /// Nothing is in flight there: a second completion, or one that was never asked for.
    #[error("completion of slot {slot:#x}, where nothing is in flight")]
    NotInFlight {
        /// The slot.
        slot: u32,
    },
    /// What is in flight there is of another generation: the completion is from before a
    /// reset, or a second one for what the slot held before.
    #[error("completion of slot {slot:#x} in generation {generation:#x}, which is now {current:#x}")]
    Stale {
        /// The slot.
        slot: u32,
        /// The generation that was named.
        generation: u32,
        /// The generation that is in flight.
        current: u32,
    },
    /// Its owner has given it up before. The slot is free now.
    #[error("late completion of slot {slot:#x}, which was given up")]
    Abandoned {
        /// The slot.
        slot: u32,
    },
}

/// Work in flight that completes in any order.
///
/// # Ownership
///
/// [`post`](Self::post) takes an owner. It comes back once: from
/// [`complete`](Self::complete), from [`abandon`](Self::abandon) or from
/// [`reset`](Self::reset). What was abandoned keeps its slot until the device completes it,
/// so that a late completion cannot hit somebody else.
///
/// # Invariants
///
/// The free places are linked from `free`, each once; `in_flight` counts posted places and
/// `abandoned` given-up ones.
#[derive(Debug)]
pub struct Completions<T> {
    places: Box<[Place<T>]>,
    free: Option<u32>,
    in_flight: u32,
    abandoned: u32,
    slot_bits: u32,
    tag_bits: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Free { next: Option<u32> },
    Posted(T),
    Abandoned,
}

impl<T> Completions<T> {
    /// A table of `depth` places whose tags have `tag_bits` bits, at most 32: the slot
    /// below, as much of the generation as fits above. `None` when the depth is zero or
    /// the slot does not fit.
    #[must_use]
    pub fn new(depth: u32, tag_bits: u32) -> Option<Self> {
        let slot_bits = u32::BITS - depth.checked_sub(1)?.leading_zeros();
        if slot_bits > tag_bits || tag_bits > 32 {
            return None;
        }
        let place = |slot: u32| Place {
            generation: 0,
            state: State::Free { next: (slot + 1 < depth).then_some(slot + 1) },
        };
        // INVARIANT: every place is free and linked to the one behind it.
        let places = (0..depth).map(place).collect();
        Some(Self { places, free: Some(0), in_flight: 0, abandoned: 0, slot_bits, tag_bits })
    }

    /// How many places there are.
    #[must_use]
    pub fn depth(&self) -> u32 {
        // PANIC: the table was made with a 32-bit depth.
        u32::try_from(self.places.len()).expect("the depth is 32 bits wide")
    }

    /// How many owners are in flight.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many slots wait for a late completion.
    #[inline]
    #[must_use]
    pub fn abandoned(&self) -> u32 {
        self.abandoned
    }

    /// How many more owners can be posted.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.depth() - self.in_flight - self.abandoned
    }

    /// Takes an owner.
    ///
    /// # Errors
    ///
    /// [`Full`] with the owner.
    #[inline]
    pub fn post(&mut self, owner: T) -> Result<Cookie, Full<T>> {
        let Some(slot) = self.free else { return Err(Full(owner)) };
        // PANIC: linked places are in the table, by the type invariant.
        let place = &mut self.places[slot as usize];
        let State::Free { next } = place.state else { return Err(Full(owner)) };
        // INVARIANT: the place was the first of the free ones.
        self.free = next;
        place.state = State::Posted(owner);
        self.in_flight += 1;
        Ok(Cookie { slot, generation: place.generation })
    }

    /// What a device with small identifiers is told of a cookie: its tag.
    #[inline]
    #[must_use]
    pub fn tag(&self, cookie: Cookie) -> u32 {
        let generation = if self.slot_bits == 32 { 0 } else { cookie.generation << self.slot_bits };
        (generation | cookie.slot) & self.tag_mask()
    }

    /// The work of `cookie` is completed. Returns its owner.
    ///
    /// # Errors
    ///
    /// [`CompletionError`]; no owner comes back.
    #[inline]
    pub fn complete(&mut self, cookie: Cookie) -> Result<T, CompletionError> {
        self.finish(cookie.slot, cookie.generation, u32::MAX)
    }

    /// The work with this tag is completed, says the device. Returns its owner.
    ///
    /// The tag shows the low bits of the generation only: a stale completion is told apart
    /// as long as fewer uses of the slot lie between than those bits can count.
    ///
    /// # Errors
    ///
    /// [`CompletionError`]; no owner comes back.
    #[inline]
    pub fn complete_tag(&mut self, tag: u32) -> Result<T, CompletionError> {
        if tag & !self.tag_mask() != 0 {
            return Err(CompletionError::Unknown { slot: tag, depth: self.depth() });
        }
        let slot_mask = ones(self.slot_bits);
        let generation = if self.slot_bits == 32 { 0 } else { tag >> self.slot_bits };
        self.finish(tag & slot_mask, generation, ones(self.tag_bits - self.slot_bits))
    }

    /// Gives up work that the device does not complete in time. Its owner comes back; its
    /// slot stays taken until the device completes it after all, or until a reset. **The
    /// device may still use the memory of the work.**
    ///
    /// # Errors
    ///
    /// [`CompletionError`] when it is not in flight.
    pub fn abandon(&mut self, cookie: Cookie) -> Result<T, CompletionError> {
        let place = self.place(cookie.slot, cookie.generation, u32::MAX)?;
        match core::mem::replace(&mut place.state, State::Abandoned) {
            State::Posted(owner) => {
                self.in_flight -= 1;
                self.abandoned += 1;
                Ok(owner)
            }
            before => {
                place.state = before;
                Err(CompletionError::NotInFlight { slot: cookie.slot })
            }
        }
    }

    /// Gives every owner to `take`, once, and frees all places: the device was reset and
    /// completes nothing any more. Completions that come nevertheless are
    /// [stale](CompletionError::Stale).
    pub fn reset(&mut self, mut take: impl FnMut(Cookie, T)) {
        for slot in 0..self.depth() {
            // PANIC: `slot` is below the depth.
            let place = &mut self.places[slot as usize];
            let generation = place.generation;
            if matches!(place.state, State::Free { .. }) {
                continue;
            }
            // INVARIANT: the place was not free, and becomes the first of the free ones.
            place.generation = generation.wrapping_add(1);
            match core::mem::replace(&mut place.state, State::Free { next: self.free }) {
                State::Posted(owner) => {
                    self.free = Some(slot);
                    self.in_flight -= 1;
                    take(Cookie { slot, generation }, owner);
                }
                _ => {
                    self.free = Some(slot);
                    self.abandoned -= 1;
                }
            }
        }
    }

    #[inline]
    fn finish(&mut self, slot: u32, generation: u32, mask: u32) -> Result<T, CompletionError> {
        let next = self.free;
        let place = self.place(slot, generation, mask)?;
        let before = core::mem::replace(&mut place.state, State::Free { next });
        if let State::Free { .. } = before {
            place.state = before;
            return Err(CompletionError::NotInFlight { slot });
        }
        // INVARIANT: the place was not free, and becomes the first of the free ones.
        place.generation = place.generation.wrapping_add(1);
        self.free = Some(slot);
        match before {
            State::Posted(owner) => {
                self.in_flight -= 1;
                Ok(owner)
            }
            _ => {
                self.abandoned -= 1;
                Err(CompletionError::Abandoned { slot })
            }
        }
    }

    /// The place of a slot whose generation agrees in the bits of `mask`.
    #[inline]
    fn place(&mut self, slot: u32, generation: u32, mask: u32) -> Result<&mut Place<T>, CompletionError> {
        let depth = self.depth();
        let place = self.places.get_mut(slot as usize).ok_or(CompletionError::Unknown { slot, depth })?;
        if (place.generation ^ generation) & mask == 0 {
            return Ok(place);
        }
        Err(match place.state {
            State::Free { .. } => CompletionError::NotInFlight { slot },
            _ => CompletionError::Stale { slot, generation, current: place.generation & mask },
        })
    }

    fn tag_mask(&self) -> u32 {
        ones(self.tag_bits)
    }
}

/// A device says that it has written more than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the device reports {reported:#x} bytes, it was given {posted:#x}")]
pub struct LengthError {
    /// What the device says.
    pub reported: u64,
    /// What it was given.
    pub posted: u64,
}

/// The length that a device reports, when it is not more than was posted.
///
/// # Errors
///
/// [`LengthError`] when it is more.
#[inline]
pub fn written_length(reported: u64, posted: u64) -> Result<u64, LengthError> {
    if reported <= posted { Ok(reported) } else { Err(LengthError { reported, posted }) }
}

#[inline]
fn ones(bits: u32) -> u32 {
    u32::MAX.checked_shr(32 - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests;
