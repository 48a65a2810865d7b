//! Runs guests of QEMU: `vdk-qemu --help`.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use vdk_tests::qemu::{self, Outcome, Provision, SCENES, Scene};

/// Runs guests and prints a line for each result.
///
/// The last line counts them: "COUNTED: N passed, M failed".
#[derive(Parser)]
struct Arguments {
    /// The scenes; all but the measuring ones when none is named.
    scenes: Vec<String>,
    /// Print the scenes and end.
    #[arg(long)]
    list: bool,
    /// Where the folders of the runs are made; they are removed unless something failed.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Keep the folder of every run, and print the console of every guest.
    #[arg(long)]
    keep: bool,
}

/// How much of a guest's console is shown when something failed in it.
const CONSOLE_LINES: usize = 120;

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
        for scene in SCENES {
            println!("{:16} {}", scene.name, scene.shows);
        }
        return Ok(true);
    }
    let chosen = choose(&arguments.scenes)?;
    let binaries = qemu::binaries()?;
    let (mut passed, mut failed) = (0, 0);
    for scene in chosen {
        let start = Instant::now();
        // A run that could not be made is one failure, and the others are made all the same.
        let outcome = play(scene, &binaries, arguments).unwrap_or_else(|error| {
            let reason = format!("the guest was not run: {error:#}");
            println!("failed {}: {reason}", scene.name);
            Outcome { failed: vec![reason], ..Outcome::default() }
        });
        passed += outcome.passed.len();
        failed += outcome.failed.len();
        println!(
            "== {}: {} passed, {} failed, {:.1} s",
            scene.name,
            outcome.passed.len(),
            outcome.failed.len(),
            start.elapsed().as_secs_f64()
        );
    }
    println!("COUNTED: {passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn choose(names: &[String]) -> Result<Vec<&'static Scene>> {
    if names.is_empty() {
        return Ok(SCENES.iter().filter(|scene| !scene.bench).collect());
    }
    let find = |name: &String| {
        let found = SCENES.iter().find(|scene| scene.name == name);
        found.with_context(|| format!("there is no scene {name:?}; --list shows them"))
    };
    names.iter().map(find).collect()
}

/// Runs one scene in a folder of its own and prints what came of it.
fn play(scene: &Scene, binaries: &Path, arguments: &Arguments) -> Result<Outcome> {
    println!("== {}: {}", scene.name, scene.shows);
    let folder = arguments.folder.join(format!("vdk-guest-{}-{}", scene.name, std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let result = Provision::new(scene, binaries).and_then(|provision| qemu::run(scene, &provision, &folder));
    let result = result.and_then(|mut outcome| {
        if outcome.passed.is_empty() && outcome.failed.is_empty() && !scene.bench {
            outcome.failed.push("the guest told no result".to_owned());
        }
        ensure!(!scene.bench || !outcome.figures.is_empty(), "nothing was measured");
        Ok(outcome)
    });
    let fine = result.as_ref().is_ok_and(|outcome| outcome.failed.is_empty());
    if let Ok(outcome) = &result {
        for sentence in &outcome.passed {
            println!("ok {}: {sentence}", scene.name);
        }
        for figure in &outcome.figures {
            println!("{figure}");
        }
        for sentence in &outcome.failed {
            println!("failed {}: {sentence}", scene.name);
        }
    }
    if !fine || arguments.keep {
        show(&folder);
    }
    if fine && !arguments.keep {
        fs::remove_dir_all(&folder)?;
    } else {
        println!("the folder of the run is {}", folder.display());
    }
    result
}

/// Prints the guest's console and what QEMU and the servers of devices said.
fn show(folder: &Path) {
    println!("---- the guest's console");
    match qemu::console(folder, CONSOLE_LINES) {
        Ok(text) => println!("{text}"),
        Err(error) => println!("there is none: {error}"),
    }
    let logs = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for log in logs.filter(|path| path.extension().is_some_and(|extension| extension == "log")) {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if !text.trim().is_empty() {
            println!("---- {}\n{}", log.file_name().unwrap_or_default().display(), text.trim_end());
        }
    }
    println!("----");
}
