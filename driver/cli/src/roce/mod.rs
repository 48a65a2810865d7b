//! `vdk roce`: queue pairs over a wire.
//!
//! The other end is another `vdk roce`, or one of the tools of Linux: the addresses are
//! exchanged over TCP in their formats.

mod arguments;
mod connection;
mod exchange;
mod layers;
mod messages;
mod patience;
mod perftest;
mod pingpong;
mod port;

pub(crate) use arguments::RoceCommand;

use anyhow::Result;

/// Runs the command.
pub(crate) fn run(command: &RoceCommand, json: bool) -> Result<()> {
    match command {
        RoceCommand::Pingpong(arguments) => pingpong::run(arguments, json),
        RoceCommand::Bw(arguments) => perftest::run(arguments, perftest::Test::Bw, json),
        RoceCommand::Lat(arguments) => perftest::run(arguments, perftest::Test::Lat, json),
    }
}
