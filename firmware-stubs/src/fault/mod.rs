//! Fault plans: what goes wrong in a device, and when.
//!
//! A plan is a list of rules, such as `drop-completion@3, ch1.halt@10:0x4, vanish@2.5%`:
//!
//! ```text
//! plan    = [rule *("," rule)]
//! rule    = ["ch" NUMBER "."] action "@" when [":" argument]
//! when    = NUMBER            the nth descriptor of the channel, or of the device
//!         | PERCENT "%"       each descriptor with this probability
//! action  = drop-completion | delay-completion:TIME | duplicate-completion
//!         | corrupt-completion | stop | all-ones | halt:CODE | fail:CODE | vanish
//! ```
//!
//! Descriptors are counted from one, beginning when the plan is set; a reset does not begin
//! again, so that a recovered channel does not meet the same fault. What is random comes
//! from a seed, so that a run can be repeated.

mod injector;
mod table;
mod text;

pub(crate) use injector::FaultInjector;
pub use table::{FAULTS, FaultSyntax};
pub use text::{ParseFaultPlanError, ParseProbabilityError};

use core::num::NonZeroU64;
use core::time::Duration;

/// What goes wrong in a device: rules, of which the first that fits a descriptor acts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<FaultRule>,
}

impl FaultPlan {
    /// A plan of `rules`.
    #[must_use]
    pub fn new(rules: Vec<FaultRule>) -> Self {
        Self { rules }
    }

    /// The rules in order.
    #[must_use]
    pub fn rules(&self) -> &[FaultRule] {
        &self.rules
    }

    /// Whether nothing goes wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// One fault and when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The channel it happens on; `None` for any, and then descriptors of all are counted.
    pub channel: Option<u8>,
    /// When.
    pub when: FaultTrigger,
    /// What.
    pub action: FaultAction,
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTrigger {
    /// With the nth descriptor, once.
    Nth(NonZeroU64),
    /// With each descriptor, with this probability.
    Chance(Probability),
}

/// A probability in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);

    /// A probability of `parts` in a million; `None` above one million.
    #[must_use]
    pub const fn from_parts_per_million(parts: u32) -> Option<Self> {
        if parts <= 1_000_000 { Some(Self(parts)) } else { None }
    }

    /// The parts in a million.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }
}

/// What goes wrong.
///
/// A fault of a completion strikes the descriptor that it is due with, or the next one that
/// asks for a completion.
///
/// For an nvme a channel is a submission queue, the admin queue being number 0, and a
/// descriptor is a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The data is moved, but neither is the completion word written nor the interrupt sent.
    DropCompletion,
    /// The completion word and the interrupt come this much later; the channel waits.
    DelayCompletion(Duration),
    /// The completion is reported again, interrupt included, when the next one is due; that
    /// one follows a millisecond later.
    DuplicateCompletion,
    /// The completion word has a wrong address; that of an nvme a wrong command, submission
    /// queue or head.
    CorruptCompletion,
    /// The channel does nothing any more and obeys no command; only a reset of the function
    /// helps.
    StopResponding,
    /// Every read answers all ones from now on and writes get lost, with no event.
    AllOnes,
    /// The channel halts with this error code before it executes the descriptor. An nvme
    /// has a fatal error then: CSTS.CFS is set.
    Halt(u32),
    /// The descriptor is not executed and fails with this code: an nvme completes the
    /// command with it as status, an ioat halts.
    Fail(u32),
    /// The function is removed by surprise.
    Vanish,
}
