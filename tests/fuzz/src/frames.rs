//! Frames that are nearly right.

use vdk_descriptors::roce::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, Extension, ExtensionHeaders, ExtensionKind, Headers,
    Ieth, ImmDt, Msn, Network, Opcode, PathMtu, Psn, QKey, Qpn, RemoteKey, Reth, Syndrome,
};
use vdk_firmware_stubs::roce::{Remote, Service};

use super::ward::Ward;
use super::{Aim, PEER, Q_KEY, Script, station};

/// PSNs that are worth a try.
#[derive(Clone, Copy)]
pub(crate) struct Near {
    /// What the responder expects.
    pub(crate) expected: Psn,
    /// What the requester sent last.
    pub(crate) sent: [Psn; 4],
}

/// An address with its key: of the open region, at its edges, or of another one.
pub(crate) fn remote(script: &mut Script<'_>, ward: &Ward) -> Remote {
    let region = if script.byte() < 200 { ward.open() } else { script.pick(&ward.regions()) };
    let offset = match script.below(8) {
        0 => script.word(),
        1 => u64::MAX - region.address - script.below(64),
        2 => super::ward::LENGTH - script.below(32),
        3 => 0_u64.wrapping_sub(script.below(32)),
        _ => script.below(256) * 8,
    };
    let key = match script.byte() {
        250.. => script.half(),
        245..250 => region.key ^ 1,
        _ => region.key,
    };
    Remote { address: region.address.wrapping_add(offset), key }
}

/// A transport header, its extension, and the length of the payload.
pub(crate) fn hostile(
    script: &mut Script<'_>,
    aim: Aim,
    service: Service,
    mtu: PathMtu,
    near: Near,
    ward: &Ward,
) -> (Bth, Extension, usize) {
    let any = script.pick(Opcode::ALL);
    let opcode = match (aim, service, script.byte()) {
        (_, _, 250..) => any,
        (Aim::Requester, Service::ReliableConnected, _) => script.pick(&[
            Opcode::RC_ACKNOWLEDGE,
            Opcode::RC_ACKNOWLEDGE,
            Opcode::RC_ATOMIC_ACKNOWLEDGE,
            Opcode::RC_READ_RESPONSE_FIRST,
            Opcode::RC_READ_RESPONSE_MIDDLE,
            Opcode::RC_READ_RESPONSE_LAST,
            Opcode::RC_READ_RESPONSE_ONLY,
        ]),
        (_, service, _) => {
            let transport = match service {
                Service::ReliableConnected => 0,
                Service::UnreliableConnected => 0x20,
                Service::Datagram => 0x60,
            };
            Opcode::new(any.value() & 0x1f | transport).unwrap_or(any)
        }
    };
    let base = if opcode.is_request() { near.expected } else { script.pick(&near.sent) };
    let psn = match script.byte() {
        0..200 => base,
        200..240 => base.after(u32::from(script.byte()).wrapping_sub(8) & 0xff_ffff),
        240..250 => base.after(0x80_0000 - u32::from(script.byte() & 3)),
        _ => Psn::new(script.half()),
    };
    let mut bth = Bth::new(opcode, Qpn::default(), psn);
    let flags = script.byte();
    bth.ack_request = flags & 1 != 0;
    bth.solicited_event = flags & 2 != 0;
    let Remote { address, key } = remote(script, ward);
    let mtu = usize::try_from(mtu.bytes()).unwrap_or(256);
    let whole = match script.below(8) {
        0 => script.half(),
        1 => 1 << 31,
        2 => u32::try_from(mtu).unwrap_or(256) * u32::from(script.byte()),
        3 => 0,
        _ => u32::from(script.byte()) * 16,
    };
    let payload = match script.below(8) {
        _ if !opcode.has_payload() => usize::from(flags >= 250),
        0 => 0,
        1 => usize::from(script.byte()) * 16,
        2 => mtu + 1,
        3 => usize::try_from(whole).unwrap_or(mtu).min(mtu),
        4 => usize::try_from(whole).unwrap_or(0) % mtu,
        _ => mtu,
    };
    let reth = Reth { address, key: RemoteKey(key), length: whole };
    let syndrome = match script.byte() {
        0..160 => script.pick(&[0x1f, 0x1f, 0x1f, 0x00]),
        160..200 => 0x60,
        200..230 => script.pick(&[0x20, 0x21, 0x2c, 0x3f]),
        230..240 => script.pick(&[0x61, 0x62, 0x63, 0x64]),
        byte => byte,
    };
    let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(u32::from(script.byte())) };
    let immediate = ImmDt(script.half());
    let deth = Deth {
        key: if script.byte() < 200 { Q_KEY } else { QKey(script.half()) },
        source: Qpn::new(PEER).expect("24 bits"),
    };
    let kind = opcode.extension();
    // What the opcode does not have takes nothing from the script.
    let original = if kind == ExtensionKind::AtomicAcknowledge { script.word() } else { 0 };
    let (swap_or_add, compare) = match kind {
        ExtensionKind::Atomic => (script.word(), u64::from(script.byte())),
        _ => (0, 0),
    };
    let extension = Extension::of(
        kind,
        &ExtensionHeaders {
            immediate,
            invalidate: Ieth(RemoteKey(key)),
            remote: reth,
            acknowledge: aeth,
            original: AtomicAckEth(original),
            atomic: AtomicEth { address, key: RemoteKey(key), swap_or_add, compare },
            datagram: deth,
        },
    );
    (bth, extension, payload)
}

/// The headers in front: those of the peer, seldom another's, sometimes with congestion.
pub(crate) fn headers(script: &mut Script<'_>, bth: Bth, extension: Extension) -> Headers {
    let way = script.byte();
    let source = station(if way >= 250 { 3 } else { 2 });
    let ethernet = Ethernet::new(source.ethernet, station(1).ethernet);
    let mut network = Network::new(source.address, station(1).address, 0xc000).expect("both are IPv4");
    if let (Network::Ipv4(header, _), 240..250) = (&mut network, way) {
        header.traffic_class = 3;
    }
    Headers { ethernet, network, bth, extension }
}
