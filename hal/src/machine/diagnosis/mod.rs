//! What is right and wrong with a machine and with a function, each with its mending.

mod function;
mod group;
mod iommu;
mod kernel;
mod memory;
mod nodes;

pub(super) use nodes::may_use;

use core::fmt;

use super::Machine;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, and could be better or will be wrong soon.
    Warning,
    /// It keeps drivers from working, or is dangerous.
    Problem,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, in one or a few words.
    pub subject: String,
    /// What was found, and why it matters where it is wrong.
    pub text: String,
    /// What to do, such as the exact command.
    pub fix: Option<String>,
}

impl Finding {
    fn ok(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { level: Level::Ok, subject: subject.into(), text: text.into(), fix: None }
    }

    fn warning(subject: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::ok(subject, text).with_fix(fix) }
    }

    fn problem(subject: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Problem, ..Self::ok(subject, text).with_fix(fix) }
    }

    fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

impl Machine {
    /// Looks at everything that drivers in user space need of this machine.
    #[must_use]
    pub fn diagnose(&self) -> Vec<Finding> {
        let mut found = vec![self.kernel_version(), self.iommu()];
        found.extend(self.interrupt_remapping());
        found.extend(self.without_iommu());
        found.extend(self.modules());
        found.extend(self.nodes());
        found.push(self.locked_memory());
        found.push(self.huge_pages());
        found
    }
}

/// "1 function", "2 functions".
fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
