//! The wires over sockets of the system.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::super::time::Time;
use super::*;

/// Receives one frame within ten seconds.
fn receive(wire: &mut dyn Wire, buffer: &mut [u8]) -> usize {
    let start = Instant::now();
    loop {
        if let Some(length) = wire.receive(Time::ZERO, buffer).unwrap() {
            return length;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no frame came");
        wire.wait(None, Some(Duration::from_millis(100))).unwrap();
    }
}

fn frames_pass(one: &mut dyn Wire, other: &mut dyn Wire) {
    let mut buffer = vec![0; MAX_FRAME];
    for length in [14, 60, 1514, 4200, MAX_FRAME] {
        let frame: Vec<u8> = (0..length).map(|index| index.to_le_bytes()[0]).collect();
        one.send(Time::ZERO, &frame).unwrap();
        assert_eq!(receive(other, &mut buffer), length);
        assert_eq!(buffer[..length], frame);
        other.send(Time::ZERO, &frame[..14]).unwrap();
        assert_eq!(receive(one, &mut buffer), 14);
    }
    assert!(matches!(one.send(Time::ZERO, &vec![0; MAX_FRAME + 1]), Err(WireError::FrameTooLong { .. })));
}

/// A free port of an address of the loopback device that nobody else uses, so that it stays free.
fn free_port() -> std::net::SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    // ORDERING: Relaxed; only the number itself is shared.
    let address = [127, high | 0x80, low, NEXT.fetch_add(1, Ordering::Relaxed)];
    UdpSocket::bind((std::net::Ipv4Addr::from(address), 0)).unwrap().local_addr().unwrap()
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("vdk-wire-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_frame_is_a_udp_datagram_and_strangers_are_not_heard() {
    let (left, right) = (free_port(), free_port());
    let mut one = DatagramWire::udp(left, right).unwrap();
    // Nobody there yet: lost, not an error.
    for _ in 0..3 {
        one.send(Time::ZERO, &[1; 60]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(one.receive(Time::ZERO, &mut [0; 100]).unwrap(), None);
    let mut other = DatagramWire::udp(right, left).unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[9; 60], left).unwrap();
    frames_pass(&mut one, &mut other);
}

#[test]
fn a_frame_is_a_unix_datagram_and_a_socket_left_behind_is_replaced() {
    let (left, right) = (folder().join("dgram-left"), folder().join("dgram-right"));
    drop(std::os::unix::net::UnixDatagram::bind(&left).unwrap());
    let mut one = DatagramWire::unix(&left, &right).unwrap();
    one.send(Time::ZERO, &[1; 60]).unwrap();
    assert_eq!(one.lost(), 1);
    let mut other = DatagramWire::unix(&right, &left).unwrap();
    assert!(matches!(DatagramWire::unix(&left, &right), Err(WireError::Socket(SocketError::InUse { .. }))));
    frames_pass(&mut one, &mut other);
    drop((one, other));
    assert!(!left.exists() && !right.exists());
}

#[test]
fn a_unix_socket_that_is_full_holds_the_next_frame_back() {
    let (left, right) = (folder().join("full-left"), folder().join("full-right"));
    let mut one = DatagramWire::unix(&left, &right).unwrap();
    let mut other = DatagramWire::unix(&right, &left).unwrap();
    let mut buffer = vec![0; MAX_FRAME];
    let (mut sent, mut received) = (0, 0);
    while received < 200 {
        while sent < 200 && one.is_ready() {
            one.send(Time::ZERO, &[sent; 60]).unwrap();
            sent += 1;
        }
        assert_eq!(receive(&mut other, &mut buffer), 60);
        assert_eq!(buffer[0], received);
        received += 1;
        assert_eq!(one.receive(Time::ZERO, &mut buffer).unwrap(), None);
    }
    assert_eq!(one.lost(), 0);
    // Who is not there to read for long loses it, as on an Ethernet.
    while one.is_ready() {
        one.send(Time::ZERO, &[1; 60]).unwrap();
    }
    let later = Time::ZERO.after(Duration::from_millis(99));
    assert_eq!((one.receive(later, &mut buffer).unwrap(), one.is_ready(), one.lost()), (None, false, 0));
    one.send(later, &[2; 60]).unwrap();
    assert_eq!(one.lost(), 1, "one that did not ask");
    let too_late = Time::ZERO.after(Duration::from_millis(100));
    assert_eq!((one.receive(too_late, &mut buffer).unwrap(), one.is_ready(), one.lost()), (None, true, 2));
}

#[test]
fn frames_in_a_stream_stand_behind_their_lengths() {
    let local = free_port();
    let mut one = StreamWire::listen_tcp(local).unwrap();
    one.send(Time::ZERO, &[1; 60]).unwrap();
    assert_eq!((one.lost(), one.is_connected()), (1, false));
    let mut peer = TcpStream::connect(local).unwrap();
    peer.write_all(&[0, 0, 0, 3, 7, 8]).unwrap();
    let mut buffer = vec![0; MAX_FRAME];
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(one.receive(Time::ZERO, &mut buffer).unwrap(), None);
    peer.write_all(&[9, 0, 0, 0, 1, 5, 0, 0]).unwrap();
    assert_eq!(receive(&mut one, &mut buffer), 3);
    assert_eq!(buffer[..3], [7, 8, 9]);
    // The next frame was read with this one: it is there, whatever the socket has.
    one.wait(None, None).unwrap();
    assert_eq!(receive(&mut one, &mut buffer), 1);
    one.send(Time::ZERO, &[0xab, 0xcd]).unwrap();
    let mut bytes = [0; 6];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 0, 2, 0xab, 0xcd]);
    // A length that no frame has: there is no way to go on.
    peer.write_all(&[0xff, 0xff, 1, 2, 3, 4]).unwrap();
    let error = loop {
        match one.receive(Time::ZERO, &mut buffer) {
            Ok(None) => one.wait(None, Some(Duration::from_millis(100))).unwrap(),
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, WireError::Format { length: 0xffff, .. }), "{error}");
    assert!(matches!(one.receive(Time::ZERO, &mut buffer), Err(WireError::Closed { .. })));
}

#[test]
fn streams_carry_frames_both_ways_and_end_when_the_peer_does() {
    let path = folder().join("stream");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut listener = StreamWire::listen_unix(&path).unwrap();
    let mut caller = StreamWire::connect_unix(&path).unwrap();
    frames_pass(&mut caller, &mut listener);
    // What the peer does not take is lost, and whole frames only.
    for _ in 0..1000 {
        caller.send(Time::ZERO, &[3; 4096]).unwrap();
    }
    assert!(caller.lost() > 0);
    let mut buffer = vec![0; MAX_FRAME];
    let mut arrived = 0;
    while arrived + caller.lost() < 1000 {
        assert_eq!(receive(&mut listener, &mut buffer), 4096);
        assert_eq!(buffer[..4096], [3; 4096]);
        arrived += 1;
        assert_eq!(caller.receive(Time::ZERO, &mut [0; 100]).unwrap(), None);
    }
    // Who asks first loses nothing.
    let lost = caller.lost();
    let mut sent = 0;
    while caller.is_ready() {
        caller.send(Time::ZERO, &[4; 4096]).unwrap();
        sent += 1;
    }
    assert!(sent > 60, "{sent}");
    for _ in 0..sent {
        assert_eq!(receive(&mut listener, &mut buffer), 4096);
        assert_eq!(caller.receive(Time::ZERO, &mut [0; 100]).unwrap(), None);
    }
    assert!(caller.is_ready());
    assert_eq!(caller.lost(), lost);
    drop(caller);
    assert!(matches!(listener.receive(Time::ZERO, &mut buffer), Err(WireError::Closed { .. })));
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_wire_does_not_replace_a_file_that_is_no_socket() {
    let path = folder().join("precious");
    std::fs::write(&path, "precious").unwrap();
    let (stream, datagram) = (StreamWire::listen_unix(&path), DatagramWire::unix(&path, &path));
    for error in [stream.unwrap_err(), datagram.unwrap_err()] {
        assert!(
            error
                .to_string()
                .ends_with("is a regular file and not a socket, so it is left alone: choose another path"),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
}
