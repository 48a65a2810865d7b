//! `vdk roce`: two of them against each other, and what a person gets wrong.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn vdk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdk"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Two UDP ports and a TCP port that nobody has.
fn free() -> (String, String, String) {
    let udp = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (one, two) = (udp(), udp());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let wire = |from: &UdpSocket, to: &UdpSocket| {
        format!("udp:{},{}", from.local_addr().unwrap(), to.local_addr().unwrap())
    };
    (wire(&one, &two), wire(&two, &one), tcp.local_addr().unwrap().port().to_string())
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

#[test]
fn ipv6_and_stream_wires_carry_the_same() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let socket = folder.join(format!("roce-{}.sock", std::process::id()));
    let (listen, connect) =
        (format!("unix-listen:{}", socket.display()), format!("unix:{}", socket.display()));
    let (_, _, port) = free();
    let end = |wire: &str, address: &str, host: &[&str], gid: &str| {
        let link = ["--wire", wire, "--address", address, "--port", &port, "--patience", "20"];
        let rest = ["--gid-index", gid, "--check", "-n", "20", "--json"];
        vdk(&[&["roce", "pingpong"], host, &link[..], &rest[..]].concat()).spawn().unwrap()
    };
    for (gid, one, two) in [("1", "fd00::1", "fd00::2"), ("0", "fd00::1", "fd00::2")] {
        let server = end(&listen, one, &[], gid);
        std::thread::sleep(Duration::from_millis(500));
        let client = end(&connect, two, &["127.0.0.1"], gid);
        for child in [client, server] {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
        }
        let _ = std::fs::remove_file(&socket);
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

/// Runs alone and must fail with all of `expected` in its message.
fn refused(arguments: &[&str], expected: &[&str]) {
    let output = vdk(&[&["roce"], arguments].concat()).output().unwrap();
    let text = text(&output);
    assert!(!output.status.success(), "{arguments:?}: {text}");
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
    refuse(&["pingpong"], &["no client came", &port, "both ends servers"]);
    refuse(&["pingpong", "127.0.0.1"], &["no server at 127.0.0.1", "start the server first"]);
    refuse(&["bw", "--service", "ud"], &["a datagram can only be sent", "--operation send"]);
    refuse(&["bw", "--service", "uc", "--operation", "read"], &["no READ", "--service rc"]);
    refuse(&["pingpong", "--service", "ud", "--size", "2000"], &["at most the path MTU"]);
    refuse(&["lat", "--mtu", "1500"], &["a path MTU is 256"]);
    refuse(&["bw", "--operation", "sned"], &["send"]);
    let taken = TcpListener::bind(("0.0.0.0", port.parse().unwrap())).unwrap();
    refuse(&["pingpong"], &["is it taken?", "--port"]);
    drop(taken);
    let socket = wire.strip_prefix("udp:").unwrap().split(',').next().unwrap().to_owned();
    let taken = UdpSocket::bind(&socket).unwrap();
    refuse(&["pingpong"], &["taken by another program"]);
    drop(taken);
    refused(&["pingpong", "--wire", "pigeon:coo"], &["is no wire", "udp:LOCAL,REMOTE"]);
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
        let _ = stream.read(&mut [0; 64]);
        std::thread::sleep(Duration::from_secs(2));
    });
    let link = ["127.0.0.1", "--wire", &wire, "--port", &port, "--patience", "1"];
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
}
