//! The command line of vdk.

#![forbid(unsafe_code)]

mod arguments;
mod bind;
mod copy;
mod demo;
mod destination;
mod device;
mod doctor;
mod info;
mod list;
mod names;
mod nvme;
mod output;
mod roce;
mod serve;
mod signal;
mod wire;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use log::LevelFilter;

use arguments::{Arguments, Command};
use doctor::ProblemsFound;
use output::ReaderGone;
use signal::Interrupted;

/// Exit code of a command that failed; wrong usage is 2, by clap.
const FAILED: u8 = 1;
/// Exit code of `vdk wire` when its file cannot be read.
const UNREADABLE: u8 = 2;
/// Exit code of a command that the user interrupted: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    initialise_log(arguments.verbose);
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<ReaderGone>() => ExitCode::SUCCESS,
        // The findings have been printed.
        Err(error) if error.is::<ProblemsFound>() => ExitCode::from(FAILED),
        Err(error) => {
            if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
                report(&interrupted.to_string());
                return ExitCode::from(INTERRUPTED);
            }
            report(&format!("error: {error:#}"));
            ExitCode::from(if error.is::<wire::Unreadable>() { UNREADABLE } else { FAILED })
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let json = arguments.json;
    match &arguments.command {
        None | Some(Command::Demo) => demo::run(json),
        Some(Command::List) => list::run(json),
        Some(Command::Info(info)) => info::run(info, json),
        Some(Command::Doctor(doctor)) => doctor::run(doctor, json),
        Some(Command::Bind(arguments)) => bind::bind(arguments, json),
        Some(Command::Unbind(arguments)) => bind::unbind(arguments, json),
        Some(Command::Copy(copy)) => copy::run(copy, json),
        Some(Command::Serve(serve)) => serve::run(serve, json),
        Some(Command::Nvme(nvme)) => nvme::run(nvme, json),
        Some(Command::Wire(wire)) => wire::run(wire, json),
        Some(Command::Roce(roce)) => roce::run(roce, json),
    }
}

fn initialise_log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    env_logger::Builder::new()
        .filter_level(level)
        .parse_default_env()
        .format_timestamp(None)
        .format_target(verbose > 1)
        .init();
}

/// Tells the user why a command ended; a closed error output is no reason to panic.
fn report(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
