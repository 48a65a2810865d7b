//! `vdk wire` as a person and a script run it.

use std::path::PathBuf;
use std::process::{Command, Output};

fn vdk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vdk")).args(arguments).output().expect("vdk runs")
}

fn capture(name: &str) -> String {
    format!("{}/../../tests/data/roce/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("wire");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn json(path: &str, code: i32) -> serde_json::Value {
    let output = vdk(&["wire", path, "--json"]);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn complaint(path: &std::path::Path) -> String {
    let output = vdk(&["wire", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn every_frame_of_linux_verifies_and_is_counted() {
    let report = json(&capture("verbs-ipv4.pcap"), 0);
    assert_eq!(
        (&report["frames"], &report["bad_icrc"], &report["malformed"], &report["other"]),
        (&189.into(), &0.into(), &0.into(), &2.into())
    );
    let records = report["records"].as_array().unwrap();
    assert_eq!(records.len(), 189);
    assert!(records.iter().all(|record| record["icrc"] == true));
    let by_opcode: u64 = report["by_opcode"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    let rows = report["by_queue_pair"].as_array().unwrap();
    let by_queue_pair: u64 = rows.iter().map(|row| row["frames"].as_u64().unwrap()).sum();
    assert_eq!((by_opcode, by_queue_pair), (189, 189));
    // The late receiver and the four refusals.
    let sum = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
    assert!(sum("rnr_naks") >= 1, "{report}");
    assert!(sum("naks") >= 4, "{report}");
    let syndromes: Vec<&str> = records.iter().filter_map(|record| record["syndrome"].as_str()).collect();
    for syndrome in ["ACK", "RNR NAK, 0.64 ms", "NAK, remote access error", "NAK, remote operational error"] {
        assert!(syndromes.contains(&syndrome), "{syndrome}: {syndromes:?}");
    }

    let report = json(&capture("perftest-ipv4.pcap"), 0);
    assert_eq!(
        (&report["frames"], &report["bad_icrc"], &report["other"]),
        (&360.into(), &0.into(), &2.into())
    );
    assert_eq!(report["by_opcode"]["UD SEND Only"].as_u64().map(|frames| frames > 0), Some(true));
}

#[test]
fn each_frame_is_on_a_line_with_its_names_and_numbers() {
    let output = vdk(&["wire", &capture("verbs-ipv4.pcap")]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let frames = text.lines().filter(|line| line.contains(" psn 0x")).count();
    assert_eq!(frames, 189);
    let first = text.lines().find(|line| line.contains("RC SEND Only")).unwrap();
    assert!(first.contains("192.168.77.2 > 192.168.77.1") && first.contains("psn 0xfffff0"), "{first}");
    assert!(text.contains("imm 0x44332211"), "{text}");
    assert!(text.contains("RNR NAK, 0.64 ms msn") && text.contains("[rnr nak]"), "{text}");
    assert!(text.contains("[retransmission]"), "{text}");
    assert!(text.ends_with(
        "189 RoCE frames: 189 with a right invariant CRC, 0 with a wrong one, 0 malformed; 2 other frames\n"
    ));
    let summary = String::from_utf8(vdk(&["wire", &capture("verbs-ipv4.pcap"), "--summary"]).stdout).unwrap();
    assert!(text.ends_with(&summary) && summary.lines().count() < 60, "{summary}");
}

#[test]
fn a_damaged_frame_is_named_and_fails_the_command() {
    let mut bytes = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    // The last byte of the file is in the last frame's invariant CRC.
    *bytes.last_mut().unwrap() ^= 1;
    let path = scratch("damaged.pcap", &bytes);
    let report = json(path.to_str().unwrap(), 1);
    assert_eq!(report["bad_icrc"], 1);
    let last = report["records"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["icrc"], &last["marks"][0]), (&false.into(), &"bad icrc".into()));
    let output = vdk(&["wire", path.to_str().unwrap(), "--summary"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("1 of 189 frames have a wrong invariant crc"));
}

#[test]
fn a_sound_frame_with_an_unknown_opcode_is_counted_by_itself_and_fails_nothing() {
    use vdk_driver::descriptors::roce::icrc::{Encapsulation, compute};
    let mut bytes = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    let length = frames(&bytes).last().unwrap().len();
    let start = bytes.len() - length;
    bytes[start + 42] = 0x1c;
    let report = json(scratch("opcode-damaged.pcap", &bytes).to_str().unwrap(), 1);
    assert_eq!((&report["bad_icrc"], &report["unknown_opcodes"]), (&1.into(), &0.into()));
    let end = bytes.len() - 4;
    let crc = compute(Encapsulation::Ipv4, &bytes[start + 14..end]).unwrap();
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    let report = json(scratch("opcode.pcap", &bytes).to_str().unwrap(), 0);
    let counts = (&report["bad_icrc"], &report["malformed"], &report["unknown_opcodes"]);
    assert_eq!(counts, (&0.into(), &0.into(), &1.into()));
    let last = report["records"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["icrc"], &last["marks"][0]), (&true.into(), &"unknown opcode".into()));
}

#[test]
fn what_is_no_capture_is_refused_with_cause_and_remedy() {
    assert!(complaint(&scratch("empty.pcap", b"")).contains("is empty"));
    let text = complaint(&scratch("text.pcap", b"hello, world"));
    assert!(text.contains("is no capture: it begins with 68656c6c") && text.contains("tcpdump -w"), "{text}");
    assert!(complaint(&scratch("short.pcap", &[0xd4])).contains("is no capture"));
    let whole = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    assert!(complaint(&scratch("header.pcap", &whole[..10])).contains("ends in the middle of frame 1"));
    assert!(complaint(&scratch("none.pcap", &whole[..24])).contains("holds no frame"));
    let text = complaint(&scratch("cut.pcap", &whole[..whole.len() - 3]));
    assert!(
        text.contains("ends in the middle of frame 191: it was cut short. Copy or capture it again"),
        "{text}"
    );
    let mut linux_cooked = whole.clone();
    linux_cooked[20] = 113;
    let text = complaint(&scratch("cooked.pcap", &linux_cooked));
    assert!(text.contains("not Ethernet") && text.contains("capture on the network interface"), "{text}");
    assert!(complaint(&PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).contains("cannot read"));
    let text = complaint(&PathBuf::from("no-such-file.pcap"));
    assert!(text.contains("cannot read no-such-file.pcap: No such file"), "{text}");
}

/// The frames of a pcap file of microseconds, little-endian.
fn frames(pcap: &[u8]) -> Vec<&[u8]> {
    let mut rest = &pcap[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(&rest[16..16 + length]);
        rest = &rest[16 + length..];
    }
    frames
}

fn pcapng(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let length = u32::try_from(padded + 12).unwrap().to_le_bytes();
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&length);
        file.extend_from_slice(body);
        file.resize(file.len() + padded - body.len(), 0);
        file.extend_from_slice(&length);
    };
    block(0x0a0d_0d0a, &[[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0].as_slice(), &[0xff; 8]].concat());
    block(1, &[1, 0, 0, 0, 0, 0, 0, 0]);
    for (index, frame) in frames.iter().enumerate() {
        let length = u32::try_from(frame.len()).unwrap().to_le_bytes();
        let time = u32::try_from(index * 1_000_000).unwrap().to_le_bytes();
        block(6, &[&[0; 4], &[0; 4], &time, &length, &length, frame.as_slice()].concat());
    }
    file
}

#[test]
fn pcapng_and_vlan_tags_change_nothing() {
    let whole = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    let tagged: Vec<Vec<u8>> = frames(&whole)
        .into_iter()
        .map(|frame| [&frame[..12], &[0x81, 0x00, 0x60, 0x2a], &frame[12..]].concat())
        .collect();
    assert_eq!(tagged.len(), 191);
    let path = scratch("tagged.pcapng", &pcapng(&tagged));
    let report = json(path.to_str().unwrap(), 0);
    let plain = json(&capture("verbs-ipv4.pcap"), 0);
    for field in ["frames", "bad_icrc", "other", "by_opcode", "by_queue_pair"] {
        assert_eq!(report[field], plain[field], "{field}");
    }
    // Frame by frame a second later.
    assert_eq!(
        report["records"][1]["time"].as_f64().unwrap() - report["records"][0]["time"].as_f64().unwrap(),
        1.0
    );
    let cut = std::fs::read(&path).unwrap();
    assert!(complaint(&scratch("cut.pcapng", &cut[..cut.len() - 5])).contains("was cut short"));
}

#[test]
fn a_short_snapshot_is_blamed_on_the_capture() {
    let whole = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    let mut short = whole[..24].to_vec();
    for frame in frames(&whole) {
        let kept = frame.len().min(60);
        short.extend_from_slice(&[0; 8]);
        short.extend_from_slice(&u32::try_from(kept).unwrap().to_le_bytes());
        short.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_le_bytes());
        short.extend_from_slice(&frame[..kept]);
    }
    let report = json(scratch("snapshot.pcap", &short).to_str().unwrap(), 1);
    assert_eq!(report["frames"], 189);
    let malformed = report["malformed"].as_u64().unwrap();
    assert!(malformed > 0);
    let errors = report["records"].as_array().unwrap().iter().filter_map(|record| record["error"].as_str());
    assert_eq!(errors.filter(|error| error.contains("larger snapshot length")).count() as u64, malformed);
}
