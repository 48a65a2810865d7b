//! Why a device is driven, or is not.

use std::fmt;

use crate::hal::address::Bdf;
use crate::hal::config::ConfigError;
use crate::hal::function::PciIdentity;
use crate::kit::matching::Miss;
use crate::kit::personality::Rank;
use crate::kit::state::DriverState;

/// What every registered personality had to say about one function.
#[derive(Clone, Debug)]
pub struct Why {
    /// What a person calls the function.
    pub function: String,
    /// Where it sits.
    pub address: Bdf,
    /// What it is, or why that could not be read.
    pub identity: Result<PciIdentity, ConfigError>,
    /// One for each personality, in the order of registration.
    pub verdicts: Vec<Verdict>,
}

/// What one personality had to say.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Its name.
    pub personality: &'static str,
    /// Its category.
    pub category: &'static str,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a personality.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It does not match.
    Missed(Miss),
    /// It matches, but another in its category ranks higher.
    Lost {
        /// Its rank.
        rank: Rank,
        /// The rank of the winner.
        winner: Rank,
    },
    /// It won its category, so its driver was started.
    Won {
        /// Its rank.
        rank: Rank,
        /// How the driver is doing.
        state: DriverState,
    },
}

impl Why {
    /// Whether a driver is starting, running or stopping.
    #[must_use]
    pub fn is_driven(&self) -> bool {
        self.verdicts
            .iter()
            .any(|verdict| matches!(&verdict.outcome, Outcome::Won { state, .. } if !state.is_final()))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            Ok(identity) => write!(f, "{} at {} ({identity})", self.function, self.address)?,
            Err(error) => return write!(f, "{} at {}: {error}", self.function, self.address),
        }
        if self.verdicts.is_empty() {
            return f.write_str("\n  no driver is registered");
        }
        for verdict in &self.verdicts {
            write!(f, "\n  {}: {}", verdict.personality, verdict.outcome)?;
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missed(miss) => write!(f, "does not match: {miss}"),
            Self::Lost { rank, winner } => write!(f, "lost as {rank} to {winner}"),
            Self::Won { state, .. } => write!(f, "{state}"),
        }
    }
}
