//! `vdk wire` as a person and a script run it.

use std::path::PathBuf;
use std::process::{Command, Output};

#[expect(unreachable_pub, reason = "other crates have it too")]
#[path = "../../../tests/data/roce/frames.rs"]
mod pcap;

use pcap::frames;

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
    // It has numbers of its own, which are those that it had with an opcode that is known.
    let plain = json(&capture("verbs-ipv4.pcap"), 0);
    let known = plain["records"].as_array().unwrap().last().unwrap();
    assert_eq!(last["unknown_opcode"], 0x1c);
    for field in ["queue_pair", "psn", "source", "destination"] {
        assert!(!last[field].is_null() && last[field] == known[field], "{field}: {last}");
    }
    let text = vdk(&["wire", scratch("opcode.pcap", &bytes).to_str().unwrap()]).stdout;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find(|line| line.contains("[unknown opcode]")).unwrap();
    assert!(line.contains(" opcode 0x1c ") && line.contains(" qp 0x") && line.contains(" psn 0x"), "{line}");
}

/// A file of these frames, a second apart.
fn file(name: &str, frames: &[Vec<u8>]) -> String {
    scratch(name, &pcapng(frames)).to_str().unwrap().to_owned()
}

#[test]
fn every_extension_header_is_in_the_record() {
    use vdk_driver::descriptors::roce::*;
    let whole = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    let sample = frames(&whole).into_iter().find_map(|frame| Frame::parse(frame).ok()).unwrap();
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(7) };
    let headers = ExtensionHeaders {
        immediate: ImmDt(0x11),
        invalidate: Ieth(RemoteKey(0x22)),
        remote: Reth { address: 0x33, key: RemoteKey(0x44), length: 8 },
        acknowledge: aeth,
        original: AtomicAckEth(0x55),
        atomic: AtomicEth { address: 0x66, key: RemoteKey(0x77), swap_or_add: 0x88, compare: 0x99 },
        datagram: Deth { key: QKey(0xaa), source: Qpn::new(0xbb).unwrap() },
    };
    let opcodes = [
        Opcode::RC_SEND_ONLY_INVALIDATE,
        Opcode::RC_WRITE_ONLY_IMMEDIATE,
        Opcode::RC_COMPARE_SWAP,
        Opcode::RC_ATOMIC_ACKNOWLEDGE,
        Opcode::UD_SEND_ONLY_IMMEDIATE,
    ];
    let built: Vec<Vec<u8>> = opcodes
        .iter()
        .map(|opcode| {
            let mut bth = Bth::new(*opcode, Qpn::new(0x11).unwrap(), Psn::new(5));
            bth.solicited_event = true;
            let extension = Extension::of(opcode.extension(), &headers);
            let headers = Headers { bth, extension, ..sample.headers };
            let payload: &[u8] = if opcode.has_payload() { &[1; 8] } else { &[] };
            let mut buffer = vec![0; headers.frame_length(payload.len())];
            Frame { headers, payload }.build(&mut buffer).unwrap();
            buffer
        })
        .collect();
    let report = json(&file("extensions.pcapng", &built), 0);
    let records = report["records"].as_array().unwrap();
    let expected = [
        ("invalidate", serde_json::json!(0x22)),
        ("remote", serde_json::json!({ "address": 0x33, "key": 0x44, "length": 8 })),
        ("atomic", serde_json::json!({ "address": 0x66, "key": 0x77, "swap_or_add": 0x88, "compare": 0x99 })),
        ("original", serde_json::json!(0x55)),
        ("datagram", serde_json::json!({ "q_key": 0xaa, "source": 0xbb })),
    ];
    for (place, (field, value)) in expected.iter().enumerate() {
        assert_eq!(records[place][field], *value, "{}", records[place]);
        let others = expected.iter().filter(|(other, _)| other != field);
        assert!(others.into_iter().all(|(other, _)| records[place][other].is_null()), "{}", records[place]);
        assert_eq!(records[place]["solicited_event"], true);
    }
    assert_eq!((&records[1]["immediate"], &records[4]["immediate"]), (&0x11.into(), &0x11.into()));
    assert_eq!((&records[3]["msn"], &records[3]["syndrome"]), (&7.into(), &"ACK".into()));
}

#[test]
fn a_congestion_notification_has_no_number_in_its_row() {
    use vdk_driver::descriptors::roce::*;
    let whole = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    let request = frames(&whole)
        .into_iter()
        .find(|frame| Frame::parse(frame).is_ok_and(|frame| frame.headers.bth.opcode == Opcode::RC_SEND_ONLY))
        .unwrap();
    let sample = Frame::parse(request).unwrap().headers;
    let psn = sample.bth.psn.value();
    let mut bth = Bth::new(Opcode::CONGESTION_NOTIFICATION, sample.bth.destination, Psn::new(0));
    bth.backward_congestion = true;
    let headers = Headers { bth, extension: Extension::Congestion, ..sample };
    let mut notification = vec![0; headers.frame_length(0)];
    Frame { headers, payload: &[] }.build(&mut notification).unwrap();
    for order in [vec![0, 1, 0], vec![1, 0], vec![0, 1]] {
        let frames: Vec<Vec<u8>> =
            order.iter().map(|which| [notification.clone(), request.to_vec()][*which].clone()).collect();
        let report = json(&file("cnp.pcapng", &frames), 0);
        let row = &report["by_queue_pair"][0];
        let numbers = (&row["first_psn"], &row["last_psn"], &row["transport"], &row["retransmissions"]);
        assert_eq!(numbers, (&psn.into(), &psn.into(), &"RC".into(), &0.into()), "{order:?}");
        assert_eq!(row["frames"], order.len());
    }
    let alone = file("cnp.pcapng", &[notification]);
    let report = json(&alone, 0);
    let row = &report["by_queue_pair"][0];
    assert_eq!((&row["first_psn"], &row["transport"]), (&serde_json::Value::Null, &"CNP".into()));
    let text = String::from_utf8(vdk(&["wire", &alone, "--summary"]).stdout).unwrap();
    let line = text.lines().find(|line| line.contains(" CNP ")).unwrap();
    assert!(line.trim_end().ends_with('-'), "{line}");
}

#[test]
fn obsolete_packet_blocks_are_read_as_the_newer_ones() {
    let whole = std::fs::read(capture("verbs-ipv4.pcap")).unwrap();
    let all: Vec<Vec<u8>> = frames(&whole).into_iter().map(<[u8]>::to_vec).collect();
    let newer = json(&file("enhanced.pcapng", &all), 0);
    for big in [false, true] {
        // An obsolete block has the interface in two bytes, and a count of drops behind it.
        let written = pcapng_of(&all, 2, big);
        let obsolete = json(scratch("obsolete.pcapng", &written).to_str().unwrap(), 0);
        assert_eq!(obsolete, newer, "big {big}");
        let cut = &written[..written.len() - 5];
        assert!(complaint(&scratch("obsolete-cut.pcapng", cut)).contains("was cut short"));
    }
    assert!(newer["records"][0]["time"].as_f64().unwrap() > 0.0, "the first frame is no RoCE");
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

fn pcapng(frames: &[Vec<u8>]) -> Vec<u8> {
    pcapng_of(frames, 6, false)
}

/// A file with packet blocks of type `packet`, 6 or the obsolete 2.
fn pcapng_of(frames: &[Vec<u8>], packet: u32, big: bool) -> Vec<u8> {
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let length = word(u32::try_from(padded + 12).unwrap());
        file.extend_from_slice(&word(kind));
        file.extend_from_slice(&length);
        file.extend_from_slice(body);
        file.resize(file.len() + padded - body.len(), 0);
        file.extend_from_slice(&length);
    };
    let version = if big { [0, 1, 0, 0] } else { [1, 0, 0, 0] };
    block(0x0a0d_0d0a, &[word(0x1a2b_3c4d), version, [0xff; 4], [0xff; 4]].concat());
    block(1, &[if big { [0, 1, 0, 0] } else { [1, 0, 0, 0] }, [0; 4]].concat());
    for (index, frame) in frames.iter().enumerate() {
        let length = word(u32::try_from(frame.len()).unwrap());
        let time = index as u64 * 1_000_000 + (1 << 32);
        let (high, low) = (u32::try_from(time >> 32).unwrap(), u32::try_from(time & 0xffff_ffff).unwrap());
        block(packet, &[&[0; 4], &word(high), &word(low), &length, &length, frame.as_slice()].concat());
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
    let cut = report["cut_short"].as_u64().unwrap();
    assert!(cut > 0);
    let errors = report["records"].as_array().unwrap().iter().filter_map(|record| record["error"].as_str());
    assert_eq!(errors.filter(|error| error.contains("larger snapshot length")).count() as u64, cut);
    // Nothing was damaged, and nobody says so.
    let text = |path: &std::path::Path| {
        let output = vdk(&["wire", path.to_str().unwrap(), "--summary"]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let said = text(&scratch("snapshot.pcap", &short));
    assert!(said.contains(&format!("{cut} of 189 frames were cut by the snapshot length")), "{said}");
    assert!(said.contains(&format!("{cut} of them were cut by the capture")), "{said}");
    assert!(!said.contains("damaged") && said.contains(" 0 with a wrong one, 0 malformed"), "{said}");
    // With both, both are said. The last frame is a short one, kept whole but for its padding.
    let whole_frames: u64 = 189 - cut;
    assert!(
        whole_frames > 0 && said.contains(&format!("{whole_frames} with a right invariant CRC")),
        "{said}"
    );
    let mut both = short;
    both.extend_from_slice(&whole[whole.len() - frames(&whole).last().unwrap().len() - 16..]);
    *both.last_mut().unwrap() ^= 1;
    let said = text(&scratch("snapshot-damaged.pcap", &both));
    assert!(said.contains("1 of 190 frames have a wrong invariant crc, 0 are malformed"), "{said}");
    assert!(said.contains(&format!("{cut} of 190 frames were cut")), "{said}");
}
