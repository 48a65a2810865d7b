//! `vdk demo`, `vdk list` and `vdk info` as a person and a script run them.

use std::process::{Command, Output};

fn vdk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vdk")).args(arguments).output().expect("vdk runs")
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = vdk(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

#[test]
fn the_demo_drives_both_devices_and_checks_what_they_did() {
    let report = json(&["demo", "--json"]);
    let drivers: Vec<&str> =
        report["devices"].as_array().unwrap().iter().map(|row| row["driver"].as_str().unwrap()).collect();
    assert_eq!(drivers, ["edu", "ioat"]);
    assert!(report["checks"].as_array().unwrap().len() >= 6, "{report}");
    assert_eq!(report["rates"].as_array().unwrap().len(), 3);
    let text = String::from_utf8(vdk(&[]).stdout).unwrap();
    assert!(text.contains("3628800") && text.contains("Next: vdk list"), "{text}");
}

#[test]
fn the_list_has_the_emulated_devices_and_says_why_others_cannot_be_opened() {
    let rows = json(&["list", "--json"]);
    let rows = rows.as_array().unwrap();
    for name in ["stub:edu", "stub:ioat"] {
        let row = rows.iter().find(|row| row["device"] == name).unwrap();
        assert_eq!(row["can_open"], true);
    }
    for row in rows.iter().filter(|row| row["can_open"] == false) {
        let obstacles = row["obstacles"].as_array().unwrap();
        assert!(!obstacles.is_empty() && !obstacles[0]["fix"].as_str().unwrap().is_empty(), "{row}");
    }
}

#[test]
fn the_info_of_a_device_has_what_its_configuration_space_says() {
    let report = json(&["info", "stub:ioat", "--json"]);
    assert_eq!(report["class"], "088000");
    assert_eq!(report["bars"][0]["size"], 16384);
    assert!(!report["command"].as_array().unwrap().iter().any(|word| word == "bus master"), "{report}");
    let names: Vec<&str> =
        report["capabilities"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"MSI-X") && names.contains(&"Power Management"), "{names:?}");
    // Wrong usage, and a device that is not there.
    for (device, code) in [("stub:none", 2), ("nonsense", 2), ("fffe:00:00.0", 1)] {
        assert_eq!(vdk(&["info", device]).status.code(), Some(code), "{device}");
        assert_eq!(vdk(&["nvme", "list", device]).status.code(), Some(code), "{device}");
    }
}

#[test]
fn the_doctor_examines_the_machine_and_devices_and_its_exit_code_tells() {
    for arguments in
        [&["doctor", "--json"][..], &["doctor", "stub:edu", "--json"], &["doctor", "fffe:00:00.0", "--json"]]
    {
        let output = vdk(arguments);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
        let findings = report["findings"].as_array().unwrap();
        let problems = findings.iter().filter(|finding| finding["level"] == "problem").count();
        assert_eq!(report["problems"], problems);
        assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{report}");
        for finding in findings {
            assert!(finding["level"] == "ok" || !finding["fix"].as_str().unwrap().is_empty(), "{finding}");
        }
    }
    assert!(vdk(&["doctor", "stub:edu"]).status.success());
    assert_eq!(vdk(&["doctor", "nonsense"]).status.code(), Some(2));
    assert_eq!(vdk(&["doctor", "fffe:00:00.0"]).status.code(), Some(1));
}

#[test]
fn bind_and_unbind_name_what_is_not_there_and_want_an_address() {
    for command in ["bind", "unbind"] {
        let output = vdk(&[command, "fffe:00:00.0", "--dry-run"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && text.contains("there is no PCI function fffe:00:00.0"),
            "{text}"
        );
        assert_eq!(vdk(&[command]).status.code(), Some(2));
        assert_eq!(vdk(&[command, "1:2:3:4"]).status.code(), Some(2));
    }
    let output = vdk(&["bind", "fffe:00:00.0", "--user", "no such user"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no user \"no such user\""));
}
