//! Writes a capture of random RoCE frames, for other implementations to read:
//! `vdk-roce-frames COUNT SEED FILE`.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use vdk_descriptors::roce::{Frame, MAX_FRAME};
use vdk_firmware_stubs::roce::time::Time;
use vdk_firmware_stubs::roce::wire::{Tap, Wire, pair};
use vdk_tests::roce::{Random, random_headers};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [count, seed, path] = arguments.as_slice() else { bail!("usage: vdk-roce-frames COUNT SEED FILE") };
    let count: u64 = count.parse().context("COUNT is no number")?;
    let mut random = Random::new(seed.parse().context("SEED is no number")?);
    let file = File::create(path).with_context(|| format!("cannot make {path}"))?;
    let (wire, mut other) = pair(MAX_FRAME + 2)?;
    let mut tap = Tap::new(wire, BufWriter::new(file))?;
    let (mut buffer, mut sink) = ([0; MAX_FRAME], [0; MAX_FRAME]);
    for number in 0..count {
        let (headers, payload) = random_headers(&mut random);
        let length = Frame { headers, payload: &payload }.build(&mut buffer)?;
        let frame = buffer.get(..length).context("the frame is longer than its buffer")?;
        // A millisecond apart, so that the order can be told from the times.
        tap.send(Time::from_nanos(number * 1_000_000), frame)?;
        other.receive(Time::ZERO, &mut sink)?;
    }
    if tap.frames() != count {
        bail!("only {} of {count} frames could be written to {path}", tap.frames());
    }
    Ok(())
}
