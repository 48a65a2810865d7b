//! Runs guests of QEMU: `vdk-qemu --help`.

#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use vdk_tests::qemu::{self, Outcome, Provision, Scene, scenes};

/// Runs guests and prints a line for each result.
///
/// What failed is told once more at the end, and the last line counts: "COUNTED: N passed, M
/// failed".
#[derive(Parser)]
struct Arguments {
    /// The scenes; all but the measuring ones when none is named.
    scenes: Vec<String>,
    /// Print the scenes and end.
    #[arg(long)]
    list: bool,
    /// Find, build and install what the scenes need, and end.
    #[arg(long)]
    provide: bool,
    /// How many run at a time; those that measure run alone.
    #[arg(long, default_value_t = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))]
    jobs: NonZeroUsize,
    /// Where the folders of the runs are made; they are removed unless something failed. Those
    /// of runs that were killed are removed by the next run.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Keep the folder of every run, and print the console of every guest.
    #[arg(long)]
    keep: bool,
    /// Also write the whole console of each guest in which something failed to a file here.
    #[arg(long)]
    consoles: Option<PathBuf>,
}

/// How much of a guest's console is shown when something failed in it.
const CONSOLE_LINES: usize = 120;
/// How much of it is shown once more at the end.
const LAST_LINES: usize = 12;
/// What took longer is told with its time.
const SLOW: Duration = Duration::from_secs(5);

/// What came of a scene.
struct Report {
    scene: &'static Scene,
    outcome: Outcome,
    /// What is printed of it.
    text: String,
    /// The end of the console, when something failed.
    console: String,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("vdk-qemu: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.list {
        for scene in scenes() {
            println!("{:16} {}", scene.name, scene.shows);
        }
        return Ok(true);
    }
    let mut chosen = choose(&arguments.scenes)?;
    // The order is kept where nothing runs beside something else.
    if arguments.jobs.get() > 1 {
        chosen.sort_by_key(|scene| Reverse(scene.takes));
    }
    let binaries = qemu::binaries()?;
    if arguments.provide {
        return provide(&chosen, &binaries);
    }
    for message in qemu::remove_abandoned(&arguments.folder) {
        println!("{message}");
    }
    let (measuring, testing): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|scene| scene.bench);
    let mut reports = Vec::new();
    for (scenes, jobs) in [(testing, arguments.jobs), (measuring, NonZeroUsize::MIN)] {
        qemu::in_parallel(
            scenes,
            jobs,
            |scene| play(scene, &binaries, arguments),
            |report| {
                print!("{}", report.text);
                reports.push(report);
            },
        );
    }
    Ok(conclude(&reports))
}

fn choose(names: &[String]) -> Result<Vec<&'static Scene>> {
    if names.is_empty() {
        return Ok(scenes().filter(|scene| !scene.bench).collect());
    }
    let find = |name: &String| {
        let found = scenes().find(|scene| scene.name == name);
        found.with_context(|| format!("there is no guest {name:?}: `tests/run --guest list` shows them"))
    };
    names.iter().map(find).collect()
}

/// Has everything there that the scenes need; tells what could not be had.
fn provide(scenes: &[&Scene], binaries: &Path) -> Result<bool> {
    let mut complete = true;
    for scene in scenes {
        if let Err(error) = Provision::new(scene, binaries) {
            println!("failed {}: {error:#}", scene.name);
            complete = false;
        }
    }
    Ok(complete)
}

/// Runs one scene in a folder of its own.
///
/// One that could not be run is one failure, and the others are run all the same.
fn play(scene: &'static Scene, binaries: &Path, arguments: &Arguments) -> Report {
    let start = Instant::now();
    let folder = qemu::run_folder(&arguments.folder, scene.name);
    let made = fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()));
    let result = made
        .and_then(|()| Provision::new(scene, binaries))
        .and_then(|provision| qemu::run(scene, &provision, &folder));
    let mut outcome = result.unwrap_or_else(|error| {
        let mut outcome = Outcome::default();
        outcome.fail(format!("the guest was not run: {error:#}"));
        outcome
    });
    if outcome.verdicts.is_empty() && !scene.bench {
        outcome.fail("the guest told no result".to_owned());
    }
    if scene.bench && outcome.figures.is_empty() {
        outcome.fail("nothing was measured".to_owned());
    }

    let fine = outcome.failed().next().is_none();
    let mut text = format!("== {}: {}\n", scene.name, scene.shows);
    let mut line = |words: &str| {
        text.push_str(words);
        text.push('\n');
    };
    for verdict in &outcome.verdicts {
        let result = if verdict.passed { "ok" } else { "failed" };
        let mut words = format!("{result} {}: {}", scene.name, verdict.sentence);
        if verdict.took > SLOW {
            // A String takes all that is written to it.
            let _ = write!(words, " ({:.0} s)", verdict.took.as_secs_f64());
        }
        line(&words);
    }
    for figure in &outcome.figures {
        line(figure);
    }
    let mut console = String::new();
    if !fine || arguments.keep {
        line(&logs(&folder));
        line(&format!("the folder of the run is {}", folder.display()));
        if let Err(error) = qemu::keep_folder(&folder) {
            line(&format!("it will be removed by a later run: {error}"));
        }
    }
    if !fine {
        console = qemu::console(&folder, LAST_LINES).unwrap_or_default();
        if let Err(error) = keep_console(scene, &folder, arguments) {
            line(&format!("its console was not kept: {error:#}"));
        }
    } else if !arguments.keep
        && let Err(error) = fs::remove_dir_all(&folder)
    {
        line(&format!("{} was not removed: {error}", folder.display()));
    }
    let (passed, failed) = outcome.count();
    let seconds = start.elapsed().as_secs_f64();
    line(&format!("== {}: {passed} passed, {failed} failed, {seconds:.1} s", scene.name));
    Report { scene, outcome, text, console }
}

/// The guest's console and what QEMU and the servers of devices said.
fn logs(folder: &Path) -> String {
    let mut text = "---- the guest's console\n".to_owned();
    text += &qemu::console(folder, CONSOLE_LINES).unwrap_or_else(|error| format!("there is none: {error}"));
    let logs = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for log in logs.filter(|path| path.extension().is_some_and(|extension| extension == "log")) {
        let content = fs::read_to_string(&log).unwrap_or_default();
        if !content.trim().is_empty() {
            let name = log.file_name().unwrap_or_default().display();
            // A String takes all that is written to it.
            let _ = write!(text, "\n---- {name}\n{}", content.trim_end());
        }
    }
    text += "\n----";
    text
}

fn keep_console(scene: &Scene, folder: &Path, arguments: &Arguments) -> Result<()> {
    let Some(consoles) = &arguments.consoles else { return Ok(()) };
    fs::create_dir_all(consoles)?;
    fs::write(consoles.join(format!("{}.log", scene.name)), qemu::console(folder, usize::MAX)?)?;
    Ok(())
}

/// Tells once more what failed, and counts; tells whether all passed.
fn conclude(reports: &[Report]) -> bool {
    let (mut passed, mut failed) = (0, 0);
    for report in reports {
        let counts = report.outcome.count();
        passed += counts.0;
        failed += counts.1;
        if counts.1 == 0 {
            continue;
        }
        println!("---- {} failed; the last lines of its console:", report.scene.name);
        for line in report.console.lines() {
            println!("    {line}");
        }
        for sentence in report.outcome.failed() {
            println!("failed {}: {sentence}", report.scene.name);
        }
    }
    println!("COUNTED: {passed} passed, {failed} failed");
    failed == 0
}
