//! `vdk nvme` as a person runs it, on the emulated controller.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn vdk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vdk"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary is built")
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = vdk(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

/// What a command that must fail says.
fn refusal(arguments: &[&str]) -> String {
    let output = vdk(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn the_controller_and_its_namespace_are_listed_and_identified() {
    let list = json(&["nvme", "list", "stub:nvme", "--json"]);
    let namespace = &list["namespaces"][0];
    assert_eq!((namespace["nsid"].as_u64(), namespace["block_size"].as_u64()), (Some(1), Some(512)));
    let bytes = namespace["bytes"].as_u64().unwrap();
    assert_eq!(bytes, namespace["blocks"].as_u64().unwrap() * 512);
    let identity = json(&["nvme", "identify", "stub:nvme", "--json"]);
    assert_eq!(identity["serial"], list["serial"]);
    assert!(identity["queues"].as_u64().unwrap() >= 1 && identity["queue_entries"].as_u64().unwrap() > 1);
    assert!(!identity["namespaces"][0]["formats"].as_array().unwrap().is_empty());
}

#[test]
fn what_is_written_is_read_back_with_the_same_checksum() {
    let bytes: Vec<u8> =
        (0..3_000_001u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vdk"))
        .args(["nvme", "write", "stub:nvme", "--lba", "7", "--flush", "--verify", "--yes", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary is built");
    child.stdin.take().unwrap().write_all(&bytes).expect("the blocks are taken");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["bytes"].as_u64(), Some(3_000_001));
    assert_eq!(summary["blocks"].as_u64(), Some(3_000_001u64.div_ceil(512)));
    assert_eq!(summary["verified"].as_bool(), Some(true));
    let mut filled = bytes;
    filled.resize(filled.len().next_multiple_of(512), 0);
    assert_eq!(summary["crc32"].as_str(), Some(format!("{:08x}", crc32fast::hash(&filled)).as_str()));
}

#[test]
fn blocks_go_to_the_standard_output() {
    let output = vdk(&["nvme", "read", "stub:nvme", "--lba", "100", "--blocks", "9"]);
    assert!(output.status.success());
    assert_eq!(output.stdout, vec![0; 9 * 512]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("crc32"));
}

#[test]
fn what_destroys_data_wants_a_yes() {
    for arguments in [
        &["nvme", "write", "stub:nvme"][..],
        &["nvme", "zero", "stub:nvme", "--lba", "0", "--blocks", "1"],
        &["nvme", "format", "stub:nvme", "--format", "0"],
        &["nvme", "bench", "stub:nvme", "--operation", "mixed"],
    ] {
        let error = refusal(arguments);
        assert!(error.contains("say --yes"), "{error}");
    }
    for arguments in [
        &["nvme", "zero", "stub:nvme", "--lba", "0", "--blocks", "8", "--yes"][..],
        &["nvme", "zero", "stub:nvme", "--lba", "0", "--blocks", "8", "--discard", "--yes"],
        &["nvme", "flush", "stub:nvme"],
        &["nvme", "format", "stub:nvme", "--format", "0", "--yes"],
    ] {
        let output = vdk(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn mistakes_are_told_with_the_fix() {
    for (arguments, text) in [
        (&["nvme", "read", "stub:nvme", "--lba", "99999999"][..], "not inside namespace 1"),
        (&["nvme", "read", "stub:nvme", "--blocks", "99999999"], "not inside namespace 1"),
        (&["nvme", "read", "stub:nvme", "--nsid", "9"], "no active namespace 9"),
        (&["nvme", "read", "stub:nvme", "--json"], "name a file with --output"),
        (&["nvme", "bench", "stub:nvme", "--block-size", "1000"], "not a multiple"),
        (&["nvme", "bench", "stub:nvme", "--depth", "65536"], "MQES"),
        (&["nvme", "format", "stub:nvme", "--format", "15", "--yes"], "no format 15"),
        (
            &["nvme", "zero", "stub:nvme", "--lba", "255", "--blocks", "99999999", "--yes"],
            "99999999 blocks from LBA 255 are not inside namespace 1",
        ),
        (&["nvme", "zero", "stub:nvme", "--lba", "0", "--blocks", "0", "--yes"], "0 blocks from LBA 0"),
        (&["nvme", "list", "stub:ioat"], "stub:ioat is no NVMe controller: it is"),
    ] {
        let error = refusal(arguments);
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
}

#[test]
fn a_measurement_counts_what_it_did() {
    for (wait, queues) in [("poll", "1"), ("interrupt", "1"), ("adaptive", "3")] {
        let report = json(&[
            "nvme",
            "bench",
            "stub:nvme",
            "--seconds",
            "0.2",
            "--wait",
            wait,
            "--queues",
            queues,
            "--depth",
            "8",
            "--operation",
            "mixed",
            "--yes",
            "--json",
        ]);
        let operations = report["operations"].as_u64().unwrap();
        assert!(operations > 0 && report["failed"].as_u64() == Some(0), "{report}");
        let buckets = report["latency_ns"]["histogram"].as_array().unwrap();
        let counted: u64 = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
        assert_eq!(counted, operations);
        assert_eq!(report["queues"].as_u64().unwrap().to_string(), queues);
        assert!(report["cpu_ns_per_operation"].as_f64().unwrap() > 0.0);
    }
}

fn spawn(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdk"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary is built")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The exit code, and what it said, of one that must end although its pipes stay open.
fn ended(child: &mut Child) -> (Option<i32>, String) {
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status.code(), said)
}

#[test]
fn an_interruption_ends_a_write_that_waits_for_its_input() {
    let mut child = spawn(&["nvme", "write", "stub:nvme", "--yes"]);
    let mut input = child.stdin.take().unwrap();
    // More than a pipe holds: once it is gone the program reads.
    input.write_all(&[7; (64 << 10) + 1]).unwrap();
    interrupt(&child);
    let (code, said) = ended(&mut child);
    assert!(code == Some(130) && said.contains("interrupted: the device was stopped"), "{code:?} {said}");
    drop(input);
}

#[test]
fn an_interruption_ends_a_read_that_nobody_takes() {
    let mut child = spawn(&["nvme", "read", "stub:nvme"]);
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let (code, said) = ended(&mut child);
    assert!(code == Some(130) && said.contains("interrupted: the device was stopped"), "{code:?} {said}");
    drop(output);
}

#[test]
fn a_reader_that_goes_away_ends_a_read_in_order() {
    let mut child = spawn(&["nvme", "read", "stub:nvme", "-vv"]);
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    drop(output);
    let (code, said) = ended(&mut child);
    assert!(code == Some(0) && said.contains("the controller was stopped"), "{code:?} {said}");
}

#[test]
fn an_interrupted_measurement_is_shown_and_says_130() {
    for wait in ["poll", "interrupt"] {
        let arguments = [
            "nvme",
            "bench",
            "stub:nvme",
            "--seconds",
            "600",
            "--wait",
            wait,
            "--depth",
            "4",
            "--json",
            "-vv",
        ];
        let mut child = spawn(&arguments);
        // What it says of the controller comes after it has begun to listen for signals.
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("stub:nvme") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "it ended: {said}");
        }
        interrupt(&child);
        let reading = std::thread::spawn(move || lines.read_to_string(&mut said).map(|_| said));
        let mut report = String::new();
        child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{wait}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["interrupted"], true, "{wait}");
        let said = reading.join().unwrap().unwrap();
        assert!(said.contains("interrupted: the device was stopped"), "{said}");
    }
}

#[test]
fn a_read_that_has_no_room_leaves_the_old_file_and_no_other() {
    let folder = std::env::temp_dir().join(format!("vdk-nvme-room-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("blocks");
    std::fs::write(&file, "old").unwrap();
    let limited = "trap '' XFSZ; ulimit -f 40960; exec \"$0\" nvme read stub:nvme -o \"$1\"";
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_vdk"), file.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains(file.to_str().unwrap()), "{said}");
    assert!(said.contains("the partial file was removed"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    let output = vdk(&["nvme", "read", "stub:nvme", "--blocks", "8", "-o", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read(&file).unwrap(), [0; 8 * 512]);
    std::fs::remove_dir_all(&folder).unwrap();
}
