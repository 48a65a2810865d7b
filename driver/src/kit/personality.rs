//! Personalities: what a driver matches, and which of several drivers wins.

use core::cmp::{Ordering, Reverse};
use core::fmt;

use super::matching::{Miss, PciMatch};
use crate::hal::function::PciIdentity;

/// A declaration of what a driver matches. A driver has one or more.
///
/// ```
/// use vdk_driver::kit::{PciMatch, Personality};
///
/// const PERSONALITIES: &[Personality] = &[
///     Personality::new("edu", PciMatch::new().primary("0x11e81234")),
///     Personality::new("any-dma-engine", PciMatch::new().class("0x08010000&0xffff0000")).score(-100),
/// ];
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Personality {
    name: &'static str,
    matching: PciMatch,
    score: i32,
    category: &'static str,
}

impl Personality {
    /// The category of a personality that names none: the winner wants the function for
    /// itself, as every owner of a PCI function does.
    pub const EXCLUSIVE: &'static str = "exclusive";

    /// A personality with score 0 in the [exclusive](Self::EXCLUSIVE) category.
    #[must_use]
    pub const fn new(name: &'static str, matching: PciMatch) -> Self {
        Self { name, matching, score: 0, category: Self::EXCLUSIVE }
    }

    /// Sets the score that a match begins with. The highest wins.
    #[must_use]
    pub const fn score(self, score: i32) -> Self {
        Self { score, ..self }
    }

    /// Sets the category. Each has its own winner; but a function can be open once only, so
    /// the lower ranked of two winners finds it busy.
    #[must_use]
    pub const fn category(self, category: &'static str) -> Self {
        Self { category, ..self }
    }

    /// The name, unique among all that are registered.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it matches.
    #[must_use]
    pub const fn matching(&self) -> PciMatch {
        self.matching
    }

    /// The score that a match begins with.
    #[must_use]
    pub const fn initial_score(&self) -> i32 {
        self.score
    }

    /// The category.
    #[must_use]
    pub const fn category_name(&self) -> &'static str {
        self.category
    }

    /// Compares with a function.
    ///
    /// # Errors
    ///
    /// [`Miss`] of the first key that does not match.
    pub fn rank(&self, identity: &PciIdentity) -> Result<Rank, Miss> {
        let hit = self.matching.evaluate(identity)?;
        let bonus = if hit.by_primary_of_either { PRIMARY_OF_EITHER_BONUS } else { 0 };
        Ok(Rank { score: self.score.saturating_add(bonus), specificity: hit.mask_bits, name: self.name })
    }
}

/// What decides between personalities that match: the higher score, then the more specific
/// match, then the name that comes first in the alphabet. The greater rank wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    /// The score of the personality, plus 1000 when the "either" key hit the primary ID.
    pub score: i32,
    /// How many register bits had to be right.
    pub specificity: u32,
    /// The name of the personality.
    pub name: &'static str,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |rank: &Self| (rank.score, rank.specificity, Reverse(rank.name));
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (score {}, {} bits)", self.name, self.score, self.specificity)
    }
}

const PRIMARY_OF_EITHER_BONUS: i32 = 1000;
