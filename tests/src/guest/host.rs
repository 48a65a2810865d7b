//! The line between a guest and the program on the host that runs it.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Where results go and help comes from: the second serial port of a guest, or nobody.
///
/// Every line is printed too, so that a person at the console sees it.
pub struct Host {
    line: Option<RefCell<Line>>,
}

struct Line {
    input: BufReader<File>,
    output: File,
}

impl Host {
    /// Nobody: lines are printed, and requests fail.
    #[must_use]
    pub fn nobody() -> Self {
        Self { line: None }
    }

    /// The host at a terminal device, which must be raw and without echo.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let output = OpenOptions::new().write(true).open(path)?;
        let input = BufReader::new(File::open(path)?);
        Ok(Self { line: Some(RefCell::new(Line { input, output })) })
    }

    /// Tells one line.
    pub fn say(&self, text: &str) {
        println!("{text}");
        if let Some(line) = &self.line
            && let Err(error) = writeln!(line.borrow_mut().output, "{text}")
        {
            println!("the host was not told: {error}");
        }
    }

    /// Asks the host to do something, and waits for its answer.
    ///
    /// The host knows: `device_del ID` and `device_add JSON` (QEMU's monitor; the answer comes
    /// when the monitor has taken the command, not when the guest has noticed); `aer ID
    /// ERROR`, an error that a port reports, by QEMU's `pcie_aer_inject_error`; `sha256
    /// DRIVE`, the checksum of a backing file; `start PROGRAM ARGUMENT...`, which runs one of
    /// our programs on the host, `listening`, which waits until it takes TCP connections, and
    /// `wait SECONDS`, which gives its output when it has ended well (`crate::qemu::peer`).
    ///
    /// # Errors
    ///
    /// When there is no host, the line breaks, or the host refuses.
    pub fn ask(&self, request: &str) -> Result<String> {
        let Some(line) = &self.line else { bail!("no host is there to {request:?}") };
        self.say(&format!("host: {request}"));
        let mut answer = String::new();
        line.borrow_mut()
            .input
            .read_line(&mut answer)
            .with_context(|| format!("no answer to {request:?}"))?;
        match answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), "")) {
            ("done", value) => Ok(value.to_owned()),
            ("refused", reason) => bail!("the host refused {request:?}: {reason}"),
            _ => bail!("the host answered {answer:?} to {request:?}"),
        }
    }
}
