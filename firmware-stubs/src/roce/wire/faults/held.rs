//! Frames that are held back.

use super::super::super::time::Time;
use super::MAX_FRAME;

/// Frames that leave later, in places that are made once.
#[derive(Debug)]
pub(super) struct Held {
    places: Vec<Place>,
    /// Numbers frames, so that those of one time leave in their order.
    next: u64,
}

#[derive(Debug)]
struct Place {
    used: bool,
    due: Time,
    order: u64,
    /// Waits until another frame came.
    waits: bool,
    bytes: Vec<u8>,
}

/// The frames that a new one overtakes: those numbered below this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overtaken(u64);

impl Held {
    pub(super) fn new() -> Self {
        Self { places: Vec::with_capacity(PLACES), next: 0 }
    }

    /// Keeps a frame until `due`; or, when there is a `limit`, until another frame came, but no
    /// longer than that. False when there is no place.
    pub(super) fn keep(&mut self, frame: &[u8], due: Time, limit: Option<Time>) -> bool {
        if !self.places.iter().any(|place| !place.used) {
            if self.places.len() == PLACES {
                return false;
            }
            let bytes = Vec::with_capacity(MAX_FRAME);
            self.places.push(Place { used: false, due, order: 0, waits: false, bytes });
        }
        let Some(place) = self.places.iter_mut().find(|place| !place.used) else { return false };
        place.used = true;
        place.due = limit.map_or(due, |limit| limit.max(due));
        place.order = self.next;
        place.waits = limit.is_some();
        place.bytes.clear();
        place.bytes.extend_from_slice(frame);
        self.next += 1;
        true
    }

    /// The frames that are there before the next one is kept.
    pub(super) const fn overtake(&self) -> Overtaken {
        Overtaken(self.next)
    }

    /// Lets frames go that only waited to be overtaken, behind all that is due now.
    pub(super) fn let_go(&mut self, overtaken: Overtaken, now: Time) {
        for place in &mut self.places {
            if place.used && place.waits && place.order < overtaken.0 {
                place.waits = false;
                place.due = place.due.min(now);
                place.order = self.next;
                self.next += 1;
            }
        }
    }

    /// The next frame that is due.
    pub(super) fn due(&self, now: Time) -> Option<usize> {
        let due = self.places.iter().enumerate().filter(|(_, place)| place.used && place.due <= now);
        due.min_by_key(|(_, place)| (place.due, place.order)).map(|(index, _)| index)
    }

    pub(super) fn frame(&self, index: usize) -> &[u8] {
        self.places.get(index).map_or(&[], |place| &place.bytes)
    }

    pub(super) fn free(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index) {
            place.used = false;
        }
    }

    /// When the next frame is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.places.iter().filter(|place| place.used).map(|place| place.due).min()
    }
}

/// How many frames can be held back one way.
const PLACES: usize = 256;
