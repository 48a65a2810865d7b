//! Which faults, and how often.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::fault::Probability;

/// What goes wrong one way, each fault with its probability and independent of the others.
///
/// As text, parts between commas: `drop=1%,duplicate=0.5%,reorder=1%,corrupt=1%`,
/// `delay=10%:2ms` (how many, and by how much), `rate=10000000` (bytes a second).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireFaults {
    /// The frame vanishes.
    pub drop: Probability,
    /// It passes twice.
    pub duplicate: Probability,
    /// The next frame overtakes it.
    pub reorder: Probability,
    /// It comes later by [`delay_by`](Self::delay_by).
    pub delay: Probability,
    /// How much later.
    pub delay_by: Duration,
    /// One bit that the invariant CRC covers changes.
    pub corrupt: Probability,
    /// How many bytes pass in a second, when not as many as come.
    pub rate: Option<NonZeroU64>,
    /// How long a frame waits at most for its turn, with a rate; else it vanishes.
    pub backlog: Duration,
}

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{part:?} is no fault of a wire: use drop=1%, duplicate=1%, reorder=1%, corrupt=1%, delay=1%:2ms or \
     rate=BYTES_A_SECOND, with commas between"
)]
pub struct ParseWireFaultsError {
    /// The part that is not understood.
    pub part: String,
}

impl WireFaults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        drop: Probability::NEVER,
        duplicate: Probability::NEVER,
        reorder: Probability::NEVER,
        delay: Probability::NEVER,
        delay_by: Duration::from_millis(1),
        corrupt: Probability::NEVER,
        rate: None,
        backlog: Duration::from_millis(50),
    };

    /// Whether nothing goes wrong.
    #[must_use]
    pub fn is_none(&self) -> bool {
        let all = [self.drop, self.duplicate, self.reorder, self.delay, self.corrupt];
        self.rate.is_none() && all.iter().all(|probability| *probability == Probability::NEVER)
    }
}

impl Default for WireFaults {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for WireFaults {
    type Err = ParseWireFaultsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Self::NONE;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let mut take = || {
                let (name, value) = part.split_once('=')?;
                match name {
                    "drop" => faults.drop = value.parse().ok()?,
                    "duplicate" => faults.duplicate = value.parse().ok()?,
                    "reorder" => faults.reorder = value.parse().ok()?,
                    "corrupt" => faults.corrupt = value.parse().ok()?,
                    "delay" => {
                        let (often, long) = value.split_once(':')?;
                        (faults.delay, faults.delay_by) = (often.parse().ok()?, duration(long)?);
                    }
                    "rate" => faults.rate = Some(value.parse().ok()?),
                    _ => return None,
                }
                Some(())
            };
            take().ok_or_else(|| ParseWireFaultsError { part: part.to_owned() })?;
        }
        Ok(faults)
    }
}

/// `2ms` or `500us`.
fn duration(text: &str) -> Option<Duration> {
    if let Some(number) = text.strip_suffix("ms") {
        number.parse().ok().map(Duration::from_millis)
    } else {
        text.strip_suffix("us")?.parse().ok().map(Duration::from_micros)
    }
}
