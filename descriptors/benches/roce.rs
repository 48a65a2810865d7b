//! What building and parsing a RoCE frame costs, invariant CRC included.
//!
//! Each figure is the minimum of several repetitions, in nanoseconds for one frame, beside a
//! baseline of the same run: a plain CRC-32 over as many bytes. It says what it measured and
//! asserts nothing: machines differ.

use std::hint::black_box;
use std::time::Instant;

use vdk_descriptors::roce::{
    Aeth, Bth, Ethernet, EthernetAddress, Extension, Frame, Headers, MAX_FRAME, Msn, Network, Opcode, Psn,
    Qpn, RemoteKey, Reth, Syndrome,
};

const REPETITIONS: usize = 15;
const ROUNDS: u32 = 50_000;

fn main() {
    let acknowledge = Extension::Acknowledge(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
    let write =
        |length| Extension::Remote(Reth { address: 0x7f00_0000_0000, key: RemoteKey(0x1234), length });
    for (name, opcode, extension, length) in [
        ("acknowledge", Opcode::RC_ACKNOWLEDGE, acknowledge, 0),
        ("write of 8 bytes", Opcode::RC_WRITE_ONLY, write(8), 8),
        ("write of 1 KiB", Opcode::RC_WRITE_ONLY, write(1024), 1024),
        ("write of 4 KiB", Opcode::RC_WRITE_ONLY, write(4096), 4096),
    ] {
        for six in [false, true] {
            let headers = headers(opcode, extension, six);
            let payload = vec![0xa5; length];
            let mut buffer = [0; MAX_FRAME];
            let built =
                Frame { headers, payload: &payload }.build(&mut buffer).expect("the buffer is large enough");
            let protocol = if six { "ipv6" } else { "ipv4" };
            report(&format!("baseline: crc-32 of {built} bytes"), || {
                crc32fast::hash(black_box(&buffer[..built]))
            });
            report(&format!("parse and verify, {name}, {protocol}"), || {
                let frame = Frame::parse(black_box(&buffer[..built])).expect("the frame is sound");
                frame.headers.bth.psn.value()
            });
            report(&format!("build, {name}, {protocol}"), || {
                let frame = Frame { headers: black_box(headers), payload: black_box(&payload) };
                let length = frame.build(black_box(&mut buffer)).expect("the buffer is large enough");
                u32::try_from(length).expect("a frame is short")
            });
        }
    }
}

fn headers(opcode: Opcode, extension: Extension, six: bool) -> Headers {
    let station = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let text = if six { "fd00::1" } else { "10.0.0.1" };
    let address = text.parse().expect("an address");
    Headers {
        ethernet: Ethernet::new(station, station),
        network: Network::new(address, address, 0xc000).expect("addresses of one kind"),
        bth: Bth::new(opcode, Qpn::GENERAL_SERVICES, Psn::new(7)),
        extension,
    }
}

fn report(name: &str, mut work: impl FnMut() -> u32) {
    let mut best = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            black_box(work());
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
    }
    println!("{name:<48} {best:>8.1} ns");
}
