//! `vdk bind` and `vdk unbind`: functions go to `vfio-pci`, and back.

use std::fmt::Write as _;

use anyhow::{Context, Error, Result};
use serde::Serialize;
use vdk_driver::hal::machine::{Binder, Machine, Outcome, SystemControl, Transfer, TransferError, Usage};

use crate::arguments::{BindArguments, UnbindArguments};
use crate::output;

#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    functions: Vec<Row>,
}

/// What became of one function.
#[derive(Debug, Serialize)]
struct Row {
    address: String,
    outcome: &'static str,
    from: Option<String>,
    to: Option<String>,
    steps: Vec<String>,
    notes: Vec<String>,
}

/// Runs `vdk bind`.
pub(crate) fn bind(arguments: &BindArguments, json: bool) -> Result<()> {
    let machine = Machine::this();
    let user = |name: &String| machine.user(name).with_context(|| format!("there is no user {name:?}"));
    let owner = arguments.user.as_ref().map(user).transpose()?;
    let binder = Binder::new(&machine, &SystemControl).forced(arguments.force).trial(arguments.dry_run);
    let moved = binder.bind(&arguments.functions, arguments.group, owner);
    show(moved.map_err(explain)?, arguments.dry_run, json)
}

/// Runs `vdk unbind`.
pub(crate) fn unbind(arguments: &UnbindArguments, json: bool) -> Result<()> {
    let machine = Machine::this();
    let binder = Binder::new(&machine, &SystemControl).forced(arguments.force).trial(arguments.dry_run);
    show(binder.unbind(&arguments.functions).map_err(explain)?, arguments.dry_run, json)
}

/// Adds what a person can do about an error on this command line.
fn explain(error: TransferError) -> Error {
    let advice = match &error {
        TransferError::NotPermitted { .. } => {
            let words: Vec<String> = std::env::args().map(|word| quoted(&word)).collect();
            format!(": run it as root: sudo {}", words.join(" "))
        }
        TransferError::InUse { usage } if usage.iter().any(|(_, usage)| *usage == Usage::Bridge) => {
            return error.into();
        }
        TransferError::InUse { .. } | TransferError::Open { .. } => {
            ". Nothing was changed; --force does it all the same".to_owned()
        }
        _ => return error.into(),
    };
    Error::msg(format!("{error}{advice}"))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=+@".contains(c);
    if word.chars().all(plain) && !word.is_empty() {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn show(transfers: Vec<Transfer>, dry_run: bool, json: bool) -> Result<()> {
    let report = Report { dry_run, functions: transfers.into_iter().map(Row::from).collect() };
    if json { output::print_json(&report) } else { output::print(&render(&report)) }
}

impl From<Transfer> for Row {
    fn from(transfer: Transfer) -> Self {
        Self {
            address: transfer.address.to_string(),
            outcome: match transfer.outcome {
                Outcome::Already => "already",
                Outcome::Done => "done",
                Outcome::Planned => "planned",
            },
            from: transfer.from,
            to: transfer.to,
            steps: transfer.steps.iter().map(ToString::to_string).collect(),
            notes: transfer.notes,
        }
    }
}

/// In a dry run: a script. Otherwise: what was done.
fn render(report: &Report) -> String {
    let name = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".to_owned());
    let mut text = String::new();
    for row in &report.functions {
        let comment = if report.dry_run { "# " } else { "" };
        let (from, to) = (name(&row.from), name(&row.to));
        let _ = match row.outcome {
            "already" => writeln!(text, "{comment}{}: {from} has it already, nothing to do", row.address),
            _ => writeln!(text, "{comment}{}: from {from} to {to}", row.address),
        };
        for step in row.steps.iter().filter(|_| report.dry_run) {
            let _ = writeln!(text, "{step}");
        }
        for note in &row.notes {
            let _ = writeln!(text, "{}{note}", if report.dry_run { "# " } else { "  " });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: &'static str) -> Row {
        Row {
            address: "0000:01:00.0".to_owned(),
            outcome,
            from: Some("nvme".to_owned()),
            to: Some("vfio-pci".to_owned()),
            steps: vec!["echo x > /y".to_owned()],
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn a_dry_run_is_a_script_and_a_real_one_a_report() {
        let text = render(&Report { dry_run: true, functions: vec![row("planned")] });
        assert_eq!(text, "# 0000:01:00.0: from nvme to vfio-pci\necho x > /y\n# a note\n");
        let text = render(&Report { dry_run: false, functions: vec![row("done")] });
        assert_eq!(text, "0000:01:00.0: from nvme to vfio-pci\n  a note\n");
        let text = render(&Report { dry_run: false, functions: vec![row("already")] });
        assert!(text.starts_with("0000:01:00.0: nvme has it already"), "{text}");
    }

    #[test]
    fn one_who_may_not_is_told_the_command_for_root() {
        let error = explain(TransferError::NotPermitted { path: "/sys/x".into() }).to_string();
        assert!(error.starts_with("this user may not write /sys/x: run it as root: sudo "), "{error}");
        let usage =
            |usage| explain(TransferError::InUse { usage: vec![("0000:01:00.0".parse().unwrap(), usage)] });
        let mounted =
            usage(Usage::Mounted { device: "nvme0n1".to_owned(), at: "/srv".to_owned() }).to_string();
        assert_eq!(
            mounted,
            "refused: 0000:01:00.0: nvme0n1 is mounted at /srv (umount /srv). Nothing was changed; --force does it all the same"
        );
        assert!(!usage(Usage::Bridge).to_string().contains("--force"));
        assert_eq!((quoted("a:b"), quoted("it's")), ("a:b".to_owned(), "'it'\\''s'".to_owned()));
    }
}
