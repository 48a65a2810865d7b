//! A fault plan at work.

use super::{FaultAction, FaultPlan, FaultRule, FaultTrigger};
use crate::random::SplitMix64;

/// Decides, descriptor by descriptor, what goes wrong.
#[derive(Debug)]
pub(crate) struct FaultInjector {
    rules: Vec<Counted>,
    random: SplitMix64,
}

#[derive(Debug)]
struct Counted {
    rule: FaultRule,
    seen: u64,
}

impl FaultInjector {
    pub(crate) fn new(plan: &FaultPlan, seed: u64) -> Self {
        let rules = plan.rules().iter().map(|rule| Counted { rule: *rule, seen: 0 }).collect();
        Self { rules, random: SplitMix64::new(seed) }
    }

    /// Whether nothing ever goes wrong.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What goes wrong with the next descriptor of `channel`.
    #[inline]
    pub(crate) fn next(&mut self, channel: u8) -> Option<FaultAction> {
        if self.is_empty() { None } else { self.look(channel) }
    }

    #[cold]
    fn look(&mut self, channel: u8) -> Option<FaultAction> {
        let mut action = None;
        // Every counter and every draw moves on, so that one rule does not shift another.
        for index in 0..self.rules.len() {
            let Counted { rule, seen } = &mut self.rules[index];
            if rule.channel.is_some_and(|wanted| wanted != channel) {
                continue;
            }
            *seen += 1;
            let (rule, seen) = (*rule, *seen);
            let due = match rule.when {
                FaultTrigger::Nth(nth) => seen == nth.get(),
                FaultTrigger::Chance(chance) => {
                    self.random() % 1_000_000 < u64::from(chance.parts_per_million())
                }
            };
            if due && action.is_none() {
                action = Some(rule.action);
            }
        }
        action
    }

    /// The next random number.
    pub(crate) fn random(&mut self) -> u64 {
        self.random.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(plan: &str, seed: u64, channels: &[u8]) -> Vec<Option<FaultAction>> {
        let mut injector = FaultInjector::new(&plan.parse().unwrap(), seed);
        channels.iter().map(|channel| injector.next(*channel)).collect()
    }

    #[test]
    fn a_rule_acts_once_with_the_nth_descriptor_of_its_channel() {
        let found = actions("ch1.vanish@2, stop@2", 0, &[1, 0, 0, 1, 1]);
        let stop = Some(FaultAction::StopResponding);
        assert_eq!(found, [None, stop, None, Some(FaultAction::Vanish), None]);
        assert_eq!(actions("", 0, &[0; 5]), [None; 5]);
    }

    #[test]
    fn chances_repeat_with_the_seed_and_come_about_as_often_as_asked() {
        let channels = [0; 10_000];
        let first = actions("vanish@10%", 7, &channels);
        assert_eq!(first, actions("vanish@10%", 7, &channels));
        assert_ne!(first, actions("vanish@10%", 8, &channels));
        let hits = first.iter().flatten().count();
        assert!((800..1200).contains(&hits), "{hits}");
        assert_eq!(actions("vanish@0%", 7, &channels), vec![None; 10_000]);
        assert!(actions("vanish@100%", 7, &channels).iter().all(Option::is_some));
    }
}
