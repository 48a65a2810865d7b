//! The cases for guests, run on the emulated devices, without a guest.

use std::process::{Command, Output};

fn vdk_guest(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vdk-guest")).args(arguments).output().unwrap()
}

fn lines(output: &Output, start: &str) -> usize {
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.starts_with(start)).count()
}

#[test]
fn edu_passes_the_cases_that_its_kind_has() {
    let output = vdk_guest(&["conformance", "edu", "edu-unmapped", "edu-lifecycle", "--device", "stub:edu"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output, "failed "), 0, "{output:?}");
    let checks = vdk_tests::conformance::CHECKS.len();
    assert_eq!(lines(&output, "ok conformance: "), checks);
    assert_eq!(lines(&output, "ok "), checks + 8);
}

#[test]
fn ioat_passes_the_cases_that_its_kind_has() {
    let output = vdk_guest(&["conformance", "ioat", "ioat-unmapped", "--device", "stub:ioat"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output, "failed "), 0, "{output:?}");
    assert_eq!(lines(&output, "ok "), vdk_tests::conformance::CHECKS.len() + 7);
}

#[test]
fn a_case_on_the_wrong_device_fails_with_a_reason() {
    let output = vdk_guest(&["edu", "--device", "stub:ioat"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(lines(&output, "failed edu: "), 1, "{output:?}");
}

#[test]
fn unknown_cases_devices_and_no_case_are_errors() {
    for arguments in [&["no-such-case"][..], &[], &["conformance", "--interface", "uio"]] {
        let output = vdk_guest(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
}
