//! The fault oracle of RoCE, with Linux's rxe at one of the two ends.
//!
//! [`rows`] says what is done and what must come of it. An [`Adapter`] is our endpoint
//! ([`Ours`]), or rxe in a guest ([`Rxe`]), told by the program `tests/roce/verbs.c` what to do.

mod adapter;
pub mod datagrams;
mod faulty;
pub mod hostile;
mod judge;
mod old;
mod ours;
pub mod rows;
mod rxe;
mod traffic;
mod trial;
mod unreliable;

use vdk_descriptors::roce::Syndrome;

pub use adapter::{Adapter, Connection, Done, Pair, Region, Send};
pub use judge::{CAPTURE, Extent, GUEST, GUEST_SIX, HOST, HOST_SIX, judge};
pub use ours::{EndpointWire, Ours, Passed, Struck};
pub use rxe::Rxe;
pub use trial::{Seen, carry_out};

/// The syndromes of one direction that are no plain acknowledgement.
#[must_use]
pub fn refusals(passed: &[Passed], sent: bool) -> Vec<u8> {
    let syndromes = passed.iter().filter(|passed| passed.sent == sent).filter_map(Passed::syndrome);
    syndromes.filter(|syndrome| *syndrome != Syndrome::ACK).map(Syndrome::to_byte).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use vdk_descriptors::roce::{PathMtu, Psn};
    use vdk_firmware_stubs::roce::Station;
    use vdk_firmware_stubs::roce::wire::faults::FaultLog;
    use vdk_firmware_stubs::roce::wire::{FaultyWire, PairWire, Wire, WireFaults, pair};

    use super::datagrams::DATAGRAM_ROWS;
    use super::hostile::{HOSTILE, attack};
    use super::rows::{Meeting, ROWS};
    use super::traffic::{Chosen, Run, carry_messages};
    use super::*;

    /// Two endpoints of ours, whose wire goes wrong in this way.
    fn both(faults: WireFaults) -> (Ours, Ours) {
        let (one, other) = pair(1 << 20).unwrap();
        (start(one, faults, HOST), start(other, faults, GUEST))
    }

    fn start(wire: PairWire, faults: WireFaults, station: Station) -> Ours {
        let wire: Box<dyn Wire> = Box::new(wire);
        Ours::start(FaultyWire::new(wire, faults, faults, 1), station).unwrap()
    }

    #[test]
    fn ours_against_ours_does_what_the_standard_says() {
        for (here, there) in [(HOST, GUEST), (HOST_SIX, GUEST_SIX)] {
            let (one, other) = pair(1 << 20).unwrap();
            let none = WireFaults::NONE;
            let (mut requester, mut responder) = (start(one, none, here), start(other, none, there));
            for row in ROWS.iter().chain(DATAGRAM_ROWS) {
                let expected = row.expected(Meeting::OursToOurs);
                let mut seen = carry_out(row, &mut requester, &mut responder, expected).unwrap();
                seen.wire = refusals(&requester.passed(), false);
                assert!(seen.is(expected), "{:02} {} at {}: {seen}", row.number, row.name, here.address);
            }
        }
    }

    #[test]
    fn ours_takes_hostile_requests_as_the_standard_says() {
        let (mut wire, mut responder) = both(WireFaults::NONE);
        let mut wrong = Vec::new();
        for row in HOSTILE {
            let seen = attack(row, &mut wire, &mut responder, &row.standard).unwrap();
            if !seen.is(&row.standard) {
                wrong.push(format!("{}: {seen}", row.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn what_arrives_of_unreliable_messages_is_whole() {
        let (mut lost, mut arrived) = (0, 0);
        for faults in ["rate=1000000000", "drop=10%", "duplicate=10%", "reorder=10%", "corrupt=10%"] {
            let (one, other) = pair(1 << 20).unwrap();
            let wire: Box<dyn Wire> = Box::new(one);
            let wire = FaultyWire::new(wire, faults.parse().unwrap(), WireFaults::NONE, 1);
            let log = wire.sent();
            let mut requester = Ours::start(wire, HOST).unwrap();
            let mut responder = start(other, WireFaults::NONE, GUEST);
            let psns = (Psn::new(0xff_fff0), Psn::new(7));
            let flows = unreliable::begin(&mut requester, &mut responder, psns, 7).unwrap();
            for flow in &flows {
                flow.sent(&mut requester).unwrap();
            }
            // Damaged frames come to no queue pair.
            let due = |log: &FaultLog| {
                let counts = log.counts;
                counts.frames + counts.duplicated - counts.dropped - counts.damaged
            };
            let begun = Instant::now();
            loop {
                let taken = flows.iter().map(|flow| responder.counters(flow.receiver()).unwrap());
                let taken: u64 = taken.map(|counters| counters.frames_received).sum();
                if taken == due(&log.lock().unwrap()) {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(20), "{faults}: {taken} frames came");
                std::thread::sleep(Duration::from_millis(2));
            }
            let entries = log.lock().unwrap().entries().to_vec();
            for flow in &flows {
                let tally = flow
                    .arrived(&mut responder, false, &entries, Duration::ZERO)
                    .unwrap_or_else(|error| panic!("{faults}: {error:#}"));
                lost += tally.lost;
                arrived += tally.arrived;
            }
        }
        assert!(lost > 0 && arrived > lost, "{arrived} arrived, {lost} were lost");
    }

    #[test]
    fn all_messages_arrive_over_a_bad_wire_too() {
        for faults in ["", "drop=10%", "duplicate=10%", "reorder=10%", "corrupt=10%"] {
            let (mut requester, mut responder) = both(faults.parse().unwrap());
            let psns = (Psn::new(0xff_fff0), Psn::new(0x7f_fff0));
            // Eight times 134 ms for an answer: a busy machine may leave one of the two threads
            // aside for longer than eight short waits of the other.
            let run = Run { psns, mtu: PathMtu::Mtu1024, chosen: Chosen::All, timeout: 15, seed: 7 };
            carry_messages(&mut requester, &mut responder, &run)
                .unwrap_or_else(|error| panic!("{faults}: {error:#}"));
        }
    }
}
