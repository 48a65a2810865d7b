//! What a person reads: tables, sizes, rates and durations.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// Columns of text, each as wide as its widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a heading.
    pub(crate) fn with_heading(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The text, without blanks at the ends of lines.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Nobody reads the standard output any more (`vdk list | head`): the program ends in order and
/// without a complaint, as other tools do.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nobody reads the standard output any more")]
pub(crate) struct ReaderGone;

/// Writes text to the standard output.
///
/// # Errors
///
/// [`ReaderGone`]; what the system says otherwise.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => other.context("cannot write to the standard output"),
    }
}

/// Writes text to the standard error output, for a person, where the standard output has the
/// bytes.
pub(crate) fn print_aside(text: &str) -> Result<()> {
    io::stderr().write_all(text.as_bytes()).context("cannot write to the standard error output")
}

/// Writes one JSON value and a line end to the standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Whether a person watches the standard error output.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// A size in the largest unit that leaves a number of at least 1.
pub(crate) fn size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Bytes a second.
pub(crate) fn rate(bytes: u64, time: Duration) -> String {
    format!("{}/s", scaled(per_second(bytes, time), 1000.0, &["B", "kB", "MB", "GB", "TB"]))
}

/// How many a second; zero when no time has passed.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// A count a second, such as `12.3 M/s`.
pub(crate) fn count_rate(count: u64, time: Duration) -> String {
    format!("{}/s", scaled(per_second(count, time), 1000.0, &["", "k", "M", "G"]))
}

/// A duration in the unit that suits it.
pub(crate) fn duration(time: Duration) -> String {
    if time < Duration::from_millis(1) {
        format!("{:.1} us", time.as_secs_f64() * 1e6)
    } else if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter().peekable();
    while let Some(unit) = units.next() {
        if value < step || units.peek().is_none() {
            return if value.fract() == 0.0 || value >= 1000.0 {
                format!("{value:.0} {unit}").trim_end().to_owned()
            } else {
                format!("{value:.1} {unit}").trim_end().to_owned()
            };
        }
        value /= step;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let mut table = Table::with_heading(&["a", "bb"]);
        table.row(["long", "x"]);
        table.row(["y"]);
        assert_eq!(table.render(), "a     bb\nlong  x\ny\n");
    }

    #[test]
    fn numbers_take_the_unit_that_suits_them() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(rate(3_000_000, Duration::from_secs(2)), "1.5 MB/s");
        assert_eq!(rate(5, Duration::ZERO), "0 B/s");
        assert_eq!(count_rate(2_500_000, Duration::from_secs(1)), "2.5 M/s");
        assert_eq!(duration(Duration::from_micros(12)), "12.0 us");
    }
}
