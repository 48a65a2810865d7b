//! The whole oracle against a guest.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vdk_descriptors::roce::{EthernetAddress, PathMtu, Psn};
use vdk_firmware_stubs::roce::Station;
use vdk_firmware_stubs::roce::wire::faults::{FaultCounts, FaultLog, WireFault};
use vdk_firmware_stubs::roce::wire::{FaultyWire, StreamWire, Tap, Wire, WireFaults};

use super::adapter::Adapter;
use super::datagrams::DATAGRAM_ROWS;
use super::hostile::{HOSTILE, attack};
use super::ours::{Ours, Struck};
use super::refusals;
use super::rows::{Meeting, ROWS};
use super::rxe::Rxe;
use super::traffic::{Counted, Run, carry_messages};
use super::trial::{End, carry_out};

/// The port of the guest.
pub const GUEST: Station = Station {
    ethernet: EthernetAddress([0x52, 0x54, 0, 0, 0, 1]),
    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
};

/// Our port, at the other end of its wire.
pub const HOST: Station = Station {
    ethernet: EthernetAddress([0x52, 0x54, 0, 0, 0, 2]),
    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
};

/// The file in the folder of the run that has every frame of the wire.
pub const CAPTURE: &str = "wire.pcap";

/// What goes wrong on the way to rxe, and on the way back. With no plan at all frames are not
/// counted; the rate of the first one holds nothing back.
const FAULTS: &[&str] = &[
    "rate=1000000000",
    "drop=1%",
    "drop=10%",
    "duplicate=1%",
    "duplicate=10%",
    "reorder=1%",
    "reorder=10%",
    "corrupt=1%",
    "corrupt=10%",
];

/// First PSNs whose messages pass 2^24 and 2^23.
const WRAPS: [(u32, u32); 2] = [(0xff_fff0, 0x7f_fff0), (0x7f_fff8, 0xff_ffff)];

/// The code of the time for an answer: 0.27 s, since a guest may be slow.
const TIMEOUT: u8 = 16;

/// How long frames may be under way when all messages have arrived.
const LAST_FRAMES: Duration = Duration::from_secs(3);

/// Runs everything against the guest whose wire is the socket `wire.sock` in `folder`, and
/// whose verbs program is behind `verbs.sock`. Tells each result: whether it passed, and what.
/// Gives the frames in [`CAPTURE`] that were damaged on purpose.
///
/// # Errors
///
/// The guest does not answer, or the deadline is over.
pub fn judge(folder: &Path, deadline: Instant, tell: &mut dyn FnMut(bool, &str)) -> Result<Vec<Struck>> {
    let in_time = || ensure_in_time(deadline);
    let mut rxe = Rxe::connect(&folder.join("verbs.sock"), GUEST)?;
    let wire = StreamWire::connect_unix(&folder.join("wire.sock"))?;
    let capture = BufWriter::new(File::create(folder.join(CAPTURE))?);
    let wire: Box<dyn Wire> = Box::new(Tap::new(wire, capture)?);
    let mut ours = start(wire, WireFaults::NONE, 0)?;
    for row in ROWS.iter().chain(DATAGRAM_ROWS) {
        for meeting in [Meeting::OursToRxe, Meeting::RxeToOurs] {
            in_time()?;
            let expected = row.expected(meeting);
            let asks = meeting == Meeting::OursToRxe;
            ours.passed();
            let (requester, responder): (&mut dyn Adapter, &mut dyn Adapter) =
                if asks { (&mut ours, &mut rxe) } else { (&mut rxe, &mut ours) };
            let name = format!("{:02} {}, {}", row.number, row.name, called(meeting));
            match carry_out(row, requester, responder, expected) {
                Ok(mut seen) => {
                    seen.wire = refusals(&ours.passed(), !asks);
                    if seen.is(expected) {
                        tell(true, &name);
                    } else {
                        tell(false, &format!("{name}: {seen}; expected was {expected:?}"));
                    }
                }
                Err(error) => tell(false, &format!("{name}: {error:#}")),
            }
        }
    }
    // Those that belong to a queue pair; the others tell of the port.
    let events: Vec<u32> = rxe.events()?.into_iter().filter(|event| *event < 8).collect();
    tell(events.is_empty(), &format!("rxe raises no events for its queue pairs: {events:?}"));
    for row in HOSTILE {
        in_time()?;
        let expected = row.rxe.as_ref().unwrap_or(&row.standard);
        match attack(row, &mut ours, &mut rxe, expected) {
            Ok(seen) if seen.is(expected) => tell(true, &format!("rxe: {}", row.name)),
            Ok(seen) => tell(false, &format!("rxe: {}: {seen}; expected was {expected:?}", row.name)),
            Err(error) => tell(false, &format!("rxe: {}: {error:#}", row.name)),
        }
    }
    let mut struck = ours.struck().to_vec();
    let mut wire = ours.stop()?.into_wire();
    for (seed, text) in (1..).zip(FAULTS) {
        in_time()?;
        let plan: WireFaults = text.parse()?;
        let (answer, same) = run(wire, plan, seed, &mut rxe, &mut struck)?;
        wire = same;
        match answer {
            Ok(()) => tell(true, &format!("with {text} all messages arrive both ways, and rxe counts them")),
            Err(error) => tell(false, &format!("messages both ways with {text}: {error:#}")),
        }
    }
    rxe.end()?;
    // The file is whole when the tap is gone.
    drop(wire);
    Ok(struck)
}

fn ensure_in_time(deadline: Instant) -> Result<()> {
    ensure!(Instant::now() < deadline, "the time of the guest is over");
    Ok(())
}

fn start(wire: Box<dyn Wire>, faults: WireFaults, seed: u64) -> Result<Ours> {
    Ours::start(FaultyWire::new(wire, faults, faults, seed), HOST)
}

const fn called(meeting: Meeting) -> &'static str {
    match meeting {
        Meeting::OursToOurs => "ours to ours",
        Meeting::OursToRxe => "ours to rxe",
        Meeting::RxeToOurs => "rxe to ours",
    }
}

/// Messages both ways over a wire with these faults, and what rxe counted. Gives the wire back,
/// and adds the frames that it damaged on the way to rxe.
fn run(
    wire: Box<dyn Wire>,
    faults: WireFaults,
    seed: u64,
    rxe: &mut Rxe,
    struck: &mut Vec<Struck>,
) -> Result<(Result<()>, Box<dyn Wire>)> {
    let before = rxe.counters()?;
    let wire = FaultyWire::new(wire, faults, faults, seed);
    let (sent, received) = (wire.sent(), wire.received());
    let mut ours = Ours::start(wire, HOST)?;
    // An acknowledgement that comes late, between two responses of a READ, makes rxe 6.12 complete
    // the READ at once, with a warning of the kernel.
    let reads = faults.reorder == WireFaults::NONE.reorder;
    let (mut ended_here, mut ended_there): (Vec<End>, Vec<End>) = Default::default();
    let mut carry = |psns: (u32, u32), mtu| -> Result<()> {
        let psns = (Psn::new(psns.0), Psn::new(psns.1));
        let ask = Run { psns, mtu, reads: true, timeout: TIMEOUT, seed };
        let (here, there) = carry_messages(&mut ours, rxe, &ask).context("ours to rxe")?;
        ended_here.push(here);
        ended_there.push(there);
        let answer = Run { reads, ..ask };
        let (there, here) = carry_messages(rxe, &mut ours, &answer).context("rxe to ours")?;
        ended_here.push(here);
        ended_there.push(there);
        Ok(())
    };
    let carried: Result<()> = WRAPS.into_iter().try_for_each(|psns| {
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
            carry(psns, mtu).with_context(|| format!("first PSNs {psns:#x?}, {mtu:?}"))?;
        }
        Ok(())
    });
    let answer = carried.and_then(|()| {
        let end = Instant::now() + LAST_FRAMES;
        loop {
            let counted = Counted::between(&before, &rxe.counters()?);
            let (to_rxe, from_rxe) = (counts(&sent), counts(&received));
            let naks = ours.sequence_naks();
            match counted.fit(&to_rxe, &from_rxe, naks) {
                Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(50)),
                other => {
                    return other
                        .with_context(|| format!("{counted:?}, to rxe {to_rxe:?}, from rxe {from_rxe:?}"));
                }
            }
        }
    });
    for end in ended_there {
        end.end(rxe)?;
    }
    for end in ended_here {
        end.end(&mut ours)?;
    }
    let wire = ours.stop()?.into_wire();
    let log = sent.lock().unwrap_or_else(PoisonError::into_inner);
    let damaged = log.entries().iter().filter(|entry| entry.fault == WireFault::Corrupt);
    struck.extend(damaged.map(Struck::from));
    Ok((answer, wire))
}

fn counts(log: &Mutex<FaultLog>) -> FaultCounts {
    log.lock().unwrap_or_else(PoisonError::into_inner).counts
}
