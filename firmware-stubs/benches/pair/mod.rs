//! Two endpoints of the transport core in one thread, from memory to memory.

use std::net::{IpAddr, Ipv4Addr};

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

/// The length of the region of each end.
pub(crate) const REGION: usize = 1 << 20;

impl End {
    fn new(host: u8) -> Self {
        let station = Station {
            ethernet: EthernetAddress([2, 0, 0, 0, 0, host]),
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
        };
        let mut endpoint = Endpoint::new(vec![station], 1);
        let domain = endpoint.protection_domain();
        let completions = endpoint.completion_queue(256).unwrap();
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

/// A client that writes into the memory of a server.
pub(crate) struct Pair {
    client: End,
    server: End,
    frame: Vec<u8>,
}

impl Pair {
    /// Both connected at path MTU 4096.
    pub(crate) fn new() -> Self {
        let (mut client, mut server) = (End::new(1), End::new(2));
        let (one, two) = (client.number, server.number);
        client.connect(server.station, two);
        server.connect(client.station, one);
        Self { client, server, frame: vec![0; 8192] }
    }

    /// Writes `length` bytes and waits for the completion.
    pub(crate) fn write(&mut self, length: u32) {
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

    /// The memory of the server.
    pub(crate) fn written(&self) -> &[u8] {
        self.server.endpoint.memory().bytes(self.server.region.key).unwrap()
    }
}
