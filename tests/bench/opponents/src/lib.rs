//! How two implementations are compared on a machine whose speed changes under them.
//!
//! Ours and theirs alternate in one run. A figure of one core is the least of all its
//! blocks; a figure of two cores counts only from blocks in which the round trip of a cache
//! line held still, and is given with the mode that the machine was in.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// One side of a comparison.
pub struct Side<'a> {
    /// What runs, with its version.
    pub name: &'a str,
    /// Runs one block and returns the ns of one run in it.
    pub block: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Side<'a> {
    /// A kernel of this process, `runs` times a block.
    pub fn new(name: &'a str, runs: u32, mut kernel: impl FnMut() + 'a) -> Self {
        let block = move || {
            let start = Instant::now();
            for _ in 0..black_box(runs) {
                kernel();
            }
            Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(runs))
        };
        Self { name, block: Box::new(block) }
    }

    /// A program that prints the ns of one run.
    pub fn program(name: &'a str, path: &'a str) -> Self {
        Self { name, block: Box::new(move || printed_number(path)) }
    }
}

/// The number that a program prints.
///
/// # Errors
///
/// When it does not run, fails or prints something else.
pub fn printed_number(path: &str) -> Result<f64> {
    let output = Command::new(path).output().with_context(|| format!("cannot run {path}"))?;
    ensure!(output.status.success(), "{path} failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("{path} printed {text:?}"))
}

/// Alternates the sides `blocks` times and returns the least ns per run of each.
///
/// # Errors
///
/// What a side reports.
pub fn alternate(sides: &mut [Side<'_>], blocks: usize) -> Result<Vec<f64>> {
    let mut least = vec![f64::INFINITY; sides.len()];
    for _ in 0..blocks {
        for (side, least) in sides.iter_mut().zip(&mut least) {
            *least = least.min((side.block)()?);
        }
    }
    Ok(least)
}

/// Prints the least times and their ratios to the first side.
pub fn print_ratios(title: &str, sides: &[Side<'_>], least: &[f64], notes: &[&str]) {
    println!("\n{title}");
    let Some(ours) = least.first() else { return };
    for (side, ns) in sides.iter().zip(least) {
        println!("  {:<58} {ns:>10.1} ns  {:>8.2} x ours", side.name, ns / ours);
    }
    for note in notes {
        println!("  note: {note}");
    }
}

/// The middle value; NaN of nothing.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
