//! What is put on the wire: a capture, and faults on purpose.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::Serialize;
use vdk_firmware_stubs::roce::wire::faults::{FaultCounts, FaultLog};
use vdk_firmware_stubs::roce::wire::{FaultyWire, Tap, Wire};

use super::arguments::LayerArguments;

/// What is to be seen of the layers of a wire.
#[derive(Debug)]
pub(super) struct Layers {
    capture: Option<Capture>,
    faults: Option<Faults>,
}

/// A file that its tap and its owner have in common.
#[derive(Clone, Debug)]
struct Capture(Arc<Mutex<BufWriter<File>>>);

#[derive(Debug)]
struct Faults {
    seed: u64,
    sent: Arc<Mutex<FaultLog>>,
    received: Arc<Mutex<FaultLog>>,
}

/// What was done on purpose to the RoCE frames of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FaultReport {
    seed: u64,
    sent: Counts,
    received: Counts,
}

/// What was done to the RoCE frames of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Counts {
    frames: u64,
    dropped: u64,
    duplicated: u64,
    reordered: u64,
    delayed: u64,
    corrupted: u64,
    overrun: u64,
    damaged: u64,
}

impl Layers {
    /// Puts on `wire` what the arguments ask for. The capture is below the faults: it has what
    /// is sent after it was struck, and what is received before.
    pub(super) fn put_on(wire: Box<dyn Wire>, arguments: &LayerArguments) -> Result<(Box<dyn Wire>, Self)> {
        let (wire, capture) = match &arguments.capture {
            Some(path) => {
                let (tap, capture) = tap(wire, path)
                    .with_context(|| format!("cannot write the capture {}", path.display()))?;
                (tap, Some(capture))
            }
            None => (wire, None),
        };
        let plan = arguments.faults();
        if plan.is_none() {
            return Ok((wire, Self { capture, faults: None }));
        }
        let wire = FaultyWire::new(wire, plan, plan, arguments.seed);
        let faults = Faults { seed: arguments.seed, sent: wire.sent(), received: wire.received() };
        Ok((Box::new(wire), Self { capture, faults: Some(faults) }))
    }

    /// What was done so far; `None` when nothing was to be done.
    pub(super) fn report(&self) -> Option<FaultReport> {
        let faults = self.faults.as_ref()?;
        let counts =
            |log: &Mutex<FaultLog>| Counts::from(log.lock().unwrap_or_else(PoisonError::into_inner).counts);
        Some(FaultReport {
            seed: faults.seed,
            sent: counts(&faults.sent),
            received: counts(&faults.received),
        })
    }

    /// Brings the capture to the disk.
    pub(super) fn flush(&self) -> Result<()> {
        let Some(Capture(file)) = &self.capture else { return Ok(()) };
        file.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flush()
            .context("cannot write the end of the capture")
    }
}

fn tap(wire: Box<dyn Wire>, path: &Path) -> Result<(Box<dyn Wire>, Capture)> {
    let capture = Capture(Arc::new(Mutex::new(BufWriter::new(File::create(path)?))));
    Ok((Box::new(Tap::new(wire, capture.clone())?), capture))
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

impl From<FaultCounts> for Counts {
    fn from(counts: FaultCounts) -> Self {
        let FaultCounts { frames, dropped, duplicated, reordered, delayed, corrupted, overrun, damaged } =
            counts;
        Self { frames, dropped, duplicated, reordered, delayed, corrupted, overrun, damaged }
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, sent, received } = self;
        write!(f, "faults on purpose, seed {seed}\n  sent      {sent}\n  received  {received}\n")
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, dropped, duplicated, reordered, delayed, corrupted, overrun, damaged } = self;
        write!(
            f,
            "{frames} frames: {dropped} dropped, {duplicated} duplicated, {reordered} reordered, \
             {delayed} delayed, {corrupted} corrupted, {overrun} overrun; {damaged} passed damaged"
        )
    }
}
