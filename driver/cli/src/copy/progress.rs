//! The progress bar, for a person who watches.

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// How far the copy is.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar on the standard error output where that is a terminal, and nothing elsewhere.
    pub(super) fn new(bytes: u64) -> Self {
        if !output::is_watched() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(bytes);
        let template = "{bar:32} {bytes} of {total_bytes}  {binary_bytes_per_sec}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Adds bytes that are done.
    pub(super) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
