//! The transport core, both ends in one thread, memory to memory.
//!
//! Each figure stands beside a plain copy of the same bytes that was measured in turn with
//! it, and is the best of many rounds. `cargo bench -p vdk-firmware-stubs --bench roce`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use vdk_descriptors::roce::{AckTimeout, EthernetAddress, PathMtu, Psn, Qpn, RnrTimer};
use vdk_firmware_stubs::roce::time::Time;
use vdk_firmware_stubs::roce::{
    Attributes, CompletionQueueId, Endpoint, Operation, Path, Payload, QueuePairOptions, QueueSizes,
    Registration, Remote, Rights, ScatterGatherEntry, SendRequest, State, Station,
};

struct End {
    endpoint: Endpoint,
    number: Qpn,
    completions: CompletionQueueId,
    region: Registration,
    station: Station,
}

const REGION: usize = 1 << 20;

impl End {
    fn new(host: u8) -> Self {
        let station = Station {
            ethernet: EthernetAddress([2, 0, 0, 0, 0, host]),
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
        };
        let mut endpoint = Endpoint::new(vec![station], 1);
        let domain = endpoint.protection_domain();
        let completions = endpoint.completion_queue(256);
        let region = endpoint.memory_mut().register(domain, Rights::ALL, vec![host; REGION]).unwrap();
        let sizes = QueueSizes { sends: 128, receives: 1, entries: 1, inline: 0 };
        let options = QueuePairOptions { domain, sizes, ..QueuePairOptions::default() };
        let number = endpoint.create(&options, completions, completions).unwrap();
        Self { endpoint, number, completions, region, station }
    }

    fn connect(&mut self, peer: Station, number: Qpn) {
        let init = Attributes {
            partition_index: Some(0),
            port: Some(1),
            access: Some(Rights::ALL),
            ..Attributes::NONE
        };
        let ready = Attributes {
            path: Path::new(self.station, peer, 0xc000),
            path_mtu: Some(PathMtu::Mtu4096),
            destination: Some(number),
            receive_psn: Some(Psn::new(0)),
            responder_depth: Some(16),
            rnr_timer: Some(RnrTimer::default()),
            ..Attributes::NONE
        };
        let send = Attributes {
            send_psn: Some(Psn::new(0)),
            timeout: Some(AckTimeout::default()),
            retries: Some(7),
            rnr_retries: Some(7),
            initiator_depth: Some(16),
            ..Attributes::NONE
        };
        let steps = [(State::Init, init), (State::ReadyToReceive, ready), (State::ReadyToSend, send)];
        for (state, attributes) in steps {
            self.endpoint.modify(self.number, state, &attributes).unwrap();
        }
    }
}

struct Pair {
    client: End,
    server: End,
    frame: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let (mut client, mut server) = (End::new(1), End::new(2));
        let (one, two) = (client.number, server.number);
        client.connect(server.station, two);
        server.connect(client.station, one);
        Self { client, server, frame: vec![0; 8192] }
    }

    /// Writes `length` bytes and waits for the completion.
    fn write(&mut self, length: u32) {
        let entry =
            ScatterGatherEntry { address: self.client.region.address, length, key: self.client.region.key };
        let remote = Remote { address: self.server.region.address, key: self.server.region.key };
        let entries = [entry];
        let request = SendRequest::new(1, Operation::Write(remote), Payload::Entries(&entries));
        self.client.endpoint.post_send(self.client.number, &request).unwrap();
        loop {
            while let Some(length) = self.client.endpoint.transmit(Time::ZERO, &mut self.frame) {
                self.server.endpoint.receive(Time::ZERO, &self.frame[..length]);
            }
            while let Some(length) = self.server.endpoint.transmit(Time::ZERO, &mut self.frame) {
                self.client.endpoint.receive(Time::ZERO, &self.frame[..length]);
            }
            if let Some(done) = self.client.endpoint.poll(self.client.completions) {
                assert_eq!(done.status(), None);
                return;
            }
        }
    }
}

/// The shortest of the rounds of each of two things, done in turn.
fn in_turn(rounds: u32, mut one: impl FnMut(), mut two: impl FnMut()) -> [Duration; 2] {
    let mut best = [Duration::MAX; 2];
    for _ in 0..rounds {
        let begun = Instant::now();
        one();
        best[0] = best[0].min(begun.elapsed());
        let begun = Instant::now();
        two();
        best[1] = best[1].min(begun.elapsed());
    }
    best
}

fn main() {
    let mut pair = Pair::new();
    let (from, mut to) = (vec![1_u8; REGION], vec![0_u8; REGION]);
    let whole = u32::try_from(REGION).unwrap();
    let [ours, copy] =
        in_turn(300, || pair.write(whole), || black_box(&mut to).copy_from_slice(black_box(&from)));
    println!(
        "WRITE of 1 MiB at path MTU 4096, both ends: {:.1} us; plain copy: {:.1} us; ratio {:.3}",
        ours.as_secs_f64() * 1e6,
        copy.as_secs_f64() * 1e6,
        copy.as_secs_f64() / ours.as_secs_f64()
    );
    const MANY: u32 = 10_000;
    let mut small = Pair::new();
    let [ours, _] = in_turn(
        30,
        || {
            for _ in 0..MANY {
                small.write(8);
            }
        },
        || {},
    );
    println!(
        "WRITE of 8 bytes with its acknowledgement, both ends: {:.1} ns",
        ours.as_secs_f64() * 1e9 / f64::from(MANY)
    );
    assert!(to == from && pair.server.endpoint.memory().bytes(pair.server.region.key) == Some(&from[..]));
}
