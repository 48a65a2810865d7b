//! `vdk nvme` as a person runs it, on the emulated controller.

use std::io::Write;
use std::process::{Command, Output, Stdio};

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
        (&["nvme", "list", "stub:edu"], "cannot start the controller"),
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
