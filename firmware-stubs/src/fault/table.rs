//! What faults there are, in words.

use core::fmt::Write as _;

/// A fault as a person writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSyntax {
    /// Its name.
    pub name: &'static str,
    /// A rule with it.
    pub example: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
}

/// All faults.
pub const FAULTS: [FaultSyntax; 9] = [
    FaultSyntax {
        name: "drop-completion",
        example: "drop-completion@3",
        meaning: "the work is done, its completion gets lost; a later completion tells of both",
    },
    FaultSyntax {
        name: "delay-completion",
        example: "delay-completion@3:5ms",
        meaning: "the completion is late",
    },
    FaultSyntax {
        name: "duplicate-completion",
        example: "duplicate-completion@3",
        meaning: "the completion comes twice",
    },
    FaultSyntax {
        name: "corrupt-completion",
        example: "corrupt-completion@3",
        meaning: "the completion is wrong",
    },
    FaultSyntax { name: "stop", example: "stop@3", meaning: "the channel does nothing any more" },
    FaultSyntax {
        name: "all-ones",
        example: "all-ones@3",
        meaning: "every read answers all ones from then on",
    },
    FaultSyntax { name: "halt", example: "halt@3:0x4", meaning: "the channel halts with this error code" },
    FaultSyntax { name: "fail", example: "fail@3:0x281", meaning: "the descriptor fails with this code" },
    FaultSyntax { name: "vanish", example: "vanish@3", meaning: "the device is removed by surprise" },
];

impl super::FaultPlan {
    /// How a plan is written, and all faults, as lines of text without a line end after the last.
    #[must_use]
    pub fn syntax() -> String {
        let mut text =
            "A PLAN is rules with commas between: ACTION@WHEN, or chN.ACTION@WHEN for channel N alone.\n\
             WHEN is the number of a descriptor (a command of an nvme) from 1, or a probability such as 2.5%."
                .to_owned();
        for fault in FAULTS {
            // A `String` takes everything.
            let _ = write!(text, "\n  {:24}  {}", fault.example, fault.meaning);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultPlan;

    #[test]
    fn each_fault_is_in_the_text_and_its_example_is_a_rule_with_it() {
        let text = FaultPlan::syntax();
        for fault in FAULTS {
            let plan: FaultPlan = fault.example.parse().unwrap();
            assert_eq!(plan.rules()[0].action.name(), fault.name);
            assert!(text.contains(&format!("\n  {} ", fault.example)), "{text}");
        }
    }
}
