//! Fault plans as text.

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;

use thiserror::Error;

use super::{FAULTS, FaultAction, FaultPlan, FaultRule, FaultTrigger, Probability};

/// A text that is not a fault plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{rule:?} is not a fault: {what}{}", listed(.what))]
pub struct ParseFaultPlanError {
    rule: String,
    what: &'static str,
}

impl FromStr for FaultPlan {
    type Err = ParseFaultPlanError;

    /// Reads rules separated by commas, as the module text describes them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(',').map(|rule| rule.trim().parse()).collect::<Result<_, _>>().map(Self::new)
    }
}

impl FromStr for FaultRule {
    type Err = ParseFaultPlanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |what| ParseFaultPlanError { rule: text.to_owned(), what };
        let Some((name, rest)) = text.split_once('@') else {
            let is_known = FAULTS.iter().any(|fault| fault.name == text);
            return Err(wrong(if is_known { "write action@descriptor" } else { UNKNOWN }));
        };
        let (channel, name) = match name.strip_prefix("ch") {
            Some(rest) => {
                let (number, name) = rest.split_once('.').ok_or(wrong("write chN.action@descriptor"))?;
                (Some(number.parse().map_err(|_| wrong("the channel is not a number below 256"))?), name)
            }
            None => (None, name),
        };
        let (when, argument) = match rest.split_once(':') {
            Some((when, argument)) => (when, Some(argument)),
            None => (rest, None),
        };
        let when = trigger(when).map_err(wrong)?;
        let action = action(name, argument).map_err(wrong)?;
        Ok(Self { channel, when, action })
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules().iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(channel) = self.channel {
            write!(f, "ch{channel}.")?;
        }
        write!(f, "{}@{}", self.action.name(), self.when)?;
        match self.action {
            FaultAction::DelayCompletion(delay) => write!(f, ":{}", duration_text(delay)),
            FaultAction::Halt(code) | FaultAction::Fail(code) => write!(f, ":{code:#x}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for FaultTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(nth) => write!(f, "{nth}"),
            Self::Chance(chance) => {
                let (whole, part) = (chance.0 / 10_000, chance.0 % 10_000);
                if part == 0 {
                    write!(f, "{whole}%")
                } else {
                    let digits = format!("{part:04}");
                    write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
                }
            }
        }
    }
}

impl FaultAction {
    /// The name in the text of a plan.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DropCompletion => "drop-completion",
            Self::DelayCompletion(_) => "delay-completion",
            Self::DuplicateCompletion => "duplicate-completion",
            Self::CorruptCompletion => "corrupt-completion",
            Self::StopResponding => "stop",
            Self::AllOnes => "all-ones",
            Self::Halt(_) => "halt",
            Self::Fail(_) => "fail",
            Self::Vanish => "vanish",
        }
    }
}

fn action(name: &str, argument: Option<&str>) -> Result<FaultAction, &'static str> {
    match (name, argument) {
        ("delay-completion", Some(delay)) => {
            duration(delay).map(FaultAction::DelayCompletion).ok_or("write the delay like 5ms")
        }
        ("delay-completion", None) => Err("write how long, like delay-completion@3:5ms"),
        ("halt", Some(code)) => error_code(code).map(FaultAction::Halt),
        ("halt", None) => Err("write the error code, like halt@10:0x4"),
        ("fail", Some(code)) => error_code(code).map(FaultAction::Fail),
        ("fail", None) => Err("write the error code, like fail@10:0x281"),
        (_, Some(_)) => Err("this fault takes no argument"),
        ("drop-completion", None) => Ok(FaultAction::DropCompletion),
        ("duplicate-completion", None) => Ok(FaultAction::DuplicateCompletion),
        ("corrupt-completion", None) => Ok(FaultAction::CorruptCompletion),
        ("stop", None) => Ok(FaultAction::StopResponding),
        ("all-ones", None) => Ok(FaultAction::AllOnes),
        ("vanish", None) => Ok(FaultAction::Vanish),
        (_, None) => Err(UNKNOWN),
    }
}

const UNKNOWN: &str = "the faults are ";

/// The examples of all faults where one is not known.
fn listed(what: &str) -> String {
    if what == UNKNOWN { FAULTS.map(|fault| fault.example).join(", ") } else { String::new() }
}

fn error_code(text: &str) -> Result<u32, &'static str> {
    number(text).and_then(|code| u32::try_from(code).ok()).ok_or("the error code is not a number of 32 bits")
}

fn trigger(text: &str) -> Result<FaultTrigger, &'static str> {
    match text.strip_suffix('%') {
        Some(_) => text
            .parse()
            .map(FaultTrigger::Chance)
            .map_err(|_| "the probability is 0% to 100%, with at most four decimals"),
        None => number(text)
            .and_then(NonZeroU64::new)
            .map(FaultTrigger::Nth)
            .ok_or("descriptors are counted from one"),
    }
}

/// Why a text is no probability.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no probability: use 0% to 100%, with at most four decimals")]
pub struct ParseProbabilityError(pub String);

/// `1%` or `0.25%`.
impl FromStr for Probability {
    type Err = ParseProbabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.strip_suffix('%').and_then(parts_per_million);
        parts.and_then(Self::from_parts_per_million).ok_or_else(|| ParseProbabilityError(text.to_owned()))
    }
}

fn parts_per_million(percent: &str) -> Option<u32> {
    let (whole, part) = percent.split_once('.').unwrap_or((percent, "0"));
    if part.is_empty() || part.len() > 4 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u32 = format!("{part:0<4}").parse().ok()?;
    digits(whole).and_then(|whole| u32::try_from(whole).ok())?.checked_mul(10_000)?.checked_add(part)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None => digits(text),
    }
}

/// Decimal digits only: `str::parse` would also take a plus sign.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn duration(text: &str) -> Option<Duration> {
    UNITS.iter().find_map(|(unit, nanoseconds)| {
        let count = digits(text.strip_suffix(unit)?)?;
        count.checked_mul(*nanoseconds).map(Duration::from_nanos)
    })
}

fn duration_text(duration: Duration) -> String {
    let total = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    for (unit, nanoseconds) in UNITS.iter().rev() {
        if total.is_multiple_of(*nanoseconds) && (total > 0 || *unit == "s") {
            return format!("{}{unit}", total / nanoseconds);
        }
    }
    format!("{total}ns")
}

/// Units by length of time; each is tried before one that is a suffix of it.
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plan_reads_as_it_is_written() {
        let text = "drop-completion@3, ch1.halt@10:0x4, vanish@2.5%, delay-completion@1:5ms";
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!(plan.to_string(), text);
        assert_eq!(plan.rules()[1].channel, Some(1));
        assert_eq!(plan.rules()[1].action, FaultAction::Halt(4));
        assert_eq!(plan.rules()[2].when, FaultTrigger::Chance(Probability(25_000)));
        assert_eq!(" ".parse(), Ok(FaultPlan::default()));
        assert_eq!("halt@0x10:7".parse::<FaultPlan>().unwrap().to_string(), "halt@16:0x7");
    }

    const LIST: &str = "the faults are drop-completion@3, delay-completion@3:5ms, duplicate-completion@3, \
        corrupt-completion@3, stop@3, all-ones@3, halt@3:0x4, fail@3:0x281, vanish@3";

    #[test]
    fn a_wrong_rule_is_named_with_what_is_wrong() {
        for (text, what) in [
            ("vanish", "write action@descriptor"),
            ("vanish@0", "descriptors are counted from one"),
            ("vanish@+1", "descriptors are counted from one"),
            ("vanish@101%", "the probability is 0% to 100%, with at most four decimals"),
            ("vanish@1.23456%", "the probability is 0% to 100%, with at most four decimals"),
            ("vanish@1:2", "this fault takes no argument"),
            ("halt@1", "write the error code, like halt@10:0x4"),
            ("fail@1", "write the error code, like fail@10:0x281"),
            ("halt@1:0x100000000", "the error code is not a number of 32 bits"),
            ("delay-completion@1:5", "write the delay like 5ms"),
            ("melt@1", LIST),
            ("foo", LIST),
            ("ch1vanish@1", "write chN.action@descriptor"),
            ("ch256.vanish@1", "the channel is not a number below 256"),
        ] {
            let plan = format!("stop@1,{text}");
            let error = plan.parse::<FaultPlan>().unwrap_err();
            assert_eq!(error.to_string(), format!("{text:?} is not a fault: {what}"));
        }
    }

    fn any_rule() -> impl Strategy<Value = FaultRule> {
        let when = prop_oneof![
            (1..=u64::MAX).prop_map(|nth| FaultTrigger::Nth(NonZeroU64::new(nth).unwrap())),
            (0..=1_000_000u32).prop_map(|parts| FaultTrigger::Chance(Probability(parts))),
        ];
        let action = any_action();
        (any::<Option<u8>>(), when, action).prop_map(|(channel, when, action)| FaultRule {
            channel,
            when,
            action,
        })
    }

    fn any_action() -> impl Strategy<Value = FaultAction> {
        prop_oneof![
            Just(FaultAction::DropCompletion),
            any::<u64>().prop_map(|time| FaultAction::DelayCompletion(Duration::from_nanos(time))),
            Just(FaultAction::DuplicateCompletion),
            Just(FaultAction::CorruptCompletion),
            Just(FaultAction::StopResponding),
            Just(FaultAction::AllOnes),
            any::<u32>().prop_map(FaultAction::Halt),
            any::<u32>().prop_map(FaultAction::Fail),
            Just(FaultAction::Vanish),
        ]
    }

    proptest! {
        #[test]
        fn every_plan_round_trips_through_its_text(rules in prop::collection::vec(any_rule(), 0..6)) {
            let plan = FaultPlan::new(rules);
            prop_assert_eq!(plan.to_string().parse(), Ok(plan));
        }

        #[test]
        fn every_action_is_in_the_table(action in any_action()) {
            prop_assert!(FAULTS.iter().any(|fault| fault.name == action.name()));
        }

        #[test]
        fn no_text_panics(text in "[a-z0-9@:%.,x -]{0,40}") {
            let _ = text.parse::<FaultPlan>();
        }
    }
}
