//! `vdk roce`: two of them against each other, and what a person gets wrong.

mod ports;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn vdk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdk"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The two ends of a wire between ports that nobody has, and a TCP port.
fn free() -> (String, String, String) {
    let (one, two) = (ports::free(), ports::free());
    let wire = |from: u16, to: u16| format!("udp:127.0.0.1:{from},127.0.0.1:{to}");
    (wire(one, two), wire(two, one), ports::free().to_string())
}

fn server(test: &[&str], wire: &str, port: &str) -> Child {
    let link = ["--wire", wire, "--address", "10.0.0.1", "--port", port, "--patience", "20", "--json"];
    vdk(&[&["roce"], test, &link[..]].concat()).spawn().unwrap()
}

fn client(test: &[&str], wire: &str, port: &str) -> Output {
    let link =
        ["127.0.0.1", "--wire", wire, "--address", "10.0.0.2", "--port", port, "--patience", "20", "--json"];
    vdk(&[&["roce"], test, &link[..]].concat()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a test on both ends and gives what each printed.
fn both(test: &[&str]) -> [serde_json::Value; 2] {
    let (left, right, port) = free();
    let server = server(test, &left, &port);
    let client = client(test, &right, &port);
    let server = server.wait_with_output().unwrap();
    assert!(client.status.success(), "{test:?}: client: {}; server: {}", text(&client), text(&server));
    assert!(server.status.success(), "{test:?}: server: {}", text(&server));
    [client, server].map(|output| serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[test]
fn messages_go_to_and_fro_undamaged_over_each_service() {
    for service in ["rc", "uc", "ud"] {
        let sizes: &[&str] =
            if service == "ud" { &["1", "1023", "1024"] } else { &["1", "1024", "1025", "70000"] };
        for size in sizes {
            let test = ["pingpong", "--service", service, "--size", size, "-n", "50", "--check"];
            let bytes = 2 * 50 * size.parse::<u64>().unwrap();
            for report in both(&test) {
                assert_eq!(report["bytes"], bytes, "{service} {size}");
                assert_eq!((&report["iterations"], &report["checked"]), (&50.into(), &true.into()));
            }
        }
    }
}

#[test]
fn every_operation_is_measured_by_both_tests() {
    for operation in ["write", "read", "send", "fetch-add", "compare-swap"] {
        let size = if operation.contains('-') { 8 } else { 3000 };
        let test = ["bw", "--operation", operation, "--size", "3000", "-n", "300"];
        let [client, server] = both(&test);
        assert_eq!((&client["bytes"], &client["iterations"]), (&size.into(), &300.into()), "{operation}");
        assert!(client["average"].as_f64().unwrap() > 0.0);
        if operation != "send" {
            assert_eq!(client, server, "the server prints what the client told");
        }
        let test = ["lat", "--operation", operation, "--size", "3000", "-n", "50"];
        let [client, _] = both(&test);
        assert_eq!((&client["bytes"], &client["iterations"]), (&size.into(), &50.into()), "{operation}");
        let figure = |name: &str| client[name].as_f64().unwrap();
        assert!(figure("minimum") > 0.0 && figure("minimum") <= figure("typical"));
        assert!(figure("typical") <= figure("maximum"));
    }
}

/// The two ends of a stream, by a name of its own.
fn stream(name: &str) -> (Scratch, String, String) {
    let socket = Scratch::new(name);
    let (listen, connect) = (format!("unix-listen:{}", socket.name()), format!("unix:{}", socket.name()));
    (socket, listen, connect)
}

/// Waits until somebody listens at a unix socket; a connection would already be a peer.
fn wait_for_listener(path: &str) {
    // SO_ACCEPTCON of the kernel, in the column of flags.
    let listens = |line: &str| line.ends_with(path) && line.split_whitespace().nth(3) == Some("00010000");
    let begun = std::time::Instant::now();
    while !std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(listens) {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody listens at {path}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ipv6_and_stream_wires_carry_the_same() {
    for (gid, one, two) in [("1", "fd00::1", "fd00::2"), ("0", "fd00::1", "fd00::2")] {
        let (socket, listen, connect) = stream(&format!("stream-{gid}.sock"));
        let (_, _, port) = free();
        let end = |wire: &str, address: &str, host: &[&str]| {
            let link = ["--wire", wire, "--address", address, "--port", &port, "--patience", "20"];
            let rest = ["--gid-index", gid, "--check", "-n", "20", "--json"];
            vdk(&[&["roce", "pingpong"], host, &link[..], &rest[..]].concat()).spawn().unwrap()
        };
        let server = end(&listen, one, &[]);
        wait_for_listener(socket.name());
        let client = end(&connect, two, &["::1"]);
        for child in [client, server] {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
        }
    }
}

#[test]
fn the_end_that_leaves_last_has_its_result_too() {
    // With faults one answers for longer, and the end of the stream comes in the middle of that.
    let (socket, listen, connect) = stream("leaves-last.sock");
    let (_, _, port) = free();
    let test = ["bw", "--size", "3000", "-n", "100"];
    let server = server(&test, &listen, &port);
    wait_for_listener(socket.name());
    let client = client(&[&test[..], &["--duplicate", "5"]].concat(), &connect, &port);
    let server = server.wait_with_output().unwrap();
    for output in [client, server] {
        assert!(output.status.success(), "{}", text(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["iterations"], 100, "{report}");
    }
}

#[test]
fn unreliable_services_are_measured_too() {
    for (service, operation) in [("uc", "send"), ("ud", "send"), ("uc", "write")] {
        let test = ["lat", "--service", service, "--operation", operation, "--size", "500", "-n", "50"];
        let [client, _] = both(&test);
        assert_eq!(client["iterations"], 50, "{service} {operation}");
    }
}

/// A file that ends with the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        Self(folder.join(format!("{}-{name}", std::process::id())))
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What `vdk wire` says of a capture, and its exit code.
fn seen(capture: &Scratch) -> (serde_json::Value, Option<i32>) {
    let output = vdk(&["wire", capture.name(), "--json"]).output().unwrap();
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

#[test]
fn a_capture_has_every_frame_of_both_ways() {
    let capture = Scratch::new("all.pcap");
    let (left, right, port) = free();
    let test = ["pingpong", "--size", "3000", "-n", "20", "--check"];
    let server = server(&test, &left, &port);
    let client = client(&[&test[..], &["--capture", capture.name()]].concat(), &right, &port);
    let server = server.wait_with_output().unwrap();
    assert!(client.status.success() && server.status.success(), "{} {}", text(&client), text(&server));
    let report: serde_json::Value = serde_json::from_slice(&client.stdout).unwrap();
    assert!(report.get("faults").is_none(), "{report}");
    let (summary, code) = seen(&capture);
    assert_eq!((code, &summary["bad_icrc"]), (Some(0), &0.into()), "{summary}");
    // Each way 20 messages of three packets.
    for opcode in ["RC SEND First", "RC SEND Middle", "RC SEND Last"] {
        let count = summary["by_opcode"][opcode].as_u64().unwrap_or_default();
        assert!(count >= 40, "{count} {opcode} in {}", summary["by_opcode"]);
    }
}

#[test]
fn the_memory_of_both_ends_is_written_to_files() {
    for operation in ["write", "read", "send"] {
        let (left, right, port) = free();
        let (ours, theirs) = (Scratch::new("memory.client"), Scratch::new("memory.server"));
        let test = ["bw", "--operation", operation, "--size", "5000", "-n", "10", "--memory"];
        let server = server(&[&test[..], &[theirs.name()]].concat(), &left, &port);
        let client = client(&[&test[..], &[ours.name()]].concat(), &right, &port);
        let server = server.wait_with_output().unwrap();
        assert!(client.status.success() && server.status.success(), "{} {}", text(&client), text(&server));
        let [ours, theirs] = [ours, theirs].map(|file| std::fs::read(&file.0).unwrap());
        // A half is the size and what stands before a datagram, in whole pages.
        assert_eq!((ours.len(), theirs.len()), (16384, 16384), "{operation}");
        assert_eq!(ours[..5000], theirs[8192..13192], "{operation}");
        assert_ne!(ours[..5000], [0; 5000], "{operation}");
        assert_ne!(theirs[..5000], ours[8192..13192], "{operation}: nothing went the other way");
    }
}

#[test]
fn faults_on_purpose_leave_the_messages_whole_and_are_counted() {
    let capture = Scratch::new("corrupt.pcap");
    let (left, right, port) = free();
    let test = ["pingpong", "--size", "3000", "-n", "100", "--check", "--seed", "7"];
    let all = ["--loss", "2", "--duplicate", "3", "--reorder", "3", "--delay", "3%", "--delay-by", "2"];
    let server = server(&[&test[..], &all[..]].concat(), &left, &port);
    let damage = ["--corrupt", "3.5", "--capture", capture.name()];
    let client = client(&[&test[..], &damage[..]].concat(), &right, &port);
    let server = server.wait_with_output().unwrap();
    assert!(client.status.success() && server.status.success(), "{} {}", text(&client), text(&server));
    let [client, server]: [serde_json::Value; 2] =
        [client, server].map(|output| serde_json::from_slice(&output.stdout).unwrap());
    assert_eq!((&client["checked"], &client["faults"]["seed"]), (&true.into(), &7.into()));
    let count = |report: &serde_json::Value, way: &str, what: &str| {
        report["faults"][way][what].as_u64().unwrap_or_else(|| panic!("no {way} {what} in {report}"))
    };
    for way in ["sent", "received"] {
        assert!(count(&client, way, "frames") > 300, "{client}");
        assert!(count(&client, way, "corrupted") > 0 && count(&client, way, "dropped") == 0, "{client}");
        for what in ["dropped", "duplicated", "reordered", "delayed"] {
            assert!(count(&server, way, what) > 0, "{what}: {server}");
        }
        assert_eq!(count(&server, way, "corrupted"), 0);
    }
    // The capture has what was sent as it was after it was struck, and what came before.
    let (summary, code) = seen(&capture);
    assert_eq!(code, Some(1), "damaged frames are in it");
    assert_eq!(summary["bad_icrc"].as_u64(), Some(count(&client, "sent", "corrupted")), "{summary}");
}

#[test]
fn a_test_that_fails_tells_what_was_done_on_purpose() {
    let (left, right, port) = free();
    let test = ["pingpong", "-n", "5", "--patience", "3"];
    let end = |wire: &str, address: &str, rest: &[&str]| {
        let link = ["--wire", wire, "--address", address, "--port", &port];
        vdk(&[&["roce"], &test[..], &link, rest].concat()).spawn().unwrap()
    };
    let server = end(&left, "10.0.0.1", &[]);
    let client = end(&right, "10.0.0.2", &["127.0.0.1", "--loss", "100"]).wait_with_output().unwrap();
    let server = server.wait_with_output().unwrap();
    assert_eq!((client.status.code(), server.status.code()), (Some(1), Some(1)));
    let (client, server) = (text(&client), text(&server));
    for part in
        ["send 1 of 5 failed: transport retries exceeded", "faults on purpose, seed 1", "received  0 frames"]
    {
        assert!(client.contains(part), "{part:?} is not in {client}");
    }
    assert!(server.contains("s for message 1 of 5: does the other end still run"), "{server}");
}

/// Runs alone and must fail with all of `expected` in its message.
fn refused(arguments: &[&str], expected: &[&str]) {
    exits(1, arguments, expected);
}

/// Runs alone and must end with `code` and all of `expected` in its message.
fn exits(code: i32, arguments: &[&str], expected: &[&str]) {
    let output = vdk(&[&["roce"], arguments].concat()).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for part in expected {
        assert!(text.contains(part), "{arguments:?}: {part:?} is not in {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_with_the_cause_and_the_remedy() {
    let (wire, _, port) = free();
    let link = ["--wire", &wire, "--port", &port, "--patience", "1"];
    let refuse = |arguments: &[&str], expected: &[&str]| {
        refused(&[arguments, &link[..]].concat(), expected);
    };
    refuse(&["pingpong", "--gid-index", "5"], &["gid index 5 does not exist", "::ffff:10.0.0.9", "fe80::"]);
    let old = Scratch::new("old.pcap");
    std::fs::write(old.name(), "kept").unwrap();
    refuse(&["pingpong", "--gid-index", "5", "--capture", old.name()], &["choose another --gid-index"]);
    assert_eq!(std::fs::read_to_string(old.name()).unwrap(), "kept");
    refuse(&["pingpong"], &["no client came", &port, "both ends servers"]);
    refuse(&["pingpong", "127.0.0.1"], &["no server at 127.0.0.1", "start the server first"]);
    refuse(&["bw", "--service", "ud"], &["a datagram can only be sent", "--operation send"]);
    refuse(&["bw", "--service", "uc", "--operation", "read"], &["no READ", "--service rc"]);
    refuse(&["pingpong", "--service", "ud", "--size", "2000"], &["at most the path MTU"]);
    refuse(&["bw", "--capture", "/nowhere/x.pcap"], &["cannot write the capture /nowhere/x.pcap", "No such"]);
    let wrong = |arguments: &[&str], expected: &[&str]| {
        exits(2, &[arguments, &link[..]].concat(), expected);
    };
    wrong(&["lat", "--mtu", "1500"], &["a path MTU is 256"]);
    wrong(&["bw", "--operation", "sned"], &["send"]);
    wrong(&["bw", "--loss", "101"], &["\"101\" is no percentage"]);
    wrong(&["bw", "--loss", "-1"], &["\"-1\" is no percentage"]);
    wrong(&["bw", "--delay-by", "0"], &["0 is not in 1..=1000"]);
    let taken = TcpListener::bind(("0.0.0.0", port.parse().unwrap())).unwrap();
    refuse(&["pingpong"], &["is it taken?", "--port"]);
    drop(taken);
    let socket = wire.strip_prefix("udp:").unwrap().split(',').next().unwrap().to_owned();
    let taken = UdpSocket::bind(&socket).unwrap();
    refuse(&["pingpong"], &["taken by another program"]);
    drop(taken);
    exits(2, &["pingpong", "--wire", "pigeon:coo"], &["is no wire", "udp:LOCAL,REMOTE"]);
}

/// A server that says `answer` to whoever connects, and then nothing.
fn impostor(answer: &'static [u8], arguments: &[&str], expected: &[&str]) {
    let (wire, _, _) = free();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(answer);
        // Until the other end has had enough.
        while stream.read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
    });
    let link = ["127.0.0.1", "--wire", &wire, "--port", &port, "--patience", "3"];
    refused(&[arguments, &link[..]].concat(), expected);
    thread.join().unwrap();
}

#[test]
fn a_peer_that_is_not_what_it_should_be_is_named() {
    impostor(b"", &["pingpong"], &["did not come", "address of its queue pair"]);
    impostor(&[b'x'; 52], &["pingpong"], &["no address of a pingpong"]);
    impostor(b"6.29\0\0\0\0\0\0\0\0\0\0\0\0", &["bw"], &["6.29", "use perftest 5.70 to 6.27"]);
    impostor(b"what is this?..\n", &["lat"], &["perftest"]);
    impostor(
        b"0000:000011:35f99b:00000000000000000000ffff0a000001\0",
        &["pingpong"],
        &["said to have 10.0.0.1", "is the other end of the wire up"],
    );
    impostor(
        b"0000:000011:35f99b:00000000000000000000000000000000\0",
        &["pingpong"],
        &["the peer has no GID", "-g 1"],
    );
    impostor(
        b"0000:000011:35f99b:00000000000000000000ffff0a000009\0",
        &["pingpong"],
        &["at 10.0.0.9, which is this end", "--address"],
    );
}
