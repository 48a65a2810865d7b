//! The whole oracle against a guest.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use vdk_descriptors::roce::EthernetAddress;
use vdk_firmware_stubs::roce::Station;
use vdk_firmware_stubs::roce::wire::{FaultyWire, StreamWire, Tap, Wire, WireFaults};

use super::adapter::Adapter;
use super::datagrams::DATAGRAM_ROWS;
use super::faulty::{FAULTS, Faulty};
use super::hostile::{HOSTILE, attack};
use super::old;
use super::ours::{Ours, Struck};
use super::refusals;
use super::rows::{Meeting, ROWS, Row};
use super::rxe::Rxe;
use super::trial::carry_out;
use super::unreliable::Tally;

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

/// How much of the oracle is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it, with rxe of Linux 6.12.
    All,
    /// The rows over IPv4, with rxe of Linux 6.1.
    RowsOfOldRxe,
}

/// The same ports over IPv6.
pub const GUEST_SIX: Station = Station { address: six(1), ..GUEST };
/// Our port over IPv6.
pub const HOST_SIX: Station = Station { address: six(2), ..HOST };

/// `fd00::1`, `fd00::2`.
const fn six(host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host))
}

/// Runs everything against the guest whose wire is the socket `wire.sock` in `folder`, and
/// whose verbs program is behind `verbs.sock`. Tells each result: whether it passed, and what.
/// Gives the frames in [`CAPTURE`] that were damaged on purpose.
///
/// # Errors
///
/// The guest does not answer, or the deadline is over.
pub fn judge(
    folder: &Path,
    extent: Extent,
    deadline: Instant,
    tell: &mut dyn FnMut(bool, &str),
) -> Result<Vec<Struck>> {
    let mut rxe = Rxe::connect(&folder.join("verbs.sock"), GUEST)?;
    let wire = StreamWire::connect_unix(&folder.join("wire.sock"))?;
    let capture = BufWriter::new(File::create(folder.join(CAPTURE))?);
    let wire: Box<dyn Wire> = Box::new(Tap::new(wire, capture)?);
    let mut judge = Judge { rxe: &mut rxe, extent, deadline, tell };
    let mut ours = start(wire, HOST)?;
    judge.rows(&mut ours, [Meeting::OursToRxe, Meeting::RxeToOurs].into_iter().flat_map(each_row), "")?;
    if extent == Extent::RowsOfOldRxe {
        drop(ours.stop()?);
        rxe.end()?;
        return Ok(Vec::new());
    }
    judge.hostile(&mut ours)?;
    let mut struck = ours.struck().to_vec();
    // Over IPv6 every row once: the two take turns as requester.
    judge.rxe.move_to(GUEST_SIX)?;
    let mut ours = start(ours.stop()?.into_wire(), HOST_SIX)?;
    let turns = each_row(Meeting::OursToRxe).zip(each_row(Meeting::RxeToOurs)).enumerate();
    let turns = turns.map(|(place, (asked, answered))| if place % 2 == 0 { asked } else { answered });
    judge.rows(&mut ours, turns, " over IPv6")?;
    let wire = judge.faults(ours.stop()?.into_wire(), &mut struck)?;
    rxe.end()?;
    // The file is whole when the tap is gone.
    drop(wire);
    Ok(struck)
}

/// Every row of the oracle, in this meeting.
fn each_row(meeting: Meeting) -> impl Iterator<Item = (&'static Row, Meeting)> {
    ROWS.iter().chain(DATAGRAM_ROWS).map(move |row| (row, meeting))
}

/// Rxe, and whom results are told.
struct Judge<'a> {
    rxe: &'a mut Rxe,
    extent: Extent,
    deadline: Instant,
    tell: &'a mut dyn FnMut(bool, &str),
}

impl Judge<'_> {
    /// Tells that `name` passed, or why it did not.
    fn conclude(&mut self, name: &str, answer: Result<()>) {
        match answer {
            Ok(()) => (self.tell)(true, name),
            Err(error) => (self.tell)(false, &format!("{name}: {error:#}")),
        }
    }

    fn rows(
        &mut self,
        ours: &mut Ours,
        rows: impl Iterator<Item = (&'static Row, Meeting)>,
        how: &str,
    ) -> Result<()> {
        for (row, meeting) in rows {
            ensure_in_time(self.deadline)?;
            let name = format!("{:02} {}, {}{how}", row.number, row.name, called(meeting));
            let answer = self.row(ours, row, meeting);
            self.conclude(&name, answer);
        }
        // Those that belong to a queue pair; the others tell of the port.
        let events: Vec<u32> = self.rxe.events()?.into_iter().filter(|event| *event < 8).collect();
        (self.tell)(events.is_empty(), &format!("rxe raises no events for its queue pairs{how}: {events:?}"));
        Ok(())
    }

    fn row(&mut self, ours: &mut Ours, row: &Row, meeting: Meeting) -> Result<()> {
        let of_old = (self.extent == Extent::RowsOfOldRxe).then(|| old::departure(row, meeting)).flatten();
        let expected = of_old.unwrap_or_else(|| row.expected(meeting));
        let asks = meeting == Meeting::OursToRxe;
        ours.passed();
        let (requester, responder): (&mut dyn Adapter, &mut dyn Adapter) =
            if asks { (&mut *ours, &mut *self.rxe) } else { (&mut *self.rxe, &mut *ours) };
        let mut seen = carry_out(row, requester, responder, expected)?;
        seen.wire = refusals(&ours.passed(), !asks);
        ensure!(seen.is(expected), "{seen}; expected was {expected:?}");
        Ok(())
    }

    fn hostile(&mut self, ours: &mut Ours) -> Result<()> {
        for row in HOSTILE {
            ensure_in_time(self.deadline)?;
            let expected = row.rxe.as_ref().unwrap_or(&row.standard);
            let answer = attack(row, ours, self.rxe, expected).and_then(|seen| {
                ensure!(seen.is(expected), "{seen}; expected was {expected:?}");
                Ok(())
            });
            self.conclude(&format!("rxe: {}", row.name), answer);
        }
        Ok(())
    }

    /// Messages both ways with faults, over IPv4 and IPv6 by turns. Gives the wire back, and adds
    /// the frames that were damaged on the way to rxe.
    fn faults(&mut self, mut wire: Box<dyn Wire>, struck: &mut Vec<Struck>) -> Result<Box<dyn Wire>> {
        for (seed, text) in (1..).zip(FAULTS) {
            let seed: u64 = seed;
            let (guest, host) = if seed.is_multiple_of(2) { (GUEST_SIX, HOST_SIX) } else { (GUEST, HOST) };
            self.rxe.move_to(guest)?;
            for reliable in [true, false] {
                ensure_in_time(self.deadline)?;
                let mut faulty = Faulty::start(wire, host, text.parse()?, seed, self.rxe)?;
                let answer =
                    if reliable { faulty.reliable().map(|()| None) } else { faulty.unreliable().map(Some) };
                let (same, damaged) = faulty.stop()?;
                wire = same;
                struck.extend(damaged);
                let (name, answer) = match answer {
                    Ok(Some(Tally { arrived, lost })) => (
                        format!(
                            "with {text} {arrived} unreliable messages arrive right both ways, {lost} are lost"
                        ),
                        Ok(()),
                    ),
                    answer => {
                        let kind = if reliable {
                            "all messages arrive both ways, and rxe counts them"
                        } else {
                            "unreliable messages"
                        };
                        (format!("with {text} {kind}"), answer.map(|_| ()))
                    }
                };
                self.conclude(&name, answer);
            }
        }
        Ok(wire)
    }
}

fn ensure_in_time(deadline: Instant) -> Result<()> {
    ensure!(Instant::now() < deadline, "the time of the guest is over");
    Ok(())
}

/// Our endpoint at `station`, with nothing wrong with its wire.
fn start(wire: Box<dyn Wire>, station: Station) -> Result<Ours> {
    Ours::start(FaultyWire::new(wire, WireFaults::NONE, WireFaults::NONE, 0), station)
}

const fn called(meeting: Meeting) -> &'static str {
    match meeting {
        Meeting::OursToOurs => "ours to ours",
        Meeting::OursToRxe => "ours to rxe",
        Meeting::RxeToOurs => "rxe to ours",
    }
}
