//! `vdk roce` on a wire full of frames that are none of its business, and with a peer that lets
//! it wait: every wait ends.

mod ports;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vdk_driver::descriptors::roce::{EthernetAddress, neighbour};

/// What hangs is ended after this time.
const HANGS: Duration = Duration::from_secs(60);
/// How often foreign frames come.
const OFTEN: Duration = Duration::from_millis(3);
/// The port of the program, and of the one that it speaks to.
const OURS: (EthernetAddress, IpAddr) =
    (EthernetAddress([2, 0x76, 0x64, 0, 0, 9]), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)));
const THEIRS: (EthernetAddress, IpAddr) =
    (EthernetAddress([2, 0x76, 0x64, 0, 0, 1]), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
/// What `ibv_uc_pingpong` at 10.0.0.1 says first.
const ADDRESS: &[u8] = b"0000:000011:35f99b:00000000000000000000ffff0a000001\0";

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdk"));
    command.arg("roce").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What came of a program, which is ended when it hangs.
fn end(mut child: Child) -> (Option<i32>, String) {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begun.elapsed() > HANGS => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        let _ = child.kill();
    }
    let Output { stdout, stderr, .. } = child.wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.is_some(), "it hangs: {text}");
    (status.and_then(|status| status.code()), text)
}

fn fails(child: Child, expected: &[&str]) {
    let (code, text) = end(child);
    assert_eq!(code, Some(1), "{text}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// A thread that goes on until it is dropped.
struct Until(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Until {
    fn new(mut work: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        // ORDERING: Relaxed; the flag carries nothing but itself.
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                work()
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        // ORDERING: Relaxed; the flag carries nothing but itself.
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// Frames of every kind that is nobody's business here: a question for another address, one for
/// the own one, an answer, a protocol that nobody knows, and a datagram for another port.
fn foreign() -> Vec<Vec<u8>> {
    let nobody = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77));
    let mut frames = Vec::new();
    let mut add = |build: &dyn Fn(&mut [u8]) -> usize| {
        let mut buffer = vec![0; neighbour::MAX_LENGTH];
        let length = build(&mut buffer);
        buffer.truncate(length);
        frames.push(buffer);
    };
    for target in [nobody, OURS.1] {
        add(&|buffer| neighbour::question(buffer, THEIRS.0, THEIRS.1, target).unwrap());
    }
    add(&|buffer| neighbour::answer(buffer, THEIRS.0, THEIRS.1, OURS.0, OURS.1).unwrap());
    let mut unknown = [OURS.0.0, THEIRS.0.0].concat();
    unknown.extend([0x88, 0xcc]);
    unknown.resize(60, 7);
    frames.push(unknown);
    let mut datagram = [OURS.0.0, THEIRS.0.0].concat();
    datagram.extend([8, 0, 0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0x66, 0xb4, 10, 0, 0, 1, 10, 0, 0, 9]);
    datagram.extend([0x14, 0xe9, 0x14, 0xe9, 0, 26, 0, 0]);
    datagram.resize(60, 7);
    frames.push(datagram);
    frames
}

/// The wire of a program, at the other end of which somebody sends foreign frames for ever.
fn noisy() -> (String, Until) {
    let here = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ours = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let wire = format!("udp:{ours},{}", here.local_addr().unwrap());
    here.set_nonblocking(true).unwrap();
    let frames = foreign();
    let noise = Until::new(move || {
        // What the program sends is thrown away, and it may not be there yet.
        while here.recv(&mut [0; 100]).is_ok() {}
        for frame in &frames {
            let _ = here.send_to(frame, ours);
        }
        thread::sleep(OFTEN);
    });
    (wire, noise)
}

/// A free TCP port.
fn free() -> String {
    ports::free().to_string()
}

/// A server of which a thread does `work` with the first client; gives its port.
fn serve(work: impl FnOnce(TcpStream) + Send + 'static) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    (port, thread::spawn(move || work(listener.accept().unwrap().0)))
}

/// Reads until the other end closes the connection.
fn drain(mut stream: TcpStream) {
    stream.set_read_timeout(Some(HANGS)).unwrap();
    while stream.read(&mut [0; 256]).is_ok_and(|count| count > 0) {}
}

fn client(wire: &str, port: &str) -> Child {
    let link = ["127.0.0.1", "--wire", wire, "--port", port, "--patience", "3", "--mac", "02:76:64:00:00:09"];
    start(&[&["pingpong", "--service", "uc", "-n", "5"], &link[..]].concat())
}

#[test]
fn a_client_is_waited_for_no_longer_because_of_foreign_frames() {
    let (wire, _noise) = noisy();
    let port = free();
    let server = start(&["pingpong", "--wire", &wire, "--port", &port, "--patience", "1"]);
    fails(server, &["and no client came", "both ends servers", "--patience"]);
}

#[test]
fn an_address_is_waited_for_no_longer_because_of_foreign_frames() {
    let (wire, _noise) = noisy();
    let (port, silent) = serve(drain);
    fails(client(&wire, &port), &["(52 bytes", "did not come (0 of 52 bytes did)", "--patience"]);
    silent.join().unwrap();
}

#[test]
fn a_message_is_waited_for_no_longer_because_of_foreign_frames() {
    let (wire, _noise) = noisy();
    let (port, server) = serve(|mut stream| {
        stream.write_all(ADDRESS).unwrap();
        drain(stream);
    });
    fails(client(&wire, &port), &["for message 1 of 5: does the other end still run", "--patience"]);
    server.join().unwrap();
}

#[test]
fn an_address_that_comes_byte_by_byte_must_be_whole_in_time() {
    let (wire, _noise) = noisy();
    let (port, trickle) = serve(|mut stream| {
        // Two hundred milliseconds for a byte: the whole would take ten times the patience.
        for byte in ADDRESS {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
    fails(client(&wire, &port), &["did not come (", "of 52 bytes did)", "is it the same test"]);
    trickle.join().unwrap();
}

/// Two ends of a wire, with somebody between who passes on every frame and adds foreign ones.
fn relayed() -> (String, String, Until) {
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (near, far) = (socket(), socket());
    let address = |socket: &UdpSocket| socket.local_addr().unwrap();
    let [one, other] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], ports::free())));
    let wires = [format!("udp:{one},{}", address(&near)), format!("udp:{other},{}", address(&far))];
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let frames = foreign();
    let mut last = Instant::now();
    let relay = Until::new(move || {
        let mut buffer = [0; 9100];
        for (from, to, address) in [(&near, &far, other), (&far, &near, one)] {
            while let Ok(length) = from.recv(&mut buffer) {
                let _ = to.send_to(&buffer[..length], address);
            }
        }
        if last.elapsed() > OFTEN {
            last = Instant::now();
            for frame in &frames {
                let _ = near.send_to(frame, one);
                let _ = far.send_to(frame, other);
            }
        }
        thread::sleep(Duration::from_micros(100));
    });
    let [one, other] = wires;
    (one, other, relay)
}

#[test]
fn a_test_comes_to_its_end_among_foreign_frames() {
    let (left, right, _relay) = relayed();
    let port = free();
    let link = |wire, address| ["--wire", wire, "--address", address, "--port", &port, "--patience", "20"];
    for test in [&["pingpong", "--check", "-n", "20"][..], &["bw", "--size", "5000", "-n", "50"]] {
        let server = start(&[test, &link(&left, "10.0.0.3")].concat());
        let client = start(&[test, &["127.0.0.1"], &link(&right, "10.0.0.4")].concat());
        for child in [client, server] {
            let (code, text) = end(child);
            assert_eq!(code, Some(0), "{test:?}: {text}");
        }
    }
}
