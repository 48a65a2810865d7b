//! Random RoCE frames: each field has any value that it may have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vdk_descriptors::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, EthernetAddress, Extension, ExtensionHeaders,
    Headers, Ieth, ImmDt, Msn, Network, Opcode, PKey, Psn, QKey, Qpn, RemoteKey, Reth, Syndrome,
};
use vdk_firmware_stubs::random::SplitMix64;

/// What is chosen at random.
#[derive(Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % limit).unwrap_or(0)
    }

    /// Any bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[0])
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

/// Headers of any opcode over IPv4 or IPv6, and a payload that may follow them.
///
/// They name no well-known queue pair, since readers take the payload of those for messages.
#[must_use]
pub fn random_headers(random: &mut Random) -> (Headers, Vec<u8>) {
    let opcode = Opcode::ALL.get(random.below(Opcode::ALL.len())).copied().unwrap_or(Opcode::RC_SEND_ONLY);
    let station = |random: &mut Random| {
        let [_, rest @ ..] = random.bytes::<6>();
        let [b, c, d, e, f] = rest;
        EthernetAddress([0x02, b, c, d, e, f])
    };
    let ethernet = Ethernet::new(station(random), station(random));
    let address = |random: &mut Random, six: bool| {
        if six {
            let mut octets: [u8; 16] = random.bytes();
            octets[0] = 0xfd;
            IpAddr::V6(Ipv6Addr::from(octets))
        } else {
            let [b, c, d] = random.bytes();
            IpAddr::V4(Ipv4Addr::new(10, b, c, d))
        }
    };
    let six = random.flag();
    let (source, destination) = (address(random, six), address(random, six));
    let port = 0xc000 | u16::from_le_bytes(random.bytes()) & 0x3fff;
    // PANIC: both addresses are of one kind.
    let mut network = Network::new(source, destination, port).expect("two addresses of one kind");
    let [class, limit] = random.bytes();
    match &mut network {
        Network::Ipv4(header, _) => {
            header.traffic_class = class;
            header.time_to_live = limit;
            header.identification = u16::from_le_bytes(random.bytes());
            header.dont_fragment = random.flag();
        }
        Network::Ipv6(header, _) | Network::GlobalRoute(header) => {
            header.traffic_class = class;
            header.hop_limit = limit;
            header.flow_label = random.word() & 0xf_ffff;
        }
    }
    let number = |random: &mut Random| Qpn::from_low_bits(random.word() | 0x100);
    let bth = Bth {
        opcode,
        solicited_event: random.flag(),
        migrated: random.flag(),
        partition: PKey(u16::from_le_bytes(random.bytes())),
        forward_congestion: random.flag(),
        backward_congestion: random.flag(),
        destination: number(random),
        ack_request: random.flag(),
        psn: Psn::new(random.word()),
    };
    let immediate = ImmDt(random.word());
    let reth = Reth { address: random.next(), key: RemoteKey(random.word()), length: random.word() };
    let [syndrome] = random.bytes();
    let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(random.word()) };
    let deth = Deth { key: QKey(random.word()), source: number(random) };
    let atomic = AtomicEth {
        address: reth.address,
        key: reth.key,
        swap_or_add: random.next(),
        compare: random.next(),
    };
    let extension = Extension::of(
        opcode.extension(),
        &ExtensionHeaders {
            immediate,
            invalidate: Ieth(reth.key),
            remote: reth,
            acknowledge: aeth,
            original: AtomicAckEth(random.next()),
            atomic,
            datagram: deth,
        },
    );
    // Short ones often: there the implementations differ in what they do with pad bytes.
    let length = match (opcode.has_payload(), random.below(4)) {
        (false, _) => 0,
        (true, 0) => random.below(9),
        (true, 1) => random.below(4097),
        (true, _) => random.below(300),
    };
    let payload = (0..length).map(|_| random.next().to_le_bytes()[0]).collect();
    (Headers { ethernet, network, bth, extension }, payload)
}
