//! `vdk wire`: the RoCE frames of a capture, every invariant CRC verified.

mod capture;
mod report;
mod sequence;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::arguments::WireArguments;
use crate::output::{self, Table};
use report::{Record, Report};

pub(crate) use capture::Unreadable;

/// The report and its frames as one object.
#[derive(Debug, Serialize)]
struct Everything {
    #[serde(flatten)]
    report: Report,
    records: Vec<Record>,
}

/// Runs the command.
pub(crate) fn run(arguments: &WireArguments, json: bool) -> Result<()> {
    let mut report = Report::default();
    let mut records = Vec::new();
    let mut lines = String::new();
    let mut number = 0;
    let read = capture::each_frame(&arguments.file, |captured| {
        number += 1;
        let Some(record) = report.take(number, captured) else { return Ok(()) };
        if arguments.summary {
            return Ok(());
        }
        if json {
            records.push(record);
            return Ok(());
        }
        lines.push_str(&record.line());
        lines.push('\n');
        if lines.len() > LINES_AT_ONCE {
            output::print(&std::mem::take(&mut lines))?;
        }
        Ok(())
    });
    if !json {
        output::print(&lines)?;
    }
    // What is behind the place where a file breaks off is unknown, so there is no summary.
    read?;
    let complaint = complaint(&report);
    if json {
        output::print_json(&Everything { report, records })?;
    } else {
        output::print(&summary(&report))?;
    }
    match complaint {
        Some(complaint) => bail!(complaint),
        None => Ok(()),
    }
}

/// What fails the command: frames that do not verify, and those of which too little was kept.
fn complaint(report: &Report) -> Option<String> {
    let Report { bad_icrc, malformed, cut_short, frames, .. } = report;
    let mut reasons = Vec::new();
    if bad_icrc + malformed > 0 {
        reasons.push(format!(
            "{bad_icrc} of {frames} frames have a wrong invariant crc, {malformed} are malformed: they were \
             damaged on the way, or the sender computes it wrongly"
        ));
    }
    if *cut_short > 0 {
        reasons.push(format!(
            "{cut_short} of {frames} frames were cut by the snapshot length of the capture and are not \
             verified: capture with a larger one (tcpdump -s 0)"
        ));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn psn(number: Option<u32>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:#08x}"))
}

fn summary(report: &Report) -> String {
    let mut text = String::from("\n");
    if report.frames == 0 {
        text.push_str("no RoCE frame is in the capture: RoCEv2 is sent to UDP port 4791\n");
    } else {
        let mut opcodes = Table::with_heading(&["OPCODE", "FRAMES"]);
        for (name, frames) in &report.by_opcode {
            opcodes.row([(*name).to_owned(), frames.to_string()]);
        }
        let mut queue_pairs = Table::with_heading(&[
            "QP",
            "FROM",
            "TO",
            "SERVICE",
            "FRAMES",
            "BYTES",
            "AGAIN",
            "MISSING",
            "NAK",
            "RNR",
            "FIRST PSN",
            "LAST PSN",
        ]);
        for row in &report.by_queue_pair {
            queue_pairs.row([
                format!("{:#08x}", row.queue_pair),
                row.source.clone(),
                row.destination.clone(),
                row.transport.to_owned(),
                row.frames.to_string(),
                row.payload.to_string(),
                row.retransmissions.to_string(),
                row.missing.to_string(),
                row.naks.to_string(),
                row.rnr_naks.to_string(),
                psn(row.first_psn),
                psn(row.last_psn),
            ]);
        }
        text.push_str(&opcodes.render());
        text.push('\n');
        text.push_str(&queue_pairs.render());
        text.push('\n');
    }
    text.push_str(&format!(
        "{} RoCE frames: {} with a right invariant CRC, {} with a wrong one, {} malformed; {} other frames\n",
        report.frames,
        report.frames - report.bad_icrc - report.malformed - report.cut_short,
        report.bad_icrc,
        report.malformed,
        report.other
    ));
    if report.cut_short != 0 {
        text.push_str(&format!(
            "{} of them were cut by the capture and are not verified\n",
            report.cut_short
        ));
    }
    if report.unknown_opcodes != 0 {
        text.push_str(&format!("{} of them have an opcode that is not known\n", report.unknown_opcodes));
    }
    text
}

/// How much text is gathered before it is written.
const LINES_AT_ONCE: usize = 1 << 16;
