//! One run of QEMU.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::captures::Captures;
use super::initramfs::Initramfs;
use super::monitor::Monitor;
use super::peer::{Link, Peers};
use super::provision::Provision;
use super::scene::Scene;
use crate::oracle;

/// One thing that a guest told.
#[derive(Debug)]
pub struct Verdict {
    /// Whether it holds.
    pub passed: bool,
    /// The sentence; of one that failed with the reason.
    pub sentence: String,
    /// The time since the one before, or since the guest was started.
    pub took: Duration,
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was told, in its order.
    pub verdicts: Vec<Verdict>,
    /// What was measured.
    pub figures: Vec<String>,
}

impl Outcome {
    /// Adds a failure that no guest told.
    pub fn fail(&mut self, reason: String) {
        self.verdicts.push(Verdict { passed: false, sentence: reason, took: Duration::ZERO });
    }

    /// The sentences that failed, with their reasons.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.verdicts.iter().filter(|verdict| !verdict.passed).map(|verdict| verdict.sentence.as_str())
    }

    /// How many passed and how many failed.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let failed = self.failed().count();
        (self.verdicts.len() - failed, failed)
    }
}

/// The first process of every guest.
const INIT: &str = include_str!("../../qemu/init");

/// Arguments that every guest has. The IOMMU stands before the devices behind it.
const MACHINE: &[&str] = &[
    "-nodefaults",
    "-no-reboot",
    "-display",
    "none",
    "-accel",
    "tcg,thread=multi",
    "-machine",
    "q35,kernel-irqchip=split",
    "-cpu",
    "max",
    "-smp",
    "2",
    "-m",
    "1G",
    "-device",
    "intel-iommu,intremap=on,caching-mode=on",
    "-chardev",
    "file,id=console,path={folder}/console",
    "-serial",
    "chardev:console",
    "-chardev",
    "socket,id=host,path={folder}/host.sock",
    "-serial",
    "chardev:host",
    "-chardev",
    "socket,id=monitor,path={folder}/monitor.sock",
    "-mon",
    "chardev=monitor,mode=control",
];

/// Guest memory that a server of emulated devices can map.
const SHARED: &[&str] =
    &["-object", "memory-backend-memfd,id=memory,size=1G,share=on", "-machine", "memory-backend=memory"];

/// The kernel's command line. On a busy machine its check of the timer would fail by chance, and
/// a processor that the host does not run looks to it as if it were stuck.
const APPEND: &str = concat!(
    "console=ttyS0 quiet panic=-1 intel_iommu=on iommu.strict=1 no_timer_check ",
    "nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
);

/// Runs a scene in an empty folder. The guest's console is the file `console` in it.
///
/// # Errors
///
/// When the run could not be made. What failed in it is in the outcome.
pub fn run(scene: &Scene, provision: &Provision, folder: &Path) -> Result<Outcome> {
    for drive in scene.drives {
        File::create(folder.join(drive.file))?.set_len(drive.bytes)?;
    }
    let initramfs = folder.join("initramfs");
    pack(scene, provision, &initramfs).context("cannot pack the guest's files")?;
    let mut servers = Vec::new();
    for stub in scene.stubs {
        let socket = folder.join(stub.socket());
        let log = File::create(folder.join(format!("{}.log", stub.kind)))?;
        let child = Command::new(provision.binaries.join("vdk"))
            .args(["serve", stub.kind, "--socket"])
            .arg(&socket)
            .args(stub.arguments.iter().map(|argument| in_folder(argument, folder)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start `vdk serve`")?;
        let mut server = Ended(child);
        until(Duration::from_secs(20), || {
            server.0.try_wait().is_ok_and(|ended| ended.is_some()) || socket.exists()
        })?;
        ensure!(socket.exists(), "`vdk serve {}` made no socket, see its log", stub.kind);
        servers.push(server);
    }

    let monitor = UnixListener::bind(folder.join("monitor.sock"))?;
    let host = UnixListener::bind(folder.join("host.sock"))?;
    let mut command = Command::new(&provision.emulator);
    let shared = if scene.stubs.is_empty() { &[][..] } else { SHARED };
    let link = Link::new(folder)?;
    for argument in MACHINE.iter().chain(shared).chain(scene.machine) {
        command.arg(link.fill(&in_folder(argument, folder)));
    }
    command.arg("-kernel").arg(&provision.kernel).arg("-initrd").arg(&initramfs);
    command.args(["-append", &format!("{APPEND} {}", scene.append)]);
    let errors = File::create(folder.join("qemu.log"))?;
    command.stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
    fs::write(folder.join("command"), format!("{command:?}\n"))?;
    let mut qemu =
        Ended(command.spawn().with_context(|| format!("cannot run {}", provision.emulator.display()))?);

    let connection = accept(&host, &mut qemu.0)?;
    let monitor = Monitor::new(accept(&monitor, &mut qemu.0)?)?;
    let last = Instant::now();
    let deadline = last + scene.limit;
    let mut outcome = Conversation {
        monitor,
        output: connection.try_clone()?,
        folder,
        peers: Peers::new(&provision.binaries, folder, link),
        captures: Captures::new(&provision.binaries, folder),
        outcome: Outcome::default(),
        last,
        deadline,
    }
    .hold(&lines(connection))?;
    // It powers off by itself; one that does not has said all the same what it had to say.
    let mut status = None;
    let _ = until(Duration::from_secs(10), || {
        status = qemu.0.try_wait().ok().flatten();
        status.is_some()
    });
    if let Some(status) = status.filter(|status| !status.success()) {
        outcome.fail(format!("QEMU ended with {status}"));
    }
    Ok(outcome)
}

/// An argument with the folder of the run in it.
pub(super) fn in_folder(argument: &str, folder: &Path) -> String {
    argument.replace("{folder}", &folder.to_string_lossy())
}

/// A process that is ended when nobody waits for it any more.
pub(super) struct Ended(pub(super) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `done` holds.
pub(super) fn until(within: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + within;
    while !done() {
        ensure!(Instant::now() < deadline, "nothing came of it within {within:?}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// QEMU's connection to a socket of ours.
fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let mut found = None;
    until(Duration::from_secs(60), || {
        found = listener.accept().ok();
        found.is_some() || qemu.try_wait().is_ok_and(|ended| ended.is_some())
    })
    .context("QEMU did not connect")?;
    let (stream, _) = found.context("QEMU ended at once")?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The lines of the guest, read by a thread so that waiting for one can end.
fn lines(stream: UnixStream) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The file in the folder of a run that tells how a silent guest was found.
const STATE: &str = "state";
/// After how long without a word a guest is woken.
const SILENCE: Duration = Duration::from_secs(20);

/// The host's side of the line to the guest.
struct Conversation<'a> {
    monitor: Monitor,
    output: UnixStream,
    folder: &'a Path,
    peers: Peers<'a>,
    captures: Captures<'a>,
    outcome: Outcome,
    /// When the last verdict was told.
    last: Instant,
    /// When the guest must have come to its end.
    deadline: Instant,
}

impl Conversation<'_> {
    fn verdict(&mut self, passed: bool, sentence: &str) {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.last, now));
        self.outcome.verdicts.push(Verdict { passed, sentence: sentence.to_owned(), took });
    }

    /// Listens until the guest says that it is at its end.
    fn hold(mut self, lines: &Receiver<String>) -> Result<Outcome> {
        let (mut silences, mut has_spoken) = (0, false);
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let line = match lines.recv_timeout(left.min(SILENCE)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) if left > SILENCE => {
                    silences += 1;
                    self.wake(silences, has_spoken);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.verdict(false, "the guest did not come to its end in time");
                    return Ok(self.outcome);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.verdict(false, "the guest ended before its script did");
                    return Ok(self.outcome);
                }
            };
            (silences, has_spoken) = (0, true);
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("ok", sentence) => self.verdict(true, sentence),
                ("failed", sentence) => self.verdict(false, sentence),
                ("figure:", figure) => self.outcome.figures.push(figure.to_owned()),
                ("host:", request) => {
                    let answer = match self.obey(request) {
                        Ok(value) => format!("done {value}"),
                        Err(error) => format!("refused {error:#}"),
                    };
                    writeln!(self.output, "{}", answer.trim_end()).context("the guest does not listen")?;
                }
                ("end", "") => return Ok(self.outcome),
                _ => self.verdict(false, &format!("the guest said {line:?}, which means nothing")),
            }
        }
    }

    /// Wakes a guest that has been silent. Emulated processors that wait for an interrupt are
    /// seen, rarely, not to notice that it came. Stopped and started they look again; an NMI
    /// makes them run, and what they find overdue then brings the rest. To a guest that is
    /// well the first is a pause, and the second a line on its console; but a kernel that still
    /// boots may die of it, so it is kept for those that have spoken. One that has just ended
    /// cannot be asked.
    fn wake(&mut self, silences: u32, has_spoken: bool) {
        if silences == 1 {
            self.note_state();
        }
        let commands: &[&str] = if silences > 1 && has_spoken { &["inject-nmi"] } else { &["stop", "cont"] };
        for command in commands {
            if self.monitor.execute(command, &json!({})).is_err() {
                return;
            }
        }
    }

    /// Keeps beside the console what QEMU tells of the processors and their interrupts.
    fn note_state(&mut self) {
        let Ok(mut file) = File::options().append(true).create(true).open(self.folder.join(STATE)) else {
            return;
        };
        for command in ["info registers -a", "info lapic 0", "info lapic 1", "info pic", "info irq"] {
            let arguments = json!({ "command-line": command });
            let told = self.monitor.execute("human-monitor-command", &arguments);
            let told = told.as_ref().ok().and_then(Value::as_str).unwrap_or("no answer").replace('\r', "");
            if writeln!(file, "== {command}\n{told}").is_err() {
                return;
            }
        }
    }

    fn obey(&mut self, request: &str) -> Result<String> {
        let (verb, object) = request.split_once(' ').unwrap_or((request, ""));
        match verb {
            "device_del" => {
                self.monitor.execute("device_del", &json!({ "id": object }))?;
                Ok(String::new())
            }
            "device_add" => {
                let arguments: Value = serde_json::from_str(object).context("its argument is not JSON")?;
                self.monitor.execute("device_add", &arguments)?;
                Ok(String::new())
            }
            "aer" => {
                let command = format!("pcie_aer_inject_error {object}");
                let arguments = json!({ "command-line": command });
                let said = self.monitor.execute("human-monitor-command", &arguments)?;
                let said = said.as_str().unwrap_or_default().trim();
                ensure!(said.starts_with("OK"), "{command}: {said}");
                Ok(said.to_owned())
            }
            "sha256" => {
                let output = Command::new("sha256sum").arg(self.folder.join(object)).output()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let sum = text.split_whitespace().next().context("sha256sum printed nothing")?;
                Ok(sum.to_owned())
            }
            "oracle" => {
                let (folder, deadline) = (self.folder, self.deadline);
                let extent = match object {
                    "all" => oracle::Extent::All,
                    "rows" => oracle::Extent::RowsOfOldRxe,
                    _ => bail!("there is no such part of the oracle"),
                };
                let mut tell = |passed: bool, sentence: &str| self.verdict(passed, sentence);
                let struck = oracle::judge(folder, extent, deadline, &mut tell)?;
                self.captures.keep_but(oracle::CAPTURE, &struck)
            }
            "start" => self.peers.start(object).map(|()| String::new()),
            "listening" => self.peers.listening().map(|port| port.to_string()),
            "wait" => {
                let seconds = object.parse().context("its argument is no number of seconds")?;
                self.peers.wait(Duration::from_secs(seconds))
            }
            "captured" => {
                let damaged = object.parse().context("it needs the number of frames damaged on purpose")?;
                self.captures.keep("peer.pcap", damaged)
            }
            "judge" => self.captures.judge(),
            "memory" | "sum" => {
                let mut numbers = object.split(' ').map(str::parse);
                let (Some(Ok(offset)), Some(Ok(length))) = (numbers.next(), numbers.next()) else {
                    bail!("it needs an offset and a length");
                };
                if verb == "sum" { self.peers.sum(offset, length) } else { self.peers.memory(offset, length) }
            }
            _ => bail!("the host does not know {verb:?}"),
        }
    }
}

/// Writes the archive that the guest starts from.
fn pack(scene: &Scene, provision: &Provision, path: &Path) -> Result<()> {
    let mut archive = Initramfs::new(BufWriter::new(File::create(path)?));
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "run", "usr/bin", "sbin"] {
        archive.folder(folder)?;
    }
    archive.copy("bin/busybox", &provision.busybox)?;
    for name in ["vdk", "vdk-guest"] {
        archive.copy(&format!("bin/{name}"), &provision.binaries.join(name))?;
    }
    if let Some(modules) = &provision.modules {
        archive.copy("modules", modules)?;
    }
    for folder in &provision.programs {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            archive.copy(&entry.file_name().to_string_lossy(), &entry.path())?;
        }
    }
    archive.program("init", INIT.as_bytes())?;
    archive.program("scene", scene.script.as_bytes())?;
    Ok(archive.finish()?)
}

/// The last lines of the console, escape sequences left out.
///
/// # Errors
///
/// When there is no console.
pub fn console(folder: &Path, count: usize) -> io::Result<String> {
    let path: PathBuf = folder.join("console");
    let text = String::from_utf8_lossy(&fs::read(path)?).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(count)..].join("\n"))
}
