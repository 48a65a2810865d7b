//! QEMU's monitor, spoken to in its machine protocol (QMP).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long the monitor may take for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that is ready for commands.
pub(super) struct Monitor {
    input: BufReader<UnixStream>,
    output: UnixStream,
}

impl Monitor {
    /// The monitor at the other end of `stream`, which has just connected.
    ///
    /// # Errors
    ///
    /// When it does not greet as it should.
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Self { input: BufReader::new(stream.try_clone()?), output: stream };
        let greeting = monitor.receive()?;
        if greeting.get("QMP").is_none() {
            bail!("QEMU's monitor greeted with {greeting}");
        }
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Has a command executed; gives what it returned.
    ///
    /// # Errors
    ///
    /// What the monitor says, or that it does not answer.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        writeln!(self.output, "{}", json!({ "execute": command, "arguments": arguments }))?;
        loop {
            let mut message = self.receive()?;
            if let Some(error) = message.get("error") {
                bail!("{command}: {}", error["desc"].as_str().unwrap_or("refused"));
            }
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
            // An event; nobody here waits for one.
        }
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        let length = self.input.read_line(&mut line).context("QEMU's monitor does not answer")?;
        if length == 0 {
            bail!("QEMU's monitor is closed");
        }
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line:?}"))
    }
}
