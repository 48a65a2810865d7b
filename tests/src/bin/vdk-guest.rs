//! Runs cases on a device inside a guest: `vdk-guest --help`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use vdk_tests::guest::{Guest, Host, Interface, cases};

/// Runs cases on a device and prints a line for each result.
#[derive(Parser)]
struct Arguments {
    /// The cases, run in this order.
    cases: Vec<String>,
    /// The device: a PCI address, or stub:NAME.
    #[arg(long, default_value = "stub:edu")]
    device: String,
    /// How the kernel is asked for it: type1 or iommufd.
    #[arg(long, default_value = "type1")]
    interface: Interface,
    /// A value that a case asks for, as NAME=VALUE.
    #[arg(long = "set", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// The terminal device with the host at its other end.
    #[arg(long, env = "VDK_HOST")]
    host: Option<PathBuf>,
    /// Print the cases and end.
    #[arg(long)]
    list: bool,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("vdk-guest: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<bool> {
    if arguments.list {
        for case in cases::all() {
            println!("{:20} {}", case.name, case.shows);
        }
        return Ok(true);
    }
    let host = match &arguments.host {
        Some(path) => Host::open(path).with_context(|| format!("cannot open {}", path.display()))?,
        None => Host::nobody(),
    };
    let settings: BTreeMap<_, _> = arguments.settings.into_iter().collect();
    Guest::new(&arguments.device, arguments.interface, settings, host).run(&arguments.cases)
}
